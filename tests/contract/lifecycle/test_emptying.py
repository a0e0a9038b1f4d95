"""Deleted and forgotten memories have no vectors, even while snapshots are taken."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.errors import OutcomeUnknown, StoreUnavailable, TransientError
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories import tombstone_writes as burials
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.memories.tombstone_writes import delete_remaining_vectors
from agentmemory_operator.memories.transfer.import_batch import ImportLine
from agentmemory_operator.memories.transfer.imports import import_lines
from agentmemory_operator.memories.working_memory import Session
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import EVERYTHING, World, tombstones_with_vectors, vector_of
from tests.support.engine.interleaved_store import CrashingStore
from tests.support.engine.reused_agents import reuse_world

SOURCE = KeywordSource(language="english", window=2)
TYPES = (MemoryType("fact", 30), MemoryType("status", 30, supersede_by="subject"), MemoryType("working", None))
BOTH = {"": vector_of("kept"), KEYWORD_VECTOR: {"indices": [1], "values": [1.0]}}
TOMBSTONE = {"rev": 2, "deletedAt": 5, "pending": False}
DELETED, USERS, OF_USER = 150, 3, 50


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with reuse_world(qdrant_url, keyword=SOURCE, ranking=replace(EVERYTHING, types=TYPES)) as world:
        yield world


@contextlib.asynccontextmanager
async def snapshots(url: str, world: World) -> AsyncIterator[None]:
    """Take snapshots of the collection one after another."""

    async def take_snapshots() -> None:
        async with aiohttp.ClientSession(url) as session:
            while True:
                path = f"/collections/{world.agent.alias}/snapshots"
                async with session.post(path) as answer:
                    snapshot = (await answer.json())["result"]
                async with session.delete(f"{path}/{snapshot['name']}") as answer:
                    await answer.read()
                # The development server blocks writes while it copies files.
                await asyncio.sleep(0.05)

    task = asyncio.create_task(take_snapshots())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def add_and_delete(world: World, user_id: str) -> None:
    for number in range(DELETED // USERS):
        memory_id = await world.add(f"{user_id} {number}", user_id=user_id, type="fact")
        await delete_head(world.agent, memory_id, user_id=user_id)


async def add_and_forget(world: World, user_id: str) -> None:
    for number in range(OF_USER):
        await world.add(f"{user_id} {number}", user_id=user_id, type="fact")
    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id=user_id, is_whole=True)))


@pytest.mark.usefixtures("amid_snapshots")
async def test_no_vectors_remain_during_snapshots(qdrant_url: str, world: World) -> None:
    users = range(USERS)
    async with snapshots(qdrant_url, world):
        await asyncio.gather(
            *(add_and_delete(world, f"deletes {user}") for user in users),
            *(add_and_forget(world, f"forgotten {user}") for user in users),
        )

    tombstones = await world.agent.store.count(world.agent.alias, {"must": [{"key": "deletedAt", "range": {"gte": 0}}]})
    assert tombstones == DELETED + USERS * OF_USER + USERS
    assert await tombstones_with_vectors(world.agent.store, world.agent.alias) == []


class KeepsVectors:
    """Ignores every deletion of vectors."""

    def __init__(self, store: PointStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def batch(self, collection: str, operations: list[Json], **how: Any) -> None:
        if kept_operations := [operation for operation in operations if "delete_vectors" not in operation]:
            await self._store.batch(collection, kept_operations, **how)


@pytest.fixture
def keeping(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The same agent behind an engine that never deletes vectors."""
    monkeypatch.setattr(burials, "ATTEMPT_S", 0)
    store: Any = KeepsVectors(world.agent.store)
    return World(replace(world.agent, store=store), clock=world.clock)


async def add_tombstones_with_vectors(world: World, count: int) -> None:
    """Store tombstones with vectors, as earlier versions did during snapshots."""
    ids = [f"00000000-0000-4000-8000-{number:012}" for number in range(count)]
    points = [{"id": id_, "vector": BOTH, "payload": TOMBSTONE | {"id": id_}} for id_ in ids]
    await world.agent.store.upsert(world.agent.alias, points)


async def receipts(world: World) -> int:
    return len((await world.forgetting.list_receipts(world.agent, limit=9)).receipts)


@pytest.mark.usefixtures("always_kept")
async def test_forget_fails_while_vectors_remain(world: World, keeping: World) -> None:
    """A receipt exists only after all vectors have been deleted."""
    await world.add("of the user", session_id="s", type="fact")
    await world.add("of another", user_id="other")
    request = ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True), idempotency_key="k")

    with pytest.raises(OutcomeUnknown, match="still has the vectors of 1 deleted memories"):
        await keeping.forgetting.forget(keeping.agent, request)
    assert (await receipts(world), len(await tombstones_with_vectors(world.agent.store, world.agent.alias))) == (0, 1)

    receipt = await world.forgetting.forget(world.agent, request)
    assert (receipt.counts.total, await receipts(world)) == (1, 1)
    assert await tombstones_with_vectors(world.agent.store, world.agent.alias) == []


@pytest.mark.usefixtures("always_kept")
async def test_deletion_fails_while_vectors_remain(world: World, keeping: World) -> None:
    memory_id = await world.add("deleted", type="fact")
    address = Address(user_id="u", namespace=("home", "here"), key="k")
    await world.items.put(world.agent, address, ItemContent(content="an item", vector=vector_of("an item")))

    with pytest.raises(OutcomeUnknown, match="still has the vectors"):
        await delete_head(keeping.agent, memory_id, user_id="u")
    with pytest.raises(OutcomeUnknown, match="still has the vectors"):
        await keeping.items.delete(keeping.agent, address)

    assert len(await tombstones_with_vectors(world.agent.store, world.agent.alias)) == 2
    assert await delete_remaining_vectors(world.agent) == 2


