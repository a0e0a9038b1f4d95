"""`metadata.managedFields` names the program that wrote: operator or command line, never a library."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import run_command as run_agentmemory
from tests.support.cluster.workspace import AGENT, MERGE, Workspace, confirm_delete
from tests.support.patience import wait_until
from tests.support.programs import Program

OPERATOR, CLI = "agentmemory-operator", "agentmemory-cli"
# Commit 4f95245 wrote without a name, so that the API server used the library's.
BEFORE = {"User-Agent": "OpenAPI-Generator/37.0.2/python"}
KINDS = ("agentmemories", "qdrantconnections", "memorysnapshots", "memoryrestores")
SEEN_WITHIN_S = 10.0


@pytest.fixture
def workspace(control_plane: ControlPlane, qdrant_url: str, operator: Program) -> Iterator[Workspace]:
    made = Workspace(control_plane, control_plane.create_namespace(), qdrant_url)
    yield made
    made.clean()


def writers_of(found: dict[str, Any]) -> dict[str, set[str]]:
    """Return the fields of each manager, those of metadata individually."""
    fields_by_manager: dict[str, set[str]] = {}
    for entry in found["metadata"]["managedFields"]:
        fields = {name.removeprefix("f:") for name in entry["fieldsV1"]} - {"metadata"}
        fields |= {name.removeprefix("f:") for name in entry["fieldsV1"].get("f:metadata", ()) if name != "."}
        fields_by_manager.setdefault(entry["manager"], set()).update(fields)
    return fields_by_manager


def items(http: httpx.Client, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get(path).raise_for_status().json()["items"]
    return found


def test_operator_writes_are_attributed(control_plane: ControlPlane, workspace: Workspace) -> None:
    """The operator writes status, finalizer, Events, the Lease, and the snapshot before a deletion."""
    workspace.create_ready(deletionPolicy="Snapshot", annotations=confirm_delete(workspace.alias))
    workspace.store_points(2)

    memory = wait_until(
        lambda: found if "finalizers" in writers_of(found := workspace.must_get()).get(OPERATOR, ()) else None,
        seconds=SEEN_WITHIN_S,
        what="the finalizer",
    )
    assert writers_of(memory)[OPERATOR] == {"finalizers", "status"}
    assert writers_of(workspace.must_get("main", "QdrantConnection"))[OPERATOR] == {"status"}

    workspace.patch(index={"hnsw": {"m": 24}}, types=[{"name": "other", "halfLifeDays": 1}])
    workspace.create("younger", deletionPolicy="Retain")
    workspace.wait_condition("Stalled", "True/SlugTaken", name="younger")
    events = f"/api/v1/namespaces/{workspace.namespace}/events"
    fields_by_manager = wait_until(lambda: items(control_plane.http, events), seconds=SEEN_WITHIN_S, what="an Event")
    assert {name for event in fields_by_manager for name in writers_of(event)} == {OPERATOR}

    lease = f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{OPERATOR}"
    assert set(writers_of(control_plane.http.get(lease).json())) == {OPERATOR}

    workspace.delete("younger")
    workspace.delete()
    workspace.wait_deleted(seconds=30)
    snapshots = f"/apis/agentmemory.dev/v1alpha1/namespaces/{workspace.namespace}/memorysnapshots"
    [final] = items(control_plane.http, snapshots)
    assert set(writers_of(final)) == {OPERATOR}
    assert {"spec", "status"} <= writers_of(final)[OPERATOR]


def test_command_writes_are_attributed(control_plane: ControlPlane, workspace: Workspace) -> None:
    workspace.create_ready()

    status, _, errors = run_agentmemory(
        *(control_plane, "snapshot", "create", AGENT, "--name", "by-hand", "-n", workspace.namespace)
    )

    assert status == 0, errors
    made = wait_until(
        lambda: found if OPERATOR in writers_of(found := workspace.must_get("by-hand", "MemorySnapshot")) else None,
        seconds=SEEN_WITHIN_S,
        what="its status",
    )
    assert "spec" in writers_of(made)[CLI]
    assert writers_of(made)[OPERATOR] <= {"status", "finalizers"}


def test_writes_without_a_name_are_taken_over(control_plane: ControlPlane, workspace: Workspace) -> None:
    """After an upgrade, patches take over fields without conflicts, which only server-side apply has."""
    workspace.create_ready(deletionPolicy="Delete")
    path = f"/apis/agentmemory.dev/v1alpha1/namespaces/{workspace.namespace}/agentmemories/{AGENT}"
    before = workspace.must_get()
    foreign = {"metadata": {"finalizers": ["agentmemory.dev/collection", "example.com/other"]}}
    control_plane.http.patch(path, json=foreign, headers=MERGE | BEFORE).raise_for_status()
    stale = [condition | {"message": "as told before"} for condition in before["status"]["conditions"]]
    patch = {"status": {"conditions": stale, "collection": {"state": "yellow"}}}
    control_plane.http.patch(f"{path}/status", json=patch, headers=MERGE | BEFORE).raise_for_status()
    assert writers_of(workspace.must_get())["OpenAPI-Generator"] == {"finalizers", "status"}

    workspace.patch(scoring={"limit": 3}, deletionPolicy="Retain")
    workspace.wait_ready()

    def find_released() -> dict[str, Any] | None:
        found = workspace.must_get()
        return found if found["metadata"]["finalizers"] == ["example.com/other"] else None

    memory = wait_until(find_released, seconds=SEEN_WITHIN_S, what="the finalizer to go")

    assert "as told before" not in str(memory["status"]["conditions"])
    assert "status" in writers_of(memory)[OPERATOR]
    assert "status" not in writers_of(memory).get("OpenAPI-Generator", set())


def test_no_object_names_a_library(control_plane: ControlPlane, workspace: Workspace) -> None:
    workspace.create_ready(snapshots={"schedule": "0 0 1 1 *"})
    workspace.create_snapshot("one")
    workspace.wait_condition("Succeeded", "True/SnapshotTaken", name="one", of="MemorySnapshot", seconds=20)

    found = [
        each
        for kind in KINDS
        for each in items(control_plane.http, f"/apis/agentmemory.dev/v1alpha1/namespaces/{workspace.namespace}/{kind}")
    ]

    # The tests write as `python-httpx`.
    assert {name for each in found for name in writers_of(each)} == {OPERATOR, "python-httpx"}
