"""Read-only commands on a real API server: status, orphans and plan, and all commands as a kubectl plugin."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import yaml

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import run_command as run
from tests.support.cluster.workspace import Workspace, confirm_delete
from tests.support.patience import wait_until
from tests.support.programs import running, start_qdrant
from tests.support.web.qdrant_proxy import Proxy

pytestmark = pytest.mark.usefixtures("operator")

EMBEDDING = {"provider": "none", "dimensions": 8}
BIN = pathlib.Path(sys.executable).parent


def shell(control_plane: ControlPlane, command: str) -> str:
    """Run a printed command in a shell."""
    environment = os.environ | {
        "KUBECONFIG": str(control_plane.kubeconfig),
        "PATH": f"{control_plane.assets}{os.pathsep}{os.environ['PATH']}",
        "KUBERC": "off",
    }
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestStatus:
    def test_namespace_comes_from_context(self, workspace: Workspace, tmp_path: pathlib.Path) -> None:
        workspace.create_ready()
        config = yaml.safe_load(workspace.control_plane.kubeconfig.read_text())
        (context,) = config["contexts"]
        context_there = {"name": "there", "context": context["context"] | {"namespace": workspace.namespace}}
        config["contexts"].append(context_there)
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(config))

        elsewhere, _, error = run(workspace.control_plane, "status", "memory", kubeconfig=kubeconfig)
        status, told, _ = run(workspace.control_plane, "status", "memory", "--context", "there", kubeconfig=kubeconfig)

        assert (elsewhere, status) == (1, 0)
        assert error.startswith("agentmemory: Kubernetes answered 404")
        assert f"AgentMemory {workspace.namespace}/memory" in told

    def test_printed_undo_of_held_plan_works(self, workspace: Workspace) -> None:
        workspace.create_ready(changePolicy="Never")
        workspace.patch(embedding={"provider": "none", "dimensions": 16})
        workspace.wait_condition("InSync", "False/RebuildNotAllowed")

        _, told, _ = run(workspace.control_plane, "status", "memory", "-n", workspace.namespace)
        (undo,) = [line for line in told.splitlines() if "undo:" in line]
        shell(workspace.control_plane, undo.partition("undo: ")[2])

        workspace.wait_ready()
        assert workspace.must_get()["spec"]["embedding"]["dimensions"] == 8

    def test_unknown_context_is_named(self, workspace: Workspace) -> None:
        status, _, error = run(workspace.control_plane, "status", "memory", "--context", "nowhere")

        assert status == 1
        assert "there is no context 'nowhere' in the kubeconfig" in error


def orphans_of(workspace: Workspace, *options: str) -> list[dict[str, Any]]:
    """List the orphans that belong to the workspace, by the command."""
    status, told, error = run(workspace.control_plane, "orphans", *options, "-o", "json")
    assert status == 0, error + told
    (server,) = json.loads(told)["servers"]
    return [entry for entry in server["orphans"] if entry["collection"].startswith(workspace.alias)]


class TestOrphans:
    def test_printed_command_adopts_retained_collection(self, workspace: Workspace) -> None:
        workspace.create_ready()
        workspace.store_points(3)
        connection = ("--connection", f"{workspace.namespace}/main")
        assert orphans_of(workspace, *connection) == []
        workspace.delete()
        workspace.wait_deleted()

        (orphan,) = orphans_of(workspace, *connection)
        assert (orphan["collection"], orphan["points"]) == (workspace.physical, 3)
        assert (orphan["owner"], orphan["reason"]) == (f"{workspace.namespace}/memory", "ObjectGone")
        shell(workspace.control_plane, orphan["adopt"])

        assert workspace.wait_ready()["status"]["collection"]["points"] == 3
        assert orphans_of(workspace, *connection) == []

    def test_printed_command_deletes_kept_collection(self, workspace: Workspace) -> None:
        workspace.create_ready(deletionPolicy="Delete")
        workspace.store_points(2)
        workspace.delete()
        workspace.wait_deleted()
        wait_until(lambda: "CollectionKept" in workspace.events(), seconds=5, what="the event")

        (orphan,) = orphans_of(workspace, "--qdrant", workspace.qdrant_url)
        assert orphan["since"] <= workspace.server_time()
        shell(workspace.control_plane, orphan["delete"])

        assert workspace.physicals() == []

    def test_unmarked_and_unreferenced_are_listed(self, workspace: Workspace) -> None:
        workspace.create_ready()
        marker = workspace.config()["metadata"]
        body = {"vectors": {"size": 8, "distance": "Cosine"}}
        left, plain = f"{workspace.alias}__7", f"{workspace.alias}-plain"
        workspace.qdrant.put(f"/collections/{left}", json=body | {"metadata": marker}).raise_for_status()
        workspace.qdrant.put(f"/collections/{plain}", json=body).raise_for_status()

        found = orphans_of(workspace, "--qdrant", workspace.qdrant_url)

        assert {entry["collection"]: entry["reason"] for entry in found} == {left: "Unreferenced", plain: "Unmarked"}
        for name in (left, plain):
            workspace.qdrant.delete(f"/collections/{name}")

    def test_unreachable_server_is_reported(self, workspace: Workspace) -> None:
        workspace.connect(url="http://127.0.0.1:9")

        status, told, _ = run(workspace.control_plane, "orphans", "--connection", f"{workspace.namespace}/main")

        assert status == 1
        assert "could not be queried" in told
        assert "--qdrant URL" in told


def test_waiting_deletion_reports_deadline(workspace: Workspace, proxy: Proxy) -> None:
    workspace.connect(url=proxy.url)
    workspace.create(deletionPolicy="Delete", annotations=confirm_delete(workspace.alias))
    workspace.wait_ready()
    proxy.is_down = True

    workspace.delete()

    condition = workspace.wait_condition("Reconciling", "True/DeletionWaiting")
    assert "waits for Qdrant until 20" in condition["message"]
    assert "DeletionWaiting" in workspace.events()
    proxy.is_down = False
    workspace.wait_deleted(seconds=20)
    assert workspace.physicals() == []


class TestPlan:
    """`plan --context` reads connections and keys from the same objects as the operator."""

    def planned(self, workspace: Workspace, folder: pathlib.Path, *documents: dict[str, Any]) -> tuple[int, Any]:
        """Plan the documents; return the exit status, and the plan of the first one or the error."""
        file = folder / "manifests.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        context = yaml.safe_load(workspace.control_plane.kubeconfig.read_text())["current-context"]
        options = ("-f", str(file), "--context", context, "-n", workspace.namespace, "-o", "json")
        status, told, error = run(workspace.control_plane, "plan", *options)
        return status, json.loads(told)["plans"][0] if told else error

    def manifest(self, workspace: Workspace, *, connection: str = "main", **spec: Any) -> dict[str, Any]:
        """Build the agent's manifest."""
        kept = workspace.must_get()["spec"] if workspace.get() else {"agent": workspace.slug, "embedding": EMBEDDING}
        merged = kept | {"connectionRef": {"name": connection}} | spec
        return {"apiVersion": API_VERSION, "kind": "AgentMemory", "metadata": {"name": "memory"}, "spec": merged}

    def test_connection_and_key_come_from_cluster(self, workspace: Workspace, tmp_path: pathlib.Path) -> None:
        program, url = start_qdrant(tmp_path / "qdrant", api_key="right")
        with running(program):
            workspace.create_secret("qdrant-key", key="right")
            workspace.connect(url=url, apiKeySecretRef={"name": "qdrant-key", "key": "key"})
            workspace.create()
            workspace.wait_ready()

            same, unchanged = self.planned(workspace, tmp_path, self.manifest(workspace))
            other, changed = self.planned(workspace, tmp_path, self.manifest(workspace, index={"hnsw": {"m": 24}}))
            workspace.change_secret("qdrant-key", key="wrong")
            refused, error = self.planned(workspace, tmp_path, self.manifest(workspace))

        assert (same, unchanged["outcome"], unchanged["connection"]) == (0, "unchanged", f"{workspace.namespace}/main")
        assert (other, changed["outcome"]) == (2, "changes")
        assert refused == 1
        assert error.startswith("agentmemory: Qdrant answered 401")
        assert "right" not in error

    def test_connection_in_files_overrides_cluster(self, workspace: Workspace, tmp_path: pathlib.Path) -> None:
        workspace.create_ready()
        metadata = {"name": "main", "namespace": workspace.namespace}
        spec = {"url": "http://127.0.0.1:9"}
        away = {"apiVersion": API_VERSION, "kind": "QdrantConnection", "metadata": metadata, "spec": spec}

        status, error = self.planned(workspace, tmp_path, self.manifest(workspace), away)

        assert status == 1
        assert error.startswith("agentmemory: Qdrant cannot be reached: ")

    def test_missing_connection_is_refused(self, workspace: Workspace, tmp_path: pathlib.Path) -> None:
        status, plan = self.planned(workspace, tmp_path, self.manifest(workspace, connection="nowhere"))

        assert (status, plan["outcome"], plan["reason"]) == (3, "refused", "ConnectionNotFound")
        assert f"there is no QdrantConnection {workspace.namespace}/nowhere" in plan["refusal"]


def test_plugin_adapts_usage_and_completion(control_plane: ControlPlane) -> None:
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "KUBERC": "off"}
    kubectl = str(control_plane.assets / "kubectl")

    def told(*words: str) -> str:
        done = subprocess.run([kubectl, *words], capture_output=True, text=True, env=environment, timeout=60)
        return done.stdout + done.stderr

    assert "Usage: kubectl agentmemory status [OPTIONS]" in told("agentmemory", "status", "--help")
    assert "Try 'kubectl agentmemory -h' for help." in told("agentmemory", "statsu")
    # kubectl's completion script makes this call.
    assert "snapshot\tCreate, list" in told("__complete", "agentmemory", "sna")


def test_program_runs_as_kubectl_plugin(control_plane: ControlPlane) -> None:
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "KUBERC": "off"}
    command = [str(control_plane.assets / "kubectl"), "agentmemory", "version"]

    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().count(".") == 2
