"""Secrets never reach the engine, nor the embedder, whichever way they come."""

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

SAID, KEPT = "The password: hunter2", "The password: [REDACTED:password]"


@pytest.fixture
def scrubbing(world: World) -> World:
    """Return an agent whose object has secrets scrubbed."""
    world.agent = replace(world.agent, secret_rules=(*library_rules(), *OWN_RULES))
    return world


async def record_of(world: World, content: str, **more: Any) -> Any:
    return await read_memory(world.agent, await world.add(content, **more), user_id="u")


async def test_content_is_stored_and_hashed_without_its_secrets(scrubbing: World) -> None:
    record = await record_of(scrubbing, SAID)

    assert (record.content, record.content_hash) == (KEPT, hash_content(KEPT))


async def test_the_embedder_sees_no_secret(scrubbing: World) -> None:
    embedder = FakeEmbedder()
    scrubbing.set_embedder(embedder)

    await scrubbing.remember.store(scrubbing.agent, [IncomingMemory(user_id="u", content=SAID)])

    assert embedder.texts == [KEPT]


async def test_what_is_said_besides_is_scrubbed_and_names_are_not(scrubbing: World) -> None:
    given: dict[str, Any] = {
        "metadata": {"note": SAID, "login": {"password": "hunter2", "user": "ada"}, "list": [SAID, 7]},
        "context": {"header": "Authorization: Bearer abc.def-123_456"},
        "status_value": SAID,
        "key": SAID,
        "tags": (SAID,),
    }

    record = await record_of(scrubbing, "Ada", **given)

    assert record.metadata == {
        "note": KEPT,
        "login": {"password": "[REDACTED:password]", "user": "ada"},
        "list": [KEPT, 7],
    }
    assert record.context == {"header": "Authorization: Bearer [REDACTED:bearer-token]"}
    assert record.status_value == KEPT
    assert (record.key, record.tags) == (SAID, (SAID,))


async def test_the_answer_says_of_which_kinds_and_never_what(scrubbing: World) -> None:
    outcome = await scrubbing.try_add(SAID, metadata={"api_key": "a1b2c3d4e5f6a7b8"})

    assert isinstance(outcome, StoredMemory)
    assert outcome.warnings == (
        "content: redacted before it was stored: password (spec.lifecycle.scrubSecrets)",
        "metadata: redacted before it was stored: api-key (spec.lifecycle.scrubSecrets)",
    )


async def test_items_that_differ_only_in_their_secrets_say_the_same(scrubbing: World) -> None:
    memories = [
        IncomingMemory(user_id="u", content=f"password: {word}", vector=vector_of(1)) for word in ("abcd", "efgh")
    ]

    first, second = await scrubbing.remember.store(scrubbing.agent, memories)

    assert isinstance(first, StoredMemory)
    assert isinstance(second, StoredMemory)
    assert (second.id, second.event, bool(second.warnings)) == (first.id, "NONE", True)


async def test_a_change_in_place_is_scrubbed(scrubbing: World) -> None:
    memory_id = await scrubbing.add("Ada")

    record = await change_head(scrubbing.agent, memory_id, {"metadata": {"note": SAID}}, user_id="u")

    assert record.metadata == {"note": KEPT}


async def test_what_a_session_has_in_mind_is_scrubbed(scrubbing: World) -> None:
    types = (*EVERYTHING.types, MemoryType("working", half_life_days=1))
    scrubbing.set_ranking(replace(EVERYTHING, types=types))
    memory = IncomingMemory(user_id="u", session_id="s", content=SAID, vector=vector_of(1))

    kept = await scrubbing.working.store(scrubbing.agent, memory)

    assert (kept.record.content, len(kept.warnings)) == (KEPT, 1)


async def test_without_rules_all_is_stored_as_it_comes(world: World) -> None:
    assert (await record_of(world, SAID)).content == SAID
