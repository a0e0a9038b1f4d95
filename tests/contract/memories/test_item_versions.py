"""Versions of items: the contents that puts have replaced, kept in the point of the item."""

import asyncio
import uuid
from dataclasses import replace
from typing import Any, cast

import pytest

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import NotFound
from agentmemory_operator.lifecycle.erase import Erasure
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.item_store import Items, StoredItem
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.filters import Selection
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.stored_memories import count_stored
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.search.requests import SearchRequest
from tests.support.engine.agents import World, vector_of

pytestmark = pytest.mark.usefixtures("keeps_vectors")

HOME = ("memories", "u")
ADDRESS = Address(user_id="u", namespace=HOME, key="k")


async def put(world: World, content: str, **more: Any) -> StoredItem:
    return await world.items.put(world.agent, ADDRESS, ItemContent(content=content, vector=vector_of(content), **more))


async def row_of(world: World, memory_id: str) -> Json:
    [point] = await world.agent.store.retrieve(world.agent.alias, [memory_id])
    return cast(Json, point["payload"])


def with_versions(world: World, count: int) -> Agent:
    return replace(world.agent, settings=replace(world.agent.settings, keep_versions=count))


async def versions(world: World) -> list[str]:
    return [record.content for record in await world.items.versions(world.agent, ADDRESS)]


async def test_none_are_kept_by_default(world: World) -> None:
    for content in "abc":
        stored = await put(world, content)

    assert await versions(world) == []
    assert "itemVersions" not in await row_of(world, stored.memory_id)


async def test_replaced_items_are_listed_newest_first(world: World) -> None:
    world.agent = with_versions(world, 2)
    for content in "abcd":
        await put(world, content, metadata={"of": content}, tags=(content,))
        world.clock.move(ms=10)

    now_ms = world.clock.now_ms()
    newest, oldest = await world.items.versions(world.agent, ADDRESS)
    assert [(each.content, each.metadata, each.tags) for each in (newest, oldest)] == [
        ("c", {"of": "c"}, ("c",)),
        ("b", {"of": "b"}, ("b",)),
    ]
    assert (newest.valid_from, newest.valid_to, newest.superseded_at) == (now_ms - 20, now_ms - 10, now_ms - 10)
    assert (newest.key, newest.namespace, newest.id) == ("k", HOME, (await world.items.get(world.agent, ADDRESS)).id)


async def test_lower_limit_hides_older_versions(world: World) -> None:
    """The next put removes the hidden versions."""
    world.agent = with_versions(world, 3)
    for content in "abcd":
        stored = await put(world, content)
    world.agent = with_versions(world, 1)

    assert await versions(world) == ["c"]
    await put(world, "e")

    assert len((await row_of(world, stored.memory_id))["itemVersions"]) == 1


async def test_identical_put_creates_no_version(world: World) -> None:
    world.agent = with_versions(world, 3)
    for content, metadata in [("a", {}), ("a", {}), ("a", {"n": 1})]:
        await put(world, content, metadata=metadata)

    assert [record.metadata for record in await world.items.versions(world.agent, ADDRESS)] == [{}]


async def test_expiring_item_leaves_no_version(world: World) -> None:
    world.agent = with_versions(world, 3)
    await put(world, "a")
    await put(world, "until soon", expires_at=world.clock.now_ms() + 10)
    await put(world, "c")

    assert await versions(world) == ["a"]


async def test_total_size_is_bounded(world: World) -> None:
    world.agent = with_versions(world, 20)
    for number in range(6):
        await put(world, str(number), metadata={"long": "x" * 100_000})

    assert await versions(world) == ["4", "3"]


async def test_are_not_searched_listed_or_counted(world: World) -> None:
    world.agent = with_versions(world, 3)
    for content in "abc":
        await put(world, content)

    request = SearchRequest(selection=Selection(user_id="u", include_superseded=True), vector=vector_of("a"), top_k=10)
    answer = await world.recall.search(world.agent, request)
    assert [hit.record.content for hit in answer.results] == ["c"]
    assert [row.content for row in await world.rows(include_superseded=True)] == ["c"]
    assert await count_stored(world.agent) == 1


async def test_searches_and_lists_do_not_read_them(world: World) -> None:
    world.agent = with_versions(world, 3)
    await put(world, "a")
    await put(world, "b")
    points_read: list[Json] = []

    class RecordingStore:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.agent.store, name)

        async def query(self, *arguments: Any) -> list[Json]:
            points_read.extend(found := await world.agent.store.query(*arguments))
            return found

        async def scroll(self, *arguments: Any) -> Any:
            points, following = await world.agent.store.scroll(*arguments)
            points_read.extend(points)
            return points, following

    reader = World(replace(world.agent, store=cast(PointStore, RecordingStore())), clock=world.clock)
    request = SearchRequest(selection=Selection(user_id="u"), vector=vector_of("a"))
    await reader.recall.search(reader.agent, request)
    await reader.rows()

    assert [point["payload"]["content"] for point in points_read] == ["b", "b"]
    assert all("itemVersions" not in point["payload"] for point in points_read)


