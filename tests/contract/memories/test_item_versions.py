"""Versions of items over a real engine: what puts replaced, kept in the item's own point."""

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
from agentmemory_operator.search.search import SearchRequest
from tests.support.engine.agents import World, vector_of

pytestmark = pytest.mark.usefixtures("keeps_vectors")

HOME = ("memories", "u")
ADDRESS = Address(user_id="u", namespace=HOME, key="k")


async def put(world: World, content: str, **more: Any) -> StoredItem:
    return await world.items.put(world.agent, ADDRESS, ItemContent(content=content, vector=vector_of(content), **more))


async def row_of(world: World, memory_id: str) -> Json:
    [point] = await world.agent.store.retrieve(world.agent.alias, [memory_id])
    return cast(Json, point["payload"])


def keeping(world: World, count: int) -> Agent:
    return replace(world.agent, settings=replace(world.agent.settings, keep_versions=count))


async def versions(world: World) -> list[str]:
    return [record.content for record in await world.items.versions(world.agent, ADDRESS)]


async def test_without_a_number_of_versions_none_is_kept(world: World) -> None:
    for content in "abc":
        stored = await put(world, content)

    assert await versions(world) == []
    assert "itemVersions" not in await row_of(world, stored.memory_id)


async def test_versions_are_what_puts_replaced_newest_first_and_no_more_than_asked_for(world: World) -> None:
    world.agent = keeping(world, 2)
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


async def test_a_smaller_number_hides_versions_at_once_and_the_next_put_removes_them(world: World) -> None:
    world.agent = keeping(world, 3)
    for content in "abcd":
        stored = await put(world, content)
    world.agent = keeping(world, 1)

    assert await versions(world) == ["c"]
    await put(world, "e")

    assert len((await row_of(world, stored.memory_id))["itemVersions"]) == 1


async def test_a_put_that_says_the_same_makes_no_version(world: World) -> None:
    world.agent = keeping(world, 3)
    for content, metadata in [("a", {}), ("a", {}), ("a", {"n": 1})]:
        await put(world, content, metadata=metadata)

    assert [record.metadata for record in await world.items.versions(world.agent, ADDRESS)] == [{}]


async def test_what_was_to_end_by_a_time_leaves_no_version(world: World) -> None:
    world.agent = keeping(world, 3)
    await put(world, "a")
    await put(world, "until soon", expires_at=world.clock.now_ms() + 10)
    await put(world, "c")

    assert await versions(world) == ["a"]


async def test_versions_are_no_larger_together_than_their_bound(world: World) -> None:
    world.agent = keeping(world, 20)
    for number in range(6):
        await put(world, str(number), metadata={"long": "x" * 100_000})

    assert await versions(world) == ["4", "3"]


async def test_versions_are_neither_found_nor_listed_nor_counted(world: World) -> None:
    world.agent = keeping(world, 3)
    for content in "abc":
        await put(world, content)

    request = SearchRequest(selection=Selection(user_id="u", include_superseded=True), vector=vector_of("a"), top_k=10)
    answer = await world.recall.search(world.agent, request)
    assert [hit.record.content for hit in answer.results] == ["c"]
    assert [row.content for row in await world.rows(include_superseded=True)] == ["c"]
    assert await count_stored(world.agent) == 1


async def test_no_answer_reads_the_versions_of_what_it_finds(world: World) -> None:
    world.agent = keeping(world, 3)
    await put(world, "a")
    await put(world, "b")
    seen: list[Json] = []

    class Seeing:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.agent.store, name)

        async def query(self, *arguments: Any) -> list[Json]:
            seen.extend(found := await world.agent.store.query(*arguments))
            return found

        async def scroll(self, *arguments: Any) -> Any:
            points, following = await world.agent.store.scroll(*arguments)
            seen.extend(points)
            return points, following

    looking = World(replace(world.agent, store=cast(PointStore, Seeing())), clock=world.clock)
    request = SearchRequest(selection=Selection(user_id="u"), vector=vector_of("a"))
    await looking.recall.search(looking.agent, request)
    await looking.rows()

    assert [point["payload"]["content"] for point in seen] == ["b", "b"]
    assert all("itemVersions" not in point["payload"] for point in seen)


@pytest.mark.parametrize("processes", [1, 3])
async def test_many_writers_leave_no_more_versions_than_asked_for_and_none_twice(world: World, processes: int) -> None:
    world.agent = keeping(world, 4)
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


async def test_a_deleted_item_leaves_no_version(world: World) -> None:
    world.agent = keeping(world, 3)
    for content in ("secret one", "secret two"):
        stored = await put(world, content)
    await world.items.delete(world.agent, ADDRESS)

    assert "secret" not in str(await row_of(world, stored.memory_id))
    await put(world, "again")
    assert await versions(world) == []


async def test_a_forgotten_user_leaves_no_version_even_of_an_item_that_is_being_put(world: World) -> None:
    world.agent = keeping(world, 3)
    await put(world, "secret")
    until_ms = world.clock.now_ms()
    world.clock.move(ms=10_000)
    # Between the time that an erasure takes and its first look: of a process whose clock is right.
    stored = await put(world, "later")
    erasure = Erasure(id=str(uuid.uuid4()), scope=ErasureScope(user_id="u", is_whole=True), until_ms=until_ms)

    await world.erasing.erase(world.agent, erasure)

    assert "secret" not in str(await row_of(world, stored.memory_id))


async def test_what_was_put_after_an_erasure_stays(world: World) -> None:
    world.agent = keeping(world, 3)
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


async def test_an_item_past_its_time_is_gone_for_every_call_and_begins_anew(world: World) -> None:
    world.agent = keeping(world, 5)
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
async def test_an_item_and_its_versions_are_numbered(world: World, keep: int) -> None:
    world.agent = keeping(world, keep)
    numbers = []
    for content in ("a", "a", "b", "c", "d"):
        await put(world, content)
        numbers.append(await number(world))

    kept = [record.item_version for record in await world.items.versions(world.agent, ADDRESS)]
    await put(world, "expires", expires_at=world.clock.now_ms() + 60_000)
    await put(world, "after")

    assert numbers == [1, 1, 2, 3, 4]
    assert kept == [3, 2][:keep]
    assert await number(world) == 6, "a replaced item with an end makes no version, and counts"
    await world.items.delete(world.agent, ADDRESS)
    await put(world, "anew")
    assert await number(world) == 1


async def test_writes_that_are_taken_together_count_each(world: World) -> None:
    await asyncio.gather(*(put(world, content) for content in "abcdef"))

    assert await number(world) == 6


async def test_an_item_from_before_numbers_counts_its_versions(world: World) -> None:
    world.agent = keeping(world, 5)
    for content in "abc":
        stored = await put(world, content)
    gone = {"keys": ["itemVersion"], "points": [stored.memory_id]}
    await world.agent.store.batch(world.agent.alias, [{"delete_payload": gone}])

    before = await number(world)
    await put(world, "d")

    assert (before, await number(world)) == (3, 4)
