"""Objects of one bucket of an S3-compatible storage."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from xml.etree.ElementTree import Element

import aiohttp

from agentmemory_operator.adapters.http.egress import DEFAULT_EGRESS, Egress
from agentmemory_operator.adapters.s3.signed_calls import S3Calls, S3Request
from agentmemory_operator.adapters.s3.storage_errors import read_xml
from agentmemory_operator.adapters.s3.uploads import Upload, abort_upload
from agentmemory_operator.errors import NotFound, StorageRejected, StorageUnavailable
from agentmemory_operator.ports.objects import Bucket, StoredObject, accept_any_key

CHUNK_BYTES = 256 << 10
FAR_FUTURE_MS = 1 << 62
NOT_IMPLEMENTED = 501


class S3Objects:
    """Objects below one prefix; implements ports.objects.ObjectStore.

    Args:
        bucket: Address and credentials.
        before_write: Called right before each attempt of a call that changes something, except the abort of a failed
            upload. An exception stops the call.
        egress: Policy for outgoing connections; a call to a forbidden host raises SpecInvalid.

    Raises:
        SpecInvalid: If the endpoint is https, and `bucket.ca_pem` contains no certificate.
    """

    def __init__(
        self, bucket: Bucket, *, before_write: Callable[[], None] = lambda: None, egress: Egress = DEFAULT_EGRESS
    ) -> None:
        self._bucket = bucket
        self._before = f"{bucket.prefix}/" if bucket.prefix else ""
        self._calls = S3Calls(bucket, before_write=before_write, egress=egress)

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self._calls.close()

    async def put(self, key: str, content: AsyncIterator[bytes], *, metadata: Mapping[str, str]) -> StoredObject:
        """Store a stream, with about two parts of 8 MiB or more in memory.

        The object becomes visible as a whole, or not at all. Errors are those of `Upload.send`.
        """
        upload = Upload(self._calls, self._bucket, self._before + key, metadata)
        await upload.send(content)
        return StoredObject(key, upload.size, upload.sha256)

    async def head(self, key: str) -> StoredObject | None:
        """Return the metadata of an object, or None if it does not exist."""
        try:
            headers = (await self._calls.call(S3Request("HEAD", self._before + key))).headers
        except NotFound:
            # Send a GET, whose error code distinguishes a missing object from a missing bucket. HEAD gives no code.
            with suppress(NotFound):
                async with self.get(key):
                    pass
            return None
        changed_ms = _http_ms(headers.get("Last-Modified"))
        return StoredObject(key, int(headers.get("Content-Length", 0)), headers.get("x-amz-meta-sha256"), changed_ms)

    @asynccontextmanager
    async def get(self, key: str, *, offset: int = 0) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the content of an object, from a byte offset."""
        range_header = {"range": f"bytes={offset}-"} if offset else {}
        async with self._calls.stream(S3Request("GET", self._before + key, headers=range_header)) as response:
            yield self._chunks_of(response, skipped=offset if response.status == 200 else 0)

    async def delete(self, key: str) -> None:
        """Delete an object; an absent object is no error."""
        try:
            await self._calls.call(S3Request("DELETE", self._before + key))
        except NotFound:
            return

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Yield the objects whose keys start with a prefix, without their `sha256`."""
        async for page, _ in self._pages({"list-type": "2", "prefix": self._before + prefix}):
            for entry in page.iterfind("{*}Contents"):
                key = _text(entry, "Key").removeprefix(self._before)
                yield StoredObject(key, int(_text(entry, "Size") or 0), None, _iso_ms(_text(entry, "LastModified")))

    async def abort_uploads(
        self, prefix: str, *, older_than_ms: int, matches: Callable[[str], bool] = accept_any_key
    ) -> int:
        """Abort the incomplete multipart uploads of a minimum age; return their number.

        Ages are computed with the clock of the storage.
        """
        try:
            candidates = [upload async for upload in self._unfinished(prefix, older_than_ms)]
        except StorageRejected as exc:
            if exc.status != NOT_IMPLEMENTED:
                raise
            # Do nothing if the storage cannot list uploads: it removes them by itself, or by a lifecycle rule.
            return 0
        selected = [(key, upload_id) for key, upload_id in candidates if matches(key.removeprefix(self._before))]
        for key, upload_id in selected:
            await abort_upload(self._calls, key, upload_id, is_fenced=True)
        return len(selected)

    async def _unfinished(self, prefix: str, min_age_ms: int) -> AsyncIterator[tuple[str, str]]:
        """Yield key and upload id of incomplete uploads of a minimum age."""
        async for page, now_ms in self._pages({"uploads": "", "prefix": self._before + prefix}):
            for upload in page.iterfind("{*}Upload"):
                # Compare no age if any is allowed: the Date header may lag, so a new upload could have a negative age.
                if not min_age_ms or now_ms - _iso_ms(_text(upload, "Initiated")) >= min_age_ms:
                    yield _text(upload, "Key"), _text(upload, "UploadId")

    async def _pages(self, query: Mapping[str, str]) -> AsyncIterator[tuple[Element, int]]:
        """Yield the pages of a list, with the storage's clock in Unix milliseconds; 0 without a Date header."""
        page_query: dict[str, str] = {}
        while True:
            response = await self._calls.call(S3Request("GET", query={**query, **page_query}))
            page = read_xml(response.body)
            yield page, _http_ms(response.headers.get("Date"))
            if _text(page, "IsTruncated") != "true":
                return
            following = {
                "continuation-token": _text(page, "NextContinuationToken"),
                "key-marker": _text(page, "NextKeyMarker"),
                "upload-id-marker": _text(page, "NextUploadIdMarker"),
            }
            page_query = {name: value for name, value in following.items() if value}
            if not page_query:
                raise StorageUnavailable(f"bucket {self._bucket.name!r}: a truncated list has no continuation token")

    async def _chunks_of(self, response: aiohttp.ClientResponse, *, skipped: int) -> AsyncIterator[bytes]:
        """Yield the body without its first `skipped` bytes, which a storage without support for ranges sends too."""
        try:
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                remaining = chunk[skipped:]
                skipped -= len(chunk) - len(remaining)
                if remaining:
                    yield remaining
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise StorageUnavailable(
                f"bucket {self._bucket.name!r}: the connection broke during an answer: {type(exc).__name__}"
            ) from exc


def _text(element: Element, name: str) -> str:
    return element.findtext(f"{{*}}{name}") or ""


def _iso_ms(text: str) -> int:
    """Return Unix milliseconds. An unreadable time is far in the future, so that it never counts as old."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return FAR_FUTURE_MS


def _http_ms(text: str | None) -> int:
    """Return Unix milliseconds of an HTTP date; 0 if it is missing or unreadable."""
    try:
        return int(parsedate_to_datetime(text or "").timestamp() * 1000)
    except ValueError:
        return 0
