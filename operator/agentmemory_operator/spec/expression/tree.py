"""Score expressions: a small tree with two back ends, evaluation here and a Qdrant formula there.

Both agree within 1e-5. Beside its value, every node knows where its values lie.
"""

# ruff: noqa: D102 - the methods of every node mean what `Expression` says.

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import Protocol

from agentmemory_operator.spec.expression.formulas import Formula, exact_constant, product_formula, sum_formula
from agentmemory_operator.spec.expression.intervals import ANYWHERE, TRUTH, Interval


@dataclass(frozen=True, slots=True)
class Values:
    """What an expression is evaluated for: a memory's type and tags, and a number for each variable."""

    type_name: str
    numbers: Mapping[str, float]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ranges:
    """Between what the values of some memories lie.

    Attributes:
        numbers: of each variable.
        types: the only types they may have; None is any, also one that the object does not list.
    """

    numbers: Mapping[str, Interval]
    types: frozenset[str] | None = None

    def limited(self, name: str, interval: Interval) -> "Ranges":
        """The ranges with another one for a variable."""
        return replace(self, numbers={**self.numbers, name: interval})

    def may_be(self, names: tuple[str, ...]) -> bool:
        """Whether a memory may be of one of the types."""
        return self.types is None or not self.types.isdisjoint(names)

    def may_be_none_of(self, names: tuple[str, ...]) -> bool:
        """Whether a memory may be of a type beside these."""
        return self.types is None or not self.types.issubset(names)


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a compilation.

    Attributes:
        variables: the formula that gives each variable: a payload key, `$score`, or a larger one.
        ranges: between what the variables lie.
        has_extremes: the server knows `min` and `max`.
    """

    variables: Mapping[str, Formula]
    ranges: Ranges = field(default_factory=lambda: Ranges({}))
    has_extremes: bool = False


class Expression(Protocol):
    """A number that depends on a memory and on its match with the query."""

    def evaluate(self, values: Values) -> float:
        """The number for one memory."""
        ...

    def compile(self, target: Target) -> Formula:
        """The engine's formula for it."""
        ...

    def bounds(self, ranges: Ranges) -> Interval:
        """An interval that holds the number of every memory within the ranges.

        It may be wider than need be, never narrower but for float64's rounding; the engine's float32 score can lie
        1e-5 outside. It is infinite where the number may not be finite.
        """
        ...


@dataclass(frozen=True, slots=True)
class Const:
    """A number."""

    value: float

    def evaluate(self, values: Values) -> float:
        return self.value

    def compile(self, target: Target) -> Formula:
        return exact_constant(self.value)

    def bounds(self, ranges: Ranges) -> Interval:
        return Interval(self.value, self.value)


@dataclass(frozen=True, slots=True)
class Var:
    """A number of the memory, or of its match with the query."""

    name: str

    def evaluate(self, values: Values) -> float:
        return values.numbers[self.name]

    def compile(self, target: Target) -> Formula:
        return target.variables[self.name]

    def bounds(self, ranges: Ranges) -> Interval:
        return ranges.numbers.get(self.name, ANYWHERE)


@dataclass(frozen=True, slots=True)
class OwnOr:
    """A variable of the memory's own, else a default; the payload key has the variable's name and the default 0."""

    name: str
    default: Expression

    def evaluate(self, values: Values) -> float:
        own = values.numbers.get(self.name)
        return self.default.evaluate(values) if own is None else own

    def compile(self, target: Target) -> Formula:
        is_absent = {"is_empty": {"key": self.name}}
        return {"sum": [target.variables[self.name], {"mult": [is_absent, self.default.compile(target)]}]}

    def bounds(self, ranges: Ranges) -> Interval:
        return ranges.numbers.get(self.name, ANYWHERE).union(self.default.bounds(ranges))


@dataclass(frozen=True, slots=True)
class TypeIn:
    """1 where the memory's type is one of `names`, else 0."""

    names: tuple[str, ...]

    def evaluate(self, values: Values) -> float:
        return float(values.type_name in self.names)

    def compile(self, target: Target) -> Formula:
        return {"key": "type", "match": {"any": list(self.names)}}

    def bounds(self, ranges: Ranges) -> Interval:
        return Interval(float(not ranges.may_be_none_of(self.names)), float(ranges.may_be(self.names)))


@dataclass(frozen=True, slots=True)
class TypeNotIn:
    """1 where the memory's type is none of `names`, else 0."""

    names: tuple[str, ...]

    def evaluate(self, values: Values) -> float:
        return float(values.type_name not in self.names)

    def compile(self, target: Target) -> Formula:
        return {"must_not": [TypeIn(self.names).compile(target)]}

    def bounds(self, ranges: Ranges) -> Interval:
        return Interval(float(not ranges.may_be(self.names)), float(ranges.may_be_none_of(self.names)))


