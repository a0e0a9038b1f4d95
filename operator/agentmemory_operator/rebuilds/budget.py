"""Limit, count and measure a rebuild's calls of an embedding provider."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from agentmemory_operator.connections.embedders import WrappedEmbedder
from agentmemory_operator.errors import EmbedderUnavailable, RebuildPaused, SpecInvalid
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.runtime.metrics import DURATION_BUCKETS_S, MetricSet
from agentmemory_operator.runtime.rules.fair_shares import SHARED_KEY, TokenBuckets, hourly_bucket
from agentmemory_operator.spec.effective.policies import rebuild_settings

# Bounds of the pause between two checks of the budget. The maximum is short, because each check also detects that the
# rebuild must stop.
MAX_WAIT_S = 1.0
MIN_WAIT_S = 0.02
# Seconds after which a wait for budget is reported to users.
REPORT_AFTER_S = 5.0


class BudgetedEmbedder(WrappedEmbedder):
    """Implements ports.Embedder: limits the rate of another embedder's calls, and counts them.

    Without `spec.rebuild.maxEmbeddingCallsPerHour` the rate is not limited. Retries inside the other embedder are not
    counted.

    Args:
        inner: The other embedder.
        task: Rebuild of the object that sets the budget. `task.check` is called while the embedder waits for budget.
        batch_size: Maximum number of texts in a call.

    Attributes:
        calls: Number of calls of the rebuild: those in its record when this object was created, plus those since then.
    """

    def __init__(self, inner: Embedder, task: RebuildRun, batch_size: int) -> None:
        super().__init__(inner)
        self._task = task
        self._per_hour = rebuild_settings(task.memory.spec).max_calls_per_hour
        self._allowances = hourly_bucket(self._per_hour, _now_s()) if self._per_hour else None
        self._is_closed = False
        self.batch_size = batch_size
        self.calls = task.record.calls

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector for each text, in order. Each call waits until the budget allows it.

        Other errors of the other embedder pass through.

        Raises:
            RebuildPaused: If the provider rejects key or model, or the rebuild is paused, as found while waiting.
            RebuildCancelled: If the rebuild is no longer requested, as found while waiting.
            EmbedderUnavailable: If the embedder was closed while waiting.
        """
        vectors: list[Vector] = []
        for start in range(0, len(texts), self.batch_size):
            if self._allowances is not None:
                await self._wait(self._allowances)
            self.calls += 1
            try:
                vectors += await self._inner.embed(texts[start : start + self.batch_size])
            except SpecInvalid as exc:
                # Pause if a user must act, for example because the key was revoked. A failure would remove the vectors
                # that were embedded so far.
                raise RebuildPaused(str(exc)) from exc
        return vectors

    def close(self) -> None:
        """End waits for budget with EmbedderUnavailable. Calls that have started continue."""
        self._is_closed = True

    async def _wait(self, allowances: TokenBuckets) -> None:
        started_s, pause_s = _now_s(), min(max(allowances.refill_s / 8, MIN_WAIT_S), MAX_WAIT_S)
        while not allowances.take(SHARED_KEY, _now_s()):
            if _now_s() - started_s > REPORT_AFTER_S:
                await self._task.report(f"waits for spec.rebuild.maxEmbeddingCallsPerHour: {self._per_hour}")
            await self._task.check()
            await asyncio.sleep(pause_s)
            if self._is_closed:
                raise EmbedderUnavailable("the copy is finished")


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class RebuildMeter(MetricSet):
    """Metrics of embedding calls for rebuilds. Implements `connections.embedders.EmbeddingMeter`."""

    def __init__(self) -> None:
        super().__init__()
        self._embeddings = self.add_histogram(
            "agentmemory_rebuild_embed_duration_seconds",
            "Duration of embeddings for rebuilds in seconds.",
            "provider",
            "outcome",
            buckets=DURATION_BUCKETS_S,
        )
        self._tokens = self.add_counter(
            "agentmemory_rebuild_embedding_tokens_total",
            "Tokens for rebuilds, as reported by embedding services.",
            "provider",
        )

    def count_tokens(self, provider: str, tokens: int) -> None:
        """Add the tokens that an embedding service reports for one call to the counter of the provider."""
        self._tokens.labels(provider).inc(tokens)

    @contextmanager
    def measure_embedding(self, provider: str, texts: int) -> Iterator[None]:
        """Return a context that measures an embedding call: its duration, and "ok", or "failed" if it raises.

        Args:
            texts: Number of texts in the call. It is not recorded.
        """
        started_s, outcome = time.monotonic(), "failed"
        try:
            yield
            outcome = "ok"
        finally:
            self._embeddings.labels(provider, outcome).observe(time.monotonic() - started_s)
