"""Consolidations in an object's status: what is due, what was asked for, and what the last one came to. Pure."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentmemory_operator.spec.effective.consolidation import ConsolidationSettings
from agentmemory_operator.spec.kinds.agent_memory import CONSOLIDATION_REQUESTED, AgentMemory
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, condition_of, merge_conditions
from agentmemory_operator.spec.schedule import next_run_ms
from agentmemory_operator.spec.times import parse_time, render_second

Json = dict[str, Any]

CONSOLIDATED = "Consolidated"
"""The type of the condition."""
LAST, NEXT = "lastConsolidation", "nextConsolidationTime"

RETRY_MS = 900_000
"""After a run that failed, the next comes so much later, or when it is due anyway."""
MOST_ASKED_CHARS = 128
TIME_ZONE = "Etc/UTC"
# Of a consolidation, or of a distillation, which the API made.
_RUN_ID = re.compile(r"[0-9a-f]{12}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Action(StrEnum):
    """What is done."""

    RUN = "Run"
    DRY_RUN = "DryRun"
    UNDO = "Undo"
    APPROVE = "Approve"
    REJECT = "Reject"


_WORDS = {"dry-run": Action.DRY_RUN, "undo": Action.UNDO, "approve": Action.APPROVE, "reject": Action.REJECT}
NEEDS_MODEL = frozenset({Action.RUN, Action.DRY_RUN})


@dataclass(frozen=True, slots=True)
class Errand:
    """What is to be done next.

    Attributes:
        run: id of the run that it is, or is about.
        due_ms: Unix milliseconds; 0 is now.
        asked: what the annotation said, None where the schedule asks.
    """

    action: Action
    run: str
    due_ms: int
    asked: str | None = None


def asking(stamp: str, action: Action, run: str | None = None) -> str:
    """The value of the annotation that asks for something.

    Args:
        stamp: makes it another value than the one before.
    """
    word = next((word for word, meant in _WORDS.items() if meant is action), None)
    return " ".join(part for part in (stamp, word, run) if part)


def is_run_id(text: str) -> bool:
    """Whether a text is the id of a run."""
    return bool(_RUN_ID.fullmatch(text))


def errand_of(memory: AgentMemory, settings: ConsolidationSettings | None, last: Mapping[str, Any]) -> Errand | None:
    """What is to be done next for an object; None where nothing is.

    Args:
        settings: None where the object names no model.
        last: `status.lastConsolidation` as it now is.
    """
    if (asked := _asked(memory, last)) and (settings or asked.action not in NEEDS_MODEL):
        return asked
    if settings is None or not settings.is_scheduled:
        return None
    since = last.get("time") or memory.metadata.creation_timestamp
    due = next_run_ms(memory.metadata.uid, settings.schedule, TIME_ZONE, after=since)
    if due is None:
        return None
    if since and last.get("reason") and last.get("action") == Action.RUN:
        due = min(due, parse_time(since) + RETRY_MS)
    return Errand(Action.RUN, _run_id(memory, str(due)), due)


def _asked(memory: AgentMemory, last: Mapping[str, Any]) -> Errand | None:
    """What the annotation asks for, once; None of what it may not say."""
    text = memory.metadata.annotations.get(CONSOLIDATION_REQUESTED, "")
    if not text or len(text) > MOST_ASKED_CHARS or text == last.get("requested"):
        return None
    match text.split():
        case [_]:
            return Errand(Action.RUN, _run_id(memory, text), 0, text)
        case [_, "dry-run"]:
            return Errand(Action.DRY_RUN, _run_id(memory, text), 0, text)
        case [_, ("undo" | "approve" | "reject") as word, run] if is_run_id(run):
            return Errand(_WORDS[word], run, 0, text)
    return None


def _run_id(memory: AgentMemory, of: str) -> str:
    """The same for every attempt at a run, whoever makes it."""
    return hashlib.sha256(f"{memory.metadata.uid}\x00{of}".encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something did not come to its end."""

    reason: str
    message: str


def last_status(
    errand: Errand, told: Mapping[str, Any], failure: Failure | None, *, begun_ms: int, took_ms: float
) -> Json:
    """`status.lastConsolidation` after an errand.

    Args:
        told: what it came to, by the fields of the status.
    """
    status: Json = {
        "time": render_second(begun_ms / 1000),
        "durationSeconds": round(took_ms / 1000),
        "action": str(errand.action),
        "run": errand.run,
        **{name: value for name, value in told.items() if value not in (None, {})},
    }
    if errand.asked is not None:
        status["requested"] = errand.asked
    if failure:
        status |= {"reason": failure.reason, "message": failure.message[:1024]}
    return status


@dataclass(frozen=True, slots=True)
class Standing:
    """How consolidation of an object is.

    Attributes:
        last: of the last errand, as the status has it; empty before the first.
        next_ms: when the next run is due, Unix milliseconds; None is never.
        fault: why the schedule can never be followed; None where it can.
    """

    last: Mapping[str, Any]
    next_ms: int | None = None
    fault: str | None = None


def with_consolidation(status: Json, standing: Standing, *, old: Mapping[str, Any], generation: int, now: str) -> Json:
    """A status that says how consolidation is.

    Args:
        status: what a pass has to say.
        old: the status before.
        generation: the object's.
        now: RFC 3339 UTC.
    """
    bare, last, next_ms = without_consolidation(status), standing.last, standing.next_ms
    told: Json = ({LAST: dict(last)} if last else {}) | ({NEXT: render_second(next_ms / 1000)} if next_ms else {})
    state = _rejected(standing.fault) if standing.fault else _state(last)
    before = condition_of(old, CONSOLIDATED)
    if state is None:
        states = [dict(before)] if before and last else []
    else:
        states = merge_conditions([before] if before else [], [state], generation=generation, now=now)
    return bare | told | {"conditions": [*(bare.get("conditions") or []), *states]}


def without_consolidation(status: Json) -> Json:
    """A status that says nothing of consolidation, as of an object without a model."""
    others = {name: value for name, value in status.items() if name not in (LAST, NEXT)}
    if "conditions" in others:
        others["conditions"] = [item for item in others["conditions"] or [] if item["type"] != CONSOLIDATED]
    return others


def _rejected(fault: str) -> ConditionState:
    message = f"spec.consolidation.schedule: {fault}; scheduled consolidation is off"
    return ConditionState("Consolidated", False, Reason.SCHEDULE_REJECTED, message)


def _state(last: Mapping[str, Any]) -> ConditionState | None:
    """The condition after the last errand; None where that says nothing new of runs."""
    if last.get("action") != Action.RUN:
        return None
    counts = last.get("counts") or {}
    if reason := last.get("reason"):
        return ConditionState("Consolidated", False, reason, last.get("message") or "")
    if counts.get("invalid"):
        message = f"{counts['invalid']} answers of the model were unusable: choose another model, or check its service"
        return ConditionState("Consolidated", False, Reason.MODEL_ANSWERS_INVALID, message)
    if stopped := last.get("stoppedBy"):
        message = f"the run stopped at its limit ({stopped}); {counts.get('left', 0)} batches remain for the next run"
        return ConditionState("Consolidated", True, Reason.CONSOLIDATION_LIMITED, message)
    return ConditionState("Consolidated", True, Reason.CONSOLIDATION_DONE, described(counts))


def described(counts: Mapping[str, Any]) -> str:
    """`read 12, merged 3`."""
    return ", ".join(f"{name} {number}" for name, number in counts.items() if number) or "nothing to consolidate"
