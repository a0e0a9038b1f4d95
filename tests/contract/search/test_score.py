"""The engine's score equals the oracle's within 1e-5."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

from agentmemory_operator.search.rules.candidates import similarity_formula, similarity_of
from agentmemory_operator.search.rules.score import compute_score, score_query
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.variables import DAY_MS, ScoreInput
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import Weights
from tests.support.engine.agents import EVERYTHING, World, vector_of
from tests.support.engine.reused_agents import reuse_world
from tests.support.spec.generator import draw_examples

NOW_MS = 1_795_000_000_000
AGES_MS = [-DAY_MS, -1, 0, 1, 1000, 60_000, 3_600_000, DAY_MS, 30 * DAY_MS, 365 * DAY_MS, 5 * 365 * DAY_MS]
NAMES = ["fact", "task", "episodic", "decision", "removed"]
POINTS = 200


def payload_of(number: int) -> dict[str, Any]:
    """Return a payload of an age from the future to five years, some values missing."""
    draw = random.Random(number)
    age_ms = int(draw.choice(AGES_MS) * draw.uniform(0.5, 1.5))
    payload: dict[str, Any] = {"number": number, "type": draw.choice(NAMES), "createdAt": NOW_MS - age_ms}
    if number % 7:
        payload["importance"] = draw.choice([0.0, 0.25, 0.5, 1.0, draw.random()])
    if number % 5:
        payload["accessCount"] = draw.choice([0, 1, 9, 1000, 10**6])
    if number % 3:
        payload["confidence"] = draw.choice([0.0, 0.3, 1.0, draw.random()])
    return payload


def memory_of(payload: dict[str, Any], similarity: float) -> ScoreInput:
    values = {"importance": payload.get("importance"), "access_count": payload.get("accessCount")}
    values["confidence"] = payload.get("confidence")
    given = {name: value for name, value in values.items() if value is not None}
    return ScoreInput(type=payload["type"], similarity=similarity, created_at=payload["createdAt"], **given)


async def fill(world: World) -> World:
    points = [
        {"id": number, "vector": vector_of(number), "payload": payload_of(number)} for number in range(1, POINTS + 1)
    ]
    await world.agent.store.upsert(world.agent.alias, points)
    return world


async def largest_difference(world: World, ranking: Ranking, *, now_ms: int = NOW_MS) -> float:
    """Return the largest difference between engine and oracle over all points."""
    distance = world.agent.distance
    nearest = {"query": vector_of("query"), "limit": POINTS, "params": {"exact": True}}
    query = score_query(ranking, now_ms=now_ms, distance=distance, similarity=similarity_formula(distance))
    body = {"prefetch": nearest, "query": query, "limit": POINTS, "with_payload": True}
    scored, by_similarity = await world.agent.store.query_batch(world.agent.alias, [body, nearest])
    similarity = {point["id"]: similarity_of(distance, point["score"]) for point in by_similarity}
    differences = [
        abs(
            point["score"]
            - compute_score(memory_of(point["payload"], similarity[point["id"]]), ranking, now_ms=now_ms).score
        )
        for point in scored
    ]
    assert len(differences) == POINTS
    return max(differences)


@st.composite
def rankings(draw: st.DrawFn) -> Ranking:
    shares = draw(st.tuples(*[st.floats(0, 1)] * 3).filter(lambda shares: sum(shares) > 0.01))
    half_life = st.none() | st.floats(0.001, 3650) | st.sampled_from([14.0, 365.0])
    types = [
        MemoryType(name, draw(half_life), draw(st.sampled_from([1.0, 1.0, 1.2, 0.5]) | st.floats(0.1, 3)))
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True))
    ]
    return Ranking(
        weights=Weights(*(share / sum(shares) for share in shares)),
        utility_norm=draw(st.floats(0.5, 10)),
        confidence_share=draw(st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)),
        limit=10,
        score_threshold=0,
        min_similarity=-1,
        types=tuple(types),
    )


@pytest.mark.parametrize("distance", ["Cosine", "Dot", "Euclid"])
async def test_cortex_formula_equals_oracle(qdrant_url: str, distance: str) -> None:
    async with reuse_world(qdrant_url, distance=distance) as world:
        assert await largest_difference(await fill(world), EVERYTHING) < 1e-5


@pytest.mark.parametrize("half_life_days", [1 / 24, 1 / 1440])
async def test_short_half_lives_keep_precision(world: World, half_life_days: float) -> None:
    types = tuple(MemoryType(name, half_life_days) for name in NAMES)
    ranking = replace(EVERYTHING, types=types, weights=Weights(0, 1, 0))
    await fill(world)

    for now_ms in (NOW_MS, NOW_MS + 65_537, 2**24 * 106_990 - 1):
        assert await largest_difference(world, ranking, now_ms=now_ms) < 1e-5


async def test_random_ranking_equals_oracle(world: World) -> None:
    await fill(world)

    for ranking in draw_examples(rankings(), count=60):
        assert await largest_difference(world, ranking) < 1e-5, ranking
