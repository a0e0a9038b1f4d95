"""A collection changes its owner only when somebody names the owner that loses it."""

import pytest

from tests.support.cluster.workspace import (
    CONNECTION,
    OLD_CLUSTER,
    OLD_UID,
    Workspace,
    leave_behind,
    marker_of,
    wait_asked,
)
from tests.support.forked import run_agentmemory
from tests.support.programs import clean_environment

pytestmark = pytest.mark.usefixtures("operator")


class TestTakeover:
    def test_another_object_s_collection_is_refused_with_whose_it_is_and_what_to_set(
        self, workspace: Workspace
    ) -> None:
        leave_behind(workspace, name="another")
        workspace.create()

        condition = workspace.wait_condition("Stalled", "True/CollectionNotOwned")

        for words in (f"{workspace.namespace}/another", OLD_UID, f"agentmemory.dev/takeover={OLD_UID}"):
            assert words in condition["message"]
        cluster_id = marker_of(workspace)["clusterId"]
        owner = {"clusterId": cluster_id, "namespace": workspace.namespace, "name": "another", "uid": OLD_UID}
        assert workspace.status()["foreignOwner"] == owner
        assert marker_of(workspace)["uid"] == OLD_UID

    def test_the_annotation_with_the_owner_s_uid_takes_it_over_with_its_memories(self, workspace: Workspace) -> None:
        leave_behind(workspace, name="another")
        workspace.create()
        workspace.wait_condition("Stalled", "True/CollectionNotOwned")

        workspace.annotate(takeover=OLD_UID)

        check_taken(workspace)

    @pytest.mark.parametrize("owner", [{"clusterId": OLD_CLUSTER}, {"namespace": "elsewhere"}])
    def test_what_is_another_namespace_s_the_owner_of_the_connection_gives(
        self, workspace: Workspace, owner: dict[str, str]
    ) -> None:
        leave_behind(workspace, **owner)
        workspace.create(annotations={"agentmemory.dev/takeover": OLD_UID})
        condition = workspace.wait_condition("Stalled", "True/CollectionNotOwned")
        assert OLD_UID not in condition["message"]
        assert "foreignOwner" not in workspace.status()

        given = {"agent": workspace.slug, "fromUid": OLD_UID, "toNamespace": workspace.namespace}
        workspace.patch(CONNECTION, kind="QdrantConnection", takeovers=[given])

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
    def test_the_command_lists_and_then_takes_over_what_the_old_cluster_had(self, workspace: Workspace) -> None:
        leave_behind(workspace, clusterId=f"{OLD_CLUSTER}-{workspace.slug}")
        workspace.create()
        wait_asked(workspace)
        options = ("--all", "--cluster-id", f"{OLD_CLUSTER}-{workspace.slug}")

        listed = takeover(workspace, *options)

        assert listed[0] == 0
        for words in ("NAMESPACE", workspace.namespace, workspace.alias, OLD_UID, "Nothing was changed"):
            assert words in listed[1]
        assert "takeovers" not in workspace.must_get(CONNECTION, "QdrantConnection")["spec"]
        assert takeover(workspace, *options, "--yes")[0] == 0
        assert workspace.wait_ready()["status"]["collection"]["points"] == 3
        allowed = workspace.must_get(CONNECTION, "QdrantConnection")["spec"]["takeovers"]
        assert allowed == [{"fromClusterId": f"{OLD_CLUSTER}-{workspace.slug}"}]

    @pytest.mark.parametrize("owner", [{"clusterId": "other"}, {"clusterId": OLD_CLUSTER, "name": "another"}])
    def test_all_leaves_alone_what_is_not_the_same_object_of_that_cluster(
        self, workspace: Workspace, owner: dict[str, str]
    ) -> None:
        leave_behind(workspace, **owner)
        workspace.create()
        wait_asked(workspace)

        code, told = takeover(workspace, "--all", "--cluster-id", OLD_CLUSTER, "-n", workspace.namespace, "--yes")

        assert (code, told.strip()) == (0, "No AgentMemory is blocked by a collection of that cluster.")
        assert marker_of(workspace)["uid"] == OLD_UID

    @pytest.mark.parametrize("options", [(), ("memory", "--all"), ("--all",)])
    def test_what_is_meant_has_to_be_said(self, workspace: Workspace, options: tuple[str, ...]) -> None:
        assert takeover(workspace, *options)[0] == 2
