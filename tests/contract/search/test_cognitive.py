"""The `cognitive` preset against a server: its collection and the rules of its memory types."""

import uuid
from dataclasses import replace

import httpx
import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.reconcile import reconcile
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR
from agentmemory_operator.entrypoints.api import response_views
from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.stored_memories import list_page, read_memory
from agentmemory_operator.memories.transfer.import_batch import ImportLine
from agentmemory_operator.memories.transfer.imports import import_lines
from agentmemory_operator.spec.presets import COGNITIVE
from tests.support.engine.agents import EVERYTHING, World, list_request, search_request, vector_of
from tests.support.spec.plans import desired_of

EVENTS = ("user_interaction", "tool_execution", "error_event", "system_event", "agent_decision")


@pytest.fixture
def world(world: World) -> World:
    world.set_ranking(replace(EVERYTHING, types=COGNITIVE.types))
    return world


async def test_collection_matches_the_preset(qdrant_url: str) -> None:
    """The collection has half-precision vectors, IDF keywords and a dense graph."""
    desired = desired_of({"preset": "cognitive", "embedding": {"provider": "none", "dimensions": 8}})
    store, alias = QdrantCollections(qdrant_url), f"agent_memory_c-{uuid.uuid4().hex[:12]}"
    try:
        done = await reconcile(alias, desired, store=store, last_physical=None, last_points=0)
        described = httpx.get(f"{qdrant_url}/collections/{alias}").json()["result"]
    finally:
        await store.delete(f"{alias}__1")
        await store.close()

    config = described["config"]
    assert done.plan.changes == ()
    assert config["params"]["vectors"]["datatype"] == "float16"
    assert config["params"]["sparse_vectors"][KEYWORD_VECTOR]["modifier"] == "idf"
    assert (config["hnsw_config"]["m"], config["hnsw_config"]["ef_construct"]) == (32, 400)
    scalar = config["quantization_config"]["scalar"]
    assert (scalar["type"], scalar["always_ram"]) == ("int8", True)
    assert scalar["quantile"] == pytest.approx(0.99)
    assert described["payload_schema"]["parentId"]["data_type"] == "keyword"


@pytest.mark.parametrize("event", EVENTS)
async def test_five_event_types_are_accepted(world: World, event: str) -> None:
    memory_id = await world.add("it failed", type="episodic", event_type=event, context="etl", author="nightly")

    stored = await read_memory(world.agent, memory_id, user_id="u")

    assert (stored.event_type, stored.context, stored.author) == (event, "etl", "nightly")


@pytest.mark.parametrize(("type_", "field"), [("episodic", "event_type"), ("semantic", "domain")])
async def test_missing_required_field_is_named(world: World, type_: str, field: str) -> None:
    outcome = await world.try_add("it failed", type=type_)

    assert isinstance(outcome, RequestInvalid)
    [error] = outcome.errors
    assert error.field == field
    assert f"memories of type {type_!r} have one (types[].required)" in error.message
    assert "store the memory as another type" in error.message
    assert await world.heads() == []


async def test_items_and_imports_skip_required_fields(world: World) -> None:
    await world.items.put(
        world.agent,
        Address(user_id="u", namespace=("memories", "u"), key="k"),
        ItemContent(content="an item", vector=vector_of("an item")),
    )
    old = IncomingMemory(user_id="u", content="an old episode", type="episodic", vector=vector_of("old"))

    assert await import_lines(world.agent, [ImportLine(memory=old)], can_restore_erased=False) == ["imported"]
    assert sorted(await world.heads()) == ["an item", "an old episode"]


async def test_working_memory_skips_required_fields(world: World) -> None:
    types = tuple(replace(type_, required=("domain",)) for type_ in COGNITIVE.types)
    world.set_ranking(replace(EVERYTHING, types=types))
    thought = IncomingMemory(user_id="u", content="a thought", session_id="s", vector=vector_of("a thought"))

    assert (await world.working.store(world.agent, thought)).event == "ADD"


async def test_unknown_event_type_is_rejected(world: World) -> None:
    outcome = await world.try_add("it failed", type="episodic", event_type="party")

    assert isinstance(outcome, RequestInvalid)
    assert [error.field for error in outcome.errors] == ["event_type"]
    assert all(event in outcome.errors[0].message for event in EVENTS)
    assert await world.heads() == []


async def test_type_without_event_types_accepts_any(world: World) -> None:
    memory_id = await world.add("known", type="semantic", domain="d", event_type="party")

    assert (await read_memory(world.agent, memory_id, user_id="u")).event_type == "party"


async def test_semantic_confidence_defaults_to_half(world: World) -> None:
    source = await world.add("it failed", type="episodic", event_type="error_event")
    bare = await world.add("disks fill up", type="semantic", domain="operations", source_ids=(source,))
    sure = await world.add("disks are finite", type="semantic", domain="operations", confidence=0.9)

    memories = [await read_memory(world.agent, memory_id, user_id="u") for memory_id in (bare, sure)]

    assert [memory.confidence for memory in memories] == [0.5, 0.9]
    assert (memories[0].domain, memories[0].source_ids) == ("operations", (source,))


async def test_priority_is_returned_by_its_model(world: World) -> None:
    await world.add("it failed", type="episodic", event_type="error_event", importance=0.9)
    world.set_ranking(replace(EVERYTHING, types=COGNITIVE.types, model=COGNITIVE.model))
    world.clock.move(ms=30 * 86_400_000)

    page = response_views.render_page(await list_page(world.agent, list_request()), world.agent)
    answer = await world.recall.search(world.agent, search_request(vector=vector_of("it failed"), explain=True))
    [found] = response_views.render_search(answer, world.agent, response_views.FULL_VIEW)["results"]
    world.set_ranking(replace(EVERYTHING, types=COGNITIVE.types))
    [record] = await world.rows()

    # One half-life after creation, never accessed.
    expected = 0.3 * 0.5 + 0.2 * 0 + 0.5 * 0.9
    assert [each["priority"] for each in (*page["results"], found)] == pytest.approx([expected, expected])
    assert found["explain"]["terms"]["priority"] == pytest.approx(expected)
    assert response_views.render_memory(record, world.agent)["priority"] is None
