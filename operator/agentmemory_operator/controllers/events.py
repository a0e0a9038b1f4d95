"""What of a pass people are told in Events: only what is news against the status before."""

from collections.abc import Iterator

from agentmemory_operator.collections.rules.capacity import CONDITION
from agentmemory_operator.collections.rules.changes import Change, WakeOptimizers
from agentmemory_operator.collections.rules.drift import OWN
from agentmemory_operator.collections.rules.outcome import Reconciled
from agentmemory_operator.collections.rules.outgrown import CONDITION as OUTGROWN
from agentmemory_operator.collections.rules.outgrown import passed_another
from agentmemory_operator.controllers.rules.plan_text import describe_change
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Event
from agentmemory_operator.spec.kinds.conditions import Reason, condition_of

NOBODY = (
    "spec.access gives nobody read access: an API that checks ServiceAccounts rejects every request for this agent. Add"
    " a subject with the verb read"
)


def events_of(done: Reconciled, *, old: Json, new: Json) -> Iterator[Event]:
    """Yield the events of a pass.

    Args:
        done: what the pass came to.
        old, new: the status before and after.
    """
    # Of an object that never named anybody, its status says so.
    if (new.get("access") or {}).get("readers") == 0 and (old.get("access") or {}).get("readers"):
        yield Event("Normal", "NobodyMayRead", NOBODY)
    if applied := [change for change in done.applied.changes if not _is_told_apart(change, done)]:
        yield Event("Normal", "Applied", "; ".join(map(describe_change, applied)))
    if done.corrected:
        was = "; ".join(f"{drift.path} reset from {drift.observed} to {drift.desired}" for drift in done.corrected)
        yield Event("Normal", "DriftCorrected", was)
    known = {(entry["path"], entry.get("observed")) for entry in old.get("drift") or []}
    fresh = [drift for drift in done.drift if (drift.path, drift.observed) not in known]
    if fresh and not done.refusal:
        yield Event("Warning", Reason.DRIFTED, f"{'; '.join(map(str, fresh))}; not corrected (spec.driftPolicy)")
    yield from _faults(old, new)
    if passed_another(old, new):
        told = condition_of(new, OUTGROWN)
        yield Event("Warning", told["reason"], told["message"])
    yield from _replicas(done, old, new)
    if done.is_woken and not (old.get("collection") or {}).get("wokenAt"):
        yield Event("Normal", "OptimizersWoken", _woken(done))
    if done.refusal and _asked(old) != _asked(new):
        # What waits for its turn, or is carried out beside the passes, needs nobody.
        needs_nobody = done.refusal.is_carried_out or done.refusal.reason == Reason.REINDEX_QUEUED
        kind = "Normal" if needs_nobody else "Warning"
        yield Event(kind, done.refusal.reason, done.refusal.message)


def capacity_event(old: Json, new: Json) -> Event | None:
    """What is told of a server that comes nearer to its end than it was, None of any other."""
    was, now = (condition_of(status, CONDITION) for status in (old, new))
    if now.get("status") != "True" or now["reason"] == was.get("reason") or was.get("reason") == Reason.SERVER_FULL:
        return None
    return Event("Warning", now["reason"], now["message"])


def _asked(status: Json) -> Json | None:
    """What a plan is and whether it is held; its costs follow the points and are no news."""
    plan = status.get("plan")
    if plan is None:
        return None
    in_sync = condition_of(status, "InSync").get("reason")
    return {"digest": plan["digest"], "changes": plan["changes"], "reason": in_sync}


def _faults(old: Json, new: Json) -> Iterator[Event]:
    """Yield what is wrong with an object that serves all the same."""
    for reason in (Reason.SCORING_REJECTED, Reason.TYPE_REMOVED):
        if (fault := _told(new, reason)) and fault != _told(old, reason):
            yield Event("Warning", reason, fault)


_UNSETTLED = (Reason.REPLICATING, Reason.REPLICAS_INACTIVE, Reason.TOO_FEW_PEERS)


def _replicas(done: Reconciled, old: Json, new: Json) -> Iterator[Event]:
    """Yield what a cluster does with the collection's replicas: each move, what is missing, and its end."""
    replication = done.replication
    if replication and replication.begun:
        yield Event("Normal", replication.reason, replication.message)
    for reason in (Reason.REPLICAS_INACTIVE, Reason.TOO_FEW_PEERS):
        if (fault := _told(new, reason)) and fault != _told(old, reason):
            yield Event("Warning", reason, fault)
    was_unsettled = any(_told(old, reason) for reason in _UNSETTLED)
    if was_unsettled and replication is None and done.observed.placement is not None:
        yield Event("Normal", "ReplicasActive", f"all replicas of {done.observed.physical} are active")


def _told(status: Json, reason: Reason) -> str | None:
    """The message of the condition with a reason, None where there is none."""
    found = (entry for entry in status.get("conditions") or [] if entry["reason"] == reason)
    return next((entry["message"] for entry in found), None)


def _is_told_apart(change: Change, done: Reconciled) -> bool:
    return isinstance(change, WakeOptimizers) or (bool(done.corrected) and not isinstance(change, OWN))


def _woken(done: Reconciled) -> str:
    observed = done.observed
    return (
        f"{observed.physical} was grey: its optimizers were idle since a restart of Qdrant. Triggered them; "
        f"{observed.indexed} of about {observed.points} vectors are indexed"
    )
