"""Nodes of score expressions that choose a value: comparisons, `if`, minimum and maximum.

Conditions in Qdrant's formulas can only test payload keys. A comparison of computed numbers is therefore compiled
to powers of 0: 0 ** (d + |d|) is exactly 1 if d <= 0, and exactly 0 if d > 0.
"""

# ruff: noqa: D102 - `Expression` documents the methods of every node.

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType

from agentmemory_operator.spec.expression.formulas import Formula
from agentmemory_operator.spec.expression.intervals import ZERO_TO_ONE, Interval
from agentmemory_operator.spec.expression.tree import Const, Expression, Ranges, Target, TypeIn, TypeNotIn, Values, Var

# Largest operand for the plain form. Rounding of a + b and |a - b| then changes the result by about 1e-10 at most.
MAX_PLAIN_MAGNITUDE = 1e6
# Variables with integer values, for which above 0 means at least 1.
INTEGER_VARIABLES = frozenset({"accessCount"})

OPERATORS: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne}
)
_OPPOSITES = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


@dataclass(frozen=True, slots=True)
class Compare:
    """1 if the comparison is true, else 0."""

    sign: str
    left: Expression
    right: Expression

    def evaluate(self, values: Values) -> float:
        return float(OPERATORS[self.sign](self.left.evaluate(values), self.right.evaluate(values)))

    def compile(self, target: Target) -> Formula:
        left, right = self.left.compile(target), self.right.compile(target)
        match self.sign:
            case "<=":
                return _at_most(left, right)
            case ">=":
                return _at_most(right, left)
            case "==":
                return {"pow": {"base": 0.0, "exponent": {"abs": _difference(left, right)}}}
        return _unless(self.negation.compile(target))

    def bounds(self, ranges: Ranges) -> Interval:
        left, right = self.left.bounds(ranges), self.right.bounds(ranges)
        match self.sign:
            case "<":
                return _decided(is_sure=left.high < right.low, is_ruled_out=left.low >= right.high)
            case "<=":
                return _decided(is_sure=left.high <= right.low, is_ruled_out=left.low > right.high)
            case "==":
                is_sure = left.low == left.high == right.low == right.high
                return _decided(is_sure=is_sure, is_ruled_out=left.high < right.low or right.high < left.low)
        negated = self.negation.bounds(ranges)
        return Interval(1 - negated.high, 1 - negated.low)

    @property
    def negation(self) -> "Compare":
        """Negation of this comparison: 1 exactly if this comparison is 0."""
        return Compare(_OPPOSITES[self.sign], self.left, self.right)


@dataclass(frozen=True, slots=True)
class If:
    """`then` if the condition is 1, `otherwise` if it is 0. The other branch is not evaluated.

    Qdrant ends a product at the first 0, so the other branch may have no finite value.
    """

    condition: Expression
    then: Expression
    otherwise: Expression

    def evaluate(self, values: Values) -> float:
        return (self.then if self.condition.evaluate(values) else self.otherwise).evaluate(values)

    def compile(self, target: Target) -> Formula:
        condition = self.condition.compile(target)
        otherwise = negate(self.condition)
        factors = [condition, self.then.compile(target)]
        negated = _unless(condition) if otherwise is None else otherwise.compile(target)
        return {"sum": [{"mult": factors}, {"mult": [negated, self.otherwise.compile(target)]}]}

    def bounds(self, ranges: Ranges) -> Interval:
        condition = self.condition.bounds(ranges)
        then = self.then.bounds(narrow_ranges(ranges, self.condition, holds=True))
        otherwise = self.otherwise.bounds(narrow_ranges(ranges, self.condition, holds=False))
        if condition.low > 0:
            return then
        return otherwise if condition.high <= 0 else then.union(otherwise)


@dataclass(frozen=True, slots=True)
class Minimum:
    """Minimum of its operands. A server without `min` gets (a + b - |a - b|) / 2, or a choice for large operands."""

    operands: tuple[Expression, ...]

    def evaluate(self, values: Values) -> float:
        return min(operand.evaluate(values) for operand in self.operands)

    def compile(self, target: Target) -> Formula:
        return _extreme("min", self.operands, target)

    def bounds(self, ranges: Ranges) -> Interval:
        intervals = [operand.bounds(ranges) for operand in self.operands]
        return Interval(min(interval.low for interval in intervals), min(interval.high for interval in intervals))


