"""Check a scoring expression: build a tree that has a finite value for every memory, or report the error."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from agentmemory_operator.spec.canonical_names import nearest_name
from agentmemory_operator.spec.expression.choices import Compare, If, Maximum, Minimum, narrow_ranges
from agentmemory_operator.spec.expression.formulas import Formula, split_constant
from agentmemory_operator.spec.expression.intervals import Interval
from agentmemory_operator.spec.expression.syntax import (
    BinaryOperation,
    ExpressionInvalid,
    FunctionCall,
    Name,
    Negation,
    NumberLiteral,
    Part,
    TextLiteral,
    parse_expression,
)
from agentmemory_operator.spec.expression.tree import (
    Const,
    Decay,
    Expression,
    Function,
    HasTag,
    Power,
    Product,
    Quotient,
    Ranges,
    Sum,
    TypeIn,
    TypeNotIn,
)
from agentmemory_operator.spec.expression.variables import (
    HALF_LIFE_DAYS,
    NAMES,
    TYPE,
    build_target,
    ranges_of,
    recency_of,
    variable,
)
from agentmemory_operator.spec.memory_types import MemoryType

# Name -> minimum and maximum number of arguments.
ARITIES: Mapping[str, tuple[int, int]] = MappingProxyType(
    dict.fromkeys(("exp", "ln", "log10", "log2", "sqrt", "abs", "tag"), (1, 1))
    | dict.fromkeys(("pow", "decay"), (2, 2))
    | dict.fromkeys(("min", "max"), (2, 8))
    | dict.fromkeys(("clamp", "if"), (3, 3))
)
_DOMAINS: Mapping[str, tuple[str, Callable[[Interval], bool]]] = MappingProxyType(
    {name: ("above 0", lambda interval: interval.low > 0) for name in ("ln", "log10", "log2")}
    | {"sqrt": ("of at least 0", lambda interval: interval.low >= 0)}
)
# Range of constants. Constants outside it lose digits in float32.
MIN_NUMBER, MAX_NUMBER = 1e-30, 1e30
# Largest absolute score. Multiplied by the largest boost (10), -90,000 is above -1e6, which excludes a memory.
MAX_SCORE = 90_000
# Limits of a formula. Qdrant's parser stops at a depth of 128. With so few parts, a search takes a few milliseconds.
MAX_FORMULA_PARTS, MAX_FORMULA_DEPTH = 2000, 60


@dataclass(frozen=True, slots=True)
class Term:
    """Term of the outermost sum, with its text."""

    text: str
    value: Expression


@dataclass(frozen=True, slots=True)
class CheckedExpression:
    """A valid scoring expression.

    Attributes:
        terms: Terms of the outermost sum. Their sum is the score.
    """

    text: str
    terms: tuple[Term, ...]

    @property
    def root(self) -> Expression:
        """Expression of the score: the only term, or the sum of all terms."""
        return self.terms[0].value if len(self.terms) == 1 else Sum(tuple(term.value for term in self.terms))


@lru_cache(maxsize=1024)
def check_expression(text: str, types: tuple[MemoryType, ...], distance: str) -> CheckedExpression:
    """Return the tree of an expression for an object's types and its collection's distance.

    Raises:
        ExpressionInvalid: If the expression cannot be used. The message gives the reason, the position and a remedy.
    """
    part = parse_expression(text)
    builder = _Builder(text, types)
    ranges = ranges_of(distance)
    scoring = CheckedExpression(
        text, tuple(Term(_quoted(text, term), builder.number(term, ranges)) for term in _terms(part))
    )
    _check_whole(scoring, ranges)
    return scoring


def _terms(part: Part) -> Sequence[Part]:
    """Return the terms of the outermost sum. A subtracted term includes its minus."""
    if isinstance(part, BinaryOperation) and part.sign in ("+", "-"):
        right = part.right if part.sign == "+" else Negation(part.operator_start, part.right.end, part.right)
        return [*_terms(part.left), right]
    return [part]


def _quoted(text: str, part: Part) -> str:
    return " ".join(text[part.start : part.end].split())


def _check_whole(scoring: CheckedExpression, ranges: Ranges) -> None:
    bounds = scoring.root.bounds(ranges)
    if max(abs(bounds.low), abs(bounds.high)) > MAX_SCORE:
        raise ExpressionInvalid(
            scoring.text,
            0,
            f"the score can be {_render(bounds)}, but the limit is {MAX_SCORE} in either direction: scale it down",
        )
    # Compile for the oldest server, so that an accepted expression works on all of them.
    target = build_target(now=split_constant(2**40), similarity="$score", keyword="$score", ranges=ranges)
    formula = scoring.root.compile(target)
    parts, depth = _measure(formula)
    if parts > MAX_FORMULA_PARTS or depth > MAX_FORMULA_DEPTH:
        raise ExpressionInvalid(
            scoring.text,
            0,
            f"compiled for Qdrant it has {parts} parts, nested {depth} deep, more than the limits of "
            f"{MAX_FORMULA_PARTS} and {MAX_FORMULA_DEPTH}: nest fewer min, max, clamp, if and comparisons",
        )


def _measure(formula: Formula) -> tuple[int, int]:
    """Return the number of parts of a formula and its nesting depth."""
    if not isinstance(formula, dict | list):
        return 1, 1
    children = [_measure(child) for child in (formula.values() if isinstance(formula, dict) else formula)]
    return 1 + sum(parts for parts, _ in children), 1 + max((depth for _, depth in children), default=0)


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds the tree of each part. Raises ExpressionInvalid for a part that may have no finite value in its ranges."""

    text: str
    types: tuple[MemoryType, ...]

    def number(self, part: Part, ranges: Ranges) -> Expression:
        """Build the tree of a numeric part. A condition counts as 1 or 0."""
        expression = self._raw(part, ranges)
        bounds = expression.bounds(ranges)
        if not bounds.is_finite:
            raise self._fault(part, "may overflow: bound it, for example with min or clamp")
        return expression

    def _raw(self, part: Part, ranges: Ranges) -> Expression:
        match part:
            case NumberLiteral(value=value):
                return Const(self._checked(part, value))
            case TextLiteral():
                raise self._fault(
                    part, 'a text is only allowed in tag("…") and compared with type, for example type == "fact"'
                )
            case Name():
                return self._variable(part)
            case Negation(operand=operand):
                return _negative(self.number(operand, ranges))
            case BinaryOperation():
                return self._pair(part, ranges)
            case FunctionCall():
                return self._call(part, ranges)

    def _checked(self, part: NumberLiteral, value: float) -> float:
        if value and not MIN_NUMBER <= value <= MAX_NUMBER:
            raise self._fault(part, f"a number must be 0 or {MIN_NUMBER:g} to {MAX_NUMBER:g}")
        return value

    def _variable(self, part: Name) -> Expression:
        if part.name == TYPE:
            raise self._fault(part, 'type is not a number: compare it, for example type == "fact"')
        if part.name not in NAMES:
            raise self._fault(part, _unknown(part.name, "variable", NAMES))
        return variable(part.name, self.types)

    def _pair(self, part: BinaryOperation, ranges: Ranges) -> Expression:
        if part.sign in "+-":
            left, right = self.number(part.left, ranges), self.number(part.right, ranges)
            right = right if part.sign == "+" else _negative(right)
            # Put a chain of terms into one sum, because Qdrant limits the nesting depth.
            return Sum((*(left.terms if isinstance(left, Sum) else (left,)), right))
        if part.sign == "*":
            left, right = self.number(part.left, ranges), self.number(part.right, ranges)
            return Product((*(left.factors if isinstance(left, Product) else (left,)), right))
        return self._quotient(part, ranges) if part.sign == "/" else self._comparison(part, ranges)

    def _quotient(self, part: BinaryOperation, ranges: Ranges) -> Expression:
        left, right = self.number(part.left, ranges), self.number(part.right, ranges)
        bounds = right.bounds(ranges)
        if bounds.low <= 0 <= bounds.high:
            problem = (
                f"division by zero: {_quoted(self.text, part.right)} can be 0 ({_render(bounds)}): add to it, or guard"
            )
            raise ExpressionInvalid(self.text, part.right.start, f"{problem} it with max or if")
        return Quotient(left, right)

    def _comparison(self, part: BinaryOperation, ranges: Ranges) -> Expression:
        if _is_text(part.left) or _is_text(part.right):
            return self._type_comparison(part)
        return Compare(part.sign, self.number(part.left, ranges), self.number(part.right, ranges))

    def _type_comparison(self, part: BinaryOperation) -> Expression:
        is_type_first = isinstance(part.left, Name) and part.left.name == TYPE
        name, text = (part.left, part.right) if is_type_first else (part.right, part.left)
        if not (isinstance(name, Name) and name.name == TYPE and isinstance(text, TextLiteral)):
            operand = text if isinstance(name, Name) and name.name == TYPE else name
            raise self._fault(operand, 'only type can be compared with a text, for example type == "fact"')
        if part.sign not in ("==", "!="):
            raise ExpressionInvalid(self.text, part.operator_start, "type has no order: compare it with == or !=")
        names = [type_.name for type_ in self.types]
        if names and text.value not in names:
            raise self._fault(text, _unknown(text.value, "type of this object", names))
        return TypeIn((text.value,)) if part.sign == "==" else TypeNotIn((text.value,))

    def _call(self, part: FunctionCall, ranges: Ranges) -> Expression:
        if part.name not in ARITIES:
            raise self._fault(part, _unknown(part.name, "function", tuple(ARITIES)))
        min_arguments, max_arguments = ARITIES[part.name]
        if not min_arguments <= len(part.arguments) <= max_arguments:
            expected = f"{min_arguments}" if min_arguments == max_arguments else f"{min_arguments} to {max_arguments}"
            raise self._fault(part, f"{part.name} takes {expected} arguments, not {len(part.arguments)}")
        if part.name == "tag":
            return self._tag(part.arguments[0])
        if part.name == "if":
            return self._choice(part, ranges)
        if part.name == "decay":
            return self._decay(part, ranges)
        return self._function(part, [self.number(argument, ranges) for argument in part.arguments], ranges)

    def _function(self, part: FunctionCall, arguments: Sequence[Expression], ranges: Ranges) -> Expression:
        match part.name:
            case "min":
                return Minimum(tuple(arguments))
            case "max":
                return Maximum(tuple(arguments))
            case "clamp":
                return Minimum((Maximum((arguments[0], arguments[1])), arguments[2]))
            case "pow":
                return self._power(part, arguments, ranges)
        if part.name in _DOMAINS:
            self._check_domain(part, arguments[0], ranges)
        if part.name == "log2":
            return Quotient(Function("ln", arguments[0]), Const(math.log(2)))
        return Function(part.name, arguments[0])

    def _check_domain(self, part: FunctionCall, argument: Expression, ranges: Ranges) -> None:
        domain, is_inside = _DOMAINS[part.name]
        bounds = argument.bounds(ranges)
        if not is_inside(bounds):
            inner = part.arguments[0]
            problem = f"{part.name} takes a number {domain}, and {_quoted(self.text, inner)} can be {bounds.low:g}"
            raise self._fault(inner, f"{problem}: add to it, or guard it with max or if")

    def _power(self, part: FunctionCall, arguments: Sequence[Expression], ranges: Ranges) -> Expression:
        base, exponent = arguments
        power = Power(base, exponent)
        if base.bounds(ranges).low < 0 and not power.bounds(ranges).is_finite:
            rule = "a base that can be negative takes a whole number as exponent, and none below 0 where it can be 0"
            raise self._fault(part, f"{rule}: guard the base with max")
        return power

    def _choice(self, part: FunctionCall, ranges: Ranges) -> Expression:
        condition = self._raw(part.arguments[0], ranges)
        if not _is_condition(condition):
            raise self._fault(part.arguments[0], 'a condition is expected: a comparison, or tag("…")')
        then = self.number(part.arguments[1], narrow_ranges(ranges, condition, holds=True))
        return If(condition, then, self.number(part.arguments[2], narrow_ranges(ranges, condition, holds=False)))

    def _decay(self, part: FunctionCall, ranges: Ranges) -> Expression:
        age, half_life = part.arguments
        if isinstance(half_life, Name) and half_life.name == HALF_LIFE_DAYS:
            return recency_of(self.types, self.number(age, ranges))
        tree = self.number(half_life, ranges)
        bounds = tree.bounds(ranges)
        if bounds.low <= 0:
            raise self._fault(
                half_life, f"a half-life must be above 0, but this can be {bounds.low:g}: bound it with max"
            )
        return Decay(self.number(age, ranges), tree)

    def _tag(self, part: Part) -> Expression:
        if not isinstance(part, TextLiteral) or not part.value:
            raise self._fault(part, 'tag takes a name in quotes, for example tag("pinned")')
        return HasTag(part.value)

    def _fault(self, part: Part, message: str) -> ExpressionInvalid:
        return ExpressionInvalid(self.text, part.start, message)


def _is_text(part: Part) -> bool:
    return isinstance(part, TextLiteral) or (isinstance(part, Name) and part.name == TYPE)


def _is_condition(expression: Expression) -> bool:
    """Return whether an expression is a condition (1 or 0). Products and extremes of conditions are "and" and "or"."""
    match expression:
        case Compare() | TypeIn() | TypeNotIn() | HasTag():
            return True
        case Product(parts) | Minimum(parts) | Maximum(parts):
            return all(map(_is_condition, parts))
    return False


def _negative(expression: Expression) -> Expression:
    return Const(-expression.value) if isinstance(expression, Const) else Function("neg", expression)


def _unknown(name: str, kind: str, names: Sequence[str]) -> str:
    suggestion = nearest_name(name, names)
    remedy = f"did you mean {suggestion}?" if suggestion else f"use one of {', '.join(names)}"
    return f"{json.dumps(name)} is not a {kind}: {remedy}"


def _render(bounds: Interval) -> str:
    return f"{bounds.low:g} to {bounds.high:g}"
