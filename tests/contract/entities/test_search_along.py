"""Search along entities over a real engine: the third candidate list, its scores and the scope of names."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.adapters.entity_lists import read_entity_lists
from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.entities.sheets import put_aliases, put_relation
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.memories import entity_extraction
from agentmemory_operator.memories.entity_extraction import EntityBackfill
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.search import search as search_module
from agentmemory_operator.search.answers import SearchAnswer
from agentmemory_operator.search.rules.candidates import CandidatePlan, plan_candidates
from agentmemory_operator.spec.effective.entities import EntitySettings, Spreading
from agentmemory_operator.spec.presets import Weights
from agentmemory_operator.spec.presets.table import Fusion
from tests.support.engine.agents import EVERYTHING, World, open_world, search_request, vector_of

RRF, SCORE = Fusion(method="RRF", keyword_weight=0.5), Fusion()
BY_SIMILARITY = replace(EVERYTHING, weights=Weights(1, 0, 0))
HOPS = (
    "Anna Schmidt leads the work at Blue Heron Labs.",
    "Blue Heron Labs keeps its orders in PostgreSQL.",
    "The garden needs water.",
    "Carl Novak likes tea.",
    "Lunch is at noon.",
)


def enable_entities(world: World) -> World:
    world.agent = replace(world.agent, entity_lists=read_entity_lists())
    return world


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with open_world(qdrant_url, keyword=KeywordSource(language="english", window=1)) as world:
        enable_entities(world).set_ranking(replace(BY_SIMILARITY, fusion=RRF))
        yield world


async def add_all(world: World, contents: Sequence[str] = HOPS, user_id: str = "u") -> dict[str, str]:
    return {content: await world.add(content, user_id=user_id) for content in contents}


async def search(world: World, query: str, **more: Any) -> SearchAnswer:
    return await world.recall.search(world.agent, search_request(query=query, vector=vector_of("q"), **more))


def contents(answer: SearchAnswer) -> list[str]:
    return [found.record.content for found in answer.results]


async def test_memory_has_its_entities(world: World) -> None:
    await world.add(HOPS[0], author="crm-bot")

    [record] = await world.rows()

    assert [(one.name, one.kind, one.role) for one in record.entities] == [
        ("u", "client", "about"),
        ("crm-bot", "agent", "source"),
        ("Anna Schmidt", "phrase", "mentioned"),
        ("Blue Heron Labs", "phrase", "mentioned"),
    ]


async def test_search_reaches_memories_two_hops_away(world: World) -> None:
    await add_all(world)

    answer = await search(world, "Which database for Anna Schmidt?", explain=True)

    activations = {found.record.content: found.match and found.match.entities for found in answer.results}
    assert activations[HOPS[0]] == pytest.approx(1.16)
    assert activations[HOPS[1]] == pytest.approx(0.16)
    assert [activations[content] for content in HOPS[2:]] == [0, 0, 0]
    assert set(contents(answer)[:2]) == set(HOPS[:2])


async def test_settings_apply_to_the_next_search(world: World) -> None:
    await add_all(world)
    reached_activations = []
    for options in ({}, {"decay": 0.5, "min_activation": 0}, {"max_depth": 0}, {"min_activation": 0.2}):
        settings = EntitySettings(spreading=Spreading(**options))
        world.agent = replace(world.agent, settings=replace(world.agent.settings, entities=settings))
        answer = await search(world, "Which database for Anna Schmidt?", explain=True)
        [found] = [each for each in answer.results if each.record.content == HOPS[1]]
        reached_activations.append(found.match and found.match.entities)

    assert reached_activations == [pytest.approx(0.16), pytest.approx(0.11), 0, 0]


@pytest.mark.parametrize("distance", ["Cosine", "Dot", "Euclid"])
@pytest.mark.parametrize(
    "fusion", [RRF, replace(RRF, keyword_weight=0.2, k=2), SCORE, replace(SCORE, keyword_weight=0)]
)
@pytest.mark.parametrize("candidates", [None, 3])
async def test_terms_reproduce_the_score(
    qdrant_url: str, distance: str, fusion: Fusion, candidates: int | None
) -> None:
    source = KeywordSource(language="english", window=1)
    async with open_world(qdrant_url, keyword=source, distance=distance) as world:
        enable_entities(world).set_ranking(replace(EVERYTHING, fusion=fusion, candidates=candidates))
        await add_all(world)
        await put_relation(world.agent, "u", "Anna Schmidt", "works_on", "Carl Novak")

        answer = await search(world, "what does Anna Schmidt keep in postgres", explain=True)

    assert len(answer.results) >= 3
    for found in answer.results:
        assert found.terms is not None
        assert found.match is not None
        assert found.match.entities is not None
        assert found.terms.score == pytest.approx(found.score, abs=1e-5)


async def test_query_without_names_ignores_entities(world: World) -> None:
    await add_all(world)
    with_entities = await search(world, "orders of water", explain=True)
    world.agent = replace(world.agent, entity_lists=None)

    without = await search(world, "orders of water", explain=True)

    assert [(found.record.id, found.score) for found in with_entities.results] == [
        (found.record.id, found.score) for found in without.results
    ]
    assert {found.match and found.match.entities for found in with_entities.results} == {None}


async def test_typed_relation_outweighs_a_mention(world: World) -> None:
    await add_all(world)
    for _ in range(5):
        relation = await put_relation(world.agent, "u", "anna schmidt", "contact_of", "Carl Novak")
    assert relation.strength == 5

    answer = await search(world, "Anna Schmidt", explain=True)

    assert {found.record.content: found.match and found.match.entities for found in answer.results}[
        HOPS[3]
    ] == pytest.approx(1.6)


async def test_alias_applies_to_its_user_only(world: World) -> None:
    await add_all(world)
    await add_all(world, user_id="v")
    await put_aliases(world.agent, "u", {"the boss": "Anna Schmidt"})

    own = await search(world, "the boss", explain=True)
    other = await search(world, "the boss", user_id="v", explain=True)

    activations = {found.record.content: found.match and found.match.entities for found in own.results}
    assert activations[HOPS[0]] == pytest.approx(1.16)
    assert {found.match and found.match.entities for found in other.results} == {None}


async def test_shared_scope_counts_only_if_included(world: World) -> None:
    await add_all(world, user_id="group:team")
    await world.add("Nothing is known here.")

    own_scope = await search(world, "Anna Schmidt", explain=True)
    both_scopes = await search(world, "Anna Schmidt", scopes=("group:team",), explain=True)

    assert {found.match and found.match.entities for found in own_scope.results} == {None}
    assert {found.record.user_id for found in both_scopes.results if found.match and found.match.entities} == {
        "group:team"
    }


async def test_scopes_do_not_link_each_other(world: World) -> None:
    """The same name in two scopes is two entities."""
    await world.add("Anna Schmidt met Blue Heron Labs.")
    await world.add("Blue Heron Labs met Carl Novak.", user_id="group:team")
    await world.add("Carl Novak is at home.", user_id="group:team")

    answer = await search(world, "Anna Schmidt", scopes=("group:team",), explain=True)

    assert {found.record.user_id for found in answer.results if found.match and found.match.entities} == {"u"}


async def test_warm_search_makes_one_call(world: World) -> None:
    """A cold search makes two calls."""
    await add_all(world)
    calls: list[str] = []
    store = world.agent.store

    class Counting:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(store, name)

    world.agent = replace(world.agent, store=Counting())  # type: ignore[arg-type]
    await search(world, "Anna Schmidt")
    cold = [name for name in calls if name != "count"]
    calls.clear()

    await search(world, "Anna Schmidt")

    assert cold == ["query_batch", "query"]
    assert calls == ["query"]


@pytest.mark.parametrize("max_query_limit", [None, 100])
@pytest.mark.parametrize(("query", "lists"), [("Anna Schmidt", 2), ("what happened?", 1)])
async def test_lists_divide_the_candidates_if_names_are_found(
    world: World, monkeypatch: pytest.MonkeyPatch, query: str, lists: int, max_query_limit: int | None
) -> None:
    counts: list[int] = []

    def plan(*arguments: Any, extra_lists: int, **options: Any) -> CandidatePlan:
        counts.append(extra_lists)
        return plan_candidates(*arguments, extra_lists=extra_lists, **options)

    monkeypatch.setattr(search_module, "plan_candidates", plan)
    world.set_ranking(replace(BY_SIMILARITY, fusion=RRF, max_query_limit=max_query_limit))
    await add_all(world)

    await search(world, query)

    assert counts == [lists]


async def test_new_memory_is_followed(world: World) -> None:
    await add_all(world)
    await search(world, "Anna Schmidt")
    await world.add("Anna Schmidt lives in Green Valley.")

    answer = await search(world, "Green Valley", explain=True)

    assert contents(answer)[0] == "Anna Schmidt lives in Green Valley."


async def test_filters_apply_to_entity_results(world: World) -> None:
    await world.add("Anna Schmidt is an old friend.", tags=("old",))
    await world.add("Anna Schmidt is a new friend.", tags=("new",))

    answer = await search(world, "Anna Schmidt", tags=("new",))

    assert contents(answer) == ["Anna Schmidt is a new friend."]


async def test_strict_mode_limit_fits_all_lists(world: World) -> None:
    world.set_ranking(replace(BY_SIMILARITY, fusion=RRF, max_query_limit=9))
    await add_all(world, [f"Anna Schmidt said {number}." for number in range(20)])

    answer = await search(world, "Anna Schmidt", top_k=3)

    assert len(answer.results) == 3


async def test_backfill_reads_old_memories_once(world: World) -> None:
    lists, world.agent = world.agent.entity_lists, replace(world.agent, entity_lists=None)
    old = await add_all(world)
    superseded = await world.add("Anna Schmidt was new here.")
    await world.add("Anna Schmidt is no longer new.", supersedes=superseded)
    deleted = await world.add("Anna Schmidt is forgotten.")
    await delete_head(world.agent, deleted, user_id="u")
    settings = replace(world.agent.settings, entities=EntitySettings())
    world.agent = replace(world.agent, entity_lists=lists, settings=settings)
    backfill = EntityBackfill()

    assert [await backfill.sweep(world.agent) for _ in range(2)] == [len(old) + 2, 0]

    rows = {record.content: record for record in await world.rows(include_superseded=True)}
    assert [entity.name for entity in rows[HOPS[0]].entities] == ["u", "Anna Schmidt", "Blue Heron Labs"]
    assert {record.rev for record in rows.values()} == {2, 3}
    assert await EntityBackfill().sweep(world.agent) == 0
    answer = await search(world, "Anna Schmidt", explain=True)
    assert {found.match and found.match.entities is not None for found in answer.results} == {True}


async def test_backfill_repeats_a_page_that_was_not_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lists, world.agent = world.agent.entity_lists, replace(world.agent, entity_lists=None)
    old = await add_all(world)
    settings = replace(world.agent.settings, entities=EntitySettings())
    world.agent = replace(world.agent, entity_lists=lists, settings=settings)
    backfill = EntityBackfill()
    monkeypatch.setattr(entity_extraction, "PAGE", 2)

    async def unavailable(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(world.agent.store, "batch", unavailable)
        with pytest.raises(StoreUnavailable):
            await backfill.sweep(world.agent)

    assert await backfill.sweep(world.agent) == len(old)


async def test_agent_without_entities_is_not_backfilled(world: World) -> None:
    world.agent = replace(world.agent, entity_lists=None)
    await add_all(world)

    assert await EntityBackfill().sweep(world.agent) == 0
    assert {record.entities for record in await world.rows()} == {()}
