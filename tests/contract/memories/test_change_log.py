"""The change log of an agent: entries, order, cursors, restores."""

from collections.abc import AsyncIterator, Sequence
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
from agentmemory_operator.memories.rules.change_entries import Change, Position, decode_position
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.rules.log_times import MAX_CLOCK_DIFFERENCE_MS
from agentmemory_operator.memories.stored_memories import change_head, delete_head
from agentmemory_operator.memories.zone_changes import change_zone
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.spec.zones import Zone, ZoneSettings
from agentmemory_operator.zones.keyring import AgentKeys, Keyring
from agentmemory_operator.zones.sealed_store import ZoneKeys
from tests.support.engine.agents import (
    FakeEmbedder,
    World,
    create_copy,
    delete_collection,
    move_alias,
    vector_of,
)
from tests.support.engine.reused_agents import reuse_world
from tests.support.zones import RING, FakeKeyShards, FakeWrapping

WRITE_S = 16.0
SETTLED_MS = round(WRITE_S * 1000) + MAX_CLOCK_DIFFERENCE_MS


@pytest.fixture
def logged(world: World) -> World:
    """Agent with the write timeout of the API."""
    world.agent = replace(world.agent, write_s=WRITE_S)
    return world


@pytest.fixture
async def own(qdrant_url: str) -> AsyncIterator[World]:
    """The same agent with a separate collection."""
    async with reuse_world(qdrant_url) as world:
        world.agent = replace(world.agent, write_s=WRITE_S)
        yield world


async def read(world: World, cursor: str | None = None, *, limit: int = 100, **more: Any) -> tuple[list[Change], str]:
    page = await read_changes(world.agent, ChangesRequest(limit=limit, cursor=cursor, **more))
    return list(page.changes), page.next_cursor


async def read_settled(world: World, cursor: str | None = None, **more: Any) -> list[tuple[str, str]]:
    """Wait until the log is complete up to now; return kind and id of each entry."""
    world.clock.move(ms=SETTLED_MS)
    found, _ = await read(world, cursor, **more)
    return [(change.kind, change.id) for change in found]


async def test_contains_changes_but_no_accesses(logged: World) -> None:
    world = logged
    first = await world.add("tea")
    world.clock.move(ms=1)
    second = await world.add("coffee", supersedes=first)
    world.clock.move(ms=1)
    plain = await world.add("likes walks")
    world.clock.move(ms=1)
    deleted = await world.add("a slip")
    world.clock.move(ms=1)
    await delete_head(world.agent, deleted, user_id="u")
    assert await read_settled(world) == [
        ("superseded", first),
        ("stored", second),
        ("stored", plain),
        ("deleted", deleted),
    ]
    _, cursor = await read(world)
    world.counts.note(world.agent.settings.slug, [second, plain])
    await world.counts.flush()
    assert await read_settled(world, cursor) == []
    await change_head(world.agent, plain, {"importance": 0.9}, user_id="u")
    await delete_head(world.agent, second, user_id="u")
    assert sorted(await read_settled(world, cursor)) == sorted(
        [("stored", plain), ("deleted", second), ("stored", first)]
    )


async def test_supersession_between_reads_shows_both(logged: World) -> None:
    _, cursor = await read(logged)
    old = await logged.add("lives in Rome")
    new = await logged.add("lives in Oslo", supersedes=old)
    assert sorted(await read_settled(logged, cursor)) == sorted([("superseded", old), ("stored", new)])


async def test_item_writes_are_changes(logged: World) -> None:
    world = logged
    address = Address(user_id="u", namespace=("memories", "u"), key="k")
    _, cursor = await read(world)
    put = await world.items.put(world.agent, address, ItemContent(content="one", vector=vector_of("one")))
    assert await read_settled(world, cursor) == [("stored", put.memory_id)]
    _, cursor = await read(world)
    await world.items.put(world.agent, address, ItemContent(content="two", vector=vector_of("two")))
    assert await read_settled(world, cursor) == [("stored", put.memory_id)]
    _, cursor = await read(world)
    await world.items.delete(world.agent, address)
    assert await read_settled(world, cursor) == [("deleted", put.memory_id)]


async def test_cleanup_is_logged_as_expiry(logged: World) -> None:
    world = logged
    expired = await world.add("for a day", expires_at=world.clock.now_ms() + 1000)
    _, cursor = await read(world)
    world.clock.move(ms=90 * 86_400_000)
    lifecycle = replace(world.agent.settings.lifecycle, max_removal_percent=100)
    rules = build_rules(lifecycle, world.agent.settings.ranking, world.clock.now_ms())
    await Cleanup(world.clock, min_pause_s=0).run(world.agent, rules)
    assert await read_settled(world, cursor) == [("expired", expired)]


