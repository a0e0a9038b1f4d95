"""Counts of memories by type and state, over a real engine."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.search import counts as statistics
from agentmemory_operator.search import users
from agentmemory_operator.search.counts import count_memories
from agentmemory_operator.search.rules.memory_states import STATES
from agentmemory_operator.spec.expression.scoring_parameters import Confidence
from agentmemory_operator.spec.memory_types import MemoryType, Ttl
from tests.support.engine.agents import EVERYTHING, World

DAY_MS = 86_400_000
TYPES = (
    MemoryType("fact", half_life_days=365),
    MemoryType("decision", half_life_days=None),
    MemoryType("note", half_life_days=30, ttl=Ttl("Hard", 10)),
    MemoryType("event", half_life_days=30, ttl=Ttl("SoftUnlessUsed", 10)),
)


@pytest.fixture
def fading(world: World) -> World:
    """An agent whose memories lose confidence, with types that expire."""
    world.set_ranking(replace(EVERYTHING, model=Confidence(), types=TYPES))
    return world


async def counts(world: World, user_id: str | None = "u") -> dict[str, dict[str, int]]:
    found = await count_memories(world.agent, user_id)
    return {name: {str(state): count for state, count in states.items()} for name, states in found.types.items()}


async def test_types_are_counted_without_an_index(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memories are read page by page."""
    monkeypatch.setattr(statistics, "PAGE", 2)
    for number in range(5):
        await world.add(str(number), type="fact" if number % 2 else "task")
    counted = await counts(world)
    world.agent = replace(world.agent, settings=replace(world.agent.settings, indexes={}))

    assert await counts(world) == counted
    assert {name: states["active"] for name, states in counted.items()} == {"fact": 2, "task": 3}


async def test_types_beyond_the_limit_of_a_facet_are_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "PAGE", 2)
    for name in ("fact", "task", "decision"):
        await world.add(name, type=name)

    assert (await counts(world)).keys() == {"fact", "task", "decision"}


@pytest.mark.parametrize("allows_exact", [True, False])
async def test_too_many_reads_without_index_are_rejected(
    world: World, monkeypatch: pytest.MonkeyPatch, allows_exact: bool
) -> None:
    monkeypatch.setattr(statistics, "PAGE", 2)
    monkeypatch.setattr(statistics, "MAX_TYPE_READS", 5)
    settings = replace(world.agent.settings, indexes={})
    world.agent = replace(world.agent, settings=settings, allows_exact=allows_exact)
    for number in range(5):
        await world.add(str(number), type="task")
    assert (await counts(world))["task"]["active"] == 5

    await world.add("6", type="fact")

    with pytest.raises(RequestInvalid, match=r"^type: cannot be counted"):
        await counts(world)


async def test_every_memory_has_one_state(fading: World) -> None:
    now = fading.clock.now_ms()
    old = now - 20 * DAY_MS
    await fading.add("active")
    await fading.add("new", supersedes=await fading.add("old"))
    await fading.add("ended", expires_at=now + 1)
    await fading.add("past", type="note", created_at=old)
    await fading.add("unseen", type="event", created_at=old)
    await delete_head(fading.agent, await fading.add("deleted"), user_id="u")
    await fading.agent.store.set_payload(
        fading.agent.alias, {"pending": True}, {"must": [{"has_id": [await fading.add("broken off")]}]}
    )
    fading.clock.move(ms=2)

    assert await counts(fading) == {
        "event": {"hidden": 1},
        "fact": {"active": 2, "superseded": 1, "expired": 1, "pending": 1},
        "note": {"expired": 1},
    }


async def test_states_add_up_to_all_memories(fading: World) -> None:
    """The memories have all 64 combinations of the properties that decide the state."""
    now = fading.clock.now_ms()
    for number in range(64):
        bits = [bool(number >> place & 1) for place in range(6)]
        more: dict[str, Any] = {"expires_at": now + 1} if bits[0] else {}
        type_ = ("event" if bits[2] else "note") if bits[1] else "fact"
        memory_id = await fading.add(f"{number}", type=type_, created_at=now - 20 * DAY_MS * bits[3], **more)
        state_fields = {"supersededById": memory_id} if bits[4] else {}
        state_fields |= {"pending": True} if bits[5] else {}
        if state_fields:
            await fading.agent.store.set_payload(fading.agent.alias, state_fields, {"must": [{"has_id": [memory_id]}]})
    fading.clock.move(ms=2)

    found = await count_memories(fading.agent, "u")

    assert sum(found.of_state(state) for state in STATES) == 64
    assert found.of_state("active") == len(await fading.heads())


