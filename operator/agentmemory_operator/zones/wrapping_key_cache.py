"""Cache of the wrapping keys of one process.

A fingerprint that is not cached causes a new read, as after a rotation.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cachetools import LRUCache

from agentmemory_operator.errors import KeysUnavailable, SpecInvalid, TransientError
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.wrapping_keys import WrappingKeys

log = logging.getLogger(__name__)

ReadWrapping = Callable[[], Awaitable[WrappingKeys]]

MIN_REREAD_MS = 1_000
"""Shortest time in milliseconds between two reads of wrapping keys that are unavailable or lack a fingerprint."""

_RETRY_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class CachedWrapping:
    """Result of a read of an agent's wrapping keys, and the start of that read in Unix milliseconds.

    `keys` is None if they were unavailable.
    """

    keys: WrappingKeys | None
    at_ms: int


class WrappingKeyCache:
    """Reads the wrapping keys of agents through a cache.

    Args:
        fresh_ms: Time in milliseconds for which cached keys are used.
        max_agents: Maximum number of cached agents.
    """

    def __init__(self, clock: Clock, *, fresh_ms: int, max_agents: int) -> None:
        self._clock, self._fresh_ms = clock, fresh_ms
        self._known: LRUCache[Ring, CachedWrapping] = LRUCache(max_agents)

    async def read(self, ring: Ring, read: ReadWrapping, needed: str = "") -> tuple[WrappingKeys, int]:
        """Return the wrapping keys of an agent, and the start of their read in Unix milliseconds.

        Args:
            read: Reads the keys; raises SpecInvalid or TransientError if there are none.
            needed: Fingerprint of the key that is needed. If the cached keys lack it, they are read again, at most once
                a second; the returned keys may still lack it. Empty if any key will do.

        Raises:
            KeysUnavailable: If the wrapping keys are unavailable.
        """
        entry = self._known.get(ring)
        has_needed = entry is not None and entry.keys is not None and (not needed or needed in entry.keys.fingerprints)
        max_age_ms = self._fresh_ms if has_needed else MIN_REREAD_MS
        if entry is None or not 0 <= self._clock.now_ms() - entry.at_ms < max_age_ms:
            entry = await self._read(ring, read)
        if entry.keys is None:
            message = f"the wrapping key of agent {ring} is unavailable: see the object's condition KeysUnavailable"
            raise KeysUnavailable(message, retry_after_s=_RETRY_AFTER_S)
        return entry.keys, entry.at_ms

    async def _read(self, ring: Ring, read: ReadWrapping) -> CachedWrapping:
        at_ms, keys = self._clock.now_ms(), None
        try:
            keys = await read()
        except (SpecInvalid, TransientError) as exc:
            log.warning("agent %s: %s", ring, exc)
        self._known[ring] = result = CachedWrapping(keys, at_ms)
        return result
