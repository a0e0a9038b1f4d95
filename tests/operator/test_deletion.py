"""Collections after the deletion of their object, and their ownership."""

import shlex
from typing import Any

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import LEADING
from tests.support.cluster.workspace import Workspace, confirm_delete
from tests.support.pages import read_commands
from tests.support.patience import wait_until
from tests.support.programs import Program

pytestmark = pytest.mark.usefixtures("operator")

KEPT = "CollectionKept"


class TestRetain:
    def test_object_is_released_and_collection_stays(self, workspace: Workspace) -> None:
        workspace.create_ready()
        workspace.store_points(3)

        workspace.delete()

        assert workspace.get() is None, "no finalizer: nothing has to be waited for"
        found = workspace.collection()
        assert found is not None
        assert found["points_count"] == 3

    def test_reapplied_object_takes_collection_back(self, workspace: Workspace) -> None:
        workspace.create_ready()
        workspace.store_points(3)
        workspace.delete()

        workspace.create()
        found = workspace.wait_ready()

        assert found["status"]["collection"]["points"] == 3
        assert workspace.config()["metadata"]["agentmemory"]["uid"] == found["metadata"]["uid"]
        assert workspace.physicals() == [workspace.physical]


class TestDelete:
    @pytest.mark.parametrize("annotations", [{}, confirm_delete("agent_memory_another")], ids=["none", "another's"])
    def test_unconfirmed_memories_are_kept(self, workspace: Workspace, annotations: dict[str, str]) -> None:
        workspace.create_ready(deletionPolicy="Delete", annotations=annotations)
        workspace.store_points(2)

        workspace.delete()

        workspace.wait_deleted()
        message = workspace.events()[KEPT]
        assert f"agentmemory.dev/confirm-delete={workspace.alias}" in message
        assert "2 memories" in message
        found = workspace.collection()
        assert found is not None
        assert found["points_count"] == 2

    def test_confirmed_memories_are_deleted(self, workspace: Workspace) -> None:
        workspace.create_ready(deletionPolicy="Delete")
        workspace.store_points(2)

        workspace.annotate(confirm_delete=workspace.alias)
        workspace.delete()

        workspace.wait_deleted()
        assert workspace.physicals() == []
        assert "2 memories" in workspace.events(kind="Normal")["CollectionDeleted"]

    def test_deletion_during_downtime_completes_at_start(self, workspace: Workspace, operator: Program) -> None:
        workspace.create_ready(deletionPolicy="Delete", annotations=confirm_delete(workspace.alias))
        workspace.store_points(2)
        operator.stop()
        workspace.delete()
        assert workspace.get() is not None, "the finalizer holds it"

        operator.restart(LEADING)

        workspace.wait_deleted()
        assert workspace.physicals() == []

    def test_foreign_finalizer_outlives_ours(self, workspace: Workspace) -> None:
        workspace.create_ready(deletionPolicy="Delete")
        workspace.add_finalizer("example.com/other")

        workspace.delete()

        wait_until(lambda: workspace.physicals() == [], seconds=10, what="the deletion")
        wait_until(
            lambda: workspace.must_get()["metadata"]["finalizers"] == ["example.com/other"],
            seconds=5,
            what="the release",
        )


@pytest.fixture
def other(control_plane: ControlPlane, workspace: Workspace) -> Any:
    """Another namespace whose objects use the same slug."""
    made = Workspace(control_plane, control_plane.create_namespace(), workspace.qdrant_url, claims=workspace.slug)
    yield made
    made.clean()


class TestOwnership:
    def test_younger_object_stalls_without_naming_owner(self, workspace: Workspace, other: Workspace) -> None:
        workspace.create_ready()
        wait_for_next_second(workspace)

        other.connect()
        other.create()
        condition = other.wait_condition("Stalled", "True/SlugTaken")

        assert condition["message"] == f"agent {workspace.slug!r} is taken: choose another spec.agent"
        workspace.wait_ready()
        assert workspace.config()["metadata"]["agentmemory"]["namespace"] == workspace.namespace


def wait_for_next_second(workspace: Workspace) -> None:
    """Wait until an object created now is younger: creation times have a resolution of 1 s."""
    created = workspace.must_get()["metadata"]["creationTimestamp"]
    wait_until(lambda: workspace.server_time() > created, seconds=3, what="the next second")


class TestThePageOnDeleting:
    """Commands of docs/delete.md, for an object of another name."""

    def run(self, workspace: Workspace, heading: str) -> None:
        for command in read_commands("delete.md", heading):
            resolved = command.replace("agent_memory_support-bot", workspace.alias)
            resolved = resolved.replace("-n agents", f"-n {workspace.namespace}").replace("support-bot", "memory")
            done = workspace.control_plane.kubectl(*shlex.split(resolved)[1:])
            assert done.returncode == 0, done.stderr

    def test_memories_are_kept(self, workspace: Workspace) -> None:
        workspace.create_ready()
        workspace.store_points(2)

        self.run(workspace, "Delete the object, keep the memories")

        workspace.wait_deleted()
        assert workspace.physicals() == [workspace.physical]

    def test_memories_are_deleted(self, workspace: Workspace) -> None:
        workspace.create_ready()
        workspace.store_points(2)

        self.run(workspace, "Delete the memories too")

        workspace.wait_deleted()
        assert workspace.physicals() == []

    def test_object_of_removed_operator_is_released(self, workspace: Workspace, operator: Program) -> None:
        workspace.create_ready(deletionPolicy="Delete")
        operator.stop()
        workspace.delete()
        assert workspace.must_get()["metadata"]["deletionTimestamp"]

        self.run(workspace, "When the operator is gone")

        assert workspace.get() is None
        assert workspace.physicals() == [workspace.physical]
        operator.restart(LEADING)
