"""Storing memories on a real engine."""

import asyncio
from typing import Any

import pytest

from agentmemory_operator.errors import (
    AgentMemoryError,
    Conflict,
    EmbedderUnavailable,
    NotFound,
    RequestInvalid,
)
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.stored_memories import count_stored, delete_head, read_memory
from tests.support.engine.agents import FakeEmbedder, World, vector_of


def memories(*contents: str, **more: Any) -> list[IncomingMemory]:
    return [IncomingMemory(user_id="u", content=content, **more) for content in contents]


async def test_stored_memory_is_read_back(world: World) -> None:
    fields: dict[str, Any] = {
        "type": "person",
        "importance": 0.75,
        "confidence": 0.5,
        "session_id": "s",
        "source": "conversation",
        "tags": ("a", "b"),
        "metadata": {"ticket": 7},
        "created_at": 5,
        "expires_at": 2**41,
    }

    record = await read_memory(world.agent, await world.add("Ada", **fields), user_id="u")

    assert {name: getattr(record, name) for name in fields} == fields
    assert (record.content, record.rev, record.access_count) == ("Ada", 1, 0)


async def test_type_and_time_have_defaults(world: World) -> None:
    record = await read_memory(world.agent, await world.add("Ada"), user_id="u")

    assert (record.type, record.created_at) == ("fact", world.clock.now_ms())


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"vector": [1.0] * 7}, "vector"),
        ({"vector": [0.0] * 8}, "vector"),
        ({"vector": [float("nan")] + [0.0] * 7}, "vector"),
        ({"vector": None}, "vector"),
        ({"type": "nope"}, "type"),
        ({"supersedes": "nope"}, "supersedes"),
    ],
)
async def test_invalid_field_is_named_and_not_stored(world: World, given: dict[str, Any], field: str) -> None:
    outcome = await world.try_add("Ada", **given)

    assert isinstance(outcome, RequestInvalid)
    assert [error.field for error in outcome.errors] == [field]
    assert await count_stored(world.agent) == 0


async def test_invalid_item_spares_the_others(world: World) -> None:
    given = [
        *memories("a", "b", vector=vector_of(1)),
        *memories("c", vector=[1.0]),
        *memories("d", vector=vector_of(2)),
    ]

    outcomes = await world.remember.store(world.agent, given)

    assert [type(outcome) for outcome in outcomes] == [StoredMemory, StoredMemory, RequestInvalid, StoredMemory]
    assert sorted(await world.heads()) == ["a", "b", "d"]


async def test_distinct_contents_are_embedded_in_one_call(world: World) -> None:
    embedder = FakeEmbedder()
    world.set_embedder(embedder)

    await world.remember.store(world.agent, [*memories("a", "b"), *memories("a", type="person")])

    assert (embedder.calls, embedder.texts) == (1, ["a", "b"])
    assert sorted(await world.heads()) == ["a", "a", "b"]


async def test_content_refused_by_provider_spares_others(world: World) -> None:
    world.set_embedder(FakeEmbedder(refused="refuse me"))

    outcomes = await world.remember.store(world.agent, memories("a", "refuse me", "b"))

    assert [type(outcome) for outcome in outcomes] == [StoredMemory, RequestInvalid, StoredMemory]


async def test_embedding_agent_refuses_vectors(world: World) -> None:
    world.set_embedder(FakeEmbedder())

    (outcome,) = await world.remember.store(world.agent, memories("a", vector=vector_of(1)))

    assert isinstance(outcome, RequestInvalid)
    assert outcome.errors[0].field == "vector"


async def test_unavailable_embedder_blocks_writes(world: World) -> None:
    embedder = FakeEmbedder()
    embedder.is_away = True
    world.set_embedder(embedder)

    with pytest.raises(EmbedderUnavailable):
        await world.remember.store(world.agent, memories("a"))

    assert await count_stored(world.agent) == 0


async def test_supersession_links_both_versions(world: World) -> None:
    old = await world.add("lives in Rome")

    stored = await world.try_add("lives in Oslo", supersedes=old)

    assert isinstance(stored, StoredMemory)
    assert (stored.event, stored.supersedes) == ("SUPERSEDE", old)
    assert await world.heads() == ["lives in Oslo"]
    row = await read_memory(world.agent, old, user_id="u")
    assert (row.superseded_by_id, row.superseded_at, row.rev) == (stored.id, world.clock.now_ms(), 2)


@pytest.mark.parametrize(
    ("which", "error"),
    [
        ("unknown", NotFound),
        ("another user's", NotFound),
        ("expired", NotFound),
        ("superseded", Conflict),
        ("deleted", Conflict),
    ],
)
async def test_only_own_heads_can_be_superseded(world: World, which: str, error: type[AgentMemoryError]) -> None:
    old = await world.add("old", expires_at=world.clock.now_ms() + 1 if which == "expired" else None)
    if which == "superseded":
        await world.add("newer", supersedes=old)
    if which == "deleted":
        await delete_head(world.agent, old, user_id="u")
    world.clock.move(ms=2)
    before = await world.heads()
    target = "018f0000-0000-7000-8000-000000000000" if which == "unknown" else old
    user_id = "v" if which == "another user's" else "u"

    outcome = await world.try_add("mine", supersedes=target, user_id=user_id)

    assert isinstance(outcome, error)
    assert (await world.heads(), await world.heads("v")) == (before, [])


async def test_one_of_concurrent_successors_wins(world: World) -> None:
    old = await world.add("old")

    outcomes = await asyncio.gather(*(world.try_add(f"new {number}", supersedes=old) for number in range(20)))

    assert sum(isinstance(outcome, StoredMemory) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 19
    assert len(await world.heads()) == 1
    assert await count_stored(world.agent) == 2


async def test_repeated_key_and_body_give_same_memory(world: World) -> None:
    old = await world.add("old")
    for supersedes in (None, old):
        outcomes = [
            await world.try_add("once", idempotency_key=f"k{supersedes}", supersedes=supersedes) for _ in range(3)
        ]

        assert isinstance(outcomes[0], StoredMemory)
        assert outcomes == [outcomes[0]] * 3
    assert await count_stored(world.agent) == 3


async def test_concurrent_use_of_a_key_gives_one_memory(world: World) -> None:
    old = await world.add("old")

    outcomes = await asyncio.gather(
        *(world.try_add("once", idempotency_key="k", supersedes=old) for _ in range(10)),
    )

    assert len({outcome.id for outcome in outcomes if isinstance(outcome, StoredMemory)}) == 1
    assert all(isinstance(outcome, StoredMemory) for outcome in outcomes)
    assert await world.heads() == ["once"]


async def test_key_with_other_body_is_a_conflict(world: World) -> None:
    await world.add("one", idempotency_key="k")

    assert isinstance(await world.try_add("two", idempotency_key="k"), Conflict)
    assert isinstance(await world.try_add("two", idempotency_key="k", user_id="v"), StoredMemory)


async def test_key_of_deleted_memory_is_a_conflict(world: World) -> None:
    await delete_head(world.agent, await world.add("one", idempotency_key="k"), user_id="u")

    assert isinstance(await world.try_add("one", idempotency_key="k"), Conflict)
    assert await world.heads() == []
