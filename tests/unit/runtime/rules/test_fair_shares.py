"""Fair shares of slots, throughput and loop time; stall detection; token buckets."""

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


@pytest.mark.parametrize(("limit", "callers", "each"), [(1, 1, 1), (2, 1, 1), (512, 1, 224), (9, 2, 3), (256, 3, 56)])
def test_greedy_callers_share_slots_equally(limit: int, callers: int, each: int) -> None:
    slots = [0] * callers
    for _ in range(limit):
        for caller in range(callers):
            slots[caller] += may_take_slot(slots[caller], sum(slots), limit)

    assert slots == [each] * callers


@given(st.lists(st.integers(0, 9), max_size=400), st.integers(88, 200))
def test_newcomer_always_gets_a_slot(wants: list[int], limit: int) -> None:
    slots: dict[int, int] = {}
    for caller in wants:
        slots[caller] = slots.get(caller, 0) + may_take_slot(slots.get(caller, 0), sum(slots.values()), limit)

    assert may_take_slot(0, sum(slots.values()), limit)


def test_successive_callers_leave_a_slot() -> None:
    used = 0
    for _ in range(40):
        slots = 0
        while may_take_slot(slots, used, 512):
            slots, used = slots + 1, used + 1

    assert may_take_slot(0, used, 512)


def flow(*additions: tuple[int, float]) -> RecentThroughput:
    throughput = RecentThroughput(max_bytes=1000, half_life_s=5.0)
    for size, now_s in additions:
        throughput.add(size, now_s)
    return throughput


def test_throughput_decays_with_time() -> None:
    new, steady = flow(), flow(*((500, float(second)) for second in range(60)))
    stalled, dripping = flow((10**9, 1.0)), flow(*((1, float(second)) for second in range(60)))

    # `new` is read at 0 s, when it starts.
    levels = [new.level(0.0), steady.level(60.0), stalled.level(60.0), dripping.level(60.0)]
    assert levels[0] > levels[1] > 800 > 20 > levels[3] > levels[2]


def too_slow_checks(*observed: tuple[float, int, int]) -> list[bool]:
    detector = StallDetector()
    return [
        detector.is_too_slow(PACE, now_s=now_s, unsent_bytes=waiting, sent_bytes=left)
        for now_s, waiting, left in observed
    ]


@pytest.mark.parametrize(
    ("situation", "observations"),
    [
        ("nothing is sent", [(0, 5000, 0), (5, 5000, 0), (10, 5000, 0)]),
        ("less than the minimum rate", [(0, 5000, 0), (10, 4001, 999)]),
        ("fast at first", [(0, 9000, 0), (10, 5000, 4000), (20, 4900, 4100)]),
        ("a small backlog is not sent", [(0, 50, 0), (10, 90, 49)]),
    ],
)
def test_stalled_reader_is_too_slow(situation: str, observations: list[tuple[float, int, int]]) -> None:
    assert too_slow_checks(*observations) == [False] * (len(observations) - 1) + [True], situation


@pytest.mark.parametrize(
    ("situation", "observations"),
    [
        ("exactly the minimum rate", [(0, 5000, 0), (10, 4000, 1000), (20, 3000, 2000)]),
        ("backlog was empty in between", [(0, 5000, 0), (5, 0, 5000), (10, 5000, 5000), (19, 5000, 5000)]),
        ("small writes are read", [(0, 50, 0), (10, 60, 50), (20, 70, 110)]),
    ],
)
def test_steady_reader_is_not_too_slow(situation: str, observations: list[tuple[float, int, int]]) -> None:
    assert too_slow_checks(*observations) == [False] * len(observations), situation


def test_more_than_equal_loop_time_is_too_much() -> None:
    times = LoopTimeShares()
    times.add("idle", 0.0, 100.0)
    for _ in range(6):
        times.add("greedy", 0.1, 100.1)
    times.add("modest", 0.1, 100.2)

    assert not times.has_exceeded_share("greedy", 100.9)
    assert [times.has_exceeded_share(key, 101.0) for key in ("greedy", "modest", "idle", "new")] == [True] + [False] * 3
    assert not times.has_exceeded_share("greedy", 102.0)


def test_single_caller_never_takes_too_much() -> None:
    times = LoopTimeShares()
    times.add("alone", 0.9, 100.0)
    times.add("alone", 0.4, 101.0)

    assert not times.has_exceeded_share("alone", 101.5)
    times.add("other", 0.05, 101.6)
    assert not times.has_exceeded_share("alone", 102.1)


def test_bucket_grants_burst_then_refills() -> None:
    buckets = TokenBuckets(burst=3, refill_s=60)

    assert [buckets.take("a", 0) for _ in range(5)] == [True, True, True, False, False]
    assert [buckets.take("a", 59.9), buckets.take("a", 60), buckets.take("a", 60)] == [False, True, False]


def test_buckets_are_independent() -> None:
    buckets = TokenBuckets(burst=1, refill_s=60)
    buckets.take("a", 0)

    assert buckets.take("b", 0)


def test_bucket_is_capped_at_burst() -> None:
    buckets = TokenBuckets(burst=2, refill_s=60)
    buckets.take("a", 0)

    assert [buckets.take("a", 10_000) for _ in range(3)] == [True, True, False]


def test_least_recently_used_key_is_evicted() -> None:
    buckets = TokenBuckets(burst=1, refill_s=60, max_keys=2)
    for key in ("a", "b", "c"):
        buckets.take(key, 0)

    assert [buckets.take("c", 0), buckets.take("a", 0)] == [False, True]


@given(st.integers(1, 5000), st.lists(st.floats(0, 900), max_size=60), st.sets(st.integers(0, 59)))
def test_hourly_limit_survives_restarts(limit: int, waits: list[float], restarts: set[int]) -> None:
    buckets, now_s, used = hourly_bucket(limit, 0), 0.0, deque[float]()
    for number, wait_s in enumerate(waits):
        now_s += wait_s
        if number in restarts:
            buckets = hourly_bucket(limit, now_s)
        while buckets.take(SHARED_KEY, now_s):
            used.append(now_s)
        while used and used[0] <= now_s - HOUR_S:
            used.popleft()
        assert len(used) <= limit


def test_hourly_bucket_grants_full_limit() -> None:
    buckets = hourly_bucket(60, 0)

    assert sum(buckets.take(SHARED_KEY, second) for second in range(3601)) == 60
