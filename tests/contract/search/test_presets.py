"""Presets over a real engine: what their rankings and types do to memories."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.lifecycle.cleanup import Cleanup
from agentmemory_operator.lifecycle.rules.cleanup_rules import build_rules
from agentmemory_operator.spec.effective.settings import Ranking, effective_ranking, effective_settings
from agentmemory_operator.spec.expression.variables import DAY_MS
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import KEYED, NONE
from tests.support.engine.agents import World, open_world, search_request, vector_of
from tests.support.spec.plans import probe


def ranking_of(preset: str) -> Ranking:
    return effective_ranking(probe({"preset": preset}))


@pytest.fixture
async def untyped(qdrant_url: str) -> AsyncIterator[World]:
    async with open_world(qdrant_url, ranking=ranking_of(NONE.name)) as world:
        yield world


async def test_any_type_is_stored_and_found_where_none_is_listed(untyped: World) -> None:
    await untyped.add("a", type="whatever")
    await untyped.add("b")

    found = await untyped.recall.search(
        untyped.agent, search_request(vector=vector_of("a"), types=("whatever", "never-stored"))
    )

    assert [each.record.content for each in found.results] == ["a"]
    assert {row.type for row in await untyped.rows()} == {"whatever", "memory"}


async def test_where_there_is_no_design_the_score_is_the_similarity_and_nothing_is_left_out(untyped: World) -> None:
    for number in range(5):
        await untyped.add(f"m{number}", created_at=number * DAY_MS, importance=number / 5)

    found = await untyped.recall.search(untyped.agent, search_request(vector=vector_of("m3"), explain=True))

    assert len(found.results) == 5
    for each in found.results:
        assert each.match is not None
        assert each.score == pytest.approx(each.match.similarity, abs=1e-5)


@pytest.mark.parametrize("distance", ["Dot", "Euclid"])
async def test_no_gate_holds_anything_back_whatever_the_distance(qdrant_url: str, distance: str) -> None:
    async with open_world(qdrant_url, ranking=ranking_of(NONE.name), distance=distance) as world:
        await world.add("far", vector=[-50.0] * 8)
        await world.add("near", vector=[50.0] * 8)

        found = await world.recall.search(world.agent, search_request(vector=[1.0] * 8, explain=True))

    assert len(found.results) == 2
    assert found.candidates is not None
    assert found.candidates.is_exact


async def test_a_key_value_search_leaves_out_what_is_less_alike_and_says_how_many(qdrant_url: str) -> None:
    async with open_world(qdrant_url, ranking=ranking_of(KEYED.name)) as world:
        for content in ("a", "b", "c"):
            await world.add(content)

        found = await world.recall.search(world.agent, search_request(vector=vector_of("a")))

    assert [each.record.content for each in found.results] == ["a"]
    assert found.removed_by_threshold == 2


async def test_a_memory_without_a_confidence_gets_that_of_its_type(qdrant_url: str) -> None:
    async with open_world(qdrant_url, ranking=ranking_of("cognitive")) as world:
        await world.add("known", type="semantic", domain="d")
        await world.add("sure", type="semantic", domain="d", confidence=0.9)
        await world.add("seen", type="episodic", event_type="system_event")
        rows = {row.content: row.confidence for row in await world.rows()}

    assert rows == {"known": 0.5, "sure": 0.9, "seen": None}


async def test_a_type_that_is_taken_off_the_list_answers_and_takes_no_new_memories(qdrant_url: str) -> None:
    async with open_world(qdrant_url) as world:
        await world.add("old", type="task")
        world.set_ranking(replace(world.agent.settings.ranking, types=(MemoryType("fact", 365),)))

        found = await world.recall.search(world.agent, search_request(vector=vector_of("old"), explain=True))

        assert found.results[0].terms is not None
        assert found.results[0].terms.terms["recency"] == 0.5
        with pytest.raises(RequestInvalid, match="task"):
            await world.add("new", type="task")


async def answers(world: World) -> set[str]:
    """Return the contents of every memory that a search finds."""
    found = await world.recall.search(world.agent, search_request(vector=vector_of("query"), top_k=100))
    return {each.record.content for each in found.results}


@pytest.fixture
async def aged(qdrant_url: str) -> AsyncIterator[World]:
    async with open_world(qdrant_url) as world:
        yield world


async def add_old(world: World, content: str, type_: str, *, days: float, **more: object) -> None:
    """Store a memory that is so many days old, and matches the query."""
    created_at = world.clock.now_ms() - round(days * DAY_MS)
    await world.add(content, type=type_, created_at=created_at, vector=vector_of("query"), **more)


async def test_an_event_of_the_brain_is_hidden_after_30_days_unless_it_is_important(aged: World) -> None:
    aged.set_ranking(ranking_of("brain"))
    await add_old(aged, "fresh", "event", days=29)
    await add_old(aged, "stale", "event", days=31)
    await add_old(aged, "stale and low", "event", days=31, importance=0.25)
    await add_old(aged, "important", "event", days=31, importance=0.75)
    await add_old(aged, "decided", "decision", days=31)

    assert await answers(aged) == {"fresh", "important", "decided"}


async def test_an_episode_of_importance_is_hidden_after_90_days_and_knowledge_is_not(aged: World) -> None:
    aged.set_ranking(ranking_of("importance"))
    await add_old(aged, "fresh", "episodic", days=89)
    await add_old(aged, "stale", "episodic", days=91, importance=1.0)
    await add_old(aged, "known", "semantic", days=2000)
    await add_old(aged, "practised", "procedural", days=2000)

    assert await answers(aged) == {"fresh", "known", "practised"}


async def test_an_episode_of_importance_that_was_used_stays(aged: World) -> None:
    aged.set_ranking(ranking_of("importance"))
    await add_old(aged, "used", "episodic", days=89)
    await answers(aged)
    await aged.counts.flush()
    aged.clock.move(days=2)

    assert await answers(aged) == {"used"}


async def test_memories_fade_by_their_own_rate_where_they_have_one(aged: World) -> None:
    aged.set_ranking(ranking_of("importance"))
    for rate in (None, 0.0, 0.05):
        await add_old(aged, f"rate {rate}", "episodic", days=50, decay_rate=rate)

    found = await aged.recall.search(aged.agent, search_request(vector=vector_of("query")))

    assert [each.record.content for each in found.results] == ["rate 0.0", "rate None", "rate 0.05"]


async def clean(world: World, preset: str) -> dict[str, int]:
    """Clean up as the preset says, however much that removes; return the counts by reason."""
    settings = effective_settings(probe({"preset": preset, "lifecycle": {"maxRemovalPercent": 100}}))
    cleanup = Cleanup(world.clock, min_rest_s=0)
    run = await cleanup.run(world.agent, build_rules(settings.lifecycle, settings.ranking, world.clock.now_ms()))
    return {str(reason): count for reason, count in run.counts.items()}


async def test_cortex_cleans_up_what_has_decayed_below_a_hundredth(aged: World) -> None:
    aged.set_ranking(ranking_of("cortex"))
    # 0.5^(days / 14) is .0100 after 93 days.
    await add_old(aged, "faded", "episodic", days=94)
    await add_old(aged, "fading", "episodic", days=92)

    await clean(aged, "cortex")

    assert {row.content for row in await aged.rows()} == {"fading"}


async def test_cortex_cuts_chains_of_more_than_five(aged: World) -> None:
    aged.set_ranking(ranking_of("cortex"))
    older = None
    for number in range(7):
        older = await aged.add(f"v{number}", type="fact", supersedes=older)
        aged.clock.move(ms=1)

    await clean(aged, "cortex")

    left = [row.content for row in await aged.rows(include_superseded=True)]
    assert len(left) == 5
    assert {"v5", "v6"} <= set(left)


async def test_cognitive_prunes_what_is_old_unimportant_and_doubted(aged: World) -> None:
    ranking = ranking_of("cognitive")
    # These were stored before the preset demanded anything of them.
    aged.set_ranking(replace(ranking, types=tuple(replace(type_, required=()) for type_ in ranking.types)))
    await add_old(aged, "pruned", "episodic", days=366, importance=0.2)
    await add_old(aged, "doubted", "semantic", days=366, importance=0.2, confidence=0.2)
    await add_old(aged, "sure", "semantic", days=366, importance=0.2)
    await add_old(aged, "important", "episodic", days=366, importance=0.9)
    await add_old(aged, "younger", "episodic", days=364, importance=0.2)

    await clean(aged, "cognitive")

    assert {row.content for row in await aged.rows()} == {"sure", "important", "younger"}
