"""What earlier versions marked becomes this data folder's; on the development Qdrant alone, and nothing else of it."""

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from agentmemory_operator.collections.former_markers import FORMER_ID, adopt_former, adopting
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.spec.naming import scratch_name
from tests.support.job.job_world import JobWorld

MINE = "mine"


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[JobWorld]:
    made = JobWorld(qdrant_url)
    made.cluster.identity = FORMER_ID
    await made.create_agent(3)
    yield made
    await made.close()


def marker_of(world: JobWorld, physical: str = "") -> dict[str, Any]:
    config = world.http.get(f"/collections/{physical or world.physical}").json()["result"]["config"]
    marker: dict[str, Any] = config["metadata"]["agentmemory"]
    return marker


async def adopt(world: JobWorld) -> None:
    async def work(server: Server) -> None:
        await adopt_former(server, MINE)

    await world.with_server(work)


async def test_only_the_cluster_changes_and_a_second_time_changes_nothing(world: JobWorld) -> None:
    before = marker_of(world)
    assert before["clusterId"] == FORMER_ID

    await adopt(world)
    await adopt(world)

    assert marker_of(world) == before | {"clusterId": MINE}


@pytest.mark.parametrize("owner", ["another", ""])
async def test_what_names_another_or_none_stays_what_it_is(
    world: JobWorld, owner: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = marker_of(world) | {"clusterId": owner}
    world.http.patch(f"/collections/{world.physical}", json={"metadata": {"agentmemory": theirs}}).raise_for_status()

    with caplog.at_level(logging.WARNING):
        await adopt(world)

    assert marker_of(world) == theirs
    assert ("write another into the file cluster-id" in caplog.text) == bool(owner)


async def test_scratch_collections_under_the_former_name_go_and_no_others(world: JobWorld) -> None:
    left, others = scratch_name(FORMER_ID, "u"), scratch_name("another", "u")
    body = {"vectors": {"size": 4, "distance": "Cosine"}}
    for name in (left, others):
        world.http.put(f"/collections/{name}", json=body).raise_for_status()

    await adopt(world)

    names = {item["name"] for item in world.http.get("/collections").json()["result"]["collections"]}
    world.http.delete(f"/collections/{others}")
    assert (left in names, others in names) == (False, True)


@pytest.mark.parametrize("by", ["address", "bytes"])
async def test_what_comes_of_a_former_snapshot_is_adopted_at_once(world: JobWorld, by: str) -> None:
    target = f"{world.alias}__2"

    async def restore(server: Server) -> None:
        file = await server.snapshots.create(world.physical)
        mine = adopting(replace(server), MINE).snapshots
        if by == "address":
            await mine.recover(target, await mine.own_location(world.physical, file.name), sha256=file.sha256)
            return
        async with mine.download(world.physical, file.name) as content:
            await mine.upload(target, content, sha256=file.sha256)

    await world.with_server(restore)

    assert marker_of(world, target)["clusterId"] == MINE
    assert marker_of(world)["clusterId"] == FORMER_ID
    httpx.delete(f"{world.url}/collections/{target}")
