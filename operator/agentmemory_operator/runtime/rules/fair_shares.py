"""Who may have how much of what many share, and how often. Pure: the clock is an argument."""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from cachetools import LRUCache

# Of all places, those that only a caller takes who has none.
KEPT_PART = 8

HOUR_S = 3600.0
WHOLE = ""
"""The key where there is nothing to tell apart."""


def has_place(mine: int, all_: int, most: int) -> bool:
    """Whether one may take another place: it may have as many as are free, but for an eighth of all.

    So one alone has seven sixteenths, and however greedy some are, whoever comes new finds a place.
    """
    free = most - all_
    return mine < free - most // KEPT_PART or (mine == 0 and free > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How slow may be what somebody sends or reads.

    Attributes:
        bytes_s: a second, at least.
        window_s: over which that is judged.
    """

    bytes_s: int = 1024
    window_s: float = 30.0

    @property
    def least_bytes(self) -> float:
        """Bytes in a window, at least."""
        return self.bytes_s * self.window_s


@dataclass(slots=True)
class Flow:
    """How lively bytes come of late: what came long ago, and more at once than anybody needs, counts for nothing.

    Attributes:
        most: bytes; whoever begins has as many.
        half_s: in which half of it is forgotten.
    """

    most: int = 1 << 18
    half_s: float = 5.0
    _level: float = math.inf
    _at_s: float = 0.0

    def add(self, came: int, now_s: float) -> None:
        """Count bytes that came."""
        self._level, self._at_s = self.level(now_s) + came, now_s

    def level(self, now_s: float) -> float:
        """How lively it is: the least is the slowest."""
        return min(self._level, self.most) * math.exp2((self._at_s - now_s) / self.half_s)


@dataclass(slots=True)
class Leaving:
    """What leaves a connection, looked at now and then.

    Attributes:
        since_s: beginning of the window; None while nothing waits to leave.
        waiting, left: bytes, at that moment.
    """

    since_s: float | None = None
    waiting: int = 0
    left: int = 0

    def is_too_slow(self, pace: Pace, *, waiting: int, left: int, now_s: float) -> bool:
        """Look; tell whether neither what waited in the beginning has left in a window, nor enough.

        Args:
            waiting: bytes that wait to leave.
            left: that have left ever.
        """
        if not waiting:
            self.since_s = None
            return False
        if self.since_s is not None and now_s - self.since_s < pace.window_s:
            return False
        is_slow = self.since_s is not None and left - self.left < min(self.waiting, pace.least_bytes)
        self.since_s, self.waiting, self.left = now_s, waiting, left
        return is_slow


@dataclass(slots=True)
class TimeShares:
    """Seconds of the process that each caller took, in the window before this one.

    Attributes:
        busy_share: of a window that all together have to take before anybody takes too much.
    """

    window_s: float = 1.0
    busy_share: float = 0.5
    _since_s: float = 0.0
    _now: dict[Hashable, float] = field(default_factory=dict)
    _before: dict[Hashable, float] = field(default_factory=dict)
    _sum_before: float = 0.0

    def add(self, key: Hashable, took_s: float, now_s: float) -> None:
        """Count what somebody took."""
        self._turn(now_s)
        self._now[key] = self._now.get(key, 0.0) + took_s

    def takes_too_much(self, key: Hashable, now_s: float) -> bool:
        """Whether the process is busy, and one of several takes more than an equal part."""
        self._turn(now_s)
        is_busy = self._sum_before >= self.busy_share * self.window_s
        return is_busy and self._before.get(key, 0.0) * len(self._before) > self._sum_before

    def _turn(self, now_s: float) -> None:
        past_s = now_s - self._since_s
        if past_s < self.window_s:
            return
        self._before = self._now if past_s < 2 * self.window_s else {}
        self._sum_before = sum(self._before.values())
        self._now, self._since_s = {}, now_s


@dataclass(slots=True)
class Allowances:
    """Token buckets by key.

    Attributes:
        burst: how often at once.
        refill_s: seconds until one more.
        most_keys: of more, the one that was asked about longest ago is forgotten.
    """

    burst: int
    refill_s: float
    most_keys: int = 10_000
    _left: LRUCache[Hashable, tuple[float, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._left = LRUCache(self.most_keys)

    def take(self, key: Hashable, now_s: float) -> bool:
        """Take one of the key's; tell whether there was one."""
        left, then_s = self._left.get(key, (float(self.burst), now_s))
        left = min(float(self.burst), left + (now_s - then_s) / self.refill_s)
        is_allowed = left >= 1.0
        self._left[key] = (left - 1.0 if is_allowed else left, now_s)
        return is_allowed


def hourly(most: int, now_s: float) -> Allowances:
    """What lets so many be taken in any hour, spread over it: of `WHOLE`, and none at first.

    So whoever is killed and begins anew takes no more than if he had gone on.
    """
    # A second's worth at once: waits of less are not exact.
    burst = max(1, int(most / HOUR_S))
    allowances = Allowances(burst=burst, refill_s=HOUR_S / (most - burst + 1))
    while allowances.take(WHOLE, now_s):
        pass
    return allowances
