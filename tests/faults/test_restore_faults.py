"""The server fails in the middle of a recovery: the live collection is as it was, and the restore goes on by itself."""

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
    """A server of its own, which meets faults, and an operator that waits seconds where it would wait an hour."""

    program: Program
    data: pathlib.Path

    def open_server(self, endpoint: Endpoint) -> Server:
        opened = replace(super().open_server(endpoint), snapshots=QdrantSnapshots(endpoint.url, deadline_s=5))
        self.opened.append(opened)
        return opened

    def meet(self, fault: str | None) -> None:
        """Let recoveries meet a fault, or none any more."""
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
async def test_a_recovery_that_fails_is_told_and_tried_again_until_it_goes_well(
    world: FragileWorld, fault: str
) -> None:
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
    # Whether the first recovery has ended is known only where the server has said so.
    assert world.collections() == [world.physical, f"{world.alias}__{2 if fault == 'disk-full' else 3}"]


@pytest.mark.parametrize("ends", ["no answer", "killed"])
async def test_a_recovery_that_ends_hours_later_changes_nothing_that_is_live(world: FragileWorld, ends: str) -> None:
    """The server goes on with it whoever waits, and what it makes takes the place of what has the name by then."""
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
async def test_one_that_never_goes_well_leaves_nothing(world: FragileWorld, fault: str) -> None:
    world.meet(fault)
    key = world.restore()
    with pytest.raises(TransientError):
        await world.restores.run(key)

    world.clock.move(ms=1_801_000)
    await world.run(key)

    assert world.condition(key, "Succeeded") == "False/DeadlineExceeded"
    world.check_untouched(key)


async def test_a_server_killed_in_the_middle_of_a_recovery_has_lost_nothing(world: FragileWorld) -> None:
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
