"""Rebuilds, changes that only a new collection can carry out: what an AgentMemory says of them, and their status."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from agentmemory_operator.spec.kinds.base import Model, StatusModel

ChangePolicyName = Literal["Apply", "RequireApproval", "Never"]

MAX_CALLS_PER_HOUR = 10_000_000
MAX_PRICE = 10_000


class RebuildSpec(Model):
    """What a Rebuild may cost, and what of the recall it may lose."""

    max_embedding_calls_per_hour: Annotated[int, Field(ge=1, le=MAX_CALLS_PER_HOUR)] | None = Field(
        default=None,
        description="Requests to the embedding provider that a Rebuild may make in an hour, of batchSize texts each,"
        " 1..10000000. Default: no bound.",
    )
    embedding_price_per_million_tokens: Annotated[float, Field(ge=0, le=MAX_PRICE, allow_inf_nan=False)] | None = Field(
        default=None,
        description="What the provider takes for a million tokens, in any currency, 0..10000; for the estimate of a"
        " plan alone. Default: the plan names no money.",
    )
    max_recall_drop_percent: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = Field(
        default=None,
        description="How many percent points the recall of probe queries may drop before the move waits for an"
        " approval, 0..100. Default: 5.",
    )


class RebuildState(StrEnum):
    """How a rebuild stands."""

    RUNNING = "Running"
    WAITING = "Waiting"
    PAUSED = "Paused"
    HELD = "Held"
    FAILED = "Failed"
    STOPPED = "Stopped"
    DONE = "Done"


UNDER_WAY = frozenset({RebuildState.RUNNING, RebuildState.WAITING, RebuildState.PAUSED, RebuildState.HELD})


class RecallStatus(StatusModel):
    """What probe searches found in the collection that is replaced, and in the one that replaces it; shares of 0..1."""

    probes: int | None = Field(
        default=None, description="Searches of each kind; 0 where nothing could be searched for."
    )
    neighbours: float | None = Field(
        default=None, description="Of the nearest 10 by exact search before, how many are among them afterwards."
    )
    found_before: float | None = Field(
        default=None, description="Memories found by their own words before; only where they were embedded again."
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


def is_under_way(told: Mapping[str, Any]) -> bool:
    """Whether a status tells of a rebuild that has not ended."""
    return told.get("state") in UNDER_WAY
