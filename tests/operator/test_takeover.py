"""A collection changes its owner only when somebody names the owner that loses it."""

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
    def test_another_object_s_collection_is_refused_with_whose_it_is_and_what_to_set(
        self, workspace: Workspace
    ) -> None:
        leave_collection(workspace, name="another")
        workspace.create()

        condition = workspace.wait_condition("Stalled", "True/CollectionNotOwned")

        for words in (f"{workspace.namespace}/another", OLD_UID, f"agentmemory.dev/takeover={OLD_UID}"):
            assert words in condition["message"]
        cluster_id = marker_of(workspace)["clusterId"]
        owner = {"clusterId": cluster_id, "namespace": workspace.namespace, "name": "another", "uid": OLD_UID}
        assert workspace.status()["foreignOwner"] == owner
        assert marker_of(workspace)["uid"] == OLD_UID

    def test_the_annotation_with_the_owner_s_uid_takes_it_over_with_its_memories(self, workspace: Workspace) -> None:
        leave_collection(workspace, name="another")
        workspace.create()
        workspace.wait_condition("Stalled", "True/CollectionNotOwned")

        workspace.annotate(takeover=OLD_UID)

        check_taken(workspace)


def check_taken(workspace: Workspace) -> None:
    """Pass once the object has the collection, and all that it held."""
    found = workspace.wait_ready()
    assert found["status"]["collection"]["points"] == 3
    assert "foreignOwner" not in found["status"]
    marker = marker_of(workspace)
    assert (marker["name"], marker["namespace"]) == ("memory", workspace.namespace)
    assert marker["uid"] == found["metadata"]["uid"]
    assert OLD_UID in workspace.events(kind="Normal")["CollectionTakenOver"]
    assert workspace.physicals() == [workspace.physical]


def takeover(workspace: Workspace, *options: str) -> tuple[int, str]:
    """Run `agentmemory takeover` as people do; return exit status and output."""
    environment = clean_environment() | {"KUBECONFIG": str(workspace.control_plane.kubeconfig)}
    done = run_agentmemory("takeover", *options, env=environment)
    return done.returncode, done.stdout + done.stderr


class TestRebuiltCluster:
    @pytest.mark.parametrize("owner", [{"clusterId": "other"}, {"clusterId": OLD_CLUSTER, "name": "another"}])
    def test_all_leaves_alone_what_is_not_the_same_object_of_that_cluster(
        self, workspace: Workspace, owner: dict[str, str]
    ) -> None:
        leave_collection(workspace, **owner)
        workspace.create()
        wait_takeover_request(workspace)

        code, told = takeover(workspace, "--all", "--cluster-id", OLD_CLUSTER, "-n", workspace.namespace, "--yes")

        assert (code, told.strip()) == (0, "No AgentMemory is blocked by a collection of that cluster.")
        assert marker_of(workspace)["uid"] == OLD_UID

    @pytest.mark.parametrize("options", [(), ("memory", "--all"), ("--all",)])
    def test_what_is_meant_has_to_be_said(self, workspace: Workspace, options: tuple[str, ...]) -> None:
        assert takeover(workspace, *options)[0] == 2
