"""Search over a real engine."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.rules.criteria_json import parse_filters
from agentmemory_operator.memories.rules.filters import Selection, visible_filter
from agentmemory_operator.memories.stored_memories import delete_head, list_page
from agentmemory_operator.search.answers import SearchAnswer
from agentmemory_operator.search.rules.score import compute_score
from agentmemory_operator.spec.expression.scoring_parameters import Priority
from agentmemory_operator.spec.expression.variables import DAY_MS, ScoreInput
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import Weights
from tests.support.engine.agents import (
    EVERYTHING,
    SIZE,
    FakeEmbedder,
    World,
    list_request,
    open_world,
    search_request,
    set_strict_mode,
    vector_of,
)
from tests.support.engine.interleaved_store import CrashingStore
from tests.support.engine.reused_agents import reuse_world

BY_SIMILARITY = replace(EVERYTHING, weights=Weights(1, 0, 0))
BY_RECENCY = replace(EVERYTHING, weights=Weights(0, 1, 0))


async def search(world: World, near: str = "q", **more: Any) -> SearchAnswer:
    vector = more.pop("vector", vector_of(near))
    return await world.recall.search(world.agent, search_request(**{"user_id": "u", "vector": vector} | more))


def contents(answer: SearchAnswer) -> list[str]:
    return [found.record.content for found in answer.results]


async def test_empty_collection_gives_no_results(world: World) -> None:
    answer = await search(world, explain=True)

    assert (answer.results, answer.total_candidates, answer.removed_by_threshold) == ((), 0, 0)
    assert answer.candidates is not None
    assert answer.candidates.is_exact


async def test_new_weights_change_order_and_generation(world: World) -> None:
    await world.add("q", created_at=world.clock.now_ms() - 200 * DAY_MS)
    await world.add("other")
    world.set_ranking(BY_SIMILARITY)
    before = await search(world)

    world.set_ranking(BY_RECENCY)
    world.agent = replace(world.agent, settings=replace(world.agent.settings, generation=2))
    after = await search(world)

    assert (contents(before), before.generation) == (["q", "other"], 1)
    assert (contents(after), after.generation) == (["other", "q"], 2)


async def test_boosted_type_comes_first(world: World) -> None:
    await world.add("q")
    await world.add("q", type="correction")
    world.set_ranking(replace(EVERYTHING, types=(MemoryType("fact", 365), MemoryType("correction", 365, 1.2))))

    assert [found.record.type for found in (await search(world)).results] == ["correction", "fact"]


async def test_removed_type_is_still_found(world: World) -> None:
    await world.add("q", type="task")
    world.set_ranking(replace(BY_RECENCY, types=(MemoryType("fact", 365),)))

    (found,) = (await search(world)).results

    assert found.score == pytest.approx(0.5)


async def test_only_readable_memories_are_found(world: World) -> None:
    now_ms = world.clock.now_ms()
    await world.add("another user's", user_id="v")
    await world.add("new", supersedes=await world.add("old"))
    await world.add("expired", expires_at=now_ms)
    await world.add("valid", expires_at=now_ms + 1)
    await delete_head(world.agent, await world.add("deleted"), user_id="u")

    answer = await search(world)

    assert sorted(contents(answer)) == ["new", "valid"]
    assert answer.total_candidates == 2


async def test_types_tags_and_session_filter_results(world: World) -> None:
    await world.add("a", type="task", tags=("x", "y"), session_id="s")
    await world.add("b", type="fact", tags=("x",), session_id="s")
    await world.add("c", type="person")

    assert sorted(contents(await search(world, types=("task", "fact")))) == ["a", "b"]
    assert sorted(contents(await search(world, tags=("x", "y")))) == ["a", "b"]
    assert contents(await search(world, tags=("x", "y"), tags_match="all")) == ["a"]
    assert sorted(contents(await search(world, session_id="s"))) == ["a", "b"]
    assert contents(await search(world, types=("person",), tags=("x",))) == []


async def test_at_time_finds_memories_valid_then(world: World) -> None:
    old = await world.add("old", created_at=100)
    await world.add("new", supersedes=old, created_at=200)
    await world.add("bounded", created_at=100, valid_from=150, valid_to=250)
    await delete_head(world.agent, await world.add("deleted", created_at=100), user_id="u")

    async def at(time_ms: int) -> list[str]:
        return sorted(contents(await search(world, at_time=time_ms)))

    assert [await at(time_ms) for time_ms in (99, 100, 199, 200, 249, 250)] == [
        [],
        ["old"],
        ["bounded", "old"],
        ["bounded", "new"],
        ["bounded", "new"],
        ["new"],
    ]


async def test_filters_limit_the_candidates(world: World) -> None:
    await world.add("a", metadata={"ticket": 7}, tags=("x",))
    await world.add("b", metadata={"ticket": 8})
    await world.add("c", user_id="v", metadata={"ticket": 7})

    answer = await search(world, criterion=parse_filters({"NOT": [{"metadata.ticket": 8}]}))

    assert (contents(answer), answer.total_candidates) == (["a"], 1)
    assert contents(await search(world, criterion=parse_filters({"OR": [{"tags": "x"}, {"metadata.ticket": 8}]}))) != []
    assert contents(await search(world, criterion=parse_filters({"metadata.ticket": 9}))) == []


async def test_unindexed_metadata_filter_gives_a_warning(world: World) -> None:
    criterion = parse_filters({"metadata.ticket": {"gte": 7}})
    before = await search(world, criterion=criterion)
    indexed = dict(world.agent.settings.indexes) | {"metadata.ticket": "integer"}
    world.agent = replace(world.agent, settings=replace(world.agent.settings, indexes=indexed))

    assert "{field: metadata.ticket, type: float} to spec.index.payloadIndexes" in before.warnings[0]
    assert (await search(world, criterion=criterion)).warnings == ()
    assert (await search(world, criterion=parse_filters({"type": "fact"}))).warnings == ()


async def test_warning_names_the_request_field(world: World) -> None:
    await world.add("a")

    answer = await search(world, at_time=1, namespace=("x",), criterion=parse_filters({"source": "mail"}))

    advised = "{field: source, type: keyword}", "{field: validFrom, type: integer}"
    advised += "{field: validTo, type: integer}", "{field: namespacePaths, type: keyword}"
    for warning, field, index in zip(
        answer.warnings, ("filters", "at_time", "at_time", "namespace"), advised, strict=True
    ):
        assert warning.startswith(f"{field}: no index on ")
        assert index in warning


async def test_object_sets_limit_and_threshold(world: World) -> None:
    for number in range(20):
        await world.add(str(number))
    world.set_ranking(replace(BY_SIMILARITY, limit=7, score_threshold=0.1))

    answer = await search(world)

    assert len(answer.results) + answer.removed_by_threshold == 7
    assert all(found.score >= 0.1 for found in answer.results)
    assert answer.total_candidates == 20


async def test_request_overrides_limit_and_threshold(world: World) -> None:
    for number in range(20):
        await world.add(str(number))
    world.set_ranking(replace(BY_SIMILARITY, score_threshold=0.9))
    scores = [found.score for found in (await search(world, top_k=20, threshold=-2)).results]

    answer = await search(world, top_k=20, threshold=0)

    assert len(scores) == 20
    assert len(answer.results) == sum(score_ >= 0 for score_ in scores)
    assert answer.removed_by_threshold == sum(score_ < 0 for score_ in scores)
    assert len((await search(world, top_k=3, threshold=-2)).results) == 3


async def test_dissimilar_memories_are_not_scored(world: World) -> None:
    await world.add("q")
    await world.add("opposite", vector=[-value for value in vector_of("q")])
    world.set_ranking(replace(EVERYTHING, min_similarity=0.1))

    answer = await search(world, explain=True)

    assert contents(answer) == ["q"]
    assert answer.candidates is not None
    assert (answer.candidates.scored, answer.candidates.eligible) == (1, 2)


async def test_count_is_cached_across_stores(world: World) -> None:
    """A search after a store makes one call and has the right count."""
    await world.add("a")
    await search(world)
    store = CrashingStore(world.agent.store, 1000)
    counting_agent: Any = replace(world.agent, store=store)  # type: ignore[arg-type]
    for number in range(5):
        await world.add(f"b{number}")
        store.calls = 0
        answer = await world.recall.search(counting_agent, search_request(vector=vector_of("q")))

        assert (store.calls, answer.total_candidates) == (1, 2 + number)


async def test_outdated_count_is_reduced_by_excluded_results_once(world: World) -> None:
    """Three memories match although one was counted: the model excludes one, the threshold another."""
    for name, importance in (("kept", 0.9), ("below", 0.7), ("excluded", 0.1)):
        await world.add(name, importance=importance)
    ranking = replace(EVERYTHING, model=Priority(min_priority=0.5))
    world.set_ranking(ranking)
    best, *_ = (await search(world)).results
    world.set_ranking(replace(ranking, score_threshold=best.score - 1e-3))
    world.agent = replace(world.agent, sizes=AsyncMock(get=AsyncMock(return_value=1)))

    answer = await search(world)

    assert (contents(answer), answer.removed_by_threshold) == (["kept"], 1)


@pytest.mark.parametrize(
    "more",
    [{"expires_at": 1}, {"idempotency_key": "k"}, {"supersedes": "first"}],
    ids=["that expired", "that may have been there", "in the place of another"],
)
async def test_uncertain_store_invalidates_the_count(world: World, more: dict[str, Any]) -> None:
    first = await world.add("a")
    await search(world)
    given = {name: first if value == "first" else value for name, value in more.items()}

    for _ in range(2):
        await world.try_add("b", **given)
        now = visible_filter(Selection(user_id="u"), world.clock.now_ms())
        counted = (await search(world)).total_candidates
        assert counted == await world.agent.store.count(world.agent.alias, now)


async def test_writes_update_the_count(world: World) -> None:
    await world.add("a")
    counts = [(await search(world)).total_candidates]
    memory_id = await world.add("b")
    counts.append((await search(world)).total_candidates)
    await delete_head(world.agent, memory_id, user_id="u")
    counts.append((await search(world)).total_candidates)

    assert counts == [1, 2, 1]


@pytest.mark.parametrize("distance", ["Cosine", "Dot", "Euclid"])
async def test_terms_reproduce_the_score(qdrant_url: str, distance: str) -> None:
    async with reuse_world(qdrant_url, distance=distance) as world:
        draw = random.Random(1)
        for number in range(30):
            created_at = world.clock.now_ms() - int(draw.expovariate(1 / 60) * DAY_MS)
            type_ = draw.choice(["fact", "task", "episodic"])
            await world.add(str(number), created_at=created_at, type=type_, importance=draw.random())
        world.set_ranking(
            replace(EVERYTHING, min_similarity=-100, types=(*EVERYTHING.types[1:], MemoryType("fact", 1, 1.3)))
        )

        answer = await search(world, explain=True, top_k=30)

        assert len(answer.results) == 30
        for found in answer.results:
            terms = found.terms
            assert terms is not None
            weighted = 0.5 * terms.similarity + 0.3 * terms.terms["recency"] + 0.2 * terms.terms["utility"]
            assert abs(terms.score - found.score) < 1e-5
            assert abs(terms.boost * weighted - found.score) < 1e-5
        by_similarity = sorted(answer.results, key=lambda found: -(found.terms.similarity if found.terms else 0))
        assert [found.rank_before for found in by_similarity] == list(range(1, 31))


async def test_explanation_is_off_by_default(world: World) -> None:
    await world.add("a")

    answer = await search(world)

    assert (answer.candidates, answer.results[0].terms, answer.results[0].rank_before) == (None, None, None)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"vector": [1.0] * 7}, "vector"),
        ({"vector": [0.0] * 8}, "vector"),
        ({"vector": None}, "query"),
        ({"vector": None, "query": "text"}, "query"),
        ({"query": "text"}, "query"),
        ({"types": ("nope",)}, "types"),
    ],
)
async def test_invalid_request_names_the_field(world: World, given: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        await search(world, **given)

    assert [error.field for error in refused.value.errors] == [field]


async def test_query_text_is_embedded(world: World) -> None:
    await world.add("b")
    await world.add("a")
    world.set_ranking(BY_SIMILARITY)
    world.set_embedder(FakeEmbedder())

    answer = await search(world, query="a", vector=None)

    assert contents(answer) == ["a", "b"]
    assert answer.results[0].score == pytest.approx(1)


async def test_clustered_memories_yield_the_true_best(qdrant_url: str) -> None:
    """Above the full-scan limit, several candidate lists find memories that similarity alone misses."""
    async with open_world(qdrant_url, size=32) as world:
        draw = random.Random(7)
        topics = [vector_of(("topic", number), 32) for number in range(5)]

        def near(topic: list[float]) -> list[float]:
            return [round(value + draw.gauss(0, 0.7), 4) for value in topic]

        memories = [
            IncomingMemory(
                user_id="u",
                content=str(number),
                type=draw.choice(EVERYTHING.types).name,
                importance=draw.choice([0.25, 0.5, 0.75, 1.0]),
                created_at=world.clock.now_ms() - int(draw.uniform(0, 730) * DAY_MS),
                vector=near(topics[number % 5]),
            )
            for number in range(8000)
        ]
        for start in range(0, len(memories), 1000):
            await world.remember.store(world.agent, memories[start : start + 1000])

        shares = []
        for number in range(4):
            query = near(topics[number % 5])
            answer = await search(world, vector=query, explain=True)
            best = true_best(memories, query, world)
            shares.append(len(set(contents(answer)) & best) / 10)
            assert answer.candidates is not None
            assert set(contents(answer)) == best or not answer.candidates.is_exact

        assert sum(shares) / len(shares) >= 0.99


def at_angle(degrees: float) -> list[float]:
    """Return a vector at an angle to the first axis, which is the query in these tests."""
    return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees)), *[0.0] * (SIZE - 2)]


async def add_at_angles(world: World, *, count: int, age_days: float) -> None:
    """Store memories of one age, each 1 degree further from the query."""
    created_at = world.clock.now_ms() - int(age_days * DAY_MS)
    for number in range(count):
        await world.add(f"m{number}", vector=at_angle(number), created_at=created_at, importance=0.0)


@pytest.mark.parametrize("distance", ["Cosine", "Dot", "Euclid"])
async def test_similarity_only_ranking_is_exact(qdrant_url: str, distance: str) -> None:
    async with reuse_world(qdrant_url, distance=distance) as world:
        await add_at_angles(world, count=20, age_days=1)
        world.set_ranking(replace(BY_SIMILARITY, candidates=5))

        answer = await search(world, vector=at_angle(0), top_k=5, explain=True)

    assert answer.candidates is not None
    assert (answer.candidates.scored, answer.candidates.eligible, answer.candidates.is_exact) == (5, 20, True)


async def test_missed_newer_memory_is_not_exact(world: World) -> None:
    await add_at_angles(world, count=20, age_days=1000)
    await world.add("new", vector=at_angle(60), importance=1.0)
    world.set_ranking(replace(EVERYTHING, candidates=5))
    limited = await search(world, vector=at_angle(0), top_k=1, explain=True)
    world.set_ranking(replace(EVERYTHING, candidates=100))

    full_scan = await search(world, vector=at_angle(0), top_k=1, explain=True)

    assert (contents(limited), contents(full_scan)) == (["m0"], ["new"])
    assert limited.candidates is not None
    assert full_scan.candidates is not None
    assert (limited.candidates.is_exact, full_scan.candidates.is_exact) == (False, True)


@pytest.mark.parametrize(
    ("weights", "is_exact"), [(Weights(0.95, 0.03, 0.02), True), (Weights(0.9, 0.05, 0.05), False)]
)
async def test_exactness_depends_on_other_weights(world: World, weights: Weights, *, is_exact: bool) -> None:
    """Beyond 30 degrees similarity is 0.13 lower; recency and utility add at most 0.05, or 0.1."""
    await add_at_angles(world, count=60, age_days=1000)
    world.set_ranking(replace(EVERYTHING, weights=weights, candidates=24))

    answer = await search(world, vector=at_angle(0), top_k=2, explain=True)

    assert answer.candidates is not None
    assert answer.candidates.is_exact is is_exact


def true_best(memories: list[IncomingMemory], query: list[float], world: World) -> set[str]:
    """Return the contents of the best ten by a full scan with the oracle."""

    def score_of(memory: IncomingMemory) -> float:
        assert memory.vector is not None
        scored = ScoreInput(
            type=memory.type or "",
            similarity=cosine(memory.vector, query),
            created_at=memory.created_at or 0,
            importance=memory.importance,
        )
        return compute_score(scored, EVERYTHING, now_ms=world.clock.now_ms()).score

    return {memory.content for memory in sorted(memories, key=score_of)[-10:]}


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    def product(a: Sequence[float], b: Sequence[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    return float(product(left, right) / (product(left, left) * product(right, right)) ** 0.5)


async def test_search_and_list_respect_strict_mode(world: World) -> None:
    for number in range(30):
        await world.add(f"m{number}")
    world.set_ranking(replace(EVERYTHING, max_query_limit=12))

    # Other tests share the collection.
    await set_strict_mode(world, enabled=True, max_query_limit=12, search_max_batchsize=16)
    try:
        answer = await search(world, top_k=12, explain=True)
        page = await list_page(world.agent, list_request(user_id="u", limit=1000))
        with pytest.raises(RequestInvalid, match="top_k"):
            await search(world, top_k=13)
    finally:
        await set_strict_mode(world, enabled=False)

    assert (len(answer.results), len(page.records)) == (12, 10)


async def test_both_thresholds_count_removed_results(world: World) -> None:
    for number in range(12):
        near = vector_of("q") if number % 3 else [-value for value in vector_of("q")]
        await world.add(str(number), vector=near)
    weighted = replace(BY_SIMILARITY, limit=10, score_threshold=-2, min_similarity=-1)

    removed = {}
    for name, gates in {
        "none": {},
        "similarity": {"min_similarity": 0.5},
        "score": {"score_threshold": 0.5},
        "both": {"min_similarity": 0.5, "score_threshold": 2},
    }.items():
        world.set_ranking(replace(weighted, **gates))
        answer = await search(world)
        removed[name] = (len(answer.results), answer.removed_by_threshold)

    assert removed == {"none": (10, 0), "similarity": (8, 2), "score": (8, 2), "both": (0, 10)}


async def test_explanation_counts_removed_candidates(
    world: World,
) -> None:
    for number in range(12):
        await world.add(str(number), vector=vector_of("q") if number % 3 else [-value for value in vector_of("q")])
    world.set_ranking(replace(BY_SIMILARITY, limit=2, score_threshold=2, min_similarity=0.5))

    answer = await search(world, explain=True)

    assert (answer.results, answer.removed_by_threshold) == ((), 2)
    assert answer.candidates is not None
    assert (answer.candidates.scored, answer.candidates.below_threshold, answer.candidates.eligible) == (8, 8, 12)
