"""Scoring expressions: accepted ones with their value, rejected ones with the position of the error."""

import math

import pytest

from agentmemory_operator.spec.expression.syntax import ExpressionInvalid
from agentmemory_operator.spec.expression.tree import Values
from agentmemory_operator.spec.expression.typing import check_expression
from agentmemory_operator.spec.expression.variables import ranges_of
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import CORTEX

TYPES = (*CORTEX.types, MemoryType("rule", None))
NUMBERS = {
    "similarity": 0.8,
    "keyword": 0.25,
    "ageDays": 10.0,
    "idleDays": 4.0,
    "importance": 0.5,
    "accessCount": 7.0,
    "confidence": 0.9,
    "decayRate": 0.02,
}


def value_of(text: str, *, type_name: str = "fact", **numbers: float) -> float:
    values = Values(type_name, {**NUMBERS, **numbers}, ("pinned",))
    return check_expression(text, TYPES, "Cosine").root.evaluate(values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3 - 4 / 2", 5),
        ("(1 + 2) * 3", 9),
        ("2 - 3 - 4", -5),
        ("24 / 2 / 3", 4),
        ("-similarity", -0.8),
        ("2 * -3", -6),
        ("1.5e1 + .5", 15.5),
        ("similarity + keyword", 1.05),
        ("min(ageDays * idleDays, 50)", 40),
        ("importance * confidence * decayRate", 0.009),
        ("accessCount / 1e5", 0.00007),
        ("min(halfLifeDays, 1000)", 365),
        ("exp(-1)", math.exp(-1)),
        ("ln(1 + accessCount)", math.log(8)),
        ("log10(10)", 1),
        ("log2(1 + accessCount)", 3),
        ("sqrt(0.25)", 0.5),
        ("pow(2, 10)", 1024),
        ("pow(similarity, 2)", 0.64),
        ("abs(0 - importance)", 0.5),
        ("min(3, similarity, 2)", 0.8),
        ("max(3, similarity, 2)", 3),
        ("clamp(similarity, 0, 0.5)", 0.5),
        ("clamp(0 - similarity, 0, 0.5)", 0),
        ("decay(ageDays, 5)", 0.25),
        ("decay(ageDays, halfLifeDays)", 0.5 ** (10 / 365)),
        ("if(importance > 0.4, 2, 3)", 2),
        ("if(importance > 0.5, 2, 3)", 3),
        ("if(importance >= 0.5, 2, 3)", 2),
        ("if(0.5 <= importance, 2, 3)", 2),
        ("if(importance != 0.5, 2, 3)", 3),
        ("if(importance == 0.5, 2, 3)", 2),
        ("if(importance < 0.6, 2, 3)", 2),
        ('if(type == "fact", 2, 3)', 2),
        ('if("task" == type, 2, 3)', 3),
        ("if(type != 'fact', 2, 3)", 3),
        ('tag("pinned") + 2 * tag("other")', 1),
        ('if(min(tag("pinned"), importance > 0.4), 2, 3)', 2),
        ('if(tag("pinned") * tag("other"), 2, 3)', 3),
        ('if(max(tag("pinned"), tag("other")), 2, 3)', 2),
        ("0.2 * (similarity > 0.5)", 0.2),
        ("similarity\n+ keyword", 1.05),
    ],
)
def test_expression_has_its_value(text: str, expected: float) -> None:
    assert value_of(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "numbers", "expected"),
    [
        ("if(accessCount > 0, ln(accessCount), 0)", {"accessCount": 0}, 0),
        ("if(accessCount == 0, 0, 1 / accessCount)", {"accessCount": 0}, 0),
        ("if(0 < importance, sqrt(importance), 0)", {"importance": 0}, 0),
        ("if(accessCount >= 1, if(accessCount <= 4, 1 / accessCount, 9), 0)", {"accessCount": 2}, 0.5),
    ],
)
def test_condition_makes_its_branch_safe(text: str, numbers: dict[str, float], expected: float) -> None:
    assert value_of(text, **numbers) == expected