@dataclass(frozen=True, slots=True)
class Maximum:
    """Maximum of its operands. A server without `max` gets (a + b + |a - b|) / 2, or a choice for large operands."""

    operands: tuple[Expression, ...]

    def evaluate(self, values: Values) -> float:
        return max(operand.evaluate(values) for operand in self.operands)

    def compile(self, target: Target) -> Formula:
        return _extreme("max", self.operands, target)

    def bounds(self, ranges: Ranges) -> Interval:
        intervals = [operand.bounds(ranges) for operand in self.operands]
        return Interval(max(interval.low for interval in intervals), max(interval.high for interval in intervals))


def negate(condition: Expression) -> Expression | None:
    """Return the negated condition. None if the negation is not a single node."""
    match condition:
        case Compare():
            return condition.negation
        case TypeIn(names):
            return TypeNotIn(names)
        case TypeNotIn(names):
            return TypeIn(names)
    return None


def narrow_ranges(ranges: Ranges, condition: Expression, *, holds: bool) -> Ranges:
    """Return the ranges of the memories for which a condition holds (or does not).

    Only comparisons of a variable with a number, and conditions on the type, narrow the ranges. Other conditions do
    not.
    """
    condition = condition if holds else negate(condition) or Const(0.0)
    match condition:
        case Compare(sign, Var(name), Const(value)):
            return _limited(ranges, name, sign, value)
        case Compare(sign, Const(value), Var(name)):
            return _limited(ranges, name, _MIRRORED[sign], value)
        case TypeIn(names) if ranges.types is not None:
            return Ranges(ranges.numbers, ranges.types.intersection(names) or ranges.types)
        case TypeIn(names):
            return Ranges(ranges.numbers, frozenset(names))
        case TypeNotIn(names) if ranges.types is not None:
            return Ranges(ranges.numbers, ranges.types.difference(names) or ranges.types)
    return ranges


def _limited(ranges: Ranges, name: str, sign: str, value: float) -> Ranges:
    """Narrow the range of a variable. A cut that leaves no values is ignored, since its branch is never taken."""
    interval = ranges.numbers[name]
    cut = _cut(interval, sign, value)
    low, high = max(interval.low, cut.low), min(interval.high, cut.high)
    if name in INTEGER_VARIABLES:
        low, high = math.ceil(low), math.floor(high)
    return ranges.with_interval(name, Interval(low, high)) if low <= high else ranges


def _cut(interval: Interval, sign: str, value: float) -> Interval:
    """Return the values for which a comparison is true. `!=` excludes a value only at an end of `interval`."""
    below, above = math.nextafter(value, -math.inf), math.nextafter(value, math.inf)
    match sign:
        case "<" | "<=":
            return Interval(-math.inf, below if sign == "<" else value)
        case ">" | ">=":
            return Interval(above if sign == ">" else value, math.inf)
        case "==":
            return Interval(value, value)
    return Interval(above if value == interval.low else -math.inf, below if value == interval.high else math.inf)


def _decided(*, is_sure: bool, is_ruled_out: bool) -> Interval:
    if is_sure:
        return Interval(1.0, 1.0)
    return Interval(0.0, 0.0) if is_ruled_out else ZERO_TO_ONE


def _extreme(name: str, operands: Sequence[Expression], target: Target) -> Formula:
    formulas = [operand.compile(target) for operand in operands]
    if target.has_extremes:
        return {name: formulas}
    ranges = [operand.bounds(target.ranges).magnitude().high for operand in operands]
    combine = _plain_extreme if max(ranges) <= MAX_PLAIN_MAGNITUDE else _chosen_extreme
    return reduce(lambda a, b: combine(name, a, b), formulas)


def _plain_extreme(name: str, a: Formula, b: Formula) -> Formula:
    distance = {"abs": _difference(a, b)}
    return {"mult": [0.5, _sum(a, b, distance if name == "max" else {"neg": distance})]}


def _chosen_extreme(name: str, a: Formula, b: Formula) -> Formula:
    """Return a choice of the minimum or maximum, because a sum with a very large number absorbs the smaller one."""
    is_first = _at_most(a, b) if name == "min" else _at_most(b, a)
    return {"sum": [{"mult": [is_first, a]}, {"mult": [_unless(is_first), b]}]}


def _at_most(a: Formula, b: Formula) -> Formula:
    difference = _difference(a, b)
    return {"pow": {"base": 0.0, "exponent": _sum(difference, {"abs": difference})}}


def _unless(condition: Formula) -> Formula:
    return {"sum": [1.0, {"neg": condition}]}


def _difference(a: Formula, b: Formula) -> Formula:
    return _sum(a, -b if isinstance(b, float) else {"neg": b})


def _sum(*formulas: Formula) -> Formula:
    terms = [formula for formula in formulas if formula != 0.0]
    return terms[0] if len(terms) == 1 else {"sum": terms or [0.0]}
