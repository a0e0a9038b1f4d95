"""Server failures during a recovery: the live collection is unchanged, and the restore continues without help."""

import asyncio
import pathlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import TransientError
from qdrant_devserver.injected_faults import FAULT_MARKER
from tests.support.fault_injection import plant, remove_faults
from tests.support.job.restore_world import POINTS, RestoreWorld
from tests.support.programs import Program, running, start_qdrant

pytestmark = pytest.mark.faults


class FragileWorld(RestoreWorld):
    """Server with planted faults, and an operator with timeouts of seconds instead of an hour."""

    program: Program
    data: pathlib.Path

    def open_server(self, endpoint: Endpoint) -> Server:
        opened = replace(super().open_server(endpoint), snapshots=QdrantSnapshots(endpoint.url, deadline_s=5))
        self.opened.append(opened)
        return opened

    def meet(self, fault: str | None) -> None:
        """Plant a fault for recoveries, or remove it."""
        if fault:
            plant(self.data, recover=fault)
        else:
            remove_faults(self.data)


@pytest.fixture
async def world(tmp_path: pathlib.Path) -> AsyncIterator[FragileWorld]:
    program, url = start_qdrant(tmp_path)
    with running(program):
        made = FragileWorld(url)
        made.program, made.data = program, tmp_path / "data"
        await made.create_agent(POINTS)
        await made.snapshot()
        made.store(5, first=100)
        yield made
        made.meet(None)
        await made.close()


@pytest.mark.parametrize("fault", ["disk-full", "never-ends"])
async def test_failed_recovery_is_reported_and_retried(world: FragileWorld, fault: str) -> None:
    world.meet(fault)
    key = world.restore()

    with pytest.raises(TransientError):
        await world.restores.run(key)

    assert world.condition(key, "Progressing") == "True/Retrying"
    assert (world.aliases(), world.count()) == ({world.alias: world.physical}, POINTS + 5)
    world.meet(None)
    await world.run(key)
    assert world.condition(key, "Succeeded") == "True/Restored"
    assert world.count() == POINTS
    # Whether the first recovery has ended is known only if the server has responded.
    assert world.collections() == [world.physical, f"{world.alias}__{2 if fault == 'disk-full' else 3}"]


@pytest.mark.parametrize("ends", ["no answer", "killed"])
async def test_late_recovery_changes_no_live_data(world: FragileWorld, ends: str) -> None:
    """The server continues a recovery without its caller, and replaces the collection that has the name by then."""
    world.meet("never-ends")
    key = world.restore()
    if ends == "killed":
        attempt = asyncio.create_task(world.restores.run(key))
        async with asyncio.timeout(60):
            while not (world.data / f"{FAULT_MARKER}.recover").exists():
                await asyncio.sleep(0.02)
        attempt.cancel()
        await asyncio.gather(attempt, return_exceptions=True)
        world.restores = world.passes()
    else:
        with pytest.raises(TransientError):
            await world.restores.run(key)
    late = world.status(key)["physical"]
    world.meet(None)
    await world.run(key)
    assert world.condition(key, "Succeeded") == "True/Restored"
    world.store(7, first=500)

    [file] = world.http.get(f"/collections/{world.physical}/snapshots").json()["result"]
    body = {"location": f"{world.url}/collections/{world.physical}/snapshots/{file['name']}", "priority": "snapshot"}
    world.http.put(f"/collections/{late}/snapshots/recover", json=body).raise_for_status()

    assert world.count() == POINTS + 7
    assert world.status(key)["abandoned"] == [late]
    await world.restores.run(key)
    assert world.collections() == [world.physical, world.status(key)["physical"]]
    assert world.aliases() == {world.alias: world.status(key)["physical"]}


@pytest.mark.parametrize("fault", ["disk-full", "never-ends"])
async def test_failing_recovery_leaves_nothing(world: FragileWorld, fault: str) -> None:
    world.meet(fault)
    key = world.restore()
    with pytest.raises(TransientError):
        await world.restores.run(key)

    world.clock.move(ms=1_801_000)
    await world.run(key)

    assert world.condition(key, "Succeeded") == "False/DeadlineExceeded"
    world.check_untouched(key)


async def test_killed_server_loses_nothing(world: FragileWorld) -> None:
    world.meet("kill")
    key = world.restore()

    with pytest.raises(TransientError):
        await world.restores.run(key)
    world.meet(None)
    world.program.restart("Qdrant http")
    assert world.count() == POINTS + 5
    await world.run(key)

    assert world.condition(key, "Succeeded") == "True/Restored"
    assert world.count() == POINTS
