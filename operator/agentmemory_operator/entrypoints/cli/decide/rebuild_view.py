"""Render the state of a rebuild for `agentmemory rebuild`. Pure: the clock is an argument."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.rules.changes import ChangeClass
from agentmemory_operator.collections.rules.rebuild_record import RebuildKind, RebuildStep
from agentmemory_operator.controllers.rules.status_words import headline
from agentmemory_operator.entrypoints.cli.program import called_as
from agentmemory_operator.entrypoints.cli.tables import Section
from agentmemory_operator.spec.kinds.agent_memory import CANCEL_REBUILD, PAUSE_REBUILD, ROLLBACK_REBUILD
from agentmemory_operator.spec.kinds.spec_rebuild import RebuildState, is_active
from agentmemory_operator.spec.times import render_time, time_or_none

Json = Mapping[str, Any]

_MOODS: dict[str, str] = {
    RebuildState.DONE: "good",
    RebuildState.FAILED: "bad",
    RebuildState.STOPPED: "bad",
    RebuildState.RUNNING: "busy",
}
_BEHIND_MOVE = (RebuildStep.DRAIN, RebuildStep.SETTLE, RebuildStep.DONE)
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class ReportedRebuild:
    """The rebuild that an AgentMemory reports.

    Attributes:
        status: `status.rebuild`; empty if there was none.
        keep_hours: Hours for which the previous collection is kept.
        calls_per_hour: Maximum embedding calls per hour; None is unlimited.
        planned_digest: Digest of the plan in the status, which may be in progress; None if it needs no rebuild.
        is_withheld: True if a change of that plan that needs a rebuild is withheld.
    """

    status: Json
    annotations: Json
    keep_hours: int
    calls_per_hour: int | None
    planned_digest: str | None
    is_withheld: bool

    @property
    def is_in_progress(self) -> bool:
        """True if the rebuild runs, waits, is paused or is withheld, and so has not ended."""
        return is_active(self.status)

    @property
    def is_moved(self) -> bool:
        """True if the alias points to the target collection."""
        return self.status.get("moveTime") is not None or self.status.get("step") in _BEHIND_MOVE

    @property
    def live(self) -> str | None:
        """Collection that the reported rebuild or rollback has made live; None unless its state is Done."""
        return self.status.get("target") if self.status.get("state") == RebuildState.DONE else None

    @property
    def previous(self) -> str | None:
        """Collection to which a rollback would return until `retention_end_ms`; None if there is none."""
        is_rebuild = self.status.get("kind") == RebuildKind.REBUILD
        return self.status.get("source") if is_rebuild and self.live and self.keep_hours else None

    @property
    def retention_end_ms(self) -> int | None:
        """End of the time for which `previous` is kept, in Unix milliseconds; None if there is none, or no end time."""
        ended_ms = time_or_none(self.status.get("endTime"))
        return ended_ms + self.keep_hours * HOUR_MS if self.previous and ended_ms is not None else None

    @property
    def share(self) -> float:
        """Completed share of the copy, 0..1; 0 if the total is unknown."""
        total = self.status.get("total") or 0
        return min(1.0, (self.status.get("copied") or 0) / total) if total else 0.0

    def rate(self, now_ms: int) -> float:
        """Return the average number of points copied per second since the rebuild started; 0 if it has not started."""
        started_ms = time_or_none(self.status.get("startTime"))
        took_s = 0.0 if started_ms is None else (now_ms - started_ms) / 1000
        return (self.status.get("copied") or 0) / took_s if took_s > 0 else 0.0


def read_rebuild(document: Json) -> ReportedRebuild:
    """Read the last rebuild of an AgentMemory, and the plan that needs another, from its status and spec."""
    status, spec = document.get("status") or {}, document.get("spec") or {}
    keep_hours, plan = spec.get("keepPreviousHours"), status.get("plan") or {}
    rebuild_changes = [change for change in plan.get("changes") or [] if change.get("class") == ChangeClass.REBUILD]
    return ReportedRebuild(
        status=status.get("rebuild") or {},
        annotations=document["metadata"].get("annotations") or {},
        keep_hours=24 if keep_hours is None else keep_hours,
        calls_per_hour=(spec.get("rebuild") or {}).get("maxEmbeddingCallsPerHour"),
        planned_digest=plan.get("digest") if rebuild_changes else None,
        is_withheld=any(change.get("held") for change in rebuild_changes),
    )


def rebuild_document(document: Json, *, now_ms: int) -> dict[str, Any]:
    """Render the rebuild as JSON, with rate and remaining time as of `now_ms` (Unix milliseconds)."""
    rebuild, metadata = read_rebuild(document), document["metadata"]
    previous = None
    if rebuild.previous:
        end_ms = rebuild.retention_end_ms
        previous = {"physical": rebuild.previous, "until": render_time(end_ms) if end_ms is not None else None}
    return {
        "agent": {"namespace": metadata["namespace"], "name": metadata["name"]},
        "rebuild": dict(rebuild.status),
        "underWay": rebuild.is_in_progress,
        "pointsPerSecond": round(rebuild.rate(now_ms), 1) if rebuild.is_in_progress else None,
        "secondsLeft": _seconds_left(rebuild, now_ms),
        "heldPlan": rebuild.planned_digest if rebuild.is_withheld else None,
        "previousCollection": previous,
    }


def rebuild_sections(document: Json, *, now_ms: int, options: str = "") -> list[Section]:
    """Render the rebuild for the terminal.

    Args:
        now_ms: Current time in Unix milliseconds, for rate and remaining time.
        options: Text to append to other commands, so that they refer to the same object.
    """
    rebuild, metadata = read_rebuild(document), document["metadata"]
    name, status = f"{metadata['namespace']}/{metadata['name']}", rebuild.status
    rows = tuple((label, text) for label, text in _rows(rebuild, now_ms) if text)
    commands = tuple(_commands(rebuild, metadata["name"], options))
    if not status:
        return [Section(f"{name} has never been rebuilt", "quiet", rows=rows, commands=commands)]
    heading = f"{status.get('kind', RebuildKind.REBUILD)} of {name}: {headline(status)}"
    return [Section(heading, _MOODS.get(status.get("state", ""), "busy"), rows=rows, commands=commands)]


def _rows(rebuild: ReportedRebuild, now_ms: int) -> Iterator[tuple[str, str]]:
    status = rebuild.status
    yield "said", str(status.get("message") or "")
    yield "from", str(status.get("source") or "")
    yield "into", str(status.get("target") or "")
    yield "copied", _copied(rebuild, now_ms)
    yield "embedding calls", _calls(rebuild)
    yield "recall", _recall(status.get("recall") or {})
    yield "begun", str(status.get("startTime") or "")
    yield "alias moved", str(status.get("moveTime") or "")
    yield "ended", str(status.get("endTime") or "")
    if rebuild.previous and (end_ms := rebuild.retention_end_ms) is not None:
        yield "kept", f"{rebuild.previous} until {render_time(end_ms)}, for a rollback"
    if rebuild.planned_digest and not rebuild.is_in_progress:
        yield "held" if rebuild.is_withheld else "asked for", f"plan {rebuild.planned_digest} needs a Rebuild"
    for annotation in (PAUSE_REBUILD, CANCEL_REBUILD, ROLLBACK_REBUILD):
        if annotation in rebuild.annotations:
            yield "annotation", f"{annotation}: {rebuild.annotations[annotation]}"


def _copied(rebuild: ReportedRebuild, now_ms: int) -> str:
    copied, total = rebuild.status.get("copied"), rebuild.status.get("total")
    if not total or copied is None:
        return ""
    text = f"{copied:,} of {total:,} points ({rebuild.share:.0%})"
    if rebuild.is_in_progress and rebuild.status.get("step") == RebuildStep.COPY:
        text += f", {rebuild.rate(now_ms):,.0f} a second"
        remaining_s = _seconds_left(rebuild, now_ms)
        text += f", about {render_duration(remaining_s)} left" if remaining_s is not None else ""
    return text


def _seconds_left(rebuild: ReportedRebuild, now_ms: int) -> int | None:
    """Estimate the remaining seconds of the copy from its average rate; None outside a copy or without a rate."""
    is_copying = rebuild.is_in_progress and rebuild.status.get("step") == RebuildStep.COPY
    rate = rebuild.rate(now_ms) if is_copying else 0.0
    remaining = (rebuild.status.get("total") or 0) - (rebuild.status.get("copied") or 0)
    return round(remaining / rate) if rate > 0 else None


def _calls(rebuild: ReportedRebuild) -> str:
    calls = rebuild.status.get("embeddingCalls")
    if not calls:
        return ""
    budget = f", at most {rebuild.calls_per_hour:,} an hour" if rebuild.calls_per_hour else ""
    return f"{calls:,}{budget}"


def _recall(recall: Json) -> str:
    """Describe the results of probe searches in both collections, as far as they were measured."""
    pairs = (("found by their own text", "found"), ("by the index", "index"))
    parts = [
        f"{description} {recall[f'{name}Before']:.1%} -> {recall[f'{name}After']:.1%}"
        for description, name in pairs
        if f"{name}Before" in recall and f"{name}After" in recall
    ]
    parts += [f"{recall['neighbours']:.1%} of the same nearest"] if "neighbours" in recall else []
    return f"{recall.get('probes')} probe searches: {', '.join(parts)}" if parts else ""


def render_duration(seconds: float) -> str:
    """Render a duration as seconds (below 90 s), minutes (below 90 min), or hours and minutes."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds // 3600:.0f} h {seconds % 3600 / 60:.0f} min"


def _commands(rebuild: ReportedRebuild, name: str, options: str) -> Iterator[str]:
    """Yield the commands that are possible in the current state, each after a word for its purpose."""
    verb = f"{called_as()} rebuild {name}{options}"
    if rebuild.is_in_progress:
        yield f"watch: {verb} --watch"
    if rebuild.is_in_progress and not rebuild.is_moved:
        yield f"resume: {verb} --resume" if PAUSE_REBUILD in rebuild.annotations else f"pause: {verb} --pause"
        yield f"cancel: {verb} --cancel"
    if rebuild.is_withheld and not rebuild.is_in_progress:
        yield f"approve: {called_as()} approve {name}{options}"
    if rebuild.previous and not rebuild.is_in_progress:
        yield f"roll back: {verb} --rollback"
