"""Steps of a rebuild and of its rollback, and the record of their progress in collection metadata.

The *source* is the collection behind the alias before the move, the *target* the collection after it. The request that
creates the target also writes the record into it, so that another operator can continue after a crash. While the target
is being verified and moved to, the source contains the announcement of the move.

| step | action |
|---|---|
| Create | create the empty target with the record |
| Copy | copy every point, page by page; the record contains the cursor |
| CatchUp | copy later changes, until hardly any are left |
| Converge | apply settings and indexes of the object; wait for the optimizers |
| Verify | announce the move (for a plain collection, Move does), compare both collections |
| Keep | plain collections only: create a copy for the rollback, because the collection itself is deleted |
| Move | copy the remaining changes, point the alias to the target |
| Drain | copy late writes from the source, until there are none |
| Settle | mark the source as replaced, with its retention |

A rollback starts at CatchUp: its source is the live collection, its target the replaced one.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from agentmemory_operator.collections.rules.announcement import MOVING_KEY
from agentmemory_operator.collections.rules.epochs import CLOSED_KEY, EPOCH_KEY, read_epoch
from agentmemory_operator.spec.kinds.spec_rebuild import is_active

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecall:
    """Recall of probe searches, as shares from 0 to 1. None if not measured.

    Attributes:
        probes: Number of searches of each kind.
        neighbours: Share of the nearest neighbours in the source that are nearest in the target too.
        found_before, found_after: Share of sampled memories found by a search for their own text, in source and target.
            Measured only if memories were embedded again.
        index_before, index_after: Recall of the HNSW index of source and target.
    """

    probes: int
    neighbours: float | None = None
    found_before: float | None = None
    found_after: float | None = None
    index_before: float | None = None
    index_after: float | None = None


_FIGURES = {
    "found_before": "foundBefore",
    "found_after": "foundAfter",
    "index_before": "indexBefore",
    "index_after": "indexAfter",
}


def recall_to_json(recall: ProbeRecall) -> Json:
    """Render the figures for status and record; None is left out."""
    return {_FIGURES.get(name, name): value for name, value in asdict(recall).items() if value is not None}


def recall_from_json(recorded: Mapping[str, Any] | None) -> ProbeRecall | None:
    """Parse the figures of a record or status. None if they lack the number of probes."""
    names = {key: name for name, key in _FIGURES.items()}
    values = {names.get(key, key): value for key, value in (recorded or {}).items()}
    figures = {name: values[name] for name in ProbeRecall.__slots__ if name in values}
    return ProbeRecall(**figures) if "probes" in figures else None


REBUILD_KEY = "agentmemoryRebuild"
"""Metadata key of a rebuild's target. Its value is the record."""


class RebuildKind(StrEnum):
    """Direction of a rebuild: to a new collection, or back to the replaced one."""

    REBUILD = "Rebuild"
    ROLLBACK = "Rollback"


class RebuildStep(StrEnum):
    """Step of a rebuild; see the module's table."""

    CREATE = "Create"
    COPY = "Copy"
    CATCH_UP = "CatchUp"
    CONVERGE = "Converge"
    VERIFY = "Verify"
    KEEP = "Keep"
    MOVE = "Move"
    DRAIN = "Drain"
    SETTLE = "Settle"
    DONE = "Done"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildRecord:
    """Record of a rebuild in its target's metadata.

    Attributes:
        source, target: Physical names.
        digest: Digest of the plan; for a rollback, that of the plan that is rolled back.
        started_ms: Start, Unix milliseconds.
        since_ms: Time up to which all changes of the source are in the target, Unix milliseconds.
        cursor: Offset of the scroll at which the copy continues. None is the beginning.
        copied, total: Points copied by the step Copy so far, and in the source at its start.
        calls: Number of requests to the embedding provider.
        moved_ms: Time of the move, Unix milliseconds. None before it.
        recall: Recall of probe searches. None before they are made.
        way_back: Copy of a plain collection that is kept for the rollback. It becomes the source once the plain one is
            deleted. None before its creation, and if the source is not plain.
        deleted_ms: Time right before a plain collection was deleted, Unix milliseconds. None before that.
        pause_ms: Milliseconds in which neither the plain collection nor the alias existed. None if not measured.
    """

    source: str
    target: str
    digest: str
    started_ms: int
    since_ms: int
    kind: RebuildKind = RebuildKind.REBUILD
    step: RebuildStep = RebuildStep.CREATE
    cursor: str | int | None = None
    copied: int = 0
    total: int = 0
    calls: int = 0
    moved_ms: int | None = None
    recall: ProbeRecall | None = None
    way_back: str | None = None
    deleted_ms: int | None = None
    pause_ms: int | None = None

    @property
    def is_moved(self) -> bool:
        """True if the step implies that the alias points to the target."""
        return self.step in (RebuildStep.DRAIN, RebuildStep.SETTLE, RebuildStep.DONE)


