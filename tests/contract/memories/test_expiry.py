"""The time to live of a type: a filter of every search and list, computed from the current spec."""

import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.errors import NotFound
from agentmemory_operator.memories.rules.expiry import DAY_MS, is_expired_by_type
from agentmemory_operator.memories.stored_memories import delete_head, read_memory
from agentmemory_operator.spec.memory_types import MemoryType, Ttl
from tests.support.engine.agents import EVERYTHING, World, search_request, vector_of
from tests.support.engine.reused_agents import reuse_world

HARD, SOFT, UNLESS_USED = Ttl("Hard", 10), Ttl("Soft", 10), Ttl("SoftUnlessUsed", 10, 0.75)


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with reuse_world(qdrant_url) as world:
        yield world


def set_ttl(world: World, ttl: Ttl | None) -> None:
    world.set_ranking(replace(EVERYTHING, types=(MemoryType("fact", None, ttl=ttl), MemoryType("other", None))))


async def found(world: World, **more: Any) -> list[str]:
    request = search_request(user_id="u", vector=vector_of("query"), **more)
    return sorted(result.record.content for result in (await world.recall.search(world.agent, request)).results)


async def add_days_old(world: World, days: float, *, name: str = "", **more: Any) -> str:
    created_at = world.clock.now_ms() - round(days * DAY_MS)
    return await world.add(name or f"{days} days", type=more.pop("type", "fact"), created_at=created_at, **more)


@pytest.mark.parametrize("ttl", [HARD, SOFT, UNLESS_USED, Ttl("Session", 10)])
async def test_expired_memory_is_hidden(world: World, ttl: Ttl) -> None:
    set_ttl(world, None)
    for days in (9, 11):
        await add_days_old(world, days)
    await add_days_old(world, 11, name="of another type", type="other")

    set_ttl(world, ttl)

    assert await found(world) == ["9 days", "of another type"]
    assert sorted(await world.heads()) == ["9 days", "of another type"]
    assert await found(world, include_superseded=True) == ["9 days", "of another type"]


async def test_changed_ttl_affects_existing_memories(world: World) -> None:
    set_ttl(world, HARD)
    memory_id = await add_days_old(world, 11)
    assert await found(world) == []

    set_ttl(world, Ttl("Hard", 12))

    assert await found(world) == ["11 days"]
    assert (await read_memory(world.agent, memory_id, user_id="u")).id == memory_id


async def test_hard_expiry_applies_to_every_call(world: World) -> None:
    set_ttl(world, HARD)
    memory_id = await add_days_old(world, 11)

    with pytest.raises(NotFound):
        await read_memory(world.agent, memory_id, user_id="u")
    with pytest.raises(NotFound):
        await delete_head(world.agent, memory_id, user_id="u")
    with pytest.raises(NotFound):
        await world.add("new", type="fact", supersedes=memory_id)


async def test_soft_expiry_allows_reads_by_id(world: World) -> None:
    set_ttl(world, SOFT)
    memory_id = await add_days_old(world, 11)

    assert (await read_memory(world.agent, memory_id, user_id="u")).content == "11 days"


async def test_used_memory_does_not_expire(world: World) -> None:
    set_ttl(world, UNLESS_USED)
    await add_days_old(world, 9, name="used")
    assert await found(world) == ["used"]
    await add_days_old(world, 9, name="unused")
    await world.counts.flush()

    world.clock.move(ms=2 * DAY_MS)

    assert await found(world) == ["used"]


async def test_engine_filter_agrees_with_predicate(world: World) -> None:
    set_ttl(world, None)
    cases = list(itertools.product((9.99, 10, 10.01), (0.2, 0.5, 0.75, 1)))
    ids = [await add_days_old(world, days, name=f"{days} {level}", importance=level) for days, level in cases]
    await world.agent.store.set_payload(world.agent.alias, {"accessCount": 3}, {"must": [{"has_id": ids[::5]}]})
    unrated = {"delete_payload": {"keys": ["importance"], "filter": {"must": [{"has_id": ids[8:9]}]}}}
    await world.agent.store.batch(world.agent.alias, [unrated])
    points = await world.agent.store.retrieve(world.agent.alias, ids)

    for ttl in (HARD, SOFT, UNLESS_USED, replace(UNLESS_USED, keep_importance=None), Ttl("Session")):
        set_ttl(world, ttl)
        now_ms = world.clock.now_ms()
        alive = [
            point["payload"]["content"] for point in points if not is_expired_by_type(point["payload"], ttl, now_ms)
        ]
        assert sorted(await world.heads()) == sorted(alive), ttl
