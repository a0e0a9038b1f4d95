"""The adapter for collections against a server: each change carried out and observed, each fault told as what it is."""

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
    """Return the desired collection with what the server decides where the object does not."""
    return replace(
        desired, shard_number=1, replication_factor=1, payload_on_disk=True, strict_mode=desired.strict_mode or ()
    )


DESIRED = as_reported(desired_of(EMBEDDING))


def marker_of(desired: Collection) -> Marker:
    assert desired.marker is not None
    return desired.marker


MARKER = marker_of(DESIRED)


class Place:
    """A name of its own on the server, and the adapter."""

    def __init__(self, url: str, store: QdrantCollections) -> None:
        self.store = store
        self.http = httpx.Client(base_url=url, timeout=30)
        self.alias = f"agent_memory_c-{uuid.uuid4().hex[:12]}"
        self.physical = f"{self.alias}__1"

    async def create(self, collection: Collection = DESIRED) -> None:
        await self.store.apply(self.physical, CreateCollection(self.physical, replace(collection, indexes=())))

    async def seen(self) -> Collection:
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


async def test_nothing_is_observed_where_nothing_is(place: Place) -> None:
    assert await place.store.observe(place.alias, place.physical) is None


async def test_a_created_collection_is_read_back_as_it_was_asked_for(place: Place) -> None:
    await place.create()

    observed = await place.store.observe(place.alias, place.physical)

    assert observed is not None
    assert observed.collection == replace(DESIRED, indexes=())
    assert (observed.physical, observed.is_aliased, observed.points) == (place.physical, False, 0)
    assert (observed.state, observed.is_busy) == ("green", False)


async def test_keywords_are_there_from_creation_and_are_dropped(place: Place) -> None:
    await place.create(replace(DESIRED, has_keyword=True))
    created = await place.seen()

    await place.store.apply(place.physical, UpdateKeyword(has_keyword=False))

    assert (created.has_keyword, (await place.seen()).has_keyword) == (True, False)


async def test_a_creation_that_is_repeated_is_no_error(place: Place) -> None:
    await place.create()

    await place.create(with_changes(DESIRED, m=32))

    assert (await place.seen()).hnsw.m == 16


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
async def test_a_change_is_observed_as_it_was_made_and_may_be_repeated(place: Place, change: Change) -> None:
    await place.create()
    before = await place.seen()

    await place.store.apply(place.physical, change)
    await place.store.apply(place.physical, change)

    assert await place.seen() == apply_change(before, change)


async def test_quantization_comes_back_after_it_was_off(place: Place) -> None:
    await place.create(replace(DESIRED, quantization=None))
    scalar = ScalarQuantization(0.623457, always_ram=True)

    await place.store.apply(place.physical, UpdateQuantization(scalar))

    assert (await place.seen()).quantization == scalar


async def test_an_index_is_replaced_by_one_of_another_type(place: Place) -> None:
    await place.create()
    await place.store.apply(place.physical, CreateIndexes((("createdAt", "keyword"),)))

    await place.store.apply(place.physical, CreateIndexes((("createdAt", "integer"),)))

    assert (await place.seen()).indexes == (("createdAt", "integer"),)


async def test_a_smaller_embedding_in_the_marker_leaves_nothing_of_the_larger(place: Place) -> None:
    await place.create()
    large = replace(
        MARKER, embedding=replace(MARKER.embedding, base_url="http://e/v1", secret_name="s", secret_key="k")
    )
    await place.store.apply(place.physical, WriteMarker(large))

    await place.store.apply(place.physical, WriteMarker(MARKER))

    assert (await place.seen()).marker == MARKER


async def test_other_metadata_stays(place: Place) -> None:
    await place.create()
    path = f"/collections/{place.physical}"
    place.http.patch(path, json={"metadata": {"team": "search"}}).raise_for_status()

    await place.store.apply(place.physical, WriteMarker(replace(MARKER, uid="another")))

    assert place.http.get(path).json()["result"]["config"]["metadata"]["team"] == "search"


async def test_an_alias_is_set_and_moved(place: Place) -> None:
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


async def test_a_collection_that_is_deleted_while_its_alias_is_looked_up_is_gone(qdrant_url: str, place: Place) -> None:
    class Interrupted(QdrantCollections):
        async def _behind(self, alias: str, likely: str) -> str:
            place.http.delete(f"/collections/{place.physical}").raise_for_status()
            return await super()._behind(alias, likely)

    await place.reconcile()
    store = Interrupted(qdrant_url)

    # It is no plain collection of the alias's name: what comes next would begin to count from 1.
    assert await store.observe(place.alias, place.physical) is None
    await store.close()


