"""How many memories stand behind a user's filter: remembered for seconds, so that most searches need not count."""

import time
from collections.abc import Awaitable, Callable

from agentmemory_operator.domain.scopes import is_shared

# How long a count may lag behind what other processes write; this process's own writes end it at once.
FRESH_S = 10.0
MAX_USERS, MAX_FILTERS = 10_000, 100

Count = Callable[[], Awaitable[int]]


class Sizes:
    """Counts by user and filter, of one agent."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._counts: dict[str, dict[object, tuple[float, int]]] = {}

    async def get(self, user_id: str, filter_key: object, count: Count) -> int:
        """Return the count of this user and filter, as old as 10 s."""
        now_s = self._monotonic()
        counted_s, size = self._counts.get(user_id, {}).get(filter_key, (float("-inf"), 0))
        if now_s - counted_s < FRESH_S:
            return size
        of_user = self._counts.setdefault(user_id, {})
        if len(of_user) >= MAX_FILTERS:
            of_user.clear()
        size = await count()
        # Not where a write came between: `forget` has put this user's dictionary away.
        of_user[filter_key] = now_s, size
        if len(self._counts) > MAX_USERS:
            del self._counts[next(iter(self._counts))]
        return size

    def forget(self, user_id: str) -> None:
        """Count anew: a memory of this user was written or deleted; one of a scope counts for whoever includes it."""
        if is_shared(user_id):
            self._counts.clear()
        else:
            self._counts.pop(user_id, None)
