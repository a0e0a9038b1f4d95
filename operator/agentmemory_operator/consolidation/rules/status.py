"""Consolidations in the status of an object: the next action, requests in the annotation, and the last result. Pure."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentmemory_operator.spec.cron import next_run_ms
from agentmemory_operator.spec.effective.consolidation import ConsolidationSettings
from agentmemory_operator.spec.kinds.agent_memory import CONSOLIDATION_REQUESTED, AgentMemory
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, find_condition, merge_conditions
from agentmemory_operator.spec.times import parse_time, render_second

Json = dict[str, Any]

CONSOLIDATED = "Consolidated"
"""Type of the condition that reports the last run."""
LAST_FIELD, NEXT_FIELD = "lastConsolidation", "nextConsolidationTime"

RETRY_MS = 900_000
"""Milliseconds from the start of a failed run to its repetition, unless the next scheduled run is earlier."""
MAX_REQUEST_CHARS = 128
TIME_ZONE = "Etc/UTC"
# Ids of runs that may be undone: hex digits of a consolidation, or the UUID of a distillation.
_RUN_ID = re.compile(r"[0-9a-f]{12}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Action(StrEnum):
    """Kind of action: a run, a dry run that changes nothing, or a decision about the results of an earlier run."""

    RUN = "Run"
    DRY_RUN = "DryRun"
    UNDO = "Undo"
    APPROVE = "Approve"
    REJECT = "Reject"


_WORDS = {"dry-run": Action.DRY_RUN, "undo": Action.UNDO, "approve": Action.APPROVE, "reject": Action.REJECT}
NEEDS_MODEL = frozenset({Action.RUN, Action.DRY_RUN})


@dataclass(frozen=True, slots=True)
class PendingAction:
    """Next action for an object.

    Attributes:
        run: Id of the run to do, undo, approve or reject.
        due_ms: Time from which the action may start, Unix milliseconds; 0 if it is due now.
        request: Value of the annotation that requests it. None for a scheduled run.
    """

    action: Action
    run: str
    due_ms: int
    request: str | None = None


def request_annotation(stamp: str, action: Action, run: str | None = None) -> str:
    """Build the value of the annotation that requests an action.

    Args:
        stamp: Unique text, so that a repeated request differs from the previous one.
        run: Id of the run to undo, approve or reject. None for a new run or dry run.
    """
    word = next((word for word, word_action in _WORDS.items() if word_action is action), None)
    return " ".join(part for part in (stamp, word, run) if part)


def is_run_id(text: str) -> bool:
    """Return whether a text has the form of a run's id: of a consolidation or of a distillation."""
    return bool(_RUN_ID.fullmatch(text))


def next_action(
    memory: AgentMemory, settings: ConsolidationSettings | None, last: Mapping[str, Any]
) -> PendingAction | None:
    """Return the action that the annotation requests, else the next scheduled run; None if there is neither.

    Args:
        settings: Consolidation settings of the object. None if it names no model: then requests for a run are ignored.
        last: Current value of `status.lastConsolidation`.
    """
    if (requested := _requested_action(memory, last)) and (settings or requested.action not in NEEDS_MODEL):
        return requested
    if settings is None or not settings.is_scheduled:
        return None
    since = last.get("time") or memory.metadata.creation_timestamp
    due_ms = next_run_ms(memory.metadata.uid, settings.schedule, TIME_ZONE, after=since)
    if due_ms is None:
        return None
    if since and last.get("reason") and last.get("action") == Action.RUN:
        due_ms = min(due_ms, parse_time(since) + RETRY_MS)
    return PendingAction(Action.RUN, _run_id(memory, str(due_ms)), due_ms)


def _requested_action(memory: AgentMemory, last: Mapping[str, Any]) -> PendingAction | None:
    """Return the action that the annotation requests. None without one, if it was done, or if its value is invalid."""
    text = memory.metadata.annotations.get(CONSOLIDATION_REQUESTED, "")
    if not text or len(text) > MAX_REQUEST_CHARS or text == last.get("requested"):
        return None
    match text.split():
        case [_]:
            return PendingAction(Action.RUN, _run_id(memory, text), 0, text)
        case [_, "dry-run"]:
            return PendingAction(Action.DRY_RUN, _run_id(memory, text), 0, text)
        case [_, ("undo" | "approve" | "reject") as word, run] if is_run_id(run):
            return PendingAction(_WORDS[word], run, 0, text)
    return None


