"""Fair queue: slots shared by tenant and lane, without starvation or leftovers."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.runtime.fair_queue import FairQueue, TenantLane


def line_of(*keys: str, share: int = 4, width: int = 8) -> FairQueue[str]:
    """Return a queue of keys like `a1-3`: key 3 of tenant a in lane 1."""
    line: FairQueue[str] = FairQueue(share, width)
    for key in keys:
        line.put(key, place_of(key))
    return line


def place_of(key: str) -> TenantLane:
    return TenantLane(key[0], key[1])


def many(place: str, count: int) -> list[str]:
    return [f"{place}-{number:03d}" for number in range(count)]


def take_all(line: FairQueue[str]) -> list[str]:
    """Return all keys that get a slot now."""
    return [turn[0] for turn in iter(line.take, None)]


def tenants(keys: Iterable[str]) -> dict[str, int]:
    return dict(Counter(key[0] for key in keys))


@pytest.mark.parametrize(
    ("waiting", "share", "slots"),
    [
        pytest.param({"a": 100}, 4, {"a": 4}, id="one tenant gets its share"),
        pytest.param({"a": 1}, 4, {"a": 1}, id="fewer keys than the share"),
        pytest.param({"a": 100, "b": 100}, 32, {"a": 22, "b": 21}, id="two tenants are equal and slots stay free"),
        pytest.param({"a": 100, "b": 1}, 4, {"a": 4, "b": 1}, id="a small tenant takes no share of others"),
        pytest.param(
            dict.fromkeys("abcdefgh", 9), 4, dict.fromkeys("abcdefgh", 1), id="as many tenants as slots: one each"
        ),
        pytest.param(dict.fromkeys("abcd", 9), 1, {"a": 1, "b": 1}, id="more tenants than slots: the first ones"),
    ],
)
def test_slots_are_shared_by_tenant(waiting: dict[str, int], share: int, slots: dict[str, int]) -> None:
    keys = [key for name, count in waiting.items() for key in many(f"{name}1", count)]

    assert tenants(take_all(line_of(*keys, share=share, width=100))) == slots


def test_newcomer_gets_a_slot_despite_endless_ones() -> None:
    line = line_of(share=32, width=100)
    held = []
    for name in "abcdef":
        for key in many(f"{name}1", 100):
            line.put(key, place_of(key))
        held.append(len(take_all(line)))

    assert held == [32, 16, 8, 4, 2, 1]


def test_lane_of_one_tenant_is_limited_to_width() -> None:
    line = line_of(*many("a1", 9), *many("a2", 9), share=32, width=3)

    assert Counter(key[:2] for key in take_all(line)) == {"a1": 3, "a2": 3}


def test_shared_lane_has_a_slot_for_a_newcomer() -> None:
    line = line_of(*many("a1", 9), share=32, width=1)
    assert take_all(line) == ["a1-000"]

    line.put("b1-000", place_of("b1-000"))
    line.put("b1-001", place_of("b1-001"))

    assert take_all(line) == ["b1-000"]


def test_released_slot_goes_to_tenant_without_one() -> None:
    line = line_of(*many("a1", 2), *many("b1", 2), *many("c1", 2), share=32, width=1)
    assert take_all(line) == ["a1-000", "b1-000"]

    line.release(place_of("a1"))

    assert take_all(line) == ["c1-000"], "tenants without a slot are first"


def test_tenants_alternate() -> None:
    line, order = line_of(*many("a1", 50), *many("b1", 3), share=1), []
    while turn := line.take():
        order.append(turn[0][0])
        line.release(turn[1])

    assert "".join(order[:6]) == "ababab"
    assert len(order) == 53


def test_lanes_of_a_tenant_alternate() -> None:
    line, order = line_of(*many("a1", 50), *many("a2", 3), share=1), []
    while turn := line.take():
        order.append(turn[0][1])
        line.release(turn[1])

    assert "".join(order[:6]) == "121212"


def test_key_waits_once_and_can_be_dropped() -> None:
    line = line_of("a1-0", "a1-0", "b1-0")
    assert len(line) == 2

    line.drop("a1-0")
    line.drop("a1-0")
    line.drop("unknown")

    assert ("a1-0" in line, take_all(line)) == (False, ["b1-0"])


def test_dropped_key_of_full_lane_leaves_no_state() -> None:
    line = line_of("a1-0", "a1-1", width=1)
    [first] = take_all(line)

    line.drop("a1-1")
    line.release(place_of(first))

    assert take_all(line) == []
    assert not line._shut_out
    assert not line._tenants


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("12"), st.integers(0, 3), st.sampled_from("pde")),
        max_size=60,
    ),
    st.integers(1, 3),
    st.integers(1, 2),
)
def test_limits_hold_without_starvation(steps: list[tuple[str, str, int, str]], share: int, width: int) -> None:
    """Steps: `p` puts a key, `d` drops it, `e` ends the oldest slot."""
    line = line_of(share=share, width=width)
    waiting: set[str] = set()
    running: list[str] = []

    def start_ready() -> None:
        for key in take_all(line):
            assert key in waiting
            waiting.discard(key)
            running.append(key)
        own, lanes = tenants(running), Counter(key[1] for key in running)
        assert len(running) <= 2 * share
        assert all(count <= share for count in own.values())
        assert all(count <= 2 * width for count in lanes.values())
        assert all(count <= width for count in Counter(key[:2] for key in running).values())
        assert running or not waiting

    for tenant, lane, number, step in steps:
        key = f"{tenant}{lane}-{number}"
        if step == "p" and key not in running:
            line.put(key, place_of(key))
            waiting.add(key)
        elif step == "d":
            line.drop(key)
            waiting.discard(key)
        elif running:
            line.release(place_of(running.pop(0)))
        start_ready()
    while running:
        line.release(place_of(running.pop(0)))
        start_ready()

    assert (len(line), waiting) == (0, set())
    assert not line._tenants
    assert not line._in_lane
    assert not line._in_tenant_lane
    assert not line._shut_out
