"""Restores on a live cluster: the object is applied, the alias moves, and the conditions report the result."""

from typing import Any

import pytest

from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until

pytestmark = pytest.mark.usefixtures("operator")
POINTS = 5
SOURCE = {"snapshotRef": {"name": "before"}}


def take_snapshot(workspace: Workspace, name: str = "before") -> None:
    """Take a snapshot and wait until it is stored."""
    workspace.create_snapshot(name, verify="None")
    workspace.wait_condition("Succeeded", "True/SnapshotTaken", name=name, of="MemorySnapshot", seconds=20)


def wait_restored(workspace: Workspace, name: str = "undo") -> dict[str, Any]:
    """Return the restore's status once it is applied."""
    workspace.wait_condition("Succeeded", "True/Restored", name=name, of="MemoryRestore", seconds=40)
    return workspace.status(name, "MemoryRestore")


class TestRestore:
    def test_restore_is_applied_and_rolled_back(self, workspace: Workspace) -> None:
        workspace.create_ready(timeout_s=2)
        workspace.store_points(POINTS)
        take_snapshot(workspace)
        workspace.store_points(POINTS + 3)

        workspace.create_restore("undo", SOURCE)
        status = wait_restored(workspace)

        assert (status["points"]["before"], status["points"]["after"]) == (POINTS + 3, POINTS)
        assert workspace.aliases() == {workspace.alias: f"{workspace.alias}__2"}
        found = wait_until(
            lambda: workspace.status()["collection"]["physical"].endswith("__2"), seconds=8, what="the agent's status"
        )
        assert found
        assert "Restored" in workspace.events("undo", kind="Normal")
        workspace.annotate("undo", of="MemoryRestore", rollback="yes")
        workspace.wait_condition("RolledBack", "True/RolledBack", name="undo", of="MemoryRestore", seconds=40)
        assert workspace.count_points() == POINTS + 3

    def test_agent_is_bootstrapped_from_a_snapshot(self, workspace: Workspace) -> None:
        workspace.create_ready()
        workspace.store_points(POINTS)
        take_snapshot(workspace)

        clone = f"{workspace.slug}-clone"
        workspace.create("clone", agent=clone, bootstrap={"fromSnapshot": {"name": "before"}})

        workspace.wait_ready("clone", seconds=20)
        answer = workspace.qdrant.post(f"/collections/agent_memory_{clone}/points/count", json={"exact": True})
        assert answer.json()["result"]["count"] == POINTS
        uid = workspace.must_get("clone")["metadata"]["uid"]
        wait_restored(workspace, f"clone-bootstrap-{uid[:8]}")
