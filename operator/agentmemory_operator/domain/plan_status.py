"""What the operator reports of a plan; part of an AgentMemory's status."""

from pydantic import Field

from agentmemory_operator.domain.status_model import StatusModel


class PlannedChange(StatusModel):
    """One change that the object asks for and that has not been made."""

    change: str | None = Field(default=None, description="What would be done.")
    class_: str | None = Field(default=None, alias="class", description="InPlace, Reindex, Rebuild or Destroy.")
    field: str | None = Field(default=None, description="The field that asks for it.")
    from_: str | None = Field(default=None, alias="from", description="The value that is in force.")
    to: str | None = Field(default=None, description="The value that is asked for.")
    cost: str | None = Field(default=None, description="What it costs, for people.")
    held: bool | None = Field(default=None, description="Whether it waits, for somebody's decision or for its turn.")


class PlanStatus(StatusModel):
    """What the object asks for and is not yet so."""

    digest: str | None = Field(default=None, description="Digest of the changes.")
    changes: tuple[PlannedChange, ...] | None = Field(default=None, max_length=64, description="The changes, in order.")
    refusal: str | None = Field(default=None, description="Why changes are held, with the way out.")
