"""Snapshots of a server: made, listed, fetched, recovered, sent, removed; and reachable only under their name."""

import uuid
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import httpx
import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots
from agentmemory_operator.collections.retire import delete_keeping_snapshots, keep_snapshots_available, remove_file
from agentmemory_operator.collections.rules.collection import is_placeholder
from agentmemory_operator.errors import NotFound, StoreRejected, StoreUnavailable
from tests.support.engine.interleaved_store import Event, InterleavedStore

POINTS = 20
METADATA = {"agentmemory": {"namespace": "agents", "name": "bot"}}


class Place:
    """Names of its own on the server, and the adapters."""

    def __init__(self, url: str) -> None:
        self.store, self.collections = QdrantSnapshots(url), QdrantCollections(url)
        self.http = httpx.Client(base_url=url, timeout=30)
        self.name = f"agent_memory_s-{uuid.uuid4().hex[:12]}__1"
        self.copy = f"{self.name[:-1]}2"

    def fill(self, name: str | None = None, **more: Any) -> None:
        name = name or self.name
        body = {"vectors": {"size": 4, "distance": "Cosine"}, "metadata": METADATA} | more
        self.http.put(f"/collections/{name}", json=body).raise_for_status()
        points = [{"id": number, "vector": [1, 0, 0, number], "payload": {"n": number}} for number in range(POINTS)]
        self.http.put(f"/collections/{name}/points?wait=true", json={"points": points}).raise_for_status()

    async def make(self) -> None:
        """Fill the collection anew, as another process would."""
        self.fill()

    def count(self, name: str) -> int:
        return int(self.http.post(f"/collections/{name}/points/count", json={"exact": True}).json()["result"]["count"])

    def exists(self, name: str) -> bool:
        return bool(self.http.get(f"/collections/{name}/exists").json()["result"]["exists"])

    async def bytes_of(self, file: str) -> bytes:
        async with self.store.download(self.name, file) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def names(self) -> list[str]:
        return [file.name for file in await self.store.files(self.name)]

    async def empty(self) -> None:
        """Leave nothing on a server that is not ours."""
        await self.store.create_placeholder(self.name)
        for file in await self.store.files(self.name):
            await self.store.delete_file(self.name, file.name)
        for name in (self.name, self.copy):
            self.http.delete(f"/collections/{name}")
        self.http.close()
        await self.store.close()
        await self.collections.close()


@pytest.fixture
async def place(qdrant_url: str) -> AsyncIterator[Place]:
    place = Place(qdrant_url)
    place.fill()
    yield place
    await place.empty()


async def read(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 1000):
        yield data[start : start + 1000]


async def test_a_snapshot_is_listed_with_the_size_and_checksum_of_its_bytes(place: Place) -> None:
    made = await place.store.create(place.name)

    data = await place.bytes_of(made.name)
    assert await place.store.files(place.name) == [made]
    assert (made.size, made.sha256) == (len(data), sha256(data).hexdigest())
    assert made.created_ms > 1_700_000_000_000


async def test_a_snapshot_is_recovered_under_another_name_with_its_metadata(place: Place) -> None:
    made = await place.store.create(place.name)
    location = await place.store.own_location(place.name, made.name)

    await place.store.recover(place.copy, location, sha256=made.sha256)

    assert place.count(place.copy) == POINTS
    assert await place.store.metadata(place.copy) == METADATA
    assert place.copy in await place.store.collections()


async def test_a_snapshot_is_sent_to_the_server_in_pieces(place: Place) -> None:
    made = await place.store.create(place.name)
    data = await place.bytes_of(made.name)

    await place.store.upload(place.copy, read(data), sha256=made.sha256)

    assert place.count(place.copy) == POINTS
    assert await place.store.files(place.copy) == [], "the server keeps what it is sent"


async def test_other_bytes_than_the_checksum_says_are_refused_and_leave_nothing(place: Place) -> None:
    made = await place.store.create(place.name)
    location = await place.store.own_location(place.name, made.name)

    with pytest.raises(StoreRejected, match="checksum"):
        await place.store.recover(place.copy, location, sha256="0" * 64)

    assert not place.exists(place.copy)


