"""Who a token belongs to, remembered for a while: a review of each request would cost more than its search.

The memory is bounded and knows no token, only its hash. What is refused is remembered apart, so that somebody who
tries tokens pushes nobody out.
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
from agentmemory_operator.spec.access import Caller, Reviewed

# A token that was revoked, its ServiceAccount or its pod deleted, works as long.
KNOWN_S = 30.0
REFUSED_S = 10.0
# So long before that it is reviewed again, if it is used: who is known waits behind nobody who is not.
RENEWED_S = 10.0
MOST_ENTRIES = 10_000
REVIEWS_AT_ONCE = 16
RENEWALS_AT_ONCE = 16

Digest = bytes


@dataclass(slots=True)
class Callers:
    """Callers by token.

    Attributes:
        most_entries: of tokens that are known, and as many of those that are refused.
    """

    reviews: TokenReviews
    clock: Clock
    most_entries: int = MOST_ENTRIES
    _known: FIFOCache[Digest, tuple[float, Reviewed]] = field(init=False)
    _refused: FIFOCache[Digest, tuple[float, Reviewed]] = field(init=False)
    _under_way: dict[Digest, asyncio.Task[Reviewed]] = field(default_factory=dict)
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(REVIEWS_AT_ONCE))
    _renewals: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(RENEWALS_AT_ONCE))

    def __post_init__(self) -> None:
        self._known, self._refused = FIFOCache(self.most_entries), FIFOCache(self.most_entries)

    async def identify(self, token: str) -> Caller:
        """Whose token it is.

        Raises:
            Unauthenticated: nobody's, or not any more.
            TransientError: it cannot be found out for now.
        """
        digest = _digest(token)
        return _caller(self._remembered(digest) or await self._review(digest, token))

    def known(self, token: str) -> Caller | None:
        """Whose token it is where that is remembered.

        Raises:
            Unauthenticated: nobody's, as is remembered.
        """
        digest = _digest(token)
        reviewed = self._remembered(digest)
        if reviewed is None:
            return None
        if self._is_due(digest) and digest not in self._under_way:
            self._begin(digest, self._ask(digest, token, self._renewals))
        return _caller(reviewed)

    def _is_due(self, digest: Digest) -> bool:
        """Whether a token that is known should be reviewed again; one that ends then need not."""
        until_s, reviewed = self._known.get(digest, (math.inf, None))
        return until_s - self._now_s() <= RENEWED_S and (reviewed is None or until_s != reviewed.expires_at_s)

    def _remembered(self, digest: Digest) -> Reviewed | None:
        for entries in (self._known, self._refused):
            until_s, reviewed = entries.get(digest, (0.0, None))
            if reviewed is not None and self._now_s() < until_s:
                return reviewed
        return None

    async def _review(self, digest: Digest, token: str) -> Reviewed:
        """Ask, once for all requests that bring the token meanwhile."""
        task = self._under_way.get(digest)
        if task is None:
            task = self._begin(digest, self._ask(digest, token, self._gate))
        return await asyncio.shield(task)

    def _begin(self, digest: Digest, asking: Coroutine[Any, Any, Reviewed]) -> asyncio.Task[Reviewed]:
        task = self._under_way[digest] = asyncio.create_task(asking)
        task.add_done_callback(lambda done: self._forget(digest, done))
        return task

    def _forget(self, digest: Digest, done: asyncio.Task[Reviewed]) -> None:
        del self._under_way[digest]
        if not done.cancelled():
            done.exception()  # those who wait are told; nobody may be left who does

    async def _ask(self, digest: Digest, token: str, gate: asyncio.Semaphore) -> Reviewed:
        async with gate:
            reviewed = await self.reviews.review(token)
        entries, for_s = (self._known, KNOWN_S) if reviewed.caller else (self._refused, REFUSED_S)
        until_s = self._now_s() + for_s
        if reviewed.caller and reviewed.expires_at_s is not None:
            until_s = min(until_s, reviewed.expires_at_s)
        self._known.pop(digest, None)
        self._refused.pop(digest, None)
        entries[digest] = until_s, reviewed
        return reviewed

    def _now_s(self) -> float:
        return self.clock.now_ms() / 1000


def _digest(token: str) -> Digest:
    return hashlib.sha256(token.encode()).digest()


def _caller(reviewed: Reviewed) -> Caller:
    """Whose token was reviewed.

    Raises:
        Unauthenticated: nobody's.
    """
    if reviewed.caller is None:
        raise Unauthenticated(reviewed.refusal)
    return reviewed.caller
