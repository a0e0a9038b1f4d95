from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.domain.allowance import HOUR_S, WHOLE, Allowances, hourly


def test_a_burst_is_granted_and_then_one_at_a_time() -> None:
    allowances = Allowances(burst=3, refill_s=60)

    assert [allowances.take("a", 0) for _ in range(5)] == [True, True, True, False, False]
    assert [allowances.take("a", 59.9), allowances.take("a", 60), allowances.take("a", 60)] == [False, True, False]


def test_one_key_takes_nothing_from_another() -> None:
    allowances = Allowances(burst=1, refill_s=60)
    allowances.take("a", 0)

    assert allowances.take("b", 0)


def test_a_long_rest_saves_up_no_more_than_a_burst() -> None:
    allowances = Allowances(burst=2, refill_s=60)
    allowances.take("a", 0)

    assert [allowances.take("a", 10_000) for _ in range(3)] == [True, True, False]


def test_the_key_that_was_asked_about_longest_ago_is_forgotten() -> None:
    allowances = Allowances(burst=1, refill_s=60, most_keys=2)
    for key in ("a", "b", "c"):
        allowances.take(key, 0)

    assert [allowances.take("c", 0), allowances.take("a", 0)] == [False, True]


@given(st.integers(1, 5000), st.lists(st.floats(0, 900), max_size=60), st.sets(st.integers(0, 59)))
def test_in_no_hour_more_is_taken_than_allowed_though_whoever_takes_begins_anew(
    most: int, waits: list[float], restarts: set[int]
) -> None:
    allowances, now_s, taken = hourly(most, 0), 0.0, deque[float]()
    for number, wait_s in enumerate(waits):
        now_s += wait_s
        if number in restarts:
            allowances = hourly(most, now_s)
        while allowances.take(WHOLE, now_s):
            taken.append(now_s)
        while taken and taken[0] <= now_s - HOUR_S:
            taken.popleft()
        assert len(taken) <= most


def test_an_hour_of_asking_gives_all_that_is_allowed() -> None:
    allowances = hourly(60, 0)

    assert sum(allowances.take(WHOLE, second) for second in range(3601)) == 60
