"""The status of a MemoryRestore."""

from typing import Annotated

from pydantic import Field

from agentmemory_operator.spec.kinds.model_base import GENERATION, Condition, KindStatus, StatusModel, describe_types
from agentmemory_operator.spec.kinds.schema import list_map_keys
from agentmemory_operator.spec.kinds.status_snapshot import JOB_CONDITIONS, ConnectionStatus, PointsStatus

MAX_ABANDONED = 64


class RestoreCondition(Condition):
    """One condition, as the Kubernetes API conventions describe it."""

    type: Annotated[str, Field(max_length=316)] = Field(description=describe_types("MemoryRestore"))


RestoreConditions = Annotated[
    tuple[RestoreCondition, ...], Field(max_length=16, json_schema_extra=list_map_keys("type"))
]


class StepStatus(StatusModel):
    """A step of the restore."""

    name: str = Field(description="Name of the step.")
    start_time: str | None = Field(default=None, description="Start time.", json_schema_extra={"format": "date-time"})
    end_time: str | None = Field(default=None, description="End time.", json_schema_extra={"format": "date-time"})
    message: str | None = Field(default=None, description="Result of the step.")


class PreviousStatus(StatusModel):
    """The replaced collection."""

    physical: str | None = Field(default=None, description="Name of the collection.")
    until: str | None = Field(
        default=None, description="Time until which it is kept.", json_schema_extra={"format": "date-time"}
    )
    since: str | None = Field(
        default=None,
        description="Time of the last write that the snapshot contains.",
        json_schema_extra={"format": "date-time"},
    )
    writes_since: int | None = Field(
        default=None,
        description="Memories changed in it after that, by a write or an access: only it has these changes.",
    )
    removed_time: str | None = Field(
        default=None, description="Time of its removal.", json_schema_extra={"format": "date-time"}
    )


class SafetyStatus(StatusModel):
    """Snapshot of a collection, taken before another snapshot was restored into it."""

    name: str | None = Field(default=None, description="Name of the MemorySnapshot.")
    attempt: int | None = Field(default=None, description="Number of the attempt; earlier ones missed writes.")
    writes_since: int | None = Field(
        default=None, description="Memories changed since the restored snapshot: only this one has these changes."
    )


class MemoryRestoreStatus(KindStatus):
    """Observed state; written by the operator only."""

    observed_generation: int | None = Field(default=None, description=GENERATION)
    conditions: RestoreConditions | None = Field(default=None, description=JOB_CONDITIONS)
    steps: Annotated[tuple[StepStatus, ...], Field(max_length=32, json_schema_extra=list_map_keys("name"))] | None = (
        Field(default=None, description="Steps, in order.")
    )
    connection: ConnectionStatus | None = Field(default=None, description="QdrantConnection of the target.")
    target_uid: str | None = Field(default=None, description="uid of the target AgentMemory.")
    physical: str | None = Field(default=None, description="Collection that is restored into.")
    abandoned: (
        Annotated[
            tuple[Annotated[str, Field(description="Name of a collection.")], ...], Field(max_length=MAX_ABANDONED)
        ]
        | None
    ) = Field(
        default=None,
        description="Collections that Qdrant may still create, as the end of their recovery was not observed. They"
        " are removed if they appear.",
    )
    points: PointsStatus | None = Field(default=None, description="Points of the agent before and after.")
    previous_collection: PreviousStatus | None = Field(default=None, description="The replaced collection.")
    safety_snapshot: SafetyStatus | None = Field(
        default=None, description="Earlier contents of the collection; only with mode InPlace."
    )
    closed_since: str | None = Field(
        default=None,
        description="Time since when the API answers 503, absent once it serves again; only with mode InPlace.",
        json_schema_extra={"format": "date-time"},
    )
    start_time: str | None = Field(default=None, description="Start time.", json_schema_extra={"format": "date-time"})
    end_time: str | None = Field(default=None, description="End time.", json_schema_extra={"format": "date-time"})
    rolled_back_time: str | None = Field(
        default=None, description="Time of the rollback.", json_schema_extra={"format": "date-time"}
    )
    progress: str | None = Field(default=None, description="Current step.")
