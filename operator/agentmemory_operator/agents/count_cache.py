"""Cache the number of memories that match a user's filter, so that most searches need no count in Qdrant.

A search that uses a count older than `RENEW_AFTER_S` renews it in the background and does not wait. When this process
stores memories, it adds their number to the cached count of all memories of their user. So a search of all of them
needs no count in Qdrant right after a write. The user's other counts are discarded.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from cachetools import FIFOCache

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.spec.caller_rights import is_shared

# Seconds for which a count is valid. Until then, writes of other processes may be missing from the count. A write of
# this process updates or discards it immediately.
MAX_AGE_S = 10.0
# Age in seconds from which a search that uses a count renews it in the background.
RENEW_AFTER_S = 7.0
MAX_USERS, MAX_FILTERS = 10_000, 100

Count = Callable[[], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class _Counted:
    """Cached result of a count.

    Attributes:
        requested_s, received_s: Monotonic times at which the count was requested and received.
        size: Number of memories: the result of the count, plus those that this process has stored since.
        is_whole: True if the filter selects all of a user's memories, independent of their fields.
    """

    requested_s: float
    received_s: float
    size: int
    is_whole: bool


class CountCache:
    """Cached counts of one agent, by user and filter.

    Args:
        monotonic: Monotonic clock, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.now_s = monotonic
        self._counts: FIFOCache[str, dict[object, _Counted]] = FIFOCache(MAX_USERS)
        self._marks: FIFOCache[str, object] = FIFOCache(MAX_USERS)
        self._renewing: dict[tuple[str, object], asyncio.Task[None]] = {}

    async def get(self, user_id: str, filter_key: object, count: Count, *, is_whole: bool = False) -> int:
        """Return a count that is less than 10 s old, plus the memories that this process has added since.

        Errors of `count` pass through.

        Args:
            count: Counts in Qdrant.
            is_whole: True if the filter selects all of the user's memories; see `add_stored`.
        """
        cached = self._counts.get(user_id, {}).get(filter_key)
        age_s = self.now_s() - cached.requested_s if cached else MAX_AGE_S
        if cached is None or age_s >= MAX_AGE_S:
            return await self._count(user_id, filter_key, count, is_whole=is_whole)
        if age_s >= RENEW_AFTER_S:
            self._renew(user_id, filter_key, count, is_whole=is_whole)
        return cached.size

    async def _count(self, user_id: str, filter_key: object, count: Count, *, is_whole: bool) -> int:
        started_s = self.now_s()
        user_counts = self._counts.setdefault(user_id, {})
        if len(user_counts) >= MAX_FILTERS:
            user_counts.clear()
        size = await count()
        # If the user's memories were written during the count, `user_counts` is no longer in the cache and this has no
        # effect.
        user_counts[filter_key] = _Counted(started_s, self.now_s(), size, is_whole)
        return size

    def _renew(self, user_id: str, filter_key: object, count: Count, *, is_whole: bool) -> None:
        key = user_id, filter_key
        if key in self._renewing:
            return

        async def renew() -> None:
            # Ignore errors: a caller that finds the count expired repeats the count and gets its error.
            with contextlib.suppress(AgentMemoryError):
                await self._count(user_id, filter_key, count, is_whole=is_whole)

        task = self._renewing[key] = asyncio.create_task(renew())
        task.add_done_callback(lambda _: self._renewing.pop(key))

    def write_marker(self, user_id: str) -> object:
        """Return the current marker of a user or shared scope. Each write of this process to its memories replaces it.

        Callers compare markers by identity. A marker is also replaced after `MAX_USERS` others were added.
        """
        return self._marks.setdefault(user_id, object())

    def add_stored(self, user_id: str, number: int, *, since_s: float) -> None:
        """Add stored memories to the user's counts with `is_whole`, and discard the user's other counts.

        A count that may already include some of them is discarded as well. So a count is never lower than the number of
        memories that this process has written. Writes to a shared scope discard the counts of all users.

        Args:
            number: Number of new memories; 0 if all existed already.
            since_s: `now_s` before the first of them was sent.
        """
        self._marks.pop(user_id, None)
        if is_shared(user_id):
            self._counts.clear()
            return
        old_counts = self._counts.pop(user_id, {})
        remaining = {
            key: replace(counted, size=counted.size + number)
            for key, counted in old_counts.items()
            if counted.is_whole and counted.received_s < since_s
        }
        if remaining:
            self._counts[user_id] = remaining

    def forget(self, user_id: str) -> None:
        """Discard the counts of a user whose memory changed. For a shared scope, discard the counts of all users."""
        self._marks.pop(user_id, None)
        if is_shared(user_id):
            self._counts.clear()
        else:
            self._counts.pop(user_id, None)
