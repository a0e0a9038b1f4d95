"""Replica placement and moves, on the nodes of QDRANT_URLS or on a simulated cluster."""

import os
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots
from agentmemory_operator.collections.announce import AliasLocks
from agentmemory_operator.collections.rules.announcement import phase_of
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord
from agentmemory_operator.collections.rules.replicas import CopyReplica, DropReplica, Placement
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.controllers.inspection import preview_passes
from agentmemory_operator.controllers.rules.plan_text import describe_change
from agentmemory_operator.errors import NotFound, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.collections import observe_physical
from agentmemory_operator.rebuilds.converge import await_replicas
from agentmemory_operator.rebuilds.move import MoveStep
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.fakes import FakeClock
from tests.support.job.rebuild_task import open_rebuild
from tests.support.patience import Patience
from tests.support.spec.documents import memory_document
from tests.support.web.http_server import serve
from tests.support.web.qdrant_nodes import SIMULATED, Peers, wait_for_active_replicas
from tests.support.web.qdrant_proxy import serve_proxy

NAME = "agent_memory_replicas__1"
EMBEDDING = {"provider": "none", "dimensions": 2}
BODY = {"vectors": {"size": 2, "distance": "Dot"}, "shard_number": 2, "replication_factor": 1}


@pytest.fixture(scope="module", params=SIMULATED)
def peers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    """A simulated cluster."""
    running = Peers(tmp_path_factory.mktemp("cluster"), request.param, 0.5)
    yield running
    running.stop()


if "QDRANT_URLS" in os.environ:

    @pytest.fixture(scope="module")
    def urls() -> tuple[str, ...]:
        """URLs of the nodes in QDRANT_URLS."""
        return tuple(os.environ["QDRANT_URLS"].split(","))

else:

    @pytest.fixture(scope="module")
    def urls(peers: Peers) -> tuple[str, ...]:
        """URLs of the nodes of a simulated cluster."""
        return tuple(peers.urls)


@pytest.fixture
def collection(urls: tuple[str, ...]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=urls[0], timeout=30) as client:
        assert client.put(f"/collections/{NAME}", json=BODY).status_code == 200
        wait_for_active_replicas(urls, NAME)
        yield client
        client.delete(f"/collections/{NAME}")


@pytest.fixture
async def store(urls: tuple[str, ...], collection: httpx.Client) -> AsyncIterator[QdrantCollections]:
    opened = QdrantCollections(urls[1])
    yield opened
    await opened.close()


async def wait_for_placement(store: QdrantCollections) -> Placement:
    patience = Patience(30)
    while (placement := await store.placement(NAME)) is None or placement.copying or placement.inactive:
        assert not patience.is_over, placement
    return placement


async def test_placement_is_observed(store: QdrantCollections) -> None:
    observed = await store.observe(NAME, NAME)

    assert observed is not None
    assert observed.placement is not None
    assert len(observed.placement.peers) == 3
    assert sorted(observed.placement.shards) == [0, 1]
    assert observed.placement.active == 2
    assert await store.peers() == 3


async def test_replica_is_copied_and_dropped(store: QdrantCollections) -> None:
    placement = await wait_for_placement(store)
    source = next(iter(placement.shards[0]))
    target = next(peer for peer in placement.peers if peer != source)
    copy = CopyReplica(0, source, target)

    assert await store.move_replica(NAME, copy)
    during, observed = await store.placement(NAME), await store.observe(NAME, NAME)
    after = await wait_for_placement(store)
    assert await store.move_replica(NAME, DropReplica(0, source))
    remaining = await wait_for_placement(store)

    assert during is not None
    assert during.copying == (copy,)
    assert observed is not None
    assert observed.is_busy
    assert target in during.shards[0]
    assert after.active == 3
    assert dict(remaining.shards[0]) == {target: "Active"}


async def test_rejected_move_quotes_the_cluster(store: QdrantCollections) -> None:
    placement = await wait_for_placement(store)

    with pytest.raises(StoreRejected, match="at least one active replica"):
        await store.move_replica(NAME, DropReplica(0, next(iter(placement.shards[0]))))
    with pytest.raises(NotFound):
        await store.move_replica("agent_memory_none__1", DropReplica(0, 1))
    assert (await wait_for_placement(store)).can_move


async def test_single_server_gets_no_extra_calls(qdrant_url: str) -> None:
    with serve_proxy(qdrant_url) as proxy:
        store = QdrantCollections(proxy.url)
        await store.server()
        httpx.put(f"{qdrant_url}/collections/{NAME}", json=BODY)
        proxy.calls.clear()

        observed = await observe_physical(store, NAME)
        await store.close()

        assert observed is not None
        assert observed.placement is None
        assert len(proxy.calls) == 1
        httpx.delete(f"{qdrant_url}/collections/{NAME}")


async def test_plan_lists_copies_and_rejects_excess_replicas(store: QdrantCollections) -> None:
    def with_replicas(factor: int, slug: str = "replicas") -> AgentMemory:
        sharding = {"shardNumber": 2, "replicationFactor": factor}
        return parse_agent_memory(memory_document(slug, embedding=EMBEDDING, index={"sharding": sharding}))

    memories = [with_replicas(2), with_replicas(5), with_replicas(5, "replicas-new")]
    more, excessive, new = [
        preview for each in memories for preview in [one async for one in preview_passes([each], store)]
    ]

    assert more.draft is not None
    descriptions = [describe_change(change) for change in more.draft.plan.changes]
    # Peer ids of a real cluster have sixteen digits.
    copies = r"set replication_factor 2; copy shard 0 from peer \d+ to \d+, shard 1 from peer \d+ to \d+"
    assert any(re.match(copies, change) for change in descriptions)
    assert excessive.refusal is not None
    assert new.refusal is not None
    assert "replicationFactor 5" in excessive.refusal[1]
    assert "in the cluster (3)" in new.refusal[1]


