"""What the operator reports of one snapshot."""

from typing import Annotated

from pydantic import Field

from agentmemory_operator.spec.kinds.base import GENERATION, Condition, StatusModel, WholeStatus, types_of
from agentmemory_operator.spec.kinds.schema import keyed_by

JOB_CONDITIONS = "State by type; Progressing stands only while it runs, Succeeded from its end on."


class SnapshotCondition(Condition):
    """One condition, as the Kubernetes API conventions describe it."""

    type: Annotated[str, Field(max_length=316)] = Field(description=types_of("MemorySnapshot"))


SnapshotConditions = Annotated[tuple[SnapshotCondition, ...], Field(max_length=16, json_schema_extra=keyed_by("type"))]


class ConnectionStatus(StatusModel):
    """A QdrantConnection."""

    namespace: str | None = Field(default=None, description="Its namespace.")
    name: str | None = Field(default=None, description="Its name.")


class LocationStatus(StatusModel):
    """One place where the bytes are."""

    type: str | None = Field(default=None, description="Qdrant, on the server, or S3.")
    physical: str | None = Field(default=None, description="Of Qdrant: the collection that it is listed under.")
    name: str | None = Field(default=None, description="Of Qdrant: the file's name.")
    kept_in: str | None = Field(
        default=None, description="Of Qdrant: ObjectStorage where Qdrant's own configuration keeps snapshots there."
    )
    endpoint: str | None = Field(default=None, description="Of S3: URL of the storage.")
    bucket: str | None = Field(default=None, description="Of S3: the bucket.")
    region: str | None = Field(default=None, description="Of S3: the bucket's region.")
    secret: str | None = Field(default=None, description="Of S3: the Secret that opens it, in the object's namespace.")
    addressing: str | None = Field(default=None, description="Of S3: where the bucket stands in a URL.")
    key: str | None = Field(default=None, description="Of S3: the whole key.")


class SnapshotOwnerStatus(StatusModel):
    """The AgentMemory whose memories they are, as the collection's marker says."""

    cluster_id: str | None = Field(default=None, description="Its cluster.")
    namespace: str | None = Field(default=None, description="Its namespace.")
    name: str | None = Field(default=None, description="Its name.")
    uid: str | None = Field(default=None, description="Its uid.")


class VectorSpaceStatus(StatusModel):
    """By what the memories are embedded."""

    provider: str | None = Field(default=None, description="Who embeds.")
    model: str | None = Field(default=None, description="Model of the provider.")
    dimensions: int | None = Field(default=None, description="Numbers in a vector.")


class ShardStatus(StatusModel):
    """The snapshot of one shard."""

    shard: int = Field(description="Number of the shard.")
    peer: str | None = Field(default=None, description="Number of the node that has the file.")
    name: str | None = Field(default=None, description="The file's name there.")
    size_bytes: int | None = Field(default=None, description="Size of the file.")
    sha256: str | None = Field(default=None, description="SHA-256 of its bytes, hexadecimal.")


class PointsStatus(StatusModel):
    """Points of the collection."""

    before: int | None = Field(default=None, description="Before the snapshot was made.")
    after: int | None = Field(default=None, description="After it was made.")


class MemorySnapshotStatus(WholeStatus):
    """What the operator did; written by the operator only."""

    observed_generation: int | None = Field(default=None, description=GENERATION)
    conditions: SnapshotConditions | None = Field(default=None, description=JOB_CONDITIONS)
    agent: str | None = Field(default=None, description="The agent's name in the API.")
    connection: ConnectionStatus | None = Field(default=None, description="The connection of its server.")
    owner: SnapshotOwnerStatus | None = Field(default=None, description="Whose memories they are.")
    embedding: VectorSpaceStatus | None = Field(default=None, description="By what they are embedded.")
    physical: str | None = Field(default=None, description="The collection that it was made of.")
    name: str | None = Field(default=None, description="The file's name in Qdrant.")
    size_bytes: int | None = Field(default=None, description="Size of the file.")
    sha256: str | None = Field(default=None, description="SHA-256 of its bytes, hexadecimal.")
    shards: Annotated[tuple[ShardStatus, ...], Field(max_length=1024, json_schema_extra=keyed_by("shard"))] | None = (
        Field(default=None, description="Of a cluster: the file of each shard, which the name stands for.")
    )
    points: PointsStatus | None = Field(default=None, description="Points of the collection, tombstones left out.")
    deleted_meanwhile: int | None = Field(
        default=None, description="Memories that were deleted while it was made, where that is known."
    )
    qdrant_version: str | None = Field(default=None, description="Version of the server that made it.")
    config_hash: str | None = Field(default=None, description="Hash of the collection's settings.")
    locations: tuple[LocationStatus, ...] | None = Field(
        default=None, max_length=16, description="Where its bytes are."
    )
    step: str | None = Field(default=None, description="The step that was begun last; gone once it has ended.")
    attempts: int | None = Field(default=None, description="How often Qdrant was told to make it.")
    newest_before: int | None = Field(
        default=None, description="When the newest file that was there before was made, Unix milliseconds of Qdrant's."
    )
    verify: str | None = Field(default=None, description="How it is verified: Full, Checksum or None.")
    verify_request: str | None = Field(
        default=None, description="The annotation verify-requested-at that it was last verified again for."
    )
    start_time: str | None = Field(
        default=None, description="When it was begun.", json_schema_extra={"format": "date-time"}
    )
    end_time: str | None = Field(default=None, description="When it ended.", json_schema_extra={"format": "date-time"})
    progress: str | None = Field(default=None, description="What it is at.")
