"""Scheduled snapshots on a live cluster: each slot is claimed once, also by two operators and after a kill."""

import contextlib
import datetime
import pathlib
from collections.abc import Iterator

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import WATCHING, ForkedOperator, OperatorForks
from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until

NOW = datetime.datetime.now(datetime.UTC)
# Three times a day, hours from now, so that after a jump of a day no slot is still delayed by the agent's offset.
THRICE_DAILY = f"30 {','.join(str((NOW.hour + hours) % 24) for hours in (6, 9, 12))} * * *"
PERIODS = {"stalled_s": 1.0, "probe_s": 1.0}


@pytest.fixture(scope="module")
def nurseries(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[OperatorForks]]:
    with contextlib.ExitStack() as stack:
        folders: list[pathlib.Path] = [tmp_path_factory.mktemp(name) for name in ("one", "other")]
        found = [OperatorForks(control_plane, folder) for folder in folders]
        for nursery in found:
            stack.callback(nursery.close)
        yield found


@pytest.fixture
def pair(nurseries: list[OperatorForks]) -> Iterator[list[ForkedOperator]]:
    """Two operators that work at the same time, without a lease."""
    operators = [restart(nursery) for nursery in nurseries]
    yield operators
    for operator in operators:
        operator.kill()


def restart(nursery: OperatorForks) -> ForkedOperator:
    """Start an operator, and wait until it watches: before, it does not handle the signals of `jump`."""
    starts = nursery.log.count(WATCHING)
    operator = nursery.start(periods=PERIODS)
    wait_until(lambda: nursery.log.count(WATCHING) > starts, seconds=20, what="the start of an operator")
    return operator


def newest_slot() -> str:
    """Return the name of the snapshot of the newest slot before a jump of a day."""
    slot = (NOW + datetime.timedelta(hours=12)).replace(minute=30)
    return f"memory-{slot:%Y%m%dt%H%Mz}"


def snapshots(workspace: Workspace) -> list[str]:
    return workspace.names("MemorySnapshot")


def wait_claimed(workspace: Workspace, slot: str) -> None:
    """Wait until the status records that a slot was claimed."""
    stamp = datetime.datetime.strptime(slot.removeprefix("memory-"), "%Y%m%dt%H%Mz").strftime("%Y-%m-%dT%H:%M:%SZ")
    wait_until(lambda: workspace.status().get("lastSnapshotSlot") == stamp, seconds=15, what=f"the claim of {stamp}")


def claim_missed(workspace: Workspace, pair: list[ForkedOperator]) -> str:
    """Let a day pass; return the name of the newest slot's snapshot once it is claimed."""
    for operator in pair:
        operator.jump(1)
    workspace.request_pass()
    slot = newest_slot()
    wait_claimed(workspace, slot)
    return slot


def test_missed_slots_are_claimed_once(
    workspace: Workspace, pair: list[ForkedOperator], nurseries: list[OperatorForks]
) -> None:
    """Two concurrent operators claim each slot once, and not again after a restart."""
    workspace.create_ready(snapshots={"schedule": THRICE_DAILY})
    assert workspace.wait_condition("SnapshotFresh", "Unknown/NoSnapshotYet")
    assert snapshots(workspace) == []

    slot = claim_missed(workspace, pair)

    assert snapshots(workspace) == [slot]
    made = workspace.must_get(slot, "MemorySnapshot")
    assert "ownerReferences" not in made["metadata"]
    assert made["metadata"]["labels"]["agentmemory.dev/agent-memory"] == "memory"

    pair[0].kill()
    again = restart(nurseries[0])
    again.jump(1)
    workspace.request_pass()
    wait_until(lambda: workspace.status().get("nextSnapshotTime"), seconds=10, what="the next time")
    assert snapshots(workspace) == [slot]
    again.kill()


def test_snapshots_outlive_the_agent(workspace: Workspace, pair: list[ForkedOperator]) -> None:
    """Snapshots have no owner reference: deleting or pruning the agent deletes only the agent."""
    workspace.create_ready(snapshots={"schedule": THRICE_DAILY})
    slot = claim_missed(workspace, pair)

    workspace.delete()
    workspace.wait_deleted()

    assert snapshots(workspace) == [slot]