async def test_a_plain_collection_of_the_alias_s_name_is_observed_as_it_is(place: Place) -> None:
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
async def test_another_quantization_is_seen_with_the_engine_s_defaults_and_replaced_whole(
    place: Place, config: dict[str, Any], quantization: Quantization
) -> None:
    body = {"vectors": {"size": 4, "distance": "Cosine"}, "quantization_config": config}
    place.http.put(f"/collections/{place.physical}", json=body).raise_for_status()
    assert (await place.seen()).quantization == quantization

    await place.store.apply(place.physical, UpdateQuantization(DESIRED.quantization))

    assert (await place.seen()).quantization == DESIRED.quantization


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
async def test_where_vectors_lie_is_seen_by_effect_and_changed_under_the_name_the_server_was_told(
    tiered_url: str, vector: dict[str, Any], memory: str
) -> None:
    async with opened(tiered_url) as store:
        place = Place(tiered_url, store)
        body = {"vectors": {"size": 4, "distance": "Cosine", **vector}}
        place.http.put(f"/collections/{place.physical}", json=body).raise_for_status()
        assert (await place.seen()).memory == memory
        other = "Cold" if memory == "Cached" else "Cached"

        await store.apply(place.physical, UpdateVectors(other))

        assert (await place.seen()).memory == other
        config = place.http.get(f"/collections/{place.physical}").json()["result"]["config"]["params"]["vectors"]
        assert ("memory" in config) == ("memory" in vector)
        place.http.close()


@pytest.mark.parametrize(("memory", "always_ram"), [("pinned", True), ("cached", False), ("cold", False)])
async def test_where_compressed_copies_lie_is_seen_by_effect(tiered_url: str, memory: str, always_ram: bool) -> None:
    async with opened(tiered_url) as store:
        place = Place(tiered_url, store)
        quantization = {"scalar": {"type": "int8", "memory": memory}}
        body = {"vectors": {"size": 4, "distance": "Cosine"}, "quantization_config": quantization}
        place.http.put(f"/collections/{place.physical}", json=body).raise_for_status()

        assert (await place.seen()).quantization == ScalarQuantization(None, always_ram)
        place.http.close()


async def test_a_collection_with_named_vectors_differs_in_size(place: Place) -> None:
    body = {"vectors": {"text": {"size": 4, "distance": "Cosine"}}}
    place.http.put(f"/collections/{place.physical}", json=body).raise_for_status()

    assert (await place.seen()).size == 0


async def test_memories_of_types_that_are_not_listed_are_counted_without_tombstones(place: Place) -> None:
    await place.reconcile()
    for name, number in (("fact", 4), ("task", 2), ("note", 1)):
        place.add_points(number, type=name)
    place.add_points(3, type="task", deletedAt=1)

    assert await place.store.count_unlisted(place.physical, ["fact", "person"]) == {"task": 2, "note": 1}
    assert await place.store.count_unlisted(place.physical, ["fact", "task", "note"]) == {}


async def test_memories_under_keys_of_before_are_counted_without_tombstones_and_plain_ones(place: Place) -> None:
    await place.reconcile()
    for number, payload in ((3, {"keyMadeAt": 1_000}), (2, {"keyMadeAt": 2_000}), (1, {}), (4, {"deletedAt": 1})):
        place.add_points(number, type="fact", **payload)
    place.add_points(5, type="fact", keyMadeAt=1_000, deletedAt=1)

    assert [await place.store.count_sealed_before(place.physical, ms) for ms in (1_000, 1_001, 2_001)] == [0, 3, 5]


async def test_memories_are_counted_as_the_api_counts_them(place: Place) -> None:
    await place.reconcile()
    for number, payload in ((3, {}), (2, {"supersededById": "x"}), (4, {"deletedAt": 1}), (1, {"pending": True})):
        place.add_points(number, type="fact", **payload)

    assert await place.store.count_memories(place.physical) == 5
    assert await place.store.count(place.physical) == 6
    assert 0 < await place.store.count_memories(place.physical, exact=False) <= 10


