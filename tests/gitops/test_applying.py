"""Two tools apply the same objects while the operator runs: no conflict loops, and no unnecessary writes."""

from typing import Any

import httpx
import pytest
import yaml

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from tests.gitops.tools import EXAMPLE, flux_status, healths, kstatus, list_actions, run_action
from tests.support.cluster.workspace import AGENT, CONNECTION, MERGE, PLURALS, SIZE, Workspace
from tests.support.patience import wait_until
from tests.support.spec.documents import Document

PERIODS = {"stalled_s": 0.5, "probe_s": 0.3, "converged_s": 0.3}
pytestmark = pytest.mark.usefixtures("quick_operator")


def desired(workspace: Workspace, **spec: Any) -> Document:
    """Build the AgentMemory as stored in Git."""
    parameters = {"connectionRef": {"name": CONNECTION}, "agent": workspace.slug, "scoring": {"weights": WEIGHTS}}
    parameters |= {"embedding": {"provider": "none", "dimensions": SIZE}} | spec
    metadata = {"name": AGENT, "namespace": workspace.namespace}
    return {"apiVersion": API_VERSION, "kind": "AgentMemory", "metadata": metadata, "spec": parameters}


WEIGHTS = {"similarity": 0.5, "recency": 0.3, "utility": 0.2}


def apply(workspace: Workspace, document: Document, manager: str, *, dry_run: bool = False) -> httpx.Response:
    """Apply server-side, without force."""
    parameters = {"fieldManager": manager, "fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
    headers = {"content-type": "application/apply-patch+yaml"}
    path = workspace.path(document["kind"], document["metadata"]["name"])
    http = workspace.control_plane.http
    return http.patch(path, params=parameters, content=yaml.safe_dump(document), headers=headers)


def spec_of_managers(found: Document) -> set[str]:
    """Return the managers that own fields of the spec."""
    return {entry["manager"] for entry in found["metadata"]["managedFields"] if "f:spec" in entry["fieldsV1"]}


def read_healths(found: Document) -> tuple[str, str, str]:
    """Return the health in Argo CD, Flux and kstatus."""
    return healths(found["kind"], [found])[0]["status"], flux_status(found), kstatus(found)


def test_two_managers_and_operator_do_not_interfere(workspace: Workspace) -> None:
    workspace.connect()
    document = desired(workspace)
    for manager in ("argocd-controller", "kustomize-controller"):
        assert apply(workspace, document, manager).status_code in (200, 201)
        workspace.wait_ready()
    workspace.run_pass()
    before = workspace.must_get()

    for manager in ("argocd-controller", "kustomize-controller"):
        assert apply(workspace, document, manager).status_code == 200
    # Runs after passes over both: the queue runs one at a time, and this object is polled every 0.3 s.
    probes = workspace.status(CONNECTION, "QdrantConnection")
    workspace.create("other", agent=f"{workspace.slug}-other")
    workspace.wait_ready("other")
    workspace.run_pass("other")

    after = workspace.must_get()
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert spec_of_managers(after) == {"argocd-controller", "kustomize-controller"}
    assert workspace.status(CONNECTION, "QdrantConnection")["conditions"] == probes["conditions"]


def test_field_of_another_manager_causes_conflict(workspace: Workspace) -> None:
    """The conflict is reported, so a second source for one object is noticed."""
    workspace.connect()
    assert apply(workspace, desired(workspace), "argocd-controller").status_code == 201
    other = desired(workspace, scoring={"weights": {"similarity": 0.2, "recency": 0.7, "utility": 0.1}})
    refused = apply(workspace, other, "kustomize-controller")
    assert refused.status_code == 409
    assert "argocd-controller" in refused.json()["message"]


def test_stages_are_reported_and_approval_persists(workspace: Workspace) -> None:
    """Self-heal does not remove the approval."""
    document = desired(workspace)
    assert apply(workspace, document, "argocd-controller").status_code == 201
    workspace.wait_condition("Stalled", "True/ConnectionNotFound")
    assert read_healths(workspace.must_get()) == ("Degraded", "Failed", "Failed")
    workspace.connect()
    assert read_healths(workspace.wait_ready()) == ("Healthy", "Current", "Current")
    workspace.store_points(3)

    document = desired(workspace, embedding={"provider": "none", "dimensions": SIZE}, index={"distance": "Dot"})
    assert apply(workspace, document, "argocd-controller").status_code == 200
    workspace.wait_condition("InSync", "False/AwaitingApproval")
    held = workspace.must_get()
    assert read_healths(held) == ("Suspended", "Failed", "Current")
    assert list_actions(held) == {"approve": True, "snapshot": True}

    annotations = run_action("approve", held)["metadata"]["annotations"]
    workspace.change("AgentMemory", AGENT, {"metadata": {"annotations": annotations}})
    # Self-heal applies the state in Git again; the annotation has no owner in Git.
    assert apply(workspace, document, "argocd-controller").status_code == 200
    found = workspace.must_get()
    assert found["metadata"]["annotations"].items() >= annotations.items()
    workspace.wait_condition("InSync", "True/Converged", seconds=60)
    assert read_healths(workspace.must_get()) == ("Healthy", "Current", "Current")

    [made] = run_action("snapshot", workspace.must_get())
    path = workspace.path("MemorySnapshot")
    answer = workspace.control_plane.http.post(path, json=made["resource"], params={"fieldValidation": "Strict"})
    assert answer.status_code == 201, answer.text
    name = made["resource"]["metadata"]["name"]
    workspace.wait_condition("Succeeded", "True/SnapshotTaken", name=name, of="MemorySnapshot", seconds=30)
    assert read_healths(workspace.must_get(name, "MemorySnapshot")) == ("Healthy", "Current", "Current")


def test_health_waits_for_the_new_generation(workspace: Workspace) -> None:
    workspace.connect()
    apply(workspace, desired(workspace), "argocd-controller")
    first = workspace.wait_ready()["metadata"]["generation"]
    changed = desired(workspace, scoring={"weights": {"similarity": 0.2, "recency": 0.7, "utility": 0.1}})
    apply(workspace, changed, "argocd-controller")
    wait_until(lambda: read_healths(workspace.must_get())[0] == "Healthy", seconds=8, what="health")
    found = workspace.must_get()
    assert found["status"]["observedGeneration"] == first + 1 == found["status"]["scoring"]["generation"]


def test_forged_status_types_are_rejected(workspace: Workspace) -> None:
    workspace.create_ready()
    path = f"{workspace.path('AgentMemory', AGENT)}/status"
    for status in ({"conditions": "x"}, {"conditions": [{"type": "Ready", "status": "Maybe"}]}):
        refused = workspace.control_plane.http.patch(path, json={"status": status}, headers=MERGE)
        assert refused.status_code == 422


@pytest.mark.parametrize("path", sorted(EXAMPLE.glob("[acr]*/*.yaml")), ids=lambda path: path.name)
def test_example_objects_are_accepted(workspace: Workspace, path: Any) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] in PLURALS:
            document["metadata"]["namespace"] = workspace.namespace
            answer = apply(workspace, document, "test", dry_run=True)
            assert answer.status_code == 201, answer.text
