"""Commands of the pages on debugging, drift, connections, approval and adoption, run as written."""

import pathlib

import pytest

from tests.support.cluster.workspace import OLD_CLUSTER, OLD_UID, Workspace, leave_collection, wait_takeover_request
from tests.support.pages import run_page as run

pytestmark = pytest.mark.usefixtures("operator")


def test_debug_page_commands_show_the_status(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    workspace.create_ready()

    listed, described, status = run(workspace, "debug.md", "", folder=tmp_path)[:3]

    assert workspace.namespace in listed
    assert "Conditions" in described
    assert status.startswith(f"AgentMemory {workspace.namespace}/memory: ready")


def test_drift_page_commands_end_the_drift(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    workspace.create_ready(driftPolicy="Report")
    workspace.qdrant.patch(f"/collections/{workspace.alias}", json={"hnsw_config": {"m": 40}}).raise_for_status()
    workspace.request_pass()
    workspace.wait_condition("InSync", "False/Drifted")

    run(workspace, "drift.md", "", folder=tmp_path)

    workspace.wait_ready()
    assert workspace.config()["hnsw_config"]["m"] == 16


def test_connections_page_commands_create_secrets(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    workspace.connect()
    (tmp_path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\n")

    *_, listed = run(workspace, "connections.md", "", folder=tmp_path)

    assert workspace.qdrant_url in listed


def test_approve_page_commands_approve_the_plan(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    workspace.create_ready()
    workspace.store_points(1)
    workspace.patch(index={"distance": "Dot"})
    workspace.wait_condition("InSync", "False/AwaitingApproval")
    digest = workspace.status()["plan"]["digest"]

    run(workspace, "approve.md", "A newer revision of a preset", folder=tmp_path, DIGEST=digest)

    annotations = workspace.must_get()["metadata"]["annotations"]
    assert annotations["agentmemory.dev/approve-plan"] == digest


def test_adopt_page_commands_take_over_a_collection(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    leave_collection(workspace, name="another")
    workspace.create()
    workspace.wait_condition("Stalled", "True/CollectionNotOwned")

    owner, _ = run(workspace, "adopt.md", "Take over one collection", folder=tmp_path, UID=OLD_UID)

    assert "another" in owner
    assert workspace.wait_ready()["status"]["collection"]["points"] == 3


def test_adopt_page_commands_move_agent_to_namespace(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    leave_collection(workspace, namespace="elsewhere")
    workspace.create()
    wait_takeover_request(workspace)

    page = "Give an agent to another namespace"
    # On the page, the connection has a namespace of its own; here it is the agent's.
    values = {"-n infra": f"-n {workspace.namespace}", '"agents"': f'"{workspace.namespace}"', "UID": OLD_UID}
    values |= {'"agent":"memory"': f'"agent":"{workspace.slug}"'}
    request, _ = run(workspace, "adopt.md", page, folder=tmp_path, **values)

    assert OLD_UID in request
    assert workspace.wait_ready()["status"]["collection"]["points"] == 3


def test_adopt_page_commands_take_over_after_rebuild(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    cluster = f"{OLD_CLUSTER}-{workspace.slug}"
    leave_collection(workspace, clusterId=cluster)
    workspace.create()
    wait_takeover_request(workspace)

    listed, _ = run(workspace, "adopt.md", "After a cluster was rebuilt", folder=tmp_path, OLD=cluster)

    assert workspace.alias in listed
    assert workspace.wait_ready()["status"]["collection"]["points"] == 3
