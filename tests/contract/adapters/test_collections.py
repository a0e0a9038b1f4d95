"""The collection adapter against a server: changes, reads and errors."""

import asyncio
import contextlib
import json
import pathlib
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

import httpx
import pytest

from agentmemory_operator.adapters.qdrant import collections as qdrant_collections
from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.adapters.qdrant.configuration import observed_from
from agentmemory_operator.collections.reconcile import reconcile
from agentmemory_operator.collections.rules.changes import (
    Change,
    CreateCollection,
    CreateIndexes,
    Rebuild,
    SetAlias,
    UpdateHnsw,
    UpdateKeyword,
    UpdateOptimizers,
    UpdatePayload,
    UpdateQuantization,
    UpdateReplication,
    UpdateStrictMode,
    UpdateVectors,
    WakeOptimizers,
    WriteMarker,
)
from agentmemory_operator.collections.rules.collection import Collection, KeywordSource, Marker
from agentmemory_operator.collections.rules.outcome import PassOutcome
from agentmemory_operator.errors import AgentMemoryError, ResponseTimeout, StoreRejected, StoreUnavailable
from agentmemory_operator.spec.presets.table import (
    BinaryQuantization,
    ProductQuantization,
    Quantization,
    ScalarQuantization,
    TurboQuantization,
)
from qdrant_devserver.server import create_app
from tests.support.fault_injection import with_faults
from tests.support.patience import Patience
from tests.support.programs import free_port
from tests.support.spec.plans import (
    apply_change,
    desired_of,
    with_changes,
)
from tests.support.web.http_server import serve

EMBEDDING = {"embedding": {"provider": "none", "dimensions": 4}}


def as_reported(desired: Collection) -> Collection:
    """Fill in the values that the server chooses where the object sets none."""
    return replace(
        desired, shard_number=1, replication_factor=1, payload_on_disk=True, strict_mode=desired.strict_mode or ()
    )


DESIRED = as_reported(desired_of(EMBEDDING))


def marker_of(desired: Collection) -> Marker:
    assert desired.marker is not None
    return desired.marker


MARKER = marker_of(DESIRED)


class Place:
    """The adapter, and names of one test on the server."""

    def __init__(self, url: str, store: QdrantCollections) -> None:
        self.store = store
        self.http = httpx.Client(base_url=url, timeout=30)
        self.alias = f"agent_memory_c-{uuid.uuid4().hex[:12]}"
        self.physical = f"{self.alias}__1"

    async def create(self, collection: Collection = DESIRED) -> None:
        await self.store.apply(self.physical, CreateCollection(self.physical, replace(collection, indexes=())))

    async def read_collection(self) -> Collection:
        observed = await self.store.observe(self.alias, self.physical)
        assert observed is not None
        return observed.collection

    async def reconcile(self, desired: Collection = DESIRED, *, last: str | None = None) -> PassOutcome:
        return await reconcile(self.alias, desired, store=self.store, last_physical=last, last_points=0)

    def add_points(self, number: int, **payload: Any) -> None:
        points = [{"id": str(uuid.uuid4()), "vector": [1, 0, 0, n], "payload": payload} for n in range(number)]
        answer = self.http.put(f"/collections/{self.physical}/points?wait=true", json={"points": points})
        answer.raise_for_status()


@pytest.fixture
async def place(qdrant_url: str) -> AsyncIterator[Place]:
    place = Place(qdrant_url, QdrantCollections(qdrant_url))
    yield place
    for name in (place.physical, place.alias, f"{place.alias}__2"):
        place.http.delete(f"/collections/{name}")
    place.http.close()
    await place.store.close()


async def test_missing_collection_is_none(place: Place) -> None:
    assert await place.store.observe(place.alias, place.physical) is None


async def test_created_collection_matches_request(place: Place) -> None:
    await place.create()

    observed = await place.store.observe(place.alias, place.physical)

    assert observed is not None
    assert observed.collection == replace(DESIRED, indexes=())
    assert (observed.physical, observed.is_aliased, observed.points) == (place.physical, False, 0)
    assert (observed.state, observed.is_busy) == ("green", False)


