"""Build the status of a MemoryRestore from the old status and an event. Pure: times are arguments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from agentmemory_operator.restores.rules.in_place_steps import UNDO, InPlaceStep
from agentmemory_operator.restores.rules.swap_checks import RestoreRecord, SwapStep
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, find_condition, is_true, merge_conditions
from agentmemory_operator.spec.kinds.status_snapshot import MemoryRestoreStatus
from agentmemory_operator.spec.printable import printable_lines

Json = dict[str, Any]
AnyStep = SwapStep | InPlaceStep
S = TypeVar("S", SwapStep, InPlaceStep)

SUCCEEDED, PROGRESSING = "Succeeded", "Progressing"
ALREADY_APPLIED, ROLLED_BACK = "AlreadyApplied", "RolledBack"
ROLL_BACK = "RollBack"
"""Name of the step that rolls a restore back."""


@dataclass(frozen=True, slots=True)
class StatusStamp:
    """Time and generation that a new status records.

    Attributes:
        generation: `metadata.generation` of the object that was processed.
        now: Current time, RFC 3339.
    """

    generation: int
    now: str


def started_status(
    old: Mapping[str, Any], *, physical: str, previous: str | None, target_uid: str, connection: Json, at: StatusStamp
) -> Json:
    """Return the status of a restore that starts, with the names of its collections.

    It is written before a collection is created.

    Args:
        physical: Collection to restore into.
        previous: Collection behind the alias; None if there is none.
        target_uid: UID of the AgentMemory.
        connection: Namespace and name of the QdrantConnection.
    """
    previous_field = {"previousCollection": {"physical": previous}} if previous else {}
    fields = {"physical": physical, "targetUid": target_uid, "connection": connection, "startTime": at.now}
    return _merge({**old, **fields, **previous_field}, [_progressing(Reason.RESTORING, "starting")], at)


def step_status(old: Mapping[str, Any], step: AnyStep, at: StatusStamp, *, last_result: str = "") -> Json:
    """Return the status for the start of a step.

    Args:
        last_result: Result of the step before; "" if there is none.
    """
    steps_of_mode = list(type(step))
    progress = f"step {steps_of_mode.index(step) + 1} of {len(steps_of_mode)}: {step}"
    steps = [*_end_steps(old, at, last_result, but=step), _start_step(old, step, at)]
    return _merge({**old, "steps": steps, "progress": progress}, [_progressing(Reason.RESTORING, progress)], at)


def waiting_status(old: Mapping[str, Any], reason: str, message: str, at: StatusStamp) -> Json:
    """Return the status of a restore that waits or is retried; `message` is the cause."""
    return _merge({**old, "progress": message[:256]}, [_progressing(reason, message)], at)


def with_fields(old: Mapping[str, Any], fields: Mapping[str, Any]) -> Json:
    """Return the status with some fields replaced and the conditions kept."""
    return _validate({**old, **fields})


def succeeded_status(old: Mapping[str, Any], message: str, at: StatusStamp, *, last_result: str) -> Json:
    """Return the status of an applied restore.

    Args:
        message: Message of the condition Succeeded.
        last_result: Result of the last step.
    """
    status = {**old, "steps": _end_steps(old, at, last_result), "endTime": at.now, "progress": "done"}
    return _merge(status, [ConditionState(SUCCEEDED, True, Reason.RESTORED, message)], at)


def applied_status(old: Mapping[str, Any], record: RestoreRecord, at: StatusStamp) -> Json:
    """Return the status of a restore that did nothing, because the record in the collection shows it as applied."""
    note = ", and rolled back since" if record.rolled_back else ""
    message = (
        f"applied {record.applied_at} from {record.source}{note}: nothing was done. To restore it again, create a "
        f"MemoryRestore with another name"
    )
    states = [
        ConditionState(SUCCEEDED, True, Reason.ALREADY_APPLIED, message),
        ConditionState(ALREADY_APPLIED, True, Reason.ALREADY_APPLIED, message),
    ]
    return _merge({**old, "endTime": at.now, "progress": "applied before"}, states, at)


def failed_status(old: Mapping[str, Any], reason: str, message: str, at: StatusStamp) -> Json:
    """Return the status of a restore that permanently failed. A failure of the cleanup keeps the time of the end."""
    ended = {"endTime": at.now, **old, "progress": "failed"}
    status = {**ended, "steps": _end_steps(old, at, "failed")}
    return _merge(status, [ConditionState(SUCCEEDED, False, reason, message)], at)


def needs_undo(status: Mapping[str, Any]) -> bool:
    """Return whether an ended restore in place must restore its safety snapshot: Recover has started, Open has not.

    False once that is recorded by `undone_status`.
    """
    is_changed = current_step(status, InPlaceStep) in (InPlaceStep.RECOVER, InPlaceStep.COMPARE)
    return is_changed and not any(step["name"] == UNDO for step in _steps(status))


def undone_status(old: Mapping[str, Any], message: str, at: StatusStamp) -> Json:
    """Return the status of a restore in place whose safety snapshot is restored, or will never be.

    It is written before the agent opens, so that no later pass restores the safety snapshot over new writes.
    """
    return with_fields(old, {"steps": [*_steps(old), {"name": UNDO, "endTime": at.now, "message": message}]})


def is_rolling_back(status: Mapping[str, Any]) -> bool:
    """Return whether the rollback of a swap has started and not ended.

    False for a restore in place, which another MemoryRestore rolls back.
    """
    return any(step["name"] == ROLL_BACK and "endTime" not in step for step in _steps(status))


def rolling_back_status(old: Mapping[str, Any], at: StatusStamp) -> Json:
    """Return the status for the start of a rollback. It is written before anything changes."""
    steps = [*(step for step in _steps(old) if step["name"] != ROLL_BACK), {"name": ROLL_BACK, "startTime": at.now}]
    return _merge({**old, "steps": steps}, _results(old), at)


def rolled_back_status(
    old: Mapping[str, Any], message: str, at: StatusStamp, *, restored: str, removal_time: str, writes_since: int
) -> Json:
    """Return the status of a restore that was rolled back.

    Args:
        message: Message of the condition RolledBack.
        restored: Restored collection, which is now the previous one.
        removal_time: Time after which it is removed, RFC 3339.
        writes_since: Number of memories that changed in it since the restore.
    """
    previous = {"physical": restored, "until": removal_time, "writesSince": writes_since}
    steps = [{**step, "endTime": at.now} if step["name"] == ROLL_BACK else step for step in _steps(old)]
    status = {**old, "steps": steps, "previousCollection": previous, "rolledBackTime": at.now}
    return _merge(status, [*_results(old), ConditionState(ROLLED_BACK, True, Reason.ROLLED_BACK, message)], at)


def rolled_back_in_place_status(old: Mapping[str, Any], message: str, at: StatusStamp) -> Json:
    """Return the status of a restore in place that another MemoryRestore has rolled back."""
    status = {**old, "rolledBackTime": at.now}
    return _merge(status, [*_results(old), ConditionState(ROLLED_BACK, True, Reason.ROLLED_BACK, message)], at)


def not_rolled_back_status(old: Mapping[str, Any], reason: str, message: str, at: StatusStamp) -> Json:
    """Return the status of an applied restore that cannot be rolled back: RolledBack is False, Succeeded stays True."""
    return _merge(dict(old), [*_results(old), ConditionState(ROLLED_BACK, False, reason, message)], at)


def removed_status(old: Mapping[str, Any], at: StatusStamp) -> Json:
    """Return the status after the removal of the previous collection, with the time of the removal."""
    previous = {**(old.get("previousCollection") or {}), "removedTime": at.now}
    return _merge({**old, "previousCollection": previous}, _results(old, ROLLED_BACK), at)


def has_ended(status: Mapping[str, Any]) -> bool:
    """Return whether the restore was applied or has permanently failed."""
    return bool(find_condition(status, SUCCEEDED))


def has_succeeded(status: Mapping[str, Any]) -> bool:
    """Return whether the restore was applied."""
    return is_true(status.get("conditions") or [], SUCCEEDED)


def current_step(status: Mapping[str, Any], kind: type[S]) -> S | None:
    """Return the last started step of a mode, or None before the first.

    Args:
        kind: Steps of the mode.
    """
    names = [step["name"] for step in _steps(status)]
    return next((kind(name) for name in reversed(names) if name in set(kind)), None)


def _results(old: Mapping[str, Any], *more: str) -> list[ConditionState]:
    """Return the existing conditions with the result of a restore, to keep them in a new status."""
    types = (SUCCEEDED, ALREADY_APPLIED, *more)
    return [
        ConditionState(condition["type"], condition["status"] == "True", condition["reason"], condition["message"])
        for condition in old.get("conditions") or []
        if condition["type"] in types
    ]


def _progressing(reason: str, message: str) -> ConditionState:
    return ConditionState(PROGRESSING, True, reason, message)


def _steps(status: Mapping[str, Any]) -> list[Json]:
    return list(status.get("steps") or ())


def _start_step(old: Mapping[str, Any], step: AnyStep, at: StatusStamp) -> Json:
    """Return the entry of a started step. A resumed step keeps its start time."""
    existing = next((item for item in _steps(old) if item["name"] == step), {})
    return {"name": str(step), "startTime": existing.get("startTime", at.now)}


def _end_steps(old: Mapping[str, Any], at: StatusStamp, result: str, *, but: AnyStep | None = None) -> list[Json]:
    """Return the step entries without that of `but`, with an end time and `result` for each that had no end time."""
    message = {"message": printable_lines(result)} if result else {}
    steps = [step for step in _steps(old) if but is None or step["name"] != but]
    return [step if "endTime" in step else {**step, "endTime": at.now, **message} for step in steps]


def _merge(status: Json, states: list[ConditionState], at: StatusStamp) -> Json:
    old = status.get("conditions") or []
    conditions = merge_conditions(old, states, generation=at.generation, now=at.now)
    return _validate({**status, "conditions": conditions, "observedGeneration": at.generation})


def _validate(status: Json) -> Json:
    """Return the status as `MemoryRestoreStatus` serialises it, without null values."""
    dumped: Json = MemoryRestoreStatus.model_validate(status).model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped
