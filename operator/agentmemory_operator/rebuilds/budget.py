"""What a rebuild may ask of an embedding provider, how much of it is used up, and how long the calls take."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector

from agentmemory_operator.connections.embedders import WrappedEmbedder
from agentmemory_operator.errors import EmbedderUnavailable
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.runtime.metrics import SECONDS
from agentmemory_operator.runtime.rules.fair_shares import WHOLE, Allowances, hourly
from agentmemory_operator.spec.effective.policies import rebuild_settings

# Somebody may pause the rebuild meanwhile.
LONGEST_WAIT_S = 1.0
SHORTEST_WAIT_S = 0.02
# A shorter wait is not worth telling of.
TOLD_S = 5.0


class BudgetedEmbedder(WrappedEmbedder):
    """Implements ports.Embedder by another one: a call is one request of at most `batch_size` texts.

    What the other one repeats by itself counts once.

    Args:
        task: whose object has the budget; asked whether it is to go on while there is none left.
    """

    def __init__(self, inner: Embedder, task: RebuildRun, batch_size: int) -> None:
        super().__init__(inner)
        self._task = task
        self._per_hour = rebuild_settings(task.memory.spec).max_calls_per_hour
        self._allowances = hourly(self._per_hour, _now_s()) if self._per_hour else None
        self._is_closed = False
        self.batch_size = batch_size
        self.calls = task.record.calls

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One vector a text, in order, each call when there is budget for it.

        Raises:
            RebuildPaused, RebuildUnwanted: the rebuild is not to go on, found out while it waited.
        """
        vectors: list[Vector] = []
        for start in range(0, len(texts), self.batch_size):
            if self._allowances is not None:
                await self._wait(self._allowances)
            self.calls += 1
            vectors += await self._inner.embed(texts[start : start + self.batch_size])
        return vectors

    def close(self) -> None:
        """Let no call begin any more: what began a cached one may be gone before its turn comes."""
        self._is_closed = True

    async def _wait(self, allowances: Allowances) -> None:
        begun_s, pause_s = _now_s(), min(max(allowances.refill_s / 8, SHORTEST_WAIT_S), LONGEST_WAIT_S)
        while not allowances.take(WHOLE, _now_s()):
            if _now_s() - begun_s > TOLD_S:
                await self._task.tell(f"waits for spec.rebuild.maxEmbeddingCallsPerHour: {self._per_hour}")
            await self._task.check()
            await asyncio.sleep(pause_s)
            if self._is_closed:
                raise EmbedderUnavailable("the copy is finished")


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class RebuildMeter:
    """Measures calls for vectors; implements `connections.embedders.EmbeddingMeter`."""

    def __init__(self) -> None:
        self._embeddings = Histogram(
            "agentmemory_rebuild_embed_duration_seconds",
            "Duration of embeddings for rebuilds in seconds.",
            ("provider", "outcome"),
            buckets=SECONDS,
            registry=None,
        )
        self._tokens = Counter(
            "agentmemory_rebuild_embedding_tokens_total",
            "Tokens for rebuilds, as reported by embedding services.",
            ("provider",),
            registry=None,
        )

    @property
    def metrics(self) -> list[Collector]:
        """Everything that is measured."""
        return [self._embeddings, self._tokens]

    def used(self, provider: str, tokens: int) -> None:
        """Count what a service says that a call used."""
        self._tokens.labels(provider).inc(tokens)

    @contextmanager
    def embedding(self, provider: str, texts: int) -> Iterator[None]:
        """Measure one call for vectors."""
        started_s, outcome = time.monotonic(), "failed"
        try:
            yield
            outcome = "ok"
        finally:
            self._embeddings.labels(provider, outcome).observe(time.monotonic() - started_s)
