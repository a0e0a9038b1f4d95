"""Pending approval of an AgentMemory, read from its status, and progress of an approved plan. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentmemory_operator.rebuilds.rules.recall_probes import approval_value
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_PLAN, CANCEL_REBUILD, ROLLBACK_REBUILD
from agentmemory_operator.spec.kinds.conditions import Reason, find_condition
from agentmemory_operator.spec.kinds.spec_rebuild import RebuildState, is_active

Json = Mapping[str, Any]

APPROVABLE = frozenset({Reason.AWAITING_APPROVAL, Reason.REBUILD_CANCELLED, Reason.ROLLED_BACK})
_IN_PROGRESS_REASONS = frozenset(
    {
        *(Reason.REBUILD_RUNNING, Reason.REBUILD_PAUSED, Reason.REINDEX_QUEUED, Reason.INDEXING),
        # In these states the progress of the plan is unknown.
        *(Reason.QDRANT_UNAVAILABLE, Reason.SUSPENDED),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingApproval:
    """Plan that waits for an approval.

    Attributes:
        value: Value of the annotation that approves it.
        message: Reason for waiting.
        changes: `status.plan.changes`.
        costs: `status.plan.costs`; empty if no new collection is needed.
        revision: Newer revision of the preset that the plan includes. None without one.
    """

    value: str
    message: str
    changes: tuple[Json, ...] = ()
    costs: Json
    revision: int | None = None


class ApprovalProgress(StrEnum):
    """Progress of an approved plan. WAITS: no operator has acted on the approval yet."""

    WAITS = "waits"
    IN_PROGRESS = "goes on"
    DONE = "done"
    FAILED = "failed"


def find_pending_approval(document: Json) -> PendingApproval | None:
    """Return the approval that an AgentMemory waits for: of a held rebuild, or of its plan; None without one."""
    status = document.get("status") or {}
    plan, rebuild = status.get("plan") or {}, status.get("rebuild") or {}
    changes, costs = tuple(plan.get("changes") or ()), plan.get("costs") or {}
    if rebuild.get("state") == RebuildState.HELD:
        value = approval_value(rebuild.get("digest", ""))
        return PendingApproval(value=value, message=rebuild.get("message", ""), changes=changes, costs=costs)
    in_sync = find_condition(status, "InSync")
    if in_sync.get("reason") not in APPROVABLE or "digest" not in plan:
        return None
    revision = plan.get("presetRevision")
    return PendingApproval(
        value=plan["digest"], message=in_sync["message"], changes=changes, costs=costs, revision=revision
    )


def approval_annotations(value: str) -> dict[str, str | None]:
    """Return the annotations that approve a plan. They also remove (None) those that cancel or roll back a rebuild."""
    return {APPROVE_PLAN: value, CANCEL_REBUILD: None, ROLLBACK_REBUILD: None}


def is_status_current(document: Json) -> bool:
    """Return whether the status is of the current generation of the object. An absent generation counts as 1."""
    status = document.get("status") or {}
    return bool(status.get("observedGeneration") == document["metadata"].get("generation", 1))


def read_progress(document: Json, approval_value: str) -> tuple[ApprovalProgress, str]:
    """Return the progress of an approved plan and a message about it.

    DONE if the object is Ready, no rebuild or reindex is in progress, and InSync is True or reports only drift. FAILED
    if it waits for the approval of another plan, or is not Ready or not InSync for a reason outside
    `_IN_PROGRESS_REASONS`.

    Args:
        document: AgentMemory as read.
        approval_value: Value of the annotation that approved the plan.
    """
    status = document.get("status") or {}
    ready, in_sync = find_condition(status, "Ready"), find_condition(status, "InSync")
    reason, message = in_sync.get("reason", ""), in_sync.get("message", "")
    pending = find_pending_approval(document)
    if pending is not None:
        return (ApprovalProgress.WAITS if pending.value == approval_value else ApprovalProgress.FAILED), pending.message
    if ready.get("status") != "True":
        is_transient = ready.get("reason") in _IN_PROGRESS_REASONS
        return (ApprovalProgress.IN_PROGRESS if is_transient else ApprovalProgress.FAILED), ready.get(
            "message", "not reconciled yet"
        )
    if is_active(status.get("rebuild") or {}) or "reindexSince" in status:
        return ApprovalProgress.IN_PROGRESS, message
    # The plan is carried out even if drift remains, because uncorrected drift is not part of the plan.
    if in_sync.get("status") == "True" or reason == Reason.DRIFTED:
        return ApprovalProgress.DONE, message
    return (ApprovalProgress.IN_PROGRESS if reason in _IN_PROGRESS_REASONS else ApprovalProgress.FAILED), message


def describe_pending(pending: PendingApproval) -> str:
    """Return the approval value and the withheld changes of a plan as text; without changes, the reason for waiting."""
    changes = ", ".join(str(change.get("change")) for change in pending.changes if change.get("held"))
    return f"{pending.value}: {changes or pending.message}"