def _run_id(memory: AgentMemory, trigger: str) -> str:
    """Return the id of a run: the same in every attempt and in every process."""
    return hashlib.sha256(f"{memory.metadata.uid}\x00{trigger}".encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason and message of a failed action."""

    reason: str
    message: str


def last_status(
    action: PendingAction, result: Mapping[str, Any], failure: Failure | None, *, started_ms: int, duration_ms: float
) -> Json:
    """Build `status.lastConsolidation` after an action.

    Args:
        result: Result of the action, as status fields.
        failure: None if the action succeeded. Its message is cut to 1,024 characters.
        started_ms: Start, Unix milliseconds.
        duration_ms: Duration in milliseconds.
    """
    status: Json = {
        "time": render_second(started_ms / 1000),
        "durationSeconds": round(duration_ms / 1000),
        "action": str(action.action),
        "run": action.run,
        **{name: value for name, value in result.items() if value not in (None, {})},
    }
    if action.request is not None:
        status["requested"] = action.request
    if failure:
        status |= {"reason": failure.reason, "message": failure.message[:1024]}
    return status


@dataclass(frozen=True, slots=True)
class ConsolidationState:
    """State of consolidation for an object.

    Attributes:
        last: `status.lastConsolidation`; empty before the first action.
        next_ms: Time of the next action, Unix milliseconds; 0 if it is due now, None if there is none.
        fault: Error in the schedule, or None.
    """

    last: Mapping[str, Any]
    next_ms: int | None = None
    fault: str | None = None


def with_consolidation(
    status: Json, standing: ConsolidationState, *, old: Mapping[str, Any], generation: int, now: str
) -> Json:
    """Return the status with the fields and the condition about consolidation.

    Args:
        status: New status without them.
        standing: State to report. If it has no fault and its last action was no run, the old condition stays.
        old: Previous status.
        generation: `metadata.generation` of the object.
        now: RFC 3339 UTC.
    """
    remaining, last, next_ms = without_consolidation(status), standing.last, standing.next_ms
    fields: Json = ({LAST_FIELD: dict(last)} if last else {}) | (
        {NEXT_FIELD: render_second(next_ms / 1000)} if next_ms else {}
    )
    state = _rejected(standing.fault) if standing.fault else _state(last)
    old_condition = find_condition(old, CONSOLIDATED)
    if state is None:
        states = [dict(old_condition)] if old_condition and last else []
    else:
        states = merge_conditions([old_condition] if old_condition else [], [state], generation=generation, now=now)
    return remaining | fields | {"conditions": [*(remaining.get("conditions") or []), *states]}


def without_consolidation(status: Json) -> Json:
    """Return the status without the fields and the condition about consolidation."""
    remaining = {name: value for name, value in status.items() if name not in (LAST_FIELD, NEXT_FIELD)}
    if "conditions" in remaining:
        remaining["conditions"] = [item for item in remaining["conditions"] or [] if item["type"] != CONSOLIDATED]
    return remaining


def _rejected(fault: str) -> ConditionState:
    message = f"spec.consolidation.schedule: {fault}; scheduled consolidation is off"
    return ConditionState("Consolidated", False, Reason.SCHEDULE_REJECTED, message)


def _state(last: Mapping[str, Any]) -> ConditionState | None:
    """Return the condition after the last action; None if that was not a run."""
    if last.get("action") != Action.RUN:
        return None
    counts = last.get("counts") or {}
    if reason := last.get("reason"):
        return ConditionState("Consolidated", False, reason, last.get("message") or "")
    if counts.get("invalid"):
        message = f"{counts['invalid']} answers of the model were unusable: choose another model, or check its service"
        return ConditionState("Consolidated", False, Reason.MODEL_ANSWERS_INVALID, message)
    if limit := last.get("stoppedBy"):
        message = f"the run stopped at its limit ({limit}); {counts.get('left', 0)} batches remain for the next run"
        return ConditionState("Consolidated", True, Reason.CONSOLIDATION_LIMITED, message)
    return ConditionState("Consolidated", True, Reason.CONSOLIDATION_DONE, render_counts(counts))


def render_counts(counts: Mapping[str, Any]) -> str:
    """Render counts as text, e.g. `read 12, merged 3`. If all are 0, the text is `nothing to consolidate`."""
    return ", ".join(f"{name} {number}" for name, number in counts.items() if number) or "nothing to consolidate"
