"""Vectors that the engine cannot store are told apart before anything is written."""

import math

import pytest

from agentmemory_operator.agents.checks import check_vector, normalise_vector


@pytest.mark.parametrize(
    ("vector", "says"),
    [
        ([1.0], "has 1 dimensions, but the agent's vectors have 2"),
        ([], "has 0 dimensions"),
        ([math.nan, 1.0], "not finite"),
        ([1.0, -math.inf], "not finite"),
        ([1e39, 1.0], "not within float32"),
        ([1.0, -1e39], "not within float32"),
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


@pytest.mark.parametrize("vector", [[1e-30, 1e-30], [1e30, 1e30], [300.0, 400.0]])
def test_a_callers_vector_is_compared_by_its_direction_whatever_its_length(vector: list[float]) -> None:
    first, second = normalise_vector(vector, distance="Cosine")

    assert first == pytest.approx(vector[0] / vector[1] * second)
    assert math.hypot(first, second) == pytest.approx(1)
    assert normalise_vector(vector, distance="Dot") == vector


@pytest.mark.parametrize("vector", [[3.0, 4.0], [0.6, 0.8], [0.006, -0.008]])
def test_a_vector_of_ordinary_length_is_left_to_the_engine_as_the_caller_wrote_it(vector: list[float]) -> None:
    assert normalise_vector(vector, distance="Cosine") is vector
