"""What of an AgentMemory waits for somebody's approval, as its status tells, and how far what was approved is. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentmemory_operator.rebuilds.rules.probes import approval_of
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_PLAN, CANCEL_REBUILD, ROLLBACK_REBUILD
from agentmemory_operator.spec.kinds.conditions import Reason, condition_of
from agentmemory_operator.spec.kinds.rebuild import RebuildState, is_under_way

Json = Mapping[str, Any]

APPROVABLE = frozenset({Reason.AWAITING_APPROVAL, Reason.REBUILD_CANCELLED, Reason.ROLLED_BACK})
_GOES_ON = frozenset(
    {
        *(Reason.REBUILD_RUNNING, Reason.REBUILD_PAUSED, Reason.REINDEX_QUEUED, Reason.INDEXING),
        # Of what is away nobody knows more.
        *(Reason.QDRANT_UNAVAILABLE, Reason.SUSPENDED),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waits for an approval.

    Attributes:
        value: of the annotation that approves it.
        revision: the newer revision of the preset that is held with it, None where none is.
        costs: `status.plan.costs`, empty where it needs no new collection.
        message: why it waits.
    """

    value: str
    message: str
    changes: tuple[Json, ...] = ()
    costs: Json
    revision: int | None = None


class ApprovalProgress(StrEnum):
    """How far an approved plan is."""

    WAITS = "waits"
    GOES_ON = "goes on"
    DONE = "done"
    FAILED = "failed"


def waiting_of(document: Json) -> Waiting | None:
    """What of an AgentMemory waits for an approval, None where nothing does."""
    status = document.get("status") or {}
    plan, rebuild = status.get("plan") or {}, status.get("rebuild") or {}
    changes, costs = tuple(plan.get("changes") or ()), plan.get("costs") or {}
    if rebuild.get("state") == RebuildState.HELD:
        value = approval_of(rebuild.get("digest", ""))
        return Waiting(value=value, message=rebuild.get("message", ""), changes=changes, costs=costs)
    in_sync = condition_of(status, "InSync")
    if in_sync.get("reason") not in APPROVABLE or "digest" not in plan:
        return None
    revision = plan.get("presetRevision")
    return Waiting(value=plan["digest"], message=in_sync["message"], changes=changes, costs=costs, revision=revision)


def approval(value: str) -> dict[str, str | None]:
    """The annotations that approve a plan: what stopped it or took it back has to go."""
    return {APPROVE_PLAN: value, CANCEL_REBUILD: None, ROLLBACK_REBUILD: None}


def is_seen(document: Json) -> bool:
    """Whether the status speaks of the object as it is now."""
    status = document.get("status") or {}
    return bool(status.get("observedGeneration") == document["metadata"].get("generation", 1))


def progress_of(document: Json, approved: str) -> tuple[ApprovalProgress, str]:
    """How far an approved plan is, and why.

    Args:
        approved: the approval's value.
    """
    status = document.get("status") or {}
    ready, in_sync = condition_of(status, "Ready"), condition_of(status, "InSync")
    reason, message = in_sync.get("reason", ""), in_sync.get("message", "")
    waiting = waiting_of(document)
    if waiting is not None:
        return (ApprovalProgress.WAITS if waiting.value == approved else ApprovalProgress.FAILED), waiting.message
    if ready.get("status") != "True":
        is_away = ready.get("reason") in _GOES_ON
        return (ApprovalProgress.GOES_ON if is_away else ApprovalProgress.FAILED), ready.get(
            "message", "not reconciled yet"
        )
    if is_under_way(status.get("rebuild") or {}) or "reindexSince" in status:
        return ApprovalProgress.GOES_ON, message
    # What somebody else changes meanwhile, and is left so, is no part of the plan.
    if in_sync.get("status") == "True" or reason == Reason.DRIFTED:
        return ApprovalProgress.DONE, message
    return (ApprovalProgress.GOES_ON if reason in _GOES_ON else ApprovalProgress.FAILED), message


def describe_waiting(waiting: Waiting) -> str:
    """What an approval lets pass, in a few words."""
    changes = ", ".join(str(change.get("change")) for change in waiting.changes if change.get("held"))
    return f"{waiting.value}: {changes or waiting.message}"
