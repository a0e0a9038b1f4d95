"""The status of a MemoryRestore, from what it was and what happened. Pure: times are arguments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from agentmemory_operator.restores.rules.checks import RestoreRecord, SwapStep
from agentmemory_operator.restores.rules.in_place import InPlaceStep
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, condition_of, is_true, merge_conditions
from agentmemory_operator.spec.kinds.status_restore import MemoryRestoreStatus
from agentmemory_operator.spec.printable import printable_lines

Json = dict[str, Any]
AnyStep = SwapStep | InPlaceStep
S = TypeVar("S", SwapStep, InPlaceStep)

SUCCEEDED, PROGRESSING = "Succeeded", "Progressing"
ALREADY_APPLIED, ROLLED_BACK = "AlreadyApplied", "RolledBack"
ROLL_BACK = "RollBack"
"""Name of the step that takes a restore back."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a status is written, and of which generation it speaks.

    Attributes:
        now: RFC 3339.
    """

    generation: int
    now: str


def begun_status(
    old: Mapping[str, Any], *, physical: str, previous: str | None, target_uid: str, connection: Json, at: Moment
) -> Json:
    """The status that names what is about to be made; it is written before anything is.

    Args:
        physical: the collection that it restores into.
        previous: what the alias leads to, None where there is nothing.
        target_uid: of the AgentMemory.
        connection: namespace and name.
    """
    replaced = {"previousCollection": {"physical": previous}} if previous else {}
    named = {"physical": physical, "targetUid": target_uid, "connection": connection, "startTime": at.now}
    return _told({**old, **named, **replaced}, [_progressing(Reason.RESTORING, "starting")], at)


def step_status(old: Mapping[str, Any], step: AnyStep, at: Moment, *, came_to: str = "") -> Json:
    """The status that says which step begins.

    Args:
        came_to: what the step before came to.
    """
    steps_of_mode = list(type(step))
    progress = f"step {steps_of_mode.index(step) + 1} of {len(steps_of_mode)}: {step}"
    steps = [*_ended(old, at, came_to, but=step), _begun(old, step, at)]
    return _told({**old, "steps": steps, "progress": progress}, [_progressing(Reason.RESTORING, progress)], at)


def waiting_status(old: Mapping[str, Any], reason: str, message: str, at: Moment) -> Json:
    """The status of a restore that waits, or that is tried again."""
    return _told({**old, "progress": message[:256]}, [_progressing(reason, message)], at)


def noted_status(old: Mapping[str, Any], found: Mapping[str, Any]) -> Json:
    """The status with what a step has found out."""
    return _dumped({**old, **found})


def succeeded_status(old: Mapping[str, Any], message: str, at: Moment, *, came_to: str) -> Json:
    """The status of a restore that was applied.

    Args:
        came_to: what the last step came to.
    """
    done = {**old, "steps": _ended(old, at, came_to), "endTime": at.now, "progress": "done"}
    return _told(done, [ConditionState(SUCCEEDED, True, Reason.RESTORED, message)], at)


def applied_status(old: Mapping[str, Any], record: RestoreRecord, at: Moment) -> Json:
    """The status of a restore that was applied before: nothing was done."""
    told = ", and rolled back since" if record.rolled_back else ""
    message = (
        f"applied {record.applied_at} from {record.source}{told}: nothing was done. To restore it again, create a "
        f"MemoryRestore with another name"
    )
    states = [
        ConditionState(SUCCEEDED, True, Reason.ALREADY_APPLIED, message),
        ConditionState(ALREADY_APPLIED, True, Reason.ALREADY_APPLIED, message),
    ]
    return _told({**old, "endTime": at.now, "progress": "applied before"}, states, at)


def failed_status(old: Mapping[str, Any], reason: str, message: str, at: Moment) -> Json:
    """The status of a restore that failed for good; the live collection is as it was."""
    done = {**old, "steps": _ended(old, at, "failed"), "endTime": at.now, "progress": "failed"}
    return _told(done, [ConditionState(SUCCEEDED, False, reason, message)], at)


def is_rolling_back(status: Mapping[str, Any]) -> bool:
    """Whether a restore is being taken back."""
    return any(step["name"] == ROLL_BACK and "endTime" not in step for step in _steps(status))


def rolling_back_status(old: Mapping[str, Any], at: Moment) -> Json:
    """The status that says that a restore is being taken back; written before anything is done."""
    steps = [*(step for step in _steps(old) if step["name"] != ROLL_BACK), {"name": ROLL_BACK, "startTime": at.now}]
    return _told({**old, "steps": steps}, _kept(old), at)


def rolled_back_status(
    old: Mapping[str, Any], message: str, at: Moment, *, kept: str, until: str, writes_since: int
) -> Json:
    """The status of a restore that was taken back.

    Args:
        kept: the collection that it had restored, which is the previous one now.
        until: when that one goes.
        writes_since: memories changed in it since the restore.
    """
    previous = {"physical": kept, "until": until, "writesSince": writes_since}
    steps = [{**step, "endTime": at.now} if step["name"] == ROLL_BACK else step for step in _steps(old)]
    done = {**old, "steps": steps, "previousCollection": previous, "rolledBackTime": at.now}
    return _told(done, [*_kept(old), ConditionState(ROLLED_BACK, True, Reason.ROLLED_BACK, message)], at)


def put_back_status(old: Mapping[str, Any], message: str, at: Moment) -> Json:
    """The status of a restore into the collection itself that another one has taken back."""
    done = {**old, "rolledBackTime": at.now}
    return _told(done, [*_kept(old), ConditionState(ROLLED_BACK, True, Reason.ROLLED_BACK, message)], at)


def not_rolled_back_status(old: Mapping[str, Any], reason: str, message: str, at: Moment) -> Json:
    """The status of a restore that cannot be taken back."""
    return _told(dict(old), [*_kept(old), ConditionState(ROLLED_BACK, False, reason, message)], at)


def removed_status(old: Mapping[str, Any], at: Moment) -> Json:
    """The status once the previous collection is gone."""
    previous = {**(old.get("previousCollection") or {}), "removedTime": at.now}
    return _told({**old, "previousCollection": previous}, _kept(old, ROLLED_BACK), at)


def has_ended(status: Mapping[str, Any]) -> bool:
    """Whether the restore was applied, or failed for good."""
    return bool(condition_of(status, SUCCEEDED))


def has_succeeded(status: Mapping[str, Any]) -> bool:
    """Whether the restore was applied."""
    return is_true(status.get("conditions") or [], SUCCEEDED)


def current_step(status: Mapping[str, Any], kind: type[S]) -> S | None:
    """The step of that kind that was begun last, None before the first."""
    names = [step["name"] for step in _steps(status)]
    return next((kind(name) for name in reversed(names) if name in set(kind)), None)


def _kept(old: Mapping[str, Any], *more: str) -> list[ConditionState]:
    """What is known of the end."""
    wanted = (SUCCEEDED, ALREADY_APPLIED, *more)
    return [
        ConditionState(found["type"], found["status"] == "True", found["reason"], found["message"])
        for found in old.get("conditions") or []
        if found["type"] in wanted
    ]


def _progressing(reason: str, message: str) -> ConditionState:
    return ConditionState(PROGRESSING, True, reason, message)


def _steps(status: Mapping[str, Any]) -> list[Json]:
    return list(status.get("steps") or ())


def _begun(old: Mapping[str, Any], step: AnyStep, at: Moment) -> Json:
    """The step as it begins; one that is gone on with keeps its time."""
    before = next((found for found in _steps(old) if found["name"] == step), {})
    return {"name": str(step), "startTime": before.get("startTime", at.now)}


def _ended(old: Mapping[str, Any], at: Moment, came_to: str, *, but: AnyStep | None = None) -> list[Json]:
    """The steps, those that have not ended ended now."""
    told = {"message": printable_lines(came_to)} if came_to else {}
    steps = [step for step in _steps(old) if but is None or step["name"] != but]
    return [step if "endTime" in step else {**step, "endTime": at.now, **told} for step in steps]


def _told(status: Json, states: list[ConditionState], at: Moment) -> Json:
    old = status.get("conditions") or []
    conditions = merge_conditions(old, states, generation=at.generation, now=at.now)
    return _dumped({**status, "conditions": conditions, "observedGeneration": at.generation})


def _dumped(status: Json) -> Json:
    """The status as the schema has it."""
    dumped: Json = MemoryRestoreStatus.model_validate(status).model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped
