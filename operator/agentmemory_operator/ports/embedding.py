"""What makes vectors of texts, and what reads a question beside each answer."""

from collections.abc import Sequence
from typing import Protocol

from agentmemory_operator.ports.base import Vector


class Embedder(Protocol):
    """Turns texts into vectors of one space."""

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One vector a text, in order.

        Raises:
            EmbedderUnavailable: the provider is away or throttles, after retries.
            SpecInvalid: the provider refuses for good (key, model) or answers another size than declared.
        """
        ...


class Reranker(Protocol):
    """Reads a question and a memory together, which finds out more than comparing their vectors."""

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers the query, in order; larger is better, on the model's own scale.

        Raises:
            SpecInvalid: there is no such model here.
            RerankerUnavailable: it fails or takes too long.
        """
        ...
