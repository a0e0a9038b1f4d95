"""What waits for an approval, and how far what was approved is, as a status tells."""

from typing import Any

import pytest

from agentmemory_operator.controllers.rules.approval import ApprovalProgress, find_pending_approval, read_progress

DIGEST = "0123456789ab"
PLAN = {"digest": DIGEST, "changes": []}
READY = {"type": "Ready", "status": "True", "reason": "Serving", "message": "serves"}


def told(reason: str, *, status: str = "False", ready: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return an object whose InSync has a reason."""
    in_sync = {"type": "InSync", "status": status, "reason": reason, "message": "why"}
    return {"metadata": {"name": "bot"}, "status": {"conditions": [ready or READY, in_sync]} | more}


NOT_READY = READY | {"status": "False"}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (told("AwaitingApproval", plan=PLAN), ApprovalProgress.WAITS),
        (told("AwaitingApproval", plan=PLAN | {"digest": "ba9876543210"}), ApprovalProgress.FAILED),
        (told("RebuildRunning", plan=PLAN), ApprovalProgress.IN_PROGRESS),
        (told("RebuildPaused", plan=PLAN), ApprovalProgress.IN_PROGRESS),
        (told("ReindexQueued", plan=PLAN), ApprovalProgress.IN_PROGRESS),
        (told("Indexing"), ApprovalProgress.IN_PROGRESS),
        (told("Converged", status="True", reindexSince="2026-11-22T08:00:00Z"), ApprovalProgress.IN_PROGRESS),
        (told("Converged", status="True", rebuild={"state": "Running"}), ApprovalProgress.IN_PROGRESS),
        (told("Converged", status="True", rebuild={"state": "Done"}), ApprovalProgress.DONE),
        (told("Converged", status="True"), ApprovalProgress.DONE),
        (told("Drifted"), ApprovalProgress.DONE),
        (told("RebuildFailed", plan=PLAN), ApprovalProgress.FAILED),
        (told("InsufficientSpace", plan=PLAN), ApprovalProgress.FAILED),
        (told("CannotRebuild", plan=PLAN), ApprovalProgress.FAILED),
        (told("CollectionRed"), ApprovalProgress.FAILED),
        (told("RebuildRunning", plan=PLAN, rebuild={"state": "Held", "digest": DIGEST}), ApprovalProgress.FAILED),
        (told("Indexing", ready=NOT_READY | {"reason": "QdrantUnavailable"}), ApprovalProgress.IN_PROGRESS),
        (told("RebuildRunning", ready=NOT_READY | {"reason": "RebuildRunning"}), ApprovalProgress.IN_PROGRESS),
        (told("Indexing", ready=NOT_READY | {"reason": "CollectionLost"}), ApprovalProgress.FAILED),
        ({"metadata": {"name": "bot"}}, ApprovalProgress.FAILED),
    ],
)
def test_how_far_it_is_is_read_from_the_conditions(document: dict[str, Any], expected: ApprovalProgress) -> None:
    assert read_progress(document, DIGEST)[0] == expected


def test_a_drop_of_the_recall_that_was_approved_is_waited_for() -> None:
    document = told("RebuildRunning", plan=PLAN, rebuild={"state": "Held", "digest": DIGEST})

    assert read_progress(document, f"{DIGEST}-recall")[0] == ApprovalProgress.WAITS


def test_what_waits_is_named_with_the_revision_that_asks_for_it() -> None:
    waiting = find_pending_approval(told("AwaitingApproval", plan=PLAN | {"presetRevision": 3, "costs": {"points": 1}}))

    assert waiting is not None
    assert (waiting.value, waiting.revision, waiting.costs) == (DIGEST, 3, {"points": 1})
