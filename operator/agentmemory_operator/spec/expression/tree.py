"""Score expressions: a tree of nodes with two back ends, evaluation in Python and compilation to a Qdrant formula.

Both results agree within 1e-5. Every node also computes bounds of its value.
"""

# ruff: noqa: D102 - `Expression` documents the methods of every node.

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import Protocol

from agentmemory_operator.spec.expression.formulas import Formula, exact_constant, product_formula, sum_formula
from agentmemory_operator.spec.expression.intervals import UNBOUNDED, ZERO_TO_ONE, Interval


@dataclass(frozen=True, slots=True)
class Values:
    """Input of an evaluation: type and tags of a memory, and the value of each variable."""

    type_name: str
    numbers: Mapping[str, float]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ranges:
    """Bounds of the input values over a set of memories.

    Attributes:
        numbers: Interval of each variable.
        types: Possible types. None is any type, including those that the object does not list.
    """

    numbers: Mapping[str, Interval]
    types: frozenset[str] | None = None

    def with_interval(self, name: str, interval: Interval) -> "Ranges":
        """Return the ranges with another interval for a variable."""
        return replace(self, numbers={**self.numbers, name: interval})

    def may_include(self, names: tuple[str, ...]) -> bool:
        """Return whether a memory may have one of the types."""
        return self.types is None or not self.types.isdisjoint(names)

    def may_include_others(self, names: tuple[str, ...]) -> bool:
        """Return whether a memory may have a type other than these."""
        return self.types is None or not self.types.issubset(names)


@dataclass(frozen=True, slots=True)
class Target:
    """Context of a compilation.

    Attributes:
        variables: Formula of each variable: a number, a payload key, `$score`, or a compound formula.
        ranges: Bounds of the variables.
        has_extremes: True if the server supports `min` and `max`.
    """

    variables: Mapping[str, Formula]
    ranges: Ranges = field(default_factory=lambda: Ranges({}))
    has_extremes: bool = False


class Expression(Protocol):
    """A number computed from a memory and its match with the query."""

    def evaluate(self, values: Values) -> float:
        """Return the number for one memory."""
        ...

    def compile(self, target: Target) -> Formula:
        """Return Qdrant's formula of the number."""
        ...

    def bounds(self, ranges: Ranges) -> Interval:
        """Return an interval that contains the number of every memory within the ranges.

        It may be wider than necessary. It is never too narrow, except for rounding: of float64 here, and up to 1e-5 for
        Qdrant's float32 score. It is infinite if the number may not be finite.
        """
        ...


@dataclass(frozen=True, slots=True)
class Const:
    """A constant, which is compiled without loss of digits (`exact_constant`)."""

    value: float

    def evaluate(self, values: Values) -> float:
        return self.value

    def compile(self, target: Target) -> Formula:
        return exact_constant(self.value)

    def bounds(self, ranges: Ranges) -> Interval:
        return Interval(self.value, self.value)


@dataclass(frozen=True, slots=True)
class Var:
    """Value of a variable. Its bounds are infinite if the ranges lack the variable."""

    name: str

    def evaluate(self, values: Values) -> float:
        return values.numbers[self.name]

    def compile(self, target: Target) -> Formula:
        return target.variables[self.name]

    def bounds(self, ranges: Ranges) -> Interval:
        return ranges.numbers.get(self.name, UNBOUNDED)


@dataclass(frozen=True, slots=True)
class VarOrDefault:
    """Value of a variable if the memory has it, else a default.

    The payload key must have the variable's name, and 0 as its default in Qdrant.
    """

    name: str
    default: Expression

    def evaluate(self, values: Values) -> float:
        number = values.numbers.get(self.name)
        return self.default.evaluate(values) if number is None else number

    def compile(self, target: Target) -> Formula:
        is_absent = {"is_empty": {"key": self.name}}
        return {"sum": [target.variables[self.name], {"mult": [is_absent, self.default.compile(target)]}]}

    def bounds(self, ranges: Ranges) -> Interval:
        return ranges.numbers.get(self.name, UNBOUNDED).union(self.default.bounds(ranges))


@dataclass(frozen=True, slots=True)
class TypeIn:
    """1 if the memory's type is one of `names`, else 0."""

    names: tuple[str, ...]

    def evaluate(self, values: Values) -> float:
        return float(values.type_name in self.names)

    def compile(self, target: Target) -> Formula:
        return {"key": "type", "match": {"any": list(self.names)}}

    def bounds(self, ranges: Ranges) -> Interval:
        return Interval(float(not ranges.may_include_others(self.names)), float(ranges.may_include(self.names)))


@dataclass(frozen=True, slots=True)
class TypeNotIn:
    """1 if the memory's type is not one of `names`, else 0."""

    names: tuple[str, ...]

    def evaluate(self, values: Values) -> float:
        return float(values.type_name not in self.names)

    def compile(self, target: Target) -> Formula:
        return {"must_not": [TypeIn(self.names).compile(target)]}

    def bounds(self, ranges: Ranges) -> Interval:
        return Interval(float(not ranges.may_include(self.names)), float(ranges.may_include_others(self.names)))


@dataclass(frozen=True, slots=True)
class HasTag:
    """1 if the memory has the tag, else 0."""

    name: str

    def evaluate(self, values: Values) -> float:
        return float(self.name in values.tags)

    def compile(self, target: Target) -> Formula:
        return {"key": "tags", "match": {"value": self.name}}

    def bounds(self, ranges: Ranges) -> Interval:
        return ZERO_TO_ONE


@dataclass(frozen=True, slots=True)
class Sum:
    """Sum of its terms."""

    terms: tuple[Expression, ...]

    def evaluate(self, values: Values) -> float:
        return math.fsum(term.evaluate(values) for term in self.terms)

    def compile(self, target: Target) -> Formula:
        return sum_formula(*(term.compile(target) for term in self.terms))

    def bounds(self, ranges: Ranges) -> Interval:
        return reduce(Interval.plus, (term.bounds(ranges) for term in self.terms))


@dataclass(frozen=True, slots=True)
class Product:
    """Product of its factors. Qdrant ends at the first 0, so put conditions first."""

    factors: tuple[Expression, ...]

    def evaluate(self, values: Values) -> float:
        return math.prod(factor.evaluate(values) for factor in self.factors)

    def compile(self, target: Target) -> Formula:
        return product_formula(*(factor.compile(target) for factor in self.factors))

    def bounds(self, ranges: Ranges) -> Interval:
        return reduce(Interval.times, (factor.bounds(ranges) for factor in self.factors))


@dataclass(frozen=True, slots=True)
class Quotient:
    """Quotient. The divisor must not be 0."""

    dividend: Expression
    divisor: Expression

    def evaluate(self, values: Values) -> float:
        return self.dividend.evaluate(values) / self.divisor.evaluate(values)

    def compile(self, target: Target) -> Formula:
        return {"div": {"left": self.dividend.compile(target), "right": self.divisor.compile(target)}}

    def bounds(self, ranges: Ranges) -> Interval:
        return self.dividend.bounds(ranges).divided_by(self.divisor.bounds(ranges))


# Name -> evaluation and bounds. Qdrant has each function under the same name.
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
    """Function of one argument. `name` is a key of `FUNCTIONS` and the name of the function in Qdrant."""

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
    """Power. A negative base needs an integer exponent."""

    base: Expression
    exponent: Expression

    def evaluate(self, values: Values) -> float:
        return math.pow(self.base.evaluate(values), self.exponent.evaluate(values))

    def compile(self, target: Target) -> Formula:
        return {"pow": {"base": self.base.compile(target), "exponent": self.exponent.compile(target)}}

    def bounds(self, ranges: Ranges) -> Interval:
        return self.base.bounds(ranges).power(self.exponent.bounds(ranges))


@dataclass(frozen=True, slots=True)
class Decay:
    """0.5 ** (age / half_life), both in the same unit. The half-life must be above 0."""

    age: Expression
    half_life: Expression

    def evaluate(self, values: Values) -> float:
        return math.pow(0.5, self.age.evaluate(values) / self.half_life.evaluate(values))

    def compile(self, target: Target) -> Formula:
        age = self.age.compile(target)
        half_life = self.half_life.compile(target)
        # Qdrant's decay uses the absolute distance from its target, so the age must not be negative. It stores its
        # scale as float32, so the half-life must be exact in float32.
        if isinstance(half_life, float) and self.age.bounds(target.ranges).low >= 0:
            return {"exp_decay": {"x": age, "target": 0.0, "scale": half_life, "midpoint": 0.5}}
        halvings = {"div": {"left": age, "right": half_life}}
        return {"exp": {"mult": [exact_constant(-math.log(2)), halvings]}}

    def bounds(self, ranges: Ranges) -> Interval:
        half_life = self.half_life.bounds(ranges)
        if half_life.low <= 0:
            return UNBOUNDED
        return self.age.bounds(ranges).divided_by(half_life).mapped(lambda halvings: math.pow(0.5, halvings))


@dataclass(frozen=True, slots=True)
class Case:
    """Value for memories of some types."""

    names: tuple[str, ...]
    value: Expression


@dataclass(frozen=True, slots=True)
class ByType:
    """Value of the case that contains the memory's type, else `other`. A type is in at most one case."""

    cases: tuple[Case, ...]
    other: Expression

    def evaluate(self, values: Values) -> float:
        matching = (case.value for case in self.cases if values.type_name in case.names)
        return next(matching, self.other).evaluate(values)

    def compile(self, target: Target) -> Formula:
        terms = [Product((TypeIn(case.names), case.value)) for case in self.cases]
        return Sum((*terms, Product((TypeNotIn(self._listed), self.other)))).compile(target)

    def bounds(self, ranges: Ranges) -> Interval:
        possible = [case.value.bounds(ranges) for case in self.cases if ranges.may_include(case.names)]
        if ranges.may_include_others(self._listed) or not possible:
            possible.append(self.other.bounds(ranges))
        return reduce(Interval.union, possible)

    @property
    def _listed(self) -> tuple[str, ...]:
        return tuple(name for case in self.cases for name in case.names)


def variables_of(expression: Expression) -> frozenset[str]:
    """Return the variables that an expression depends on."""
    return frozenset(node.name for node in nodes_of(expression) if isinstance(node, Var | VarOrDefault))


def nodes_of(value: object) -> Iterator[object]:
    """Yield an expression and all nodes below it."""
    if isinstance(value, tuple):
        for item in value:
            yield from nodes_of(item)
    elif is_dataclass(value):
        yield value
        for field_ in fields(value):
            yield from nodes_of(getattr(value, field_.name))
