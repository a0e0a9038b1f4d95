"""Cache the results of token reviews, because a review for each request would cost more than a search.

The caches are bounded and store hashes of tokens, not tokens. Rejected tokens have a cache of their own, so that
guessing tokens evicts no valid ones.
"""

import asyncio
import hashlib
import math
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from cachetools import FIFOCache

from agentmemory_operator.errors import Unauthenticated
from agentmemory_operator.ports.access import TokenReviews
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.spec.caller_rights import Caller, TokenReviewResult

# Maximum seconds for which results are cached, accepted tokens at most until they expire. A token that was revoked, or
# whose ServiceAccount or pod was deleted, is still accepted for up to ACCEPTED_TTL_S.
ACCEPTED_TTL_S = 30.0
REJECTED_TTL_S = 10.0
# Seconds before an acceptance expires from which `find_cached` renews it in the background. Renewals have their own
# semaphore, so they do not queue behind reviews of unknown callers.
RENEW_BEFORE_S = 10.0
MAX_ENTRIES = 10_000
MAX_CONCURRENT_REVIEWS = 16
MAX_CONCURRENT_RENEWALS = 16

Digest = bytes


@dataclass(slots=True)
class CallerCache:
    """Identifies the callers of tokens: from two bounded caches, otherwise by a review.

    Attributes:
        reviews: Reviews tokens at the Kubernetes API server.
        max_entries: Size of each of the two caches, of accepted and of rejected tokens.
    """

    reviews: TokenReviews
    clock: Clock
    max_entries: int = MAX_ENTRIES
    _known: FIFOCache[Digest, tuple[float, TokenReviewResult]] = field(init=False)
    _refused: FIFOCache[Digest, tuple[float, TokenReviewResult]] = field(init=False)
    _in_flight: dict[Digest, asyncio.Task[TokenReviewResult]] = field(default_factory=dict)
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_REVIEWS))
    _renewals: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_RENEWALS))

    def __post_init__(self) -> None:
        self._known, self._refused = FIFOCache(self.max_entries), FIFOCache(self.max_entries)

    async def identify(self, token: str) -> Caller:
        """Return the caller of a token, from the cache or by a review.

        Raises:
            Unauthenticated: If the token is invalid.
            TransientError: If it cannot be reviewed now.
        """
        digest = _digest(token)
        return _caller(self._cached(digest) or await self._review(digest, token))

    def find_cached(self, token: str) -> Caller | None:
        """Return the caller of a token from the cache, without I/O; None if it is not cached.

        If a cached acceptance expires within RENEW_BEFORE_S, start a review in the background.

        Raises:
            Unauthenticated: If the token is cached as invalid.
        """
        digest = _digest(token)
        reviewed = self._cached(digest)
        if reviewed is None:
            return None
        if self._is_due(digest) and digest not in self._in_flight:
            self._start_review(digest, self._call_review(digest, token, self._renewals))
        return _caller(reviewed)

    def _is_due(self, digest: Digest) -> bool:
        """Return whether a cached acceptance should be renewed. False if the token itself expires at the same time."""
        expires_s, reviewed = self._known.get(digest, (math.inf, None))
        return expires_s - self._now_s() <= RENEW_BEFORE_S and (reviewed is None or expires_s != reviewed.expires_at_s)

    def _cached(self, digest: Digest) -> TokenReviewResult | None:
        for entries in (self._known, self._refused):
            expires_at_s, reviewed = entries.get(digest, (0.0, None))
            if reviewed is not None and self._now_s() < expires_at_s:
                return reviewed
        return None

    async def _review(self, digest: Digest, token: str) -> TokenReviewResult:
        """Review a token. Concurrent requests with the same token share one review."""
        task = self._in_flight.get(digest)
        if task is None:
            task = self._start_review(digest, self._call_review(digest, token, self._gate))
        return await asyncio.shield(task)

    def _start_review(
        self, digest: Digest, review: Coroutine[Any, Any, TokenReviewResult]
    ) -> asyncio.Task[TokenReviewResult]:
        task = self._in_flight[digest] = asyncio.create_task(review)
        task.add_done_callback(lambda finished: self._forget(digest, finished))
        return task

    def _forget(self, digest: Digest, task: asyncio.Task[TokenReviewResult]) -> None:
        del self._in_flight[digest]
        if not task.cancelled():
            task.exception()  # or asyncio logs it if every waiter was cancelled

    async def _call_review(self, digest: Digest, token: str, semaphore: asyncio.Semaphore) -> TokenReviewResult:
        async with semaphore:
            reviewed = await self.reviews.review(token)
        entries, ttl_s = (self._known, ACCEPTED_TTL_S) if reviewed.caller else (self._refused, REJECTED_TTL_S)
        expires_at_s = self._now_s() + ttl_s
        if reviewed.caller and reviewed.expires_at_s is not None:
            expires_at_s = min(expires_at_s, reviewed.expires_at_s)
        self._known.pop(digest, None)
        self._refused.pop(digest, None)
        entries[digest] = expires_at_s, reviewed
        return reviewed

    def _now_s(self) -> float:
        return self.clock.now_ms() / 1000


def _digest(token: str) -> Digest:
    return hashlib.sha256(token.encode()).digest()


def _caller(reviewed: TokenReviewResult) -> Caller:
    """Return the caller of a review.

    Raises:
        Unauthenticated: If the token was rejected.
    """
    if reviewed.caller is None:
        raise Unauthenticated(reviewed.refusal)
    return reviewed.caller
