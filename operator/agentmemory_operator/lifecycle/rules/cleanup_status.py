"""Cleanups in the status of an object: time of the next one, result of the last one."""

from collections.abc import Mapping
from typing import Any

from agentmemory_operator.lifecycle.rules.cleanup_rules import RemovalReason
from agentmemory_operator.spec.cron import next_run_ms
from agentmemory_operator.spec.effective.policies import has_cleanup_schedule
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_CLEANUP, CLEANUP_REQUESTED_AT, AgentMemory
from agentmemory_operator.spec.presets import Lifecycle
from agentmemory_operator.spec.times import render_second

Json = dict[str, Any]


def due_ms(memory: AgentMemory, lifecycle: Lifecycle, last: Mapping[str, Any]) -> int | None:
    """Return the time of the next cleanup in Unix milliseconds, 0 if it is due immediately, or None for never.

    One run makes up for any number of missed ones. Each object runs a fixed offset after its schedule, derived from its
    uid, so that a thousand objects do not run at the same time.

    Args:
        last: Current value of `status.lastCleanup`.
    """
    if is_requested(memory, last) or find_approved_run(memory, last) is not None:
        return 0
    if not has_cleanup_schedule(lifecycle):
        return None
    last_run = last.get("time") or memory.metadata.creation_timestamp
    return next_run_ms(memory.metadata.uid, lifecycle.schedule, lifecycle.time_zone, after=last_run)


def is_requested(memory: AgentMemory, last: Mapping[str, Any]) -> bool:
    """Return whether the annotation requests a run that `lastCleanup` does not list yet."""
    requested_at = memory.metadata.annotations.get(CLEANUP_REQUESTED_AT)
    return requested_at is not None and requested_at != last.get("requestedAt")


def find_approved_run(memory: AgentMemory, last: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the withheld run if the annotation approves its digest, else None."""
    held = last.get("held") or {}
    approved = memory.metadata.annotations.get(APPROVE_CLEANUP)
    return held if held and approved == held.get("digest") else None


def run_status(
    counts: Mapping[RemovalReason, int], *, time_ms: int, duration_ms: float, memory: AgentMemory, withheld: Json | None
) -> Json:
    """Build `status.lastCleanup` after a run.

    Args:
        counts: Removals by reason; empty if the run is withheld.
        time_ms: Start of the run, Unix milliseconds.
        duration_ms: Duration in milliseconds.
        memory: Object of the agent. If its annotation requests a run, the request is recorded as handled.
        withheld: `withheld_status` of a withheld run, else None.
    """
    status: Json = {
        "time": render_second(time_ms / 1000),
        "durationSeconds": round(duration_ms / 1000),
        "removed": sum(counts.values()),
        "reasons": {str(reason): counts[reason] for reason in RemovalReason if counts.get(reason)},
    }
    if requested_at := memory.metadata.annotations.get(CLEANUP_REQUESTED_AT):
        status["requestedAt"] = requested_at
    return status | ({"held": withheld} if withheld else {})


def withheld_status(
    counts: Mapping[RemovalReason, int], *, total: int, digest: str, as_of_ms: int, percent: int
) -> Json:
    """Build the status of a withheld run: its planned removals, and a message that explains how to approve it.

    Args:
        counts: Planned removals by reason.
        total: Number of the agent's memories.
        digest: Value for the annotation that approves the run.
        as_of_ms: Time for which the run was planned, Unix milliseconds.
        percent: Percentage of the memories that one run may remove, for the message.
    """
    removals = sum(counts.values())
    return {
        "digest": digest,
        "time": render_second(as_of_ms / 1000),
        "wouldRemove": removals,
        "memories": total,
        "reasons": {str(reason): counts[reason] for reason in RemovalReason if counts.get(reason)},
        "message": f"would remove {removals} of {total} memories, more than the limit of {percent} % per run: review it"
        f" with `agentmemory cleanup NAME --dry-run`, and approve it with the annotation {APPROVE_CLEANUP}: {digest},"
        " or change the limits",
    }


def render_counts(counts: Mapping[RemovalReason, int]) -> str:
    """Render counts as text, e.g. `3 decayed, 1 expired`; '' if all are 0."""
    return ", ".join(f"{counts[reason]} {reason}" for reason in RemovalReason if counts.get(reason))
