"""How much is let in at once."""

import pytest

from agentmemory_operator.entrypoints.api.pressure import Limits, Pressure
from agentmemory_operator.entrypoints.api.problems import ProblemRaised


def test_bytes_are_counted_together_and_given_back() -> None:
    pressure = Pressure(Limits(body_bytes=100))
    with pressure.admit() as first, pressure.admit() as second:
        first.take(60)
        second.take(40)
        with pytest.raises(ProblemRaised, match="are being worked on"):
            second.take(1)
        assert pressure.body_bytes == 100

    assert (pressure.body_bytes, pressure.requests) == (0, 0)


def test_a_body_alone_may_be_larger_than_the_bound() -> None:
    with Pressure(Limits(body_bytes=100)).admit() as alone:
        alone.take(90)
        alone.take(90)

        assert alone.body_bytes == 180


def test_no_more_requests_than_the_bound_are_let_in() -> None:
    pressure = Pressure(Limits(requests=1))
    with pressure.admit():
        with pytest.raises(ProblemRaised, match="1 requests are under way"), pressure.admit():
            raise AssertionError
        assert pressure.requests == 1
    with pressure.admit():
        assert pressure.requests == 1
