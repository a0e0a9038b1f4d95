"""Values of hypothesis strategies for tests that run on an event loop."""

from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

T = TypeVar("T")


def examples_of(strategy: st.SearchStrategy[T], *, count: int) -> list[T]:
    """Draw from a strategy outside the event loop's reach: hypothesis itself runs only plain functions."""
    drawn: list[T] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
    @given(strategy)
    def collect(value: T) -> None:
        drawn.append(value)

    collect()
    return drawn
