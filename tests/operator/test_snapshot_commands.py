"""Snapshot commands on a real API server and a Qdrant server, and kubectl's view of snapshots."""

import hashlib
import os
import pathlib
import subprocess

import pytest

from tests.support.cluster.operators import run_command as run
from tests.support.cluster.workspace import Workspace

pytestmark = pytest.mark.usefixtures("operator")


def do(workspace: Workspace, *arguments: str) -> str:
    """Run a command in the workspace's namespace; return its output."""
    status, output, error = run(workspace.control_plane, *arguments, "-n", workspace.namespace)
    assert status == 0, error + output
    return output


def kubectl(workspace: Workspace, *arguments: str) -> list[list[str]]:
    """Return the cells of kubectl's output."""
    environment = os.environ | {"KUBECONFIG": str(workspace.control_plane.kubeconfig), "KUBERC": "off"}
    command = [str(workspace.control_plane.assets / "kubectl"), "-n", workspace.namespace, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def have_snapshot(workspace: Workspace, verify: str = "Full") -> None:
    """Create an agent with points and a snapshot of it."""
    workspace.create_ready()
    workspace.store_points(7)
    workspace.create_snapshot("one", verify=verify)
    workspace.wait_condition("Succeeded", "True/SnapshotTaken", name="one", of="MemorySnapshot", seconds=20)


def test_snapshot_is_created_awaited_and_listed(workspace: Workspace) -> None:
    workspace.create_ready()
    workspace.store_points(7)

    output = do(workspace, "snapshot", "create", "memory", "--name", "one", "--wait")
    heading, line = do(workspace, "snapshot", "list", "memory").splitlines()

    assert output.startswith(f"created MemorySnapshot {workspace.namespace}/one\n")
    assert f"MemorySnapshot {workspace.namespace}/one has succeeded" in output
    assert heading.split()[:3] == ["SNAPSHOT", "TIME", "POINTS"]
    assert (line.split()[0], line.split()[2]) == ("one", "7")
    assert "yes" in line
    assert "same disk" in line


def test_download_matches_the_recorded_hash(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    have_snapshot(workspace)
    path = tmp_path / "one.snapshot"

    do(workspace, "snapshot", "download", "one", "-o", str(path))

    status = workspace.status("one", "MemorySnapshot")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == status["sha256"]
    assert list(tmp_path.iterdir()) == [path]


def test_delete_removes_bytes_of_retained_snapshot(workspace: Workspace) -> None:
    have_snapshot(workspace)
    files = f"/collections/{workspace.physical}/snapshots"
    assert len(workspace.qdrant.get(files).json()["result"]) == 1

    output = do(workspace, "snapshot", "delete", "one", "--yes")

    assert output == f"deleted MemorySnapshot {workspace.namespace}/one and its bytes (same disk)\n"
    assert workspace.get("one", "MemorySnapshot") is None
    assert workspace.qdrant.get(files).json()["result"] == []
