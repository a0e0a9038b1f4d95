"""Upload of one object: in a single request up to 8 MiB, else in parts, with about two parts in memory.

Size and digest, if given, are compared before the upload completes, so an object with wrong content never becomes
visible. A failure aborts an upload in parts. If the abort fails, or the process is killed, parts remain, which
`S3Objects.abort_uploads` removes later.
"""

import asyncio
import base64
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping
from xml.sax.saxutils import escape

from agentmemory_operator.adapters.s3.signed_calls import S3Calls, S3Request, sha256_of
from agentmemory_operator.adapters.s3.storage_errors import read_xml
from agentmemory_operator.errors import (
    AgentMemoryError,
    ChecksumMismatch,
    NotFound,
    StorageRejected,
    StorageUnavailable,
)
from agentmemory_operator.ports.objects import Bucket

log = logging.getLogger(__name__)

PART_BYTES = 8 << 20
# Limit of S3. With a declared size above 78 GiB, parts are larger than `PART_BYTES`.
MAX_PARTS = 10_000
ABORT_TIMEOUT_S = 10.0


class Upload:
    """Upload of an object that is stored as a whole or not at all.

    Args:
        calls: Calls to the bucket.
        bucket: Bucket, for its encryption.
        key: Full key including the prefix.
        metadata: Metadata of the object. `sha256` and `size`, if given, are compared with the content.

    Attributes:
        size: Number of bytes processed so far.
    """

    def __init__(self, calls: S3Calls, bucket: Bucket, key: str, metadata: Mapping[str, str]) -> None:
        self._calls = calls
        self._key = key
        self._metadata = dict(metadata)
        self._encryption = _encryption_of(bucket)
        self._digest = hashlib.sha256()
        self._id = ""
        self._parts: list[tuple[str, str]] = []
        self.size = 0

    @property
    def sha256(self) -> str:
        """Digest of the content processed so far, hex."""
        return self._digest.hexdigest()

    async def send(self, content: AsyncIterator[bytes]) -> None:
        """Store the content, in one request or in parts. Errors of `content` pass through, and nothing is stored then.

        Raises:
            ChecksumMismatch: If the content differs from `sha256` or `size` of the metadata; nothing was stored.
            ValueError: If the content needs more than one part and the metadata has no `sha256`; nothing was stored.
            StorageUnavailable, StorageRejected, NotFound, SpecInvalid: See `S3Calls.call`. If the response to the last
                call was lost, the object may be stored.
        """
        try:
            min_part_bytes = -(-int(self._metadata.get("size", 0)) // MAX_PARTS)
            async for part, is_last in split_parts(content, part_bytes=max(PART_BYTES, min_part_bytes)):
                await self._add_part(part, is_last=is_last)
        except BaseException:
            # Abort on every exception, also when the process stops, because parts cost money until they are removed.
            await self._abort()
            raise

    async def _add_part(self, part: bytes, *, is_last: bool) -> None:
        await asyncio.to_thread(self._digest.update, part)
        self.size += len(part)
        if is_last:
            self._check()
        if is_last and not self._id:
            await self._put_whole(part)
            return
        if not self._id:
            await self._begin()
        await self._put_part(part)
        if is_last:
            await self._complete()

    def _check(self) -> None:
        size = int(self._metadata.get("size", self.size))
        if size != self.size:
            raise ChecksumMismatch(f"{self._key}: received {self.size} bytes, expected {size}")
        sha256 = self._metadata.get("sha256", self.sha256)
        if sha256 != self.sha256:
            raise ChecksumMismatch(f"{self._key}: received SHA-256 {self.sha256}, expected {sha256}")

    async def _put_whole(self, content: bytes) -> None:
        headers = self._object_headers({"sha256": self.sha256, "size": str(self.size)})
        headers |= {"x-amz-checksum-sha256": base64.b64encode(self._digest.digest()).decode()}
        await self._calls.call(S3Request("PUT", self._key, headers=headers, body=content, sha256=self._digest.digest()))

    async def _begin(self) -> None:
        if "sha256" not in self._metadata:
            raise ValueError(f"{self._key}: above {PART_BYTES} bytes the SHA-256 must be known in advance")
        headers = self._object_headers({}) | {"x-amz-checksum-algorithm": "SHA256"}
        response = await self._calls.call(S3Request("POST", self._key, query={"uploads": ""}, headers=headers))
        self._id = read_xml(response.body).findtext("{*}UploadId") or ""
        if not self._id:
            raise StorageUnavailable("the object storage started an upload without an upload ID: correct endpoint")

    async def _put_part(self, part: bytes) -> None:
        digest = await sha256_of(part)
        checksum = base64.b64encode(digest).decode()
        query = {"partNumber": str(len(self._parts) + 1), "uploadId": self._id}
        headers = {"x-amz-checksum-sha256": checksum}
        request = S3Request("PUT", self._key, query=query, headers=headers, body=part, sha256=digest)
        response = await self._calls.call(request)
        self._parts.append((response.headers.get("ETag", ""), checksum))

    async def _complete(self) -> None:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag>"
            f"<ChecksumSHA256>{checksum}</ChecksumSHA256></Part>"
            for number, (tag, checksum) in enumerate(self._parts, start=1)
        )
        body = f'<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{parts}</CompleteMultipartUpload>'
        try:
            await self._calls.call(S3Request("POST", self._key, query={"uploadId": self._id}, body=body.encode()))
        except StorageRejected as exc:
            # On NoSuchUpload, look for the object: an earlier attempt may have completed it, and its response was lost.
            if exc.code != "NoSuchUpload" or not await self._is_stored():
                raise
        self._id = ""

    async def _is_stored(self) -> bool:
        try:
            response = await self._calls.call(S3Request("HEAD", self._key))
        except NotFound:
            return False
        return response.headers.get("x-amz-meta-sha256") == self.sha256

    async def _abort(self) -> None:
        upload_id, self._id = self._id, ""
        if not upload_id:
            return
        try:
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                await abort_upload(self._calls, self._key, upload_id, is_fenced=False)
        except (AgentMemoryError, TimeoutError):
            log.warning("an upload of %s is unfinished and is aborted with the next copy", self._key)

    def _object_headers(self, more: Mapping[str, str]) -> dict[str, str]:
        metadata_headers = {f"x-amz-meta-{name}": value for name, value in (self._metadata | dict(more)).items()}
        return metadata_headers | self._encryption | {"content-type": "application/octet-stream"}


