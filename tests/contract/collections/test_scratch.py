"""Scratch collections on a server: always removed, never those of another installation."""

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

OWN_CLUSTER, OTHER_CLUSTER = uuid.uuid4().hex, uuid.uuid4().hex


async def own_cluster() -> str:
    return OWN_CLUSTER


@pytest.fixture
async def server(qdrant_url: str) -> AsyncIterator[Server]:
    async with open_server(qdrant_url) as opened:
        yield opened
        for name in (scratch_name(cluster, uid) for cluster in (OWN_CLUSTER, OTHER_CLUSTER) for uid in ("a", "b")):
            await opened.collections.delete(name)


async def test_sweep_drops_leftovers_of_this_cluster_only(server: Server) -> None:
    for name in (scratch_name(OWN_CLUSTER, "a"), scratch_name(OWN_CLUSTER, "b"), scratch_name(OTHER_CLUSTER, "a")):
        await server.snapshots.create_placeholder(name)

    dropped = await ScratchCollections(own_cluster).sweep(server)

    assert sorted(dropped) == sorted([scratch_name(OWN_CLUSTER, "a"), scratch_name(OWN_CLUSTER, "b")])
    assert scratch_name(OTHER_CLUSTER, "a") in await server.snapshots.collections()


async def test_sweep_keeps_reserved_collections(server: Server) -> None:
    scratch = ScratchCollections(own_cluster)
    async with scratch.reserve(server, "a") as name:
        await server.snapshots.create_placeholder(name)

        assert await scratch.sweep(server) == []
        assert name in await server.snapshots.collections()
    assert name not in await server.snapshots.collections()


async def test_reserve_starts_empty_and_drops_collection(server: Server) -> None:
    scratch = ScratchCollections(own_cluster)
    await server.snapshots.create_placeholder(scratch_name(OWN_CLUSTER, "a"))

    async def fail_inside() -> None:
        async with scratch.reserve(server, "a") as name:
            assert name not in await server.snapshots.collections()
            await server.snapshots.create_placeholder(name)
            raise ValueError("amid the work")

    with pytest.raises(ValueError, match="amid"):
        await fail_inside()
    assert scratch_name(OWN_CLUSTER, "a") not in await server.snapshots.collections()


async def test_sweeper_skips_unavailable_servers(server: Server) -> None:
    name = scratch_name(OWN_CLUSTER, "a")
    await server.snapshots.create_placeholder(name)
    table = ObjectTable()
    for connection, url in (("away", "http://127.0.0.1:1"), ("main", server.endpoint.url)):
        table.put(connection_document(connection, url=url))
    async with AsyncExitStack() as stack:
        servers = Servers(table, FakeSecrets(), Stores(stack).server, cluster_id=own_cluster)
        sweeper = asyncio.create_task(ScratchSweeper(table, servers, ScratchCollections(own_cluster)).run())
        async with asyncio.timeout(20):
            while name in await server.snapshots.collections():
                await asyncio.sleep(0.02)
        sweeper.cancel()

    assert name not in await server.snapshots.collections()
