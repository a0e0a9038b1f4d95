"""Snapshots of an agent on a cluster: taken, verified, copied, restored and removed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.collections.replaced_collection import delete_keeping_snapshots
from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.collections.takeover_requests import TakeoverRequests
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.connections.rules.object_keys import parse_location
from agentmemory_operator.runtime.object_table import Key
from agentmemory_operator.snapshots.controller import SnapshotPasses
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.verify import Verification
from tests.support.job.restore_world import RestoreWorld
from tests.support.web.qdrant_nodes import CLUSTERS, open_nodes
from tests.support.web.s3_server import BUCKET, KEY, S3Server

SEEN_WITHIN_S = 10.0
SHARDING = {"sharding": {"shardNumber": 3, "replicationFactor": 2}}


@pytest.fixture(scope="module", params=CLUSTERS)
def urls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """The nodes of QDRANT_URLS, or those of a simulated cluster."""
    with open_nodes(tmp_path_factory.mktemp("cluster"), request.param, 0.3) as nodes:
        yield nodes


@pytest.fixture
async def world(urls: tuple[str, ...]) -> AsyncIterator[RestoreWorld]:
    world = RestoreWorld(urls[0], nodes=urls)
    yield world
    await world.close()


def passes_of(world: RestoreWorld) -> SnapshotPasses:
    parts = (world.table, world.servers, world.cluster, world.clock, world.requested.append)
    scratch = ScratchCollections(world.cluster.cluster_id)
    takeover_requests, prover = TakeoverRequests(world.table), Verification(scratch)
    return SnapshotPasses(
        *parts, prover=prover, copies=copies_of(world), scratch=scratch, takeover_requests=takeover_requests
    )


def copies_of(world: RestoreWorld) -> Copies:
    return Copies(Storages(world.secrets, S3Objects))


async def take_snapshot(world: RestoreWorld, **spec: Any) -> Key:
    key = world.apply("MemorySnapshot", "one", agentMemoryRef={"name": world.agent}, **spec)
    passes = passes_of(world)
    await passes.run(key)
    await passes.run(key)
    return key


def shard_files(world: RestoreWorld, urls: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for url in urls:
        for shard in range(3):
            answer = httpx.get(f"{url}/collections/{world.physical}/shards/{shard}/snapshots")
            found += [each["name"] for each in answer.json()["result"]] if answer.status_code == 200 else []
    return sorted(found)


def points_of(world: RestoreWorld, name: str) -> Any:
    body = {"limit": 1000, "with_vector": True}
    return world.http.post(f"/collections/{name}/points/scroll", json=body).json()["result"]["points"]


async def test_all_shards_are_recorded_and_verified(world: RestoreWorld, urls: tuple[str, ...]) -> None:
    await world.create_agent(points=90, index=SHARDING)

    key = await take_snapshot(world)

    status = world.status(key)
    assert world.condition(key, "Succeeded") == "True/SnapshotTaken"
    assert world.condition(key, "Verified") == "True/Verified"
    assert [each["shard"] for each in status["shards"]] == [0, 1, 2]
    assert sorted(each["name"] for each in status["shards"]) == shard_files(world, urls)
    assert all(each["sizeBytes"] and each["sha256"] and each["peer"] for each in status["shards"])
    assert status["points"] == {"before": 90, "after": 90}
    assert world.collections() == [world.physical]


async def test_deleted_snapshot_leaves_no_file_on_any_node(world: RestoreWorld, urls: tuple[str, ...]) -> None:
    await world.create_agent(points=30, index=SHARDING)
    key = await take_snapshot(world, verify="None", deletionPolicy="Delete")
    passes = passes_of(world)
    await passes.run(key)

    world.delete(key)
    await passes.run(key)

    assert shard_files(world, urls) == []


async def test_storage_copy_restores_a_lost_agent(
    world: RestoreWorld, urls: tuple[str, ...], storage: S3Server
) -> None:
    world.secrets.values |= {
        ("agents", "s3", "access-key-id"): KEY.id,
        ("agents", "s3", "secret-access-key"): KEY.secret,
    }
    bucket = {"endpoint": storage.url, "bucket": BUCKET, "prefix": world.agent, "secretRef": {"name": "s3"}}
    await world.create_agent(points=90, index=SHARDING, snapshots={"storage": {"s3": bucket}})
    before = points_of(world, world.physical)
    key = await take_snapshot(world)
    status = world.status(key)
    on_server, in_storage = status["locations"]

    async def recover_copy(server: Server) -> None:
        await server.snapshots.delete_file(world.physical, on_server["name"])
        await server.collections.delete(world.physical)
        location = parse_location(in_storage, sha256=status["sha256"])
        await copies_of(world).recover(location, server.snapshots, f"{world.alias}__2", namespace="agents")

    await world.with_server(recover_copy)

    assert world.condition(key, "Verified") == "True/Verified"
    assert points_of(world, f"{world.alias}__2") == before


async def test_retired_collection_keeps_its_shard_files(world: RestoreWorld, urls: tuple[str, ...]) -> None:
    await world.create_agent(points=60, index=SHARDING)
    before, key = points_of(world, world.physical), await take_snapshot(world, verify="None")
    name = world.status(key)["name"]

    async def retire_and_restore(server: Server) -> int:
        kept = await delete_keeping_snapshots(server.collections, server.snapshots, world.physical)
        location = await server.snapshots.own_location(world.physical, name)
        await server.snapshots.recover(f"{world.alias}__2", location, sha256=world.status(key)["sha256"])
        return kept

    assert await world.with_server(retire_and_restore) == 1
    assert points_of(world, f"{world.alias}__2") == before
    assert points_of(world, world.physical) == []


async def test_alias_moves_once_all_replicas_are_active(world: RestoreWorld, urls: tuple[str, ...]) -> None:
    """A reader of the alias sees all old or all restored points."""
    await world.create_agent(points=90, index=SHARDING)
    await take_snapshot(world)
    world.store(30, first=90)
    restore = world.restore(source={"snapshotRef": {"name": "one"}})
    observed: set[tuple[str, int]] = set()
    states: set[str] = set()
    watcher = asyncio.create_task(watch(world, urls[1], observed, states))
    try:
        await world.run(restore)
        # The alias move may be the last step of the restore, so the watcher may see it only afterwards.
        async with asyncio.timeout(SEEN_WITHIN_S):
            while len(observed) < 2 and not watcher.done():
                await asyncio.sleep(0.02)
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)

    assert world.condition(restore, "Succeeded").startswith("True")
    assert observed == {(world.physical, 120), (f"{world.alias}__2", 90)}
    assert states - {"Active"}
    assert world.status(restore)["previousCollection"]["physical"] == world.physical


async def watch(world: RestoreWorld, url: str, observed: set[tuple[str, int]], states: set[str]) -> None:
    """Record the points behind the alias, and the replica states of the restored collection."""
    async with httpx.AsyncClient(base_url=url) as client:
        while True:
            aliases = (await client.get("/aliases")).json()["result"]["aliases"]
            physical = next(each["collection_name"] for each in aliases if each["alias_name"] == world.alias)
            answer = await client.post(f"/collections/{physical}/points/count", json={"exact": True})
            observed.add((physical, answer.json()["result"]["count"]))
            shards = (await client.get(f"/collections/{world.alias}__2/cluster")).json().get("result")
            states |= (
                {each["state"] for each in [*shards["local_shards"], *shards["remote_shards"]]} if shards else set()
            )
            await asyncio.sleep(0.02)


async def test_unlisted_nodes_fail_the_snapshot(urls: tuple[str, ...]) -> None:
    world = RestoreWorld(urls[0])
    try:
        await world.create_agent(points=5, index=SHARDING)
        key = await take_snapshot(world)

        assert world.condition(key, "Succeeded") == "False/NodesNotListed"
        assert "spec.nodes" in str(world.status(key)["conditions"])
    finally:
        await world.close()
