"""Rankings and memory types of the presets, over a real engine."""

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
from tests.support.engine.agents import World, search_request, vector_of
from tests.support.engine.reused_agents import reuse_world
from tests.support.spec.plans import probe


def ranking_of(preset: str) -> Ranking:
    return effective_ranking(probe({"preset": preset}))


@pytest.fixture
async def untyped(qdrant_url: str) -> AsyncIterator[World]:
    async with reuse_world(qdrant_url, ranking=ranking_of(NONE.name)) as world:
        yield world


async def test_unlisted_type_is_stored_and_found(untyped: World) -> None:
    await untyped.add("a", type="whatever")
    await untyped.add("b")

    found = await untyped.recall.search(
        untyped.agent, search_request(vector=vector_of("a"), types=("whatever", "never-stored"))
    )

    assert [result.record.content for result in found.results] == ["a"]
    assert {row.type for row in await untyped.rows()} == {"whatever", "memory"}


async def test_none_scores_by_similarity(untyped: World) -> None:
    for number in range(5):
        await untyped.add(f"m{number}", created_at=number * DAY_MS, importance=number / 5)

    found = await untyped.recall.search(untyped.agent, search_request(vector=vector_of("m3"), explain=True))

    assert len(found.results) == 5
    for result in found.results:
        assert result.match is not None
        assert result.score == pytest.approx(result.match.similarity, abs=1e-5)


@pytest.mark.parametrize("distance", ["Dot", "Euclid"])
async def test_none_filters_nothing_by_distance(qdrant_url: str, distance: str) -> None:
    async with reuse_world(qdrant_url, ranking=ranking_of(NONE.name), distance=distance) as world:
        await world.add("far", vector=[-50.0] * 8)
        await world.add("near", vector=[50.0] * 8)

        found = await world.recall.search(world.agent, search_request(vector=[1.0] * 8, explain=True))

    assert len(found.results) == 2
    assert found.candidates is not None
    assert found.candidates.is_exact


async def test_key_value_counts_dissimilar_results(qdrant_url: str) -> None:
    async with reuse_world(qdrant_url, ranking=ranking_of(KEYED.name)) as world:
        for content in ("a", "b", "c"):
            await world.add(content)

        found = await world.recall.search(world.agent, search_request(vector=vector_of("a")))

    assert [result.record.content for result in found.results] == ["a"]
    assert found.removed_by_threshold == 2


async def test_confidence_defaults_to_that_of_the_type(qdrant_url: str) -> None:
    async with reuse_world(qdrant_url, ranking=ranking_of("cognitive")) as world:
        await world.add("known", type="semantic", domain="d")
        await world.add("sure", type="semantic", domain="d", confidence=0.9)
        await world.add("seen", type="episodic", event_type="system_event")
        rows = {row.content: row.confidence for row in await world.rows()}

    assert rows == {"known": 0.5, "sure": 0.9, "seen": None}


async def test_removed_type_is_found_but_not_stored(qdrant_url: str) -> None:
    async with reuse_world(qdrant_url) as world:
        await world.add("old", type="task")
        world.set_ranking(replace(world.agent.settings.ranking, types=(MemoryType("fact", 365),)))

        found = await world.recall.search(world.agent, search_request(vector=vector_of("old"), explain=True))

        assert found.results[0].terms is not None
        assert found.results[0].terms.terms["recency"] == 0.5
        with pytest.raises(RequestInvalid, match="task"):
            await world.add("new", type="task")


async def search_contents(world: World) -> set[str]:
    """Return the contents of all memories that a search finds."""
    found = await world.recall.search(world.agent, search_request(vector=vector_of("query"), top_k=100))
    return {result.record.content for result in found.results}


@pytest.fixture
async def aged_world(qdrant_url: str) -> AsyncIterator[World]:
    async with reuse_world(qdrant_url) as world:
        yield world


async def add_old(world: World, content: str, type_: str, *, days: float, **more: object) -> None:
    """Store a memory of the given age that matches the query."""
    created_at = world.clock.now_ms() - round(days * DAY_MS)
    await world.add(content, type=type_, created_at=created_at, vector=vector_of("query"), **more)


