"""The guard that keeps recoveries and deletions away from live collections."""

from collections.abc import AsyncIterator

import pytest

from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import StoreRejected
from agentmemory_operator.restores.restore_targets import guard_live_collections
from tests.support.job.restore_world import POINTS, RestoreWorld, open_restore


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[RestoreWorld]:
    async with open_restore(qdrant_url) as world:
        yield world


async def empty_upload() -> AsyncIterator[bytes]:
    yield b""


async def test_live_collection_cannot_be_changed(world: RestoreWorld) -> None:
    async def work(server: Server) -> None:
        guarded, live = guard_live_collections(server), world.physical
        [file] = await server.snapshots.files(live)
        location = await server.snapshots.own_location(live, file.name)
        for call in (
            lambda: guarded.snapshots.recover(live, location, sha256=None),
            lambda: guarded.snapshots.upload(live, empty_upload(), sha256=None),
            lambda: guarded.collections.delete(live),
        ):
            with pytest.raises(StoreRejected, match=f"{world.alias} points to {live}"):
                await call()

    world.store(3, first=700)
    await world.with_server(work)

    assert world.count() == POINTS + 3


async def test_collection_without_alias_can_be_recovered(world: RestoreWorld) -> None:
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
