"""A formula that fails on a point gets the server's message, that of Qdrant 1.18.3 by its source."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.web.qdrant_nodes import DevServer


@pytest.fixture(scope="module", autouse=True)
def collection(server: DevServer) -> Iterator[None]:
    server.call("PUT", "/collections/ff", {"vectors": {"size": 1, "distance": "Dot"}})
    point = {"id": 1, "vector": [0.5], "payload": {"n": 3, "zero": 0, "half": 0.5, "deep": {"n": [-4]}, "text": "x"}}
    server.call("PUT", "/collections/ff/points?wait=true", {"points": [point]})
    yield
    server.call("DELETE", "/collections/ff")


def answer_to(server: DevServer, formula: Any, **more: Any) -> tuple[int, str]:
    prefetch = [{"query": [1.0]}, {"query": [-3.0]}]
    body = {"prefetch": prefetch, "query": {"formula": formula, **more}}
    answer = server.http.post("/collections/ff/points/query", json=body)
    return answer.status_code, str(answer.json()["status"])


@pytest.mark.parametrize(
    ("formula", "expression"),
    [
        ({"ln": "zero"}, "ln(0) = -inf"),
        ({"ln": {"neg": "n"}}, "ln(-3) = NaN"),
        ({"log10": 0.0}, "log10(0) = -inf"),
        ({"sqrt": "deep.n"}, "√-4 = NaN"),
        ({"exp": 1e3}, "exp(1000) = inf"),
        ({"div": {"left": "n", "right": "zero"}}, "3/0 = inf"),
        ({"div": {"left": "deep.n", "right": "zero"}}, "-4/0 = -inf"),
        ({"pow": {"base": -1.0, "exponent": "half"}}, "-1^0.5 = NaN"),
        ({"pow": {"base": 0.0, "exponent": -1.0}}, "0^-1 = inf"),
        ({"mult": [1e40, 1.0]}, f"{10**40} as f32 = inf"),
        ({"sum": ["n", {"ln": {"sum": ["$score", {"neg": "half"}]}}]}, "ln(0) = -inf"),
        ({"ln": {"sum": ["$score[1]", 1.0]}}, "ln(-0.5) = NaN"),
        ({"div": {"left": {"key": "n", "match": {"value": 3}}, "right": "zero"}}, "1/0 = inf"),
        ({"ln": {"mult": ["zero", {"ln": 0.0}]}}, "ln(0) = -inf"),
        ({"ln": {"lin_decay": {"x": "n", "scale": 1.0}}}, "ln(0) = -inf"),
    ],
)
def test_error_contains_the_non_finite_expression(server: DevServer, formula: Any, expression: str) -> None:
    status, message = answer_to(server, formula)

    assert status == 400, message
    assert f"Wrong input: The expression {expression} produced a non-finite number" in message


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ({"ln": "text"}, "Expected number value for text in the payload and/or in the formula defaults."),
        ({"sum": ["absent", {"ln": 0.0}]}, "No value found in a payload nor defaults"),
        ({"sum": [{"ln": 0.0}, "absent"]}, "ln(0) = -inf"),
    ],
)
def test_first_failure_is_reported(server: DevServer, formula: Any, message: str) -> None:
    assert message in answer_to(server, formula)[1]


def test_unexplainable_failure_is_501(server: DevServer) -> None:
    formula = {"ln": {"sum": [{"datetime": "1970-01-01T00:00:00Z"}, -1.0]}}

    assert answer_to(server, formula)[0] == 501


@pytest.mark.parametrize(
    "formula",
    [
        {"div": {"left": "zero", "right": "zero"}},
        {"div": {"left": "n", "right": "zero", "by_zero_default": 1.0}},
        {"mult": ["zero", {"ln": 0.0}]},
    ],
)
def test_short_circuited_formula_succeeds(server: DevServer, formula: Any) -> None:
    assert answer_to(server, formula)[0] == 200
