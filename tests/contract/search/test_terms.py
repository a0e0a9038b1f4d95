"""Score terms without an explanation, and weights for one search, over a real engine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.search.answers import SearchAnswer
from agentmemory_operator.search.rules.hybrid import build_scoring_template
from agentmemory_operator.search.rules.score import MIN_SIMILARITY_WEIGHT
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.scoring_parameters import Importance
from agentmemory_operator.spec.expression.variables import DAY_MS
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import Weights
from tests.support.engine.agents import EVERYTHING, World, search_request, vector_of
from tests.support.engine.reused_agents import reuse_world

BY_SIMILARITY = replace(EVERYTHING, weights=Weights(1, 0, 0))


async def search(world: World, **more: Any) -> SearchAnswer:
    return await world.recall.search(world.agent, search_request(**{"user_id": "u", "vector": vector_of("q")} | more))


def contents(answer: SearchAnswer) -> list[str]:
    return [found.record.content for found in answer.results]


class CountingStore:
    """A store that counts the searches sent to the engine."""

    def __init__(self, inner: PointStore) -> None:
        self._inner = inner
        self.searches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def query(self, collection: str, body: Json) -> list[Json]:
        self.searches += 1
        return await self._inner.query(collection, body)

    async def query_batch(self, collection: str, bodies: Sequence[Json]) -> list[list[Json]]:
        self.searches += len(bodies)
        return await self._inner.query_batch(collection, bodies)


TERMS = ("recency", "utility")


@pytest.mark.parametrize(
    ("distance", "weights"),
    [
        ("Cosine", Weights(0.5, 0.3, 0.2)),
        ("Cosine", Weights(0.02, 0.9, 0.08)),
        ("Euclid", Weights(MIN_SIMILARITY_WEIGHT, 0.9, 0.05)),
        ("Dot", Weights(MIN_SIMILARITY_WEIGHT, 0.9, 0.05)),
        ("Dot", Weights(0, 1, 0)),
    ],
)
async def test_terms_equal_those_of_explain(qdrant_url: str, distance: str, weights: Weights) -> None:
    async with reuse_world(qdrant_url, distance=distance) as world:
        for number in range(12):
            created_at = world.clock.now_ms() - number * 37 * DAY_MS
            await world.add(
                f"m{number}", type=("fact", "task")[number % 2], created_at=created_at, importance=number / 12
            )
        types = (MemoryType("fact", 365), MemoryType("task", 30, 1.7))
        world.set_ranking(replace(EVERYTHING, types=types))
        counting = CountingStore(world.agent.store)
        world.agent = replace(world.agent, store=cast(PointStore, counting))

        # No access is counted between the two searches.
        found = await search(world, terms=True, weights=weights)
        searches = counting.searches
        explained = await search(world, explain=True, weights=weights)

        # If the weight of the similarity is too small for a float32, a second list is read.
        assert searches == (1 if weights.similarity >= MIN_SIMILARITY_WEIGHT else 2)
        explained_by_id = {hit.record.id: hit for hit in explained.results}
        assert len(explained_by_id) == len(found.results) == 10
        for hit in found.results:
            explained_hit = explained_by_id[hit.record.id]
            assert hit.match
            assert explained_hit.match
            assert hit.terms
            assert explained_hit.terms
            assert hit.match.similarity == pytest.approx(explained_hit.match.similarity, abs=1e-5)
            for name in TERMS:
                assert hit.terms.terms[name] == pytest.approx(explained_hit.terms.terms[name], abs=1e-5)


async def test_request_weights_apply_to_one_search(world: World) -> None:
    await world.add("q", created_at=world.clock.now_ms() - 200 * DAY_MS)
    await world.add("other")
    world.set_ranking(BY_SIMILARITY)

    weighted = await search(world, weights=Weights(0.1, 0.9, 0), explain=True)
    after = await search(world)

    assert contents(weighted) == ["other", "q"]
    assert weighted.ranking.weights == Weights(0.1, 0.9, 0)
    for hit in weighted.results:
        assert hit.terms is not None
        assert hit.score == pytest.approx(hit.terms.score, abs=1e-5)
    assert contents(after) == ["q", "other"]


@pytest.mark.parametrize(
    ("ranking", "way_out"),
    [
        (replace(EVERYTHING, allows_overrides=False), "set spec.scoring.allowOverrides to true"),
        (replace(EVERYTHING, model=Importance()), "scoring model is Importance, which has no weights"),
    ],
)
async def test_request_weights_are_rejected_if_not_allowed(world: World, ranking: Ranking, way_out: str) -> None:
    world.set_ranking(ranking)

    with pytest.raises(RequestInvalid, match=way_out):
        await search(world, weights=Weights(1, 0, 0))


async def test_request_weights_are_not_cached(world: World) -> None:
    await world.add("q")
    await search(world)
    before = build_scoring_template.cache_info().currsize

    for number in range(20):
        await search(world, weights=Weights(number / 20, 1 - number / 20, 0))

    assert build_scoring_template.cache_info().currsize == before
