"""The commands that the pages on debugging, drift, connections, approval and adoption show, run as a person would."""

import pathlib

import pytest

from tests.support.cluster.workspace import OLD_CLUSTER, OLD_UID, Workspace, leave_collection, wait_takeover_request
from tests.support.pages import run_page as run

pytestmark = pytest.mark.usefixtures("operator")


def test_debugging_begins_with_what_the_object_says(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    workspace.create_ready()

    listed, described, told = run(workspace, "debug.md", "", folder=tmp_path)[:3]

    assert workspace.namespace in listed
    assert "Conditions" in described
    assert told.startswith(f"AgentMemory {workspace.namespace}/memory: ready")


def test_drift_is_shown_and_ended_as_the_page_says(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    workspace.create_ready(driftPolicy="Report")
    workspace.qdrant.patch(f"/collections/{workspace.alias}", json={"hnsw_config": {"m": 40}}).raise_for_status()
    workspace.request_pass()
    workspace.wait_condition("InSync", "False/Drifted")

    run(workspace, "drift.md", "", folder=tmp_path)

    workspace.wait_ready()
    assert workspace.config()["hnsw_config"]["m"] == 16


def test_a_connection_s_secrets_are_made_as_the_page_says(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    workspace.connect()
    (tmp_path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\n")

    *_, listed = run(workspace, "connections.md", "", folder=tmp_path)

    assert workspace.qdrant_url in listed


def test_a_held_plan_is_shown_and_its_digest_taken_as_the_page_says(
    workspace: Workspace, tmp_path: pathlib.Path
) -> None:
    workspace.create_ready()
    workspace.store_points(1)
    workspace.patch(index={"distance": "Dot"})
    workspace.wait_condition("InSync", "False/AwaitingApproval")
    digest = workspace.status()["plan"]["digest"]

    run(workspace, "approve.md", "A newer revision of a preset", folder=tmp_path, DIGEST=digest)

    annotations = workspace.must_get()["metadata"]["annotations"]
    assert annotations["agentmemory.dev/approve-plan"] == digest


def test_one_collection_is_taken_over_as_the_page_says(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    leave_collection(workspace, name="another")
    workspace.create()
    workspace.wait_condition("Stalled", "True/CollectionNotOwned")

    owner, _ = run(workspace, "adopt.md", "Take over one collection", folder=tmp_path, UID=OLD_UID)

    assert "another" in owner
    assert workspace.wait_ready()["status"]["collection"]["points"] == 3


def test_an_agent_is_given_to_another_namespace_as_the_page_says(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    leave_collection(workspace, namespace="elsewhere")
    workspace.create()
    wait_takeover_request(workspace)

    page = "Give an agent to another namespace"
    # The page's connection lies in a namespace of its own; here it is the agent's.
    values = {"-n infra": f"-n {workspace.namespace}", '"agents"': f'"{workspace.namespace}"', "UID": OLD_UID}
    values |= {'"agent":"memory"': f'"agent":"{workspace.slug}"'}
    asked, _ = run(workspace, "adopt.md", page, folder=tmp_path, **values)

    assert OLD_UID in asked
    assert workspace.wait_ready()["status"]["collection"]["points"] == 3


def test_the_collections_of_a_rebuilt_cluster_are_taken_over_as_the_page_says(
    workspace: Workspace, tmp_path: pathlib.Path
) -> None:
    cluster = f"{OLD_CLUSTER}-{workspace.slug}"
    leave_collection(workspace, clusterId=cluster)
    workspace.create()
    wait_takeover_request(workspace)

    listed, _ = run(workspace, "adopt.md", "After a cluster was rebuilt", folder=tmp_path, OLD=cluster)

    assert workspace.alias in listed
    assert workspace.wait_ready()["status"]["collection"]["points"] == 3