async def test_erasure_is_one_anonymous_entry(logged: World) -> None:
    world = logged
    first = await world.add("tea")
    await world.add("coffee", supersedes=first)
    await delete_head(world.agent, await world.add("a slip"), user_id="u")
    other = await world.add("of somebody else", user_id="v")
    # Entries of equal time are ordered by id.
    world.clock.move(ms=1)
    receipt = await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    world.clock.move(ms=SETTLED_MS)
    found, _ = await read(world)
    assert [(change.kind, change.id, change.user_id) for change in found] == [
        ("stored", other, "v"),
        ("forgotten", receipt.id, None),
    ]
    # Only a reader who knows the user id finds the entry.
    assert await read_settled(world, user_id="u") == [("forgotten", receipt.id)]
    assert await read_settled(world, user_id="v") == [("stored", other)]


async def test_pages_are_complete_for_equal_times(logged: World) -> None:
    world = logged
    ids = [await world.add(f"memory {number}") for number in range(7)]
    world.clock.move(ms=1)
    ids += [await world.add(f"later {number}") for number in range(4)]
    world.clock.move(ms=SETTLED_MS)
    for limit in (1, 2, 3, 5, 7, 8, 11, 12):
        read_ids: list[str] = []
        cursor: str | None = None
        for _ in range(20):
            found, cursor = await read(world, cursor, limit=limit)
            assert len(found) <= limit
            read_ids += [change.id for change in found]
        assert len(read_ids) == len(set(read_ids)) == 11
        assert set(read_ids[:7]) == set(ids[:7])
        assert read_ids[:7] == sorted(read_ids[:7])


async def test_cursor_is_stable_without_changes(logged: World) -> None:
    empty, cursor = await read(logged)
    assert (empty, (await read(logged, cursor))[1]) == ([], cursor)
    memory = await logged.add("tea")
    found, cursor = await read(logged, cursor)
    assert [change.id for change in found] == [memory]
    assert await read(logged, cursor) == ([], cursor)
    assert await read_settled(logged, cursor) == []
    _, cursor = await read(logged, cursor)
    assert await read(logged, cursor) == ([], cursor)


@pytest.mark.parametrize("cursor", ["", "x", "e30=", "W10=", "bnVsbA==", "WzEsMiwzLCJpZCIsInNlYWwiXQ==", "é" * 300])
async def test_malformed_cursor_is_refused(logged: World, cursor: str) -> None:
    with pytest.raises(RequestInvalid, match="not a cursor of this agent's changes"):
        await read(logged, cursor)


@pytest.mark.parametrize("id_", ["x", "", "x" * 3_000], ids=["text", "empty", "long"])
async def test_forged_id_is_refused(logged: World, id_: str) -> None:
    """The checksum of a cursor has no secret. Qdrant would refuse an offset that is no id."""
    cursor = Position(logged.agent.epoch, 5, id_).encode(logged.agent.settings.slug)
    with pytest.raises(RequestInvalid, match="not a cursor of this agent's changes"):
        await read(logged, cursor)


async def test_cursor_of_other_agent_is_refused(logged: World) -> None:
    _, cursor = await read(logged)
    slug = logged.agent.settings.slug
    assert decode_position(cursor, slug) is not None
    assert decode_position(cursor, f"{slug}x") is None