async def test_half_a_file_is_not_taken_and_leaves_nothing(place: Place) -> None:
    made = await place.store.create(place.name)
    data = await place.bytes_of(made.name)

    with pytest.raises((StoreRejected, StoreUnavailable)):
        await place.store.upload(place.copy, read(data[: len(data) // 2]), sha256=None)

    assert not place.exists(place.copy)
    await place.store.create_placeholder(place.copy)
    assert await place.store.files(place.copy) == [], "the server keeps what it is sent, recovered or not"


async def test_a_removed_snapshot_is_gone_and_its_removal_may_be_repeated(place: Place) -> None:
    made = await place.store.create(place.name)

    await place.store.delete_file(place.name, made.name)
    await place.store.delete_file(place.name, made.name)

    assert await place.names() == []
    with pytest.raises(NotFound):
        await place.bytes_of(made.name)


async def test_metadata_is_merged_and_null_deletes_a_key(place: Place) -> None:
    await place.store.write_metadata(place.name, {"a": 1, "b": {"c": 2}})
    await place.store.write_metadata(place.name, {"a": None})

    assert await place.store.metadata(place.name) == METADATA | {"b": {"c": 2}}


async def test_a_retired_collection_without_snapshots_is_gone(place: Place) -> None:
    assert await delete_keeping_snapshots(place.collections, place.store, place.name) == 0

    assert not place.exists(place.name)


async def test_a_retired_collection_keeps_its_snapshots_in_reach_until_the_last_is_removed(place: Place) -> None:
    first = await place.store.create(place.name)

    assert await delete_keeping_snapshots(place.collections, place.store, place.name) == 1
    assert (place.count(place.name), await place.names()) == (0, [first.name])
    assert is_placeholder(await place.store.metadata(place.name))

    await place.store.recover(place.copy, await place.store.own_location(place.name, first.name), sha256=first.sha256)
    assert place.count(place.copy) == POINTS

    await remove_file(place.collections, place.store, place.name, first.name)
    assert not place.exists(place.name)


async def test_a_snapshot_that_is_off_the_server_too_goes_with_its_collection(place: Place) -> None:
    made = await place.store.create(place.name)

    assert (
        await delete_keeping_snapshots(place.collections, place.store, place.name, copied=frozenset({made.name})) == 0
    )

    assert not place.exists(place.name)
    await place.store.create_placeholder(place.name)
    assert await place.names() == []


async def test_what_was_killed_after_the_deletion_is_retired_by_another_call(place: Place) -> None:
    made = await place.store.create(place.name)
    await place.collections.delete(place.name)

    assert await delete_keeping_snapshots(place.collections, place.store, place.name) == 1

    assert await place.names() == [made.name]


async def test_a_collection_that_went_by_another_hand_is_put_in_reach_again(place: Place) -> None:
    made = await place.store.create(place.name)
    await place.collections.delete(place.name)

    assert await keep_snapshots_available(place.collections, place.store, place.name) == {made.name}
    assert await keep_snapshots_available(place.collections, place.store, place.copy) == set()

    assert is_placeholder(await place.store.metadata(place.name))
    assert not place.exists(place.copy)


async def test_a_collection_that_is_made_while_its_name_is_looked_after_is_not_deleted(place: Place) -> None:
    """Between the look and the placeholder another process may make the real one, as a restore does."""
    await place.collections.delete(place.name)
    snapshots: Any = InterleavedStore(place.store, Event(lambda name, _: name == "create_placeholder", place.make))

    assert await keep_snapshots_available(place.collections, snapshots, place.name) == set()

    assert snapshots.is_over
    assert place.count(place.name) == POINTS


async def test_removing_the_file_of_a_collection_that_is_gone_removes_the_bytes(place: Place) -> None:
    made = await place.store.create(place.name)
    await place.collections.delete(place.name)

    await remove_file(place.collections, place.store, place.name, made.name)

    assert not place.exists(place.name)
    await place.store.create_placeholder(place.name)
    assert await place.names() == []


async def test_a_file_s_removal_leaves_a_collection_with_memories_alone(place: Place) -> None:
    made = await place.store.create(place.name)

    await remove_file(place.collections, place.store, place.name, made.name)

    assert place.count(place.name) == POINTS
