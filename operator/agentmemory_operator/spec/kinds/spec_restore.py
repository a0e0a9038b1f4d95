"""The spec of a MemoryRestore, and the `bootstrap` block of an AgentMemory."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.cel import other_kinds as rules
from agentmemory_operator.spec.kinds.model_base import Model, ObjectName
from agentmemory_operator.spec.kinds.schema import validation_rules
from agentmemory_operator.spec.kinds.spec_snapshot import AgentMemoryRef, S3Object, Sha256


class SnapshotRef(Model):
    """Reference to a MemorySnapshot in the object's namespace."""

    name: ObjectName = Field(description="Name of the MemorySnapshot.")


class RestoreSource(Model):
    """Source of the snapshot: exactly one of snapshotRef, s3 and url."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.SOURCE))

    snapshot_ref: SnapshotRef | None = Field(default=None, description="MemorySnapshot to restore. Default: none.")
    s3: S3Object | None = Field(default=None, description="Object in S3-compatible storage. Default: none.")
    url: Annotated[str, Field(max_length=2048, json_schema_extra=validation_rules(rules.SOURCE_URL))] | None = Field(
        default=None,
        description="https URL on a host that the connection lists in restoreSources; requires sha256. Default: none.",
    )
    sha256: Sha256 | None = Field(
        default=None, description="SHA-256 of the file at url, 64 hexadecimal digits; required with url."
    )


class MemoryRestoreSpec(Model):
    """One restore into one agent."""

    model_config = ConfigDict(json_schema_extra=validation_rules(rules.RESTORE_IMMUTABLE))

    target: AgentMemoryRef = Field(
        description="AgentMemory whose memories are replaced. If it is not the snapshot's own, it becomes a clone."
    )
    source: RestoreSource = Field(description="Snapshot to restore.")
    mode: Literal["Swap", "InPlace"] | None = Field(
        default=None,
        description="Swap restores into a new collection, verifies it and moves the alias without interruption;"
        " InPlace restores into the existing collection while the API answers 503. Default: Swap.",
    )
    keep_previous_hours: Annotated[int, Field(ge=0, le=8760)] | None = Field(
        default=None,
        description="Hours to keep the collection that a Swap replaced, for a rollback, 0..8760. Default: 24.",
    )


class Bootstrap(Model):
    """Initial contents of the collection, if none exists."""

    from_snapshot: SnapshotRef = Field(
        description="MemorySnapshot in the object's namespace; only used if there is no collection."
    )
