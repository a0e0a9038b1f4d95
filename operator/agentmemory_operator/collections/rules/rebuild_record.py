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

from agentmemory_operator.collections.rules.announcement import MOVING_KEY
from agentmemory_operator.collections.rules.epochs import CLOSED_KEY, EPOCH_KEY, epoch_in
from agentmemory_operator.spec.kinds.rebuild import is_under_way

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecall:
    """What the probes came to; shares of 0..1, None where they were not measured.

    Attributes:
        probes: searches of each kind.
        neighbours: of the source's nearest that are the target's too.
        found_before, found_after: only where the memories were embedded anew.
        index_before, index_after: of the source's and of the target's index.
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
    """The figures as status and record have them; what was not measured is left out."""
    return {_FIGURES.get(name, name): value for name, value in asdict(recall).items() if value is not None}


def recall_from_json(told: Mapping[str, Any] | None) -> ProbeRecall | None:
    """The figures on record, None where there are none."""
    names = {told_as: name for name, told_as in _FIGURES.items()}
    values = {names.get(key, key): value for key, value in (told or {}).items()}
    known = {name: values[name] for name in ProbeRecall.__slots__ if name in values}
    return ProbeRecall(**known) if "probes" in known else None


REBUILD_KEY = "agentmemoryRebuild"
"""Key of the target's metadata: the record."""


class RebuildKind(StrEnum):
    """Which way it goes."""

    REBUILD = "Rebuild"
    ROLLBACK = "Rollback"


class RebuildStep(StrEnum):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildRecord:
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
    kind: RebuildKind = RebuildKind.REBUILD
    step: RebuildStep = RebuildStep.CREATE
    cursor: str | int | None = None
    copied: int = 0
    total: int = 0
    calls: int = 0
    moved_ms: int | None = None
    recall: ProbeRecall | None = None
    way_back: str | None = None
    gone_ms: int | None = None
    pause_ms: int | None = None

    @property
    def is_moved(self) -> bool:
        """Whether the alias is known to lead to the target."""
        return self.step in (RebuildStep.DRAIN, RebuildStep.SETTLE, RebuildStep.DONE)


def way_back(record: RebuildRecord, now_ms: int) -> RebuildRecord:
    """The record of a rollback that has ended.

    What was written since its alias was moved is carried back.
    """
    return RebuildRecord(
        kind=RebuildKind.ROLLBACK,
        source=record.target,
        target=record.source,
        digest=record.digest,
        step=RebuildStep.CATCH_UP,
        begun_ms=now_ms,
        since_ms=record.moved_ms or record.begun_ms,
    )


def resume_at(step: RebuildStep, *, is_moved: bool) -> RebuildStep:
    """Where a rebuild goes on; `step` may be half done.

    Args:
        is_moved: the alias leads to the target, whatever the record says.
    """
    return RebuildStep.SETTLE if step is RebuildStep.SETTLE else RebuildStep.DRAIN if is_moved else step


_NAMES = {
    "begun_ms": "begunMs",
    "since_ms": "sinceMs",
    "moved_ms": "movedMs",
    "way_back": "wayBack",
    "gone_ms": "goneMs",
    "pause_ms": "pauseMs",
}


def record_to_json(record: RebuildRecord) -> dict[str, Any]:
    """The record as it lies in metadata; what is None is left out."""
    found = {"recall": recall_to_json(record.recall)} if record.recall else {}
    return {_NAMES.get(name, name): value for name, value in asdict(record).items() if value is not None} | found


def record_from_json(metadata: Mapping[str, Any] | None) -> RebuildRecord | None:
    """The record in a collection's metadata, None where there is none that can be read."""
    told = (metadata or {}).get(REBUILD_KEY)
    if not isinstance(told, Mapping):
        return None
    names = {told_as: name for name, told_as in _NAMES.items()}
    values = {names.get(key, key): value for key, value in told.items()}
    try:
        known = {name: values[name] for name in RebuildRecord.__slots__ if name in values}
        known |= {"recall": recall_from_json(values.get("recall"))}
        return RebuildRecord(**known | {"kind": RebuildKind(values["kind"]), "step": RebuildStep(values["step"])})
    except (KeyError, TypeError, ValueError):
        return None


def copied_elsewhere() -> dict[str, Any]:
    """The change of metadata for a copy under another name: what came with it is of the collection copied."""
    return dict.fromkeys((REBUILD_KEY, MOVING_KEY, EPOCH_KEY, CLOSED_KEY))


def copied_back(before: Mapping[str, Any] | None) -> dict[str, Any]:
    """The change of metadata for a collection that took the contents of a copy of its own.

    Args:
        before: what it said of itself: how it came about stays, and is over.
    """
    record = record_from_json(before)
    ended = None if record is None else record_to_json(replace(record, step=RebuildStep.DONE))
    return {REBUILD_KEY: ended, MOVING_KEY: None}


def epoch_of(metadata: Mapping[str, Any] | None) -> str:
    """The epoch of a collection; no two collections behind one alias share it.

    One without a valid number has its name instead.
    """
    record, number = record_from_json(metadata), epoch_in(metadata).number
    name = record.target if record else ""
    return f"{name}@{number}" if number else name


def is_moving(told: Mapping[str, Any]) -> bool:
    """Whether a status tells of a rebuild that is about to move the alias, or has moved it and has not ended."""
    return is_under_way(told) and told.get("step") in (
        RebuildStep.KEEP,
        RebuildStep.MOVE,
        RebuildStep.DRAIN,
        RebuildStep.SETTLE,
    )
