"""Rebuilds with a recall drop, and snapshots and restores before, during and after them, on a real API server."""

import random
from typing import Any

import pytest

from tests.support.cluster.workspace import AGENT, SIZE, Workspace
from tests.support.patience import wait_until

pytestmark = pytest.mark.usefixtures("operator")

Json = dict[str, Any]
POINTS = 40
# The announcement of a move takes 7 s.
MOVED_WITHIN_S = 60
# With Dot, the longest vectors are the nearest to any other; Cosine ignores the length.
BEFORE, AFTER = {"distance": "Dot"}, {"distance": "Cosine"}


def create(workspace: Workspace, **spec: Any) -> None:
    """Create an agent whose memories rank differently by the two distances."""
    workspace.connect(timeoutSeconds=2)
    workspace.create(changePolicy="Apply", index=BEFORE, **spec)
    workspace.wait_ready()
    chance = random.Random(5)
    points = [
        {
            "id": number,
            "vector": [chance.gauss(0, 1) * 2 ** (number % 10) for _ in range(SIZE)],
            "payload": {"userId": "ada", "content": f"memory {number}", "rev": 1, "updatedAt": 1_700_000_000_000},
        }
        for number in range(1, POINTS + 1)
    ]
    path = f"/collections/{workspace.alias}/points"
    workspace.qdrant.put(path, params={"wait": "true"}, json={"points": points}).raise_for_status()


def rebuild(workspace: Workspace) -> Json:
    status: Json = workspace.status().get("rebuild") or {}
    return status


def wait_rebuild(
    workspace: Workspace, state: str, *, target: str | None = None, seconds: float = MOVED_WITHIN_S
) -> Json:
    """Return the rebuild's status once it has the expected state."""

    def has_state() -> bool:
        status = rebuild(workspace)
        return status.get("state") == state and target in (None, status.get("target"))

    wait_until(has_state, seconds=seconds, what=f"a rebuild that is {state}")
    return rebuild(workspace)


def take_snapshot(workspace: Workspace, name: str) -> None:
    workspace.create_snapshot(name, verify="Full")
    workspace.wait_condition("Verified", "True/Verified", name=name, of="MemorySnapshot", seconds=30)


def test_recall_drop_is_held_until_approved(
    workspace: Workspace,
) -> None:
    """After the move, a matching snapshot is taken, and one of the old collection no longer fits."""
    create(workspace, snapshots={"schedule": "0 3 1 1 *", "verify": "Full"})
    take_snapshot(workspace, "before")

    workspace.patch(index=AFTER)
    held = wait_rebuild(workspace, "Held")
    condition = workspace.wait_condition("InSync", "False/AwaitingApproval")
    plan = workspace.status()["plan"]

    assert held["recall"]["probes"] == POINTS
    assert held["recall"]["neighbours"] < 0.9
    assert "percentage points" in condition["message"]
    assert plan["digest"] == f"{held['digest']}-recall"
    assert workspace.aliases() == {workspace.alias: f"{workspace.alias}__1"}

    workspace.annotate(approve_plan=plan["digest"])
    done = wait_rebuild(workspace, "Done")

    assert workspace.aliases() == {workspace.alias: f"{workspace.alias}__2"}
    assert workspace.count_points() == POINTS
    wait_until(lambda: workspace.status()["collection"].get("rebuiltTime"), seconds=10, what="the time of the move")
    assert workspace.status()["collection"]["rebuiltTime"] == done["moveTime"]
    wait_until(lambda: "-rebuilt-" in workspace.status()["lastSnapshot"]["name"], seconds=30, what="its snapshot")
    workspace.wait_condition("SnapshotFresh", "True/SnapshotRecent", seconds=30)
    assert "match it" in workspace.events(AGENT, kind="Normal")["SnapshotDue"]

    workspace.create_restore("undo", {"snapshotRef": {"name": "before"}})
    refused = workspace.wait_condition("Succeeded", "False/SnapshotUnfit", name="undo", of="MemoryRestore", seconds=20)
    assert "agentmemory rebuild NAME --rollback" in refused["message"]
    assert workspace.count_points() == POINTS


def test_restore_restarts_an_unmoved_rebuild(workspace: Workspace) -> None:
    create(workspace)
    take_snapshot(workspace, "before")
    workspace.patch(index=AFTER)
    held = wait_rebuild(workspace, "Held")

    take_snapshot(workspace, "midway")
    workspace.create_restore("undo", {"snapshotRef": {"name": "before"}})
    workspace.wait_condition("Succeeded", "True/Restored", name="undo", of="MemoryRestore", seconds=30)

    restored = workspace.aliases()[workspace.alias]
    again = wait_rebuild(workspace, "Held", target=f"{workspace.alias}__4")
    assert (held["target"], restored) == (f"{workspace.alias}__2", f"{workspace.alias}__3")
    assert again["source"] == restored
    assert workspace.status("midway", "MemorySnapshot")["physical"] == f"{workspace.alias}__1"
    assert workspace.count_points() == POINTS
    assert f"{workspace.alias}__2" not in workspace.physicals()

    workspace.annotate(cancel_rebuild=again["digest"])
    wait_rebuild(workspace, "Stopped")
    assert workspace.physicals() == [f"{workspace.alias}__1", restored]


def test_restore_during_move_waits_for_its_end(workspace: Workspace) -> None:
    create(workspace, rebuild={"maxRecallDropPercent": 100})
    take_snapshot(workspace, "before")
    workspace.patch(index=AFTER)
    wait_until(lambda: rebuild(workspace).get("step") == "Move", seconds=MOVED_WITHIN_S, what="the move")

    workspace.create_restore("undo", {"snapshotRef": {"name": "before"}})
    workspace.wait_condition("Progressing", "True/WaitsForRebuild", name="undo", of="MemoryRestore", seconds=10)

    wait_rebuild(workspace, "Done")
    workspace.wait_condition("Succeeded", "False/SnapshotUnfit", name="undo", of="MemoryRestore", seconds=30)
    assert workspace.aliases() == {workspace.alias: f"{workspace.alias}__2"}
    assert workspace.count_points() == POINTS