async def test_points_are_counted_exactly_and_without_tombstones(place: Place) -> None:
    await place.create()
    place.add_points(3, userId="u")
    place.add_points(2, deletedAt=1_795_000_000_000)

    assert await place.store.count(place.physical) == 3
    observed = await place.store.observe(place.alias, place.physical)
    assert observed is not None
    assert observed.points == 5
    assert await place.store.count(f"{place.alias}__2") == 0


async def test_the_lengths_of_contents_are_those_of_memories(place: Place) -> None:
    await place.create()
    place.add_points(1, content="x" * 40)
    place.add_points(2, content="y" * 9)
    place.add_points(1, userId="u")
    place.add_points(1, content="z", deletedAt=1_795_000_000_000)

    assert sorted(await place.store.content_lengths(place.physical, 256)) == [0, 9, 9, 40]
    assert len(await place.store.content_lengths(place.physical, 2)) == 2


async def test_a_deleted_collection_takes_its_alias_along_and_may_be_deleted_again(place: Place) -> None:
    await place.create()
    await place.store.apply(place.physical, SetAlias(place.alias, place.physical))

    await place.store.delete(place.physical)
    await place.store.delete(place.physical)

    assert await place.store.observe(place.alias, place.physical) is None
    aliases = place.http.get("/aliases").json()["result"]["aliases"]
    assert place.alias not in [entry["alias_name"] for entry in aliases]


