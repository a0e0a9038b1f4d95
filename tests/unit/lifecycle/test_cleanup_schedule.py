"""Due times of cleanups: schedule, missed runs, spread over objects, and requests."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from agentmemory_operator.lifecycle.rules.cleanup_status import due_ms
from agentmemory_operator.spec.cron import MAX_SPREAD_MS
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_CLEANUP, CLEANUP_REQUESTED_AT, AgentMemory
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.presets import Lifecycle
from tests.support.spec.golden import manifest

DAILY = Lifecycle(schedule="0 3 * * *")
BORN = "2026-11-20T12:00:00Z"


def ms(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp() * 1000)


def memory_of(uid: str = "u", **annotations: str) -> AgentMemory:
    memory = parse_agent_memory(manifest())
    metadata = memory.metadata.model_copy(update={"uid": uid, "creation_timestamp": BORN, "annotations": annotations})
    return memory.model_copy(update={"metadata": metadata})


def due(last: dict[str, Any], *, lifecycle: Lifecycle = DAILY, memory: AgentMemory | None = None) -> int | None:
    return due_ms(memory or memory_of(), lifecycle, last)


def test_first_run_is_first_time_after_creation() -> None:
    found = due({})

    assert found is not None
    assert 0 <= found - ms("2026-11-21T03:00:00Z") <= MAX_SPREAD_MS


def test_missed_times_become_one_run() -> None:
    missed, on_time = due({"time": "2026-11-01T03:00:00Z"}), due({"time": "2026-11-22T09:15:00Z"})

    assert missed is not None
    assert on_time is not None
    assert missed < ms("2026-11-03T00:00:00Z")
    assert on_time > ms("2026-11-23T02:59:59Z")


def test_objects_are_spread_at_stable_times() -> None:
    times = [due({}, memory=memory_of(uid=str(number))) for number in range(100)]

    assert len(set(times)) > 90
    assert times == [due({}, memory=memory_of(uid=str(number))) for number in range(100)]


def test_minutely_run_stays_within_its_minute() -> None:
    every_minute = replace(DAILY, schedule="* * * * *")
    times = [due({}, lifecycle=every_minute, memory=memory_of(uid=str(number))) or 0 for number in range(50)]

    assert max(times) - ms("2026-11-20T12:01:00Z") <= 6_000


@pytest.mark.parametrize("lifecycle", [replace(DAILY, schedule="Never"), replace(DAILY, time_zone="Mars/Olympus")])
def test_invalid_or_no_schedule_is_never_due(lifecycle: Lifecycle) -> None:
    assert due({}, lifecycle=lifecycle) is None


def test_requested_run_is_due_once() -> None:
    requested = memory_of(**{CLEANUP_REQUESTED_AT: "today"})

    assert due({}, memory=requested, lifecycle=replace(DAILY, schedule="Never")) == 0
    assert due({"time": BORN, "requestedAt": "today"}, memory=requested) != 0


def test_approval_applies_to_its_held_run_only() -> None:
    approved = memory_of(**{APPROVE_CLEANUP: "abc"})

    assert due({"time": BORN, "held": {"digest": "abc"}}, memory=approved) == 0
    assert due({"time": BORN, "held": {"digest": "abd"}}, memory=approved) != 0
    assert due({"time": BORN}, memory=approved) != 0
