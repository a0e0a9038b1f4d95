"""CEL rules of MemorySnapshot and MemoryRestore; what holds for `cel` holds here."""

from agentmemory_operator.spec.kinds.schema import CelRule, is_url

ENDPOINT = is_url("endpoint", "https://minio.storage.svc:9000")
SOURCE_URL = CelRule(
    r"self.matches('^https://[A-Za-z0-9._-]+(:[0-9]{1,5})?/[A-Za-z0-9._~%!$&()*+,;=:@/?-]*$')",
    "url must be an https:// URL without user and fragment, for example https://backups.example.com/a.snapshot",
)

KEY = CelRule(
    "!self.matches('(^|/)[.][.]?(/|$)')",
    "a key must not have . or .. between slashes, which storages resolve to another folder: remove it",
)

ENCRYPTION = (
    CelRule(
        "self.type == 'KMS' || !has(self.kmsKeyId)",
        "kmsKeyId applies only with type KMS: remove it, or choose type KMS",
        ".kmsKeyId",
    ),
)

SNAPSHOT_IMMUTABLE = CelRule("self == oldSelf", "spec is immutable: create another MemorySnapshot")
RESTORE_IMMUTABLE = CelRule("self == oldSelf", "spec is immutable: create another MemoryRestore")

_SOURCES = " + ".join(f"(has(self.{field}) ? 1 : 0)" for field in ("snapshotRef", "s3", "url"))
SOURCE = (
    CelRule(f"{_SOURCES} == 1", "source needs exactly one of snapshotRef, s3 and url: give one of them"),
    CelRule(
        "has(self.url) == has(self.sha256)",
        "url and sha256 need each other: give the SHA-256 of the file at url, or neither",
        ".sha256",
    ),
)
