"""What an S3-compatible storage refuses, in our words: what to mend, and never a secret."""

from collections.abc import Mapping
from xml.etree import ElementTree

from agentmemory_operator.errors import AgentMemoryError, NotFound, StorageRejected, StorageUnavailable
from agentmemory_operator.ports.objects import Bucket

MAX_WORDS_CHARS = 200
# What may go well the next time, whatever the status: what was damaged on its way among them.
_PASSING = frozenset(
    {
        *("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "OperationAborted", "IncompleteBody"),
        *("BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "ThrottlingException"),
    }
)
_NO_OBJECT = frozenset({"NoSuchKey", "NotFound", ""})
_KEYS = "correct access-key-id and secret-access-key in its Secret"
_WAYS = {
    "NoSuchBucket": "create the bucket, or correct bucket",
    "InvalidAccessKeyId": _KEYS,
    "XAdminUserNotFound": _KEYS,
    "SignatureDoesNotMatch": f"{_KEYS}, or region",
    "ExpiredToken": "renew session-token in its Secret",
    "InvalidToken": "renew session-token in its Secret",
    "AccessDenied": "let this identity do so in the bucket's policy",
    "RequestTimeTooSkewed": "set this machine's clock",
    "AuthorizationHeaderMalformed": "correct region",
    "PermanentRedirect": "correct region or endpoint",
}
_WAYS_BY_STATUS = {301: "correct region or endpoint", 307: "correct region or endpoint", 403: _WAYS["AccessDenied"]}


def refusal_of(
    status: int, body: bytes, bucket: Bucket, *, headers: Mapping[str, str] | None = None
) -> AgentMemoryError:
    """Return what to raise for an answer that is an error."""
    code, words = _read(body)
    told = f"bucket {bucket.name!r}: the storage answered {status}{f' {code}' if code else ''}"
    told += f" ({_without_keys(words, bucket)})" if words else ""
    if code in _PASSING or status in (408, 429) or (status >= 500 and status != 501):
        return StorageUnavailable(told, retry_after_s=_retry_after_s(headers or {}))
    if status == 404 and code in _NO_OBJECT:
        return NotFound(told)
    way = _WAYS.get(code) or _WAYS_BY_STATUS.get(status) or "correct endpoint, bucket and region"
    region = (headers or {}).get("x-amz-bucket-region")
    if region and region != bucket.region:
        way = f"it lies in region {region}: correct region ({bucket.region})"
    return StorageRejected(status, code, f"{told}: {way}")


def read_xml(body: bytes) -> ElementTree.Element:
    """Return an answer's root.

    Raises:
        StorageUnavailable: it is no XML.
    """
    try:
        return ElementTree.fromstring(body)
    except ElementTree.ParseError as exc:
        raise StorageUnavailable("the object storage answered what no S3 does: correct endpoint") from exc


def _read(body: bytes) -> tuple[str, str]:
    """Return code and words of an error; what lies in front of a storage answers anything."""
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        return "", ""
    return root.findtext("{*}Code") or "", (root.findtext("{*}Message") or "")[:MAX_WORDS_CHARS]


def _without_keys(words: str, bucket: Bucket) -> str:
    key = bucket.access_key
    for secret in (key.id, key.secret, key.session_token) if key else ():
        words = words.replace(secret, "...") if secret else words
    return words


def _retry_after_s(headers: Mapping[str, str]) -> float:
    wait = headers.get("Retry-After", "")
    return float(wait) if wait.isascii() and wait.isdecimal() else 0.0
