"""A collection changes its owner only when somebody names the owner that loses it."""

from typing import Any

import pytest

from tests.support.workspace import Workspace

pytestmark = pytest.mark.usefixtures("operator")

OLD_UID = "5c9a7f3e-0000-4000-8000-000000000001"
OLD_CLUSTER = "old-cluster"


def leave_behind(workspace: Workspace, **owner: str) -> None:
    """Leave the workspace's collection with three memories to another owner, and its object gone."""
    workspace.create_ready()
    workspace.store_points(3)
    workspace.delete()
    workspace.wait_gone()
    mark(workspace, uid=OLD_UID, **owner)


def mark(workspace: Workspace, **owner: str) -> None:
    """Change the marker in the collection's metadata."""
    marker: dict[str, Any] = workspace.config()["metadata"]["agentmemory"] | owner
    body = {"metadata": {"agentmemory": marker}}
    workspace.qdrant.patch(f"/collections/{workspace.physical}", json=body).raise_for_status()


def marker_of(workspace: Workspace) -> dict[str, Any]:
    marker: dict[str, Any] = workspace.config()["metadata"]["agentmemory"]
    return marker


class TestTakeover:
    def test_a_collection_of_another_cluster_is_refused_with_whose_it_is_and_what_to_set(
        self, workspace: Workspace
    ) -> None:
        leave_behind(workspace, clusterId=OLD_CLUSTER)
        workspace.create()

        condition = workspace.wait_condition("Stalled", "True/CollectionNotOwned")

        for words in (OLD_CLUSTER, OLD_UID, f"agentmemory.dev/takeover={OLD_UID}"):
            assert words in condition["message"]
        owner = {"clusterId": OLD_CLUSTER, "namespace": workspace.namespace, "name": "memory", "uid": OLD_UID}
        assert workspace.status()["foreignOwner"] == owner
        assert marker_of(workspace)["uid"] == OLD_UID

    @pytest.mark.parametrize("owner", [{"clusterId": OLD_CLUSTER}, {"namespace": "elsewhere"}, {"name": "another"}])
    def test_the_annotation_with_the_owner_s_uid_takes_it_over_with_its_memories(
        self, workspace: Workspace, owner: dict[str, str]
    ) -> None:
        leave_behind(workspace, **owner)
        workspace.create()
        workspace.wait_condition("Stalled", "True/CollectionNotOwned")

        workspace.annotate(takeover=OLD_UID)

        found = workspace.wait_ready()
        assert found["status"]["collection"]["points"] == 3
        assert "foreignOwner" not in found["status"]
        marker = marker_of(workspace)
        assert (marker["name"], marker["namespace"]) == ("memory", workspace.namespace)
        assert marker["uid"] == found["metadata"]["uid"]
        assert OLD_UID in workspace.events(kind="Normal")["CollectionTakenOver"]
        assert workspace.physicals() == [workspace.physical]

    def test_the_annotation_with_another_uid_takes_nothing_over(self, workspace: Workspace) -> None:
        leave_behind(workspace, clusterId=OLD_CLUSTER)
        workspace.create(annotations={"agentmemory.dev/takeover": "5c9a7f3e-0000-4000-8000-000000000002"})

        workspace.wait_condition("Stalled", "True/CollectionNotOwned")

        assert marker_of(workspace)["uid"] == OLD_UID
        assert "CollectionTakenOver" not in workspace.events(kind="Normal")
