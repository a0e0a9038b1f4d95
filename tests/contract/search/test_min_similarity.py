"""A minimum similarity for one search, which overrides the one of the object."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.search.answers import SearchAnswer
from agentmemory_operator.spec.effective.settings import effective_ranking
from tests.support.engine.agents import SIZE, World, open_world, search_request
from tests.support.spec.plans import probe

SIMILARITIES = (0.95, 0.8, 0.5, 0.1, 0.05)


def vector(similarity: float) -> list[float]:
    """Return a vector of this similarity to the query, which is the first axis."""
    return [similarity, (1 - similarity**2) ** 0.5, *[0.0] * (SIZE - 2)]


@pytest.fixture(params=["importance", "brain"])
async def world(request: pytest.FixtureRequest, qdrant_url: str) -> AsyncIterator[World]:
    """Memories of known similarity under a preset with a minimum similarity; `brain` also searches by keyword."""
    has_words = request.param == "brain"
    keyword = KeywordSource(language="english", window=2) if has_words else None
    async with open_world(qdrant_url, keyword=keyword) as world:
        world.set_ranking(effective_ranking(probe({"preset": request.param})))
        for similarity in SIMILARITIES:
            type_ = "fact" if has_words else "semantic"
            await world.add(f"memory {similarity}", type=type_, vector=vector(similarity))
        yield world


async def search(world: World, **more: Any) -> SearchAnswer:
    query = {"query": "unrelated"} if world.agent.keyword else {}
    return await world.recall.search(world.agent, search_request(vector=vector(1.0), **query, **more))


def contents_of(answer: SearchAnswer) -> set[str]:
    return {found.record.content for found in answer.results}


def at_least(similarity: float) -> set[str]:
    return {f"memory {each}" for each in SIMILARITIES if each >= similarity}


@pytest.mark.parametrize("min_similarity", [-1.0, 0.0, 0.3, 0.6, 0.9, 1.0])
async def test_request_overrides_min_similarity(world: World, min_similarity: float) -> None:
    own = world.agent.settings.ranking.min_similarity

    answer, plain = await search(world, min_similarity=min_similarity, explain=True), await search(world)

    assert contents_of(answer) == at_least(min_similarity)
    assert answer.ranking.min_similarity == min_similarity
    assert answer.candidates is not None
    assert answer.candidates.scored == len(at_least(min_similarity))
    assert answer.candidates.is_exact or world.agent.keyword is not None
    assert (contents_of(plain), plain.ranking.min_similarity) == (at_least(own), own)
    assert any(at_least(min_similarity) != at_least(own) for min_similarity in (-1.0, 0.9))


async def test_override_is_rejected_without_permission(world: World) -> None:
    world.set_ranking(replace(world.agent.settings.ranking, allows_overrides=False))

    with pytest.raises(RequestInvalid, match=r"set spec\.scoring\.allowOverrides to true") as refused:
        await search(world, min_similarity=0.2)

    assert [error.field for error in refused.value.errors] == ["min_similarity"]
    assert contents_of(await search(world)) == at_least(world.agent.settings.ranking.min_similarity)


@pytest.mark.parametrize("distance", ["Euclid", "Dot"])
async def test_applies_to_similarity_of_any_distance(qdrant_url: str, distance: str) -> None:
    async with open_world(qdrant_url, distance=distance) as world:
        near, far = [0.5, *[0.0] * (SIZE - 1)], [0.1, *[0.0] * (SIZE - 1)]
        await world.add("near", vector=near)
        await world.add("far", vector=far)
        question = [1.0, *[0.0] * (SIZE - 1)] if distance == "Dot" else near
        request = search_request(vector=question, min_similarity=0.2 if distance == "Dot" else 0.9)

        answer = await world.recall.search(world.agent, request)

    assert contents_of(answer) == {"near"}
