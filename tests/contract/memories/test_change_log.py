"""The change log of an agent: every change once, in order, whatever the writers' clocks and wherever they die."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from agentmemory_operator.collections.rules.epochs import Epoch
from agentmemory_operator.errors import RequestInvalid, StoreUnavailable
from agentmemory_operator.lifecycle.cleanup import Cleanup, purge_tombstones
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.cleanup_rules import build_rules
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.change_log import ChangesRequest, read_changes
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.change_entries import MAX_CLOCK_DIFFERENCE_MS, Change, decode_position
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.stored_memories import change_head, delete_head
from tests.support.engine.agents import World, create_copy, delete_collection, move_alias, open_world, vector_of

WRITE_S = 16.0
SETTLED_MS = round(WRITE_S * 1000) + MAX_CLOCK_DIFFERENCE_MS


@pytest.fixture
def logged(world: World) -> World:
    """An agent as the API opens it: a write may take a while."""
    world.agent = replace(world.agent, write_s=WRITE_S)
    return world


@pytest.fixture
async def own(qdrant_url: str) -> AsyncIterator[World]:
    """The same with a collection of its own."""
    async with open_world(qdrant_url) as world:
        world.agent = replace(world.agent, write_s=WRITE_S)
        yield world


async def read(world: World, cursor: str | None = None, *, limit: int = 100, **more: Any) -> tuple[list[Change], str]:
    page = await read_changes(world.agent, ChangesRequest(limit=limit, cursor=cursor, **more))
    return list(page.changes), page.next_cursor


async def settled(world: World, cursor: str | None = None, **more: Any) -> list[tuple[str, str]]:
    """Return kind and id of what is in the log once it is complete up to now."""
    world.clock.move(ms=SETTLED_MS)
    found, _ = await read(world, cursor, **more)
    return [(change.kind, change.id) for change in found]


async def test_each_change_is_in_the_log_and_accesses_are_not(logged: World) -> None:
    world = logged
    first = await world.add("tea")
    world.clock.move(ms=1)
    second = await world.add("coffee", supersedes=first)
    world.clock.move(ms=1)
    plain = await world.add("likes walks")
    world.clock.move(ms=1)
    gone = await world.add("a slip")
    world.clock.move(ms=1)
    await delete_head(world.agent, gone, user_id="u")
    assert await settled(world) == [
        ("superseded", first),
        ("stored", second),
        ("stored", plain),
        ("deleted", gone),
    ]
    _, cursor = await read(world)
    world.counts.note(world.agent.settings.slug, [second, plain])
    await world.counts.flush()
    assert await settled(world, cursor) == []
    await change_head(world.agent, plain, {"importance": 0.9}, user_id="u")
    await delete_head(world.agent, second, user_id="u")
    assert sorted(await settled(world, cursor)) == sorted([("stored", plain), ("deleted", second), ("stored", first)])


async def test_what_was_stored_and_superseded_between_two_looks_shows_both(logged: World) -> None:
    _, cursor = await read(logged)
    old = await logged.add("lives in Rome")
    new = await logged.add("lives in Oslo", supersedes=old)
    assert sorted(await settled(logged, cursor)) == sorted([("superseded", old), ("stored", new)])


async def test_items_and_corroborations_are_changes(logged: World) -> None:
    world = logged
    address = Address(user_id="u", namespace=("memories", "u"), key="k")
    put = await world.items.put(world.agent, address, ItemContent(content="one", vector=vector_of("one")))
    _, cursor = await read(world)
    assert await settled(world, cursor) == [("stored", put.memory_id)]
    _, cursor = await read(world)
    await world.items.put(world.agent, address, ItemContent(content="two", vector=vector_of("two")))
    assert await settled(world, cursor) == [("stored", put.memory_id)]
    _, cursor = await read(world)
    await world.items.delete(world.agent, address)
    assert await settled(world, cursor) == [("deleted", put.memory_id)]


async def test_a_cleanup_is_told_from_a_deletion(logged: World) -> None:
    world = logged
    expired = await world.add("for a day", expires_at=world.clock.now_ms() + 1000)
    _, cursor = await read(world)
    world.clock.move(ms=90 * 86_400_000)
    lifecycle = replace(world.agent.settings.lifecycle, max_removal_percent=100)
    rules = build_rules(lifecycle, world.agent.settings.ranking, world.clock.now_ms())
    await Cleanup(world.clock, min_rest_s=0).run(world.agent, rules)
    assert await settled(world, cursor) == [("expired", expired)]


async def test_a_forgotten_user_leaves_one_entry_that_names_nobody(logged: World) -> None:
    world = logged
    first = await world.add("tea")
    await world.add("coffee", supersedes=first)
    await delete_head(world.agent, await world.add("a slip"), user_id="u")
    other = await world.add("of somebody else", user_id="v")
    # What is of one moment lies in the order of its ids.
    world.clock.move(ms=1)
    receipt = await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    world.clock.move(ms=SETTLED_MS)
    found, _ = await read(world)
    assert [(change.kind, change.id, change.user_id) for change in found] == [
        ("stored", other, "v"),
        ("forgotten", receipt.id, None),
    ]
    # Who knows the name finds the entry; of others it is none.
    assert await settled(world, user_id="u") == [("forgotten", receipt.id)]
    assert await settled(world, user_id="v") == [("stored", other)]


async def test_pages_leave_nothing_out_where_many_changes_are_of_one_moment(logged: World) -> None:
    world = logged
    ids = [await world.add(f"memory {number}") for number in range(7)]
    world.clock.move(ms=1)
    ids += [await world.add(f"later {number}") for number in range(4)]
    world.clock.move(ms=SETTLED_MS)
    for limit in (1, 2, 3, 5, 7, 8, 11, 12):
        seen: list[str] = []
        cursor: str | None = None
        for _ in range(20):
            found, cursor = await read(world, cursor, limit=limit)
            assert len(found) <= limit
            seen += [change.id for change in found]
        assert len(seen) == len(set(seen)) == 11
        assert set(seen[:7]) == set(ids[:7])
        assert seen[:7] == sorted(seen[:7])


async def test_the_cursor_stands_still_where_nothing_changed_and_is_never_missing(logged: World) -> None:
    empty, cursor = await read(logged)
    assert (empty, (await read(logged, cursor))[1]) == ([], cursor)
    memory = await logged.add("tea")
    assert (await read(logged, cursor))[0] == []
    assert await settled(logged, cursor) == [("stored", memory)]


@pytest.mark.parametrize("cursor", ["", "x", "e30=", "W10=", "bnVsbA==", "WzEsMiwzLCJpZCIsInNlYWwiXQ==", "é" * 300])
async def test_what_is_no_cursor_is_refused(logged: World, cursor: str) -> None:
    with pytest.raises(RequestInvalid, match="not a cursor of this agent's changes"):
        await read(logged, cursor)


async def test_a_cursor_of_another_agent_is_refused(logged: World) -> None:
    _, cursor = await read(logged)
    slug = logged.agent.settings.slug
    assert decode_position(cursor, slug) is not None
    assert decode_position(cursor, f"{slug}x") is None


def move(world: World, *, number: int, contents: int = 0) -> int:
    """Let the alias lead to another collection; return the number of the change."""
    world.agent = replace(world.agent, epoch=Epoch(number=number, contents=contents))
    return number


def restore(world: World) -> int:
    return move(world, number=world.clock.now_ms(), contents=world.clock.now_ms())


async def test_another_collection_behind_the_alias_is_an_entry_and_cursors_go_on(logged: World) -> None:
    world = logged
    before = await world.add("before")
    world.clock.move(ms=SETTLED_MS)
    _, cursor = await read(world)
    rebuilt = move(world, number=world.clock.now_ms())
    world.clock.move(ms=1)
    after = await world.add("after")
    assert await settled(world, cursor) == [("rebuilt", str(rebuilt)), ("stored", after)]
    _, cursor = await read(world, cursor)
    restored = restore(world)
    world.clock.move(ms=SETTLED_MS)
    found, over = await read(world, cursor)
    assert [(change.kind, change.at) for change in found] == [("restored", restored)]
    assert await settled(world, over) == []
    # Another process may not know of it yet.
    move(world, number=rebuilt)
    assert await settled(world, cursor) == await settled(world, over) == []
    move(world, number=restored, contents=restored)
    # Who begins has nothing to read again.
    assert await settled(world) == [("stored", before), ("stored", after)]


async def test_a_restore_has_its_place_among_the_changes_by_its_time(logged: World) -> None:
    world = logged
    _, cursor = await read(world)
    memory = await world.add("tea", user_id="v")
    world.clock.move(ms=1_000)
    receipt = await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    world.clock.move(ms=1_000)
    restored = restore(world)
    world.clock.move(ms=1_000)
    later = await world.add("coffee", user_id="v")
    world.clock.move(ms=SETTLED_MS - 2_000)
    found, _ = await read(world, cursor)
    assert [change.kind for change in found] == ["stored", "forgotten"], "earlier changes could follow the restore yet"
    told = [("stored", memory), ("forgotten", receipt.id), ("restored", str(restored)), ("stored", later)]
    assert await settled(world, cursor) == told
    for limit in (1, 2, 3, 4):
        seen, next_cursor = [], cursor
        while (page := await read(world, next_cursor, limit=limit))[0]:
            next_cursor = page[1]
            seen += [(change.kind, change.id) for change in page[0]]
        assert seen == told


async def test_a_restore_that_a_wrong_clock_put_into_the_future_is_told_all_the_same(logged: World) -> None:
    world = logged
    _, cursor = await read(world)
    memory = await world.add("tea")
    number = move(world, number=world.clock.now_ms() + 10**9, contents=1)
    assert await settled(world, cursor) == [("stored", memory), ("restored", str(number))]


async def test_the_log_goes_where_the_points_go(own: World, qdrant_url: str) -> None:
    world = own
    first = await world.add("tea")
    second = await world.add("coffee", supersedes=first)
    told = await settled(world)
    _, cursor = await read(world)
    points, _ = await world.agent.store.scroll(
        world.agent.alias, {"limit": 100, "with_payload": True, "with_vector": True}
    )
    physical = await create_copy(qdrant_url, world.agent.settings, keyword=None)
    await world.agent.store.upsert(physical, points)
    await move_alias(qdrant_url, world.agent.settings, physical)
    assert await settled(world) == told
    assert await settled(world, cursor) == []
    assert {first, second} == {id_ for _, id_ in told}
    await delete_collection(qdrant_url, world.agent.settings, number=2)


async def test_tombstones_that_are_purged_leave_the_log(logged: World) -> None:
    gone = await logged.add("a slip")
    await delete_head(logged.agent, gone, user_id="u")
    assert await settled(logged) == [("deleted", gone)]
    await purge_tombstones(logged.agent, logged.clock.now_ms(), rest_s=0)
    assert await settled(logged) == []


async def test_without_its_index_the_log_says_what_is_missing(own: World, qdrant_url: str) -> None:
    physical = f"{own.agent.settings.alias}__1"
    async with aiohttp.request("DELETE", f"{qdrant_url}/collections/{physical}/index/loggedAt?wait=true") as answer:
        assert answer.status == 200
    with pytest.raises(StoreUnavailable, match="no index on 'loggedAt' yet"):
        await read(own)
