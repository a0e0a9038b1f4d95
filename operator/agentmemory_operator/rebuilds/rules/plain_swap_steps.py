"""Put a plain collection behind an alias of its own name: the next step for a given state.

The collection has the name of the alias, so one action cannot replace it. The collection must be deleted first, and
clients find nothing until the alias exists. By then its contents are stored twice: in the verified target, and in a
copy of the collection, the *way back*.

| plain collection | alias points to | target's record | way back | next step |
|---|---|---|---|---|
| exists | nothing | any | missing | Keep: create the copy |
| exists | nothing | any | exists | Replace: last pass, then delete the collection |
| deleted | nothing | Move | any | Link: create the alias at once |
| deleted | nothing | another step | any | Lost: deleted by another client; the target is incomplete |
| deleted | target | any | any | Done |
| deleted | another collection | any | any | Taken: another client created the alias |

The record contains `gone_ms` from right before the deletion on. From then on the target is the only collection that can
serve clients, so it is never removed.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, RebuildStep


class PlainSwapStep(StrEnum):
    """Next step to put a plain collection behind an alias; see the module's table."""

    KEEP = "Keep"
    REPLACE = "Replace"
    LINK = "Link"
    DONE = "Done"
    LOST = "Lost"
    TAKEN = "Taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSwapState:
    """State that determines the next step.

    Attributes:
        has_plain: True if a collection has the alias's own name.
        alias_target: Collection behind the alias; None if there is no alias.
        record: Record in the target's metadata.
        has_way_back: True if the copy of the plain collection exists.
    """

    has_plain: bool
    alias_target: str | None
    record: RebuildRecord
    has_way_back: bool


def next_step(scene: PlainSwapState) -> PlainSwapStep:
    """Return the next step by the module's table."""
    if scene.alias_target is not None:
        return PlainSwapStep.DONE if scene.alias_target == scene.record.target else PlainSwapStep.TAKEN
    if scene.has_plain:
        return PlainSwapStep.REPLACE if scene.has_way_back else PlainSwapStep.KEEP
    return PlainSwapStep.LINK if scene.record.step is RebuildStep.MOVE else PlainSwapStep.LOST


def replaces_plain_collection(record: RebuildRecord, alias: str) -> bool:
    """Return whether a record's source is a plain collection, which has the name of the alias."""
    return record.source == alias


def awaits_alias(record: RebuildRecord | None, alias: str) -> bool:
    """Return whether the alias must point to a record's target as soon as the plain collection is deleted."""
    return record is not None and replaces_plain_collection(record, alias) and record.step is RebuildStep.MOVE


def is_plain_deleted(record: RebuildRecord, alias: str) -> bool:
    """Return whether the plain collection was deleted, or was about to be. The record's target must then be kept."""
    return awaits_alias(record, alias) and record.gone_ms is not None


def with_way_back_as_source(record: RebuildRecord, alias: str, now_ms: int) -> RebuildRecord:
    """Return the record after the move: its source is now the way back, which has the replaced contents.

    Records of other rebuilds are returned unchanged.

    Args:
        now_ms: Time at which the alias was first observed there, Unix milliseconds.
    """
    if not replaces_plain_collection(record, alias):
        return record
    since_ms = record.gone_ms if record.gone_ms is not None else now_ms
    pause_ms = record.pause_ms if record.pause_ms is not None else now_ms - since_ms
    return replace(record, source=record.way_back or record.source, pause_ms=pause_ms)
