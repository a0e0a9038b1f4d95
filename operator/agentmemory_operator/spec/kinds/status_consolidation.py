"""What the operator reports of consolidations."""

from pydantic import Field

from agentmemory_operator.spec.kinds.base import StatusModel


class ConsolidationCounts(StatusModel):
    """What a consolidation came to."""

    read: int | None = Field(default=None, ge=0, description="Memories that the model was shown.")
    merged: int | None = Field(default=None, ge=0, description="Facts that were made of several memories.")
    superseded: int | None = Field(default=None, ge=0, description="Memories that such a fact took the place of.")
    proposed: int | None = Field(
        default=None, ge=0, description="Facts with a number, name or date that their sources lack: they wait."
    )
    known: int | None = Field(default=None, ge=0, description="Facts that something stored says already.")
    lost: int | None = Field(default=None, ge=0, description="Facts whose sources changed meanwhile.")
    contradictions: int | None = Field(default=None, ge=0, description="Contradictions that were stored as events.")
    connections: int | None = Field(default=None, ge=0, description="Memories that were connected with others.")
    reclassified: int | None = Field(default=None, ge=0, description="Memories that were given a category.")
    dropped: int | None = Field(default=None, ge=0, description="How often the model named what it was not shown.")
    invalid: int | None = Field(default=None, ge=0, description="Answers that could not be used.")
    left: int | None = Field(default=None, ge=0, description="Batches of up to 50 that wait for the next run.")
    reactivated: int | None = Field(default=None, ge=0, description="Memories that answer again, of an undo.")
    kept: int | None = Field(
        default=None, ge=0, description="Facts that an undo left, because something superseded them since."
    )
    elsewhere: int | None = Field(
        default=None, ge=0, description="Sources that an undo left, because they lead elsewhere by now, or are gone."
    )


class ConsolidationStatus(StatusModel):
    """The last consolidation, or what was asked for last of one."""

    time: str | None = Field(default=None, description="When it began.", json_schema_extra={"format": "date-time"})
    duration_seconds: int | None = Field(default=None, ge=0, description="How many seconds it took.")
    action: str | None = Field(default=None, description="Run, DryRun, Undo, Approve or Reject.")
    run: str | None = Field(default=None, description="Id of the run that it was, or that it is about.")
    requested: str | None = Field(
        default=None, max_length=128, description="The annotation consolidation-requested that was last answered."
    )
    counts: ConsolidationCounts | None = Field(default=None, description="What it came to.")
    calls: int | None = Field(default=None, ge=0, description="Requests to the model.")
    tokens_in: int | None = Field(default=None, ge=0, description="Tokens that the model read.")
    tokens_out: int | None = Field(default=None, ge=0, description="Tokens that it wrote.")
    spent: float | None = Field(default=None, ge=0, description="What they cost, by the prices of spec.")
    stopped_by: str | None = Field(default=None, description="The limit that ended it: calls, tokens, spend or time.")
    reason: str | None = Field(default=None, description="Why it failed; absent where it did not.")
    message: str | None = Field(default=None, max_length=1024, description="The same for people, with the way out.")
