"""CEL rules of QdrantConnection, MemorySnapshot, MemoryRestore and snapshot storage."""

from agentmemory_operator.spec.kinds.schema import CelRule, url_rule

CONNECTION = CelRule(
    "!has(self.tls) || self.url.startsWith('https://')", "tls needs an https:// url: change url, or remove tls", ".tls"
)

LABEL_REQUIREMENT = (
    CelRule(
        "!(self.operator in ['In', 'NotIn']) || has(self.values)",
        "operators In and NotIn need values: give at least one",
        ".values",
    ),
    CelRule(
        "self.operator in ['In', 'NotIn'] || !has(self.values)",
        "values cannot be used with operators Exists and DoesNotExist: remove it, or choose In or NotIn",
        ".values",
    ),
)

NAMESPACE_SELECTOR = (
    CelRule(
        "has(self.matchLabels) || has(self.matchExpressions)",
        "a selector needs matchLabels or matchExpressions: give one, or choose from All for every namespace",
    ),
)

ALLOWED_NAMESPACES = (
    CelRule(
        "self.from != 'Selector' || has(self.selector)",
        "from Selector needs selector: give it, or choose Same or All",
        ".selector",
    ),
    CelRule(
        "self.from == 'Selector' || !has(self.selector)",
        "selector applies only with from Selector: remove it, or choose from Selector",
        ".selector",
    ),
)

_OF_AGENT = ("agent", "fromUid", "toNamespace")
TAKEOVER = (
    CelRule(
        f"has(self.fromClusterId) ? !({' || '.join(f'has(self.{field})' for field in _OF_AGENT)})"
        f" : {' && '.join(f'has(self.{field})' for field in _OF_AGENT)}",
        "a takeover has either agent, fromUid and toNamespace, or fromClusterId alone: give one or the other",
    ),
)


ENDPOINT = url_rule("endpoint", "https://minio.storage.svc:9000")
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
