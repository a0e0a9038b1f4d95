"""How many memories stand behind a user's filter: remembered for seconds, so that most searches need not count.

A count that is asked for again is renewed beside the search that asks, before it is too old, so that none waits for it.
What this process stores is added to it, so that a search right after a store need not wait either.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from cachetools import FIFOCache

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.spec.access import is_shared

# How long a count may lag behind what other processes write; what this process stores is added at once.
FRESH_S = 10.0
# How old one may be before it is renewed beside a search.
RENEWED_S = 7.0
MAX_USERS, MAX_FILTERS = 10_000, 100

Count = Callable[[], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class _Counted:
    """A count.

    Attributes:
        begun_s, ended_s: when the engine was asked, and when it had answered.
        is_whole: the filter narrows a user's memories by nothing that depends on the memory.
    """

    begun_s: float
    ended_s: float
    size: int
    is_whole: bool


class Sizes:
    """Counts by user and filter, of one agent."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.now_s = monotonic
        self._counts: FIFOCache[str, dict[object, _Counted]] = FIFOCache(MAX_USERS)
        self._marks: FIFOCache[str, object] = FIFOCache(MAX_USERS)
        self._renewing: dict[tuple[str, object], asyncio.Task[None]] = {}

    async def get(self, user_id: str, filter_key: object, count: Count, *, is_whole: bool = False) -> int:
        """The count of this user and filter, as old as 10 s, with what was added since.

        Args:
            is_whole: see `added`.
        """
        counted = self._counts.get(user_id, {}).get(filter_key)
        age_s = self.now_s() - counted.begun_s if counted else FRESH_S
        if counted is None or age_s >= FRESH_S:
            return await self._count(user_id, filter_key, count, is_whole=is_whole)
        if age_s >= RENEWED_S:
            self._renew(user_id, filter_key, count, is_whole=is_whole)
        return counted.size

    async def _count(self, user_id: str, filter_key: object, count: Count, *, is_whole: bool) -> int:
        begun_s = self.now_s()
        of_user = self._counts.setdefault(user_id, {})
        if len(of_user) >= MAX_FILTERS:
            of_user.clear()
        size = await count()
        # Not where a write came between: that has put this user's dictionary away.
        of_user[filter_key] = _Counted(begun_s, self.now_s(), size, is_whole)
        return size

    def _renew(self, user_id: str, filter_key: object, count: Count, *, is_whole: bool) -> None:
        key = user_id, filter_key
        if key in self._renewing:
            return

        async def renew() -> None:
            # Whoever finds it too old counts himself, and tells what is wrong.
            with contextlib.suppress(AgentMemoryError):
                await self._count(user_id, filter_key, count, is_whole=is_whole)

        task = self._renewing[key] = asyncio.create_task(renew())
        task.add_done_callback(lambda _: self._renewing.pop(key))

    def mark(self, user_id: str) -> object:
        """What stays the same while this process writes nothing of the user or scope: to tell whether it did since."""
        return self._marks.setdefault(user_id, object())

    def added(self, user_id: str, number: int, *, since_s: float) -> None:
        """Note that memories were stored which every whole filter lets through; other counts are made again.

        A count is never less than what this process has written: one that may have seen some of them is made again too.

        Args:
            number: how many; 0 where what was said is there already.
            since_s: `now_s` before the first was sent.
        """
        self._marks.pop(user_id, None)
        if is_shared(user_id):
            self._counts.clear()
            return
        before = self._counts.pop(user_id, {})
        kept = {
            key: replace(counted, size=counted.size + number)
            for key, counted in before.items()
            if counted.is_whole and counted.ended_s < since_s
        }
        if kept:
            self._counts[user_id] = kept

    def forget(self, user_id: str) -> None:
        """Count anew: a memory of this user was changed or deleted; one of a scope counts for whoever includes it."""
        self._marks.pop(user_id, None)
        if is_shared(user_id):
            self._counts.clear()
        else:
            self._counts.pop(user_id, None)
