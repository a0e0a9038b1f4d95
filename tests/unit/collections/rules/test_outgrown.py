"""Condition of an agent with more memories than its layout supports."""

from typing import Any

import pytest

from agentmemory_operator.collections.rules.outgrown import CONDITION, build_outgrown_condition, has_passed_step
from tests.support.spec.plans import (
    desired_of,
    observed_of,
    with_changes,
)

SMALL = desired_of()
LARGE = with_changes(SMALL, m=32, ef_construct=256)


def reason_of(points: int, *, expected: int = 100_000, before: str | None = None, is_large: bool = False) -> str | None:
    old = status_of(before)
    state = build_outgrown_condition(observed_of(LARGE if is_large else SMALL, points=points), expected, old)
    return state and state.reason


def status_of(reason: str | None) -> dict[str, Any]:
    return {"conditions": [{"type": CONDITION, "status": "True", "reason": reason, "message": "m"}]} if reason else {}


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        (100_000, None),
        (100_001, "GraphOutgrown"),
        (500_000, "GraphOutgrown"),
        (500_001, "ServerOutgrown"),
        (1_000_001, "NodeOutgrown"),
    ],
)
def test_each_step_has_its_reason(points: int, reason: str | None) -> None:
    assert reason_of(points) == reason


def test_expected_memories_are_not_outgrown() -> None:
    assert reason_of(400_000, expected=500_000) is None
    assert reason_of(600_000, expected=500_000) == "ServerOutgrown"
    assert reason_of(900_000, expected=1_000_000) is None
    assert reason_of(5_000_000, expected=2_000_000) is None


def test_large_graph_meets_first_step() -> None:
    assert reason_of(200_000, is_large=True) is None
    assert reason_of(600_000, is_large=True) == "ServerOutgrown"


def test_reason_has_hysteresis() -> None:
    assert reason_of(99_000) is None
    assert reason_of(99_000, before="GraphOutgrown") == "GraphOutgrown"
    assert reason_of(90_000, before="GraphOutgrown") is None
    assert reason_of(480_000, before="ServerOutgrown") == "ServerOutgrown"
    assert reason_of(440_000, before="ServerOutgrown") == "GraphOutgrown"


def test_message_is_stable() -> None:
    messages = {
        state.message
        for points in (150_000, 160_000)
        if (state := build_outgrown_condition(observed_of(SMALL, points=points), 1, {}))
    }

    assert len(messages) == 1


@pytest.mark.parametrize(
    ("old", "new", "is_news"),
    [
        (None, "GraphOutgrown", True),
        ("GraphOutgrown", "GraphOutgrown", False),
        ("GraphOutgrown", "NodeOutgrown", True),
        ("NodeOutgrown", "GraphOutgrown", False),
        ("GraphOutgrown", None, False),
    ],
)
def test_only_higher_step_is_news(old: str | None, new: str | None, is_news: bool) -> None:
    assert has_passed_step(status_of(old), status_of(new)) is is_news
