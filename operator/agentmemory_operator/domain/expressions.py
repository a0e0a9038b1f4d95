"""Score expressions: a small tree with two back ends, evaluation here and a Qdrant formula there.

Both agree within 1e-5. The engine (server 1.18) computes in float64 but takes constants as float32, and it has neither
`min` nor `max`; so clamps are spelled with `abs`, and a time is split into two constants that float32 holds exactly.
"""

# ruff: noqa: D102 - the methods of every node mean what `Expression` says.

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Formula = Any
"""A Qdrant formula expression as JSON: a number, a variable's name, or an object."""

Variables = Mapping[str, Formula]
"""The formula that gives each variable: a payload key, `$score`, or a larger one."""


@dataclass(frozen=True, slots=True)
class Values:
    """What an expression is evaluated for: a memory's type, and a number for each variable."""

    type_name: str
    numbers: Mapping[str, float]


class Expression(Protocol):
    """A number that depends on a memory and on its match with the query."""

    def evaluate(self, values: Values) -> float:
        """Return the number for one memory."""
        ...

    def compile(self, variables: Variables) -> Formula:
        """Return the engine's formula for it."""
        ...


@dataclass(frozen=True, slots=True)
class Const:
    """A number."""

    value: float

    def evaluate(self, values: Values) -> float:
        return self.value

    def compile(self, variables: Variables) -> Formula:
        return self.value


@dataclass(frozen=True, slots=True)
class Var:
    """A number of the memory, or of its match with the query."""

    name: str

    def evaluate(self, values: Values) -> float:
        return values.numbers[self.name]

    def compile(self, variables: Variables) -> Formula:
        return variables[self.name]


@dataclass(frozen=True, slots=True)
class TypeIn:
    """1 where the memory's type is one of `names`, else 0."""

    names: tuple[str, ...]

    def evaluate(self, values: Values) -> float:
        return float(values.type_name in self.names)

    def compile(self, variables: Variables) -> Formula:
        return {"key": "type", "match": {"any": list(self.names)}}


@dataclass(frozen=True, slots=True)
class TypeNotIn:
    """1 where the memory's type is none of `names`, else 0."""

    names: tuple[str, ...]

    def evaluate(self, values: Values) -> float:
        return float(values.type_name not in self.names)

    def compile(self, variables: Variables) -> Formula:
        return {"must_not": [TypeIn(self.names).compile(variables)]}


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of its terms."""

    terms: tuple[Expression, ...]

    def evaluate(self, values: Values) -> float:
        return math.fsum(term.evaluate(values) for term in self.terms)

    def compile(self, variables: Variables) -> Formula:
        return {"sum": [term.compile(variables) for term in self.terms]}


@dataclass(frozen=True, slots=True)
class Product:
    """The product of its factors. The engine stops at the first 0, so conditions stand first."""

    factors: tuple[Expression, ...]

    def evaluate(self, values: Values) -> float:
        return math.prod(factor.evaluate(values) for factor in self.factors)

    def compile(self, variables: Variables) -> Formula:
        return {"mult": [factor.compile(variables) for factor in self.factors]}


@dataclass(frozen=True, slots=True)
class Quotient:
    """A quotient; the divisor must not be 0."""

    dividend: Expression
    divisor: Expression

    def evaluate(self, values: Values) -> float:
        return self.dividend.evaluate(values) / self.divisor.evaluate(values)

    def compile(self, variables: Variables) -> Formula:
        return {"div": {"left": self.dividend.compile(variables), "right": self.divisor.compile(variables)}}


@dataclass(frozen=True, slots=True)
class Log10:
    """The decimal logarithm of a positive number."""

    operand: Expression

    def evaluate(self, values: Values) -> float:
        return math.log10(self.operand.evaluate(values))

    def compile(self, variables: Variables) -> Formula:
        return {"log10": self.operand.compile(variables)}


@dataclass(frozen=True, slots=True)
class AtMostOne:
    """min(a, 1) = (a + 1 - |a - 1|) / 2."""

    operand: Expression

    def evaluate(self, values: Values) -> float:
        return min(self.operand.evaluate(values), 1.0)

    def compile(self, variables: Variables) -> Formula:
        operand = self.operand.compile(variables)
        return {"mult": [0.5, {"sum": [operand, 1.0, {"neg": {"abs": {"sum": [operand, -1.0]}}}]}]}


@dataclass(frozen=True, slots=True)
class AtLeastZero:
    """max(a, 0) = (a + |a|) / 2."""

    operand: Expression

    def evaluate(self, values: Values) -> float:
        return max(self.operand.evaluate(values), 0.0)

    def compile(self, variables: Variables) -> Formula:
        operand = self.operand.compile(variables)
        return {"mult": [0.5, {"sum": [operand, {"abs": operand}]}]}


@dataclass(frozen=True, slots=True)
class Halving:
    """0.5 ** (age / half_life), both in one unit; `age` must not be negative."""

    age: Expression
    half_life: float

    def evaluate(self, values: Values) -> float:
        return math.pow(0.5, self.age.evaluate(values) / self.half_life)

    def compile(self, variables: Variables) -> Formula:
        age = self.age.compile(variables)
        return {"exp_decay": {"x": age, "target": 0.0, "scale": self.half_life, "midpoint": 0.5}}


def split_constant(value: int) -> Formula:
    """Return an integer below 2**48 as a sum of two constants that float32 holds exactly."""
    low = value & 0xFFFFFF
    return {"sum": [float(value - low), float(low)]}
