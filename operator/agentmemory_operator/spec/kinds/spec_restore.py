"""What is said of one restore: a MemoryRestore."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.base import Model, ObjectName
from agentmemory_operator.spec.kinds.cel import snapshot as rules
from agentmemory_operator.spec.kinds.schema import validated
from agentmemory_operator.spec.kinds.spec_snapshot import AgentMemoryRef, S3Object, Sha256


class SnapshotRef(Model):
    """A MemorySnapshot of the object's own namespace."""

    name: ObjectName = Field(description="Name of the MemorySnapshot.")


class RestoreSource(Model):
    """Where the snapshot comes from: exactly one of snapshotRef, s3 and url."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.SOURCE))

    snapshot_ref: SnapshotRef | None = Field(default=None, description="A MemorySnapshot. Default: none.")
    s3: S3Object | None = Field(default=None, description="An object of an S3-compatible storage. Default: none.")
    url: Annotated[str, Field(max_length=2048, json_schema_extra=validated(rules.SOURCE_URL))] | None = Field(
        default=None,
        description="https URL of a host that the connection lists in restoreSources; with sha256. Default: none.",
    )
    sha256: Sha256 | None = Field(
        default=None, description="SHA-256 of what lies at url, 64 hexadecimal digits; required with it."
    )


class MemoryRestoreSpec(Model):
    """One restore into one agent, made once."""

    model_config = ConfigDict(json_schema_extra=validated(rules.RESTORE_IMMUTABLE))

    target: AgentMemoryRef = Field(
        description="The agent whose memories are replaced; another than the snapshot's is a clone."
    )
    source: RestoreSource = Field(description="What is restored.")
    mode: Literal["Swap", "InPlace"] | None = Field(
        default=None,
        description="Swap restores into a new collection, proves it and moves the alias, without a pause; InPlace"
        " restores into the collection itself, the API answering 503 meanwhile. Default: Swap.",
    )
    keep_previous_hours: Annotated[int, Field(ge=0, le=8760)] | None = Field(
        default=None,
        description="How many hours the collection that a Swap replaces is kept for a way back, 0..8760. Default: 24.",
    )


class Bootstrap(Model):
    """What an agent's collection is made of, where none exists."""

    from_snapshot: SnapshotRef = Field(
        description="A MemorySnapshot of the object's own namespace; acts only when there is no collection."
    )
