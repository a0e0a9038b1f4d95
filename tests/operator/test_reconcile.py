"""An AgentMemory on a real API server becomes a tuned collection, is stable, and follows its changes."""

import pathlib
import shutil
import time
from typing import Any

import pytest

from agentmemory_operator.spec.naming import SCRATCH_PREFIX
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import LEADING
from tests.support.cluster.workspace import READY_WITHIN_S, Workspace, conditions_of
from tests.support.patience import wait_until
from tests.support.programs import Program
from tests.support.web.qdrant_proxy import Proxy

pytestmark = pytest.mark.usefixtures("operator")

QUICKSTART = pathlib.Path(__file__).resolve().parents[2] / "examples" / "quickstart"
CORTEX_QUANTIZATION = {"scalar": {"type": "int8", "quantile": 0.99, "always_ram": True}}


def agrees(found: Any, expected: Any) -> bool:
    """Return whether `found` contains everything in `expected`, floats within single precision."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(agrees(found.get(key), value) for key, value in expected.items())
    return bool(found == pytest.approx(expected, abs=1e-6) if isinstance(expected, float) else found == expected)


class TestCreation:
    def test_marker_has_owner_and_embedding(self, workspace: Workspace) -> None:
        found = workspace.create_ready()

        marker = workspace.config()["metadata"]["agentmemory"]

        kube_system = workspace.control_plane.http.get("/api/v1/namespaces/kube-system").json()
        assert marker["clusterId"] == kube_system["metadata"]["uid"]
        assert (marker["namespace"], marker["name"]) == (workspace.namespace, "memory")
        assert marker["uid"] == found["metadata"]["uid"]
        assert marker["configHash"] == found["status"]["collection"]["configHash"] != ""
        assert marker["embedding"] == {"provider": "none", "dimensions": 8}

    def test_spec_is_unchanged_and_has_no_finalizer(self, workspace: Workspace) -> None:
        workspace.connect()
        workspace.create()
        before = workspace.must_get()["spec"]

        found = workspace.wait_ready()

        assert found["spec"] == before
        assert "finalizers" not in found["metadata"]
        assert "annotations" not in found["metadata"]

    def test_kubectl_shows_readiness_and_held_plan(self, workspace: Workspace) -> None:
        workspace.create_ready()
        table = ("get", "amem", "-n", workspace.namespace)
        serving = workspace.control_plane.kubectl(*table).stdout.splitlines()
        workspace.patch(index={"distance": "Dot"}, changePolicy="Never")
        workspace.wait_condition("InSync", "False/RebuildNotAllowed")

        held = workspace.control_plane.kubectl(*table).stdout.splitlines()

        assert serving[0].split() == ["NAME", "READY", "SYNCED", "REASON", "MEMORIES", "LAST-SNAPSHOT", "AGE"]
        assert serving[1].split()[:4] == ["memory", "True", "True", "0"]
        assert held[1].split()[:5] == ["memory", "True", "False", "RebuildNotAllowed", "0"]

    def test_memory_count_is_updated_by_next_pass(self, workspace: Workspace) -> None:
        workspace.create_ready()
        workspace.store_points(7)
        path, tombstone = f"/collections/{workspace.alias}/points/payload", {"deletedAt": 1}
        body = {"points": [1, 2, 3], "payload": tombstone}
        workspace.qdrant.post(path, params={"wait": "true"}, json=body).raise_for_status()

        workspace.request_pass()

        wait_until(lambda: workspace.status()["collection"].get("memories") == 4, seconds=10, what="the number")
        assert workspace.status()["collection"]["points"] == 7
        table = workspace.control_plane.kubectl("get", "amem", "-n", workspace.namespace).stdout.splitlines()
        assert table[1].split()[:4] == ["memory", "True", "True", "4"]

    def test_kubectl_shows_reason_and_agent(self, workspace: Workspace) -> None:
        workspace.create(connectionRef={"name": "nowhere"}, preset="brain")
        workspace.wait_condition("Ready", "False/ConnectionNotFound")

        printed = workspace.control_plane.kubectl("get", "amem", "-n", workspace.namespace, "-o", "wide").stdout

        row = printed.splitlines()[1].split()
        assert row[:3] == ["memory", "False", "ConnectionNotFound"]
        assert row[-3:-1] == [workspace.slug, "brain"]

    def test_quickstart_is_ready_within_five_seconds(
        self, control_plane: ControlPlane, workspace: Workspace, tmp_path: pathlib.Path
    ) -> None:
        manifests = shutil.copytree(QUICKSTART, tmp_path / "quickstart", ignore=shutil.ignore_patterns("*[!l]"))
        connection = manifests / "10-connection.yaml"
        connection.write_text(connection.read_text().replace("http://qdrant.qdrant.svc:6333", workspace.qdrant_url))
        quickstart = Workspace(control_plane, "agents", workspace.qdrant_url)
        try:
            done = control_plane.kubectl("apply", "-f", str(manifests))

            assert done.returncode == 0, done.stderr
            found = quickstart.wait_ready("support-bot", seconds=READY_WITHIN_S)
            assert found["status"]["collection"]["alias"] == "agent_memory_support-bot"
            assert found["status"]["effective"]["embedding"]["provider"] == "wordllama"
        finally:
            quickstart.clean()


CORTEX_CONFIG = {
    "hnsw_config": {"m": 16, "ef_construct": 128, "full_scan_threshold": 10_000},
    "optimizer_config": {"default_segment_number": 2, "indexing_threshold": 20_000},
    "quantization_config": CORTEX_QUANTIZATION,
}


class TestChange:
    def test_change_is_applied_and_unset_restores_preset(self, workspace: Workspace) -> None:
        workspace.create_ready()

        workspace.patch(index={"hnsw": {"m": 24}, "quantization": {"type": "None"}})
        workspace.wait_ready()
        expected = {"hnsw_config": {"m": 24, "ef_construct": 128}, "quantization_config": None}
        assert agrees(workspace.config(), expected), workspace.config()

        workspace.patch(index=None)
        workspace.wait_ready()
        assert agrees(workspace.config(), CORTEX_CONFIG), workspace.config()
        assert workspace.physicals() == [workspace.physical]

    def test_dropped_index_is_recreated(self, workspace: Workspace) -> None:
        workspace.create_ready()
        path = f"/collections/{workspace.physical}/index"
        workspace.qdrant.delete(f"{path}/userId", params={"wait": "true"}).raise_for_status()
        foreign = {"field_name": "metadata.ticket", "field_schema": "keyword"}
        workspace.qdrant.put(path, params={"wait": "true"}, json=foreign).raise_for_status()

        workspace.request_pass()

        def indexed() -> set[str]:
            return set((workspace.collection() or {})["payload_schema"])

        wait_until(lambda: "userId" in indexed(), seconds=READY_WITHIN_S, what="the index")
        assert "metadata.ticket" in indexed()


class TestQuiet:
    def test_second_pass_writes_nothing(self, workspace: Workspace, proxy: Proxy) -> None:
        """A new annotation requests a pass, which records the annotation and nothing else."""
        workspace.connect(url=proxy.url)
        workspace.create()
        workspace.wait_ready()
        forget_calls(proxy)

        before = workspace.status()
        workspace.run_pass()

        status = workspace.status()
        assert status.pop("lastHandledReconcileAt")
        assert status == before
        assert proxy.mutations() == []
        assert len(observations(proxy)) <= PASS_CALLS

    def test_restarted_operator_changes_nothing(self, workspace: Workspace, proxy: Proxy, operator: Program) -> None:
        workspace.connect(url=proxy.url)
        workspace.create(deletionPolicy="Delete")
        workspace.wait_ready()
        forget_calls(proxy)
        versions = {kind: workspace.must_get(name, kind)["metadata"] for kind, name in OBJECTS}

        operator.stop()
        operator.restart(LEADING)
        wait_until(lambda: len(observations(proxy)) > 0, seconds=10, what="the pass after the start")
        time.sleep(1)

        assert {kind: workspace.must_get(name, kind)["metadata"] for kind, name in OBJECTS} == versions
        # A start removes the copies that interrupted snapshots of other modules left on the server.
        assert [path for _, path in proxy.mutations() if not path.startswith(f"/collections/{SCRATCH_PREFIX}")] == []

    def test_stopped_operator_exits_cleanly(self, workspace: Workspace, operator: Program) -> None:
        workspace.create_ready()

        started = time.monotonic()
        operator.stop()
        took = time.monotonic() - started
        code, log = operator.returncode, operator.log
        operator.restart(LEADING)

        assert (code, "Traceback" in log) == (0, False), log[-1500:]
        assert took < 5

    def test_change_during_downtime_is_applied_at_start(self, workspace: Workspace, operator: Program) -> None:
        workspace.create_ready()
        operator.stop()
        workspace.patch(index={"hnsw": {"m": 20}})

        operator.restart(LEADING)

        workspace.wait_ready(seconds=10)
        assert workspace.config()["hnsw_config"]["m"] == 20


# A pass without changes reads the collection and its alias.
PASS_CALLS = 2
OBJECTS = (("AgentMemory", "memory"), ("QdrantConnection", "main"))


def observations(proxy: Proxy) -> list[tuple[str, str]]:
    """Return the calls of passes, without the probes of the connection."""
    return [call for call in proxy.calls if "/agent_memory_" in call[1]]


def forget_calls(proxy: Proxy) -> None:
    """Wait until the passes that follow a creation are over, then clear their calls."""

    def is_quiet() -> bool:
        before = len(observations(proxy))
        time.sleep(0.5)
        return len(observations(proxy)) == before

    wait_until(is_quiet, seconds=10, what="quiet")
    proxy.calls.clear()


class TestRebuild:
    def test_rebuild_is_held_while_collection_serves(self, workspace: Workspace) -> None:
        workspace.create_ready(changePolicy="Never")
        config = workspace.config()

        workspace.patch(embedding={"dimensions": 16})
        condition = workspace.wait_condition("InSync", "False/RebuildNotAllowed")

        found = workspace.must_get()
        planned = found["status"]["plan"]["changes"][0]
        assert conditions_of(found)["Ready"] == "True/Serving"
        assert (planned["field"], planned["from"], planned["to"], planned["class"], planned["held"]) == (
            *("embedding.dimensions", "8", "16"),
            *("Rebuild", True),
        )
        assert found["status"]["plan"]["digest"]
        assert "embedding.dimensions 8 -> 16" in condition["message"]
        assert workspace.config() == config
        assert workspace.physicals() == [workspace.physical]
