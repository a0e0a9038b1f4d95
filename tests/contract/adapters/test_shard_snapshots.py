"""Snapshots of a cluster's shards, on the nodes of QDRANT_URLS or on a simulated cluster."""

import asyncio
import hashlib
import itertools
import pathlib
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from agentmemory_operator.adapters.qdrant.call_hooks import CallHooks
from agentmemory_operator.adapters.qdrant.nodes import QdrantNode, wait_for_metadata
from agentmemory_operator.adapters.qdrant.shard_snapshots import QdrantShardSnapshots
from agentmemory_operator.collections.rules.collection import placeholder_metadata
from agentmemory_operator.errors import AgentMemoryError, NotFound, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.snapshots import SnapshotFile
from agentmemory_operator.runtime.metrics import NO_TRACES
from agentmemory_operator.spec.naming import SHARD_SETS_COLLECTION
from tests.support.engine.interleaved_store import ProcessKilled
from tests.support.programs import free_port
from tests.support.web.qdrant_nodes import CLUSTERS, STEADY, DevServer, Peers, open_nodes, wait_for_active_replicas

NAME, COPY = "agent_memory_shards__1", "agent_memory_shards__2"
COUNT = 200
BODY = {
    "vectors": {"size": 2, "distance": "Dot"},
    "sparse_vectors": {"words": {"modifier": "idf"}},
    "shard_number": 3,
    "replication_factor": 2,
    "hnsw_config": {"m": 24},
    "metadata": {"owner": "a"},
}


@pytest.fixture(scope="module", params=CLUSTERS)
def urls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """URLs of the nodes of a cluster."""
    with open_nodes(tmp_path_factory.mktemp("cluster"), request.param, 0.4) as nodes:
        yield nodes


@pytest.fixture
def http(urls: tuple[str, ...]) -> Iterator[httpx.Client]:
    """A client of the first node, with a collection of three shards that is deleted afterwards."""
    with httpx.Client(base_url=urls[0], timeout=30) as client:
        # A lagging node may still have the metadata of the previous test.
        ask(client, "PUT", f"/collections/{NAME}", BODY | {"metadata": {"owner": uuid.uuid4().hex}})
        points = [{"id": n, "vector": {"": [n, 1.0]}, "payload": {"n": n}} for n in range(COUNT)]
        ask(client, "PUT", f"/collections/{NAME}/points?wait=true", {"points": points})
        index = {"field_name": "n", "field_schema": {"type": "integer", "is_principal": True}}
        ask(client, "PUT", f"/collections/{NAME}/index?wait=true", index)
        wait_for_active_replicas(urls, NAME)
        yield client
        for name in (NAME, COPY, SHARD_SETS_COLLECTION):
            client.delete(f"/collections/{name}")


@pytest.fixture
async def store(urls: tuple[str, ...], http: httpx.Client) -> AsyncIterator[QdrantShardSnapshots]:
    opened = QdrantShardSnapshots(urls[1], urls, deadline_s=20)
    yield opened
    for file in await opened.files(NAME):
        await opened.delete_file(NAME, file.name)
    await opened.close()


def ask(client: httpx.Client, method: str, path: str, body: Any = None) -> Any:
    answer = client.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


def points_of(client: httpx.Client, name: str) -> Any:
    body = {"limit": 10_000, "with_vector": True, "with_payload": True}
    return ask(client, "POST", f"/collections/{name}/points/scroll", body)["points"]


def shard_files(urls: tuple[str, ...], name: str = NAME) -> list[str]:
    """List the shard snapshots of all nodes."""
    found = []
    for url in urls:
        cluster = httpx.get(f"{url}/collections/{name}/cluster").json()["result"]
        for shard in cluster["local_shards"]:
            listed = httpx.get(f"{url}/collections/{name}/shards/{shard['shard_id']}/snapshots").json()["result"]
            found += [each["name"] for each in listed]
    return sorted(found)


