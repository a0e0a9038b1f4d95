"""Parse XML responses of an S3-compatible storage, and build the exceptions for its error responses.

Messages never contain the credentials of the bucket. Permanent errors, except NotFound, name a remedy.
"""

import re
from collections.abc import Mapping
from xml.etree import ElementTree

from agentmemory_operator.adapters.http.capped_body import retry_after_s
from agentmemory_operator.errors import AgentMemoryError, NotFound, StorageRejected, StorageUnavailable
from agentmemory_operator.ports.objects import Bucket
from agentmemory_operator.spec.printable import printable_start

# Exceptions that the parser raises for bytes that are no XML. It raises the last two for an unknown encoding.
_NO_XML = (ElementTree.ParseError, ValueError, LookupError)
_CODE, _REGION = re.compile(r"[A-Za-z0-9.]{1,64}"), re.compile(r"[a-z0-9-]{1,64}")
# Error codes that are transient with any status. The digest and checksum codes mean damage in transit.
_TRANSIENT = frozenset(
    {
        *("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "OperationAborted", "IncompleteBody"),
        *("BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "ThrottlingException"),
    }
)
_NO_OBJECT = frozenset({"NoSuchKey", "NotFound", ""})
_CORRECT_KEYS = "correct access-key-id and secret-access-key in its Secret"
_REMEDIES = {
    "NoSuchBucket": "create the bucket, or correct bucket",
    "InvalidAccessKeyId": _CORRECT_KEYS,
    "XAdminUserNotFound": _CORRECT_KEYS,
    "SignatureDoesNotMatch": f"{_CORRECT_KEYS}, or region",
    "ExpiredToken": "renew session-token in its Secret",
    "InvalidToken": "renew session-token in its Secret",
    "AccessDenied": "allow it for this identity in the bucket's policy",
    "RequestTimeTooSkewed": "correct this machine's clock",
    "AuthorizationHeaderMalformed": "correct region",
    "PermanentRedirect": "correct region or endpoint",
}
_REMEDIES_BY_STATUS = {
    301: "correct region or endpoint",
    307: "correct region or endpoint",
    403: _REMEDIES["AccessDenied"],
}


def storage_error(
    status: int, body: bytes, bucket: Bucket, *, headers: Mapping[str, str] | None = None
) -> AgentMemoryError:
    """Build the exception for an error response: StorageUnavailable, NotFound or StorageRejected.

    Args:
        bucket: Bucket of the call; its credentials are removed from the message.
        headers: Headers of the response. None for an error in the body of a response with status 200.
    """
    code, error_text = _read(body)
    message = f"bucket {bucket.name!r}: the storage answered {status}{f' {code}' if code else ''}"
    message += f" ({printable_start(_without_keys(error_text, bucket))})" if error_text else ""
    if code in _TRANSIENT or status in (408, 429) or (status >= 500 and status != 501):
        return StorageUnavailable(message, retry_after_s=retry_after_s(headers or {}))
    if status == 404 and code in _NO_OBJECT:
        return NotFound(message)
    remedy = _REMEDIES.get(code) or _REMEDIES_BY_STATUS.get(status) or "correct endpoint, bucket and region"
    region = (headers or {}).get("x-amz-bucket-region", "")
    if _REGION.fullmatch(region) and region != bucket.region:
        remedy = f"the bucket is in region {region}: correct region ({bucket.region})"
    return StorageRejected(status, code, f"{message}: {remedy}")


def read_xml(body: bytes) -> ElementTree.Element:
    """Parse the body of a response; return the root element.

    Raises:
        StorageUnavailable: If the body is no XML.
    """
    try:
        return ElementTree.fromstring(body)
    except _NO_XML as exc:
        raise StorageUnavailable("the object storage's answer is not S3: correct endpoint") from exc


def _read(body: bytes) -> tuple[str, str]:
    """Return code and message of an S3 error. Both are empty if the body is no S3 error, for example a proxy's page."""
    try:
        root = ElementTree.fromstring(body)
    except _NO_XML:
        return "", ""
    code = root.findtext("{*}Code") or ""
    if root.tag.rpartition("}")[2] != "Error" or not _CODE.fullmatch(code):
        return "", ""
    return code, root.findtext("{*}Message") or ""


def _without_keys(text: str, bucket: Bucket) -> str:
    key = bucket.access_key
    for secret in (key.id, key.secret, key.session_token) if key else ():
        text = text.replace(secret, "...") if secret else text
    return text
