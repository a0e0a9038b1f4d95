"""The `snapshots` block of an AgentMemory, and the specs of MemorySnapshots and MemoryRestores."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.cron import ZONE_PATTERN
from agentmemory_operator.spec.kinds.cel import other_kinds as rules
from agentmemory_operator.spec.kinds.model_base import Model, ObjectName, Schedule
from agentmemory_operator.spec.kinds.schema import validation_rules

BUCKET_PATTERN = r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$"
KEY_PATTERN = r"^[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*$"
MAX_KEY_CHARS = 1024
SHA256_PATTERN = r"^[0-9a-f]{64}$"

Verify = Literal["Full", "Checksum", "None"]
Sha256 = Annotated[str, Field(min_length=64, max_length=64, pattern=SHA256_PATTERN)]
ObjectKey = Annotated[
    str,
    Field(min_length=1, max_length=MAX_KEY_CHARS, pattern=KEY_PATTERN, json_schema_extra=validation_rules(rules.KEY)),
]
Kept = Annotated[int, Field(ge=0, le=1000)]


class SecretRef(Model):
    """Reference to a Secret in the object's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")


class Encryption(Model):
    """Server-side encryption of the storage."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.ENCRYPTION))

    type: Literal["AES256", "KMS"] = Field(description="AES256 with the storage's own keys, or KMS.")
    kms_key_id: Annotated[str, Field(min_length=1, max_length=2048, pattern=r"^[A-Za-z0-9:/_.-]+$")] | None = Field(
        default=None, description="Key for type KMS. Default: the storage's own for KMS."
    )


class S3Bucket(Model):
    """A bucket in S3-compatible storage, with its credentials."""

    endpoint: Annotated[str, Field(max_length=2048, json_schema_extra=validation_rules(rules.ENDPOINT))] | None = Field(
        default=None, description="URL of the storage, for example https://minio.storage.svc:9000. Default: Amazon's."
    )
    bucket: Annotated[str, Field(min_length=3, max_length=63, pattern=BUCKET_PATTERN)] = Field(
        description="Name of the bucket, which must exist."
    )
    region: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9-]+$")] | None = Field(
        default=None, description="Region of the bucket. Default: us-east-1."
    )
    addressing: Literal["Path", "VirtualHost"] | None = Field(
        default=None,
        description="Position of the bucket in URLs: in the path, or before the host name. Default: Path with an"
        " endpoint, VirtualHost without.",
    )
    secret_ref: SecretRef | None = Field(
        default=None,
        description="Secret with access-key-id and secret-access-key, and if needed session-token and ca.crt (CA"
        " certificates, PEM). Default: the operator's own identity (environment, web identity), which may use only the"
        " buckets in AGENTMEMORY_SHARED_BUCKETS, and there only the keys of the object's namespace.",
    )


class S3Storage(S3Bucket):
    """Bucket and prefix for copies of snapshots."""

    prefix: ObjectKey | None = Field(
        default=None,
        description="Prefix of all keys, before namespace and agent, for example backups/agents. Default: none.",
    )
    encryption: Encryption | None = Field(default=None, description="Encryption at rest. Default: the bucket's.")


class S3Object(S3Bucket):
    """A snapshot in a bucket."""

    key: ObjectKey = Field(
        description="Full key of the object. Without secretRef it must be a key of the object's namespace, as the"
        " copies of its snapshots have."
    )
    sha256: Sha256 | None = Field(
        default=None,
        description="SHA-256 of the object, 64 hexadecimal digits. Default: the one stored with it; without either,"
        " the object is refused.",
    )


class SnapshotStorage(Model):
    """Storage for copies of snapshots, off the server."""

    s3: S3Storage = Field(description="Bucket in S3-compatible storage.")


class Retention(Model):
    """Retention rules of scheduled snapshots. A snapshot is kept if at least one rule keeps it."""

    keep_last: Kept | None = Field(default=None, description="Number of newest snapshots to keep, 0..1000. Default: 4.")
    daily: Kept | None = Field(
        default=None,
        description="Number of days, newest first, of which to keep the last snapshot, 0..1000; days without a"
        " snapshot do not count. Default: 7.",
    )
    weekly: Kept | None = Field(default=None, description="The same number for ISO weeks, 0..1000. Default: 4.")
    monthly: Kept | None = Field(default=None, description="The same number for months, 0..1000. Default: 6.")
    max_age_days: Annotated[int, Field(ge=1, le=36_500)] | None = Field(
        default=None,
        description="Maximum age in days, 1..36500. Older snapshots are removed even if another rule keeps them,"
        " except pinned ones, those in use, the newest, and the last verified one that the running server can restore."
        " Default: unlimited.",
    )


class SnapshotsSpec(Model):
    """Schedule and retention of an agent's snapshots."""

    schedule: Schedule | None = Field(
        default=None,
        description="Cron schedule (minute, hour, day, month, weekday), for example 0 */6 * * *, or Never. Default:"
        " Never.",
    )
    time_zone: Annotated[str, Field(max_length=64, pattern=ZONE_PATTERN)] | None = Field(
        default=None, description="IANA time zone of the schedule, for example Europe/Berlin. Default: Etc/UTC."
    )
    stale_after_hours: Annotated[int, Field(ge=1, le=87_600)] | None = Field(
        default=None,
        description="Hours after which the last verified snapshot is too old and SnapshotFresh becomes False,"
        " 1..87600. Default: twice the longest interval of the schedule, at least 1.",
    )
    retention: Retention | None = Field(
        default=None,
        description="Rules that keep scheduled snapshots. If keepLast, daily, weekly and monthly are all 0, all are"
        " kept. Default: see its fields.",
    )
    verify: Verify | None = Field(
        default=None,
        description="Verification: Full restores the snapshot into a temporary collection and compares that with the"
        " live one, Checksum reads the file and compares its SHA-256, None verifies nothing. Default: Full.",
    )
    storage: SnapshotStorage | None = Field(
        default=None, description="Storage for copies. Default: none, snapshots are only on the server's disk."
    )


class AgentMemoryRef(Model):
    """Reference to an AgentMemory in the object's namespace."""

    name: ObjectName = Field(description="Name of the AgentMemory.")


class ImportSource(Model):
    """An existing snapshot."""

    s3: S3Object = Field(description="Object in S3-compatible storage.")


class MemorySnapshotSpec(Model):
    """One snapshot of one agent."""

    model_config = ConfigDict(json_schema_extra=validation_rules(rules.SNAPSHOT_IMMUTABLE))

    agent_memory_ref: AgentMemoryRef = Field(description="AgentMemory to snapshot.")
    verify: Verify | None = Field(
        default=None,
        description="Verification: Full restores the snapshot into a temporary collection and compares that with the"
        " live one, Checksum reads the file and compares its SHA-256, None verifies nothing. Default: Full.",
    )
    deletion_policy: Literal["Retain", "Delete"] | None = Field(
        default=None,
        description="How to handle the snapshot's files when this object is deleted: Retain keeps them, Delete"
        " removes them everywhere. Default: Retain.",
    )
    import_: ImportSource | None = Field(
        default=None, alias="import", description="Existing snapshot to import instead of creating one. Default: none."
    )


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
        description="AgentMemory that receives the memories, in place of its own. If the snapshot is of another agent,"
        " it becomes a clone of that agent."
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
