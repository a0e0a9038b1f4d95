"""Shares of what all have, the slowest, who takes too much time, and how often something may be done."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.runtime.rules.fair_shares import (
    HOUR_S,
    SHARED_KEY,
    LoopTimeShares,
    MinimumRate,
    RecentThroughput,
    StallDetector,
    TokenBuckets,
    hourly_bucket,
    may_take_slot,
)

PACE = MinimumRate(bytes_s=100, window_s=10.0)


@pytest.mark.parametrize(("most", "callers", "each"), [(1, 1, 1), (2, 1, 1), (512, 1, 224), (9, 2, 3), (256, 3, 56)])
def test_each_of_some_greedy_callers_has_as_much_as_is_left(most: int, callers: int, each: int) -> None:
    mine = [0] * callers
    for _ in range(most):
        for caller in range(callers):
            mine[caller] += may_take_slot(mine[caller], sum(mine), most)

    assert mine == [each] * callers


@given(st.lists(st.integers(0, 9), max_size=400), st.integers(88, 200))
def test_whoever_comes_new_finds_a_place_however_greedy_the_others_are_in_turn(wants: list[int], most: int) -> None:
    mine: dict[int, int] = {}
    for caller in wants:
        mine[caller] = mine.get(caller, 0) + may_take_slot(mine.get(caller, 0), sum(mine.values()), most)

    assert may_take_slot(0, sum(mine.values()), most)


def test_callers_who_come_one_after_the_other_do_not_take_all() -> None:
    taken = 0
    for _ in range(40):
        mine = 0
        while may_take_slot(mine, taken, 512):
            mine, taken = mine + 1, taken + 1

    assert may_take_slot(0, taken, 512)


def flow(*came: tuple[int, float]) -> RecentThroughput:
    made = RecentThroughput(max_bytes=1000, half_life_s=5.0)
    for size, now_s in came:
        made.add(size, now_s)
    return made


def test_the_slowest_is_whose_bytes_came_long_ago_however_many_they_were() -> None:
    new, steady = flow(), flow(*((500, float(second)) for second in range(60)))
    stalled, dripping = flow((10**9, 1.0)), flow(*((1, float(second)) for second in range(60)))

    # The new one began at 0 s of its own time.
    levels = [new.level(0.0), steady.level(60.0), stalled.level(60.0), dripping.level(60.0)]
    assert levels[0] > levels[1] > 800 > 20 > levels[3] > levels[2]


def looks(*seen: tuple[float, int, int]) -> list[bool]:
    leaving = StallDetector()
    return [leaving.is_too_slow(PACE, now_s=now_s, waiting=waiting, sent_bytes=left) for now_s, waiting, left in seen]


@pytest.mark.parametrize(
    ("seen", "ends"),
    [
        ("nothing leaves", [(0, 5000, 0), (5, 5000, 0), (10, 5000, 0)]),
        ("less than the least leaves", [(0, 5000, 0), (10, 4001, 999)]),
        ("it leaves fast at first", [(0, 9000, 0), (10, 5000, 4000), (20, 4900, 4100)]),
        ("a little waits and does not leave", [(0, 50, 0), (10, 90, 49)]),
    ],
)
def test_who_takes_nothing_in_a_window_is_too_slow(seen: str, ends: list[tuple[float, int, int]]) -> None:
    assert looks(*ends) == [False] * (len(ends) - 1) + [True], seen


@pytest.mark.parametrize(
    ("seen", "ends"),
    [
        ("the least leaves", [(0, 5000, 0), (10, 4000, 1000), (20, 3000, 2000)]),
        ("all left meanwhile", [(0, 5000, 0), (5, 0, 5000), (10, 5000, 5000), (19, 5000, 5000)]),
        ("little is written, and read", [(0, 50, 0), (10, 60, 50), (20, 70, 110)]),
    ],
)
def test_who_takes_enough_is_not(seen: str, ends: list[tuple[float, int, int]]) -> None:
    assert looks(*ends) == [False] * len(ends), seen


def test_who_takes_more_than_an_equal_part_of_a_busy_process_takes_too_much() -> None:
    times = LoopTimeShares()
    times.add("idle", 0.0, 100.0)
    for _ in range(6):
        times.add("greedy", 0.1, 100.1)
    times.add("modest", 0.1, 100.2)

    assert not times.takes_too_much("greedy", 100.9)
    assert [times.takes_too_much(key, 101.0) for key in ("greedy", "modest", "idle", "new")] == [True] + [False] * 3
    assert not times.takes_too_much("greedy", 102.0)


def test_one_alone_never_takes_too_much_nor_anybody_of_an_idle_process() -> None:
    times = LoopTimeShares()
    times.add("alone", 0.9, 100.0)
    times.add("alone", 0.4, 101.0)

    assert not times.takes_too_much("alone", 101.5)
    times.add("other", 0.05, 101.6)
    assert not times.takes_too_much("alone", 102.1)


def test_a_burst_is_granted_and_then_one_at_a_time() -> None:
    allowances = TokenBuckets(burst=3, refill_s=60)

    assert [allowances.take("a", 0) for _ in range(5)] == [True, True, True, False, False]
    assert [allowances.take("a", 59.9), allowances.take("a", 60), allowances.take("a", 60)] == [False, True, False]


def test_one_key_takes_nothing_from_another() -> None:
    allowances = TokenBuckets(burst=1, refill_s=60)
    allowances.take("a", 0)

    assert allowances.take("b", 0)


def test_a_long_rest_saves_up_no_more_than_a_burst() -> None:
    allowances = TokenBuckets(burst=2, refill_s=60)
    allowances.take("a", 0)

    assert [allowances.take("a", 10_000) for _ in range(3)] == [True, True, False]


def test_the_key_that_was_asked_about_longest_ago_is_forgotten() -> None:
    allowances = TokenBuckets(burst=1, refill_s=60, max_keys=2)
    for key in ("a", "b", "c"):
        allowances.take(key, 0)

    assert [allowances.take("c", 0), allowances.take("a", 0)] == [False, True]


@given(st.integers(1, 5000), st.lists(st.floats(0, 900), max_size=60), st.sets(st.integers(0, 59)))
def test_in_no_hour_more_is_taken_than_allowed_though_whoever_takes_begins_anew(
    most: int, waits: list[float], restarts: set[int]
) -> None:
    allowances, now_s, taken = hourly_bucket(most, 0), 0.0, deque[float]()
    for number, wait_s in enumerate(waits):
        now_s += wait_s
        if number in restarts:
            allowances = hourly_bucket(most, now_s)
        while allowances.take(SHARED_KEY, now_s):
            taken.append(now_s)
        while taken and taken[0] <= now_s - HOUR_S:
            taken.popleft()
        assert len(taken) <= most


def test_an_hour_of_asking_gives_all_that_is_allowed() -> None:
    allowances = hourly_bucket(60, 0)

    assert sum(allowances.take(SHARED_KEY, second) for second in range(3601)) == 60
