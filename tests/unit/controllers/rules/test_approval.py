"""Pending approvals and the progress of approved plans, read from a status."""

from typing import Any

import pytest

from agentmemory_operator.controllers.rules.approval import ApprovalProgress, find_pending_approval, read_progress

DIGEST = "0123456789ab"
PLAN = {"digest": DIGEST, "changes": []}
READY = {"type": "Ready", "status": "True", "reason": "Serving", "message": "serves"}


def object_with(
    reason: str, *, status: str = "False", ready: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Return an object with this reason in condition InSync."""
    in_sync = {"type": "InSync", "status": status, "reason": reason, "message": "why"}
    return {"metadata": {"name": "bot"}, "status": {"conditions": [ready or READY, in_sync]} | more}


NOT_READY = READY | {"status": "False"}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (object_with("AwaitingApproval", plan=PLAN), ApprovalProgress.WAITS),
        (object_with("AwaitingApproval", plan=PLAN | {"digest": "ba9876543210"}), ApprovalProgress.FAILED),
        (object_with("RebuildRunning", plan=PLAN), ApprovalProgress.IN_PROGRESS),
        (object_with("RebuildPaused", plan=PLAN), ApprovalProgress.IN_PROGRESS),
        (object_with("ReindexQueued", plan=PLAN), ApprovalProgress.IN_PROGRESS),
        (object_with("Indexing"), ApprovalProgress.IN_PROGRESS),
        (object_with("Converged", status="True", reindexSince="2026-11-22T08:00:00Z"), ApprovalProgress.IN_PROGRESS),
        (object_with("Converged", status="True", rebuild={"state": "Running"}), ApprovalProgress.IN_PROGRESS),
        (object_with("Converged", status="True", rebuild={"state": "Done"}), ApprovalProgress.DONE),
        (object_with("Converged", status="True"), ApprovalProgress.DONE),
        (object_with("Drifted"), ApprovalProgress.DONE),
        (object_with("RebuildFailed", plan=PLAN), ApprovalProgress.FAILED),
        (object_with("InsufficientSpace", plan=PLAN), ApprovalProgress.FAILED),
        (object_with("CannotRebuild", plan=PLAN), ApprovalProgress.FAILED),
        (object_with("CollectionRed"), ApprovalProgress.FAILED),
        (
            object_with("RebuildRunning", plan=PLAN, rebuild={"state": "Held", "digest": DIGEST}),
            ApprovalProgress.FAILED,
        ),
        (object_with("Indexing", ready=NOT_READY | {"reason": "QdrantUnavailable"}), ApprovalProgress.IN_PROGRESS),
        (object_with("RebuildRunning", ready=NOT_READY | {"reason": "RebuildRunning"}), ApprovalProgress.IN_PROGRESS),
        (object_with("Indexing", ready=NOT_READY | {"reason": "CollectionLost"}), ApprovalProgress.FAILED),
        ({"metadata": {"name": "bot"}}, ApprovalProgress.FAILED),
    ],
)
def test_progress_is_read_from_conditions(document: dict[str, Any], expected: ApprovalProgress) -> None:
    assert read_progress(document, DIGEST)[0] == expected


def test_approved_recall_drop_waits() -> None:
    document = object_with("RebuildRunning", plan=PLAN, rebuild={"state": "Held", "digest": DIGEST})

    assert read_progress(document, f"{DIGEST}-recall")[0] == ApprovalProgress.WAITS


def test_pending_approval_has_revision() -> None:
    pending = find_pending_approval(
        object_with("AwaitingApproval", plan=PLAN | {"presetRevision": 3, "costs": {"points": 1}})
    )

    assert pending is not None
    assert (pending.value, pending.revision, pending.costs) == (DIGEST, 3, {"points": 1})
