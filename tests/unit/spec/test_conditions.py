"""Conditions: setting, merging, and the time of the last transition."""

from typing import Any

import pytest

from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, is_true, merge_conditions

BEFORE, NOW = "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z"


def condition(status: str, **more: Any) -> dict[str, Any]:
    return {"type": "Ready", "status": status, "reason": "Serving", "message": "m", "lastTransitionTime": BEFORE} | more


def merged(old: list[dict[str, Any]], state: ConditionState) -> dict[str, Any]:
    (only,) = merge_conditions(old, [state], generation=4, now=NOW)
    return only


@pytest.mark.parametrize(("status", "text"), [(True, "True"), (False, "False"), (None, "Unknown")])
def test_new_condition_has_the_current_time(status: bool | None, text: str) -> None:
    assert merged([], ConditionState("Ready", status, Reason.INDEXING, "text")) == {
        "type": "Ready",
        "status": text,
        "reason": "Indexing",
        "message": "text",
        "observedGeneration": 4,
        "lastTransitionTime": NOW,
    }


def test_changed_reason_keeps_the_time() -> None:
    after = merged([condition("True")], ConditionState("Ready", True, "Other", "other"))

    assert (after["lastTransitionTime"], after["reason"], after["message"]) == (BEFORE, "Other", "other")


def test_changed_status_updates_the_time() -> None:
    assert merged([condition("True")], ConditionState("Ready", False, "Serving", "m"))["lastTransitionTime"] == NOW


def test_type_without_a_state_is_dropped() -> None:
    old = [condition("True", type="Stalled"), condition("True")]

    conditions = merge_conditions(old, [ConditionState("Ready", True, "Serving", "m")], generation=1, now=NOW)

    assert [entry["type"] for entry in conditions] == ["Ready"]


def test_reason_is_plain_text() -> None:
    assert type(merged([], ConditionState("Ready", True, Reason.SERVING, "m"))["reason"]) is str


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [([], False), ([condition("True")], True), ([condition("False")], False), ([condition("True", type="X")], False)],
)
def test_is_true_checks_type_and_status(conditions: list[dict[str, Any]], expected: bool) -> None:
    assert is_true(conditions, "Ready") is expected
