"""The status of a QdrantConnection."""

from typing import Annotated

from pydantic import Field

from agentmemory_operator.spec.kinds.model_base import GENERATION, Condition, KindStatus, StatusModel, describe_types
from agentmemory_operator.spec.kinds.schema import list_map_keys
from agentmemory_operator.spec.kinds.status_agent_memory import CONDITIONS, OwnerStatus


class QdrantConnectionCondition(Condition):
    """One condition, as the Kubernetes API conventions describe it."""

    type: Annotated[str, Field(max_length=316)] = Field(description=describe_types("QdrantConnection"))


QdrantConnectionConditions = Annotated[
    tuple[QdrantConnectionCondition, ...], Field(max_length=16, json_schema_extra=list_map_keys("type"))
]


class TakeoverRequestStatus(StatusModel):
    """An object that needs memories of another owner on this server."""

    kind: str = Field(description="AgentMemory, MemorySnapshot or MemoryRestore.")
    namespace: str = Field(description="Namespace of the object.")
    name: str = Field(description="Name of the object.")
    agent: str = Field(description="Agent that it requests: the value for spec.takeovers[].agent.")
    since: str | None = Field(
        default=None, description="Time of the first refusal.", json_schema_extra={"format": "date-time"}
    )
    owner: OwnerStatus | None = Field(default=None, description="Current owner of the memories.")


class UsedStatus(StatusModel):
    """Usage of a resource by the server's process."""

    used: Annotated[int, Field(ge=0)] = Field(description="Number in use.")
    limit: Annotated[int, Field(ge=1)] = Field(description="Maximum.")


class CapacityStatus(StatusModel):
    """Resource usage of the server's process, updated when a number changes by 1 % of its limit."""

    memory_maps: UsedStatus | None = Field(default=None, description="Memory maps; beyond the limit, Qdrant aborts.")
    open_files: UsedStatus | None = Field(default=None, description="Open files. Absent: unlimited, or not reported.")
    is_estimated: bool | None = Field(
        default=None,
        description="Whether the number of memory maps is estimated from the number of collections, because the server"
        " does not report it.",
    )


TakeoverRequests = Annotated[tuple[TakeoverRequestStatus, ...], Field(max_length=50)]
Capability = Annotated[str, Field(max_length=64, description="A capability, for example updateMode.")]


class QdrantConnectionStatus(KindStatus):
    """Observed state of the server; written by the operator only."""

    observed_generation: int | None = Field(default=None, description=GENERATION)
    conditions: QdrantConnectionConditions | None = Field(default=None, description=CONDITIONS)
    version: str | None = Field(default=None, description="Qdrant version.")
    capabilities: tuple[Capability, ...] | None = Field(
        default=None, max_length=32, description="Features that the server supports."
    )
    peers: int | None = Field(
        default=None,
        description="Nodes of the cluster; 1 without cluster mode. Absent if the API key may not list them.",
    )
    capacity: CapacityStatus | None = Field(
        default=None,
        description="Resource usage of the server; in a cluster, of the node that responded (docs/operations.md).",
    )
    takeover_requests: TakeoverRequests | None = Field(
        default=None,
        description="Objects that need memories of another owner on this server, at most 50, oldest first; allow"
        " one in spec.takeovers (agentmemory takeover).",
    )
