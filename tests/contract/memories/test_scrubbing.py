"""Redaction of secrets before they reach the engine or the embedder."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.adapters.detect_secrets_rules import library_rules
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.rules.record import hash_content
from agentmemory_operator.memories.rules.secret_patterns import OWN_RULES
from agentmemory_operator.memories.stored_memories import change_head, read_memory
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import EVERYTHING, FakeEmbedder, World, vector_of

RAW, REDACTED = "The password: hunter2", "The password: [REDACTED:password]"


@pytest.fixture
def scrubbing(world: World) -> World:
    """World with the redaction of secrets enabled."""
    world.agent = replace(world.agent, secret_rules=(*library_rules(), *OWN_RULES))
    return world


async def record_of(world: World, content: str, **more: Any) -> Any:
    return await read_memory(world.agent, await world.add(content, **more), user_id="u")


async def test_content_is_stored_and_hashed_redacted(scrubbing: World) -> None:
    record = await record_of(scrubbing, RAW)

    assert (record.content, record.content_hash) == (REDACTED, hash_content(REDACTED))


async def test_embedder_receives_no_secret(scrubbing: World) -> None:
    embedder = FakeEmbedder()
    scrubbing.set_embedder(embedder)

    await scrubbing.remember.store(scrubbing.agent, [IncomingMemory(user_id="u", content=RAW)])

    assert embedder.texts == [REDACTED]


async def test_other_fields_are_redacted(scrubbing: World) -> None:
    """Keys and tags are stored unchanged."""
    fields: dict[str, Any] = {
        "metadata": {"note": RAW, "login": {"password": "hunter2", "user": "ada"}, "list": [RAW, 7]},
        "context": {"header": "Authorization: Bearer abc.def-123_456"},
        "status_value": RAW,
        "key": RAW,
        "tags": (RAW,),
    }

    record = await record_of(scrubbing, "Ada", **fields)

    assert record.metadata == {
        "note": REDACTED,
        "login": {"password": "[REDACTED:password]", "user": "ada"},
        "list": [REDACTED, 7],
    }
    assert record.context == {"header": "Authorization: Bearer [REDACTED:bearer-token]"}
    assert record.status_value == REDACTED
    assert (record.key, record.tags) == (RAW, (RAW,))


async def test_warnings_name_kinds_of_secrets_only(scrubbing: World) -> None:
    outcome = await scrubbing.try_add(RAW, metadata={"api_key": "a1b2c3d4e5f6a7b8"})

    assert isinstance(outcome, StoredMemory)
    assert outcome.warnings == (
        "content: redacted before it was stored: password (spec.lifecycle.scrubSecrets)",
        "metadata: redacted before it was stored: api-key (spec.lifecycle.scrubSecrets)",
    )


async def test_items_equal_after_redaction_are_one(scrubbing: World) -> None:
    memories = [
        IncomingMemory(user_id="u", content=f"password: {word}", vector=vector_of(1)) for word in ("abcd", "efgh")
    ]

    first, second = await scrubbing.remember.store(scrubbing.agent, memories)

    assert isinstance(first, StoredMemory)
    assert isinstance(second, StoredMemory)
    assert (second.id, second.event, bool(second.warnings)) == (first.id, "NONE", True)


async def test_change_in_place_is_redacted(scrubbing: World) -> None:
    memory_id = await scrubbing.add("Ada")

    record = await change_head(scrubbing.agent, memory_id, {"metadata": {"note": RAW}}, user_id="u")

    assert record.metadata == {"note": REDACTED}


async def test_working_memory_is_redacted(scrubbing: World) -> None:
    types = (*EVERYTHING.types, MemoryType("working", half_life_days=1))
    scrubbing.set_ranking(replace(EVERYTHING, types=types))
    memory = IncomingMemory(user_id="u", session_id="s", content=RAW, vector=vector_of(1))

    kept = await scrubbing.working.store(scrubbing.agent, memory)

    assert (kept.record.content, len(kept.warnings)) == (REDACTED, 1)


async def test_nothing_is_redacted_without_rules(world: World) -> None:
    assert (await record_of(world, RAW)).content == RAW
