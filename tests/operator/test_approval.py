"""A plan that a newer revision of the preset asks for waits for its approval, on a real API server."""

import pytest

from tests.support.operator import wait_until
from tests.support.workspace import Workspace

pytestmark = pytest.mark.usefixtures("operator")


def go_back(workspace: Workspace) -> None:
    """Make the collection one of a revision that this operator does not know, with another figure."""
    marker = workspace.config()["metadata"]["agentmemory"] | {"presetRevision": 0}
    body = {"hnsw_config": {"m": 8}, "metadata": {"agentmemory": marker}}
    workspace.qdrant.patch(f"/collections/{workspace.physical}", json=body).raise_for_status()


def test_a_revision_s_reindex_is_held_until_its_digest_is_approved(workspace: Workspace) -> None:
    workspace.create_ready()
    go_back(workspace)
    workspace.request_pass()
    condition = workspace.wait_condition("InSync", "False/AwaitingApproval")
    plan = workspace.status()["plan"]
    assert f"agentmemory.dev/approve-plan={plan['digest']}" in condition["message"]
    assert plan["changes"][0]["class"] == "Reindex"
    workspace.annotate(approve_plan="0123456789ab")
    workspace.request_pass()
    assert workspace.config()["hnsw_config"]["m"] == 8

    workspace.annotate(approve_plan=plan["digest"])

    wait_until(lambda: workspace.config()["hnsw_config"]["m"] == 16, seconds=5, what="the Reindex")
    found = workspace.wait_ready()
    assert found["status"]["effective"]["presetRevision"] == 1
    assert "plan" not in found["status"]
