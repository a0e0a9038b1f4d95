"""Reranking by a service that may be slow or down: a time limit, and a pause after repeated failures.

1. A call opens the reranker if needed and sends the request, together within the time limit.
2. After `MAX_FAILURES` failed calls in a row, except `RerankRequestRefused`, calls fail at once for `PAUSE_S`.
3. After the pause one call tries again, while all others fail at once. If it succeeds, the pause is over. If it fails,
   another pause begins. If it raises `RerankRequestRefused`, the next call tries at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from agentmemory_operator.errors import AgentMemoryError, RerankerUnavailable, SpecInvalid, TransientError
from agentmemory_operator.ports.models import Reranker

FIELD = "spec.scoring.rerank"
MAX_FAILURES = 3
PAUSE_S = 30.0


class RerankRequestRefused(SpecInvalid):
    """The service refuses one request, usually because its query or texts are too long, or because of its model."""


class GuardedReranker:
    """Implements ports.Reranker by an inner reranker, which may be slow or down.

    Args:
        open_inner: Opens the inner reranker. It is called until it succeeds once.
        timeout_s: Time limit of one call in seconds.
        now_s: Monotonic clock.
    """

    def __init__(
        self, open_inner: Callable[[], Awaitable[Reranker]], *, timeout_s: float, now_s: Callable[[], float]
    ) -> None:
        self._open_inner = open_inner
        self._timeout_s = timeout_s
        self._now_s = now_s
        self._inner: Reranker | None = None
        self._failures = 0
        self._retry_at_s = 0.0
        self._last_error = ""

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """Return a score for each text, in order. Larger is better, on the model's own scale.

        Raises:
            RerankRequestRefused: If the service refuses this request. Another request may succeed.
            SpecInvalid: If the object, its Secret or the egress policy must be corrected.
            RerankerUnavailable: If the service fails or takes too long, its key cannot be read, or calls are paused.
        """
        if self._failures >= MAX_FAILURES:
            if self._now_s() < self._retry_at_s:
                raise RerankerUnavailable(f"{self._last_error}; not asked now, after repeated failures")
            self._retry_at_s = self._now_s() + PAUSE_S
        try:
            numbers = await self._ask(model, query, texts)
        except RerankRequestRefused:
            # The service works: after a pause, let the next call try at once.
            self._retry_at_s = self._now_s()
            raise
        except AgentMemoryError as exc:
            self._failures += 1
            self._last_error = str(exc)
            self._retry_at_s = self._now_s() + PAUSE_S
            raise
        self._failures = 0
        return numbers

    async def _ask(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        try:
            async with asyncio.timeout(self._timeout_s):
                inner = self._inner = self._inner or await self._open_inner()
                return await inner.rerank(model, query, texts)
        except TimeoutError:
            message = f"{FIELD}.url: the service took longer than {self._timeout_s * 1000:g} ms"
            raise RerankerUnavailable(f"{message}: lower candidates or raise timeoutMs") from None
        except RerankerUnavailable:
            raise
        except TransientError as exc:
            raise RerankerUnavailable(str(exc)) from exc
