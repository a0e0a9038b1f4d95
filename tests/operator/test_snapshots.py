"""MemorySnapshots in a cluster: requested, taken, verified and deleted."""

import pytest

from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until

pytestmark = pytest.mark.usefixtures("operator")

KIND = "MemorySnapshot"


def files_of(workspace: Workspace) -> list[str]:
    answer = workspace.qdrant.get(f"/collections/{workspace.physical}/snapshots")
    return [item["name"] for item in answer.json()["result"]] if answer.status_code == 200 else []


def test_snapshot_is_taken_verified_and_recorded(workspace: Workspace) -> None:
    workspace.create_ready()
    workspace.store_points(5)

    workspace.create_snapshot("one")
    workspace.wait_condition("Succeeded", "True/SnapshotTaken", name="one", of=KIND, seconds=20)

    status = workspace.status("one", KIND)
    assert status["locations"] == [{"type": "Qdrant", "physical": workspace.physical, "name": status["name"]}]
    assert files_of(workspace) == [status["name"]]
    assert status["points"] == {"before": 5, "after": 5}
    assert [item["status"] for item in status["conditions"] if item["type"] == "Verified"] == ["True"]
    assert "SnapshotMade" in workspace.events("one", kind="Normal")
    wait_until(
        lambda: not workspace.must_get("one", KIND)["metadata"].get("finalizers"), seconds=10, what="no finalizer"
    )


class TestLastSnapshot:
    def test_collection_is_deleted_after_final_snapshot(self, workspace: Workspace) -> None:
        workspace.create_ready(deletionPolicy="Snapshot")
        workspace.store_points(4)

        workspace.delete()
        workspace.wait_deleted(seconds=30)

        (made,) = workspace.names(KIND)
        status = workspace.status(made, KIND)
        assert "-final-" in made
        assert made in workspace.events(kind="Normal")["CollectionDeleted"]
        assert (workspace.physicals(), workspace.aliases()) == ([workspace.physical], {})
        assert files_of(workspace) == [status["name"]]
        assert status["points"]["after"] == 4
