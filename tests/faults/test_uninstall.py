"""Uninstalls in any order, on a cluster with its controllers: our objects are removed, retained data is not lost."""

import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.build import CONTROLLERS
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import NAMESPACE, OPERATOR_NAMESPACE_FLAGS, container_of, install, shell
from tests.support.cluster.operators import LEADING, run_command
from tests.support.cluster.tenants import create_secret
from tests.support.cluster.workspace import CONNECTION, PLURALS, Workspace, conditions_of, confirm_delete
from tests.support.pages import read_commands
from tests.support.patience import wait_until
from tests.support.programs import Program, find_built, running
from tests.support.web.http_server import check_success

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]

KEY = {"name": "qdrant-key", "key": "api-key"}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MEMORIES = 3
UNANSWERED = (
    "agentmemory: Delete every object and the definitions, in every namespace of this cluster? Standard input is not"
    " a terminal, so nothing was done: add --yes\n"
)


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    """Cluster of this module, whose definitions are deleted and recreated, with controllers that finish deletions."""
    with ControlPlane(find_built()) as started:
        started.start_controllers(find_built(CONTROLLERS))
        yield started


class Installed:
    """Installation with an agent that retains its memories, one that deletes them, and snapshots of both."""

    def __init__(self, workspace: Workspace, folder: pathlib.Path) -> None:
        self.workspace, self.folder = workspace, folder
        self.plane = workspace.control_plane
        self.catalogue = folder / "catalogue.json"
        self.deleting = Workspace(
            self.plane, workspace.namespace, workspace.qdrant_url, claims=f"{workspace.slug}-gone"
        )
        self.operator = self.start()

    def start(self) -> Program:
        """Install, and start the operator with the account of the manifests."""
        wait_namespace_deleted(self.plane, NAMESPACE)
        install(self.plane)
        operator = container_of("agentmemory-operator").start(
            self.plane, self.folder, *OPERATOR_NAMESPACE_FLAGS, ports=container_of("agentmemory-operator").free_ports()
        )
        operator.wait_for(LEADING)
        return operator

    def fill(self) -> None:
        """Create the connection, both agents with memories, and their snapshots."""
        here = self.workspace
        create_secret(here, KEY["name"], **{KEY["key"]: "secret"})
        here.connect(apiKeySecretRef=KEY)
        here.create()
        self.deleting.create("gone", deletionPolicy="Delete", annotations=confirm_delete(self.deleting.alias))
        for one, name in ((here, "memory"), (self.deleting, "gone")):
            one.wait_ready(name, seconds=20)
            one.store_points(MEMORIES)
        here.create_snapshot("kept", verify="None")
        here.create_snapshot("taken", verify="None", deletionPolicy="Delete")
        self.deleting.create_snapshot("last", of="gone", verify="None")
        for name in ("kept", "taken", "last"):
            here.wait_condition("Succeeded", "True/SnapshotTaken", name=name, of="MemorySnapshot", seconds=20)
        held = lambda: here.must_get("taken", "MemorySnapshot")["metadata"].get("finalizers")  # noqa: E731
        wait_until(held, seconds=10, what="the finalizer of what is to go")

    def file_of(self, name: str) -> tuple[str, str]:
        """Return collection and file of a snapshot."""
        status = self.workspace.status(name, "MemorySnapshot")
        return status["physical"], status["name"]

    def do(self, step: str) -> None:
        """Perform one step of an uninstall; missing objects are ignored."""
        here, kubectl = self.workspace, self.plane.kubectl
        match step:
            case "objects":
                for kind in ("mrest", "amem", "msnap", "qconn"):
                    kubectl("delete", kind, "--all", "--all-namespaces", "--wait=false")
            case "namespace":
                kubectl("delete", "namespace", here.namespace, "--wait=false", "--ignore-not-found")
            case "definitions":
                kubectl("delete", "-f", "crds/", "--wait=false", "--ignore-not-found")
            case "operator":
                self.operator.stop()
                kubectl("delete", "-f", "examples/install/", "--wait=false", "--ignore-not-found")
            case "connection":
                kubectl("delete", "qconn", CONNECTION, "-n", here.namespace, "--ignore-not-found")
                kubectl("delete", "secret", KEY["name"], "-n", here.namespace, "--ignore-not-found")
            case "let go":
                wait_until(lambda: not self.objects(), seconds=60, what="the end of every object")

    def objects(self) -> list[dict[str, Any]]:
        """Return our objects in the namespace; none of a kind whose definition is deleted."""
        here = self.workspace
        answers = [self.plane.http.get(here.path(kind)) for kind in PLURALS]
        return [
            item for answer in answers if answer.status_code != 404 for item in check_success(answer).json()["items"]
        ]

    def uninstall(self, *options: str) -> tuple[int, str]:
        """Run the verb; return its exit status and output."""
        file = self.folder / f"catalogue-{len(list(self.folder.glob('catalogue*')))}.json"
        named = () if "--catalogue" in options else ("--catalogue", str(file))
        code, output, errors = run_command(self.plane, "uninstall", *named, *options)
        return code, output + errors

    def check_ended(self, *, namespace: bool) -> None:
        """Check that our objects are deleted, and the namespace if it was to be deleted."""
        assert [item for item in self._definitions() if "agentmemory.dev" in item] == []
        wait_namespace_deleted(self.plane, NAMESPACE)
        if namespace:
            wait_namespace_deleted(self.plane, self.workspace.namespace)

    def _definitions(self) -> list[str]:
        items = check_success(self.plane.http.get(DEFINITIONS)).json()["items"]
        return [item["metadata"]["name"] for item in items]

    def install_again(self) -> None:
        """Install from the catalogue, by the commands of the page."""
        here = self.workspace
        if self.plane.http.get(f"/api/v1/namespaces/{here.namespace}").status_code == 404:
            check_success(self.plane.http.post("/api/v1/namespaces", json={"metadata": {"name": here.namespace}}))
        if self.plane.http.get(f"/api/v1/namespaces/{here.namespace}/secrets/{KEY['name']}").status_code == 404:
            create_secret(here, KEY["name"], **{KEY["key"]: "secret"})
        for command in read_commands("install.md", "Install again from a catalogue")[:4]:
            output = command.replace("catalogue.json", str(self.catalogue))
            wait_until(lambda output=output: succeeds(self.plane, output), seconds=20, what=output)
        self.operator = self.start()

    def reachable(self, file: tuple[str, str]) -> bool:
        """Return whether Qdrant lists a snapshot's file."""
        answer = self.workspace.qdrant.get(f"/collections/{file[0]}/snapshots")
        return answer.status_code == 200 and file[1] in [one["name"] for one in answer.json()["result"]]


