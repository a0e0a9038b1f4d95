"""Put a plain collection behind an alias of its own name: the next step for a given state.

The collection has the name of the alias, so one action cannot replace it. The collection must be deleted first, and
clients find nothing until the alias exists. By then its contents are stored twice: in the verified target, and in a
copy of the collection, the *way back*.

| plain collection | alias points to | target's record | way back | next step |
|---|---|---|---|---|
| exists | nothing | any | missing | Keep: create the copy |
| exists | nothing | any | exists | Replace: last pass, then delete the collection |
| deleted | nothing | Move | any | Link: create the alias immediately |
| deleted | nothing | another step | any | Lost: deleted by another client; the target is incomplete |
| deleted | target | any | any | Done |
| deleted | another collection | any | any | Taken: another client created the alias |

The record contains `deleted_ms` from right before the deletion on. From then on the target is the only collection that
can serve clients, so it is never removed.
"""

from dataclasses import replace

from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, RebuildStep


def replaces_plain_collection(record: RebuildRecord, alias: str) -> bool:
    """Return whether a record's source is a plain collection, which has the name of the alias."""
    return record.source == alias


def awaits_alias(record: RebuildRecord | None, alias: str) -> bool:
    """Return whether a record is of a plain swap in step Move: once its collection is deleted, the alias is created.

    Args:
        record: None returns False.
    """
    return record is not None and replaces_plain_collection(record, alias) and record.step is RebuildStep.MOVE


def is_plain_deleted(record: RebuildRecord, alias: str) -> bool:
    """Return whether a move in progress has deleted the plain collection, or was about to; its target must be kept."""
    return awaits_alias(record, alias) and record.deleted_ms is not None


def with_way_back_as_source(record: RebuildRecord, alias: str, now_ms: int) -> RebuildRecord:
    """Return the record after the move: its source is now the way back, which has the replaced contents.

    Records of other rebuilds are returned unchanged.

    Args:
        now_ms: Current time, Unix milliseconds. If `pause_ms` was not recorded, the pause ends at this time.
    """
    if not replaces_plain_collection(record, alias):
        return record
    since_ms = record.deleted_ms if record.deleted_ms is not None else now_ms
    pause_ms = record.pause_ms if record.pause_ms is not None else now_ms - since_ms
    return replace(record, source=record.way_back or record.source, pause_ms=pause_ms)
