"""What the operator reports of the rebuild that runs, or of the last one. Pure: the clock is an argument."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import Field

from agentmemory_operator.domain.rebuilding import Record, Step
from agentmemory_operator.domain.recall_figures import recall_to_json
from agentmemory_operator.domain.status_model import StatusModel
from agentmemory_operator.domain.times import render_time

Json = dict[str, Any]


class State(StrEnum):
    """How a rebuild stands."""

    RUNNING = "Running"
    WAITING = "Waiting"
    PAUSED = "Paused"
    HELD = "Held"
    FAILED = "Failed"
    STOPPED = "Stopped"
    DONE = "Done"


UNDER_WAY = frozenset({State.RUNNING, State.WAITING, State.PAUSED, State.HELD})


class RecallStatus(StatusModel):
    """What probe searches found in the collection that is replaced, and in the one that replaces it; shares of 0..1."""

    probes: int | None = Field(
        default=None, description="Searches of each kind; 0 where nothing could be searched for."
    )
    neighbours: float | None = Field(
        default=None, description="Of the nearest 10 by exact search before, how many are among them afterwards."
    )
    found_before: float | None = Field(
        default=None, description="Memories found by their own words before; only where they were embedded anew."
    )
    found_after: float | None = Field(default=None, description="The same afterwards.")
    index_before: float | None = Field(
        default=None, description="Of the nearest 10 by exact search, how many the index found before."
    )
    index_after: float | None = Field(default=None, description="The same afterwards, in the collection made.")


class RebuildStatus(StatusModel):
    """A move into another collection, or the way back."""

    kind: str | None = Field(default=None, description="Rebuild, or Rollback to what a Rebuild replaced.")
    state: str | None = Field(
        default=None, description="Running, Waiting, Paused, Held, Failed, Stopped (what it made is removed) or Done."
    )
    step: str | None = Field(
        default=None, description="Create, Copy, CatchUp, Converge, Verify, Move, Drain, Settle or Done."
    )
    digest: str | None = Field(default=None, description="Of the plan that it carries out.")
    source: str | None = Field(default=None, description="The collection that is replaced.")
    target: str | None = Field(default=None, description="The collection that replaces it.")
    copied: int | None = Field(default=None, description="Points copied.")
    total: int | None = Field(default=None, description="Points to copy, as counted when the copy began.")
    embedding_calls: int | None = Field(default=None, description="Requests made to the embedding provider.")
    recall: RecallStatus | None = Field(default=None, description="What probe searches found; see docs/rebuild.md.")
    start_time: str | None = Field(
        default=None, description="When it was begun.", json_schema_extra={"format": "date-time"}
    )
    move_time: str | None = Field(
        default=None, description="When the alias was moved.", json_schema_extra={"format": "date-time"}
    )
    end_time: str | None = Field(default=None, description="When it ended.", json_schema_extra={"format": "date-time"})
    pause_ms: int | None = Field(
        default=None,
        description="Of a plain collection: for how many milliseconds there was neither it nor the alias in its place.",
    )
    message: str | None = Field(default=None, description="What it does or waits for, with the way out.")
    requested_at: str | None = Field(
        default=None, description="Of a failed one: the annotation reconcile-requested-at that it had seen."
    )


def rebuild_status(record: Record, state: State, message: str, *, ended: str | None = None) -> Json:
    """Return a rebuild as people see it.

    Args:
        message: what it does or waits for; empty says nothing.
        ended: when it ended, RFC 3339 UTC.
    """
    status = RebuildStatus(
        kind=record.kind,
        state=state,
        step=record.step,
        digest=record.digest,
        source=record.source,
        target=record.target,
        copied=record.copied,
        total=record.total,
        embedding_calls=record.calls,
        recall=RecallStatus.model_validate(recall_to_json(record.recall)) if record.recall else None,
        start_time=render_time(record.begun_ms),
        move_time=render_time(record.moved_ms) if record.moved_ms is not None else None,
        end_time=ended,
        pause_ms=record.pause_ms,
        message=message or None,
    )
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def is_moving(told: Mapping[str, Any]) -> bool:
    """Tell whether a status tells of a rebuild that is about to move the alias, or has moved it and has not ended."""
    return is_under_way(told) and told.get("step") in (Step.KEEP, Step.MOVE, Step.DRAIN, Step.SETTLE)


def is_under_way(told: Mapping[str, Any]) -> bool:
    """Tell whether a status tells of a rebuild that has not ended."""
    return told.get("state") in UNDER_WAY
