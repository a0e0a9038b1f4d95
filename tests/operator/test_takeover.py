"""A collection changes its owner only if the user names the current owner."""

import pytest

from tests.support.cluster.workspace import (
    OLD_CLUSTER,
    OLD_UID,
    Workspace,
    leave_collection,
    marker_of,
    wait_takeover_request,
)
from tests.support.forked import run_agentmemory
from tests.support.programs import clean_environment

pytestmark = pytest.mark.usefixtures("operator")


class TestTakeover:
    def test_foreign_collection_is_refused_with_remedy(self, workspace: Workspace) -> None:
        leave_collection(workspace, name="another")
        workspace.create()

        condition = workspace.wait_condition("Stalled", "True/CollectionNotOwned")

        for words in (f"{workspace.namespace}/another", OLD_UID, f"agentmemory.dev/takeover={OLD_UID}"):
            assert words in condition["message"]
        cluster_id = marker_of(workspace)["clusterId"]
        owner = {"clusterId": cluster_id, "namespace": workspace.namespace, "name": "another", "uid": OLD_UID}
        assert workspace.status()["foreignOwner"] == owner
        assert marker_of(workspace)["uid"] == OLD_UID

    def test_annotation_takes_over_with_memories(self, workspace: Workspace) -> None:
        leave_collection(workspace, name="another")
        workspace.create()
        workspace.wait_condition("Stalled", "True/CollectionNotOwned")

        workspace.annotate(takeover=OLD_UID)

        check_taken(workspace)


def check_taken(workspace: Workspace) -> None:
    """Check that the object has the collection and all of its points."""
    found = workspace.wait_ready()
    assert found["status"]["collection"]["points"] == 3
    assert "foreignOwner" not in found["status"]
    marker = marker_of(workspace)
    assert (marker["name"], marker["namespace"]) == ("memory", workspace.namespace)
    assert marker["uid"] == found["metadata"]["uid"]
    assert OLD_UID in workspace.events(kind="Normal")["CollectionTakenOver"]
    assert workspace.physicals() == [workspace.physical]


def takeover(workspace: Workspace, *options: str) -> tuple[int, str]:
    """Run `agentmemory takeover`; return exit status and output."""
    environment = clean_environment() | {"KUBECONFIG": str(workspace.control_plane.kubeconfig)}
    done = run_agentmemory("takeover", *options, env=environment)
    return done.returncode, done.stdout + done.stderr


class TestRebuiltCluster:
    @pytest.mark.parametrize("owner", [{"clusterId": "other"}, {"clusterId": OLD_CLUSTER, "name": "another"}])
    def test_all_skips_other_clusters_and_objects(self, workspace: Workspace, owner: dict[str, str]) -> None:
        leave_collection(workspace, **owner)
        workspace.create()
        wait_takeover_request(workspace)

        code, output = takeover(workspace, "--all", "--cluster-id", OLD_CLUSTER, "-n", workspace.namespace, "--yes")

        assert (code, output.strip()) == (0, "No AgentMemory is blocked by a collection of that cluster.")
        assert marker_of(workspace)["uid"] == OLD_UID

    @pytest.mark.parametrize("options", [(), ("memory", "--all"), ("--all",)])
    def test_ambiguous_options_are_rejected(self, workspace: Workspace, options: tuple[str, ...]) -> None:
        assert takeover(workspace, *options)[0] == 2
