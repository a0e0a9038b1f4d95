"""Due actions of consolidation, requests by annotation, and the resulting status."""

from typing import Any

import pytest

from agentmemory_operator.consolidation.rules.status import (
    Action,
    ConsolidationState,
    Failure,
    PendingAction,
    last_status,
    next_action,
    request_annotation,
    with_consolidation,
    without_consolidation,
)
from agentmemory_operator.spec.effective.consolidation import effective_consolidation
from agentmemory_operator.spec.kinds.agent_memory import CONSOLIDATION_REQUESTED, AgentMemory
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.kinds.status_consolidation import ConsolidationStatus
from agentmemory_operator.spec.times import parse_time, render_second
from tests.support.spec.documents import memory_document

MODEL = {"model": "m", "baseURL": "http://llm.ml.svc/v1"}
CREATED = "2026-11-25T00:30:00Z"
HOUR_MS = 3_600_000
RUN = "0123456789ab"
DISTILLATION = "01a1ee5e-9b77-7000-aee8-766c17d6a07e"


def memory(asked: str | None = None, **consolidation: Any) -> AgentMemory:
    more = {"consolidation": {"model": MODEL} | consolidation.pop("spec", {})} | consolidation
    document = memory_document("a", **more)
    document["metadata"] |= {"creationTimestamp": CREATED}
    if asked is not None:
        document["metadata"]["annotations"] = {CONSOLIDATION_REQUESTED: asked}
    return parse_agent_memory(document)


def pending_action(object_: AgentMemory, last: dict[str, Any] | None = None) -> PendingAction | None:
    return next_action(object_, effective_consolidation(object_), last or {})


@pytest.mark.parametrize(("preset", "hour"), [("brain", 6), ("cognitive", 2)])
def test_run_is_due_by_the_preset_schedule(preset: str, hour: int) -> None:
    due = pending_action(memory(preset=preset))

    assert due is not None
    assert 0 <= due.due_ms - parse_time(f"2026-11-25T0{hour}:00:00Z") <= 300_000
    assert (due.action, due.request) == (Action.RUN, None)


@pytest.mark.parametrize(
    "object_",
    [
        pytest.param(lambda: memory(preset="cortex"), id="another preset"),
        pytest.param(lambda: memory(preset="brain", spec={"schedule": "Never"}), id="never"),
        pytest.param(lambda: memory(preset="brain", spec={"model": None}), id="no model"),
        pytest.param(lambda: memory(preset="brain", spec={"schedule": "0 0 31 2 *"}), id="a time that never comes"),
    ],
)
def test_nothing_is_due_without_schedule(object_: Any) -> None:
    assert pending_action(object_()) is None


def test_repeated_run_keeps_its_id() -> None:
    object_ = memory(preset="brain")
    first, again = pending_action(object_), pending_action(object_)
    later = pending_action(object_, {"time": "2026-11-25T07:00:00Z"})

    assert first is not None
    assert first == again
    assert later is not None
    assert later.run != first.run


@pytest.mark.parametrize(
    ("asked", "action", "run"),
    [
        ("now", Action.RUN, None),
        ("now dry-run", Action.DRY_RUN, None),
        (f"now undo {RUN}", Action.UNDO, RUN),
        (f"now approve {DISTILLATION}", Action.APPROVE, DISTILLATION),
        (f"now approve {RUN}", Action.APPROVE, RUN),
        (f"now reject {RUN}", Action.REJECT, RUN),
    ],
)
def test_request_is_due_once(asked: str, action: Action, run: str | None) -> None:
    object_ = memory(asked)
    due = pending_action(object_)

    assert due is not None
    assert (due.action, due.due_ms, due.request) == (action, 0, asked)
    assert run in (None, due.run)
    assert request_annotation("now", action, run) == asked
    assert pending_action(object_, {"requested": asked}) is None


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "now undo",
        "now undo everything",
        "now undo ../../x",
        f"now undo {RUN} {RUN}",
        "now merge",
        "x" * 129,
        "a b c d",
    ],
)
def test_invalid_annotation_requests_nothing(asked: str) -> None:
    assert pending_action(memory(asked)) is None


def test_undo_needs_no_model() -> None:
    without: dict[str, Any] = {"spec": {"model": None}}

    undo = pending_action(memory(f"now undo {RUN}", **without))
    assert undo is not None
    assert undo.action is Action.UNDO
    assert pending_action(memory("now", **without)) is None


def test_failed_run_is_retried_after_15_minutes() -> None:
    last = {"time": "2026-11-25T06:10:00Z", "action": "Run", "reason": "ModelUnavailable"}

    due = pending_action(memory(preset="brain"), last)

    assert due is not None
    assert render_second(due.due_ms / 1000) == "2026-11-25T06:25:00Z"


def status_after(last: dict[str, Any], old: dict[str, Any] | None = None, fault: str | None = None) -> dict[str, Any]:
    status: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "True"}]}
    return with_consolidation(status, ConsolidationState(last, fault=fault), old=old or {}, generation=1, now=CREATED)


DONE = PendingAction(Action.RUN, RUN, 0)


@pytest.mark.parametrize(
    ("counts", "failure", "expected"),
    [
        ({"counts": {"read": 2, "merged": 1}}, None, ("True", "ConsolidationDone")),
        ({}, None, ("True", "ConsolidationDone")),
        ({"stoppedBy": "calls", "counts": {"left": 3}}, None, ("True", "ConsolidationLimited")),
        ({"counts": {"invalid": 2}}, None, ("False", "ModelAnswersInvalid")),
        ({}, Failure("ModelUnavailable", "away"), ("False", "ModelUnavailable")),
    ],
)
def test_condition_shows_the_result_of_the_last_run(
    counts: dict[str, Any], failure: Failure | None, expected: tuple[str, str]
) -> None:
    last = last_status(DONE, counts, failure, started_ms=0, duration_ms=1_500)

    status = status_after(last)

    assert ConsolidationStatus.model_validate(status["lastConsolidation"])
    (condition,) = [one for one in status["conditions"] if one["type"] == "Consolidated"]
    assert (condition["status"], condition["reason"]) == expected
    assert without_consolidation(status) == {"conditions": [{"type": "Ready", "status": "True"}]}


def test_undo_keeps_the_condition() -> None:
    before = status_after(last_status(DONE, {}, None, started_ms=0, duration_ms=0))
    undone = last_status(PendingAction(Action.UNDO, RUN, 0, "now"), {}, None, started_ms=0, duration_ms=0)

    after = status_after(undone, before)

    assert after["conditions"] == before["conditions"]
    assert after["lastConsolidation"]["requested"] == "now"


def test_impossible_schedule_is_reported() -> None:
    settings = effective_consolidation(memory(preset="brain", spec={"schedule": "0 0 31 2 *"}))

    assert settings is not None
    (condition,) = [
        one for one in status_after({}, fault=settings.fault)["conditions"] if one["type"] == "Consolidated"
    ]
    assert (condition["status"], condition["reason"]) == ("False", "ScheduleRejected")
    assert "spec.consolidation.schedule" in condition["message"]
