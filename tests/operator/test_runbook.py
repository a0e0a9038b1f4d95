"""Commands of docs/runbook-restore.md, run as written."""

import pathlib

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.workspace import SIZE, Workspace
from tests.support.pages import run_page, write_manifests
from tests.support.patience import wait_until
from tests.support.programs import free_port, running, start_qdrant
from tests.support.spec.documents import Document
from tests.support.web.s3_server import BUCKET, KEY, S3Server

pytestmark = pytest.mark.usefixtures("operator")

PAGE = "runbook-restore.md"


def snapshot_of(workspace: Workspace, **spec: Document) -> None:
    """Create an agent with points and a verified snapshot of it."""
    workspace.create_ready(timeout_s=2, **spec)
    workspace.store_points(7)
    workspace.create_snapshot("before")
    workspace.wait_condition("Verified", "True/Verified", name="before", of="MemorySnapshot", seconds=20)


def test_one_agent_is_restored_and_rolled_back(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    snapshot_of(workspace)
    workspace.store_points(9)

    status, listed, restored, _, taken_back = run_page(
        workspace, PAGE, "One agent at 3 a.m.", folder=tmp_path, SNAPSHOT="before"
    )

    assert f"AgentMemory {workspace.namespace}/memory: ready" in status
    assert "before" in listed
    assert "has succeeded (Restored)" in restored
    assert "is live again" in taken_back
    assert workspace.count_points() == 9


def test_bad_import_is_undone(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    workspace.create_ready(timeout_s=2)
    workspace.store_points(7)

    run_page(workspace, PAGE, "A bad import", folder=tmp_path)

    assert workspace.count_points() == 7


def test_lost_server_is_restored_from_storage(
    control_plane: ControlPlane, namespace: str, storage: S3Server, tmp_path: pathlib.Path
) -> None:
    port = free_port()
    with running(start_qdrant(tmp_path / "first", port=port)[0]) as first:
        lost = Workspace(control_plane, namespace, f"http://127.0.0.1:{port}")
        lost.create_secret("s3", **{"access-key-id": KEY.id, "secret-access-key": KEY.secret})
        bucket = {"endpoint": storage.url, "bucket": BUCKET, "secretRef": {"name": "s3"}}
        snapshot_of(lost, snapshots={"storage": {"s3": bucket}})
        # A collection that was empty at the last pass would be recreated.
        lost.request_pass()
        wait_until(lambda: lost.status()["collection"]["points"] == 7, seconds=10, what="the points in the status")
        first.kill()
    with running(start_qdrant(tmp_path / "second", port=port)[0]):
        lost.request_pass()
        lost.wait_condition("Ready", "False/CollectionLost", seconds=30)

        _, output = run_page(lost, PAGE, "Qdrant is lost whole", folder=tmp_path)

        assert f"1 of 1: {namespace}/memory restored" in output
        assert lost.count_points() == 7
        lost.clean()


def test_agent_is_cloned_to_staging(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    snapshot_of(workspace)
    own = f"agent: {workspace.slug}-x\n  embedding: {{provider: none, dimensions: {SIZE}}}"
    heading, change = "Clone to staging", {"connectionRef: {name: main} ": f"connectionRef: {{name: main}}\n  {own} "}
    write_manifests(workspace, PAGE, heading, folder=tmp_path, **change)

    _, restored = run_page(workspace, PAGE, heading, folder=tmp_path, SNAPSHOT="before")

    assert "has succeeded (Restored)" in restored
    found = workspace.qdrant.get(f"/collections/{workspace.alias}-x").json()["result"]
    assert found["points_count"] == workspace.count_points() == 7


def test_agent_moves_to_another_cluster(workspace: Workspace, storage: S3Server, tmp_path: pathlib.Path) -> None:
    """The same namespace, after everything of the agent was deleted, represents the other cluster."""
    workspace.create_secret("s3", **{"access-key-id": KEY.id, "secret-access-key": KEY.secret})
    bucket = {"endpoint": storage.url, "bucket": BUCKET, "secretRef": {"name": "s3"}}
    workspace.create_ready(timeout_s=2, snapshots={"storage": {"s3": bucket}})
    workspace.store_points(7)
    run_page(workspace, PAGE, "Move to another cluster: out of the old one", folder=tmp_path)
    status = workspace.status("moving", "MemorySnapshot")
    (key,) = [place["key"] for place in status["locations"] if place["type"] == "S3"]
    workspace.delete()
    workspace.wait_deleted()
    workspace.delete("moving", "MemorySnapshot")
    workspace.qdrant.delete(f"/collections/{workspace.physical}").raise_for_status()
    workspace.create()
    workspace.wait_ready()

    heading = "Move to another cluster: into the new one"
    values = {"CLUSTER": "old-cluster", "ENDPOINT": storage.url, "BUCKET": BUCKET, "KEY": key}
    write_manifests(workspace, PAGE, heading, folder=tmp_path, **values)
    run_page(workspace, PAGE, heading, folder=tmp_path, CLUSTER="old-cluster")

    assert workspace.count_points() == 7
