"""One hand on an alias at a time, within this process; of several processes one leads."""

import asyncio
from weakref import WeakValueDictionary


class AliasLocks:
    """Locks by slug: a pass that makes or deletes what an alias leads to, and a restore that moves it, take turns."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, slug: str) -> asyncio.Lock:
        """Return the lock of an agent's alias; held for moments, never for a copy's time."""
        lock = self._locks.get(slug)
        if lock is None:
            lock = self._locks[slug] = asyncio.Lock()
        return lock
