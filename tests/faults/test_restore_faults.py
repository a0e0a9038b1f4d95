"""The server fails in the middle of a recovery: the live collection is as it was, and the restore goes on by itself."""

import json
import pathlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agentmemory_operator.adapters.qdrant_snapshots import QdrantSnapshots
from agentmemory_operator.errors import TransientError
from agentmemory_operator.services.links import Endpoint
from agentmemory_operator.services.servers import Server
from tests.support.operator import Program, running, start_qdrant
from tests.support.restore_world import POINTS, RestoreWorld

pytestmark = pytest.mark.faults


class FragileWorld(RestoreWorld):
    """A server of its own, which meets faults, and an operator that waits seconds where it would wait an hour."""

    program: Program
    faults: pathlib.Path

    def open_server(self, endpoint: Endpoint) -> Server:
        opened = replace(super().open_server(endpoint), snapshots=QdrantSnapshots(endpoint.url, deadline_s=1.5))
        self.opened.append(opened)
        return opened

    def meet(self, fault: str | None) -> None:
        """Let recoveries meet a fault, or none any more."""
        self.faults.write_text(json.dumps({"recover": fault} if fault else {}))


@pytest.fixture
async def world(tmp_path: pathlib.Path) -> AsyncIterator[FragileWorld]:
    program, url = start_qdrant(tmp_path)
    with running(program):
        made = FragileWorld(url)
        made.program, made.faults = program, tmp_path / "data" / "faults.json"
        await made.create_agent(POINTS)
        await made.snapshot()
        made.store(5, first=100)
        yield made
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
    assert world.collections() == [world.physical, f"{world.alias}__2"]


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
