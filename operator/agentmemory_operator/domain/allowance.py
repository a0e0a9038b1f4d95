"""How often something may be done for each of many: a burst, then one at a time. Pure: the clock is an argument."""

from collections.abc import Hashable
from dataclasses import dataclass, field

HOUR_S = 3600.0
WHOLE = ""
"""The key where there is nothing to tell apart."""


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
    _left: dict[Hashable, tuple[float, float]] = field(default_factory=dict)

    def take(self, key: Hashable, now_s: float) -> bool:
        """Take one of the key's; tell whether there was one."""
        left, then_s = self._left.pop(key, (float(self.burst), now_s))
        left = min(float(self.burst), left + (now_s - then_s) / self.refill_s)
        is_allowed = left >= 1.0
        self._left[key] = (left - 1.0 if is_allowed else left, now_s)
        if len(self._left) > self.most_keys:
            del self._left[next(iter(self._left))]
        return is_allowed


def hourly(most: int, now_s: float) -> Allowances:
    """Return what lets so many be taken in any hour, spread over it: of `WHOLE`, and none at first.

    So whoever is killed and begins anew takes no more than if he had gone on.
    """
    # A second's worth at once: waits of less are not exact.
    burst = max(1, int(most / HOUR_S))
    allowances = Allowances(burst=burst, refill_s=HOUR_S / (most - burst + 1))
    while allowances.take(WHOLE, now_s):
        pass
    return allowances
