"""The status of a MemorySnapshot, and of a MemoryRestore."""

from typing import Annotated

from pydantic import Field

from agentmemory_operator.spec.kinds.model_base import GENERATION, Condition, KindStatus, StatusModel, describe_types
from agentmemory_operator.spec.kinds.schema import list_map_keys

JOB_CONDITIONS = "Conditions by type; Progressing is present while it runs, Succeeded after it ends."

MAX_ABANDONED = 64


class SnapshotCondition(Condition):
    """One condition, as the Kubernetes API conventions describe it."""

    type: Annotated[str, Field(max_length=316)] = Field(description=describe_types("MemorySnapshot"))


SnapshotConditions = Annotated[
    tuple[SnapshotCondition, ...], Field(max_length=16, json_schema_extra=list_map_keys("type"))
]


class ConnectionStatus(StatusModel):
    """A QdrantConnection."""

    namespace: str | None = Field(default=None, description="Namespace of the QdrantConnection.")
    name: str | None = Field(default=None, description="Name of the QdrantConnection.")


class LocationStatus(StatusModel):
    """A location of the files."""

    type: str | None = Field(default=None, description="Qdrant (on the server) or S3.")
    physical: str | None = Field(default=None, description="Qdrant: collection that lists the file.")
    name: str | None = Field(default=None, description="Qdrant: file name.")
    kept_in: str | None = Field(default=None, description="Qdrant: ObjectStorage if Qdrant stores its snapshots there.")
    endpoint: str | None = Field(default=None, description="S3: URL of the storage.")
    bucket: str | None = Field(default=None, description="S3: bucket.")
    region: str | None = Field(default=None, description="S3: region of the bucket.")
    secret: str | None = Field(default=None, description="S3: Secret with the credentials, in the object's namespace.")
    addressing: str | None = Field(default=None, description="S3: position of the bucket in URLs.")
    key: str | None = Field(default=None, description="S3: full key.")


class SnapshotOwnerStatus(StatusModel):
    """AgentMemory that owns the memories, from the collection's marker."""

    cluster_id: str | None = Field(default=None, description="Cluster of the owner.")
    namespace: str | None = Field(default=None, description="Namespace of the owner.")
    name: str | None = Field(default=None, description="Name of the owner.")
    uid: str | None = Field(default=None, description="uid of the owner.")


class VectorSpaceStatus(StatusModel):
    """Embedding of the memories."""

    provider: str | None = Field(default=None, description="Embedding provider.")
    model: str | None = Field(default=None, description="Model of the provider.")
    dimensions: int | None = Field(default=None, description="Vector size.")


class ShardStatus(StatusModel):
    """Snapshot of one shard."""

    shard: int = Field(description="Number of the shard.")
    peer: str | None = Field(default=None, description="Number of the node that has the file.")
    name: str | None = Field(default=None, description="File name on that node.")
    size_bytes: int | None = Field(default=None, description="Size of the file in bytes.")
    sha256: str | None = Field(default=None, description="SHA-256 of the file, hexadecimal.")


class PointsStatus(StatusModel):
    """Points of the collection."""

    before: int | None = Field(default=None, description="Number before the snapshot.")
    after: int | None = Field(default=None, description="Number after the snapshot.")


