"""Archive of a set of shard snapshots: a tar with a manifest and one file per shard.

The same set always yields the same bytes. Archives are written and read as streams; no shard file is in memory as a
whole.
"""

import tarfile
from collections.abc import AsyncIterator, Iterable

import orjson

from agentmemory_operator.errors import StoreRejected
from agentmemory_operator.ports.base import Json

MANIFEST = "manifest.json"
_BLOCK = tarfile.BLOCKSIZE
END_OF_ARCHIVE = bytes(2 * _BLOCK)
# Maximum size of a manifest. That of tens of shards has a few kilobytes.
_MAX_MANIFEST_BYTES = 4 << 20


def entry_name(shard: int) -> str:
    """Return the name of a shard's file in the archive."""
    return f"shard-{shard}"


def tar_header(name: str, size: int) -> bytes:
    """Return the tar header of a file: one block of 512 bytes."""
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT)


def tar_padding(size: int) -> bytes:
    """Return the zero bytes that follow a file of this size, up to the next tar block."""
    return bytes(-size % _BLOCK)


def render_manifest(manifest: Json) -> bytes:
    """Render the manifest as the first file of an archive, with tar header and padding."""
    content = orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)
    return tar_header(MANIFEST, len(content)) + content + tar_padding(len(content))


def archive_size(manifest: Json, sizes: Iterable[int]) -> int:
    """Return the size in bytes of an archive with shard files of these sizes."""
    return (
        len(render_manifest(manifest))
        + sum(_BLOCK + size + len(tar_padding(size)) for size in sizes)
        + len(END_OF_ARCHIVE)
    )


class ArchiveReader:
    """Reads an archive sequentially, file by file."""

    def __init__(self, content: AsyncIterator[bytes]) -> None:
        self._content = content
        self._buffer = b""

    async def manifest(self) -> tuple[Json, Json, list[tuple[int, int, str | None]]]:
        """Read the manifest. Call this before any other method.

        Returns:
            Configuration, payload indexes, and number, size in bytes and SHA-256 (None if unknown) of each shard.

        Raises:
            StoreRejected: If the content is no archive of shard snapshots.
        """
        name, size = await self._read_header()
        if name != MANIFEST or size > _MAX_MANIFEST_BYTES:
            raise _invalid_archive("the list of shards is missing")
        content = b"".join([chunk async for chunk in self.file(size)])
        try:
            manifest = orjson.loads(content)
            shards = [(int(each["shard"]), int(each["size"]), each["sha256"]) for each in manifest["shards"]]
            return dict(manifest["configuration"]), dict(manifest["indexes"]), shards
        except (ValueError, LookupError, TypeError) as exc:
            raise _invalid_archive(f"{MANIFEST}, the list of shards, cannot be read") from exc

    async def open(self, name: str, size: int) -> AsyncIterator[bytes]:
        """Open the next file, which must have this name and size. Read it to its end before the next call.

        Raises:
            StoreRejected: If the next file has another name or size, or the archive is truncated.
        """
        entry = await self._read_header()
        if entry != (name, size):
            raise _invalid_archive(f"found {entry[0]} of {entry[1]} bytes instead of {name} of {size}")
        return self.file(size)

    async def end(self) -> None:
        """Consume the rest of the stream, so that a digest of the stream covers the whole archive."""
        async for _ in self._content:
            pass

    async def file(self, size: int) -> AsyncIterator[bytes]:
        """Yield the next `size` bytes, then skip their padding.

        Raises:
            StoreRejected: If the archive is truncated.
        """
        remaining = size
        while remaining:
            if not self._buffer:
                await self._fill_buffer()
            chunk, self._buffer = self._buffer[:remaining], self._buffer[remaining:]
            remaining -= len(chunk)
            yield chunk
        await self._read_exactly(len(tar_padding(size)))

    async def _read_header(self) -> tuple[str, int]:
        block = await self._read_exactly(_BLOCK)
        try:
            entry = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as exc:
            raise _invalid_archive("not an archive") from exc
        return entry.name, entry.size

    async def _read_exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._fill_buffer()
        content, self._buffer = self._buffer[:size], self._buffer[size:]
        return content

    async def _fill_buffer(self) -> None:
        try:
            self._buffer += await anext(self._content)
        except StopAsyncIteration:
            raise _invalid_archive("the archive is truncated") from None


def _invalid_archive(reason: str) -> StoreRejected:
    return StoreRejected(400, f"the file is not a snapshot of a cluster's shards: {reason}")