def localize(command: str) -> str:
    """Return a command of a page with the program of this environment."""
    return command.replace("agentmemory ", f"{pathlib.Path(sys.executable).parent}/agentmemory ", 1)


def succeeds(plane: ControlPlane, command: str) -> bool:
    try:
        shell(plane, command)
    except AssertionError:
        return False
    return True


def wait_namespace_deleted(plane: ControlPlane, name: str) -> None:
    """Wait until a namespace is not terminating any more, or does not exist."""

    def is_gone() -> bool:
        found = plane.http.get(f"/api/v1/namespaces/{name}")
        return found.status_code == 404 or "deletionTimestamp" not in found.json()["metadata"]

    wait_until(is_gone, seconds=30, what=f"the end of namespace {name}")


@pytest.fixture
def world(control_plane: ControlPlane, qdrant_url: str, tmp_path: pathlib.Path) -> Iterator[Installed]:
    workspace = Workspace(control_plane, control_plane.create_namespace(), qdrant_url)
    made = Installed(workspace, tmp_path)
    with running(made.operator):
        made.fill()
        yield made
        made.operator.kill()
    made.do("operator")
    workspace.clean()
    made.deleting.qdrant.close()


# Some order starts with each of the five steps, and the operator is stopped before and after each of the others. "let
# # go" waits until a running operator has released the objects.
# operator has released the objects.
ORDERS: dict[str, tuple[str, ...]] = {
    "objects first": ("objects", "let go", "operator", "definitions", "namespace", "connection"),
    "operator first": ("operator", "definitions", "objects", "connection", "namespace"),
    "operator, then namespace": ("operator", "namespace", "objects", "definitions", "connection"),
    "definitions first": ("definitions", "namespace", "connection", "operator", "objects"),
    "namespace first": ("namespace", "let go", "definitions", "operator", "objects", "connection"),
    "connection first": ("connection", "objects", "let go", "namespace", "operator", "definitions"),
    "connection, then operator": ("connection", "operator", "objects", "definitions", "namespace"),
    "definitions, then operator": ("definitions", "operator", "connection", "namespace", "objects"),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_any_order_removes_all_and_is_restorable(world: Installed, order: tuple[str, ...]) -> None:
    kept, last = world.file_of("kept"), world.file_of("last")
    assert world.uninstall("--dry-run", "--catalogue", str(world.catalogue))[0] == 0

    for step in order:
        world.do(step)
    code, output = world.uninstall("--yes", "--release")

    assert code == 0, output
    world.check_ended(namespace=True)
    world.install_again()
    here = world.workspace
    here.wait_ready(seconds=20)
    assert here.count_points() == MEMORIES
    wait_until(lambda: world.reachable(kept) and world.reachable(last), seconds=10, what="the files")
    for name in ("kept", "last"):
        assert conditions_of(here.must_get(name, "MemorySnapshot"))["Succeeded"] == "True/SnapshotTaken"
        assert world.file_of(name) == {"kept": kept, "last": last}[name], "found again, and not made again"


def list_catalogue(file: pathlib.Path, kind: str) -> set[str]:
    """Return the names of a kind's objects in a catalogue."""
    return {one["metadata"]["name"] for one in json.loads(file.read_text())["items"] if one["kind"] == kind}


def test_documented_uninstall_follows_policies(world: Installed) -> None:
    here, taken, last = world.workspace, world.file_of("taken"), world.file_of("last")
    assert world.uninstall() == (2, UNANSWERED), "nobody was asked, and nothing was done"
    code, output = world.uninstall("--yes", "--release")
    assert (code, "stop it first" in output) == (1, True)
    assert len(here.names("MemorySnapshot")) == 3

    shown, _, remove = read_commands("install.md", "Uninstall")
    shell(world.plane, localize(shown).replace("catalogue.json", str(world.catalogue)))
    after = world.folder / "after.json"
    code, output = world.uninstall("--yes", "--catalogue", str(after))

    assert code == 0, output
    assert (world.reachable(taken), world.reachable(last)) == (False, True)
    assert here.physicals() == sorted([here.physical, world.deleting.physical]), "one of them is a placeholder"
    assert list_catalogue(world.catalogue, "MemorySnapshot") == {"kept", "taken", "last"}
    assert list_catalogue(after, "MemorySnapshot") == {"kept", "last"}
    world.operator.stop()
    shell(world.plane, remove)
    world.check_ended(namespace=False)
    world.catalogue = after
    world.install_again()
    wait_until(lambda: world.reachable(last), seconds=10, what="the file")
    here.create_restore("undo", {"snapshotRef": {"name": "kept"}})
    here.wait_condition("Succeeded", "True/Restored", name="undo", of="MemoryRestore", seconds=40)


def test_next_operator_recovers_missing_placeholder(world: Installed) -> None:
    """The operator ended before it created the placeholder of a snapshot's file."""
    here, last = world.workspace, world.file_of("last")
    world.operator.kill()
    here.delete("gone")
    check_success(here.qdrant.delete(f"/collections/{world.deleting.physical}"))
    assert not world.reachable(last)

    # More than the two deleted objects may have finalizers: a snapshot that completed just before the kill has one.
    held = [one for one in world.objects() if one["metadata"].get("finalizers")]
    assert {"gone", "taken"} <= {one["metadata"]["name"] for one in held}
    code, output = world.uninstall("--yes")
    assert (code, f"{len(held)} objects wait for an operator" in output, "--release" in output) == (1, True, True)
    code, output = world.uninstall("--yes", "--release", "--catalogue", str(world.catalogue))

    assert code == 0, output
    world.do("operator")
    world.check_ended(namespace=False)
    world.install_again()
    wait_until(lambda: world.reachable(last), seconds=20, what="the file")
    here.wait_condition("Stalled", "True/CollectionLost", name="gone", seconds=20)


def test_file_is_restorable_without_catalogue(world: Installed) -> None:
    here, last = world.workspace, world.file_of("last")
    world.operator.kill()
    check_success(here.qdrant.delete(f"/collections/{world.deleting.physical}"))

    for command in read_commands("install.md", "Install again from a catalogue")[-2:]:
        output = command.replace("http://127.0.0.1:6333", here.qdrant_url)
        answer = shell(world.plane, output.replace("agent_memory_support-bot__1", world.deleting.physical))

    assert last[1] in answer


def test_team_roles_are_aggregated(control_plane: ControlPlane) -> None:
    wait_namespace_deleted(control_plane, NAMESPACE)
    install(control_plane)

    def groups(role: str) -> set[str]:
        found = check_success(control_plane.http.get(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}")).json()
        return {group for rule in found["rules"] for group in rule.get("apiGroups", ())}

    for role in ("view", "edit", "admin"):
        wait_until(lambda role=role: "agentmemory.dev" in groups(role), seconds=20, what=role)
