"""Find the reason why a score formula failed on the data.

The engine reports a formula that fails on a point as a cancelled operation, without a reason. So this module evaluates
the formula in Python until it fails, in the server's order and in double precision.
"""

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from qdrant_devserver.error_answers import ErrorAnswer, not_built, wrong_input
from qdrant_devserver.fields import Document, Json
from qdrant_devserver.points.filters import is_condition

CANCELLED = "Operation cancelled"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point that a formula is applied to.

    Attributes:
        scores: Scores by the index of the prefetch that found the point.
        satisfies: Returns whether the point satisfies a condition.
    """

    payload: Document
    scores: Mapping[int, float]
    satisfies: Callable[[Json], bool]


def find_formula_error(document: Document, candidates: Iterable[Candidate]) -> ErrorAnswer | None:
    """Return the response to a formula that fails on one of its candidates, or None if it succeeds on all.

    If the evaluation reaches a date, a distance on the globe or `acosh`, the response is 501.
    """
    for candidate in candidates:
        evaluation = _Evaluation(candidate, document.get("defaults") or {})
        try:
            _to_single_or_raise(evaluation.value_of(document["formula"]))
        except ErrorAnswer as fault:
            return fault
    return None


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """Evaluates expressions for one candidate; raises the server's response if one fails."""

    candidate: Candidate
    defaults: Document

    def value_of(self, expression: Json) -> float:
        if isinstance(expression, str):
            return self._variable(expression)
        if isinstance(expression, int | float):
            return float(expression)
        if is_condition(expression):
            return float(self.candidate.satisfies(expression))
        name, argument = next((name, argument) for name, argument in expression.items() if name in _OPERATIONS)
        return _OPERATIONS[name](self, argument)

    def _variable(self, name: str) -> float:
        if not name.startswith("$score"):
            return self._number(name)
        score = self.candidate.scores.get(_prefetch_of(name))
        fallback = self.defaults.get(name, self.defaults.get("$score" if name == "$score[0]" else f"{name}[0]"))
        if score is None:
            return float(fallback) if isinstance(fallback, int | float) and not isinstance(fallback, bool) else 0.0
        return score

    def _number(self, name: str) -> float:
        value: Any = self.candidate.payload
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                value = self.defaults.get(name)
                if value is None:
                    raise _not_a_number(name, "No value found in a payload nor defaults")
                break
            value = value[part]
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _not_a_number(name, "Value is not a number")
        return float(value)

    def mult(self, factors: Json) -> float:
        product = 1.0
        for factor in factors:
            value = self.value_of(factor)
            if value == 0.0:
                return 0.0
            product *= value
        return product

    def div(self, argument: Document) -> float:
        left = self.value_of(argument["left"])
        if left == 0.0:
            return 0.0
        right, default = self.value_of(argument["right"]), argument.get("by_zero_default")
        if right == 0.0 and default is not None:
            return float(default)
        quotient = left / right if right else math.copysign(math.inf, left) * math.copysign(1.0, right)
        return _finite(quotient, f"{_format_number(left)}/{_format_number(right)}")

    def pow(self, argument: Document) -> float:
        base, exponent = self.value_of(argument["base"]), self.value_of(argument["exponent"])
        return _finite(_power(base, exponent), f"{_format_number(base)}^{_format_number(exponent)}")

    def unary(self, argument: Json, function: Callable[[float], float], form: str) -> float:
        value = self.value_of(argument)
        return _finite(function(value), form.format(_format_number(value)))

    def decay(self, argument: Document, kind: str) -> float:
        x, target = self.value_of(argument["x"]), self.value_of(argument.get("target") or 0.0)
        midpoint, scale = _single(argument.get("midpoint", 0.5)), _single(argument.get("scale", 1.0))
        distance = abs(x - target)
        if kind == "lin":
            return max(0.0, 1.0 - (1.0 - midpoint) / scale * distance)
        return _exp(math.log(midpoint) * (distance / scale if kind == "exp" else (distance / scale) ** 2))

    def unknown(self, argument: Json) -> float:
        raise not_built("to explain why a formula with a date or a distance on the globe failed")


def _prefetch_of(name: str) -> int:
    return int(name.removeprefix("$score").strip("[]") or 0)


def _not_a_number(name: str, fault: str) -> ErrorAnswer:
    return wrong_input(
        f"Expected number value for {name} in the payload and/or in the formula defaults. Error: {fault}"
    )


def _finite(value: float, expression: str) -> float:
    if not math.isfinite(value):
        raise wrong_input(f"The expression {expression} = {_format_number(value)} produced a non-finite number")
    return value


def _to_single_or_raise(score: float) -> float:
    return _finite(_single(score), f"{_format_number(score)} as f32")


def _single(value: float) -> float:
    """Return the nearest single-precision number."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _format_number(value: float) -> str:
    """Format a number as the server does: without an exponent, and without a decimal point if it is an integer."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    digits = format(Decimal(repr(value)), "f")
    return digits.removesuffix(".0")


def _power(base: float, exponent: float) -> float:
    try:
        return math.pow(base, exponent)
    except OverflowError:
        is_odd = exponent == math.floor(exponent) and exponent % 2 == 1
        return -math.inf if base < 0 and is_odd else math.inf
    except ValueError:
        return math.inf if base == 0.0 else math.nan


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _logarithm(value: float, function: Callable[[float], float]) -> float:
    return function(value) if value > 0.0 else -math.inf if value == 0.0 else math.nan


def _root(value: float) -> float:
    return math.sqrt(value) if value >= 0.0 else math.nan


_OPERATIONS: dict[str, Callable[[_Evaluation, Json], float]] = {
    "mult": _Evaluation.mult,
    "sum": lambda evaluation, terms: sum((evaluation.value_of(term) for term in terms), 0.0),
    "max": lambda evaluation, terms: max(evaluation.value_of(term) for term in terms),
    "min": lambda evaluation, terms: min(evaluation.value_of(term) for term in terms),
    "div": _Evaluation.div,
    "pow": _Evaluation.pow,
    "neg": lambda evaluation, argument: -evaluation.value_of(argument),
    "abs": lambda evaluation, argument: abs(evaluation.value_of(argument)),
    "sqrt": lambda evaluation, argument: evaluation.unary(argument, _root, "√{}"),
    "exp": lambda evaluation, argument: evaluation.unary(argument, _exp, "exp({})"),
    "log10": lambda evaluation, argument: evaluation.unary(
        argument, lambda value: _logarithm(value, math.log10), "log10({})"
    ),
    "ln": lambda evaluation, argument: evaluation.unary(argument, lambda value: _logarithm(value, math.log), "ln({})"),
    "lin_decay": lambda evaluation, argument: evaluation.decay(argument, "lin"),
    "exp_decay": lambda evaluation, argument: evaluation.decay(argument, "exp"),
    "gauss_decay": lambda evaluation, argument: evaluation.decay(argument, "gauss"),
    "acosh": _Evaluation.unknown,
    "datetime": _Evaluation.unknown,
    "datetime_key": _Evaluation.unknown,
    "geo_distance": _Evaluation.unknown,
}
