"""Reranking of the best results by a fake reranker, over a real engine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.errors import AgentMemoryError, RerankerUnavailable, SpecInvalid
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.search.answers import SearchAnswer
from agentmemory_operator.spec.presets import Weights
from agentmemory_operator.spec.presets.table import Reranking
from tests.support.engine.agents import EVERYTHING, SIZE, World, search_request

# Contents in order of similarity to the query.
CONTENTS = "abcde"
BY_SIMILARITY = replace(EVERYTHING, weights=Weights(1, 0, 0))


class Axes:
    """Implements ports.Embedder; every query is the first axis."""

    dimensions = SIZE

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [[1.0] + [0.0] * (SIZE - 1) for _ in texts]


@pytest.fixture
async def alphabet(world: World) -> World:
    for number, content in enumerate(CONTENTS):
        await world.add(content, vector=[1.0, number / 10] + [0.0] * (SIZE - 2))
    world.set_embedder(Axes())
    rerank(world)
    return world


def rerank(world: World, *, candidates: int = 3, **more: Any) -> None:
    world.set_ranking(replace(BY_SIMILARITY, rerank=Reranking(model="m", candidates=candidates), **more))


async def search(world: World, **more: Any) -> SearchAnswer:
    return await world.recall.search(world.agent, search_request(**{"user_id": "u", "query": "q"} | more))


def contents(answer: SearchAnswer) -> str:
    return "".join(found.record.content for found in answer.results)


async def test_candidates_are_reordered_and_come_first(alphabet: World) -> None:
    answer = await search(alphabet)

    assert contents(answer) == "cbade"
    assert alphabet.reranker.read == [("m", "q", ("a", "b", "c"))]


async def test_more_candidates_than_results_are_reranked(alphabet: World) -> None:
    assert contents(await search(alphabet, top_k=1)) == "c"


async def test_scores_are_kept_beside_rerank_numbers(alphabet: World) -> None:
    answer = await search(alphabet, explain=True)

    scores = {found.record.content: found.score for found in answer.results}
    assert sorted(scores, key=scores.__getitem__, reverse=True) == list(CONTENTS)
    assert [found.rerank for found in answer.results] == [99.0, 98.0, 97.0, None, None]
    assert [found.rank_before for found in answer.results] == [3, 2, 1, 4, 5]
    assert answer.candidates is not None
    assert answer.candidates.is_exact


async def test_results_below_threshold_are_not_reranked(alphabet: World) -> None:
    threshold = (await search(alphabet, top_k=5, explain=True)).results[1].score

    answer = await search(alphabet, threshold=threshold - 1e-6, top_k=3)

    assert alphabet.reranker.read[-1][2] == ("a", "b")
    assert (contents(answer), answer.removed_by_threshold) == ("ba", 1)


async def test_only_returned_results_count_as_accessed(alphabet: World) -> None:
    await search(alphabet, top_k=1)
    await alphabet.counts.flush()

    assert {row.content: row.access_count for row in await alphabet.rows()} == dict.fromkeys(CONTENTS, 0) | {"c": 1}


async def test_vector_search_is_not_reranked(alphabet: World) -> None:
    answer = await search(alphabet, query=None, vector=[1.0] + [0.0] * (SIZE - 1))

    assert (contents(answer), alphabet.reranker.read) == (CONTENTS, [])


async def test_disabled_reranking_calls_no_model(alphabet: World) -> None:
    alphabet.set_ranking(BY_SIMILARITY)

    assert (contents(await search(alphabet)), alphabet.reranker.read) == (CONTENTS, [])


@pytest.mark.parametrize("error", [SpecInvalid("InvalidSpec", "no model"), RerankerUnavailable("no model")])
async def test_failing_reranker_keeps_score_order(alphabet: World, error: AgentMemoryError) -> None:
    alphabet.reranker.error = error

    answer = await search(alphabet, top_k=2)

    assert contents(answer) == "ab"
    assert answer.warnings == ("no model; results are ordered by score",)