async def test_other_users_count_in_the_total_only(fading: World) -> None:
    await fading.add("mine")
    await fading.add("hers", user_id="v")
    await fading.add("everybody's", user_id="global")

    assert await counts(fading) == {"fact": {"active": 1}}
    assert await counts(fading, None) == {"fact": {"active": 3}}
    assert await counts(fading, "nobody") == {}


# Idle days, confidence, type, and whether less than half is left: 0.98 ** 34 = 0.503, 0.98 ** 35 = 0.493.
DECAY_CASES = [
    (34, None, "fact", False),
    (35, None, "fact", True),
    (35, None, "decision", False),
    (0, 0.49, "decision", True),
    (0, 0.5, "fact", False),
    (1, 0.5, "fact", True),
    (29, 0.9, "fact", False),
    (30, 0.9, "fact", True),
    (34, 1.0, "fact", False),
    (35, 1.0, "fact", True),
]


@pytest.mark.parametrize(("days", "confidence", "type_", "is_decayed"), DECAY_CASES)
async def test_memory_decays_below_half_confidence(
    fading: World, days: int, confidence: float | None, type_: str, is_decayed: bool
) -> None:
    await fading.add("m", type=type_, confidence=confidence, created_at=fading.clock.now_ms() - days * DAY_MS)

    assert (await count_memories(fading.agent, "u")).decayed == int(is_decayed)


async def test_recent_access_prevents_decay(fading: World) -> None:
    now = fading.clock.now_ms()
    memory_id = await fading.add("m", created_at=now - 90 * DAY_MS)
    await fading.agent.store.set_payload(
        fading.agent.alias, {"lastAccessedAt": now - DAY_MS}, {"must": [{"has_id": [memory_id]}]}
    )

    assert (await count_memories(fading.agent, "u")).decayed == 0


async def test_decay_is_none_beyond_the_read_limit(fading: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MAX_DECAY_READS", 1)
    monkeypatch.setattr(statistics, "PAGE", 1)
    await fading.add("a", confidence=0.1)
    first = await count_memories(fading.agent, "u")
    await fading.add("b")
    second = await count_memories(fading.agent, "u")

    assert (first.decayed, second.decayed) == (1, None)


async def test_oldest_and_newest_are_of_active_memories(fading: World) -> None:
    now = fading.clock.now_ms()
    for days, more in ((50, {}), (3, {}), (1, {"expires_at": now + 1})):
        await fading.add(f"{days}", created_at=now - days * DAY_MS, **more)
    fading.clock.move(ms=2)

    found = await count_memories(fading.agent, "u")

    assert (found.oldest, found.newest) == (now - 50 * DAY_MS, now - 3 * DAY_MS)


async def test_decay_is_none_without_confidence_model(world: World) -> None:
    found = await count_memories(world.agent, None)

    assert (found.types, found.decayed, found.oldest, found.newest) == ({}, None, None, None)


@pytest.mark.parametrize("max_query_limit", [None, 3])
async def test_users_beyond_the_limit_of_a_facet_are_listed(
    world: World, monkeypatch: pytest.MonkeyPatch, max_query_limit: int | None
) -> None:
    """Names are left out of a facet only if the server allows no higher limit: that is slow with thousands of names."""
    monkeypatch.setattr(users, "USERS_PER_REQUEST", 2)
    world.set_ranking(replace(EVERYTHING, max_query_limit=max_query_limit))
    names = [f"user-{number}" for number in range(10)]
    for name in names:
        await world.add("note", user_id=name)
    filters: list[Any] = []
    facet = world.agent.store.facet
    monkeypatch.setattr(
        world.agent.store, "facet", lambda *call, **more: filters.append(str(call[2])) or facet(*call, **more)
    )

    page = await users.list_users(world.agent, limit=7)
    rest = await users.list_users(world.agent, limit=7, cursor=page.next_cursor)

    assert [user.user_id for user in (*page.users, *rest.users)] == names
    assert (page.total, page.is_truncated) == (10, False)
    assert any("user-" in filter_ for filter_ in filters) == (max_query_limit is not None)