async def test_brain_hides_unimportant_events_after_30_days(aged_world: World) -> None:
    aged_world.set_ranking(ranking_of("brain"))
    await add_old(aged_world, "fresh", "event", days=29)
    await add_old(aged_world, "stale", "event", days=31)
    await add_old(aged_world, "stale and low", "event", days=31, importance=0.25)
    await add_old(aged_world, "important", "event", days=31, importance=0.75)
    await add_old(aged_world, "decided", "decision", days=31)

    assert await search_contents(aged_world) == {"fresh", "important", "decided"}


async def test_importance_hides_episodes_after_90_days(aged_world: World) -> None:
    aged_world.set_ranking(ranking_of("importance"))
    await add_old(aged_world, "fresh", "episodic", days=89)
    await add_old(aged_world, "stale", "episodic", days=91, importance=1.0)
    await add_old(aged_world, "known", "semantic", days=2000)
    await add_old(aged_world, "practised", "procedural", days=2000)

    assert await search_contents(aged_world) == {"fresh", "known", "practised"}


async def test_importance_keeps_accessed_episodes(aged_world: World) -> None:
    aged_world.set_ranking(ranking_of("importance"))
    await add_old(aged_world, "used", "episodic", days=89)
    await search_contents(aged_world)
    await aged_world.counts.flush()
    aged_world.clock.move(days=2)

    assert await search_contents(aged_world) == {"used"}


async def test_own_decay_rate_applies(aged_world: World) -> None:
    aged_world.set_ranking(ranking_of("importance"))
    for rate in (None, 0.0, 0.05):
        await add_old(aged_world, f"rate {rate}", "episodic", days=50, decay_rate=rate)

    found = await aged_world.recall.search(aged_world.agent, search_request(vector=vector_of("query")))

    assert [result.record.content for result in found.results] == ["rate 0.0", "rate None", "rate 0.05"]


async def clean(world: World, preset: str) -> dict[str, int]:
    """Clean up by the rules of the preset, without a removal limit; return the counts by reason."""
    settings = effective_settings(probe({"preset": preset, "lifecycle": {"maxRemovalPercent": 100}}))
    cleanup = Cleanup(world.clock, min_pause_s=0)
    run = await cleanup.run(world.agent, build_rules(settings.lifecycle, settings.ranking, world.clock.now_ms()))
    return {str(reason): count for reason, count in run.counts.items()}


async def test_cortex_removes_below_one_percent(aged_world: World) -> None:
    aged_world.set_ranking(ranking_of("cortex"))
    # 0.5 ** (days / 14) is 0.0100 after 93 days.
    await add_old(aged_world, "faded", "episodic", days=94)
    await add_old(aged_world, "fading", "episodic", days=92)

    await clean(aged_world, "cortex")

    assert {row.content for row in await aged_world.rows()} == {"fading"}


async def test_cortex_limits_chains_to_five(aged_world: World) -> None:
    aged_world.set_ranking(ranking_of("cortex"))
    older = None
    for number in range(7):
        older = await aged_world.add(f"v{number}", type="fact", supersedes=older)
        aged_world.clock.move(ms=1)

    await clean(aged_world, "cortex")

    remaining = [row.content for row in await aged_world.rows(include_superseded=True)]
    assert len(remaining) == 5
    assert {"v5", "v6"} <= set(remaining)


async def test_cognitive_prunes_old_doubtful_memories(aged_world: World) -> None:
    ranking = ranking_of("cognitive")
    # The memories are stored as before the preset required any field.
    aged_world.set_ranking(replace(ranking, types=tuple(replace(type_, required=()) for type_ in ranking.types)))
    await add_old(aged_world, "pruned", "episodic", days=366, importance=0.2)
    await add_old(aged_world, "doubted", "semantic", days=366, importance=0.2, confidence=0.2)
    await add_old(aged_world, "sure", "semantic", days=366, importance=0.2)
    await add_old(aged_world, "important", "episodic", days=366, importance=0.9)
    await add_old(aged_world, "younger", "episodic", days=364, importance=0.2)

    await clean(aged_world, "cognitive")

    assert {row.content for row in await aged_world.rows()} == {"sure", "important", "younger"}
