"""Cleanups in an object's status: when the next one is due, and what the last one came to."""

from collections.abc import Mapping
from typing import Any

from agentmemory_operator.lifecycle.rules.cleanup import Removal
from agentmemory_operator.spec.effective.policies import is_cleaned
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_CLEANUP, CLEANUP_REQUESTED_AT, AgentMemory
from agentmemory_operator.spec.presets import Lifecycle
from agentmemory_operator.spec.schedule import next_run_ms
from agentmemory_operator.spec.times import render_second

Json = dict[str, Any]


def due_ms(memory: AgentMemory, lifecycle: Lifecycle, last: Mapping[str, Any]) -> int | None:
    """When the next cleanup is due, Unix milliseconds; None is never.

    However many times were missed, one run makes up for them. Each object comes a little later than its schedule says,
    always by the same time, so that a thousand objects do not come at once.

    Args:
        last: `status.lastCleanup` as it now is.
    """
    if is_asked_for(memory, last) or approval_of(memory, last) is not None:
        return 0
    if not is_cleaned(lifecycle):
        return None
    since = last.get("time") or memory.metadata.creation_timestamp
    return next_run_ms(memory.metadata.uid, lifecycle.schedule, lifecycle.time_zone, after=since)


def is_asked_for(memory: AgentMemory, last: Mapping[str, Any]) -> bool:
    """Whether somebody asked for a run that was not made yet."""
    asked = memory.metadata.annotations.get(CLEANUP_REQUESTED_AT)
    return asked is not None and asked != last.get("requestedAt")


def approval_of(memory: AgentMemory, last: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The held run that was approved; None without an approval that fits."""
    held = last.get("held") or {}
    approved = memory.metadata.annotations.get(APPROVE_CLEANUP)
    return held if held and approved == held.get("digest") else None


def run_status(
    counts: Mapping[Removal, int], *, time_ms: int, took_ms: float, memory: AgentMemory, held: Json | None
) -> Json:
    """`status.lastCleanup` after a run.

    Args:
        counts: what was removed; nothing where it is held.
    """
    status: Json = {
        "time": render_second(time_ms / 1000),
        "durationSeconds": round(took_ms / 1000),
        "removed": sum(counts.values()),
        "reasons": {str(reason): counts[reason] for reason in Removal if counts.get(reason)},
    }
    if asked := memory.metadata.annotations.get(CLEANUP_REQUESTED_AT):
        status["requestedAt"] = asked
    return status | ({"held": held} if held else {})


def held_status(counts: Mapping[Removal, int], *, total: int, digest: str, as_of_ms: int, percent: int) -> Json:
    """What a held run would remove, and how it is approved."""
    would = sum(counts.values())
    return {
        "digest": digest,
        "time": render_second(as_of_ms / 1000),
        "wouldRemove": would,
        "memories": total,
        "reasons": {str(reason): counts[reason] for reason in Removal if counts.get(reason)},
        "message": f"would remove {would} of {total} memories, more than the limit of {percent} % per run: review it"
        f" with `agentmemory cleanup NAME --dry-run`, and approve it with the annotation {APPROVE_CLEANUP}: {digest},"
        " or change the limits",
    }


def described(counts: Mapping[Removal, int]) -> str:
    """`3 decayed, 1 expired`."""
    return ", ".join(f"{counts[reason]} {reason}" for reason in Removal if counts.get(reason))