class TestSlowIndexes:
    """A call takes no longer than 1 s here, an index longer: on a real server those of 256 segments do."""

    @pytest.fixture
    async def slow(self, tmp_path: pathlib.Path) -> AsyncIterator[Place]:
        with serve(create_app(tmp_path)) as url, with_faults(tmp_path, index="1.5"):
            place = Place(url, QdrantCollections(url, timeout_s=1))
            yield place
            place.http.close()
            await place.store.close()

    async def test_they_are_waited_for_in_one_pass(self, slow: Place) -> None:
        desired = replace(DESIRED, indexes=DESIRED.indexes[:3])

        done = await slow.reconcile(desired)

        assert (done.plan.changes, done.observed.collection) == ((), desired)

    async def test_what_takes_too_long_is_told_and_found_done_by_a_later_pass(
        self, slow: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        desired = replace(DESIRED, indexes=DESIRED.indexes[:1])
        monkeypatch.setattr(qdrant_collections, "MAX_INDEX_WAIT_S", 0.0)
        with pytest.raises(ResponseTimeout, match="no answer in time"):
            await slow.reconcile(desired)

        async with asyncio.timeout(10):
            while (await slow.seen()).indexes != desired.indexes:
                await asyncio.sleep(0.1)
        later = await slow.reconcile(desired, last=slow.physical)

        assert [type(change) for change in later.applied.changes] == [SetAlias]
        assert (later.plan.changes, later.observed.collection) == ((), desired)


async def test_a_plain_collection_is_adopted_with_its_points(place: Place) -> None:
    body = {"vectors": {"size": 4, "distance": "Cosine"}}
    place.http.put(f"/collections/{place.alias}", json=body).raise_for_status()

    first = await place.reconcile()
    second = await place.reconcile(last=place.alias)

    assert (first.observed.physical, first.observed.is_aliased) == (place.alias, False)
    assert (second.applied.changes, second.observed.collection) == ((), DESIRED)


async def test_a_rebuild_is_refused_here(place: Place) -> None:
    with pytest.raises(StoreRejected, match=r"index\.distance cannot change in place"):
        await place.store.apply(place.physical, Rebuild("index.distance", "Cosine", "Dot"))


async def test_an_alias_that_is_a_collection_s_name_is_refused_with_the_server_s_words(place: Place) -> None:
    await place.create()
    place.http.put(f"/collections/{place.alias}", json={"vectors": {"size": 4, "distance": "Dot"}}).raise_for_status()

    with pytest.raises(StoreRejected, match=place.alias) as caught:
        await place.store.apply(place.physical, SetAlias(place.alias, place.physical))

    assert caught.value.status == 409


async def test_a_collection_of_somebody_else_is_not_taken_for_one_that_was_created_before(place: Place) -> None:
    await place.create(replace(DESIRED, marker=replace(MARKER, name="another")))

    with pytest.raises(StoreRejected, match="already exists"):
        await place.create()


async def test_a_change_of_what_is_not_there_is_to_be_tried_again(place: Place) -> None:
    with pytest.raises(StoreUnavailable, match=place.physical):
        await place.store.apply(place.physical, UpdateHnsw(m=32))


async def test_a_figure_that_the_server_refuses_is_told_with_its_words(place: Place) -> None:
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
async def opened(url: str, **options: Any) -> AsyncIterator[QdrantCollections]:
    store = QdrantCollections(url, **options)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(scope="module")
def keyed_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A development server that asks for a key."""
    data: pathlib.Path = tmp_path_factory.mktemp("keyed")
    with serve(create_app(data, api_key="right")) as url:
        yield url


@pytest.fixture(scope="module")
def tiered_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A development server of a version that knows memory tiers by name."""
    with serve(create_app(tmp_path_factory.mktemp("tiered"), qdrant_version="1.19.0")) as url:
        yield url


@pytest.mark.parametrize("key", [None, "wr0ng"])
async def test_a_wrong_key_is_refused_for_good_and_not_told(keyed_url: str, key: str | None) -> None:
    async with opened(keyed_url, api_key=key) as store:
        for call in CALLS.values():
            with pytest.raises(StoreRejected) as caught:
                await call(store)

            assert caught.value.status == 401
            assert "wr0ng" not in str(caught.value)


async def test_the_right_key_is_sent(keyed_url: str) -> None:
    async with opened(keyed_url, api_key="right") as store:
        assert (await store.server()).version.startswith("1.18")


async def test_a_server_that_is_down_is_unavailable() -> None:
    async with opened(f"http://127.0.0.1:{free_port()}", timeout_s=2) as store:
        for call in CALLS.values():
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await call(store)


class Answer(BaseHTTPRequestHandler):
    """Answers everything with the status and body that the test chose."""

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
        """Say nothing."""


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
async def test_a_status_tells_what_can_be_done(status: int, error: type[AgentMemoryError]) -> None:
    with answering(status, WORDS) as url:
        async with opened(url) as store:
            for call in CALLS.values():
                with pytest.raises(error, match="the server's words"):
                    await call(store)


@pytest.mark.parametrize(("asked", "understood_s"), [("7", 7), ("Sun, 22 Nov 2026 07:28:00 GMT", 0)])
async def test_a_server_that_throttles_says_for_how_long(asked: str, understood_s: int) -> None:
    with answering(429, WORDS, **{"Retry-After": asked}) as url:
        async with opened(url) as store:
            for call in CALLS.values():
                with pytest.raises(StoreUnavailable) as refused:
                    await call(store)

                assert refused.value.retry_after_s == understood_s


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"result": 5}', b"null", b'{"result": {"exi', b'{"result": "\xc3'])
async def test_an_answer_that_is_no_qdrant_s_is_unavailable(body: bytes) -> None:
    with answering(200, body) as url:
        async with opened(url) as store:
            for name in ("server", "observe", "count"):
                with pytest.raises(StoreUnavailable):
                    await CALLS[name](store)


LOW_THRESHOLD_KB = 100
INDEXED = with_changes(DESIRED, indexing_threshold_kb=LOW_THRESHOLD_KB, size=64, full_scan_threshold_kb=10)


async def test_a_collection_that_a_restart_left_grey_is_green_after_it_was_woken(tmp_path: pathlib.Path) -> None:
    """The server is started twice on one folder, so this is always the development server."""
    name = "agent_memory_grey__1"
    points = [{"id": number, "vector": [random.gauss(0, 1) for _ in range(64)]} for number in range(1500)]
    with serve(create_app(tmp_path)) as url:
        async with opened(url) as store:
            await store.apply(name, CreateCollection(name, with_changes(INDEXED, indexing_threshold_kb=0, indexes=())))
            httpx.put(f"{url}/collections/{name}/points?wait=true", json={"points": points}).raise_for_status()
            await store.apply(name, UpdateOptimizers(indexing_threshold_kb=LOW_THRESHOLD_KB))
    with serve(create_app(tmp_path)) as url:
        async with opened(url) as store:
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


async def test_the_words_for_what_stopped_the_optimizers_are_observed(place: Place) -> None:
    await place.create()
    told = place.http.get(f"/collections/{place.physical}").json()["result"]
    told |= {"status": "red", "optimizer_status": {"error": "no space left on device"}}

    observed = observed_from(told, physical=place.physical, is_aliased=False)

    assert (observed.state, observed.is_busy, observed.fault) == ("red", True, "no space left on device")
