"""Interval arithmetic: bounds of the value of an expression."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

# Largest safe number. Larger ones may overflow in the sums that a comparison is compiled to.
MAX_SAFE_MAGNITUDE = 1e300


@dataclass(frozen=True, slots=True)
class Interval:
    """Closed interval from `low` to `high`. Infinite ends are unknown bounds."""

    low: float
    high: float

    @classmethod
    def enclosing(cls, values: Iterable[float]) -> Self:
        """Return the smallest interval that contains the values. It is unbounded if one is NaN. Needs a value."""
        numbers = list(values)
        return cls(-math.inf, math.inf) if any(map(math.isnan, numbers)) else cls(min(numbers), max(numbers))

    @property
    def is_finite(self) -> bool:
        """True if all numbers of the interval are within ±1e300, so that sums of a few of them cannot overflow."""
        return self.low >= -MAX_SAFE_MAGNITUDE and self.high <= MAX_SAFE_MAGNITUDE

    def union(self, other: "Interval") -> "Interval":
        """Return the smallest interval that contains both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))

    def plus(self, other: "Interval") -> "Interval":
        """Return the bounds of a sum."""
        return Interval.enclosing((self.low + other.low, self.high + other.high))

    def times(self, other: "Interval") -> "Interval":
        """Return the bounds of a product."""
        return Interval.enclosing(a * b for a in (self.low, self.high) for b in (other.low, other.high))

    def divided_by(self, divisor: "Interval") -> "Interval":
        """Return the bounds of a quotient, unbounded if the divisor may be 0."""
        if divisor.low <= 0 <= divisor.high:
            return UNBOUNDED
        return Interval.enclosing(a / b for a in (self.low, self.high) for b in (divisor.low, divisor.high))

    def mapped(self, function: Callable[[float], float]) -> "Interval":
        """Return the bounds of a monotonic function, unbounded if it is undefined or overflows at an end."""
        try:
            return Interval.enclosing(function(end) for end in (self.low, self.high))
        except (ValueError, OverflowError):
            return UNBOUNDED

    def magnitude(self) -> "Interval":
        """Return the bounds of the absolute value."""
        ends = abs(self.low), abs(self.high)
        return Interval(0.0 if self.low <= 0 <= self.high else min(ends), max(ends))

    def power(self, exponent: "Interval") -> "Interval":
        """Return the bounds of a power, unbounded if a power may be undefined or infinite.

        A base that may be negative needs a single integer as its exponent.
        """
        if self.low < 0:
            return self._raised_to_whole(exponent.low) if exponent.low == exponent.high else UNBOUNDED
        if self.low == 0 and exponent.low < 0:
            return UNBOUNDED
        try:
            corners = [math.pow(b, e) for b in (self.low, self.high) for e in (exponent.low, exponent.high)]
        except (ValueError, OverflowError):
            return UNBOUNDED
        return Interval.enclosing(corners)

    def _raised_to_whole(self, exponent: float) -> "Interval":
        if not exponent.is_integer() or (exponent < 0 and self.high >= 0):
            return UNBOUNDED
        ends = self.mapped(lambda base: math.pow(base, exponent))
        return ends.union(Interval(0.0, 0.0)) if exponent % 2 == 0 and self.high >= 0 else ends


UNBOUNDED = Interval(-math.inf, math.inf)
ZERO_TO_ONE = Interval(0.0, 1.0)