class RebuildIntoCollection:
    """Run of a rebuild whose target is the test's collection."""

    def __init__(self, url: str) -> None:
        self.server = Server(Endpoint(url, None, 10), QdrantCollections(url), QdrantSnapshots(url), QdrantPoints(url))
        self.messages: list[str] = []

    async def task(self) -> RebuildRun:
        observed = await self.server.collections.observe(NAME, NAME)
        assert observed is not None
        return RebuildRun(
            memory=parse_agent_memory(memory_document("replicas")),
            server=self.server,
            source=observed,
            desired=observed.collection,
            record=RebuildRecord(source="agent_memory_replicas__0", target=NAME, digest="d", started_ms=0, since_ms=0),
            clock=FakeClock(),
            embedder=None,
            check=self.check,
            report_progress=self.show,
        )

    async def check(self) -> None:
        """Never cancel the rebuild."""

    async def show(self, record: RebuildRecord, message: str) -> None:
        self.messages.append(message)


@pytest.mark.skipif("QDRANT_URLS" in os.environ, reason="sends peers away, which only simulated ones do")
async def test_rebuild_waits_for_all_replicas(urls: tuple[str, ...], collection: httpx.Client, peers: Peers) -> None:
    """The error names the replicas that are not active."""
    rebuilding = RebuildIntoCollection(urls[0])
    task = await rebuilding.task()
    await rebuilding.server.collections.move_replica(NAME, CopyReplica(0, 1, 2))
    await await_replicas(task, poll_s=0.05)
    copied = list(rebuilding.messages)
    peers.set_faults(away="2")

    with pytest.raises(StoreUnavailable, match="shard 0 on peer 2 is Dead"):
        await await_replicas(task, poll_s=0.05, patience_s=0.2)
    peers.set_faults()
    await await_replicas(task, poll_s=0.05)

    assert "shard 0 from peer 1 to 2 is being copied" in copied[0]
    await rebuilding.server.close()


@pytest.mark.skipif("QDRANT_URLS" in os.environ, reason="sends peers away, which only simulated ones do")
async def test_replica_lost_during_a_move_keeps_the_alias(urls: tuple[str, ...], peers: Peers) -> None:
    async with open_rebuild(urls[0]) as rebuild:
        task = await rebuild.begin()
        wait_for_active_replicas(urls, rebuild.target)
        await rebuild.server.collections.move_replica(rebuild.target, CopyReplica(0, 1, 2))
        await await_replicas(task, poll_s=0.05)

        now_s = 0.0

        async def advance(seconds: float) -> None:
            nonlocal now_s
            if now_s == 0:
                peers.set_faults(away="2")
            now_s += seconds

        with pytest.raises(StoreUnavailable, match="shard 0 on peer 2 is Dead"):
            await MoveStep(AliasLocks(), lambda _: False, monotonic=lambda: now_s, sleep=advance)(task)
        peers.set_faults()

        assert await rebuild.alias() == rebuild.source
        assert phase_of(await rebuild.metadata(rebuild.source)) is None


async def test_rebuild_on_a_single_server_does_not_wait(qdrant_url: str) -> None:
    httpx.put(f"{qdrant_url}/collections/{NAME}", json=BODY)
    with serve_proxy(qdrant_url) as proxy:
        rebuilding = RebuildIntoCollection(proxy.url)
        task = await rebuilding.task()
        proxy.calls.clear()

        await await_replicas(task)

        assert proxy.calls == []
        await rebuilding.server.close()
    httpx.delete(f"{qdrant_url}/collections/{NAME}")


class RestrictedCluster:
    """A cluster behind a proxy that blocks calls. `status` is the response to moves."""

    def __init__(self, status: int, *, shards: int = 200) -> None:
        self.status, self.shards = status, shards

    def app(self) -> Starlette:
        routes: list[tuple[str, Any]] = [("/cluster", self._cluster), ("/collections/{name}/cluster", self._shards)]
        return Starlette(routes=[Route(path, answer, methods=["GET", "POST"]) for path, answer in routes])

    async def _cluster(self, _: Request) -> Response:
        return JSONResponse({"result": {"status": "enabled", "peer_id": 1, "peers": {"1": {}, "2": {}}}})

    async def _shards(self, request: Request) -> Response:
        local = [{"shard_id": 0, "points_count": 0, "state": "Active"}]
        placement = {"peer_id": 1, "shard_count": 1, "local_shards": local, "remote_shards": [], "shard_transfers": []}
        return JSONResponse({"result": placement}, status_code=self.status if request.method == "POST" else self.shards)


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_unsupported_moves_are_remembered(status: int) -> None:
    with serve(RestrictedCluster(status).app()) as url:
        store = QdrantCollections(url)

        assert not await store.move_replica(NAME, CopyReplica(0, 1, 2))
        placement = await store.placement(NAME)

        assert placement is not None
        assert not placement.can_move
        await store.close()


async def test_hidden_placement_is_none() -> None:
    with serve(RestrictedCluster(200, shards=403).app()) as url:
        store = QdrantCollections(url)

        assert await store.placement(NAME) is None
        await store.close()
