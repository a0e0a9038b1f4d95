"""Choose the Kubernetes events of a pass: what the pass changed, and faults that the previous status did not have."""

from collections.abc import Iterator

from agentmemory_operator.collections.rules.capacity import CONDITION
from agentmemory_operator.collections.rules.changes import Change, WakeOptimizers
from agentmemory_operator.collections.rules.drift import OWN_CHANGES
from agentmemory_operator.collections.rules.outcome import PassOutcome
from agentmemory_operator.collections.rules.outgrown import CONDITION as OUTGROWN
from agentmemory_operator.collections.rules.outgrown import has_passed_step
from agentmemory_operator.controllers.rules.plan_text import describe_change
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Event
from agentmemory_operator.spec.kinds.conditions import Reason, find_condition

NO_READERS_MESSAGE = (
    "spec.access gives nobody read access: an API that checks ServiceAccounts rejects every request for this agent. Add"
    " a subject with the verb read"
)


def pass_events(done: PassOutcome, *, old: Json, new: Json) -> Iterator[Event]:
    """Yield the events of a pass.

    Args:
        done: Result of the pass.
        old, new: Status before and after the pass.
    """
    # Only the loss of the last reader gets an event. The status of a new object without readers shows the count 0.
    if (new.get("access") or {}).get("readers") == 0 and (old.get("access") or {}).get("readers"):
        yield Event("Normal", "NobodyMayRead", NO_READERS_MESSAGE)
    if applied := [change for change in done.applied.changes if not _has_own_event(change, done)]:
        yield Event("Normal", "Applied", "; ".join(map(describe_change, applied)))
    if done.corrected:
        resets = "; ".join(f"{drift.path} reset from {drift.observed} to {drift.desired}" for drift in done.corrected)
        yield Event("Normal", "DriftCorrected", resets)
    reported = {(entry["path"], entry.get("observed")) for entry in old.get("drift") or []}
    new_drift = [drift for drift in done.drift if (drift.path, drift.observed) not in reported]
    if new_drift and not done.refusal:
        yield Event("Warning", Reason.DRIFTED, f"{'; '.join(map(str, new_drift))}; not corrected (spec.driftPolicy)")
    yield from _faults(old, new)
    if has_passed_step(old, new):
        outgrown = find_condition(new, OUTGROWN)
        yield Event("Warning", outgrown["reason"], outgrown["message"])
    yield from _replicas(done, old, new)
    if done.is_woken and not (old.get("collection") or {}).get("wokenAt"):
        yield Event("Normal", "OptimizersWoken", _woken(done))
    if done.refusal and _plan_identity(old) != _plan_identity(new):
        # Changes that wait for a slot or run in the background need no action of a user, so they get no warning.
        needs_no_action = done.refusal.is_running or done.refusal.reason == Reason.REINDEX_QUEUED
        kind = "Normal" if needs_no_action else "Warning"
        yield Event(kind, done.refusal.reason, done.refusal.message)


def capacity_event(old: Json, new: Json) -> Event | None:
    """Return the event of a connection whose server has reached a higher level of usage, or None."""
    before, after = (find_condition(status, CONDITION) for status in (old, new))
    if (
        after.get("status") != "True"
        or after["reason"] == before.get("reason")
        or before.get("reason") == Reason.SERVER_FULL
    ):
        return None
    return Event("Warning", after["reason"], after["message"])


def _plan_identity(status: Json) -> Json | None:
    """Return the parts of a plan that cause a new event if they change; None without a plan.

    The costs are no part, because they vary with the number of points.
    """
    plan = status.get("plan")
    if plan is None:
        return None
    in_sync = find_condition(status, "InSync").get("reason")
    return {"digest": plan["digest"], "changes": plan["changes"], "reason": in_sync}


def _faults(old: Json, new: Json) -> Iterator[Event]:
    """Yield events of new faults that do not stop an object from serving."""
    for reason in (Reason.SCORING_REJECTED, Reason.TYPE_REMOVED):
        if (fault := _message_of(new, reason)) and fault != _message_of(old, reason):
            yield Event("Warning", reason, fault)


_UNSETTLED = (Reason.REPLICATING, Reason.REPLICAS_INACTIVE, Reason.TOO_FEW_PEERS)


def _replicas(done: PassOutcome, old: Json, new: Json) -> Iterator[Event]:
    """Yield events about the collection's replicas: each move, each new fault, and the return to active replicas."""
    replication = done.replication
    if replication and replication.started:
        yield Event("Normal", replication.reason, replication.message)
    for reason in (Reason.REPLICAS_INACTIVE, Reason.TOO_FEW_PEERS):
        if (fault := _message_of(new, reason)) and fault != _message_of(old, reason):
            yield Event("Warning", reason, fault)
    was_unsettled = any(_message_of(old, reason) for reason in _UNSETTLED)
    if was_unsettled and replication is None and done.observed.placement is not None:
        yield Event("Normal", "ReplicasActive", f"all replicas of {done.observed.physical} are active")


def _message_of(status: Json, reason: Reason) -> str | None:
    """Return the message of the condition with a reason, or None."""
    found = (entry for entry in status.get("conditions") or [] if entry["reason"] == reason)
    return next((entry["message"] for entry in found), None)


def _has_own_event(change: Change, done: PassOutcome) -> bool:
    return isinstance(change, WakeOptimizers) or (bool(done.corrected) and not isinstance(change, OWN_CHANGES))


def _woken(done: PassOutcome) -> str:
    observed = done.observed
    return (
        f"{observed.physical} was grey: its optimizers were idle since a restart of Qdrant. Triggered them; "
        f"{observed.indexed} of about {observed.points} vectors are indexed"
    )
