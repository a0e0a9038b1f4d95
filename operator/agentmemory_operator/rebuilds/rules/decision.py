"""Decide what to do about an agent's rebuilds, from the records in Qdrant and the request of the object. Pure.

| the alias points to | the object requests | and there is | decision |
|---|---|---|---|
| a target whose record is not completed | anything | | continue it: the alias was moved already |
| a plain collection that is being deleted, or was | anything | its target | continue that rebuild, and nothing else |
| a target | its rollback | | roll back to the collection that it replaced |
| a source | a rebuild | a target of the same plan | continue that rebuild |
| a source | a rebuild | no such target | start a rebuild |
| a source | nothing | a target | remove the target |

Except in the second row, all other unfinished targets are removed too. Without a live collection nothing is done.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agentmemory_operator.collections.rules.collection import Observation
from agentmemory_operator.collections.rules.rebuild_record import RebuildKind, RebuildRecord, RebuildStep
from agentmemory_operator.rebuilds.rules.plain_swap_steps import is_plain_deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildRequest:
    """Rebuild or rollback that an AgentMemory requests.

    Attributes:
        digest: Digest of the plan that a rebuild may apply; None if there is none.
        rollback: Collection to roll back, which counts only if it is live; None if no rollback is requested.
    """

    digest: str | None = None
    rollback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildDecision:
    """Next action for an agent's rebuilds.

    Attributes:
        current: Rebuild in progress to continue; None if there is none.
        new_kind: Kind of the rebuild to start; None to start none.
        obsolete: Rebuilds in progress to cancel.
        is_urgent: True if `current` has deleted the plain collection, or is about to: then clients wait for the alias.
    """

    current: RebuildRecord | None = None
    new_kind: RebuildKind | None = None
    obsolete: tuple[RebuildRecord, ...] = ()
    is_urgent: bool = False

    @property
    def can_wait_for_restore(self) -> bool:
        """True if there is an action that a restore may precede: not an urgent rebuild, and not one that has moved."""
        current = self.current
        if current is None:
            return self.new_kind is not None or bool(self.obsolete)
        return not (current.is_moved or self.is_urgent)


def decide(live: Observation | None, records: Sequence[RebuildRecord], request: RebuildRequest) -> RebuildDecision:
    """Apply the module's table.

    Args:
        live: Collection behind the alias; None if there is none.
        records: Records of all collections of the agent that have one.
    """
    if live is None:
        return RebuildDecision()
    open_ = [record for record in records if record.step is not RebuildStep.DONE and record.target != live.physical]
    recorded = live.record
    if recorded is not None and recorded.target == live.physical and recorded.step is not RebuildStep.DONE:
        return RebuildDecision(current=recorded, obsolete=tuple(open_))
    urgent = next((record for record in open_ if not live.is_aliased and is_plain_deleted(record, live.physical)), None)
    if urgent is not None:
        return RebuildDecision(current=urgent, is_urgent=True)
    kind = _requested_kind(live, request)
    continued = next((record for record in open_ if _matches_request(record, live, kind, request)), None)
    unwanted = tuple(record for record in open_ if record is not continued)
    if continued is not None:
        return RebuildDecision(current=continued, obsolete=unwanted)
    return RebuildDecision(new_kind=kind, obsolete=unwanted)


def _requested_kind(live: Observation, goal: RebuildRequest) -> RebuildKind | None:
    if goal.rollback is not None and goal.rollback == live.physical:
        return RebuildKind.ROLLBACK
    return RebuildKind.REBUILD if goal.digest is not None else None


def _matches_request(record: RebuildRecord, live: Observation, kind: RebuildKind | None, goal: RebuildRequest) -> bool:
    is_same = record.kind is kind and record.source == live.physical
    return is_same and (kind is RebuildKind.ROLLBACK or record.digest == goal.digest)