class MemorySnapshotStatus(KindStatus):
    """Observed state; written by the operator only."""

    observed_generation: int | None = Field(default=None, description=GENERATION)
    conditions: SnapshotConditions | None = Field(default=None, description=JOB_CONDITIONS)
    agent: str | None = Field(default=None, description="Name of the agent in the API.")
    connection: ConnectionStatus | None = Field(default=None, description="QdrantConnection of the server.")
    owner: SnapshotOwnerStatus | None = Field(default=None, description="Owner of the memories.")
    embedding: VectorSpaceStatus | None = Field(default=None, description="Embedding of the memories.")
    physical: str | None = Field(default=None, description="Source collection.")
    name: str | None = Field(default=None, description="File name in Qdrant.")
    size_bytes: int | None = Field(default=None, description="Size of the file in bytes.")
    sha256: str | None = Field(default=None, description="SHA-256 of the file, hexadecimal.")
    shards: (
        Annotated[tuple[ShardStatus, ...], Field(max_length=1024, json_schema_extra=list_map_keys("shard"))] | None
    ) = Field(default=None, description="In a cluster: snapshot file of each shard.")
    points: PointsStatus | None = Field(default=None, description="Points of the collection, without tombstones.")
    deleted_meanwhile: int | None = Field(default=None, description="Memories deleted during its creation, if known.")
    qdrant_version: str | None = Field(default=None, description="Version of the Qdrant server that created it.")
    config_hash: str | None = Field(default=None, description="Digest of the collection's configuration.")
    config_hash_after: str | None = Field(
        default=None, description="Digest after its creation, if the configuration changed during it."
    )
    locations: tuple[LocationStatus, ...] | None = Field(
        default=None, max_length=16, description="Locations of the files."
    )
    step: str | None = Field(default=None, description="Last started step; absent after the end.")
    attempts: int | None = Field(default=None, description="Number of requests to Qdrant to create it.")
    newest_before: int | None = Field(
        default=None, description="Creation time of the newest earlier file, in Unix milliseconds of Qdrant's clock."
    )
    verify: str | None = Field(default=None, description="Verification: Full, Checksum or None.")
    verify_request: str | None = Field(
        default=None, description="Last handled value of the annotation verify-requested-at."
    )
    start_time: str | None = Field(default=None, description="Start time.", json_schema_extra={"format": "date-time"})
    end_time: str | None = Field(default=None, description="End time.", json_schema_extra={"format": "date-time"})
    progress: str | None = Field(default=None, description="Current step.")


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
        default=None, description="Time until which the operator keeps it.", json_schema_extra={"format": "date-time"}
    )
    since: str | None = Field(
        default=None,
        description="Time of the last write that the snapshot contains.",
        json_schema_extra={"format": "date-time"},
    )
    writes_since: int | None = Field(
        default=None,
        description="Memories changed after that time by a write or an access. Only the replaced collection has these"
        " changes.",
    )
    removed_time: str | None = Field(
        default=None, description="Time of its removal.", json_schema_extra={"format": "date-time"}
    )


class SafetyStatus(StatusModel):
    """Snapshot of a collection, taken before another snapshot was restored into it."""

    name: str | None = Field(default=None, description="Name of the MemorySnapshot.")
    attempt: int | None = Field(default=None, description="Attempt, 1..3; earlier ones missed direct writes to Qdrant.")
    writes_since: int | None = Field(
        default=None,
        description="Memories changed since the restored snapshot. Only the safety snapshot has these changes.",
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
    physical: str | None = Field(default=None, description="Collection into which the snapshot is restored.")
    abandoned: (
        Annotated[
            tuple[Annotated[str, Field(description="Name of a collection.")], ...], Field(max_length=MAX_ABANDONED)
        ]
        | None
    ) = Field(
        default=None,
        description="Collections that Qdrant may still create, because the operator did not observe the end of their"
        " recovery. The operator removes them if they appear.",
    )
    points: PointsStatus | None = Field(default=None, description="Points of the agent before and after.")
    previous_collection: PreviousStatus | None = Field(default=None, description="The replaced collection.")
    safety_snapshot: SafetyStatus | None = Field(
        default=None, description="Earlier contents of the collection; only with mode InPlace."
    )
    closed_since: str | None = Field(
        default=None,
        description="Time since which the API responds with 503; absent when it serves again. Only with mode InPlace.",
        json_schema_extra={"format": "date-time"},
    )
    start_time: str | None = Field(default=None, description="Start time.", json_schema_extra={"format": "date-time"})
    end_time: str | None = Field(default=None, description="End time.", json_schema_extra={"format": "date-time"})
    rolled_back_time: str | None = Field(
        default=None, description="Time of the rollback.", json_schema_extra={"format": "date-time"}
    )
    progress: str | None = Field(default=None, description="Current step.")
