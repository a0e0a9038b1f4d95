"""Counts of memories by type and state, over a real engine."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.search import counts as statistics
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
def brain(world: World) -> World:
    """Return an agent whose confidence fades, with types that end."""
    world.set_ranking(replace(EVERYTHING, model=Confidence(), types=TYPES))
    return world


async def counts(world: World, user_id: str | None = "u") -> dict[str, dict[str, int]]:
    found = await count_memories(world.agent, user_id)
    return {name: {str(state): count for state, count in states.items()} for name, states in found.types.items()}


async def test_without_an_index_of_types_the_memories_are_read_page_by_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "PAGE", 2)
    for number in range(5):
        await world.add(str(number), type="fact" if number % 2 else "task")
    counted = await counts(world)
    world.agent = replace(world.agent, settings=replace(world.agent.settings, indexes={}))

    assert await counts(world) == counted
    assert {name: states["active"] for name, states in counted.items()} == {"fact": 2, "task": 3}


@pytest.mark.parametrize("allows_exact", [True, False])
async def test_without_an_index_of_types_very_many_memories_are_not_read(
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


async def test_every_memory_is_in_one_state(brain: World) -> None:
    now = brain.clock.now_ms()
    old = now - 20 * DAY_MS
    await brain.add("active")
    await brain.add("new", supersedes=await brain.add("old"))
    await brain.add("ended", expires_at=now + 1)
    await brain.add("past", type="note", created_at=old)
    await brain.add("unseen", type="event", created_at=old)
    await delete_head(brain.agent, await brain.add("deleted"), user_id="u")
    await brain.agent.store.set_payload(
        brain.agent.alias, {"pending": True}, {"must": [{"has_id": [await brain.add("broken off")]}]}
    )
    brain.clock.move(ms=2)

    assert await counts(brain) == {
        "event": {"hidden": 1},
        "fact": {"active": 2, "superseded": 1, "expired": 1, "pending": 1},
        "note": {"expired": 1},
    }


async def test_the_states_are_all_that_is_stored(brain: World) -> None:
    """Of every mixture of what decides the state."""
    now = brain.clock.now_ms()
    for number in range(64):
        bits = [bool(number >> place & 1) for place in range(6)]
        more: dict[str, Any] = {"expires_at": now + 1} if bits[0] else {}
        type_ = ("event" if bits[2] else "note") if bits[1] else "fact"
        memory_id = await brain.add(f"{number}", type=type_, created_at=now - 20 * DAY_MS * bits[3], **more)
        marks = {"supersededById": memory_id} if bits[4] else {}
        marks |= {"pending": True} if bits[5] else {}
        if marks:
            await brain.agent.store.set_payload(brain.agent.alias, marks, {"must": [{"has_id": [memory_id]}]})
    brain.clock.move(ms=2)

    found = await count_memories(brain.agent, "u")

    assert sum(found.of_state(state) for state in STATES) == 64
    assert found.of_state("active") == len(await brain.heads())


async def test_another_user_counts_only_in_the_agents_total(brain: World) -> None:
    await brain.add("mine")
    await brain.add("hers", user_id="v")
    await brain.add("everybody's", user_id="global")

    assert await counts(brain) == {"fact": {"active": 1}}
    assert await counts(brain, None) == {"fact": {"active": 3}}
    assert await counts(brain, "nobody") == {}


# Days idle, confidence, type -> whether less than half is left: .98 ** 34 = .503, .98 ** 35 = .493.
DECAYED = [
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


@pytest.mark.parametrize(("days", "confidence", "type_", "decayed"), DECAYED)
async def test_a_memory_has_decayed_once_less_than_half_is_left(
    brain: World, days: int, confidence: float | None, type_: str, decayed: bool
) -> None:
    await brain.add("m", type=type_, confidence=confidence, created_at=brain.clock.now_ms() - days * DAY_MS)

    assert (await count_memories(brain.agent, "u")).decayed == int(decayed)


async def test_what_was_used_lately_has_not_decayed(brain: World) -> None:
    now = brain.clock.now_ms()
    memory_id = await brain.add("m", created_at=now - 90 * DAY_MS)
    await brain.agent.store.set_payload(
        brain.agent.alias, {"lastAccessedAt": now - DAY_MS}, {"must": [{"has_id": [memory_id]}]}
    )

    assert (await count_memories(brain.agent, "u")).decayed == 0


async def test_decay_is_not_reckoned_of_more_memories_than_may_be_read(
    brain: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "MAX_DECAY_READS", 1)
    monkeypatch.setattr(statistics, "PAGE", 1)
    await brain.add("a", confidence=0.1)
    first = await count_memories(brain.agent, "u")
    await brain.add("b")
    second = await count_memories(brain.agent, "u")

    assert (first.decayed, second.decayed) == (1, None)


async def test_oldest_and_newest_are_of_what_is_active(brain: World) -> None:
    now = brain.clock.now_ms()
    for days, more in ((50, {}), (3, {}), (1, {"expires_at": now + 1})):
        await brain.add(f"{days}", created_at=now - days * DAY_MS, **more)
    brain.clock.move(ms=2)

    found = await count_memories(brain.agent, "u")

    assert (found.oldest, found.newest) == (now - 50 * DAY_MS, now - 3 * DAY_MS)


async def test_without_a_confidence_model_nothing_is_said_of_decay(world: World) -> None:
    found = await count_memories(world.agent, None)

    assert (found.types, found.decayed, found.oldest, found.newest) == ({}, None, None, None)
