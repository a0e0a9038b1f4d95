"""How often something may be done for each of many: a burst, then one at a time. Pure: the clock is an argument."""

from collections.abc import Hashable
from dataclasses import dataclass, field


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
