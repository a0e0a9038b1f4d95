"""Vector checks before a write."""

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
def test_invalid_vector_is_rejected(vector: list[float], says: str) -> None:
    (error,) = check_vector(vector, size=2)

    assert error.field == "vector"
    assert says in error.message


@pytest.mark.parametrize("vector", [[0, 1], [-3.4e38, 0.0], [1e-30, 0.0]])
def test_valid_vector_is_accepted(vector: list[float]) -> None:
    assert check_vector(vector, size=2) == []


@pytest.mark.parametrize("vector", [[1e-30, 1e-30], [1e30, 1e30], [300.0, 400.0]])
def test_extreme_vector_is_normalised_for_cosine(vector: list[float]) -> None:
    first, second = normalise_vector(vector, distance="Cosine")

    assert first == pytest.approx(vector[0] / vector[1] * second)
    assert math.hypot(first, second) == pytest.approx(1)
    assert normalise_vector(vector, distance="Dot") == vector


@pytest.mark.parametrize("vector", [[3.0, 4.0], [0.6, 0.8], [0.006, -0.008]])
def test_ordinary_vector_is_left_unchanged(vector: list[float]) -> None:
    assert normalise_vector(vector, distance="Cosine") is vector