async def test_keyword_vector_is_created_and_dropped(place: Place) -> None:
    await place.create(replace(DESIRED, has_keyword=True))
    created = await place.read_collection()

    await place.store.apply(place.physical, UpdateKeyword(has_keyword=False))

    assert (created.has_keyword, (await place.read_collection()).has_keyword) == (True, False)


async def test_repeated_creation_changes_nothing(place: Place) -> None:
    await place.create()

    await place.create(with_changes(DESIRED, m=32))

    assert (await place.read_collection()).hnsw.m == 16


@pytest.mark.parametrize(
    "change",
    [
        UpdateHnsw(full_scan_threshold_kb=500),
        UpdateHnsw(m=8, ef_construct=64, full_scan_threshold_kb=10),
        UpdateQuantization(None),
        UpdateQuantization(ScalarQuantization(0.5, always_ram=True)),
        UpdateOptimizers(default_segment_number=5),
        UpdateOptimizers(default_segment_number=0, indexing_threshold_kb=0),
        UpdateQuantization(ProductQuantization("X64", always_ram=False)),
        UpdateQuantization(BinaryQuantization("TwoBits", "Scalar4Bits", always_ram=True)),
        UpdateQuantization(TurboQuantization("Bits1_5", always_ram=False)),
        UpdateReplication(2),
        UpdateStrictMode((("enabled", True), ("max_query_limit", 7))),
        UpdateVectors("Cold"),
        UpdateVectors("Cached"),
        UpdatePayload(payload_on_disk=False),
        UpdatePayload(payload_on_disk=True),
        UpdateKeyword(has_keyword=True),
        UpdateKeyword(has_keyword=False),
        WakeOptimizers(),
        CreateIndexes((("userId", "keyword"),)),
        CreateIndexes((("createdAt", "integer"), ("importance", "float"), ("pending", "bool"))),
        WriteMarker(replace(MARKER, uid="another", generation=9)),
        WriteMarker(replace(MARKER, keyword=KeywordSource(language="german", window=2))),
        WriteMarker(replace(MARKER, embedding=replace(MARKER.embedding, base_url="http://e/v1", model="m"))),
    ],
    ids=repr,
)
async def test_change_is_observed_and_repeatable(place: Place, change: Change) -> None:
    await place.create()
    before = await place.read_collection()

    await place.store.apply(place.physical, change)
    await place.store.apply(place.physical, change)

    assert await place.read_collection() == apply_change(before, change)


async def test_quantization_can_be_enabled_later(place: Place) -> None:
    await place.create(replace(DESIRED, quantization=None))
    scalar = ScalarQuantization(0.623457, always_ram=True)

    await place.store.apply(place.physical, UpdateQuantization(scalar))

    assert (await place.read_collection()).quantization == scalar


async def test_index_type_can_change(place: Place) -> None:
    await place.create()
    await place.store.apply(place.physical, CreateIndexes((("createdAt", "keyword"),)))

    await place.store.apply(place.physical, CreateIndexes((("createdAt", "integer"),)))

    assert (await place.read_collection()).indexes == (("createdAt", "integer"),)


async def test_smaller_marker_clears_old_fields(place: Place) -> None:
    await place.create()
    large = replace(
        MARKER, embedding=replace(MARKER.embedding, base_url="http://e/v1", secret_name="s", secret_key="k")
    )
    await place.store.apply(place.physical, WriteMarker(large))

    await place.store.apply(place.physical, WriteMarker(MARKER))

    assert (await place.read_collection()).marker == MARKER


async def test_marker_write_keeps_other_metadata(place: Place) -> None:
    await place.create()
    path = f"/collections/{place.physical}"
    place.http.patch(path, json={"metadata": {"team": "search"}}).raise_for_status()

    await place.store.apply(place.physical, WriteMarker(replace(MARKER, uid="another")))

    assert place.http.get(path).json()["result"]["config"]["metadata"]["team"] == "search"


