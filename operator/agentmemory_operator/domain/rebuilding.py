"""A Rebuild and its way back: the steps in order, and what is on record of one in the metadata of collections.

The source is what the alias leads to until the move, the target what it leads to afterwards. The target carries the
record from the call on that creates it, so that whoever comes next goes on where the last one was killed; the source
says while that is verified and moved to that there is a move ahead.

| step | does |
|---|---|
| Create | the target, empty, with the record |
| Copy | every point, page by page; the record says up to where |
| CatchUp | what was changed meanwhile, until hardly anything is left |
| Converge | figures and indexes as the object asks; waits for the engine |
| Verify | announces the move (that of a plain collection is announced in Move), compares both |
| Keep | of a plain collection alone: a copy of it, the way back, since the collection itself has to go |
| Move | carries what is left over, points the alias at the target |
| Drain | what late writers left in the source, until there is nothing |
| Settle | marks the source as replaced, and how long it is kept |

A Rollback begins at CatchUp: its source is what is live, its target the collection that was replaced.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from agentmemory_operator.domain.recall_figures import Recall, recall_from_json, recall_to_json

REBUILD_KEY = "agentmemoryRebuild"
"""Key of the target's metadata: the record."""

MOVING_KEY = "agentmemoryMoving"
"""Key of the source's metadata while its alias is about to be moved: {"from", "to", "phase", "token" of that
announcement, "embedding" after it}."""

LEASE_S = 5.0
"""For how many seconds an API process may rely on what a collection's metadata said."""

ANNOUNCE_S = 7.0
"""Seconds between the announcement of a move and its final pass: the lease, and what clocks and calls may differ by."""


class Kind(StrEnum):
    """Which way it goes."""

    REBUILD = "Rebuild"
    ROLLBACK = "Rollback"


class Step(StrEnum):
    """Where it is."""

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


class Phase(StrEnum):
    """What the source says of the move."""

    ANNOUNCED = "Announced"
    FINAL = "Final"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is on record of a rebuild, in its target's metadata.

    Attributes:
        source, target: physical names.
        digest: of the plan that is carried out; of a Rollback that of what it takes back.
        step: the one that was begun and is not seen done.
        begun_ms, moved_ms: Unix milliseconds; moved_ms is None before the alias was moved.
        since_ms: every change of the source before it is in the target.
        cursor: where the copy goes on, an offset of a scroll; None is the beginning.
        copied, total: points, of the copy.
        calls: requests to the embedding provider.
        recall: what probe searches found; None before they were made.
        way_back: of a plain collection, the copy of it that is kept; it is the source once the collection is gone.
        gone_ms: when a plain collection was about to go, Unix milliseconds.
        pause_ms: for how many milliseconds there was neither a plain collection nor the alias in its place.
    """

    source: str
    target: str
    digest: str
    begun_ms: int
    since_ms: int
    kind: Kind = Kind.REBUILD
    step: Step = Step.CREATE
    cursor: str | int | None = None
    copied: int = 0
    total: int = 0
    calls: int = 0
    moved_ms: int | None = None
    recall: Recall | None = None
    way_back: str | None = None
    gone_ms: int | None = None
    pause_ms: int | None = None

    @property
    def is_moved(self) -> bool:
        """Tell whether the alias is known to lead to the target."""
        return self.step in (Step.DRAIN, Step.SETTLE, Step.DONE)


def way_back(record: Record, now_ms: int) -> Record:
    """Return what is on record of taking a rebuild back that has ended.

    What was written since its alias was moved is carried back.
    """
    return Record(
        kind=Kind.ROLLBACK,
        source=record.target,
        target=record.source,
        digest=record.digest,
        step=Step.CATCH_UP,
        begun_ms=now_ms,
        since_ms=record.moved_ms or record.begun_ms,
    )


def steps_from(step: Step, *, is_moved: bool) -> tuple[Step, ...]:
    """Return the steps that are still to be taken, in order; `step` may be half done.

    Args:
        is_moved: the alias leads to the target, whatever the record says.
    """
    steps = tuple(Step)[:-1]
    first = max(steps.index(step), steps.index(Step.DRAIN)) if is_moved else steps.index(step)
    return steps[first:]


_NAMES = {
    "begun_ms": "begunMs",
    "since_ms": "sinceMs",
    "moved_ms": "movedMs",
    "way_back": "wayBack",
    "gone_ms": "goneMs",
    "pause_ms": "pauseMs",
}


def record_to_json(record: Record) -> dict[str, Any]:
    """Return the record as it lies in metadata; what is None is left out."""
    found = {"recall": recall_to_json(record.recall)} if record.recall else {}
    return {_NAMES.get(name, name): value for name, value in asdict(record).items() if value is not None} | found


def record_from_json(metadata: Mapping[str, Any] | None) -> Record | None:
    """Return the record in a collection's metadata, None where there is none that can be read."""
    told = (metadata or {}).get(REBUILD_KEY)
    if not isinstance(told, Mapping):
        return None
    names = {told_as: name for name, told_as in _NAMES.items()}
    values = {names.get(key, key): value for key, value in told.items()}
    try:
        known = {name: values[name] for name in Record.__slots__ if name in values}
        known |= {"recall": recall_from_json(values.get("recall"))}
        return Record(**known | {"kind": Kind(values["kind"]), "step": Step(values["step"])})
    except (KeyError, TypeError, ValueError):
        return None


def copied_elsewhere() -> dict[str, Any]:
    """Return the change of metadata for a copy under another name: what came with it is of the collection copied."""
    return {REBUILD_KEY: None, MOVING_KEY: None}


def copied_back(before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the change of metadata for a collection that took the contents of a copy of its own.

    Args:
        before: what it said of itself: how it came about stays, and is over.
    """
    record = record_from_json(before)
    ended = None if record is None else record_to_json(replace(record, step=Step.DONE))
    return {REBUILD_KEY: ended, MOVING_KEY: None}


def epoch_of(metadata: Mapping[str, Any] | None) -> str:
    """Return what tells a collection from every other that its alias leads to."""
    record = record_from_json(metadata)
    return record.target if record else ""


def phase_of(metadata: Mapping[str, Any] | None) -> Phase | None:
    """Return how near the move of a collection's alias is, None where there is none ahead."""
    told = (metadata or {}).get(MOVING_KEY)
    try:
        return Phase(told["phase"]) if isinstance(told, Mapping) else None
    except (KeyError, ValueError):
        return None
