"""The commands that the pages on debugging, drift, connections, approval and adoption show, run as a person would."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.support.foreign_owners import OLD_CLUSTER, OLD_UID, leave_behind
from tests.support.pages import commands_of
from tests.support.workspace import Workspace

pytestmark = pytest.mark.usefixtures("operator")

# There are no Deployments, nor a namespace of the product, where the operator runs as a process.
NEEDS_PODS = "agentmemory-system"


def run(workspace: Workspace, page: str, heading: str, *, folder: pathlib.Path, **values: str) -> list[str]:
    """Run what a page shows on the test's object; return what each command printed."""
    path = os.pathsep.join(
        [str(workspace.control_plane.assets), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
    )
    environment = os.environ | {"KUBECONFIG": str(workspace.control_plane.kubeconfig), "PATH": path, "KUBERC": "off"}
    printed = []
    for command in commands_of(page, heading):
        if NEEDS_PODS in command:
            continue
        said = command.replace("-n agents", f"-n {workspace.namespace}").replace("support-bot", "memory")
        # On this API server the connections of other tests lead nowhere; on a user's each is asked.
        said = said.replace("agentmemory orphans", f"agentmemory orphans --qdrant {workspace.qdrant_url}")
        for word, value in values.items():
            said = said.replace(word, value)
        done = subprocess.run(said, shell=True, capture_output=True, text=True, env=environment, cwd=folder, timeout=60)
        assert done.returncode == 0, f"{said}: {done.stdout}{done.stderr}"
        printed.append(done.stdout)
    assert printed, f"{page} shows no command under {heading!r}"
    return printed


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
    workspace.patch(embedding={"provider": "none", "dimensions": 16})
    workspace.wait_condition("InSync", "False/AwaitingApproval")
    digest = workspace.status()["plan"]["digest"]

    run(workspace, "approve.md", "A newer revision of a preset", folder=tmp_path, DIGEST=digest)

    annotations = workspace.must_get()["metadata"]["annotations"]
    assert annotations["agentmemory.dev/approve-plan"] == digest


def test_one_collection_is_taken_over_as_the_page_says(workspace: Workspace, tmp_path: pathlib.Path) -> None:
    leave_behind(workspace, clusterId=OLD_CLUSTER)
    workspace.create()
    workspace.wait_condition("Stalled", "True/CollectionNotOwned")

    owner, _ = run(workspace, "adopt.md", "Take over one collection", folder=tmp_path, UID=OLD_UID)

    assert OLD_CLUSTER in owner
    assert workspace.wait_ready()["status"]["collection"]["points"] == 3


def test_the_collections_of_a_rebuilt_cluster_are_taken_over_as_the_page_says(
    workspace: Workspace, tmp_path: pathlib.Path
) -> None:
    cluster = f"{OLD_CLUSTER}-{workspace.slug}"
    leave_behind(workspace, clusterId=cluster)
    workspace.create()
    workspace.wait_condition("Stalled", "True/CollectionNotOwned")

    listed, _ = run(workspace, "adopt.md", "After a cluster was rebuilt", folder=tmp_path, OLD=cluster)

    assert workspace.alias in listed
    assert workspace.wait_ready()["status"]["collection"]["points"] == 3
