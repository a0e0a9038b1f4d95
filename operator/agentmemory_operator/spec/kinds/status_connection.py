"""What the operator reports of a QdrantConnection."""

from typing import Annotated

from pydantic import Field

from agentmemory_operator.spec.kinds.base import GENERATION, Condition, StatusModel, WholeStatus, types_of
from agentmemory_operator.spec.kinds.schema import keyed_by
from agentmemory_operator.spec.kinds.status_agent_memory import CONDITIONS, OwnerStatus


class QdrantConnectionCondition(Condition):
    """One condition, as the Kubernetes API conventions describe it."""

    type: Annotated[str, Field(max_length=316)] = Field(description=types_of("QdrantConnection"))


QdrantConnectionConditions = Annotated[
    tuple[QdrantConnectionCondition, ...], Field(max_length=16, json_schema_extra=keyed_by("type"))
]


class TakeoverRequestStatus(StatusModel):
    """An object that is refused what another one left on this server."""

    kind: str = Field(description="AgentMemory, MemorySnapshot or MemoryRestore.")
    namespace: str = Field(description="Its namespace.")
    name: str = Field(description="Its name.")
    agent: str = Field(description="The agent that it is for: the value of spec.takeovers[].agent.")
    since: str | None = Field(
        default=None, description="When it was first refused.", json_schema_extra={"format": "date-time"}
    )
    owner: OwnerStatus | None = Field(default=None, description="Whose the memories are.")


class UsedStatus(StatusModel):
    """How much of a resource the server's process uses."""

    used: Annotated[int, Field(ge=0)] = Field(description="How many it has.")
    limit: Annotated[int, Field(ge=1)] = Field(description="How many it may have.")


class CapacityStatus(StatusModel):
    """What the server's process uses of what it may; written again when a number has moved by 1 % of its limit."""

    memory_maps: UsedStatus | None = Field(default=None, description="Memory maps; without any left the server aborts.")
    open_files: UsedStatus | None = Field(default=None, description="Open files. Absent: unlimited, or not told.")
    is_estimated: bool | None = Field(
        default=None, description="Memory maps are estimated from the number of collections: the server does not tell."
    )


TakeoverRequests = Annotated[tuple[TakeoverRequestStatus, ...], Field(max_length=50)]
Capability = Annotated[str, Field(max_length=64, description="One ability, as updateMode.")]


class QdrantConnectionStatus(WholeStatus):
    """What the operator last saw of the server; written by the operator only."""

    observed_generation: int | None = Field(default=None, description=GENERATION)
    conditions: QdrantConnectionConditions | None = Field(default=None, description=CONDITIONS)
    version: str | None = Field(default=None, description="Qdrant's version.")
    capabilities: tuple[Capability, ...] | None = Field(
        default=None, max_length=32, description="What the server can do, by name."
    )
    peers: int | None = Field(
        default=None, description="Servers of the cluster; 1 without cluster mode. Absent where the key may not ask."
    )
    capacity: CapacityStatus | None = Field(
        default=None, description="How full the server is, of a cluster the node that answered (docs/operations.md)."
    )
    takeover_requests: TakeoverRequests | None = Field(
        default=None,
        description="Objects that are refused what another one left on this server, at most 50, the oldest first;"
        " allow one in spec.takeovers (agentmemory takeover).",
    )
