"""How a plain collection gets behind an alias of its own name: what is next, given what is there.

The collection itself bears the name, so the alias cannot be moved in one action as in any other Rebuild: the collection
has to go first, and clients find nothing until the alias is there. What goes is held twice by then: in the target,
which is verified, and in a copy of the collection as it was, the way back.

| plain collection | alias leads to | target's record | way back | next |
|---|---|---|---|---|
| there | nothing | any | missing | Keep: the copy is made |
| there | nothing | any | there | Replace: the last pass, then the collection goes |
| gone | nothing | Move | any | Link: the alias is created, at once |
| gone | nothing | another step | any | Lost: somebody else deleted the collection, and the target is no whole copy |
| gone | target | any | any | Done |
| gone | another collection | any | any | Taken: somebody else made the alias |

From the moment on in which the collection goes, the record says `gone_ms`: its target is all that clients are going to
be served from, and nothing takes it away any more.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, RebuildStep


class Next(StrEnum):
    """What is to be done next."""

    KEEP = "Keep"
    REPLACE = "Replace"
    LINK = "Link"
    DONE = "Done"
    LOST = "Lost"
    TAKEN = "Taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is there.

    Attributes:
        has_plain: there is a collection of the alias's own name.
        leads_to: the collection that the alias leads to, None where there is no alias.
        has_way_back: the copy of the collection as it was is there.
    """

    has_plain: bool
    leads_to: str | None
    record: RebuildRecord
    has_way_back: bool


def next_of(scene: Scene) -> Next:
    """What is to be done next; the module's table."""
    if scene.leads_to is not None:
        return Next.DONE if scene.leads_to == scene.record.target else Next.TAKEN
    if scene.has_plain:
        return Next.REPLACE if scene.has_way_back else Next.KEEP
    return Next.LINK if scene.record.step is RebuildStep.MOVE else Next.LOST


def is_of_plain(record: RebuildRecord, alias: str) -> bool:
    """Whether a rebuild puts an alias in the place of a plain collection, and was not seen to have done so."""
    return record.source == alias


def awaits_alias(record: RebuildRecord | None, alias: str) -> bool:
    """Whether a record's target is what the alias is to lead to as soon as the plain collection is gone."""
    return record is not None and is_of_plain(record, alias) and record.step is RebuildStep.MOVE


def is_past_return(record: RebuildRecord, alias: str) -> bool:
    """Whether the plain collection has gone, or was about to go, so that its target is to stay in any case."""
    return awaits_alias(record, alias) and record.gone_ms is not None


def without_plain(record: RebuildRecord, alias: str, now_ms: int) -> RebuildRecord:
    """The record as it is once the alias leads to the target: what was replaced lies in the way back.

    Args:
        now_ms: when the alias was first seen there, Unix milliseconds.
    """
    if not is_of_plain(record, alias):
        return record
    since_ms = record.gone_ms if record.gone_ms is not None else now_ms
    pause_ms = record.pause_ms if record.pause_ms is not None else now_ms - since_ms
    return replace(record, source=record.way_back or record.source, pause_ms=pause_ms)
