"""Shards as one process knows them: read once for many, looked at again by their version, bounded."""

import asyncio
import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakValueDictionary

from agentmemory_operator.errors import Conflict, KeysUnavailable, TransientError
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.zone_keys import KeyShards
from agentmemory_operator.runtime.tasks import update
from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.rules.shards import Shard

log = logging.getLogger(__name__)

Place = tuple[Ring, str]

ATTEMPTS = 8
"""Of a write that others are ahead of."""

_WAIT_S = 0.05
_RETRY_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a reading found.

    Attributes:
        turn: it began after whatever has a smaller one.
        at_ms: when it began.
        shard: None where it failed.
        trouble: why.
    """

    turn: int
    at_ms: int
    shard: Shard | None = None
    trouble: str = ""

    @property
    def found(self) -> Shard:
        """The shard.

        Raises:
            KeysUnavailable: the reading failed.
        """
        if self.shard is None:
            raise KeysUnavailable(self.trouble, retry_after_s=_RETRY_AFTER_S)
        return self.shard


class KnownShards:
    """Reads and changes shards.

    Args:
        fresh_ms: for how long what was read is taken as it was.
        most_keys: how many are remembered, of all shards together.
    """

    def __init__(self, store: KeyShards, clock: Clock, *, fresh_ms: int, most_keys: int) -> None:
        self._store, self._clock = store, clock
        self._fresh_ms, self._most_keys = fresh_ms, most_keys
        self._seen: OrderedDict[Place, _Seen] = OrderedDict()
        self._keys = 0
        self._turns = itertools.count()
        self._locks: WeakValueDictionary[Place, asyncio.Lock] = WeakValueDictionary()

    async def recent(self, ring: Ring, name: str) -> Shard:
        """A shard as it was at most `fresh_ms` ago.

        Raises:
            KeysUnavailable: the store is away.
        """
        place = ring, name
        seen = self._seen.get(place)
        if seen is not None and seen.shard is not None and 0 <= self._clock.now_ms() - seen.at_ms < self._fresh_ms:
            self._seen.move_to_end(place)
            return seen.shard
        return await self.now(ring, name)

    async def now(self, ring: Ring, name: str) -> Shard:
        """A shard as it was when this was called, or later; who asks at once shares a reading.

        Raises:
            KeysUnavailable: the store is away.
        """
        place, asked = (ring, name), next(self._turns)
        async with self._lock(place):
            seen = self._seen.get(place)
            if seen is None or seen.turn < asked:
                seen = await self._look(place)
        return seen.found

    async def change(self, ring: Ring, name: str, change: Callable[[Shard], Shard]) -> Shard:
        """Change a shard, as often as somebody else was ahead; return it as it then is.

        Args:
            change: makes what is wanted of what is there; what is equal is not written. It may be called again.

        Raises:
            KeysUnavailable: the store is away, and it may be changed or not; or others write all the time.
        """
        place = ring, name

        async def write(seen: _Seen) -> Shard | None:
            wanted = change(seen.found)
            if wanted == seen.found:
                return wanted
            with suppress(Conflict):
                return await self._write(place, wanted)
            return None

        message = f"key shard {name} of agent {ring} is being written concurrently"
        busy = KeysUnavailable(message, retry_after_s=_RETRY_AFTER_S)
        async with self._lock(place):
            return await update(partial(self._look, place), write, busy=busy, max_attempts=ATTEMPTS, wait_s=_WAIT_S)

    async def _write(self, place: Place, wanted: Shard) -> Shard:
        turn, at_ms = next(self._turns), self._clock.now_ms()
        try:
            version = await self._store.write(wanted)
        except Conflict:
            raise
        except TransientError as exc:
            self._forget(place)
            log.warning("agent %s: cannot write key shard %s: %s", *place, exc)
            message = f"the keys of agent {place[0]} cannot be written at the moment"
            raise KeysUnavailable(message, retry_after_s=exc.retry_after_s or _RETRY_AFTER_S) from exc
        written = replace(wanted, version=version)
        self._keep(place, _Seen(turn, at_ms, written))
        return written

    async def _look(self, place: Place) -> _Seen:
        """Read a shard, its version alone where it is known; what fails is remembered for those who wait for it too."""
        turn, at_ms, before = next(self._turns), self._clock.now_ms(), self._seen.get(place)
        known = before.shard if before else None
        try:
            is_same = known is not None and await self._store.version(*place) == known.version
            seen = _Seen(turn, at_ms, known if is_same else await self._store.read(*place))
        except TransientError as exc:
            log.warning("agent %s: cannot read key shard %s: %s", *place, exc)
            seen = _Seen(turn, at_ms, trouble=f"the keys of agent {place[0]} are not available at the moment")
        self._keep(place, seen)
        return seen

    def _keep(self, place: Place, seen: _Seen) -> None:
        self._forget(place)
        self._seen[place] = seen
        self._keys += _size_of(seen)
        while self._keys > self._most_keys and len(self._seen) > 1:
            self._forget(next(iter(self._seen)))

    def _forget(self, place: Place) -> None:
        if (seen := self._seen.pop(place, None)) is not None:
            self._keys -= _size_of(seen)

    def _lock(self, place: Place) -> asyncio.Lock:
        # Whoever holds it keeps it there.
        return self._locks.setdefault(place, asyncio.Lock())


def _size_of(seen: _Seen) -> int:
    """The keys of a shard; one without any takes room too."""
    return 1 + (len(seen.shard.entries) if seen.shard else 0)
