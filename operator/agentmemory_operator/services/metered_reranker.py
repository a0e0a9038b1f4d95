"""A reranker that is measured: a decorator."""

from collections.abc import Sequence

from agentmemory_operator.ports import Reranker
from agentmemory_operator.services.api_metering import ApiMeter


class MeteredReranker:
    """Implements ports.Reranker by another one."""

    def __init__(self, inner: Reranker, meter: ApiMeter) -> None:
        self._inner = inner
        self._meter = meter

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """Return how well each text answers the query, in order."""
        with self._meter.reranking(len(texts)):
            return await self._inner.rerank(model, query, texts)
