"""Cache of key shards of one process.

Concurrent readers share a read. Before a cached shard is read again, its version is compared with the stored one.
"""

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
from agentmemory_operator.ports.key_shards import KeyShards
from agentmemory_operator.runtime.tasks import update
from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.rules.shards import Shard

log = logging.getLogger(__name__)

Place = tuple[Ring, str]

MAX_WRITE_ATTEMPTS = 8
"""Maximum number of attempts to write a shard that other processes write too."""

_WAIT_S = 0.05
_RETRY_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class _ReadResult:
    """Result of one read or write of a shard.

    Attributes:
        number: Sequence number, taken when the read or write starts. A caller may use a result with a higher number
            than its own.
        at_ms: Start of the read or write, Unix milliseconds.
        shard: None if the read failed.
        error_message: Error message if the read failed.
    """

    number: int
    at_ms: int
    shard: Shard | None = None
    error_message: str = ""

    @property
    def checked_shard(self) -> Shard:
        """The shard that was read or written.

        Raises:
            KeysUnavailable: If the read failed.
        """
        if self.shard is None:
            raise KeysUnavailable(self.error_message, retry_after_s=_RETRY_AFTER_S)
        return self.shard


class ShardCache:
    """Reads shards through a cache, and changes them by compare-and-set.

    Args:
        fresh_ms: Time in milliseconds for which a cached shard is used.
        max_keys: Maximum number of cached keys, in all shards together.
    """

    def __init__(self, store: KeyShards, clock: Clock, *, fresh_ms: int, max_keys: int) -> None:
        self._store, self._clock = store, clock
        self._fresh_ms, self._max_keys = fresh_ms, max_keys
        self._results: OrderedDict[Place, _ReadResult] = OrderedDict()
        self._keys = 0
        self._sequence = itertools.count()
        self._locks: WeakValueDictionary[Place, asyncio.Lock] = WeakValueDictionary()

    async def read_cached(self, ring: Ring, name: str) -> Shard:
        """Return a shard that this process read or wrote less than `fresh_ms` ago; read it now if there is none.

        Raises:
            KeysUnavailable: If the key store is unavailable, or the stored shard is damaged.
        """
        shard_id = ring, name
        last = self._results.get(shard_id)
        if last is not None and last.shard is not None and 0 <= self._clock.now_ms() - last.at_ms < self._fresh_ms:
            self._results.move_to_end(shard_id)
            return last.shard
        return await self.read_now(ring, name)

    async def read_now(self, ring: Ring, name: str) -> Shard:
        """Return a shard by a read that starts no earlier than this call. Concurrent callers share a read.

        Raises:
            KeysUnavailable: If the key store is unavailable, or the stored shard is damaged.
        """
        shard_id, call_sequence = (ring, name), next(self._sequence)
        async with self._lock(shard_id):
            result = self._results.get(shard_id)
            if result is None or result.number < call_sequence:
                result = await self._read(shard_id)
        return result.checked_shard

    async def change(self, ring: Ring, name: str, change: Callable[[Shard], Shard]) -> Shard:
        """Change a shard by compare-and-set; return it as stored.

        If another process was faster, the change is applied again.

        Args:
            change: Returns the changed shard. An equal shard is not written. It may be called several times.

        Raises:
            KeysUnavailable: If the key store is unavailable, and the shard may have been changed; if the stored shard
                is damaged; or if other processes were faster in every attempt.
        """
        shard_id = ring, name

        async def write(result: _ReadResult) -> Shard | None:
            changed = change(result.checked_shard)
            if changed == result.checked_shard:
                return changed
            with suppress(Conflict):
                return await self._write(shard_id, changed)
            return None

        message = f"key shard {name} of agent {ring} is being written concurrently"
        busy = KeysUnavailable(message, retry_after_s=_RETRY_AFTER_S)
        async with self._lock(shard_id):
            return await update(
                partial(self._read, shard_id), write, busy=busy, max_attempts=MAX_WRITE_ATTEMPTS, wait_s=_WAIT_S
            )

    async def _write(self, shard_id: Place, shard: Shard) -> Shard:
        sequence, at_ms = next(self._sequence), self._clock.now_ms()
        try:
            version = await self._store.write(shard)
        except Conflict:
            raise
        except TransientError as exc:
            self._forget(shard_id)
            log.warning("agent %s: cannot write key shard %s: %s", *shard_id, exc)
            message = f"the keys of agent {shard_id[0]} cannot be written at the moment"
            raise KeysUnavailable(message, retry_after_s=exc.retry_after_s or _RETRY_AFTER_S) from exc
        written = replace(shard, version=version)
        self._keep(shard_id, _ReadResult(sequence, at_ms, written))
        return written

    async def _read(self, shard: Place) -> _ReadResult:
        """Read a shard, or only its version if it is cached.

        An error is stored as the result, for the callers that wait for it.
        """
        number, at_ms, last = next(self._sequence), self._clock.now_ms(), self._results.get(shard)
        cached = last.shard if last else None
        try:
            is_same = cached is not None and await self._store.version(*shard) == cached.version
            result = _ReadResult(number, at_ms, cached if is_same else await self._store.read(*shard))
        except TransientError as exc:
            log.warning("agent %s: cannot read key shard %s: %s", *shard, exc)
            result = _ReadResult(
                number, at_ms, error_message=f"the keys of agent {shard[0]} are not available at the moment"
            )
        self._keep(shard, result)
        return result

    def _keep(self, shard_id: Place, result: _ReadResult) -> None:
        self._forget(shard_id)
        self._results[shard_id] = result
        self._keys += _size_of(result)
        while self._keys > self._max_keys and len(self._results) > 1:
            self._forget(next(iter(self._results)))

    def _forget(self, shard_id: Place) -> None:
        if (result := self._results.pop(shard_id, None)) is not None:
            self._keys -= _size_of(result)

    def _lock(self, shard_id: Place) -> asyncio.Lock:
        # Return a lock of the weak dictionary, in which it stays while a task uses it.
        return self._locks.setdefault(shard_id, asyncio.Lock())


def _size_of(result: _ReadResult) -> int:
    """Return the number of keys of a shard, plus 1 for the cache entry itself."""
    return 1 + (len(result.shard.entries) if result.shard else 0)