def rollback_record(record: RebuildRecord, now_ms: int) -> RebuildRecord:
    """Build the record of a rollback of a completed rebuild. Writes since its move are copied back."""
    return RebuildRecord(
        kind=RebuildKind.ROLLBACK,
        source=record.target,
        target=record.source,
        digest=record.digest,
        step=RebuildStep.CATCH_UP,
        started_ms=now_ms,
        since_ms=record.moved_ms or record.started_ms,
    )


def resume_step(step: RebuildStep, *, is_moved: bool) -> RebuildStep:
    """Return the step at which a rebuild continues, if `step` was recorded and may be half done.

    Args:
        is_moved: True if the alias points to the target, whatever the record contains.
    """
    return RebuildStep.SETTLE if step is RebuildStep.SETTLE else RebuildStep.DRAIN if is_moved else step


_NAMES = {
    "started_ms": "begunMs",
    "since_ms": "sinceMs",
    "moved_ms": "movedMs",
    "way_back": "wayBack",
    "deleted_ms": "goneMs",
    "pause_ms": "pauseMs",
}


def record_to_json(record: RebuildRecord) -> dict[str, Any]:
    """Render a record for metadata; None is left out."""
    found = {"recall": recall_to_json(record.recall)} if record.recall else {}
    return {_NAMES.get(name, name): value for name, value in asdict(record).items() if value is not None} | found


def record_from_json(metadata: Mapping[str, Any] | None) -> RebuildRecord | None:
    """Parse the record in a collection's metadata; None if it is missing or invalid."""
    stored = (metadata or {}).get(REBUILD_KEY)
    if not isinstance(stored, Mapping):
        return None
    names = {key: name for name, key in _NAMES.items()}
    values = {names.get(key, key): value for key, value in stored.items()}
    try:
        fields = {name: values[name] for name in RebuildRecord.__slots__ if name in values}
        fields |= {"recall": recall_from_json(values.get("recall"))}
        return RebuildRecord(**fields | {"kind": RebuildKind(values["kind"]), "step": RebuildStep(values["step"])})
    except (KeyError, TypeError, ValueError):
        return None


def clear_copied_keys() -> dict[str, Any]:
    """Build the change of metadata that removes, in a copy under another name, the keys that describe the original."""
    return dict.fromkeys((REBUILD_KEY, MOVING_KEY, EPOCH_KEY, CLOSED_KEY))


def keep_as_completed(before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Build the change of metadata for a collection into which a snapshot was restored in place.

    It removes the announcement of a move, and replaces the rebuild record that comes from the snapshot.

    Args:
        before: Metadata before the restore. Its rebuild record is kept as completed. None without one.
    """
    record = record_from_json(before)
    completed = None if record is None else record_to_json(replace(record, step=RebuildStep.DONE))
    return {REBUILD_KEY: completed, MOVING_KEY: None}


def read_epoch_text(metadata: Mapping[str, Any] | None) -> str:
    """Return the epoch of a collection as text. Each target of an alias has another epoch.

    It consists of the target's name in the rebuild record, if any, and the number, if valid.
    """
    record, number = record_from_json(metadata), read_epoch(metadata).number
    name = record.target if record else ""
    return f"{name}@{number}" if number else name


def is_moving(status: Mapping[str, Any]) -> bool:
    """Return whether a status reports a rebuild that is about to move the alias, or has moved it and not ended."""
    return is_active(status) and status.get("step") in (
        RebuildStep.KEEP,
        RebuildStep.MOVE,
        RebuildStep.DRAIN,
        RebuildStep.SETTLE,
    )
