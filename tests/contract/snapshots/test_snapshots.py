"""Snapshot files of a server: created, listed, downloaded, recovered, uploaded and removed."""

import uuid
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import httpx
import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots
from agentmemory_operator.collections.replaced_collection import (
    delete_keeping_snapshots,
    keep_snapshots_available,
    remove_file,
)
from agentmemory_operator.collections.rules.collection import is_placeholder
from agentmemory_operator.errors import NotFound, StoreRejected, StoreUnavailable
from tests.support.engine.interleaved_store import Event, InterleavedStore

POINTS = 20
METADATA = {"agentmemory": {"namespace": "agents", "name": "bot"}}


class Place:
    """Names of one test on the server, and the adapters."""

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

    async def create_again(self) -> None:
        """Fill the collection again, as another process would."""
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

    async def clean_up(self) -> None:
        """Remove the test's collections and files from the shared server; close the clients."""
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
    await place.clean_up()


async def read(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 1000):
        yield data[start : start + 1000]


async def test_list_has_size_and_checksum(place: Place) -> None:
    snapshot = await place.store.create(place.name)

    data = await place.bytes_of(snapshot.name)
    assert await place.store.files(place.name) == [snapshot]
    assert (snapshot.size, snapshot.sha256) == (len(data), sha256(data).hexdigest())
    assert snapshot.created_ms > 1_700_000_000_000


async def test_recovery_under_another_name_keeps_metadata(place: Place) -> None:
    snapshot = await place.store.create(place.name)
    location = await place.store.own_location(place.name, snapshot.name)

    await place.store.recover(place.copy, location, sha256=snapshot.sha256)

    assert place.count(place.copy) == POINTS
    assert await place.store.metadata(place.copy) == METADATA
    assert place.copy in await place.store.collections()


async def test_upload_in_chunks_creates_the_collection(place: Place) -> None:
    snapshot = await place.store.create(place.name)
    data = await place.bytes_of(snapshot.name)

    await place.store.upload(place.copy, read(data), sha256=snapshot.sha256)

    assert place.count(place.copy) == POINTS
    assert await place.store.files(place.copy) == [], "the server keeps what it is sent"


async def test_checksum_mismatch_leaves_nothing(place: Place) -> None:
    snapshot = await place.store.create(place.name)
    location = await place.store.own_location(place.name, snapshot.name)

    with pytest.raises(StoreRejected, match="checksum"):
        await place.store.recover(place.copy, location, sha256="0" * 64)

    assert not place.exists(place.copy)


async def test_half_a_file_leaves_nothing(place: Place) -> None:
    snapshot = await place.store.create(place.name)
    data = await place.bytes_of(snapshot.name)

    with pytest.raises((StoreRejected, StoreUnavailable)):
        await place.store.upload(place.copy, read(data[: len(data) // 2]), sha256=None)

    assert not place.exists(place.copy)
    await place.store.create_placeholder(place.copy)
    assert await place.store.files(place.copy) == [], "the server keeps what it is sent, recovered or not"


async def test_deletion_is_idempotent(place: Place) -> None:
    snapshot = await place.store.create(place.name)

    await place.store.delete_file(place.name, snapshot.name)
    await place.store.delete_file(place.name, snapshot.name)

    assert await place.names() == []
    with pytest.raises(NotFound):
        await place.bytes_of(snapshot.name)


async def test_metadata_is_merged_and_null_deletes_key(place: Place) -> None:
    await place.store.write_metadata(place.name, {"a": 1, "b": {"c": 2}})
    await place.store.write_metadata(place.name, {"a": None})

    assert await place.store.metadata(place.name) == METADATA | {"b": {"c": 2}}


async def test_retired_collection_without_files_is_deleted(place: Place) -> None:
    assert await delete_keeping_snapshots(place.collections, place.store, place.name) == 0

    assert not place.exists(place.name)


async def test_retired_collection_keeps_its_files(place: Place) -> None:
    """The placeholder exists until the last file is removed."""
    first = await place.store.create(place.name)

    assert await delete_keeping_snapshots(place.collections, place.store, place.name) == 1
    assert (place.count(place.name), await place.names()) == (0, [first.name])
    assert is_placeholder(await place.store.metadata(place.name))

    await place.store.recover(place.copy, await place.store.own_location(place.name, first.name), sha256=first.sha256)
    assert place.count(place.copy) == POINTS

    await remove_file(place.collections, place.store, place.name, first.name)
    assert not place.exists(place.name)


async def test_copied_file_is_deleted_with_its_collection(place: Place) -> None:
    snapshot = await place.store.create(place.name)

    assert (
        await delete_keeping_snapshots(place.collections, place.store, place.name, copied=frozenset({snapshot.name}))
        == 0
    )

    assert not place.exists(place.name)
    await place.store.create_placeholder(place.name)
    assert await place.names() == []


async def test_killed_retirement_can_be_repeated(place: Place) -> None:
    snapshot = await place.store.create(place.name)
    await place.collections.delete(place.name)

    assert await delete_keeping_snapshots(place.collections, place.store, place.name) == 1

    assert await place.names() == [snapshot.name]


async def test_deleted_collection_gets_a_placeholder(place: Place) -> None:
    snapshot = await place.store.create(place.name)
    await place.collections.delete(place.name)

    assert await keep_snapshots_available(place.collections, place.store, place.name) == {snapshot.name}
    assert await keep_snapshots_available(place.collections, place.store, place.copy) == set()

    assert is_placeholder(await place.store.metadata(place.name))
    assert not place.exists(place.copy)


async def test_placeholder_overwrites_no_new_collection(place: Place) -> None:
    """Another process, such as a restore, may create the collection just before the placeholder."""
    await place.collections.delete(place.name)
    snapshots: Any = InterleavedStore(
        place.store, Event(lambda name, _: name == "create_placeholder", place.create_again)
    )

    assert await keep_snapshots_available(place.collections, snapshots, place.name) == set()

    assert snapshots.is_over
    assert place.count(place.name) == POINTS


async def test_file_of_a_deleted_collection_is_removed(place: Place) -> None:
    snapshot = await place.store.create(place.name)
    await place.collections.delete(place.name)

    await remove_file(place.collections, place.store, place.name, snapshot.name)

    assert not place.exists(place.name)
    await place.store.create_placeholder(place.name)
    assert await place.names() == []


async def test_removing_a_file_keeps_the_collection(place: Place) -> None:
    snapshot = await place.store.create(place.name)

    await remove_file(place.collections, place.store, place.name, snapshot.name)

    assert place.count(place.name) == POINTS
