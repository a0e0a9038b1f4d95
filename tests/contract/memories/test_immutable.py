"""What a caller can do to a memory of an immutable type, and what goes on by itself."""

import json
from dataclasses import replace

import pytest

from agentmemory_operator.entrypoints.api.transfer.transfer_requests import read_line
from agentmemory_operator.errors import Conflict, Forbidden, NotFound
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import Scope
from agentmemory_operator.memories.stored import change_head, delete_head, read_memory
from agentmemory_operator.memories.transfer.import_batch import Line
from agentmemory_operator.memories.transfer.imports import import_lines
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import BRAIN, CORTEX
from tests.support.engine.agents import EVERYTHING, World, every_right, search_request, vector_of

TYPES = (MemoryType("fact", 34), MemoryType("decision", None, immutable=True))


@pytest.fixture
async def decision(world: World) -> str:
    """Return the id of a decision, in a world with such a type."""
    settings = replace(world.agent.settings, ranking=replace(EVERYTHING, types=TYPES), deduplicate=True)
    world.agent = replace(world.agent, settings=settings)
    return await world.add("we use Python", type="decision", author="ada")


def test_decisions_are_immutable_in_the_brain_alone() -> None:
    assert [type_.name for type_ in BRAIN.types if type_.immutable] == ["decision"]
    assert not any(type_.immutable for type_ in CORTEX.types)


@pytest.mark.parametrize("changes", [{"importance": 0.1}, {"pinned": True}, {"expiresAt": 1}, {"tags": ["x"]}])
async def test_nothing_changes_it_in_place(world: World, decision: str, changes: dict[str, object]) -> None:
    before = await read_memory(world.agent, decision, user_id="u")

    with pytest.raises(Conflict, match="immutable"):
        await change_head(world.agent, decision, changes, user_id="u")

    assert await read_memory(world.agent, decision, user_id="u") == before


async def test_only_administrators_delete_it(world: World, decision: str) -> None:
    with pytest.raises(Forbidden, match="the verb admin"):
        await delete_head(world.agent, decision, user_id="u")
    assert await world.heads() == ["we use Python"]

    await delete_head(world.agent, decision, user_id="u", is_admin=True)

    assert await world.heads() == []


async def test_another_users_is_not_even_there(world: World, decision: str) -> None:
    with pytest.raises(NotFound):
        await delete_head(world.agent, decision, user_id="v")


async def test_an_import_does_not_supersede_it_either(world: World, decision: str) -> None:
    told = {"content": "we use Rust", "type": "decision", "supersedes": decision, "vector": vector_of("r")}
    line = read_line(
        json.dumps(told).encode(), user_id="u", default_type="fact", rights=every_right(world.agent.settings)
    )
    assert isinstance(line, Line)

    [outcome] = await import_lines(world.agent, [line], brings_back_erased=False)

    assert isinstance(outcome, Conflict)
    assert "immutable" in str(outcome)
    assert await world.heads() == ["we use Python"]


async def test_accesses_and_authors_are_noted_on_it_all_the_same(world: World, decision: str) -> None:
    await world.recall.search(world.agent, search_request(user_id="u", vector=vector_of("we use Python")))
    await world.counts.flush()
    await world.try_add("we use Python", type="decision", author="bob")

    record = await read_memory(world.agent, decision, user_id="u")

    assert (record.access_count, record.observed_by) == (1, ("ada", "bob"))


async def test_it_is_erased_with_its_user(world: World, decision: str) -> None:
    await world.forgetting.forget(world.agent, ForgetRequest(scope=Scope(user_id="u", is_whole=True)))

    with pytest.raises(NotFound):
        await read_memory(world.agent, decision, user_id="u")


@pytest.mark.parametrize("category", [None, "general"])
async def test_a_memory_is_stored_with_what_the_preset_gives_where_it_says_nothing(
    world: World, category: str | None
) -> None:
    types = (MemoryType("fact", 34, confidence=1.0),)
    settings = replace(world.agent.settings, ranking=replace(EVERYTHING, types=types), knowledge_category=category)
    world.agent = replace(world.agent, settings=settings)

    unsaid = await read_memory(world.agent, await world.add("a"), user_id="u")
    said = await read_memory(world.agent, await world.add("b", knowledge_category="brand", confidence=0.4), user_id="u")

    assert (unsaid.knowledge_category, unsaid.confidence) == (category, 1.0)
    assert (said.knowledge_category, said.confidence) == ("brand", 0.4)


async def test_an_imported_memory_keeps_what_it_was_about(world: World) -> None:
    world.agent = replace(world.agent, settings=replace(world.agent.settings, knowledge_category="general"))
    told = {"content": "from before", "type": "fact", "vector": vector_of("r")}
    line = read_line(
        json.dumps(told).encode(), user_id="u", default_type="fact", rights=every_right(world.agent.settings)
    )
    assert isinstance(line, Line)

    await import_lines(world.agent, [line], brings_back_erased=False)

    [record] = await world.rows()
    assert record.knowledge_category is None
