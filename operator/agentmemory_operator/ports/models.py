"""Models: embedders, cross-encoders (rerankers), and language models with JSON output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentmemory_operator.ports.base import Vector


class Embedder(Protocol):
    """Turns texts into vectors of one model and length, which can be compared with each other."""

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector per text, in order.

        Raises:
            EmbedderUnavailable: If the provider is unavailable, throttles or returns unusable vectors, after retries.
            SpecInvalid: If the provider rejects key or model, returns no vectors or vectors of another size than
                declared, or has a host that the egress policy forbids. Also if a local model is missing or unusable.
            RequestInvalid: If the provider rejects a text, or the agent accepts only vectors that callers send.
        """
        ...


class Reranker(Protocol):
    """Cross-encoder: scores query and memory together, which is more accurate than comparing their vectors."""

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """Score how well each text answers the query, in order. Larger is better, on the model's own scale.

        Raises:
            SpecInvalid: If this process cannot open the model. Also if a service rejects the request, key, model or
                URL, or the egress policy forbids its host.
            RerankerUnavailable: If the model is still loading, the model or service fails, or it takes too long.
        """
        ...


@dataclass(frozen=True, slots=True)
class Completion:
    """Result of one language model call.

    Attributes:
        answer: JSON object. It matches the schema of the request; nothing else was checked.
        tokens_in, tokens_out: Tokens of the call as the service counts them, or an estimate; each at least 1.
        dropped: Number of parts of the model's output that did not match the schema and were left out.
    """

    answer: dict[str, Any]
    tokens_in: int
    tokens_out: int
    dropped: int = 0


class LanguageModel(Protocol):
    """Language model that answers in JSON."""

    async def complete(
        self, instructions: str, material: str, schema: Mapping[str, Any], max_tokens: int
    ) -> Completion:
        """Request one completion, within the model's time limit including retries.

        Args:
            instructions: Task and output format. Contains no text of users.
            material: Untrusted text that the task is about (`consolidation/rules/prompt_material.py`).
            schema: JSON Schema of the answer, an object. Only keywords that `consolidation/rules/schema_fit.py`
                supports.
            max_tokens: Maximum length of the answer in tokens.

        Raises:
            ModelUnavailable: If the service is unavailable or throttles, after retries.
            ModelOutputInvalid: If the service rejects the input, usually because of its length. Also if the answer has
                no JSON that matches the schema, is too large, was cut off, or was refused.
            SpecInvalid: If the service rejects key, model or URL, or the egress policy forbids its host.
        """
        ...
