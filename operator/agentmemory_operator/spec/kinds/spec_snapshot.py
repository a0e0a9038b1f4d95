"""What is said of snapshots: an AgentMemory's `snapshots` block, and a MemorySnapshot."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.base import Model, ObjectName, Schedule
from agentmemory_operator.spec.kinds.cel import snapshot as rules
from agentmemory_operator.spec.kinds.schema import validated
from agentmemory_operator.spec.schedule import ZONE_PATTERN

BUCKET_PATTERN = r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$"
KEY_PATTERN = r"^[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*$"
MAX_KEY_CHARS = 1024
SHA256_PATTERN = r"^[0-9a-f]{64}$"

Verify = Literal["Full", "Checksum", "None"]
Sha256 = Annotated[str, Field(min_length=64, max_length=64, pattern=SHA256_PATTERN)]
ObjectKey = Annotated[
    str, Field(min_length=1, max_length=MAX_KEY_CHARS, pattern=KEY_PATTERN, json_schema_extra=validated(rules.KEY))
]
Kept = Annotated[int, Field(ge=0, le=1000)]


class SecretRef(Model):
    """A Secret in the object's own namespace."""

    name: ObjectName = Field(description="Name of the Secret.")


class Encryption(Model):
    """How the storage encrypts what it keeps."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.ENCRYPTION))

    type: Literal["AES256", "KMS"] = Field(description="AES256 with keys of the storage's own, or KMS.")
    kms_key_id: Annotated[str, Field(min_length=1, max_length=2048, pattern=r"^[A-Za-z0-9:/_.-]+$")] | None = Field(
        default=None, description="The key of type KMS. Default: the storage's own for KMS."
    )


class S3Bucket(Model):
    """A bucket of an S3-compatible storage, and what opens it."""

    endpoint: Annotated[str, Field(max_length=2048, json_schema_extra=validated(rules.ENDPOINT))] | None = Field(
        default=None,
        description="URL of the storage, for example https://minio.storage.svc:9000. Default: Amazon's own.",
    )
    bucket: Annotated[str, Field(min_length=3, max_length=63, pattern=BUCKET_PATTERN)] = Field(
        description="Name of the bucket, which must exist."
    )
    region: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9-]+$")] | None = Field(
        default=None, description="Region of the bucket. Default: us-east-1."
    )
    addressing: Literal["Path", "VirtualHost"] | None = Field(
        default=None,
        description="Where the bucket stands in a URL: in the path, or before the host's name. Default: Path with an"
        " endpoint, VirtualHost without.",
    )
    secret_ref: SecretRef | None = Field(
        default=None,
        description="Secret with access-key-id and secret-access-key; session-token and ca.crt (the authorities to"
        " trust, PEM) where needed. Default: the operator's own identity (environment, web identity), for the"
        " namespace's own keys in the buckets that its AGENTMEMORY_SHARED_BUCKETS lists.",
    )


class S3Storage(S3Bucket):
    """Where copies of snapshots go."""

    prefix: ObjectKey | None = Field(
        default=None,
        description="What every key begins with, before namespace and agent, as backups/agents. Default: nothing.",
    )
    encryption: Encryption | None = Field(default=None, description="Encryption at rest. Default: the bucket's own.")


class S3Object(S3Bucket):
    """One object of a bucket that is a snapshot."""

    key: ObjectKey = Field(
        description="The whole key of the object; without secretRef one of the namespace's own, as copies of its"
        " snapshots have it."
    )
    sha256: Sha256 | None = Field(
        default=None,
        description="SHA-256 of its bytes, 64 hexadecimal digits. Default: the one that was stored beside it; an object"
        " without either is refused.",
    )


class SnapshotStorage(Model):
    """Where snapshots are copied to, off the server."""

    s3: S3Storage = Field(description="A bucket of an S3-compatible storage.")


class Retention(Model):
    """Which scheduled snapshots stay; one that any of these keeps, stays."""

    keep_last: Kept | None = Field(default=None, description="The newest so many, 0..1000. Default: 4.")
    daily: Kept | None = Field(
        default=None, description="The last one of each of the newest so many days that have one, 0..1000. Default: 7."
    )
    weekly: Kept | None = Field(default=None, description="Of so many ISO weeks, 0..1000. Default: 4.")
    monthly: Kept | None = Field(default=None, description="Of so many months, 0..1000. Default: 6.")
    max_age_days: Annotated[int, Field(ge=1, le=36_500)] | None = Field(
        default=None,
        description="Older ones go, whatever the other figures say, 1..36500; a pinned one stays, one in use, the"
        " newest one and the last verified one that the running server can restore. Default: none goes by age.",
    )


class SnapshotsSpec(Model):
    """When snapshots of an agent are made, and how long they stay."""

    schedule: Schedule | None = Field(
        default=None,
        description="When one is made: minute, hour, day, month and weekday as cron has them (0 */6 * * *), or Never."
        " Default: Never.",
    )
    time_zone: Annotated[str, Field(max_length=64, pattern=ZONE_PATTERN)] | None = Field(
        default=None, description="Time zone of the schedule by its IANA name, as Europe/Berlin. Default: Etc/UTC."
    )
    stale_after_hours: Annotated[int, Field(ge=1, le=87_600)] | None = Field(
        default=None,
        description="Hours after which the last proven snapshot is too old and SnapshotFresh turns False, 1..87600."
        " Default: twice the longest time between two times of the schedule, at least 1.",
    )
    retention: Retention | None = Field(
        default=None,
        description="Which scheduled ones stay: what any of the figures keeps, and all where keepLast, daily, weekly"
        " and monthly are 0. Default: see its fields.",
    )
    verify: Verify | None = Field(
        default=None,
        description="How each is proven: Full restores it beside the agent and compares, Checksum reads its bytes, None"
        " believes the server. Default: Full.",
    )
    storage: SnapshotStorage | None = Field(
        default=None, description="Where they are copied to. Default: they lie on the disk of the server alone."
    )


class AgentMemoryRef(Model):
    """An AgentMemory of the object's own namespace."""

    name: ObjectName = Field(description="Name of the AgentMemory.")


class ImportSource(Model):
    """A snapshot that exists already."""

    s3: S3Object = Field(description="An object of an S3-compatible storage.")


class MemorySnapshotSpec(Model):
    """One snapshot of one agent, made once."""

    model_config = ConfigDict(json_schema_extra=validated(rules.SNAPSHOT_IMMUTABLE))

    agent_memory_ref: AgentMemoryRef = Field(description="Whose snapshot it is.")
    verify: Verify | None = Field(
        default=None,
        description="How it is proven: Full restores it beside the agent and compares, Checksum reads its bytes, None"
        " believes the server. Default: Full.",
    )
    deletion_policy: Literal["Retain", "Delete"] | None = Field(
        default=None,
        description="What becomes of the snapshot when this object is deleted: Retain keeps its bytes wherever they"
        " are, Delete removes them there. Default: Retain.",
    )
    import_: ImportSource | None = Field(
        default=None,
        alias="import",
        description="A snapshot that is taken in instead of making one. Default: one is made.",
    )
