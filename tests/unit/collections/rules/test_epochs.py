"""Epochs: each greater than those before it, whatever was written where they lie."""

import pytest

from agentmemory_operator.collections.rules.epochs import (
    CLOSED_KEY,
    EPOCH_KEY,
    Epoch,
    closed_to_json,
    epoch_to_json,
    next_epoch,
    read_closed_until,
    read_epoch,
)


@pytest.mark.parametrize(("now_ms", "least"), [(0, 0), (10, 0), (500, 0), (20, 900)])
def test_the_next_epoch_is_greater_than_the_last_and_what_is_carried_over_keeps_its_contents(
    now_ms: int, least: int
) -> None:
    last = Epoch(number=100, contents=50)

    moved, restored = (next_epoch(last, now_ms, copies_writes=carries, min_number=least) for carries in (True, False))

    assert moved.number == restored.number == max(101, now_ms, least)
    assert (moved.contents, restored.contents) == (50, restored.number)
    assert read_epoch(epoch_to_json(restored)) == restored


@pytest.mark.parametrize(
    "told", [None, 7, "7", {}, {"number": True}, {"number": -1}, {"number": 1 << 60}, {"number": "x"}]
)
def test_what_is_no_epoch_is_the_first(told: object) -> None:
    assert read_epoch({EPOCH_KEY: told}) == Epoch()


def test_a_closed_collection_says_until_when_and_one_that_an_older_version_closed_does_not() -> None:
    assert read_closed_until(closed_to_json("agents/undo", None, 7)) == 7
    assert read_closed_until({CLOSED_KEY: {"restore": "agents/undo"}}) == 0
    assert read_closed_until({CLOSED_KEY: "yes"}) == 0
    assert read_closed_until({}) is None is read_closed_until(None)