@pytest.mark.usefixtures("always_kept")
async def test_killed_deletion_leaves_no_vector(world: World) -> None:
    at, is_killed = 0, True
    while is_killed:
        memory_id = await world.add(f"deleted {at}", type="fact")
        store: Any = CrashingStore(world.agent.store, at, "after")
        crashing = World(replace(world.agent, store=store), clock=world.clock)
        try:
            await delete_head(crashing.agent, memory_id, user_id="u")
            is_killed = False
        except TransientError:
            at += 1
        assert await tombstones_with_vectors(world.agent.store, world.agent.alias) == []
    assert at > 2


async def test_old_tombstones_are_emptied_page_by_page(world: World, keeping: World) -> None:
    await add_tombstones_with_vectors(world, 250)
    await world.add("stays")

    with pytest.raises(StoreUnavailable, match="still has the vectors"):
        await delete_remaining_vectors(keeping.agent)
    assert await delete_remaining_vectors(world.agent, max_pages=1) == 100
    assert len(await tombstones_with_vectors(world.agent.store, world.agent.alias)) == 150
    assert (await delete_remaining_vectors(world.agent), await delete_remaining_vectors(world.agent)) == (150, 0)

    assert await tombstones_with_vectors(world.agent.store, world.agent.alias) == []
    assert await world.heads() == ["stays"]


async def test_foreign_tombstones_keep_their_vectors(world: World) -> None:
    """An adopted collection may use `deletedAt` for its own purpose."""
    text = {"id": 1, "vector": BOTH, "payload": {"text": "theirs", "deletedAt": 5}}
    content = {"id": 2, "vector": BOTH, "payload": TOMBSTONE | {"content": "theirs"}}
    await world.agent.store.upsert(world.agent.alias, [text, content])

    assert await delete_remaining_vectors(world.agent) == 0

    assert len(await tombstones_with_vectors(world.agent.store, world.agent.alias)) == 2
    await world.agent.store.delete(world.agent.alias, {"must": []})


async def count_keyword_vectors(world: World) -> int:
    """Count the points with a keyword vector."""
    return await world.agent.store.count(world.agent.alias, {"must": [{"has_vector": KEYWORD_VECTOR}]})


@pytest.mark.usefixtures("always_kept")
async def test_writes_without_keyword_remove_old_words(world: World) -> None:
    """The collection still has keyword vectors. If the agent enabled keywords again, old ones would match new texts."""
    wordless = World(replace(world.agent, keyword=None), clock=world.clock)
    session, address = Session("u", "s"), Address(user_id="u", namespace=("home", "here"), key="k")
    slots = world.agent.settings.working_memory_slots
    await world.items.put(world.agent, address, ItemContent(content="apple", vector=vector_of("apple")))
    for number in range(slots):
        kept = IncomingMemory(user_id="u", session_id="s", content=f"pear {number}", vector=vector_of(number))
        await world.working.store(world.agent, kept)
    line = ImportLine(
        memory=IncomingMemory(user_id="u", content="plum", vector=vector_of("plum")), id=(await world.add("plum"))
    )
    [imported] = await import_over_tombstone(world, wordless, line)
    assert (imported, await count_keyword_vectors(world)) == ("imported", slots + 1)

    await wordless.items.put(wordless.agent, address, ItemContent(content="fig", vector=vector_of("fig")))
    for number in range(slots):
        kept = IncomingMemory(user_id="u", session_id="s", content=f"fig {number}", vector=vector_of(-number))
        await wordless.working.store(wordless.agent, kept)

    assert len(await wordless.working.read(wordless.agent, session)) == slots
    assert await count_keyword_vectors(world) == 0


class InterruptsBatches(KeepsVectors):
    """Applies only the first operation of a batch."""

    async def batch(self, collection: str, operations: list[Json], **how: Any) -> None:
        await self._store.batch(collection, operations[:1], **how)
        raise StoreUnavailable("the server died")


async def test_interrupted_replacement_keeps_the_old_vectors(world: World) -> None:
    """If the write is not repeated, nothing adds the old vectors again."""
    settings, store = replace(world.agent.settings, working_memory_slots=1), InterruptsBatches(world.agent.store)
    wordless: Any = replace(world.agent, keyword=None, settings=settings, store=store)
    old, new = (IncomingMemory(user_id="u", session_id="s", content=c, vector=vector_of(c)) for c in ("old", "new"))
    await world.working.store(world.agent, old)

    with pytest.raises(StoreUnavailable):
        await world.working.store(wordless, new)

    is_old: Json = {"key": "content", "match": {"value": "old"}}
    wordless_filter: Json = {"must": [is_old], "must_not": [{"has_vector": KEYWORD_VECTOR}]}
    assert await world.agent.store.count(world.agent.alias, wordless_filter) == 0


async def import_over_tombstone(world: World, wordless: World, line: ImportLine) -> Any:
    """Import a line over the tombstone of its id that an earlier version left with vectors."""
    assert line.id is not None
    await delete_head(world.agent, line.id, user_id="u")
    update = {"update_vectors": {"points": [{"id": line.id, "vector": BOTH}]}}
    await world.agent.store.batch(world.agent.alias, [update])
    return await import_lines(wordless.agent, [line], can_restore_erased=True)
