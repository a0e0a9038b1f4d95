"""An embedder that is measured: a decorator, inside the cache, so that only what is embedded counts."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from agentmemory_operator.ports import Embedder, Vector


class EmbeddingMeter(Protocol):
    """Whoever measures calls for vectors."""

    def embedding(self, provider: str, texts: int) -> AbstractContextManager[None]:
        """Measure one call."""
        ...


class MeteredEmbedder:
    """Implements ports.Embedder by another one."""

    def __init__(self, inner: Embedder, meter: EmbeddingMeter, *, provider: str) -> None:
        self._inner = inner
        self._meter = meter
        self._provider = provider

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._inner.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector a text, in order."""
        with self._meter.embedding(self._provider, len(texts)):
            return await self._inner.embed(texts)
