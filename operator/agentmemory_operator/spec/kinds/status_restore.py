"""What the operator reports of one restore."""

from typing import Annotated

from pydantic import Field

from agentmemory_operator.spec.kinds.base import GENERATION, Condition, StatusModel, WholeStatus, types_of
from agentmemory_operator.spec.kinds.schema import keyed_by
from agentmemory_operator.spec.kinds.status_snapshot import JOB_CONDITIONS, ConnectionStatus, PointsStatus

MOST_ABANDONED = 64


class RestoreCondition(Condition):
    """One condition, as the Kubernetes API conventions describe it."""

    type: Annotated[str, Field(max_length=316)] = Field(description=types_of("MemoryRestore"))


RestoreConditions = Annotated[tuple[RestoreCondition, ...], Field(max_length=16, json_schema_extra=keyed_by("type"))]


class StepStatus(StatusModel):
    """One step."""

    name: str = Field(description="What was done.")
    start_time: str | None = Field(
        default=None, description="When it was begun.", json_schema_extra={"format": "date-time"}
    )
    end_time: str | None = Field(default=None, description="When it ended.", json_schema_extra={"format": "date-time"})
    message: str | None = Field(default=None, description="What came of it.")


class PreviousStatus(StatusModel):
    """The collection that was replaced."""

    physical: str | None = Field(default=None, description="Its name.")
    until: str | None = Field(
        default=None, description="Until when it is kept.", json_schema_extra={"format": "date-time"}
    )
    since: str | None = Field(
        default=None,
        description="The last moment whose writes the snapshot holds.",
        json_schema_extra={"format": "date-time"},
    )
    writes_since: int | None = Field(
        default=None,
        description="Memories changed in it after that, by a write or an access: the changes are there alone.",
    )
    removed_time: str | None = Field(
        default=None, description="When it was removed.", json_schema_extra={"format": "date-time"}
    )


class SafetyStatus(StatusModel):
    """What a collection held before a snapshot was restored into it."""

    name: str | None = Field(default=None, description="Name of its MemorySnapshot.")
    attempt: int | None = Field(default=None, description="Which one it is: of those before, writes were missing.")
    writes_since: int | None = Field(
        default=None, description="Memories changed since the restored snapshot: the changes are in this one alone."
    )


class MemoryRestoreStatus(WholeStatus):
    """What the operator did; written by the operator only."""

    observed_generation: int | None = Field(default=None, description=GENERATION)
    conditions: RestoreConditions | None = Field(default=None, description=JOB_CONDITIONS)
    steps: Annotated[tuple[StepStatus, ...], Field(max_length=32, json_schema_extra=keyed_by("name"))] | None = Field(
        default=None, description="What was done, in order."
    )
    connection: ConnectionStatus | None = Field(default=None, description="The connection of the target's server.")
    target_uid: str | None = Field(default=None, description="uid of the AgentMemory that it restores into.")
    physical: str | None = Field(default=None, description="The collection that it restores into.")
    abandoned: (
        Annotated[tuple[Annotated[str, Field(description="Name of one.")], ...], Field(max_length=MOST_ABANDONED)]
        | None
    ) = Field(
        default=None,
        description="Collections that Qdrant may still make: nobody saw the end of their recovery. What appears under"
        " these names is removed.",
    )
    points: PointsStatus | None = Field(default=None, description="Points of the agent before and after.")
    previous_collection: PreviousStatus | None = Field(default=None, description="The collection that was replaced.")
    safety_snapshot: SafetyStatus | None = Field(
        default=None, description="Of mode InPlace: what the collection held before."
    )
    closed_since: str | None = Field(
        default=None,
        description="Of mode InPlace: since when the API answers 503; gone once it serves again.",
        json_schema_extra={"format": "date-time"},
    )
    start_time: str | None = Field(
        default=None, description="When it was begun.", json_schema_extra={"format": "date-time"}
    )
    end_time: str | None = Field(default=None, description="When it ended.", json_schema_extra={"format": "date-time"})
    rolled_back_time: str | None = Field(
        default=None, description="When it was rolled back.", json_schema_extra={"format": "date-time"}
    )
    progress: str | None = Field(default=None, description="What it is at.")