async def test_same_time_does_not_hide_a_change(logged: World) -> None:
    """Each change of a memory has its own time, also if the writer's clock stands still or was set back."""
    world = logged
    memory = await world.add("tea")
    _, cursor = await read(world)
    for importance in (0.1, 0.2):
        await change_head(world.agent, memory, {"importance": importance}, user_id="u")
        found, cursor = await read(world, cursor)
        assert [(change.kind, change.id) for change in found] == [("stored", memory)]
    world.clock.move(ms=-MAX_CLOCK_DIFFERENCE_MS // 2)
    await delete_head(world.agent, memory, user_id="u")
    found, _ = await read(world, cursor)
    assert [(change.kind, change.id) for change in found] == [("deleted", memory)]


async def test_slow_embedding_of_a_zone_move_loses_no_entry(logged: World) -> None:
    """Readers pass the time at which the move began before it is written."""
    world = logged
    keys = ZoneKeys(Keyring(FakeKeyShards(), world.clock), AgentKeys(RING, FakeWrapping()), "bot", "acme")
    zones = ZoneSettings(allowed=frozenset(Zone), vectors=frozenset(), secret_name="k")
    world.agent = replace(world.agent, zone_keys=keys, settings=replace(world.agent.settings, zones=zones))
    memory = await world.add("tea", zone="SENSITIVE", vector=None)
    _, cursor = await read(world)
    world.clock.move(ms=SETTLED_MS)
    other = await world.add("coffee")

    class SlowEmbedder(FakeEmbedder):
        async def embed(self, texts: Sequence[str]) -> list[Vector]:
            nonlocal cursor
            world.clock.move(ms=SETTLED_MS + 1)
            found, cursor = await read(world, cursor)
            assert [change.id for change in found] == [other]
            return await super().embed(texts)

    world.set_embedder(SlowEmbedder())
    await change_zone(world.agent, memory, None, user_id="u", is_admin=True)

    found, _ = await read(world, cursor)
    assert [(change.kind, change.id) for change in found] == [("stored", memory)]


async def test_strict_page_limit_does_not_stop_a_reader(logged: World) -> None:
    """Recent entries that the reader has fill more than one page of Qdrant."""
    world = logged
    ids = [await world.add(f"memory {number}") for number in range(7)]
    ranking = replace(world.agent.settings.ranking, max_query_limit=3)
    world.set_ranking(ranking)
    read_ids: list[str] = []
    cursor: str | None = None
    for _ in range(4):
        found, cursor = await read(world, cursor)
        read_ids += [change.id for change in found]
    late = await world.add("late")
    found, cursor = await read(world, cursor)
    assert sorted(read_ids) == sorted(ids)
    assert [change.id for change in found] == [late]


def move(world: World, *, number: int, contents: int = 0) -> int:
    """Switch the alias to another collection; return the number of the epoch."""
    world.agent = replace(world.agent, epoch=Epoch(number=number, contents=contents))
    return number


def restore(world: World) -> int:
    return move(world, number=world.clock.now_ms(), contents=world.clock.now_ms())


async def test_alias_switch_is_an_entry(logged: World) -> None:
    """Cursors stay valid."""
    world = logged
    before = await world.add("before")
    world.clock.move(ms=SETTLED_MS)
    _, cursor = await read(world)
    rebuilt = move(world, number=world.clock.now_ms())
    world.clock.move(ms=1)
    after = await world.add("after")
    assert await read_settled(world, cursor) == [("rebuilt", str(rebuilt)), ("stored", after)]
    _, cursor = await read(world, cursor)
    restored = restore(world)
    world.clock.move(ms=SETTLED_MS)
    found, next_cursor = await read(world, cursor)
    assert [(change.kind, change.at) for change in found] == [("restored", restored)]
    assert await read_settled(world, next_cursor) == []
    # Another process may still use the old epoch.
    move(world, number=rebuilt)
    assert await read_settled(world, cursor) == await read_settled(world, next_cursor) == []
    move(world, number=restored, contents=restored)
    # A reader without a cursor gets no entries for the moves.
    assert await read_settled(world) == [("stored", before), ("stored", after)]


async def test_restore_is_ordered_by_time(logged: World) -> None:
    world = logged
    _, cursor = await read(world)
    memory = await world.add("tea", user_id="v")
    world.clock.move(ms=1_000)
    receipt = await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    world.clock.move(ms=1_000)
    restored = restore(world)
    world.clock.move(ms=1_000)
    later = await world.add("coffee", user_id="v")
    found, _ = await read(world, cursor)
    expected = [("stored", memory), ("forgotten", receipt.id), ("restored", str(restored)), ("stored", later)]
    assert [(change.kind, change.id) for change in found] == expected
    assert await read_settled(world, cursor) == expected
    for limit in (1, 2, 3, 4):
        entries, next_cursor = [], cursor
        while (page := await read(world, next_cursor, limit=limit))[0]:
            next_cursor = page[1]
            entries += [(change.kind, change.id) for change in page[0]]
        assert entries == expected


async def test_restore_dated_in_the_future_is_reported(logged: World) -> None:
    world = logged
    _, cursor = await read(world)
    memory = await world.add("tea")
    number = move(world, number=world.clock.now_ms() + 10**9, contents=1)
    assert await read_settled(world, cursor) == [("stored", memory), ("restored", str(number))]


async def test_log_is_copied_with_the_points(own: World, qdrant_url: str) -> None:
    world = own
    first = await world.add("tea")
    second = await world.add("coffee", supersedes=first)
    before = await read_settled(world)
    _, cursor = await read(world)
    points, _ = await world.agent.store.scroll(
        world.agent.alias, {"limit": 100, "with_payload": True, "with_vector": True}
    )
    physical = await create_copy(qdrant_url, world.agent.settings, keyword=None)
    await world.agent.store.upsert(physical, points)
    await move_alias(qdrant_url, world.agent.settings, physical)
    assert await read_settled(world) == before
    assert await read_settled(world, cursor) == []
    assert {first, second} == {id_ for _, id_ in before}
    await delete_collection(qdrant_url, world.agent.settings, number=2)


async def test_purged_tombstones_leave_the_log(logged: World) -> None:
    deleted = await logged.add("a slip")
    await delete_head(logged.agent, deleted, user_id="u")
    assert await read_settled(logged) == [("deleted", deleted)]
    await purge_tombstones(logged.agent, logged.clock.now_ms(), pause_s=0)
    assert await read_settled(logged) == []


async def test_missing_index_is_reported(own: World, qdrant_url: str) -> None:
    physical = f"{own.agent.settings.alias}__1"
    async with aiohttp.request("DELETE", f"{qdrant_url}/collections/{physical}/index/loggedAt?wait=true") as answer:
        assert answer.status == 200
    with pytest.raises(StoreUnavailable, match="no index on 'loggedAt' yet"):
        await read(own)
