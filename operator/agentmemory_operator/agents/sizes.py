"""How many memories stand behind a user's filter: remembered for seconds, so that most searches need not count.

A count that is asked for again is renewed beside the search that asks, before it is too old, so that none waits for it.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.spec.access import is_shared

# How long a count may lag behind what other processes write; this process's own writes end it at once.
FRESH_S = 10.0
# How old one may be before it is renewed beside a search.
RENEWED_S = 7.0
MAX_USERS, MAX_FILTERS = 10_000, 100

Count = Callable[[], Awaitable[int]]


class Sizes:
    """Counts by user and filter, of one agent."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._counts: dict[str, dict[object, tuple[float, int]]] = {}
        self._marks: dict[str, object] = {}
        self._renewing: dict[tuple[str, object], asyncio.Task[None]] = {}

    async def get(self, user_id: str, filter_key: object, count: Count) -> int:
        """The count of this user and filter, as old as 10 s."""
        counted_s, size = self._counts.get(user_id, {}).get(filter_key, (float("-inf"), 0))
        age_s = self._monotonic() - counted_s
        if age_s >= FRESH_S:
            return await self._count(user_id, filter_key, count)
        if age_s >= RENEWED_S:
            self._renew(user_id, filter_key, count)
        return size

    async def _count(self, user_id: str, filter_key: object, count: Count) -> int:
        now_s = self._monotonic()
        of_user = self._counts.setdefault(user_id, {})
        if len(of_user) >= MAX_FILTERS:
            of_user.clear()
        size = await count()
        # Not where a write came between: `forget` has put this user's dictionary away.
        of_user[filter_key] = now_s, size
        if len(self._counts) > MAX_USERS:
            del self._counts[next(iter(self._counts))]
        return size

    def _renew(self, user_id: str, filter_key: object, count: Count) -> None:
        key = user_id, filter_key
        if key in self._renewing:
            return

        async def renew() -> None:
            # Whoever finds it too old counts himself, and tells what is wrong.
            with contextlib.suppress(AgentMemoryError):
                await self._count(user_id, filter_key, count)

        task = self._renewing[key] = asyncio.create_task(renew())
        task.add_done_callback(lambda _: self._renewing.pop(key))

    def mark(self, user_id: str) -> object:
        """What stays the same while this process writes nothing of the user or scope: to tell whether it did since."""
        if user_id not in self._marks and len(self._marks) >= MAX_USERS:
            del self._marks[next(iter(self._marks))]
        return self._marks.setdefault(user_id, object())

    def forget(self, user_id: str) -> None:
        """Count anew: a memory of this user was written or deleted; one of a scope counts for whoever includes it."""
        self._marks.pop(user_id, None)
        if is_shared(user_id):
            self._counts.clear()
        else:
            self._counts.pop(user_id, None)