@dataclass(frozen=True, slots=True)
class HasTag:
    """1 where the memory carries the tag, else 0."""

    name: str

    def evaluate(self, values: Values) -> float:
        return float(self.name in values.tags)

    def compile(self, target: Target) -> Formula:
        return {"key": "tags", "match": {"value": self.name}}

    def bounds(self, ranges: Ranges) -> Interval:
        return TRUTH


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of its terms."""

    terms: tuple[Expression, ...]

    def evaluate(self, values: Values) -> float:
        return math.fsum(term.evaluate(values) for term in self.terms)

    def compile(self, target: Target) -> Formula:
        return sum_formula(*(term.compile(target) for term in self.terms))

    def bounds(self, ranges: Ranges) -> Interval:
        return reduce(Interval.plus, (term.bounds(ranges) for term in self.terms))


@dataclass(frozen=True, slots=True)
class Product:
    """The product of its factors. The engine stops at the first 0, so conditions stand first."""

    factors: tuple[Expression, ...]

    def evaluate(self, values: Values) -> float:
        return math.prod(factor.evaluate(values) for factor in self.factors)

    def compile(self, target: Target) -> Formula:
        return product_formula(*(factor.compile(target) for factor in self.factors))

    def bounds(self, ranges: Ranges) -> Interval:
        return reduce(Interval.times, (factor.bounds(ranges) for factor in self.factors))


@dataclass(frozen=True, slots=True)
class Quotient:
    """A quotient; the divisor must not be 0."""

    dividend: Expression
    divisor: Expression

    def evaluate(self, values: Values) -> float:
        return self.dividend.evaluate(values) / self.divisor.evaluate(values)

    def compile(self, target: Target) -> Formula:
        return {"div": {"left": self.dividend.compile(target), "right": self.divisor.compile(target)}}

    def bounds(self, ranges: Ranges) -> Interval:
        return self.dividend.bounds(ranges).over_by(self.divisor.bounds(ranges))


# Name -> what it does here and where its values lie. The engine knows each by the same name.
FUNCTIONS: Mapping[str, tuple[Callable[[float], float], Callable[[Interval], Interval]]] = MappingProxyType(
    {
        "neg": (lambda number: -number, lambda interval: Interval(-interval.high, -interval.low)),
        "abs": (abs, Interval.magnitude),
        "exp": (math.exp, lambda interval: interval.mapped(math.exp)),
        "ln": (math.log, lambda interval: interval.mapped(math.log)),
        "log10": (math.log10, lambda interval: interval.mapped(math.log10)),
        "sqrt": (math.sqrt, lambda interval: interval.mapped(math.sqrt)),
    }
)


@dataclass(frozen=True, slots=True)
class Function:
    """A function of one number, by its name in `FUNCTIONS`."""

    name: str
    operand: Expression

    def evaluate(self, values: Values) -> float:
        return FUNCTIONS[self.name][0](self.operand.evaluate(values))

    def compile(self, target: Target) -> Formula:
        return {self.name: self.operand.compile(target)}

    def bounds(self, ranges: Ranges) -> Interval:
        return FUNCTIONS[self.name][1](self.operand.bounds(ranges))


@dataclass(frozen=True, slots=True)
class Power:
    """A power; a base that is negative needs a whole exponent."""

    base: Expression
    exponent: Expression

    def evaluate(self, values: Values) -> float:
        return math.pow(self.base.evaluate(values), self.exponent.evaluate(values))

    def compile(self, target: Target) -> Formula:
        return {"pow": {"base": self.base.compile(target), "exponent": self.exponent.compile(target)}}

    def bounds(self, ranges: Ranges) -> Interval:
        return self.base.bounds(ranges).raised(self.exponent.bounds(ranges))


@dataclass(frozen=True, slots=True)
class Decay:
    """0.5 ** (age / half_life), both in one unit; the half-life is above 0."""

    age: Expression
    half_life: Expression

    def evaluate(self, values: Values) -> float:
        return math.pow(0.5, self.age.evaluate(values) / self.half_life.evaluate(values))

    def compile(self, target: Target) -> Formula:
        age = self.age.compile(target)
        half_life = self.half_life.compile(target)
        # The engine's decay goes by the distance from its target, and holds its scale as float32.
        if isinstance(half_life, float) and self.age.bounds(target.ranges).low >= 0:
            return {"exp_decay": {"x": age, "target": 0.0, "scale": half_life, "midpoint": 0.5}}
        halvings = {"div": {"left": age, "right": half_life}}
        return {"exp": {"mult": [exact_constant(-math.log(2)), halvings]}}

    def bounds(self, ranges: Ranges) -> Interval:
        half_life = self.half_life.bounds(ranges)
        if half_life.low <= 0:
            return ANYWHERE
        return self.age.bounds(ranges).over_by(half_life).mapped(lambda halvings: math.pow(0.5, halvings))


@dataclass(frozen=True, slots=True)
class Case:
    """What counts for some types."""

    names: tuple[str, ...]
    value: Expression


@dataclass(frozen=True, slots=True)
class ByType:
    """The value of the case that names the memory's type, else `other`. No type is in two cases."""

    cases: tuple[Case, ...]
    other: Expression

    def evaluate(self, values: Values) -> float:
        found = (case.value for case in self.cases if values.type_name in case.names)
        return next(found, self.other).evaluate(values)

    def compile(self, target: Target) -> Formula:
        terms = [Product((TypeIn(case.names), case.value)) for case in self.cases]
        return Sum((*terms, Product((TypeNotIn(self._listed), self.other)))).compile(target)

    def bounds(self, ranges: Ranges) -> Interval:
        possible = [case.value.bounds(ranges) for case in self.cases if ranges.may_be(case.names)]
        if ranges.may_be_none_of(self._listed) or not possible:
            possible.append(self.other.bounds(ranges))
        return reduce(Interval.union, possible)

    @property
    def _listed(self) -> tuple[str, ...]:
        return tuple(name for case in self.cases for name in case.names)


def variables_of(expression: Expression) -> frozenset[str]:
    """The variables that an expression depends on."""
    return frozenset(node.name for node in nodes_of(expression) if isinstance(node, Var | OwnOr))


def nodes_of(value: object) -> Iterator[object]:
    """Yield an expression and everything in it."""
    if isinstance(value, tuple):
        for item in value:
            yield from nodes_of(item)
    elif is_dataclass(value):
        yield value
        for field_ in fields(value):
            yield from nodes_of(getattr(value, field_.name))
