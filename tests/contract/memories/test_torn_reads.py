"""Deletions between the moment at which the engine finds a point and the moment at which it reads the payload.

Every search with prefetches has this gap; for lists the engine guarantees no atomic read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.memories.hierarchy import TreeRequest, read_tree
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.stored_memories import delete_head, list_page
from agentmemory_operator.memories.transfer.exports import export_memories
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.search.counts import count_memories
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import EVERYTHING, World, list_request, search_request, vector_of

Operation = Callable[[World], Awaitable[Any]]

TYPES = (MemoryType("fact", 30), MemoryType("status", 30, supersede_by="subject"))
PLACE = Address(user_id="u", namespace=("a", "b"), key="gone")
OTHER = Address(user_id="u", namespace=("a", "b"), key="kept")


class Torn:
    """Splits each list and search into finding and reading, and runs `act` once in between."""

    def __init__(self, store: PointStore, act: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._act = act
        # Concurrent reads wait until `act` has ended.
        self._lock = asyncio.Lock()
        self.is_over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def scroll(self, collection: str, body: Json) -> tuple[list[Json], Any]:
        found, following = await self._store.scroll(collection, body | {"with_payload": False, "with_vector": False})
        return await self._read(collection, found, body), following

    async def query(self, collection: str, body: Json) -> list[Json]:
        found = await self._store.query(collection, body | {"with_payload": False})
        return await self._read(collection, found, body)

    async def query_batch(self, collection: str, bodies: Sequence[Json]) -> list[list[Json]]:
        answers = await self._store.query_batch(collection, [body | {"with_payload": False} for body in bodies])
        return [await self._read(collection, *answer) for answer in zip(answers, bodies, strict=True)]

    async def _read(self, collection: str, found: list[Json], body: Json) -> list[Json]:
        async with self._lock:
            if found and not self.is_over:
                self.is_over = True
                await self._act()
        body_by_id = {"filter": {"must": [{"has_id": [point["id"] for point in found]}]}, "limit": len(found) or 1}
        options = {key: value for key, value in body.items() if key in ("with_payload", "with_vector")}
        points, _ = await self._store.scroll(collection, body_by_id | options)
        read = {point["id"]: point for point in points}
        return [point | read[point["id"]] for point in found if point["id"] in read]


async def add_two(world: World) -> str:
    deleted = await world.add("gone", type="fact", created_at=1_000)
    await world.add("kept", type="fact", created_at=2_000)
    return deleted


async def add_duplicate(world: World) -> str:
    world.agent = replace(world.agent, settings=replace(world.agent.settings, deduplicate=True))
    return await world.add("gone", type="fact")


async def add_subject(world: World) -> str:
    return await world.add("gone", type="status", subject="ticket")


async def add_children(world: World) -> str:
    parent = await world.add("parent", type="fact", key="parent")
    return await world.add("gone", type="fact", parent_id=parent)


async def add_items(world: World) -> str:
    for address in (PLACE, OTHER):
        content = ItemContent(content=address.key, metadata={}, vector=vector_of(address.key))
        await world.items.put(world.agent, address, content)
    return (await world.items.get(world.agent, PLACE)).id


async def search(world: World) -> list[str]:
    answer = await world.recall.search(world.agent, search_request(vector=vector_of("gone")))
    return [found.record.content for found in answer.results]


async def search_explained(world: World) -> list[str]:
    answer = await world.recall.search(world.agent, search_request(vector=vector_of("gone"), explain=True))
    return [found.record.content for found in answer.results]


async def list_all(world: World) -> list[str]:
    return [record.content for record in (await list_page(world.agent, list_request(limit=100))).records]


async def list_pages(world: World) -> list[str]:
    found, cursor = [], None
    while True:
        page = await list_page(world.agent, list_request(limit=1, cursor=cursor))
        found += [record.content for record in page.records]
        if (cursor := page.next_cursor) is None:
            return found


async def export(world: World) -> list[str]:
    pages = export_memories(world.agent, "u", has_vectors=True)
    return [each.record.content async for page in pages for each in page]


async def keys(world: World) -> list[str]:
    page = await world.items.keys(world.agent, "u", namespace=("a", "b"), limit=10)
    return list(page.keys)


async def namespaces(world: World) -> int:
    return sum(size.items for size in await world.items.namespaces(world.agent, "u", prefix=("a",)))


async def store_again(world: World) -> str:
    stored = await world.try_add("gone", type="fact")
    return stored.event if isinstance(stored, StoredMemory) else repr(stored)


async def store_same_subject(world: World) -> str:
    stored = await world.try_add("new", type="status", subject="ticket")
    return stored.event if isinstance(stored, StoredMemory) else repr(stored)


async def children(world: World) -> list[str]:
    (parent,) = [row for row in await world.rows() if row.content == "parent"]
    tree = await read_tree(world.agent, parent.id, TreeRequest(user_id="u", depth=1, limit=10))
    return [node.record.content for node in tree.root.children]


async def read_oldest(world: World) -> int:
    found = await count_memories(world.agent, "u")
    return found.oldest or 0


CASES: dict[str, tuple[Operation, Operation, Any]] = {
    "a search": (add_two, search, ["kept"]),
    "a search that is explained": (add_two, search_explained, ["kept"]),
    "a list": (add_two, list_all, ["kept"]),
    "a list by pages": (add_two, list_pages, ["kept"]),
    "an export": (add_two, export, ["kept"]),
    "the keys of a namespace": (add_items, keys, ["kept"]),
    "the namespaces of a user": (add_items, namespaces, 1),
    "a duplicate": (add_duplicate, store_again, "ADD"),
    "a successor by subject": (add_subject, store_same_subject, "ADD"),
    "the children of a memory": (add_children, children, []),
    "the statistics of a user": (add_two, read_oldest, 2_000),
}


@pytest.mark.parametrize("name", CASES)
async def test_memory_deleted_midway_is_left_out(world: World, name: str) -> None:
    prepare, call, expected = CASES[name]
    world.set_ranking(replace(EVERYTHING, types=TYPES))
    deleted = await prepare(world)
    direct = World(world.agent, clock=world.clock)

    async def delete() -> None:
        if prepare is add_items:
            await direct.items.delete(direct.agent, PLACE)
        else:
            await delete_head(direct.agent, deleted, user_id="u")

    store: Any = Torn(world.agent.store, delete)
    result = await call(World(replace(world.agent, store=store), clock=world.clock))

    assert store.is_over
    assert result == expected
