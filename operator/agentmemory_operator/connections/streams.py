"""Streams of snapshot files, with progress reports, checksums, and resumption after a broken connection."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable

from agentmemory_operator.errors import ChecksumMismatch, StorageUnavailable
from agentmemory_operator.ports.objects import ObjectStore

Progress = Callable[[int, int], Awaitable[None]]
"""Called periodically with the number of bytes transferred so far, and the total number of bytes."""

PROGRESS_PERIOD_S = 2.0
MAX_RESUMES = 5
RESUME_DELAY_S = 0.2


async def report_nothing(done: int, total: int) -> None:
    """Ignore the progress, as the default where no status shows it."""


async def with_progress(
    content: AsyncIterator[bytes], total: int, progress: Progress, *, every_s: float = PROGRESS_PERIOD_S
) -> AsyncIterator[bytes]:
    """Yield the content, and report progress after a chunk, at most once in `every_s` seconds.

    Args:
        total: Number of bytes of the content, for the reports.
    """
    loop = asyncio.get_running_loop()
    sent_bytes, due_s = 0, loop.time() + every_s
    async for chunk in content:
        yield chunk
        sent_bytes += len(chunk)
        if loop.time() >= due_s:
            await progress(sent_bytes, total)
            due_s = loop.time() + every_s


async def with_resumes(objects: ObjectStore, key: str, size: int) -> AsyncIterator[bytes]:
    """Yield an object's content. After a broken connection, resume at the current offset, at most five times.

    An error after the last byte is ignored. After an attempt that yielded no byte, the next attempt waits with
    exponential backoff.

    Args:
        size: Number of the object's bytes. 0 if unknown: an error after the last byte then counts too.

    Raises:
        StorageUnavailable: If the fifth resumed attempt failed too.
        AgentMemoryError: Other errors of `objects.get`, immediately.
    """
    offset = 0
    for attempt in range(MAX_RESUMES + 1):
        start_offset = offset
        try:
            async with objects.get(key, offset=offset) as content:
                async for chunk in content:
                    offset += len(chunk)
                    yield chunk
            return
        except StorageUnavailable:
            if 0 < size <= offset:
                return
            if attempt == MAX_RESUMES:
                raise
            if offset == start_offset:
                await asyncio.sleep(RESUME_DELAY_S * 2**attempt)


class CheckedStream:
    """Bytes whose last chunk is withheld until size and checksum are verified.

    So a consumer that needs all bytes, such as an upload, cannot complete with wrong data.

    Args:
        name: Name of the data, for messages.
        size: Expected number of bytes. None if unknown.
        sha256: Expected SHA-256, hex.
    """

    def __init__(self, content: AsyncIterator[bytes], *, name: str, size: int | None, sha256: str) -> None:
        self._content = content
        self._named = name
        self._size = size
        self._sha256 = sha256

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes.

        Raises:
            ChecksumMismatch: If size or checksum differ.
        """
        digest, size, pending = hashlib.sha256(), 0, b""
        async for chunk in self._content:
            digest.update(chunk)
            size += len(chunk)
            if pending:
                yield pending
            pending = chunk
        self._check(size, digest.hexdigest())
        yield pending

    def _check(self, size: int, sha256: str) -> None:
        if self._size is not None and size != self._size:
            raise ChecksumMismatch(f"{self._named}: it has {size} bytes, expected {self._size}")
        if sha256 != self._sha256:
            raise ChecksumMismatch(f"{self._named}: it has SHA-256 {sha256}, expected {self._sha256}")


async def hash_stream(content: AsyncIterator[bytes]) -> tuple[str, int]:
    """Read a stream to its end; return its SHA-256 in hex, and its number of bytes."""
    digest, size = hashlib.sha256(), 0
    async for chunk in content:
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


async def read_to_end(content: CheckedStream) -> None:
    """Read a stream to its end, to verify size and checksum.

    Raises:
        ChecksumMismatch: If one of them differs.
    """
    async for _ in content:
        pass
