"""A Qdrant server as far as copies of snapshots know one: a file that is downloaded, and what was made of uploads."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from agentmemory_operator.errors import StoreRejected, StoreUnavailable

CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class FileServer:
    """Implements those calls of ports.SnapshotStore.

    Attributes:
        content: of its one file.
        breaks_at: a download fails there, as often as `breaks` says.
        stalls_at: a download gives nothing from there on; 0 gives all.
        stalled: set then.
        downloads: how many were begun.
        recovered: what was made of uploads, by collection.
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
        """Open the file."""
        self.downloads += 1
        yield self._chunks()

    async def upload(self, physical: str, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
        """Make a collection, unless the bytes are others; raises what ends them."""
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
