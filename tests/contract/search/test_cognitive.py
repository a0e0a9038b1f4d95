"""Preset cognitive against a server: its collection, and what its types say of their memories."""

import uuid
from dataclasses import replace

import httpx
import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.reconcile import reconcile
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR
from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.memories.stored import read_memory
from agentmemory_operator.spec.presets.cognitive import COGNITIVE
from tests.support.engine.agents import EVERYTHING, World
from tests.support.spec.plans import desired_of

EVENTS = ("user_interaction", "tool_execution", "error_event", "system_event", "agent_decision")


@pytest.fixture
def world(world: World) -> World:
    world.rank_by(replace(EVERYTHING, types=COGNITIVE.types))
    return world


async def test_its_collection_has_half_floats_words_with_idf_and_a_dense_graph(qdrant_url: str) -> None:
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


@pytest.mark.parametrize("event", [*EVENTS, None])
async def test_an_episode_is_one_of_five_kinds_of_event_or_of_none(world: World, event: str | None) -> None:
    memory_id = await world.add("it failed", type="episodic", event_type=event, context="etl", author="nightly")

    stored = await read_memory(world.agent, memory_id, user_id="u")

    assert (stored.event_type, stored.context, stored.author) == (event, "etl", "nightly")


async def test_another_kind_of_event_is_refused_and_the_known_ones_are_named(world: World) -> None:
    outcome = await world.try_add("it failed", type="episodic", event_type="party")

    assert isinstance(outcome, RequestInvalid)
    assert [error.field for error in outcome.errors] == ["event_type"]
    assert all(event in outcome.errors[0].message for event in EVENTS)
    assert await world.heads() == []


async def test_types_that_name_no_events_take_any(world: World) -> None:
    memory_id = await world.add("known", type="semantic", event_type="party")

    assert (await read_memory(world.agent, memory_id, user_id="u")).event_type == "party"


async def test_knowledge_has_a_domain_and_sources_and_a_middling_confidence_unless_it_says_one(world: World) -> None:
    source = await world.add("it failed", type="episodic")
    bare = await world.add("disks fill up", type="semantic", domain="operations", source_ids=(source,))
    sure = await world.add("disks are finite", type="semantic", confidence=0.9)

    memories = [await read_memory(world.agent, memory_id, user_id="u") for memory_id in (bare, sure)]

    assert [memory.confidence for memory in memories] == [0.5, 0.9]
    assert (memories[0].domain, memories[0].source_ids) == ("operations", (source,))
