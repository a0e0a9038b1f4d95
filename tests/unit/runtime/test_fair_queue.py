"""Whose turn is next: shares of tenants, shares of lanes, nobody starved, nothing left behind."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.runtime.fair_queue import FairQueue, LinePlace


def line_of(*keys: str, share: int = 4, width: int = 8) -> FairQueue[str]:
    """Return a line of keys like `a1-3`: the third of tenant a in lane 1."""
    line: FairQueue[str] = FairQueue(share, width)
    for key in keys:
        line.put(key, place_of(key))
    return line


def place_of(key: str) -> LinePlace:
    return LinePlace(key[0], key[1])


def many(place: str, count: int) -> list[str]:
    return [f"{place}-{number:03d}" for number in range(count)]


def taken(line: FairQueue[str]) -> list[str]:
    """Return all who get their turn now."""
    return [turn[0] for turn in iter(line.take, None)]


def tenants(keys: Iterable[str]) -> dict[str, int]:
    return dict(Counter(key[0] for key in keys))


@pytest.mark.parametrize(
    ("waiting", "share", "turns"),
    [
        pytest.param({"a": 100}, 4, {"a": 4}, id="one alone has its share"),
        pytest.param({"a": 1}, 4, {"a": 1}, id="nobody gets more than waits"),
        pytest.param({"a": 100, "b": 100}, 32, {"a": 22, "b": 21}, id="two have the same, and places stay free"),
        pytest.param({"a": 100, "b": 1}, 4, {"a": 4, "b": 1}, id="one that asks little takes nobody's share"),
        pytest.param(dict.fromkeys("abcdefgh", 9), 4, dict.fromkeys("abcdefgh", 1), id="as many as places: one each"),
        pytest.param(dict.fromkeys("abcd", 9), 1, {"a": 1, "b": 1}, id="more than places: the first come"),
    ],
)
def test_turns_are_shared_out_by_tenant(waiting: dict[str, int], share: int, turns: dict[str, int]) -> None:
    keys = [key for name, count in waiting.items() for key in many(f"{name}1", count)]

    assert tenants(taken(line_of(*keys, share=share, width=100))) == turns


def test_each_newcomer_finds_a_place_beside_those_whose_turns_never_end() -> None:
    line = line_of(share=32, width=100)
    held = []
    for name in "abcdef":
        for key in many(f"{name}1", 100):
            line.put(key, place_of(key))
        held.append(len(taken(line)))

    assert held == [32, 16, 8, 4, 2, 1]


def test_a_lane_of_one_tenant_has_no_more_turns_than_its_width() -> None:
    line = line_of(*many("a1", 9), *many("a2", 9), share=32, width=3)

    assert Counter(key[:2] for key in taken(line)) == {"a1": 3, "a2": 3}


def test_a_lane_that_tenants_share_has_room_for_a_newcomer() -> None:
    line = line_of(*many("a1", 9), share=32, width=1)
    assert taken(line) == ["a1-000"]

    line.put("b1-000", place_of("b1-000"))
    line.put("b1-001", place_of("b1-001"))

    assert taken(line) == ["b1-000"]


def test_who_waits_for_a_full_lane_is_let_in_when_a_turn_there_ends() -> None:
    line = line_of(*many("a1", 2), *many("b1", 2), *many("c1", 2), share=32, width=1)
    assert taken(line) == ["a1-000", "b1-000"]

    line.release(place_of("a1"))

    assert taken(line) == ["c1-000"], "whoever had no turn yet comes first"


def test_tenants_take_turns_however_many_wait_of_one() -> None:
    line, order = line_of(*many("a1", 50), *many("b1", 3), share=1), []
    while turn := line.take():
        order.append(turn[0][0])
        line.release(turn[1])

    assert "".join(order[:6]) == "ababab"
    assert len(order) == 53


def test_lanes_of_a_tenant_take_turns() -> None:
    line, order = line_of(*many("a1", 50), *many("a2", 3), share=1), []
    while turn := line.take():
        order.append(turn[0][1])
        line.release(turn[1])

    assert "".join(order[:6]) == "121212"


def test_a_key_waits_once_and_can_be_dropped() -> None:
    line = line_of("a1-0", "a1-0", "b1-0")
    assert len(line) == 2

    line.drop("a1-0")
    line.drop("a1-0")
    line.drop("unknown")

    assert ("a1-0" in line, taken(line)) == (False, ["b1-0"])


def test_a_dropped_key_that_waited_for_a_full_lane_leaves_nothing_behind() -> None:
    line = line_of("a1-0", "a1-1", width=1)
    [first] = taken(line)

    line.drop("a1-1")
    line.release(place_of(first))

    assert taken(line) == []
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
def test_limits_hold_everyone_gets_a_turn_and_nothing_is_left(
    steps: list[tuple[str, str, int, str]], share: int, width: int
) -> None:
    """Whatever is put, dropped and ended in whatever order: `e` ends the oldest turn."""
    line = line_of(share=share, width=width)
    waiting: set[str] = set()
    running: list[str] = []

    def let_begin() -> None:
        for key in taken(line):
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
        let_begin()
    while running:
        line.release(place_of(running.pop(0)))
        let_begin()

    assert (len(line), waiting) == (0, set())
    assert not line._tenants
    assert not line._in_lane
    assert not line._at_place
    assert not line._shut_out
