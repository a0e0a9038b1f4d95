"""The part of an AgentMemory's status about consolidations."""

from pydantic import Field

from agentmemory_operator.spec.kinds.model_base import StatusModel


class ConsolidationCounts(StatusModel):
    """Results of a consolidation."""

    read: int | None = Field(default=None, ge=0, description="Memories read by the model.")
    merged: int | None = Field(default=None, ge=0, description="Facts made from several memories.")
    superseded: int | None = Field(default=None, ge=0, description="Memories superseded by such facts.")
    proposed: int | None = Field(
        default=None,
        ge=0,
        description="Facts that wait for approval: they contain a number, name or date that their sources lack.",
    )
    known: int | None = Field(default=None, ge=0, description="Facts that are already stored.")
    lost: int | None = Field(default=None, ge=0, description="Facts whose sources changed during the run.")
    contradictions: int | None = Field(default=None, ge=0, description="Contradictions stored as events.")
    connections: int | None = Field(default=None, ge=0, description="Memories connected with others.")
    reclassified: int | None = Field(default=None, ge=0, description="Memories that received a category.")
    relations: int | None = Field(default=None, ge=0, description="Recorded relations and aliases of names.")
    entities: int | None = Field(default=None, ge=0, description="Memories that received names of entities.")
    dropped: int | None = Field(default=None, ge=0, description="References by the model to memories it was not shown.")
    invalid: int | None = Field(default=None, ge=0, description="Answers that could not be used.")
    left: int | None = Field(default=None, ge=0, description="Batches of up to 50 memories that wait for the next run.")
    reactivated: int | None = Field(default=None, ge=0, description="Memories that an undo made current again.")
    kept: int | None = Field(
        default=None, ge=0, description="Facts that an undo kept because something superseded them since."
    )
    elsewhere: int | None = Field(
        default=None,
        ge=0,
        description="Sources that an undo left unchanged because they are superseded by something else, or removed.",
    )


class ConsolidationStatus(StatusModel):
    """The last consolidation, or request about one."""

    time: str | None = Field(default=None, description="Start time.", json_schema_extra={"format": "date-time"})
    duration_seconds: int | None = Field(default=None, ge=0, description="Duration in seconds.")
    action: str | None = Field(default=None, description="Run, DryRun, Undo, Approve or Reject.")
    run: str | None = Field(default=None, description="Id of the run, or of the run that the action is about.")
    requested: str | None = Field(
        default=None, max_length=128, description="Last handled value of the annotation consolidation-requested."
    )
    counts: ConsolidationCounts | None = Field(default=None, description="Results.")
    calls: int | None = Field(default=None, ge=0, description="Requests to the model.")
    tokens_in: int | None = Field(default=None, ge=0, description="Tokens read by the model.")
    tokens_out: int | None = Field(default=None, ge=0, description="Tokens written by the model.")
    spent: float | None = Field(default=None, ge=0, description="Cost, at the prices in spec.")
    stopped_by: str | None = Field(default=None, description="Limit that ended the run: calls, tokens, spend or time.")
    reason: str | None = Field(default=None, description="Reason of the failure; absent if it succeeded.")
    message: str | None = Field(
        default=None, max_length=1024, description="Human-readable message with the suggested fix."
    )
