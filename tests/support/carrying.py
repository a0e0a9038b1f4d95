"""What carries points from one collection into another, without an operator: ends, and an embedder."""

from collections.abc import Sequence

from agentmemory_operator.domain.collection import Collection, EmbeddingSource, KeywordSource, Marker
from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.ports import Vector
from tests.support.agents import SIZE, vector_of


class Embedding:
    """Draws a vector from a text, as the tests draw those of callers.

    Attributes:
        refused: what it refuses for good.
        texts: what it was asked for, call by call.
    """

    def __init__(self, *, size: int = SIZE, refused: str | None = None) -> None:
        self.dimensions = size
        self.refused = refused
        self.texts: list[str] = []
        self.calls = 0

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        self.calls += 1
        if self.refused in texts:
            raise RequestInvalid([FieldError("text", f"refused: {self.refused}")])
        self.texts += texts
        return [vector_of(text, self.dimensions) for text in texts]


def collection_of(*, size: int = SIZE, keyword: KeywordSource | None = None, provider: str = "none") -> Collection:
    """Return a collection of an agent, with its marker."""
    marker = Marker(
        cluster_id="c",
        namespace="agents",
        name="probe",
        uid="uid-probe",
        generation=1,
        config_hash="",
        preset_revision=1,
        embedding=EmbeddingSource(provider=provider, model=None, dimensions=size),
        keyword=keyword,
    )
    return Collection(size=size, distance="Cosine", has_keyword=keyword is not None, marker=marker)
