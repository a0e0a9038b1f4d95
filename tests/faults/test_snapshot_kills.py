"""Operator and server are killed with -9 after every call of a snapshot, its deletion and a final snapshot."""

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from tests.faults.test_operator_kills import PERIODS, Scenario, kill_after_every_call
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import ForkedOperator, OperatorForks
from tests.support.cluster.workspace import Workspace, conditions_of
from tests.support.fault_injection import plant, remove_faults
from tests.support.patience import wait_until
from tests.support.programs import free_port, running, start_qdrant

pytestmark = pytest.mark.faults

KIND = "MemorySnapshot"
POINTS = 3


def files_of(workspace: Workspace) -> list[str]:
    answer = workspace.qdrant.get(f"/collections/{workspace.physical}/snapshots")
    return sorted(item["name"] for item in answer.json()["result"]) if answer.status_code == 200 else []


def scratch_of(workspace: Workspace) -> list[str]:
    found = workspace.qdrant.get("/collections").json()["result"]["collections"]
    return [item["name"] for item in found if item["name"].startswith("agentmemory_scratch__")]


def has_succeeded(workspace: Workspace, name: str) -> bool:
    found = workspace.get(name, KIND)
    return found is not None and conditions_of(found).get("Succeeded") == "True/SnapshotTaken"


def is_settled(workspace: Workspace, name: str) -> bool:
    """Return whether a snapshot is taken and its object has no finalizer."""
    return has_succeeded(workspace, name) and not workspace.must_get(name, KIND)["metadata"].get("finalizers")


class Make:
    """Snapshot that is verified by a restore into a scratch collection."""

    def prepare(self, workspace: Workspace) -> None:
        workspace.connect()
        workspace.create()
        workspace.wait_ready(seconds=20)
        workspace.store_points(POINTS)

    def trigger(self, workspace: Workspace) -> None:
        workspace.create_snapshot("one")

    def is_done(self, workspace: Workspace) -> bool:
        return is_settled(workspace, "one")

    def check(self, workspace: Workspace) -> None:
        status = workspace.status("one", KIND)
        assert files_of(workspace) == [status["name"]]
        assert conditions_of(workspace.must_get("one", KIND))["Verified"] == "True/Verified"
        assert scratch_of(workspace) == []
        assert workspace.count_points() == POINTS


class Remove(Make):
    """Deletion of a snapshot with its bytes."""

    def prepare(self, workspace: Workspace) -> None:
        super().prepare(workspace)
        for name, policy in (("kept", "Retain"), ("one", "Delete")):
            workspace.create_snapshot(name, verify="None", deletionPolicy=policy)
            wait_until(lambda name=name: has_succeeded(workspace, name), seconds=20, what=f"the snapshot {name}")

    def trigger(self, workspace: Workspace) -> None:
        workspace.delete("one", KIND)

    def is_done(self, workspace: Workspace) -> bool:
        return workspace.get("one", KIND) is None

    def check(self, workspace: Workspace) -> None:
        assert files_of(workspace) == [workspace.status("kept", KIND)["name"]]
        assert workspace.count_points() == POINTS


class MakeLast(Make):
    """Deletion of an agent that leaves a final snapshot."""

    def prepare(self, workspace: Workspace) -> None:
        workspace.connect()
        workspace.create(deletionPolicy="Snapshot", snapshots={"verify": "Checksum"})
        workspace.wait_ready(seconds=20)
        workspace.store_points(POINTS)

    def trigger(self, workspace: Workspace) -> None:
        workspace.delete()

    def is_done(self, workspace: Workspace) -> bool:
        return workspace.get() is None and all(is_settled(workspace, name) for name in workspace.names(KIND))

    def check(self, workspace: Workspace) -> None:
        (name,) = workspace.names(KIND)
        status = workspace.status(name, KIND)
        assert status["points"]["after"] == POINTS
        assert files_of(workspace) == [status["name"]]
        assert (workspace.physicals(), workspace.aliases()) == ([workspace.physical], {})


# Writes of a scenario: finalizer, status, status, file, status, event, status, finalizer; or fewer.
SCENARIOS = [(Make(), 6), (Remove(), 2), (MakeLast(), 10)]


@pytest.mark.parametrize(("scenario", "min_kills"), SCENARIOS, ids=[type(case[0]).__name__ for case in SCENARIOS])
def test_next_operator_completes_killed_snapshot(
    control_plane: ControlPlane, qdrant_url: str, nursery: OperatorForks, scenario: Scenario, min_kills: int
) -> None:
    kills = kill_after_every_call(control_plane, qdrant_url, nursery, scenario)

    assert kills >= min_kills, f"only {kills} kills were tried"


@pytest.mark.parametrize("fault", ["disk-full", "kill"])
def test_failed_creation_is_retried_into_one_file(
    control_plane: ControlPlane, nursery: OperatorForks, tmp_path: pathlib.Path, namespace: str, fault: str
) -> None:
    port, data = free_port(), tmp_path / "data"
    program, url = start_qdrant(tmp_path, port=port)
    workspace, operator = Workspace(control_plane, namespace, url), nursery.start(periods=PERIODS)
    with running(program), ending(operator):
        Make().prepare(workspace)
        plant(data, create=fault)
        workspace.create_snapshot("one")
        workspace.wait_condition("Progressing", "True/QdrantUnavailable", name="one", of=KIND, seconds=20)
        remove_faults(data)
        with running(start_qdrant(tmp_path, port=port)[0]) if fault == "kill" else contextlib.nullcontext():
            wait_until(lambda: is_settled(workspace, "one"), seconds=90, what="the snapshot")
            Make().check(workspace)
            workspace.clean()


def test_deletion_with_full_disk_leaves_nothing(
    control_plane: ControlPlane, nursery: OperatorForks, tmp_path: pathlib.Path, namespace: str
) -> None:
    program, url = start_qdrant(tmp_path)
    workspace, operator = Workspace(control_plane, namespace, url), nursery.start(periods=PERIODS)
    with running(program), ending(operator):
        Make().prepare(workspace)
        plant(tmp_path / "data", create="disk-full")
        workspace.create_snapshot("one")
        workspace.wait_condition("Progressing", "True/QdrantUnavailable", name="one", of=KIND, seconds=20)

        workspace.delete("one", KIND)
        wait_until(lambda: workspace.get("one", KIND) is None, seconds=20, what="the end of the snapshot")
        remove_faults(tmp_path / "data")

        assert (files_of(workspace), workspace.count_points()) == ([], POINTS)
        workspace.clean()


@contextlib.contextmanager
def ending(operator: ForkedOperator) -> Iterator[None]:
    try:
        yield
    finally:
        operator.kill()
