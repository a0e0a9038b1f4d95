"""Closed intervals: between which two numbers the value of an expression lies."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

# Larger numbers might overflow in the sums that a comparison is spelled with.
LARGEST = 1e300


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from `low` to `high`, both included; infinite where nothing is known."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> Self:
        """The smallest interval that holds the values; everything where one of them is no number."""
        found = list(values)
        return cls(-math.inf, math.inf) if any(map(math.isnan, found)) else cls(min(found), max(found))

    @property
    def is_finite(self) -> bool:
        """Whether every value in it is safe to calculate with."""
        return self.low >= -LARGEST and self.high <= LARGEST

    def union(self, other: "Interval") -> "Interval":
        """The smallest interval that holds both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))

    def plus(self, other: "Interval") -> "Interval":
        """Where sums lie."""
        return Interval.over((self.low + other.low, self.high + other.high))

    def times(self, other: "Interval") -> "Interval":
        """Where products lie."""
        return Interval.over(a * b for a in (self.low, self.high) for b in (other.low, other.high))

    def over_by(self, divisor: "Interval") -> "Interval":
        """Where quotients lie; everywhere where the divisor may be 0."""
        if divisor.low <= 0 <= divisor.high:
            return ANYWHERE
        return Interval.over(a / b for a in (self.low, self.high) for b in (divisor.low, divisor.high))

    def mapped(self, function: Callable[[float], float]) -> "Interval":
        """Where a monotonic function's values lie; everywhere where an end has none."""
        try:
            return Interval.over(function(end) for end in (self.low, self.high))
        except (ValueError, OverflowError):
            return ANYWHERE

    def magnitude(self) -> "Interval":
        """Where absolute values lie."""
        ends = abs(self.low), abs(self.high)
        return Interval(0.0 if self.low <= 0 <= self.high else min(ends), max(ends))

    def raised(self, exponent: "Interval") -> "Interval":
        """Where powers lie; everywhere where one may be no finite number.

        A base that may be negative takes only one whole exponent.
        """
        if self.low < 0:
            return self._raised_to_whole(exponent.low) if exponent.low == exponent.high else ANYWHERE
        if self.low == 0 and exponent.low < 0:
            return ANYWHERE
        try:
            corners = [math.pow(b, e) for b in (self.low, self.high) for e in (exponent.low, exponent.high)]
        except (ValueError, OverflowError):
            return ANYWHERE
        return Interval.over(corners)

    def _raised_to_whole(self, exponent: float) -> "Interval":
        if not exponent.is_integer() or (exponent < 0 and self.high >= 0):
            return ANYWHERE
        ends = self.mapped(lambda base: math.pow(base, exponent))
        return ends.union(Interval(0.0, 0.0)) if exponent % 2 == 0 and self.high >= 0 else ends


ANYWHERE = Interval(-math.inf, math.inf)
TRUTH = Interval(0.0, 1.0)
