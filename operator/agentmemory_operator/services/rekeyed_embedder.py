"""An embedder whose key may be rotated: when the provider refuses for good, the key is read once more."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from agentmemory_operator.errors import AgentMemoryError, SpecInvalid
from agentmemory_operator.ports import Embedder, Vector

# A wrong key is met by every request; the API server is not asked that often.
LEAST_BETWEEN_READS_S = 1.0

ReadKey = Callable[[], Awaitable[str]]
MakeEmbedder = Callable[[str], Embedder]


class RekeyedEmbedder:
    """Implements ports.Embedder by the embedder of the key that was read last.

    Args:
        key: as it was read first.
        read_key: reads it again.
        make: makes the embedder of a key; all are of one vector space.
    """

    def __init__(self, key: str, read_key: ReadKey, make: MakeEmbedder) -> None:
        self._key = key
        self._read_key = read_key
        self._make = make
        self._inner = make(key)
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._inner.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector a text, in order; a call that the provider refused is made once more with another key."""
        inner = self._inner
        try:
            return await inner.embed(texts)
        except SpecInvalid:
            renewed = await self._renewed_after(inner)
            if renewed is None:
                raise
        return await renewed.embed(texts)

    async def _renewed_after(self, refused: Embedder) -> Embedder | None:
        """Return the embedder of another key than the one that was refused, None where there is none."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._inner is refused and now - self._read_at >= LEAST_BETWEEN_READS_S:
                self._read_at = now
                await self._renew()
            return self._inner if self._inner is not refused else None

    async def _renew(self) -> None:
        try:
            key = await self._read_key()
        except AgentMemoryError:
            # What the provider said is the news.
            return
        if key != self._key:
            self._key, self._inner = key, self._make(key)
