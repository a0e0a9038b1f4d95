"""Formulas of the engine: the same value in fewer steps."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.spec.expression.formulas import Formula, exact_constant, product_formula, sum_formula

NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 0.5, 3.0])
FORMULAS: st.SearchStrategy[Any] = st.recursive(
    NUMBERS | st.just("x"),
    lambda parts: st.lists(parts, min_size=1, max_size=4).flatmap(
        lambda found: st.sampled_from([{"sum": found}, {"mult": found}, {"neg": found[0]}])
    ),
    max_leaves=12,
)


def value_of(formula: Formula, x: float) -> float:
    match formula:
        case {"sum": parts}:
            return math.fsum(value_of(part, x) for part in parts)
        case {"mult": parts}:
            return math.prod(value_of(part, x) for part in parts)
        case {"neg": part}:
            return -value_of(part, x)
    return x if formula == "x" else float(formula)


def steps_of(formula: Formula) -> int:
    if not isinstance(formula, dict):
        return 1
    [part] = formula.values()
    return 1 + sum(map(steps_of, part if isinstance(part, list) else [part]))


@given(st.lists(FORMULAS, min_size=1, max_size=4), st.floats(-2, 2))
def test_simplified_formula_keeps_its_value(parts: list[Formula], x: float) -> None:
    for name, build in (("sum", sum_formula), ("mult", product_formula)):
        simplified, plain = build(*parts), {name: parts}

        assert value_of(simplified, x) == pytest.approx(value_of(plain, x), abs=1e-9)
        assert steps_of(simplified) <= steps_of(plain)


def test_zero_weight_omits_its_field() -> None:
    assert sum_formula(product_formula(1.0, "a"), product_formula(0.0, {"div": {"left": "b", "right": 2.0}})) == "a"


def test_condition_precedes_what_it_guards() -> None:
    condition = {"key": "type", "match": {"value": "fact"}}

    assert product_formula(condition, product_formula(0.5, "x")) == {"mult": [condition, 0.5, "x"]}


@pytest.mark.parametrize("value", [0.1, -1e30, 3.4e38, 1e39, -1e308])
def test_constant_is_finite_and_exact_within_float32(value: float) -> None:
    parts = value_of(exact_constant(value), 0)

    assert math.isfinite(parts)
    assert parts == value or abs(value) > 3.5e38
