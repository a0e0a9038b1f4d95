"""Epochs: each is greater than all before it, whatever the metadata contains."""

import pytest

from agentmemory_operator.collections.rules.epochs import (
    CLOSED_KEY,
    EPOCH_KEY,
    Epoch,
    closed_to_json,
    epoch_to_json,
    next_epoch,
    read_epoch,
    read_reopening_epoch,
)


@pytest.mark.parametrize(("now_ms", "least"), [(0, 0), (10, 0), (500, 0), (20, 900)])
def test_next_epoch_is_greater(now_ms: int, least: int) -> None:
    """A move that copies writes keeps the contents number."""
    last = Epoch(number=100, contents=50)

    moved, restored = (
        next_epoch(last, now_ms, copies_writes=is_copying, min_number=least) for is_copying in (True, False)
    )

    assert moved.number == restored.number == max(101, now_ms, least)
    assert (moved.contents, restored.contents) == (50, restored.number)
    assert read_epoch(epoch_to_json(restored)) == restored


@pytest.mark.parametrize(
    "value", [None, 7, "7", {}, {"number": True}, {"number": -1}, {"number": 1 << 60}, {"number": "x"}]
)
def test_invalid_epoch_is_first(value: object) -> None:
    assert read_epoch({EPOCH_KEY: value}) == Epoch()


def test_closed_until_is_read() -> None:
    """Older versions wrote no epoch."""
    assert read_reopening_epoch(closed_to_json("agents/undo", None, 7)) == 7
    assert read_reopening_epoch({CLOSED_KEY: {"restore": "agents/undo"}}) == 0
    assert read_reopening_epoch({CLOSED_KEY: "yes"}) == 0
    assert read_reopening_epoch({}) is None is read_reopening_epoch(None)
