"""Plans that wait for an approval, and `agentmemory approve`, on a real API server."""

import pytest

from agentmemory_operator.spec.kinds.agent_memory import APPROVE_PLAN
from agentmemory_operator.spec.presets import CORTEX
from tests.support.cluster.operators import run_command as run
from tests.support.cluster.workspace import AGENT, Workspace, conditions_of
from tests.support.patience import wait_until

pytestmark = pytest.mark.usefixtures("operator")


def go_back(workspace: Workspace, alias: str | None = None) -> None:
    """Mark the collection as of an unknown preset revision, with another value of m."""
    alias = alias or workspace.alias
    found = workspace.collection(alias)
    assert found is not None
    marker = found["config"]["metadata"]["agentmemory"] | {"presetRevision": 0}
    body = {"hnsw_config": {"m": 8}, "metadata": {"agentmemory": marker}}
    workspace.qdrant.patch(f"/collections/{alias}__1", json=body).raise_for_status()


def read_approval(workspace: Workspace) -> str | None:
    annotation: str | None = workspace.must_get()["metadata"].get("annotations", {}).get(APPROVE_PLAN)
    return annotation


def test_reindex_of_a_revision_needs_approval(workspace: Workspace) -> None:
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
    assert found["status"]["effective"]["presetRevision"] == CORTEX.revision
    assert "plan" not in found["status"]


def test_approval_of_another_plan_is_rejected(workspace: Workspace) -> None:
    workspace.create_ready()
    workspace.store_points(1)
    workspace.patch(index={"distance": "Dot"})
    workspace.wait_condition("InSync", "False/AwaitingApproval")
    first = workspace.status()["plan"]["digest"]

    workspace.patch(index={"distance": "Euclid"})
    workspace.annotate(approve_plan=first)
    refusal = f"the approval of {first} is for another plan"
    wait_until(lambda: refusal in workspace.status()["plan"]["refusal"], seconds=5, what="the refusal")

    plan = workspace.status()["plan"]
    assert plan["digest"] != first
    assert f"{APPROVE_PLAN}={plan['digest']}" in plan["refusal"]
    assert workspace.physicals() == [workspace.physical]


def test_approve_checks_digest_and_shows_changes(workspace: Workspace) -> None:
    workspace.create_ready()
    workspace.store_points(1)
    workspace.patch(index={"distance": "Dot"})
    workspace.wait_condition("InSync", "False/AwaitingApproval")
    digest, command = workspace.status()["plan"]["digest"], ("approve", AGENT, "-n", workspace.namespace)

    refused, _, error = run(workspace.control_plane, *command, "--digest", "0123456789ab")
    assert (refused, read_approval(workspace)) == (1, None)
    status, output, _ = run(workspace.control_plane, *command, "--digest", digest)

    assert f"then approve {digest}" in error
    assert status == 0
    assert f"approved {digest}" in output
    assert "rebuild for index.distance Cosine -> Dot" in output
    assert read_approval(workspace) == digest
    wait_until(
        lambda: conditions_of(workspace.must_get())["InSync"] != "False/AwaitingApproval",
        seconds=5,
        what="the approval",
    )


def test_approve_all_upgrades_objects_of_a_preset(workspace: Workspace) -> None:
    """One object is reindexed, the other rebuilt."""
    workspace.create_ready(timeout_s=2)
    go_back(workspace)
    workspace.request_pass()
    slug = f"{workspace.slug}-other"
    workspace.create("other", agent=slug, index={"distance": "Dot"})
    workspace.wait_ready("other")
    workspace.patch("other", suspend=True)
    workspace.wait_condition("Suspended", "True/Suspended", name="other")
    go_back(workspace, f"agent_memory_{slug}")
    workspace.patch("other", suspend=None, index=None)
    for name in (AGENT, "other"):
        workspace.wait_condition("InSync", "False/AwaitingApproval", name=name)
    command = ("approve", "--all", "--preset", "cortex", "-n", workspace.namespace)

    status, output, error = run(workspace.control_plane, *command)
    _, again, _ = run(workspace.control_plane, *command)

    assert status == 0, error + output
    assert "2 AgentMemories wait for approval of a newer revision of preset cortex" in output
    assert "2 of 2: " in output
    assert "0 AgentMemories wait" in again
    for name in (AGENT, "other"):
        found = workspace.must_get(name)
        assert conditions_of(found)["InSync"] == "True/Converged"
        assert found["status"]["effective"]["presetRevision"] == CORTEX.revision
    assert workspace.status("other")["collection"]["physical"] == f"agent_memory_{slug}__2"
    assert workspace.status("other")["effective"]["distance"] == "Cosine"
