"""Vectors that the engine cannot store are told apart before anything is written."""

import math

import pytest

from agentmemory_operator.services.checks import check_vector


@pytest.mark.parametrize(
    ("vector", "says"),
    [
        ([1.0], "has 1 numbers: the agent's vectors have 2"),
        ([], "has 0 numbers"),
        ([math.nan, 1.0], "not finite"),
        ([1.0, -math.inf], "not finite"),
        ([1e39, 1.0], "beyond float32"),
        ([1.0, -1e39], "beyond float32"),
        ([0, 0], "all zero"),
        ([1e-60, 0.0], "all zero"),
    ],
)
def test_a_vector_that_cannot_be_stored_is_named(vector: list[float], says: str) -> None:
    (error,) = check_vector(vector, size=2)

    assert error.field == "vector"
    assert says in error.message


@pytest.mark.parametrize("vector", [[0, 1], [-3.4e38, 0.0], [1e-30, 0.0]])
def test_any_other_vector_is_fine(vector: list[float]) -> None:
    assert check_vector(vector, size=2) == []
