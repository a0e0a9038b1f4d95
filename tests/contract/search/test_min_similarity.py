"""The least similarity of one search in the place of the object's."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.search.search import SearchAnswer
from agentmemory_operator.spec.effective.settings import effective_ranking
from tests.support.engine.agents import SIZE, World, open_world, search_request
from tests.support.spec.plans import probe

SIMILARITIES = (0.95, 0.8, 0.5, 0.1, 0.05)


def vector(similarity: float) -> list[float]:
    """Return a vector of this similarity to the query's, which is the first axis."""
    return [similarity, (1 - similarity**2) ** 0.5, *[0.0] * (SIZE - 2)]


@pytest.fixture(params=["importance", "brain"])
async def world(request: pytest.FixtureRequest, qdrant_url: str) -> AsyncIterator[World]:
    """Memories of known similarity under a preset with a least similarity; `brain` searches by words too."""
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


def found_in(answer: SearchAnswer) -> set[str]:
    return {found.record.content for found in answer.results}


def at_least(similarity: float) -> set[str]:
    return {f"memory {each}" for each in SIMILARITIES if each >= similarity}


@pytest.mark.parametrize("least", [-1.0, 0.0, 0.3, 0.6, 0.9, 1.0])
async def test_a_search_has_its_own_least_similarity(world: World, least: float) -> None:
    own = world.agent.settings.ranking.min_similarity

    answer, plain = await search(world, min_similarity=least, explain=True), await search(world)

    assert found_in(answer) == at_least(least)
    assert answer.ranking.min_similarity == least
    assert answer.candidates is not None
    assert answer.candidates.scored == len(at_least(least))
    assert answer.candidates.is_exact or world.agent.keyword is not None
    assert (found_in(plain), plain.ranking.min_similarity) == (at_least(own), own)
    assert any(at_least(least) != at_least(own) for least in (-1.0, 0.9))


async def test_an_object_that_lets_no_figure_through_refuses_it(world: World) -> None:
    world.set_ranking(replace(world.agent.settings.ranking, allows_overrides=False))

    with pytest.raises(RequestInvalid, match=r"set spec\.scoring\.allowOverrides to true") as refused:
        await search(world, min_similarity=0.2)

    assert [error.field for error in refused.value.errors] == ["min_similarity"]
    assert found_in(await search(world)) == at_least(world.agent.settings.ranking.min_similarity)


@pytest.mark.parametrize("distance", ["Euclid", "Dot"])
async def test_it_is_of_the_similarity_whatever_the_distance(qdrant_url: str, distance: str) -> None:
    async with open_world(qdrant_url, distance=distance) as world:
        near, far = [0.5, *[0.0] * (SIZE - 1)], [0.1, *[0.0] * (SIZE - 1)]
        await world.add("near", vector=near)
        await world.add("far", vector=far)
        question = [1.0, *[0.0] * (SIZE - 1)] if distance == "Dot" else near
        request = search_request(vector=question, min_similarity=0.2 if distance == "Dot" else 0.9)

        answer = await world.recall.search(world.agent, request)

    assert found_in(answer) == {"near"}
