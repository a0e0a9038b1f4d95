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
        answer: of the schema that was asked for; nothing else about it was checked.
        tokens_in, tokens_out: what the call used, as the service says, else an estimate; each at least 1.
    """

    answer: dict[str, Any]
    tokens_in: int
    tokens_out: int


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
            ModelAnswerInvalid: no JSON came, or none of the schema, or it was cut off, or the service refused.
            SpecInvalid: the service refuses for good (key, model, URL), or may not be connected to.
        """
        ...
