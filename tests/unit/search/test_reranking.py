"""Order of reranked results with equal scores, and of empty results."""

from collections.abc import Sequence
from typing import Any

from agentmemory_operator.search.results import rerank_points
from agentmemory_operator.spec.presets.table import Reranking
from tests.support.engine.fakes import FakeReranker


def points_of(contents: Sequence[str]) -> list[dict[str, Any]]:
    fixed = {"agentId": "a", "userId": "u", "type": "fact", "createdAt": 0, "updatedAt": 0}
    return [{"id": text, "payload": {"id": text, "content": text} | fixed} for text in contents]


async def test_equal_scores_keep_their_order() -> None:
    points = points_of(["a2", "a1", "b", "a3"])

    reread = await rerank_points(FakeReranker(), Reranking(model="m"), "q", points)

    assert [point["id"] for point in reread.points] == ["b", "a2", "a1", "a3"]


async def test_empty_results_skip_the_model() -> None:
    reranker = FakeReranker()

    reread = await rerank_points(reranker, Reranking(model="m"), "q", [])

    assert (reread.points, reranker.read) == ([], [])
