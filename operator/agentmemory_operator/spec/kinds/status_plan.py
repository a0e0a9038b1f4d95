"""The part of an AgentMemory's status about a plan."""

from pydantic import Field

from agentmemory_operator.spec.kinds.model_base import StatusModel


class PlannedChange(StatusModel):
    """A change that is not applied yet."""

    change: str | None = Field(default=None, description="Planned action.")
    class_: str | None = Field(default=None, alias="class", description="InPlace, Reindex, Rebuild or Destroy.")
    field: str | None = Field(default=None, description="Field that requires it.")
    from_: str | None = Field(default=None, alias="from", description="Current value.")
    to: str | None = Field(default=None, description="Desired value.")
    cost: str | None = Field(default=None, description="Human-readable cost.")
    held: bool | None = Field(default=None, description="Whether it is not applied yet; refusal gives the reason.")


class CostsStatus(StatusModel):
    """Estimated cost of a Rebuild; space is needed in addition to the current collection, until that is removed."""

    points: int | None = Field(default=None, description="Points to copy, tombstones included.")
    embedding_calls: int | None = Field(
        default=None, description="Requests to the embedding provider; 0 if vectors are copied."
    )
    tokens: int | None = Field(
        default=None, description="Tokens to embed, at 4 characters each, estimated from some memories."
    )
    price: float | None = Field(
        default=None, description="Price of the tokens at rebuild.embeddingPricePerMillionTokens; absent without it."
    )
    minutes: int | None = Field(
        default=None, ge=0, description="Minimum duration, without the time that the provider takes."
    )
    disk_mib: int | None = Field(default=None, description="Disk space in MiB, on all nodes together.")
    ram_mib: int | None = Field(default=None, description="RAM in MiB, on all nodes together.")
    nodes: int | None = Field(default=None, description="Number of nodes.")
    disk_per_node_mib: int | None = Field(default=None, description="Disk space in MiB per node.")
    ram_per_node_mib: int | None = Field(default=None, description="RAM in MiB per node.")


class PlanStatus(StatusModel):
    """Changes that are not applied yet."""

    digest: str | None = Field(
        default=None, description="Digest to approve: of a Rebuild if there is one, else of all waiting changes."
    )
    changes: tuple[PlannedChange, ...] | None = Field(default=None, max_length=64, description="Changes, in order.")
    costs: CostsStatus | None = Field(default=None, description="Estimated cost of the Rebuild.")
    preset_revision: int | None = Field(
        default=None, description="Newer revision of the preset that waits for approval too; absent if there is none."
    )
    refusal: str | None = Field(
        default=None, description="Reason why changes wait, with the suggested fix; for a running Rebuild, its cost."
    )