def test_timeless_and_unknown_types_have_a_recency() -> None:
    assert value_of("decay(ageDays, halfLifeDays)", type_name="rule") == 1
    assert value_of("decay(ageDays, halfLifeDays)", type_name="removed") == 0.5


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("0.5*similarty", 5, "did you mean similarity?"),
        ("similarity + nonsense", 14, "use one of similarity, keyword"),
        ("sqr(similarity)", 1, "did you mean sqrt?"),
        ("min(1)", 1, "min takes 2 to 8 arguments, not 1"),
        ("exp(1, 2)", 1, "exp takes 1 arguments, not 2"),
        ("type + 1", 1, "type is not a number"),
        ('"fact"', 1, "a text is only allowed in tag"),
        ('type < "fact"', 6, "type has no order"),
        ('type == "fct"', 9, "did you mean fact?"),
        ("type == importance", 9, "only type can be compared with a text"),
        ('importance == "fact"', 15, "only type can be compared with a text"),
        ("tag(importance)", 5, "tag takes a name in quotes"),
        ('tag("")', 5, "tag takes a name in quotes"),
        ("if(importance, 1, 2)", 4, "a condition is expected"),
        ("1 / accessCount", 5, "division by zero: accessCount can be 0"),
        ("1 / (similarity - keyword)", 5, "division by zero"),
        ("if(importance > 0.5, 1, 1 / importance)", 29, "division by zero"),
        ("ln(importance)", 4, "a number above 0"),
        ("sqrt(similarity)", 6, "of at least 0"),
        ("pow(similarity, 0.5)", 1, "guard the base with max"),
        ("pow(similarity, -2)", 1, "guard the base with max"),
        ("exp(ageDays)", 1, "may overflow"),
        ("exp(exp(exp(accessCount)))", 9, "may overflow"),
        ("accessCount", 1, "scale it down"),
        ("decay(ageDays, importance)", 16, "a half-life must be above 0"),
        ("1e31", 1, "a number must be 0 or"),
        ("1e-31", 1, "a number must be 0 or"),
        ("1 +", 4, "the end found where"),
        ("(1 + 2", 7, "')' expected here instead of the end"),
        ("min(1 2)", 7, "',' expected here instead of '2'"),
        ("1 2", 3, "an operator is missing before it"),
        ("importance = 1", 12, "a comparison for equality is =="),
        ("2 ^ 3", 3, "use pow(a, b)"),
        ("0 < importance < 1", 16, "use min(a < b, b < c)"),
        ("'abc", 1, "no closing quote"),
        ("similarity # all", 12, "remove it"),
        ("(" * 30 + "1" + ")" * 30, 25, "nested deeper than 24"),
        ("1" + "+1" * 300, 401, "more than 400 tokens"),
        ("1" + "+1" * 199 + "+", 401, "the end found where"),
        (" " * 1001, 1001, "longer than 1000 characters"),
    ],
)
def test_error_has_a_position_and_a_reason(text: str, position: int, reason: str) -> None:
    with pytest.raises(ExpressionInvalid) as error:
        check_expression(text, TYPES, "Cosine")

    assert error.value.position == position
    assert reason in str(error.value)


def test_caret_is_under_the_error() -> None:
    with pytest.raises(ExpressionInvalid) as error:
        check_expression("similarity +\n0.5*importanse", TYPES, "Cosine")

    assert str(error.value).splitlines()[1:] == ["  0.5*importanse", "      ^"]


def test_caret_of_a_long_line_is_under_an_excerpt() -> None:
    with pytest.raises(ExpressionInvalid) as error:
        check_expression("similarity + " * 20 + "importanse", TYPES, "Cosine")

    _, line, caret = str(error.value).splitlines()
    assert line[caret.index("^") :].startswith("importanse")
    assert len(line) < 80


def test_oversized_expression_is_rejected() -> None:
    text = "importance"
    for _ in range(8):
        text = f"min({text}, max({text}, 0.1))" if len(text) < 400 else f"min({text}, 0.3)"

    with pytest.raises(ExpressionInvalid, match="compiled for Qdrant it has"):
        check_expression(text, TYPES, "Cosine")


def test_range_of_similarity_depends_on_the_distance() -> None:
    assert check_expression("sqrt(similarity)", TYPES, "Euclid")
    with pytest.raises(ExpressionInvalid):
        check_expression("exp(similarity)", TYPES, "Dot")


@pytest.mark.parametrize("text", ["similarity", "min(similarity, 0.5)", "if(similarity > 0, similarity, 0)"])
def test_bounds_contain_the_value(text: str) -> None:
    bounds = check_expression(text, TYPES, "Cosine").root.bounds(ranges_of("Cosine"))

    assert bounds.low <= value_of(text) <= bounds.high


def test_terms_of_a_sum_keep_their_text() -> None:
    scoring = check_expression("0.5*similarity - (0.1 + importance) + 2", TYPES, "Cosine")

    assert [term.text for term in scoring.terms] == ["0.5*similarity", "- (0.1 + importance)", "2"]
