"""In-memory files behind the product's ports: snapshots of a server, and objects of a bucket."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from agentmemory_operator.errors import ChecksumMismatch, NotFound, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.objects import StoredObject, accept_any_key

CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class FileServer:
    """Implements the methods of ports.SnapshotStore for file contents.

    Attributes:
        content: Content of its single file.
        breaks_at: Offset in bytes at which downloads fail.
        breaks: Number of downloads that fail.
        stalls_at: Offset in bytes at which downloads stall; 0 for never.
        stalled: Set when a download stalls.
        downloads: Number of started downloads.
        recovered: Uploaded contents by collection.
    """

    content: bytes
    breaks_at: int = 0
    breaks: int = 0
    stalls_at: int = 0
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    downloads: int = 0
    recovered: dict[str, bytes] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def download(self, physical: str, name: str) -> AsyncIterator[AsyncIterator[bytes]]:
        self.downloads += 1
        yield self._chunks()

    async def upload(self, physical: str, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
        """Store an upload. Raise StoreRejected if its SHA-256 differs; errors of reading `content` pass through."""
        whole = b"".join([chunk async for chunk in content])
        if hashlib.sha256(whole).hexdigest() != sha256:
            raise StoreRejected(400, "checksum mismatch")
        self.recovered[physical] = whole

    async def _chunks(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.content), CHUNK_BYTES):
            if self.breaks and start >= self.breaks_at:
                self.breaks -= 1
                raise StoreUnavailable("the server went away")
            if self.stalls_at and start >= self.stalls_at:
                self.stalled.set()
                await asyncio.Event().wait()
            yield self.content[start : start + CHUNK_BYTES]


@dataclass(slots=True)
class MemoryObjects:
    """Implements ports.objects.ObjectStore.

    Attributes:
        objects: Content and metadata by key.
        unfinished: Keys of incomplete uploads with their start times.
        now_ms: The storage's time in Unix milliseconds.
    """

    objects: dict[str, tuple[bytes, dict[str, str]]] = field(default_factory=dict)
    unfinished: dict[str, int] = field(default_factory=dict)
    now_ms: int = 0

    async def close(self) -> None:
        """Do nothing."""

    async def put(self, key: str, content: AsyncIterator[bytes], *, metadata: Mapping[str, str]) -> StoredObject:
        """Store the complete content. Raise ChecksumMismatch if `metadata` contains another checksum or size."""
        whole = b"".join([chunk async for chunk in content])
        sha256 = hashlib.sha256(whole).hexdigest()
        told = {"sha256": sha256, "size": str(len(whole))}
        for name, value in told.items():
            if metadata.get(name, value) != value:
                raise ChecksumMismatch(f"{key}: {name} is {value}, not {metadata[name]}")
        self.objects[key] = (whole, dict(metadata) | told)
        return StoredObject(key, len(whole), sha256)

    async def head(self, key: str) -> StoredObject | None:
        """Return the description of an object, or None if there is none."""
        if key not in self.objects:
            return None
        whole, metadata = self.objects[key]
        return StoredObject(key, len(whole), metadata.get("sha256"), self.now_ms)

    @contextlib.asynccontextmanager
    async def get(self, key: str, *, offset: int = 0) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open an object's content from `offset` on, in chunks of seven bytes. Raise NotFound if there is no object."""
        if key not in self.objects:
            raise NotFound(f"no object {key!r}")
        whole = self.objects[key][0]

        async def chunks() -> AsyncIterator[bytes]:
            for start in range(offset, len(whole), 7):
                yield whole[start : start + 7]

        yield chunks()

    async def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Yield the objects with a key prefix."""
        for key, (whole, _) in sorted(self.objects.items()):
            if key.startswith(prefix):
                yield StoredObject(key, len(whole), None, self.now_ms)

    async def abort_uploads(
        self, prefix: str, *, older_than_ms: int, matches: Callable[[str], bool] = accept_any_key
    ) -> int:
        """Delete the old incomplete uploads with the prefix and a matching key; return their number."""
        old = [
            key
            for key, began_ms in self.unfinished.items()
            if key.startswith(prefix) and matches(key) and self.now_ms - began_ms >= older_than_ms
        ]
        for key in old:
            del self.unfinished[key]
        return len(old)
