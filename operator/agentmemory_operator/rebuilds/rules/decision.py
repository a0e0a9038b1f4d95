"""What is to be done about an agent's rebuilds, by what lies in Qdrant and what the object wants. Pure.

| the alias leads to | the object wants | there is | then |
|---|---|---|---|
| a target whose record has not ended | anything | | it is gone on with: the move is behind it |
| a plain collection that is about to go, or was | anything | its target | that one is gone on with |
| a target | its rollback | | the collection that it replaced becomes live again |
| a source | a rebuild | a target of the same plan | that one is gone on with |
| a source | a rebuild | no such target | one is begun |
| a source | nothing | a target | it is removed |

Targets that nobody wants are removed in any case; a collection that was replaced is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agentmemory_operator.collections.rules.collection import Observed
from agentmemory_operator.collections.rules.rebuild_record import RebuildKind, RebuildRecord, RebuildStep
from agentmemory_operator.rebuilds.rules.plain import is_past_return


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildWish:
    """What the object wants.

    Attributes:
        digest: of the plan that may be carried out by a rebuild, None where there is none.
        rollback: the live collection that is to be taken back, None where none is.
    """

    digest: str | None = None
    rollback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be done.

    Attributes:
        going_on: the rebuild that was begun and is gone on with.
        begins: which kind is begun, None where none is.
        unwanted: what was begun and is not wanted.
        is_urgent: clients are not served, or not for long, until it has gone on.
    """

    going_on: RebuildRecord | None = None
    begins: RebuildKind | None = None
    unwanted: tuple[RebuildRecord, ...] = ()
    is_urgent: bool = False

    @property
    def may_wait(self) -> bool:
        """Whether there is something to do, and nothing that is behind its move."""
        going_on = self.going_on
        if going_on is None:
            return self.begins is not None or bool(self.unwanted)
        return not (going_on.is_moved or self.is_urgent)


def decide(live: Observed | None, records: Sequence[RebuildRecord], wish: RebuildWish) -> Decision:
    """What is to be done.

    Args:
        live: what the alias leads to.
        records: of every collection of the agent that has one.
    """
    if live is None:
        return Decision()
    open_ = [record for record in records if record.step is not RebuildStep.DONE and record.target != live.physical]
    own = live.record
    if own is not None and own.target == live.physical and own.step is not RebuildStep.DONE:
        return Decision(going_on=own, unwanted=tuple(open_))
    urgent = next((record for record in open_ if not live.is_aliased and is_past_return(record, live.physical)), None)
    if urgent is not None:
        return Decision(going_on=urgent, is_urgent=True)
    kind = _wanted(live, wish)
    chosen = next((record for record in open_ if _is_wanted(record, live, kind, wish)), None)
    unwanted = tuple(record for record in open_ if record is not chosen)
    if chosen is not None:
        return Decision(going_on=chosen, unwanted=unwanted)
    return Decision(begins=kind, unwanted=unwanted)


def _wanted(live: Observed, wish: RebuildWish) -> RebuildKind | None:
    if wish.rollback is not None and wish.rollback == live.physical:
        return RebuildKind.ROLLBACK
    return RebuildKind.REBUILD if wish.digest is not None else None


def _is_wanted(record: RebuildRecord, live: Observed, kind: RebuildKind | None, wish: RebuildWish) -> bool:
    is_same = record.kind is kind and record.source == live.physical
    return is_same and (kind is RebuildKind.ROLLBACK or record.digest == wish.digest)
