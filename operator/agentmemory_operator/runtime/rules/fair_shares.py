"""Limits on shared resources: slots and event loop time per caller, transfer rates, token buckets.

Pure: time is an argument, in seconds of a monotonic clock.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from cachetools import LRUCache

# Divisor of the slots: an eighth of them is reserved for callers that have none.
RESERVE_DIVISOR = 8

HOUR_S = 3600.0
SHARED_KEY = ""
"""Key for a limiter that has only one bucket."""


def may_take_slot(own: int, in_use: int, limit: int) -> bool:
    """Return whether a caller may take another slot.

    It may if it has fewer slots than are free, not counting a reserve of an eighth of all slots. So a single caller
    gets seven sixteenths. A caller without a slot may also use the reserve: it always gets a slot while any is free.

    Args:
        own: Slots of this caller.
        in_use: Slots in use by all callers.
        limit: Number of slots.
    """
    free = limit - in_use
    return own < free - limit // RESERVE_DIVISOR or (own == 0 and free > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumRate:
    """Minimum transfer rate of a client.

    Attributes:
        bytes_s: Bytes per second.
        window_s: Seconds over which the rate is measured.
    """

    bytes_s: int = 1024
    window_s: float = 30.0

    @property
    def min_bytes(self) -> float:
        """Minimum number of bytes in one window."""
        return self.bytes_s * self.window_s


@dataclass(slots=True)
class RecentThroughput:
    """Recent throughput of a stream, as an exponentially decaying sum of bytes. Times count from the stream's start.

    Attributes:
        max_bytes: Upper limit of the sum in bytes before it decays: a burst does not count for long. A new stream
            starts with it.
        half_life_s: Half-life in seconds.
    """

    max_bytes: int = 1 << 18
    half_life_s: float = 5.0
    _level: float = math.inf
    _at_s: float = 0.0

    def add(self, received_bytes: int, now_s: float) -> None:
        """Add bytes that were received at `now_s`."""
        self._level, self._at_s = self.level(now_s) + received_bytes, now_s

    def level(self, now_s: float) -> float:
        """Return the decayed sum of bytes. The stream with the lowest sum is the slowest."""
        return min(self._level, self.max_bytes) * math.exp2((self._at_s - now_s) / self.half_life_s)


@dataclass(slots=True)
class StallDetector:
    """Detects a connection that sends its output too slowly. Call `is_too_slow` periodically.

    Attributes:
        since_s: Start of the current window. None while no output waits.
        unsent_bytes, sent_bytes: Unsent and sent bytes at the start of the window.
    """

    since_s: float | None = None
    unsent_bytes: int = 0
    sent_bytes: int = 0

    def is_too_slow(self, min_rate: MinimumRate, *, unsent_bytes: int, sent_bytes: int, now_s: float) -> bool:
        """Check the connection; return True if it sent too little during a complete window.

        Too little is less than the bytes that waited at the start of the window, and less than `min_rate.min_bytes`.

        Args:
            unsent_bytes: Bytes that wait to be sent.
            sent_bytes: Bytes sent since the connection was opened.
        """
        if not unsent_bytes:
            self.since_s = None
            return False
        if self.since_s is not None and now_s - self.since_s < min_rate.window_s:
            return False
        is_slow = self.since_s is not None and sent_bytes - self.sent_bytes < min(self.unsent_bytes, min_rate.min_bytes)
        self.since_s, self.unsent_bytes, self.sent_bytes = now_s, unsent_bytes, sent_bytes
        return is_slow


@dataclass(slots=True)
class LoopTimeShares:
    """Seconds of event loop time that each caller used, in the current and the previous window.

    Attributes:
        window_s: Minimum length of a window in seconds. The first call after that ends it.
        busy_share: Fraction of a window that all callers together must use before any caller counts as excessive.
    """

    window_s: float = 1.0
    busy_share: float = 0.5
    _since_s: float = 0.0
    _now: dict[Hashable, float] = field(default_factory=dict)
    _before: dict[Hashable, float] = field(default_factory=dict)
    _sum_before: float = 0.0

    def add(self, key: Hashable, used_s: float, now_s: float) -> None:
        """Add `used_s` seconds of event loop time to the use of a caller in the current window."""
        self._rotate(now_s)
        self._now[key] = self._now.get(key, 0.0) + used_s

    def has_exceeded_share(self, key: Hashable, now_s: float) -> bool:
        """Return whether the previous window was busy and the caller used more of it than the average caller."""
        self._rotate(now_s)
        is_busy = self._sum_before >= self.busy_share * self.window_s
        return is_busy and self._before.get(key, 0.0) * len(self._before) > self._sum_before

    def _rotate(self, now_s: float) -> None:
        elapsed_s = now_s - self._since_s
        if elapsed_s < self.window_s:
            return
        self._before = self._now if elapsed_s < 2 * self.window_s else {}
        self._sum_before = sum(self._before.values())
        self._now, self._since_s = {}, now_s


@dataclass(slots=True)
class TokenBuckets:
    """Token buckets by key.

    Attributes:
        burst: Capacity of a bucket.
        refill_s: Seconds until one token is added.
        max_keys: Maximum number of buckets; beyond it, the least recently used one is dropped, and is full if used
            again.
    """

    burst: int
    refill_s: float
    max_keys: int = 10_000
    _buckets: LRUCache[Hashable, tuple[float, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._buckets = LRUCache(self.max_keys)

    def take(self, key: Hashable, now_s: float) -> bool:
        """Take one token from the bucket of a key; return False if it is empty."""
        tokens, updated_s = self._buckets.get(key, (float(self.burst), now_s))
        tokens = min(float(self.burst), tokens + (now_s - updated_s) / self.refill_s)
        is_allowed = tokens >= 1.0
        self._buckets[key] = (tokens - 1.0 if is_allowed else tokens, now_s)
        return is_allowed


def hourly_bucket(limit: int, now_s: float) -> TokenBuckets:
    """Return a token bucket for at most `limit` calls in any hour, evenly spread. Its key is `SHARED_KEY`.

    It starts empty, so a restart grants no extra calls.
    """
    # Allow a burst of one second's calls, because shorter waits are inaccurate.
    burst = max(1, int(limit / HOUR_S))
    allowances = TokenBuckets(burst=burst, refill_s=HOUR_S / (limit - burst + 1))
    while allowances.take(SHARED_KEY, now_s):
        pass
    return allowances