async def test_alias_is_set_and_moved(place: Place) -> None:
    await place.create()
    await place.store.apply(place.physical, SetAlias(place.alias, place.physical))
    first = await place.store.observe(place.alias, place.physical)
    second = f"{place.alias}__2"
    await place.store.apply(second, CreateCollection(second, replace(DESIRED, indexes=())))

    await place.store.apply(second, SetAlias(place.alias, second))
    moved = [await place.store.observe(place.alias, likely) for likely in (place.physical, second, "not-there")]

    assert first is not None
    assert (first.physical, first.is_aliased) == (place.physical, True)
    assert [(seen.physical, seen.is_aliased) for seen in moved if seen] == [(second, True)] * 3


async def test_deletion_during_alias_lookup_gives_none(qdrant_url: str, place: Place) -> None:
    class Interrupted(QdrantCollections):
        async def _behind(self, alias: str, likely: str) -> str:
            place.http.delete(f"/collections/{place.physical}").raise_for_status()
            return await super()._behind(alias, likely)

    await place.reconcile()
    store = Interrupted(qdrant_url)

    # A plain collection of the alias's name would restart the numbering at 1.
    assert await store.observe(place.alias, place.physical) is None
    await store.close()


async def test_plain_collection_named_as_alias_is_observed(place: Place) -> None:
    body = {"vectors": {"size": 4, "distance": "Dot"}}
    place.http.put(f"/collections/{place.alias}", json=body).raise_for_status()

    observed = await place.store.observe(place.alias, place.physical)

    assert observed is not None
    assert (observed.physical, observed.is_aliased) == (place.alias, False)
    assert (observed.collection.size, observed.collection.distance, observed.collection.marker) == (4, "Dot", None)


@pytest.mark.parametrize(
    ("config", "quantization"),
    [
        ({"binary": {"always_ram": True}}, BinaryQuantization("OneBit", "Default", True)),
        ({"turbo": {}}, TurboQuantization("Bits4", False)),
        ({"product": {"compression": "x32"}}, ProductQuantization("X32", False)),
    ],
)
async def test_foreign_quantization_is_read_and_replaced(
    place: Place, config: dict[str, Any], quantization: Quantization
) -> None:
    body = {"vectors": {"size": 4, "distance": "Cosine"}, "quantization_config": config}
    place.http.put(f"/collections/{place.physical}", json=body).raise_for_status()
    assert (await place.read_collection()).quantization == quantization

    await place.store.apply(place.physical, UpdateQuantization(DESIRED.quantization))

    assert (await place.read_collection()).quantization == DESIRED.quantization


@pytest.mark.parametrize(
    ("vector", "memory"),
    [
        ({}, "Cached"),
        ({"on_disk": False}, "Cached"),
        ({"on_disk": True}, "Cold"),
        ({"memory": "cached"}, "Cached"),
        ({"memory": "cold"}, "Cold"),
        ({"memory": "cold", "on_disk": False}, "Cold"),
    ],
    ids=repr,
)
async def test_vector_placement_keeps_its_field(tiered_url: str, vector: dict[str, Any], memory: str) -> None:
    """`memory` or `on_disk`: an update uses the field that the collection was created with."""
    async with open_store(tiered_url) as store:
        place = Place(tiered_url, store)
        body = {"vectors": {"size": 4, "distance": "Cosine", **vector}}
        place.http.put(f"/collections/{place.physical}", json=body).raise_for_status()
        assert (await place.read_collection()).memory == memory
        other = "Cold" if memory == "Cached" else "Cached"

        await store.apply(place.physical, UpdateVectors(other))

        assert (await place.read_collection()).memory == other
        config = place.http.get(f"/collections/{place.physical}").json()["result"]["config"]["params"]["vectors"]
        assert ("memory" in config) == ("memory" in vector)
        place.http.close()


@pytest.mark.parametrize(("memory", "always_ram"), [("pinned", True), ("cached", False), ("cold", False)])
async def test_placement_of_quantized_vectors_is_observed(tiered_url: str, memory: str, always_ram: bool) -> None:
    async with open_store(tiered_url) as store:
        place = Place(tiered_url, store)
        quantization = {"scalar": {"type": "int8", "memory": memory}}
        body = {"vectors": {"size": 4, "distance": "Cosine"}, "quantization_config": quantization}
        place.http.put(f"/collections/{place.physical}", json=body).raise_for_status()

        assert (await place.read_collection()).quantization == ScalarQuantization(None, always_ram)
        place.http.close()