async def read(store: QdrantShardSnapshots, file: SnapshotFile) -> bytes:
    async with store.download(NAME, file.name) as content:
        return b"".join([chunk async for chunk in content])


async def pieces(content: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


def check_copy(http: httpx.Client, urls: tuple[str, ...]) -> None:
    """Check that every node has all points of the copy, and that all replicas are active."""
    for url in urls:
        with httpx.Client(base_url=url) as client:
            assert ask(client, "POST", f"/collections/{COPY}/points/count", {"exact": True})["count"] == COUNT
    cluster = ask(http, "GET", f"/collections/{COPY}/cluster")
    states = [shard["state"] for shard in [*cluster["local_shards"], *cluster["remote_shards"]]]
    assert states == ["Active"] * 6
    assert points_of(http, COPY) == points_of(http, NAME)
    original, copy = (ask(http, "GET", f"/collections/{name}") for name in (NAME, COPY))
    assert copy["config"] == original["config"]
    assert copy["payload_schema"] == original["payload_schema"]


async def test_create_makes_one_file_per_shard(store: QdrantShardSnapshots, urls: tuple[str, ...]) -> None:
    snapshot = await store.create(NAME)

    assert [file.shard for file in snapshot.shards] == [0, 1, 2]
    assert sorted(file.name for file in snapshot.shards) == shard_files(urls)
    assert all(file.sha256 for file in snapshot.shards)
    assert await store.files(NAME) == [snapshot]


async def test_download_matches_size_and_checksum(store: QdrantShardSnapshots) -> None:
    snapshot = await store.create(NAME)

    content = await read(store, snapshot)

    assert len(content) == snapshot.size
    assert hashlib.sha256(content).hexdigest() == snapshot.sha256
    assert await read(store, snapshot) == content


async def test_recovery_waits_for_active_replicas(
    store: QdrantShardSnapshots, http: httpx.Client, urls: tuple[str, ...]
) -> None:
    snapshot = await store.create(NAME)
    recovery = asyncio.create_task(
        store.recover(COPY, await store.own_location(NAME, snapshot.name), sha256=snapshot.sha256)
    )
    early = set()
    async with httpx.AsyncClient(base_url=urls[2]) as client:
        while not recovery.done():
            cluster = (await client.get(f"/collections/{COPY}/cluster")).json().get("result")
            replicas = [*cluster["local_shards"], *cluster["remote_shards"]] if cluster else []
            early |= {shard["state"] for shard in replicas}
            await asyncio.sleep(0.02)
    await recovery

    assert early - {"Active"}
    check_copy(http, urls)


async def test_upload_recreates_a_collection_without_files(
    store: QdrantShardSnapshots, http: httpx.Client, urls: tuple[str, ...]
) -> None:
    snapshot = await store.create(NAME)
    content = await read(store, snapshot)
    await store.delete_file(NAME, snapshot.name)

    await store.upload(COPY, pieces(content), sha256=snapshot.sha256)

    assert shard_files(urls) == []
    check_copy(http, urls)


async def test_recovery_in_place_restores_points(store: QdrantShardSnapshots, http: httpx.Client) -> None:
    snapshot, before = await store.create(NAME), points_of(http, NAME)
    ask(http, "POST", f"/collections/{NAME}/points/delete?wait=true", {"points": list(range(150))})

    await store.recover(NAME, await store.own_location(NAME, snapshot.name), sha256=snapshot.sha256)

    assert points_of(http, NAME) == before


FAULTS = pytest.mark.faults


@pytest.mark.parametrize("cut", [100, -1500, *(pytest.param(cut, marks=FAULTS) for cut in (5_000, -700))])
async def test_truncated_archive_leaves_no_collection(store: QdrantShardSnapshots, cut: int) -> None:
    content = await read(store, await store.create(NAME))

    with pytest.raises(AgentMemoryError):
        await store.upload(COPY, pieces(content[:cut]), sha256=hashlib.sha256(content).hexdigest())

    assert COPY not in await store.collections()


async def test_checksum_mismatch_leaves_no_collection(store: QdrantShardSnapshots) -> None:
    snapshot = await store.create(NAME)
    content = bytearray(await read(store, snapshot))
    content[len(content) // 2] ^= 1

    with pytest.raises(StoreRejected):
        await store.upload(COPY, pieces(bytes(content)), sha256=snapshot.sha256)
    with pytest.raises(StoreRejected):
        await store.recover(COPY, await store.own_location(NAME, snapshot.name), sha256="0" * 64)
    with pytest.raises(StoreRejected, match="not a snapshot of a cluster"):
        await store.upload(COPY, pieces(b"x" * 9000), sha256=None)
    with pytest.raises(StoreRejected, match="a snapshot of a single server"):
        await store.recover(COPY, "https://elsewhere/file.snapshot", sha256=None)

    assert COPY not in await store.collections()


async def test_recovery_rejects_other_shard_number(store: QdrantShardSnapshots, http: httpx.Client) -> None:
    snapshot = await store.create(NAME)
    ask(http, "PUT", f"/collections/{COPY}", BODY | {"shard_number": 2})

    with pytest.raises(StoreRejected, match="shard_number 2, the snapshot 3"):
        await store.recover(COPY, await store.own_location(NAME, snapshot.name), sha256=None)

    assert COPY in await store.collections()


async def test_failed_shard_leaves_no_file(store: QdrantShardSnapshots, urls: tuple[str, ...]) -> None:
    fail_write(store, StoreUnavailable("the node is away"), at=6)

    with pytest.raises(StoreUnavailable):
        await store.create(NAME)

    assert shard_files(urls) == []
    assert await store.files(NAME) == []


@pytest.mark.parametrize("at", [6, *(pytest.param(at, marks=FAULTS) for at in (3, 10))])
async def test_next_create_removes_files_of_a_killed_one(
    store: QdrantShardSnapshots, urls: tuple[str, ...], at: int
) -> None:
    killed = QdrantShardSnapshots(urls[0], urls)
    fail_write(killed, ProcessKilled(), at=at)
    with pytest.raises(ProcessKilled):
        await killed.create(NAME)
    await killed.close()

    assert await store.files(NAME) == []
    snapshot = await store.create(NAME)

    assert shard_files(urls) == sorted(file.name for file in snapshot.shards)
    await store.delete_file(NAME, snapshot.name)
    assert shard_files(urls) == []


@pytest.mark.parametrize("at", [4, *(pytest.param(at, marks=FAULTS) for at in (2, 6))])
async def test_killed_recovery_can_be_repeated(
    store: QdrantShardSnapshots, http: httpx.Client, urls: tuple[str, ...], at: int
) -> None:
    """A recovery makes six writes: the collection, its index, three shards, and the completion record."""
    snapshot = await store.create(NAME)
    location = await store.own_location(NAME, snapshot.name)
    killed = QdrantShardSnapshots(urls[0], urls)
    fail_write(killed, ProcessKilled(), at=at)
    with pytest.raises(ProcessKilled):
        await killed.recover(COPY, location, sha256=snapshot.sha256)
    await killed.close()

    await store.recover(COPY, location, sha256=snapshot.sha256)

    check_copy(http, urls)


@pytest.mark.parametrize("call", ["recover", "upload"])
async def test_deletion_during_recovery_is_retryable(
    store: QdrantShardSnapshots, http: httpx.Client, urls: tuple[str, ...], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = await store.create(NAME)
    location, content = await store.own_location(NAME, snapshot.name), await read(store, snapshot)

    async def recover() -> None:
        if call == "recover":
            await store.recover(COPY, location, sha256=snapshot.sha256)
        else:
            await store.upload(COPY, pieces(content), sha256=snapshot.sha256)

    async def deleted(node: QdrantNode, *arguments: Any, **options: Any) -> None:
        ask(http, "DELETE", f"/collections/{COPY}")
        await original(node, *arguments, **options)

    original = getattr(QdrantNode, call)
    with monkeypatch.context() as patched:
        patched.setattr(QdrantNode, call, deleted)
        with pytest.raises(StoreUnavailable, match="deleted during its recovery"):
            await recover()

    await recover()
    check_copy(http, urls)


async def test_recovery_after_killed_nodes_succeeds(tmp_path: pathlib.Path) -> None:
    options = ("--peers", "3", "--activation-seconds", "1", "--port", str(free_port()))
    nodes = DevServer(tmp_path, *options)
    store = QdrantShardSnapshots(nodes.url, tuple(nodes.urls), deadline_s=20)
    nodes.call("PUT", f"/collections/{NAME}", BODY)
    points = [{"id": n, "vector": {"": [n, 1.0]}} for n in range(COUNT)]
    nodes.call("PUT", f"/collections/{NAME}/points?wait=true", {"points": points})
    snapshot = await store.create(NAME)
    location = await store.own_location(NAME, snapshot.name)
    recovery = asyncio.create_task(store.recover(COPY, location, sha256=snapshot.sha256))
    async with httpx.AsyncClient(base_url=nodes.url) as client:
        while "Dead" not in (await client.get(f"/collections/{COPY}/cluster")).text:
            await asyncio.sleep(0.02)
    nodes.kill()
    with pytest.raises(StoreUnavailable):
        await recovery

    again = DevServer(tmp_path, *options)
    try:
        await store.recover(COPY, location, sha256=snapshot.sha256)

        assert again.call("POST", f"/collections/{COPY}/points/count", {"exact": True})["count"] == COUNT
    finally:
        await store.close()
        again.stop()


async def test_files_survive_replacement_by_placeholder(
    store: QdrantShardSnapshots, http: httpx.Client, urls: tuple[str, ...]
) -> None:
    snapshot = await store.create(NAME)
    before = points_of(http, NAME)

    ask(http, "DELETE", f"/collections/{NAME}")
    await store.create_placeholder(NAME)

    assert [file.name for file in await store.files(NAME)] == [snapshot.name]
    await store.recover(COPY, await store.own_location(NAME, snapshot.name), sha256=snapshot.sha256)
    assert points_of(http, COPY) == before


async def test_files_of_moved_shards_are_listed_once_back(
    store: QdrantShardSnapshots, http: httpx.Client, urls: tuple[str, ...]
) -> None:
    snapshot = await store.create(NAME)
    ask(http, "DELETE", f"/collections/{NAME}")
    ask(http, "PUT", f"/collections/{NAME}", BODY | {"replication_factor": 1})
    wait_for_active_replicas(urls, NAME)

    # A real cluster may assign the same shards again.
    assert await store.files(NAME) in ([], [snapshot])

    ask(http, "DELETE", f"/collections/{NAME}")
    await store.create_placeholder(NAME)
    assert await store.files(NAME) == [snapshot]


async def test_missing_names_raise_or_do_nothing(store: QdrantShardSnapshots) -> None:
    with pytest.raises(NotFound):
        await store.create(COPY)
    with pytest.raises(NotFound):
        async with store.download(NAME, "none.snapshot"):
            pass
    with pytest.raises(StoreRejected):
        await store.recover(COPY, await store.own_location(NAME, "none.snapshot"), sha256=None)
    await store.delete_file(NAME, "none.snapshot")
    assert await store.files(COPY) == []


async def test_shard_on_unlisted_node_raises(store: QdrantShardSnapshots, urls: tuple[str, ...]) -> None:
    one_node = QdrantShardSnapshots(urls[0], urls[:1])

    with pytest.raises(StoreUnavailable, match=r"spec\.nodes of the connection must list every node"):
        await one_node.create(NAME)

    await one_node.close()
    assert shard_files(urls) == []


@pytest.fixture
async def peers(tmp_path: pathlib.Path) -> AsyncIterator[tuple[Peers, QdrantShardSnapshots, SnapshotFile]]:
    """A simulated cluster with settable faults, and a snapshot of its collection."""
    running = Peers(tmp_path, STEADY, 0)
    opened = QdrantShardSnapshots(running.urls[0], tuple(running.urls), deadline_s=20)
    running.call("PUT", f"/collections/{NAME}", BODY)
    yield running, opened, await opened.create(NAME)
    await opened.close()
    running.stop()


async def test_set_with_lagging_nodes_is_kept(
    peers: tuple[Peers, QdrantShardSnapshots, SnapshotFile],
) -> None:
    """Two nodes have the record of the set without its last file."""
    running, store, snapshot = peers
    path = f"/collections/{SHARD_SETS_COLLECTION}"
    ((key, whole),) = [
        each for each in running.call("GET", path)["config"]["metadata"].items() if each[0].startswith(NAME)
    ]
    running.call("PATCH", path, {"metadata": {key: whole | {"sha256": None, "files": whole["files"][:2]}}})
    running.set_faults(lag="1.5")
    httpx.patch(running.urls[2] + path, json={"metadata": {key: whole}}).raise_for_status()

    assert await store.files(NAME) == [snapshot]
    # Files created in the same second have the same name.
    await asyncio.sleep(1.05 - time.time() % 1)
    second = await store.create(NAME)

    assert await store.files(NAME) == [snapshot, second]
    assert len(shard_files(tuple(running.urls))) == 6


async def test_minority_of_nodes_lists_nothing(
    peers: tuple[Peers, QdrantShardSnapshots, SnapshotFile],
) -> None:
    """With 1 of 3 nodes reachable, listing and deletion fail."""
    running, store, snapshot = peers
    running.set_faults(away="2,3")

    with pytest.raises(StoreUnavailable, match="1 of 3 nodes"):
        await store.files(NAME)
    with pytest.raises(StoreUnavailable, match="1 of 3 nodes"):
        await store.delete_file(NAME, snapshot.name)
    running.set_faults()

    assert await store.files(NAME) == [snapshot]


async def test_write_waits_for_a_majority(
    peers: tuple[Peers, QdrantShardSnapshots, SnapshotFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    running, store, _ = peers
    running.set_faults(lag="60")
    monkeypatch.setattr(wait_for_metadata, "__kwdefaults__", {"timeout_s": 0.3})

    with pytest.raises(StoreUnavailable, match="1 of 3 nodes of the cluster have"):
        await store.write_metadata(NAME, {"a": 1})
    running.set_faults()

    await store.write_metadata(NAME, {"a": 1})


async def test_initializing_replica_hides_no_file(
    peers: tuple[Peers, QdrantShardSnapshots, SnapshotFile],
) -> None:
    running, store, snapshot = peers
    running.set_faults(**{"lag": "0.4", "slow-replicas": "1"})
    running.call("DELETE", f"/collections/{NAME}")
    body = BODY | {"replication_factor": 3, "metadata": placeholder_metadata(None)}
    running.call("PUT", f"/collections/{NAME}", body)

    with pytest.raises(StoreUnavailable, match="its replica there is Initializing"):
        await store.files(NAME)
    await store.create_placeholder(NAME)

    assert await store.files(NAME) == [snapshot]


def fail_write(store: QdrantShardSnapshots, fault: BaseException, *, at: int) -> None:
    """Let write number `at` fail before it is sent.

    Writes of the first snapshot: the record (rejected, created, written), then a file and its record three times, then
    the record.
    """
    count = itertools.count(1)

    def before_write() -> None:
        if next(count) == at:
            raise fault

    store.watch_calls(CallHooks(before_write=before_write, count_call=lambda *_: None, tracer=NO_TRACES))
