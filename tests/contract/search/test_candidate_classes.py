"""Filter conditions of the candidate classes, over a real engine."""

import itertools
from dataclasses import replace

import pytest

from agentmemory_operator.memories.rules.record import MemoryRecord, payload_of
from agentmemory_operator.search.rules.candidate_classes import (
    BY_HORIZON,
    BY_IDLENESS,
    BY_IDLENESS_AND_ACCESSES,
    BY_IDLENESS_AND_IMPORTANCE,
    BY_TIME_AND_USE,
    BY_USE,
    MemoryClass,
)
from agentmemory_operator.spec.expression.variables import DAY_MS, ScoreInput, values_of
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import World, vector_of

TYPES = (MemoryType("fact", 100), MemoryType("task", 5), MemoryType("semantic", None))
CLASSES = {
    *BY_USE,
    *BY_TIME_AND_USE,
    *BY_IDLENESS,
    *BY_IDLENESS_AND_ACCESSES,
    *BY_IDLENESS_AND_IMPORTANCE,
    *BY_HORIZON,
    MemoryClass(type_names=("semantic",)),
}


def records(now_ms: int) -> list[MemoryRecord]:
    """Return memories of all combinations of type, age, importance and use."""
    sorts = itertools.product(
        ("fact", "task", "semantic"), (0.5, 6, 50, 400), (0.5, 0.8), ((0, 1.0), (4, 0.5), (30, 0.0))
    )
    plain = MemoryRecord(id="", agent_id="a", user_id="u", type="fact", content="m", created_at=0, updated_at=0)
    return [
        replace(
            plain,
            id=f"00000000-0000-4000-8000-{number:012}",
            type=type_,
            created_at=now_ms - int(age_days * DAY_MS),
            importance=importance,
            access_count=accesses,
            last_accessed_at=now_ms - int(age_days * idle_share * DAY_MS) if accesses else None,
        )
        for number, (type_, age_days, importance, (accesses, idle_share)) in enumerate(sorts)
    ]


def is_in_box(record: MemoryRecord, class_: MemoryClass, now_ms: int) -> bool:
    box = class_.box({type_.name: type_ for type_ in TYPES}[record.type])
    scored = ScoreInput(
        type=record.type,
        similarity=0.0,
        created_at=record.created_at,
        importance=record.importance,
        access_count=record.access_count,
        last_accessed_at=record.last_accessed_at,
    )
    numbers = values_of(scored, now_ms=now_ms).numbers
    return box is not None and all(interval.low <= numbers[name] <= interval.high for name, interval in box.items())


@pytest.mark.parametrize("class_", sorted(CLASSES, key=repr), ids=repr)
async def test_condition_selects_members_of_the_class(world: World, class_: MemoryClass) -> None:
    now_ms = world.clock.now_ms()
    stored = records(now_ms)
    points = [{"id": each.id, "vector": vector_of("m"), "payload": payload_of(each)} for each in stored]
    await world.agent.store.upsert(world.agent.alias, points)

    found, _ = await world.agent.store.scroll(
        world.agent.alias, {"filter": class_.condition(TYPES, now_ms), "limit": len(stored) + 1, "with_payload": False}
    )

    expected = {each.id for each in stored if is_in_box(each, class_, now_ms)}
    assert {point["id"] for point in found} == expected
    assert 0 < len(expected) < len(stored)
