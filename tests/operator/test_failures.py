"""Missing parts, refusing servers and outages: reported with a reason, and recovered from without help. The operator
uses shorter waiting times.
"""

import pathlib
import time

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import ForkedOperator
from tests.support.cluster.workspace import CONNECTION, Workspace, conditions_of, confirm_delete
from tests.support.patience import wait_until
from tests.support.programs import free_port, running, start_qdrant
from tests.support.web.qdrant_proxy import Proxy

pytestmark = pytest.mark.usefixtures("quick_operator")

PERIODS = {"stalled_s": 1.0, "probe_s": 1.0, "release_s": 2.0, "resync_s": 1.0}

BACK_WITHIN_S = 10.0


class TestMissingParts:
    def test_missing_connection_stalls_until_created(self, workspace: Workspace) -> None:
        workspace.create()
        condition = workspace.wait_condition("Stalled", "True/ConnectionNotFound")
        assert f"QdrantConnection {workspace.namespace}/main" in condition["message"]

        workspace.connect()

        workspace.wait_ready()

    def test_missing_secret_stalls_until_created(self, workspace: Workspace) -> None:
        workspace.connect(apiKeySecretRef={"name": "qdrant-key", "key": "api-key"})
        workspace.create()
        condition = workspace.wait_condition("Stalled", "True/SecretNotFound")
        assert f"Secret {workspace.namespace}/qdrant-key with key 'api-key'" in condition["message"]
        workspace.wait_condition("Stalled", "True/SecretNotFound", name=CONNECTION, of="QdrantConnection")

        workspace.create_secret("qdrant-key", **{"api-key": "s3cret"})

        workspace.wait_ready()


class TestOutages:
    def test_server_down_at_start_is_awaited(self, workspace: Workspace, tmp_path: pathlib.Path) -> None:
        port = free_port()
        workspace.connect(url=f"http://127.0.0.1:{port}")
        workspace.create()
        workspace.wait_condition("Ready", "False/QdrantUnavailable")
        assert conditions_of(workspace.must_get())["Reconciling"] == "True/QdrantUnavailable"
        assert "Stalled" not in conditions_of(workspace.must_get())

        program, _ = start_qdrant(tmp_path / "qdrant", port=port)

        with running(program):
            workspace.wait_ready(seconds=BACK_WITHIN_S)

    def test_lost_server_is_probed_slowly_until_back(self, workspace: Workspace, proxy: Proxy) -> None:
        workspace.connect(url=proxy.url)
        workspace.create()
        before = workspace.wait_ready()["status"]["collection"]

        proxy.is_down = True
        workspace.wait_condition("Ready", "False/QdrantUnavailable")
        workspace.wait_condition("Ready", "False/QdrantUnavailable", name=CONNECTION, of="QdrantConnection")
        assert workspace.status()["collection"] == before, "what was last seen stays"
        proxy.calls.clear()
        time.sleep(3)
        assert len(proxy.calls) <= 5, "a probe a second, and nobody else asks"
        assert "QdrantUnavailable" in workspace.events()

        proxy.is_down = False
        workspace.wait_ready(seconds=BACK_WITHIN_S)

    def test_deletion_waits_then_releases_object(self, workspace: Workspace, proxy: Proxy) -> None:
        workspace.connect(url=proxy.url)
        workspace.create(deletionPolicy="Delete", annotations=confirm_delete(workspace.alias))
        workspace.wait_ready()
        proxy.is_down = True

        workspace.delete()
        time.sleep(1)
        assert workspace.get() is not None, "the deadline has not passed"

        workspace.wait_deleted(seconds=10)
        assert (
            "cannot be reached" in workspace.events()["CollectionKept"] or "503" in workspace.events()["CollectionKept"]
        )
        assert workspace.physicals() == [workspace.physical]

    def test_api_server_outage_is_survived(self, workspace: Workspace) -> None:
        workspace.create_ready()

        workspace.control_plane.restart_apiserver()
        workspace.patch(index={"hnsw": {"m": 24}})

        workspace.wait_ready(seconds=20)
        assert workspace.config()["hnsw_config"]["m"] == 24

    def test_deletion_missed_by_watch_is_found(
        self, workspace: Workspace, control_plane: ControlPlane, quick_operator: ForkedOperator
    ) -> None:
        """The watch breaks while the operator is paused and the object is deleted: its slug must become free."""
        workspace.create_ready(deletionPolicy="Retain")
        quick_operator.pause()
        control_plane.restart_apiserver()
        workspace.delete()
        other = Workspace(control_plane, control_plane.create_namespace(), workspace.qdrant_url, claims=workspace.slug)
        workspace.qdrant.delete(f"/collections/{workspace.physical}").raise_for_status()
        quick_operator.go_on()

        other.connect()
        other.create()

        other.wait_ready(seconds=20)
        other.clean()


class TestLostCollections:
    def test_lost_collection_stalls_and_is_not_recreated(self, workspace: Workspace) -> None:
        workspace.create_ready()
        workspace.store_points(3)
        workspace.request_pass()
        wait_until(lambda: workspace.status()["collection"]["points"] == 3, seconds=5, what="the count")
        workspace.qdrant.delete(f"/collections/{workspace.physical}").raise_for_status()

        workspace.request_pass()
        condition = workspace.wait_condition("Stalled", "True/CollectionLost")

        assert "3 points" in condition["message"]
        workspace.run_pass()
        assert workspace.physicals() == []


class TestTies:
    @pytest.mark.parametrize("attempt", range(4))
    def test_object_with_collection_keeps_contested_slug(
        self, control_plane: ControlPlane, workspace: Workspace, attempt: int
    ) -> None:
        """Both objects are created in the same second; by their random uids, the other would often win."""
        workspace.connect()
        other = Workspace(control_plane, control_plane.create_namespace(), workspace.qdrant_url, claims=workspace.slug)
        other.connect()
        workspace.create()
        time.sleep(0.1 * attempt)
        other.create()

        def has_one_owner() -> bool:
            both = [conditions_of(each.must_get()) for each in (workspace, other)]
            reasons = sorted(has.get("Stalled", has.get("Ready", "")) for has in both)
            return reasons == ["True/Serving", "True/SlugTaken"]

        wait_until(has_one_owner, seconds=10, what="one owner")
        other.clean()
