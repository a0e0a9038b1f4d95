"""Wrapping keys as one process knows them: read once for many data keys, and again where another one is wanted."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cachetools import LRUCache

from agentmemory_operator.errors import KeysUnavailable, SpecInvalid, TransientError
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.wrapping import WrappingKeys

log = logging.getLogger(__name__)

Reading = Callable[[], Awaitable[WrappingKeys]]

LOOK_AGAIN_MS = 1_000
"""Wrapping keys that are away, or not those wanted, are read again no more often."""

_RETRY_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class ReadKeys:
    """What a reading of an agent's wrapping keys came to, and when it began; None where they were away."""

    keys: WrappingKeys | None
    at_ms: int


class KnownWrapping:
    """Reads the wrapping keys of agents.

    Args:
        fresh_ms: for how long what was read is taken as it was.
        most: of how many agents they are remembered.
    """

    def __init__(self, clock: Clock, *, fresh_ms: int, most: int) -> None:
        self._clock, self._fresh_ms = clock, fresh_ms
        self._known: LRUCache[Ring, ReadKeys] = LRUCache(most)

    async def of(self, ring: Ring, read: Reading, wanted: str = "") -> tuple[WrappingKeys, int]:
        """The wrapping keys of an agent, and when they were read: again where they lack one, as after a rotation.

        Args:
            read: raises SpecInvalid or TransientError where there are none.
            wanted: fingerprint of the one that is asked for; empty asks for any.

        Raises:
            KeysUnavailable: they are away.
        """
        known = self._known.get(ring)
        has_wanted = known is not None and known.keys is not None and (not wanted or wanted in known.keys.fingerprints)
        relied_on_ms = self._fresh_ms if has_wanted else LOOK_AGAIN_MS
        if known is None or not 0 <= self._clock.now_ms() - known.at_ms < relied_on_ms:
            known = await self._read(ring, read)
        if known.keys is None:
            message = f"the wrapping key of agent {ring} is unavailable: see the object's condition KeysUnavailable"
            raise KeysUnavailable(message, retry_after_s=_RETRY_AFTER_S)
        return known.keys, known.at_ms

    async def _read(self, ring: Ring, read: Reading) -> ReadKeys:
        at_ms, keys = self._clock.now_ms(), None
        try:
            keys = await read()
        except (SpecInvalid, TransientError) as exc:
            log.warning("agent %s: %s", ring, exc)
        self._known[ring] = found = ReadKeys(keys, at_ms)
        return found