async def test_named_vectors_have_size_0(place: Place) -> None:
    body = {"vectors": {"text": {"size": 4, "distance": "Cosine"}}}
    place.http.put(f"/collections/{place.physical}", json=body).raise_for_status()

    assert (await place.read_collection()).size == 0


async def test_unlisted_types_exclude_tombstones(place: Place) -> None:
    await place.reconcile()
    for name, number in (("fact", 4), ("task", 2), ("note", 1)):
        place.add_points(number, type=name)
    place.add_points(3, type="task", deletedAt=1)

    assert await place.store.count_unlisted(place.physical, ["fact", "person"]) == {"task": 2, "note": 1}
    assert await place.store.count_unlisted(place.physical, ["fact", "task", "note"]) == {}


async def test_count_sealed_before_skips_tombstones(place: Place) -> None:
    await place.reconcile()
    for number, payload in ((3, {"keyMadeAt": 1_000}), (2, {"keyMadeAt": 2_000}), (1, {}), (4, {"deletedAt": 1})):
        place.add_points(number, type="fact", **payload)
    place.add_points(5, type="fact", keyMadeAt=1_000, deletedAt=1)

    assert [await place.store.count_sealed_before(place.physical, ms) for ms in (1_000, 1_001, 2_001)] == [0, 3, 5]


async def test_count_memories_matches_the_api(place: Place) -> None:
    await place.reconcile()
    for number, payload in ((3, {}), (2, {"supersededById": "x"}), (4, {"deletedAt": 1}), (1, {"pending": True})):
        place.add_points(number, type="fact", **payload)

    assert await place.store.count_memories(place.physical) == 5
    assert await place.store.count(place.physical) == 6
    assert 0 < await place.store.count_memories(place.physical, exact=False) <= 10


async def test_count_is_exact_without_tombstones(place: Place) -> None:
    await place.create()
    place.add_points(3, userId="u")
    place.add_points(2, deletedAt=1_795_000_000_000)

    assert await place.store.count(place.physical) == 3
    observed = await place.store.observe(place.alias, place.physical)
    assert observed is not None
    assert observed.points == 5
    assert await place.store.count(f"{place.alias}__2") == 0


async def test_content_lengths_are_those_of_memories(place: Place) -> None:
    await place.create()
    place.add_points(1, content="x" * 40)
    place.add_points(2, content="y" * 9)
    place.add_points(1, userId="u")
    place.add_points(1, content="z", deletedAt=1_795_000_000_000)

    assert sorted(await place.store.content_lengths(place.physical, 256)) == [0, 9, 9, 40]
    assert len(await place.store.content_lengths(place.physical, 2)) == 2


async def test_deletion_removes_alias_and_is_repeatable(place: Place) -> None:
    await place.create()
    await place.store.apply(place.physical, SetAlias(place.alias, place.physical))

    await place.store.delete(place.physical)
    await place.store.delete(place.physical)

    assert await place.store.observe(place.alias, place.physical) is None
    aliases = place.http.get("/aliases").json()["result"]["aliases"]
    assert place.alias not in [entry["alias_name"] for entry in aliases]


