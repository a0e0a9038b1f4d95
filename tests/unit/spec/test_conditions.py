"""Conditions: set, merge, and the time of the last transition."""

from typing import Any

import pytest

from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, is_true, merge_conditions

BEFORE, NOW = "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z"


def condition(status: str, **more: Any) -> dict[str, Any]:
    return {"type": "Ready", "status": status, "reason": "Serving", "message": "m", "lastTransitionTime": BEFORE} | more


def merged(old: list[dict[str, Any]], state: ConditionState) -> dict[str, Any]:
    (only,) = merge_conditions(old, [state], generation=4, now=NOW)
    return only


@pytest.mark.parametrize(("status", "shown"), [(True, "True"), (False, "False"), (None, "Unknown")])
def test_a_new_condition_changes_now(status: bool | None, shown: str) -> None:
    assert merged([], ConditionState("Ready", status, Reason.INDEXING, "text")) == {
        "type": "Ready",
        "status": shown,
        "reason": "Indexing",
        "message": "text",
        "observedGeneration": 4,
        "lastTransitionTime": NOW,
    }


def test_the_time_stays_while_the_status_stays_though_the_reason_changes() -> None:
    after = merged([condition("True")], ConditionState("Ready", True, "Other", "other"))

    assert (after["lastTransitionTime"], after["reason"], after["message"]) == (BEFORE, "Other", "other")


def test_the_time_moves_with_the_status() -> None:
    assert merged([condition("True")], ConditionState("Ready", False, "Serving", "m"))["lastTransitionTime"] == NOW


def test_a_type_that_no_longer_holds_is_dropped() -> None:
    old = [condition("True", type="Stalled"), condition("True")]

    kept = merge_conditions(old, [ConditionState("Ready", True, "Serving", "m")], generation=1, now=NOW)

    assert [entry["type"] for entry in kept] == ["Ready"]


def test_a_reason_is_plain_text_in_the_status() -> None:
    assert type(merged([], ConditionState("Ready", True, Reason.SERVING, "m"))["reason"]) is str


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [([], False), ([condition("True")], True), ([condition("False")], False), ([condition("True", type="X")], False)],
)
def test_only_a_condition_of_that_type_and_status_is_true(conditions: list[dict[str, Any]], expected: bool) -> None:
    assert is_true(conditions, "Ready") is expected
