"""Rank fusion over a real engine: scores match the reference design for any `k` and weights.

The expected numbers are computed here from the ranks that the memories have by construction.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from agentmemory_operator.adapters.entity_lists import read_entity_lists
from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.search.answers import SearchAnswer
from agentmemory_operator.spec.effective.settings import Ranking, effective_ranking
from agentmemory_operator.spec.expression.variables import DAY_MS
from tests.support.engine.agents import SIZE, World, open_world, search_request
from tests.support.spec.plans import probe

QUERY = "apple pear plum grape cherry"
# By content: rank by vector and rank by keyword, None if not on the list. The word sets are nested, so more common
# words mean a higher score. `banana` is below the preset's minimum similarity.
RANKS: dict[str, tuple[int | None, int | None]] = {
    "bread": (1, None),
    "pear plum grape cherry": (2, 2),
    "apple pear plum grape cherry": (3, 1),
    "grape cherry": (4, 4),
    "plum grape cherry": (5, 3),
    "cherry banana": (None, 5),
}
CONFIDENCE = {"grape cherry": 0.7}
AGE_DAYS = {"plum grape cherry": 10}
FIGURES = [(60, 0.5), (60, 0.2), (60, 0.9), (1, 0.5), (2, 0.7), (30, 0.5), (997, 0.35), (10_000, 0.5), (10_000, 0.01)]


def brain(fusion: dict[str, Any]) -> Ranking:
    return effective_ranking(probe({"preset": "brain", "scoring": {"fusion": fusion}}))


def vector(similarity: float) -> list[float]:
    """Return a vector of this similarity to the query, which is the first axis."""
    return [similarity, (1 - similarity**2) ** 0.5, *[0.0] * (SIZE - 2)]


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with open_world(qdrant_url, keyword=KeywordSource(language="english", window=2)) as world:
        world.set_ranking(brain({}))
        for content, (rank, _) in RANKS.items():
            await world.add(
                content,
                type="fact",
                vector=vector(0.1 if rank is None else 1 - rank / 10),
                confidence=CONFIDENCE.get(content, 1.0),
                created_at=world.clock.now_ms() - AGE_DAYS.get(content, 0) * DAY_MS,
            )
        yield world


async def search(world: World, query: str = QUERY, **more: Any) -> SearchAnswer:
    return await world.recall.search(world.agent, search_request(query=query, vector=vector(1.0), explain=True, **more))


def design_score(ranks: tuple[int | None, ...], k: int, weights: tuple[Fraction, ...]) -> Fraction:
    """Return the design's weighted sum of 1 / (k + rank), divided by its maximum."""
    first = sum((weight / (k + 1) for weight in weights), Fraction(0))
    found = (weight / (k + rank) for weight, rank in zip(weights, ranks, strict=True) if rank is not None)
    return sum(found, Fraction(0)) / first


def engine_score(ranks: tuple[int | None, ...], k: int, weights: tuple[Fraction, ...]) -> Fraction:
    """Return the result of the engine's own fusion, which divides the rank by the weight."""
    first = sum((1 / (1 / weight + k - 1) for weight in weights), Fraction(0))
    found = (1 / (rank / weight + k - 1) for weight, rank in zip(weights, ranks, strict=True) if rank is not None)
    return sum(found, Fraction(0)) / first


def confidence_of(content: str) -> float:
    """Return the decayed confidence; nothing was accessed, so there is no boost."""
    return CONFIDENCE.get(content, 1.0) * 0.98 ** AGE_DAYS.get(content, 0)


@pytest.mark.parametrize(("k", "share"), FIGURES)
async def test_scores_match_the_design(world: World, k: int, share: float) -> None:
    world.set_ranking(brain({"k": k, "keywordWeight": share}))
    weights = (1 - Fraction(str(share)), Fraction(str(share)))
    expected = {content: float(design_score(ranks, k, weights)) for content, ranks in RANKS.items()}
    engine_scores = {content: float(engine_score(ranks, k, weights)) for content, ranks in RANKS.items()}

    answer = await search(world)

    scores = {found.record.content: found.score for found in answer.results}
    assert scores == pytest.approx(
        {content: number * confidence_of(content) for content, number in expected.items()}, abs=1e-6
    )
    assert max(abs(expected[content] - engine_scores[content]) for content in RANKS) > 1e-5
    for found in answer.results:
        assert found.terms is not None
        assert found.match is not None
        assert found.match.fused == pytest.approx(expected[found.record.content], abs=1e-6)
        assert found.terms.score == pytest.approx(found.score, abs=1e-6)


async def test_second_on_both_lists_scores_61_of_62(world: World) -> None:
    found = {each.record.content: each.score for each in (await search(world)).results}

    assert found["pear plum grape cherry"] == pytest.approx(61 / 62, abs=1e-6)


@pytest.mark.parametrize("share", [0.5, 0.2])
@pytest.mark.parametrize("k", [60, 3])
async def test_entity_path_adds_a_rank(world: World, k: int, share: float) -> None:
    """The weight of the entity list is 0.5; the other two weights sum to 1."""
    world.agent = replace(world.agent, entity_lists=read_entity_lists())
    world.set_ranking(brain({"k": k, "keywordWeight": share}))
    await world.add("Anna Schmidt eats bread", type="fact", vector=vector(0.95), confidence=1.0)
    weights = (1 - Fraction(str(share)), Fraction(str(share)), Fraction(1, 2))

    answer = await search(world, "Anna Schmidt")

    scores = {found.record.content: found.score for found in answer.results}
    assert scores["Anna Schmidt eats bread"] == pytest.approx(1, abs=1e-6)
    # `bread` is second by vector, and on no other list.
    assert scores["bread"] == pytest.approx(float(design_score((2, None, None), k, weights)), abs=1e-6)
    assert [found.terms.score for found in answer.results if found.terms] == pytest.approx(
        [found.score for found in answer.results], abs=1e-6
    )


async def test_short_lists_are_ranked_alone(world: World) -> None:
    """A memory beyond the end of one list has the rank of the other lists only."""
    world.set_ranking(replace(brain({"k": 60}), candidates=2))
    half = (Fraction(1, 2), Fraction(1, 2))

    answer = await search(world, top_k=2)

    scores = {found.record.content: found.score for found in answer.results}
    assert scores["pear plum grape cherry"] == pytest.approx(float(design_score((2, 2), 60, half)), abs=1e-6)
    assert scores.keys() < RANKS.keys()