@pytest.mark.parametrize("processes", [1, 3])
async def test_concurrent_writers_respect_the_limit(world: World, processes: int) -> None:
    world.agent = with_versions(world, 4)
    others = [Items(world.clock) for _ in range(processes)]

    async def write(number: int) -> StoredItem:
        content = str(number)
        item = ItemContent(content=content, vector=vector_of(content))
        return await others[number % processes].put(world.agent, ADDRESS, item)

    stored = await asyncio.gather(*map(write, range(60)))

    last = (await world.items.get(world.agent, ADDRESS)).content
    kept = await versions(world)
    assert len(kept) == 4
    assert len({last, *kept}) == 5
    assert len({each.memory_id for each in stored}) == 1


async def test_deleted_item_leaves_no_version(world: World) -> None:
    world.agent = with_versions(world, 3)
    for content in ("secret one", "secret two"):
        stored = await put(world, content)
    await world.items.delete(world.agent, ADDRESS)

    assert "secret" not in str(await row_of(world, stored.memory_id))
    await put(world, "again")
    assert await versions(world) == []


async def test_erasure_covers_item_put_meanwhile(world: World) -> None:
    world.agent = with_versions(world, 3)
    await put(world, "secret")
    until_ms = world.clock.now_ms()
    world.clock.move(ms=10_000)
    # This item is put after the time of the erasure and before its first read, by a process with a correct clock.
    stored = await put(world, "later")
    erasure = Erasure(id=str(uuid.uuid4()), scope=ErasureScope(user_id="u", is_whole=True), until_ms=until_ms)

    await world.erasing.erase(world.agent, erasure)

    assert "secret" not in str(await row_of(world, stored.memory_id))


async def test_put_after_erasure_is_kept(world: World) -> None:
    world.agent = with_versions(world, 3)
    await put(world, "secret")
    erasure = Erasure(
        id=str(uuid.uuid4()), scope=ErasureScope(user_id="u", is_whole=True), until_ms=world.clock.now_ms()
    )
    await world.erasing.erase(world.agent, erasure)
    world.clock.move(ms=10_000)
    for content in ("new", "newer"):
        await put(world, content)

    await world.erasing.erase(world.agent, erasure)

    assert ((await world.items.get(world.agent, ADDRESS)).content, await versions(world)) == ("newer", ["new"])


async def test_expired_item_is_not_found(world: World) -> None:
    """The next put creates the item again, without versions."""
    world.agent = with_versions(world, 5)
    await put(world, "old")
    stored = await put(world, "c", expires_at=world.clock.now_ms() + 10)
    world.clock.move(ms=10)

    with pytest.raises(NotFound):
        await world.items.get(world.agent, ADDRESS)
    with pytest.raises(NotFound):
        await world.items.versions(world.agent, ADDRESS)
    assert await world.heads() == []
    assert (await world.items.keys(world.agent, "u", namespace=HOME, limit=10)).keys == ()

    again = await put(world, "d")
    record = await world.items.get(world.agent, ADDRESS)
    assert (again.memory_id, again.outcome, record.created_at) == (stored.memory_id, "created", world.clock.now_ms())
    assert await versions(world) == []


async def number(world: World) -> int | None:
    return (await world.items.get(world.agent, ADDRESS)).item_version


@pytest.mark.parametrize("keep", [0, 2])
async def test_items_and_versions_are_numbered(world: World, keep: int) -> None:
    world.agent = with_versions(world, keep)
    numbers = []
    for content in ("a", "a", "b", "c", "d"):
        await put(world, content)
        numbers.append(await number(world))

    kept = [record.item_version for record in await world.items.versions(world.agent, ADDRESS)]
    await put(world, "expires", expires_at=world.clock.now_ms() + 60_000)
    await put(world, "after")

    assert numbers == [1, 1, 2, 3, 4]
    assert kept == [3, 2][:keep]
    assert await number(world) == 6, "a replaced item that expires creates no version, but is numbered"
    await world.items.delete(world.agent, ADDRESS)
    await put(world, "anew")
    assert await number(world) == 1


async def test_combined_writes_count_separately(world: World) -> None:
    await asyncio.gather(*(put(world, content) for content in "abcdef"))

    assert await number(world) == 6


async def test_unnumbered_item_counts_its_versions(world: World) -> None:
    world.agent = with_versions(world, 5)
    for content in "abc":
        stored = await put(world, content)
    number_key = {"keys": ["itemVersion"], "points": [stored.memory_id]}
    await world.agent.store.batch(world.agent.alias, [{"delete_payload": number_key}])

    before = await number(world)
    await put(world, "d")

    assert (before, await number(world)) == (3, 4)
