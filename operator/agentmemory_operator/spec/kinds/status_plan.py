"""What the operator reports of a plan; part of an AgentMemory's status."""

from pydantic import Field

from agentmemory_operator.spec.kinds.base import StatusModel


class PlannedChange(StatusModel):
    """One change that the object asks for and that has not been made."""

    change: str | None = Field(default=None, description="What would be done.")
    class_: str | None = Field(default=None, alias="class", description="InPlace, Reindex, Rebuild or Destroy.")
    field: str | None = Field(default=None, description="The field that asks for it.")
    from_: str | None = Field(default=None, alias="from", description="The value that is in force.")
    to: str | None = Field(default=None, description="The value that is asked for.")
    cost: str | None = Field(default=None, description="What it costs, for people.")
    held: bool | None = Field(default=None, description="Whether it waits, for somebody's decision or for its turn.")


class CostsStatus(StatusModel):
    """What the Rebuild of a plan takes, estimated; room beside what the collection takes now, until that one goes."""

    points: int | None = Field(default=None, description="Points to copy, tombstones included.")
    embedding_calls: int | None = Field(
        default=None, description="Requests to the embedding provider; 0 where the vectors are copied."
    )
    tokens: int | None = Field(
        default=None, description="Tokens to embed, 4 characters each, by the contents of some memories."
    )
    price: float | None = Field(
        default=None, description="Of the tokens, at rebuild.embeddingPricePerMillionTokens; absent without it."
    )
    minutes: int | None = Field(default=None, ge=0, description="At the least; the provider's own pace not counted.")
    disk_mib: int | None = Field(default=None, alias="diskMiB", description="Disk in MiB, on all nodes together.")
    ram_mib: int | None = Field(default=None, alias="ramMiB", description="RAM in MiB, on all nodes together.")
    nodes: int | None = Field(default=None, description="Servers that it is spread over.")
    disk_per_node_mib: int | None = Field(default=None, alias="diskPerNodeMiB", description="Disk in MiB on each.")
    ram_per_node_mib: int | None = Field(default=None, alias="ramPerNodeMiB", description="RAM in MiB on each.")


class PlanStatus(StatusModel):
    """What the object asks for and is not yet so."""

    digest: str | None = Field(
        default=None, description="What an approval names: the digest of the held changes, of a Rebuild of it alone."
    )
    changes: tuple[PlannedChange, ...] | None = Field(default=None, max_length=64, description="The changes, in order.")
    costs: CostsStatus | None = Field(default=None, description="What the Rebuild among them takes.")
    preset_revision: int | None = Field(
        default=None,
        description="The newer revision of the preset that is held too; absent where none is.",
    )
    refusal: str | None = Field(
        default=None, description="Why changes are held, with the way out; of a Rebuild that is made, what it takes."
    )
