"""Models: what makes vectors of texts, what reads a question beside each answer, and what answers in a given form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer.

    Attributes:
        answer: Matches the schema of the request; nothing else about it was checked.
        tokens_in, tokens_out: Tokens of the call as the service counts them, else an estimate; each at least 1.
        dropped: Number of parts of the model's answer that did not match the schema and were left out.
    """

    answer: dict[str, Any]
    tokens_in: int
    tokens_out: int
    dropped: int = 0


class LanguageModel(Protocol):
    """Answers in JSON."""

    async def complete(
        self, instructions: str, material: str, schema: Mapping[str, Any], max_tokens: int
    ) -> Completion:
        """One answer, within the model's time limit, retries included.

        Args:
            instructions: what to do, and what the answer is like; ours alone.
            material: what it is done with; others wrote it (`consolidation/rules/material.py`).
            schema: of the answer, an object, with the keywords that `consolidation/rules/shapes.py` knows.
            max_tokens: of the answer.

        Raises:
            ModelUnavailable: the service is away or throttles, after retries.
            ModelAnswerInvalid: If the answer has no JSON that matches the schema, was cut off, or was refused.
            SpecInvalid: the service refuses for good (key, model, URL), or may not be connected to.
        """
        ...
