"""Recoveries that make something new leave alone what an agent's alias leads to."""

from collections.abc import AsyncIterator

import pytest

from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import StoreRejected
from agentmemory_operator.restores.restore_targets import guard_live_collections
from tests.support.job.restore_world import POINTS, RestoreWorld, open_restore


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[RestoreWorld]:
    async with open_restore(qdrant_url) as made:
        yield made


async def nothing() -> AsyncIterator[bytes]:
    yield b""


async def test_what_is_live_is_neither_deleted_nor_recovered_into(world: RestoreWorld) -> None:
    async def work(server: Server) -> None:
        guarded, live = guard_live_collections(server), world.physical
        [file] = await server.snapshots.files(live)
        location = await server.snapshots.own_location(live, file.name)
        for call in (
            lambda: guarded.snapshots.recover(live, location, sha256=None),
            lambda: guarded.snapshots.upload(live, nothing(), sha256=None),
            lambda: guarded.collections.delete(live),
        ):
            with pytest.raises(StoreRejected, match=f"{world.alias} points to {live}"):
                await call()

    world.store(3, first=700)
    await world.with_server(work)

    assert world.count() == POINTS + 3


async def test_a_number_that_no_alias_leads_to_is_recovered_into(world: RestoreWorld) -> None:
    target = f"{world.alias}__7"

    async def work(server: Server) -> None:
        guarded = guard_live_collections(server)
        [file] = await guarded.snapshots.files(world.physical)
        location = await guarded.snapshots.own_location(world.physical, file.name)
        await guarded.snapshots.recover(target, location, sha256=file.sha256)

    await world.with_server(work)
    assert world.count(target) == POINTS

    await world.with_server(lambda server: guard_live_collections(server).collections.delete(target))
    assert world.collections() == [world.physical]
