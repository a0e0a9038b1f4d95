"""CEL rules of MemorySnapshot and MemoryRestore; what holds for `rules` holds here."""

from agentmemory_operator.domain.rules import is_url
from agentmemory_operator.domain.schema import Rule

ENDPOINT = is_url("endpoint", "https://minio.storage.svc:9000")
SOURCE_URL = Rule(
    r"self.matches('^https://[A-Za-z0-9._-]+(:[0-9]{1,5})?/[A-Za-z0-9._~%!$&()*+,;=:@/?-]*$')",
    "url must be an https:// URL without user and fragment, for example https://backups.example.com/a.snapshot",
)

ENCRYPTION = (
    Rule(
        "self.type == 'KMS' || !has(self.kmsKeyId)",
        "kmsKeyId has no meaning but with type KMS: remove it, or choose type KMS",
        ".kmsKeyId",
    ),
)

SNAPSHOT_IMMUTABLE = Rule(
    "self == oldSelf", "spec cannot change, the snapshot is made once: create another MemorySnapshot"
)
RESTORE_IMMUTABLE = Rule(
    "self == oldSelf", "spec cannot change, the restore is made once: create another MemoryRestore"
)

_SOURCES = " + ".join(f"(has(self.{field}) ? 1 : 0)" for field in ("snapshotRef", "s3", "url"))
SOURCE = (
    Rule(f"{_SOURCES} == 1", "source needs exactly one of snapshotRef, s3 and url: give one of them"),
    Rule(
        "has(self.url) == has(self.sha256)",
        "url and sha256 belong together: give sha256 of what lies at url, or neither",
        ".sha256",
    ),
)
