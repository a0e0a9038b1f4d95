"""The best results of a search, put in the order in which a cross-encoder reads them. A search never fails by it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentmemory_operator.errors import RerankerUnavailable, SpecInvalid
from agentmemory_operator.memories.rules.record import record_of
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.models import Reranker
from agentmemory_operator.runtime.metrics_api import ApiMeter
from agentmemory_operator.spec.presets.table import Reranking


class MeteredReranker:
    """Implements ports.Reranker by another one."""

    def __init__(self, inner: Reranker, meter: ApiMeter) -> None:
        self._inner = inner
        self._meter = meter

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers the query, in order."""
        with self._meter.reranking(len(texts)):
            return await self._inner.rerank(model, query, texts)


@dataclass(frozen=True, slots=True)
class Reread:
    """Points in their last order.

    Attributes:
        numbers: the cross-encoder's, by id; of the points that it read.
        warnings: why it read none.
    """

    points: Sequence[Json]
    numbers: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


async def read_again(reranker: Reranker, asked: Reranking, query: str, points: Sequence[Json]) -> Reread:
    """The points, the first of them in the cross-encoder's order."""
    if not points:
        return Reread(points)
    first, rest = points[: asked.candidates], points[asked.candidates :]
    texts = [record_of(point["payload"]).content for point in first]
    try:
        read = await reranker.rerank(asked.model, query, texts)
    except (SpecInvalid, RerankerUnavailable) as exc:
        return Reread(points, warnings=(f"{exc}; results are ordered by score",))
    numbers = {point["id"]: number for point, number in zip(first, read, strict=True)}
    ordered = sorted(first, key=lambda point: numbers[point["id"]], reverse=True)
    return Reread([*ordered, *rest], numbers)
