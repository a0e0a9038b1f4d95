"""Rebuilds, changes that need a new collection: their limits in an AgentMemory, and their status."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from agentmemory_operator.spec.kinds.model_base import Model, StatusModel

ChangePolicyName = Literal["Apply", "RequireApproval", "Never"]

MAX_CALLS_PER_HOUR = 10_000_000
MAX_PRICE = 10_000


class RebuildSpec(Model):
    """Limits on the cost and the recall loss of a Rebuild."""

    max_embedding_calls_per_hour: Annotated[int, Field(ge=1, le=MAX_CALLS_PER_HOUR)] | None = Field(
        default=None,
        description="Maximum requests per hour to the embedding provider, of batchSize texts each, 1..10000000. Does"
        " not apply in the last seconds before the alias moves. Default: unlimited.",
    )
    embedding_price_per_million_tokens: Annotated[float, Field(ge=0, le=MAX_PRICE)] | None = Field(
        default=None,
        description="Provider's price of a million tokens, in any currency, 0..10000; only used to estimate a plan."
        " Default: plans show no price.",
    )
    max_recall_drop_percent: Annotated[float, Field(ge=0, le=100)] | None = Field(
        default=None,
        description="Maximum drop of the recall of probe queries in percentage points, 0..100. After a larger drop, the"
        " move of the alias waits for approval. Default: 5.",
    )


class RebuildState(StrEnum):
    """State of a rebuild. Failed, Stopped and Done are final; in all others it is active."""

    RUNNING = "Running"
    WAITING = "Waiting"
    PAUSED = "Paused"
    HELD = "Held"
    FAILED = "Failed"
    STOPPED = "Stopped"
    DONE = "Done"


ACTIVE_STATES = frozenset({RebuildState.RUNNING, RebuildState.WAITING, RebuildState.PAUSED, RebuildState.HELD})


class RecallStatus(StatusModel):
    """Recall of probe searches in the old and in the new collection; shares of 0..1."""

    probes: int | None = Field(default=None, description="Searches of each kind; 0 if there was no memory to find.")
    neighbours: float | None = Field(
        default=None,
        description="Share of the old collection's nearest 10 (exact search) that are among the new one's.",
    )
    found_before: float | None = Field(
        default=None,
        description="Share of memories found by their own words in the old collection; only if embedded again.",
    )
    found_after: float | None = Field(default=None, description="The same share in the new collection.")
    index_before: float | None = Field(
        default=None, description="Share of the nearest 10 (exact search) that the index found in the old collection."
    )
    index_after: float | None = Field(default=None, description="The same share in the new collection.")


class RebuildStatus(StatusModel):
    """A Rebuild, or its rollback."""

    kind: str | None = Field(
        default=None, description="Rebuild, or Rollback to the collection that a Rebuild replaced."
    )
    state: str | None = Field(
        default=None,
        description="Running, Waiting, Paused, Held (for approval), Failed, Stopped (target removed), Done.",
    )
    step: str | None = Field(
        default=None,
        description="Current step: Create, Copy, CatchUp, Converge, Verify, Keep, Move, Drain, Settle or Done.",
    )
    digest: str | None = Field(default=None, description="Digest of the plan.")
    source: str | None = Field(default=None, description="Collection to replace.")
    target: str | None = Field(default=None, description="New collection.")
    copied: int | None = Field(default=None, description="Points copied.")
    total: int | None = Field(default=None, description="Points to copy, as counted when the copy started.")
    embedding_calls: int | None = Field(
        default=None,
        description="Requests to the embedding provider, except those in the last seconds before the alias moves.",
    )
    recall: RecallStatus | None = Field(default=None, description="Results of the probe searches (docs/rebuild.md).")
    start_time: str | None = Field(default=None, description="Start time.", json_schema_extra={"format": "date-time"})
    move_time: str | None = Field(
        default=None, description="Time when the alias was moved.", json_schema_extra={"format": "date-time"}
    )
    end_time: str | None = Field(default=None, description="End time.", json_schema_extra={"format": "date-time"})
    pause_ms: int | None = Field(
        default=None,
        description="Milliseconds during which neither a plain collection nor the alias that replaces it existed.",
    )
    message: str | None = Field(
        default=None, description="Current activity, reason for the wait, reason of the failure, or result."
    )
    requested_at: str | None = Field(
        default=None, description="Value of the annotation reconcile-requested-at when the rebuild failed."
    )


def is_active(status: Mapping[str, Any]) -> bool:
    """Return whether the status of a rebuild has an active state. False for an empty status, without a rebuild."""
    return status.get("state") in ACTIVE_STATES