async def abort_upload(calls: S3Calls, key: str, number: str, *, is_fenced: bool) -> None:
    """Abort an incomplete upload with its parts; an absent upload is no error. Other errors: see `S3Calls.call`.

    Args:
        number: Id of the upload.
        is_fenced: Value of `S3Request.is_fenced`.
    """
    try:
        await calls.call(S3Request("DELETE", key, query={"uploadId": number}, is_fenced=is_fenced))
    except NotFound:
        return
    except StorageRejected as exc:
        if exc.code != "NoSuchUpload":
            raise


async def split_parts(content: AsyncIterator[bytes], *, part_bytes: int) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield (part, is_last) for parts of `part_bytes`. The last part may be smaller, and is empty without content."""
    buffer = bytearray()
    async for chunk in content:
        buffer += chunk
        while len(buffer) > part_bytes:
            with memoryview(buffer) as view:
                part = bytes(view[:part_bytes])
            del buffer[:part_bytes]
            yield part, False
    yield bytes(buffer), True


def _encryption_of(bucket: Bucket) -> dict[str, str]:
    """Build the headers for encryption at rest; empty if the bucket's default is used."""
    if bucket.encryption is None:
        return {}
    headers = {"x-amz-server-side-encryption": "aws:kms" if bucket.encryption == "KMS" else bucket.encryption}
    if bucket.kms_key_id:
        headers["x-amz-server-side-encryption-aws-kms-key-id"] = bucket.kms_key_id
    return headers
