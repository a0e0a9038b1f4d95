"""Scratch collections on a server: none stays, and none of another installation is touched."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from agentmemory_operator.collections.scratch import ScratchCollections, ScratchSweeper
from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.main.stores import Stores
from agentmemory_operator.runtime.object_table import ObjectTable
from agentmemory_operator.spec.naming import scratch_name
from tests.support.engine.fakes import FakeSecrets
from tests.support.job.job_world import open_server
from tests.support.spec.documents import connection_document

OURS, THEIRS = uuid.uuid4().hex, uuid.uuid4().hex


async def our_cluster() -> str:
    return OURS


@pytest.fixture
async def server(qdrant_url: str) -> AsyncIterator[Server]:
    async with open_server(qdrant_url) as opened:
        yield opened
        for name in (scratch_name(cluster, uid) for cluster in (OURS, THEIRS) for uid in ("a", "b")):
            await opened.collections.delete(name)


async def test_what_a_killed_run_left_is_dropped_and_another_cluster_s_is_not_touched(server: Server) -> None:
    for name in (scratch_name(OURS, "a"), scratch_name(OURS, "b"), scratch_name(THEIRS, "a")):
        await server.snapshots.create_placeholder(name)

    dropped = await ScratchCollections(our_cluster).sweep(server)

    assert sorted(dropped) == sorted([scratch_name(OURS, "a"), scratch_name(OURS, "b")])
    assert scratch_name(THEIRS, "a") in await server.snapshots.collections()


async def test_what_is_being_looked_at_is_not_swept_away(server: Server) -> None:
    scratch = ScratchCollections(our_cluster)
    async with scratch.reserve(server, "a") as name:
        await server.snapshots.create_placeholder(name)

        assert await scratch.sweep(server) == []
        assert name in await server.snapshots.collections()
    assert name not in await server.snapshots.collections()


async def test_it_begins_empty_and_ends_gone_whatever_happens_between(server: Server) -> None:
    scratch = ScratchCollections(our_cluster)
    await server.snapshots.create_placeholder(scratch_name(OURS, "a"))

    async def work() -> None:
        async with scratch.reserve(server, "a") as name:
            assert name not in await server.snapshots.collections()
            await server.snapshots.create_placeholder(name)
            raise ValueError("amid the work")

    with pytest.raises(ValueError, match="amid"):
        await work()
    assert scratch_name(OURS, "a") not in await server.snapshots.collections()


async def test_the_sweeper_looks_at_every_server_at_the_start_and_goes_on_where_one_is_away(server: Server) -> None:
    name = scratch_name(OURS, "a")
    await server.snapshots.create_placeholder(name)
    table = ObjectTable()
    for connection, url in (("away", "http://127.0.0.1:1"), ("main", server.endpoint.url)):
        table.put(connection_document(connection, url=url))
    async with AsyncExitStack() as stack:
        servers = Servers(table, FakeSecrets(), Stores(stack).server, cluster_id=our_cluster)
        sweeping = asyncio.create_task(ScratchSweeper(table, servers, ScratchCollections(our_cluster)).run())
        async with asyncio.timeout(20):
            while name in await server.snapshots.collections():
                await asyncio.sleep(0.02)
        sweeping.cancel()

    assert name not in await server.snapshots.collections()