class TestSlowIndexes:
    """Building an index takes 1.5 s, a call may take 1 s. A real server shows this from 256 segments on."""

    @pytest.fixture
    async def slow(self, tmp_path: pathlib.Path) -> AsyncIterator[Place]:
        with serve(create_app(tmp_path)) as url, with_faults(tmp_path, index="1.5"):
            place = Place(url, QdrantCollections(url, timeout_s=1))
            yield place
            place.http.close()
            await place.store.close()

    async def test_is_awaited_within_one_pass(self, slow: Place) -> None:
        desired = replace(DESIRED, indexes=DESIRED.indexes[:3])

        done = await slow.reconcile(desired)

        assert (done.plan.changes, done.observed.collection) == ((), desired)

    async def test_times_out_and_later_pass_finds_it(self, slow: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        desired = replace(DESIRED, indexes=DESIRED.indexes[:1])
        monkeypatch.setattr(qdrant_collections, "MAX_INDEX_WAIT_S", 0.0)
        with pytest.raises(ResponseTimeout, match="no answer in time"):
            await slow.reconcile(desired)

        async with asyncio.timeout(10):
            while (await slow.read_collection()).indexes != desired.indexes:
                await asyncio.sleep(0.1)
        later = await slow.reconcile(desired, last=slow.physical)

        assert [type(change) for change in later.applied.changes] == [SetAlias]
        assert (later.plan.changes, later.observed.collection) == ((), desired)


async def test_plain_collection_is_adopted(place: Place) -> None:
    body = {"vectors": {"size": 4, "distance": "Cosine"}}
    place.http.put(f"/collections/{place.alias}", json=body).raise_for_status()

    first = await place.reconcile()
    second = await place.reconcile(last=place.alias)

    assert (first.observed.physical, first.observed.is_aliased) == (place.alias, False)
    assert (second.applied.changes, second.observed.collection) == ((), DESIRED)


async def test_rebuild_is_rejected(place: Place) -> None:
    with pytest.raises(StoreRejected, match=r"index\.distance cannot change in place"):
        await place.store.apply(place.physical, Rebuild("index.distance", "Cosine", "Dot"))


async def test_alias_equal_to_collection_name_is_rejected(place: Place) -> None:
    await place.create()
    place.http.put(f"/collections/{place.alias}", json={"vectors": {"size": 4, "distance": "Dot"}}).raise_for_status()

    with pytest.raises(StoreRejected, match=place.alias) as caught:
        await place.store.apply(place.physical, SetAlias(place.alias, place.physical))

    assert caught.value.status == 409


async def test_foreign_collection_is_not_adopted(place: Place) -> None:
    await place.create(replace(DESIRED, marker=replace(MARKER, name="another")))

    with pytest.raises(StoreRejected, match="already exists"):
        await place.create()


async def test_change_of_missing_collection_is_retryable(place: Place) -> None:
    with pytest.raises(StoreUnavailable, match=place.physical):
        await place.store.apply(place.physical, UpdateHnsw(m=32))


async def test_rejected_value_quotes_the_server(place: Place) -> None:
    await place.create()

    with pytest.raises(StoreRejected, match="ef_construct") as caught:
        await place.store.apply(place.physical, UpdateHnsw(ef_construct=2))

    assert caught.value.status == 422


CALLS: dict[str, Callable[[QdrantCollections], Awaitable[object]]] = {
    "server": lambda store: store.server(),
    "observe": lambda store: store.observe("a", "a__1"),
    "apply": lambda store: store.apply("a__1", UpdateHnsw(m=4)),
    "count": lambda store: store.count("a__1"),
    "count_memories": lambda store: store.count_memories("a__1"),
    "count_unlisted": lambda store: store.count_unlisted("a__1", ["fact"]),
    "count_sealed_before": lambda store: store.count_sealed_before("a__1", 1),
    "content_lengths": lambda store: store.content_lengths("a__1", 2),
    "delete": lambda store: store.delete("a__1"),
}


@contextlib.asynccontextmanager
async def open_store(url: str, **options: Any) -> AsyncIterator[QdrantCollections]:
    store = QdrantCollections(url, **options)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(scope="module")
def keyed_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A development server that requires an API key."""
    data: pathlib.Path = tmp_path_factory.mktemp("keyed")
    with serve(create_app(data, api_key="right")) as url:
        yield url


@pytest.fixture(scope="module")
def tiered_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A development server of a version with named memory tiers."""
    with serve(create_app(tmp_path_factory.mktemp("tiered"), qdrant_version="1.19.0")) as url:
        yield url


@pytest.mark.parametrize("key", [None, "wr0ng"])
async def test_wrong_key_is_rejected_and_not_quoted(keyed_url: str, key: str | None) -> None:
    async with open_store(keyed_url, api_key=key) as store:
        for call in CALLS.values():
            with pytest.raises(StoreRejected) as caught:
                await call(store)

            assert caught.value.status == 401
            assert "wr0ng" not in str(caught.value)


async def test_right_key_is_sent(keyed_url: str) -> None:
    async with open_store(keyed_url, api_key="right") as store:
        assert (await store.server()).version.startswith("1.18")


async def test_unreachable_server_is_unavailable() -> None:
    async with open_store(f"http://127.0.0.1:{free_port()}", timeout_s=2) as store:
        for call in CALLS.values():
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await call(store)


class Answer(BaseHTTPRequestHandler):
    """Responds to every request with the status and body of the test."""

    status, body = 200, b"{}"
    more: ClassVar[Mapping[str, str]] = {}

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        for name, value in self.more.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 - names of the standard library

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextlib.contextmanager
def answering(status: int, body: bytes, **more: str) -> Iterator[str]:
    handler = type("Handler", (Answer,), {"status": status, "body": body, "more": more})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


WORDS = json.dumps({"status": {"error": "the server's words"}}).encode()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, StoreRejected),
        (403, StoreRejected),
        (409, StoreRejected),
        (422, StoreRejected),
        (408, StoreUnavailable),
        (429, StoreUnavailable),
        (500, StoreUnavailable),
        (502, StoreUnavailable),
        (503, StoreUnavailable),
    ],
)
async def test_http_status_maps_to_error(status: int, error: type[AgentMemoryError]) -> None:
    with answering(status, WORDS) as url:
        async with open_store(url) as store:
            for call in CALLS.values():
                with pytest.raises(error, match="the server's words"):
                    await call(store)


