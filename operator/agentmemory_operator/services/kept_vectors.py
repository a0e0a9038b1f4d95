"""Vectors that a rebuild's target has already: most changes of a memory leave its content as it is."""

from collections.abc import Mapping, Sequence

from agentmemory_operator.domain.divergence import PointId
from agentmemory_operator.domain.samples import vectors_of
from agentmemory_operator.ports import Embedder, PointStore, Vector


class KeptVectors:
    """Implements ports.Embedder by what the target has of the same contents, else by another one.

    Args:
        target: a collection whose vectors are the other embedder's.
    """

    def __init__(self, inner: Embedder, points: PointStore, target: str) -> None:
        self._inner = inner
        self._points = points
        self._target = target
        self._kept: Mapping[str, Vector] = {}

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._inner.dimensions

    async def look_up(self, ids: Sequence[PointId]) -> None:
        """Remember the vectors of these points, and forget the others."""
        body = {"filter": {"must": [{"has_id": list(ids)}]}, "limit": max(len(ids), 1)}
        found, _ = await self._points.scroll(self._target, body | {"with_payload": ["content"], "with_vector": True})
        vectors = {(point.get("payload") or {}).get("content"): vectors_of(point).get("") for point in found}
        self._kept = {content: vector for content, vector in vectors.items() if content is not None and vector}

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector a text, in order."""
        new = [text for text in texts if text not in self._kept]
        made = dict(zip(new, await self._inner.embed(new), strict=True)) if new else {}
        return [self._kept[text] if text in self._kept else made[text] for text in texts]