@pytest.mark.parametrize(("header", "expected_s"), [("7", 7), ("Sun, 22 Nov 2026 07:28:00 GMT", 0)])
async def test_retry_after_is_passed_on(header: str, expected_s: int) -> None:
    with answering(429, WORDS, **{"Retry-After": header}) as url:
        async with open_store(url) as store:
            for call in CALLS.values():
                with pytest.raises(StoreUnavailable) as refused:
                    await call(store)

                assert refused.value.retry_after_s == expected_s


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"result": 5}', b"null", b'{"result": {"exi', b'{"result": "\xc3'])
async def test_foreign_body_is_unavailable(body: bytes) -> None:
    with answering(200, body) as url:
        async with open_store(url) as store:
            for name in ("server", "observe", "count"):
                with pytest.raises(StoreUnavailable):
                    await CALLS[name](store)


LOW_THRESHOLD_KB = 100
INDEXED = with_changes(DESIRED, indexing_threshold_kb=LOW_THRESHOLD_KB, size=64, full_scan_threshold_kb=10)


async def test_grey_collection_turns_green_once_woken(tmp_path: pathlib.Path) -> None:
    """The test starts the server twice on one folder, so it always uses the development server."""
    name = "agent_memory_grey__1"
    points = [{"id": number, "vector": [random.gauss(0, 1) for _ in range(64)]} for number in range(1500)]
    with serve(create_app(tmp_path)) as url:
        async with open_store(url) as store:
            await store.apply(name, CreateCollection(name, with_changes(INDEXED, indexing_threshold_kb=0, indexes=())))
            httpx.put(f"{url}/collections/{name}/points?wait=true", json={"points": points}).raise_for_status()
            await store.apply(name, UpdateOptimizers(indexing_threshold_kb=LOW_THRESHOLD_KB))
    with serve(create_app(tmp_path)) as url:
        async with open_store(url) as store:
            states = [await state_of(store, name)]
            await store.apply(name, WriteMarker(replace(MARKER, uid="another")))
            states.append(await state_of(store, name))
            await store.apply(name, WakeOptimizers())
            states.append(await state_of(store, name))
            patience = Patience(60)
            while await state_of(store, name) != "green":
                assert not patience.is_over
                await asyncio.sleep(0.1)
            observed = await store.observe(name, name)

    assert states == ["grey", "grey", "yellow"]
    assert observed is not None
    assert observed.indexed == len(points)


async def state_of(store: QdrantCollections, name: str) -> str:
    observed = await store.observe(name, name)
    assert observed is not None
    return observed.state


async def test_optimizer_error_is_observed(place: Place) -> None:
    await place.create()
    stored = place.http.get(f"/collections/{place.physical}").json()["result"]
    stored |= {"status": "red", "optimizer_status": {"error": "no space left on device"}}

    observed = observed_from(stored, physical=place.physical, is_aliased=False)

    assert (observed.state, observed.is_busy, observed.fault) == ("red", True, "no space left on device")
