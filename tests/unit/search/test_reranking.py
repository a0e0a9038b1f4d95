"""Order of reranked results."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.search.results import RerankedPoints, rerank_points
from agentmemory_operator.spec.presets.table import Reranking
from tests.support.engine.agents import EVERYTHING, settings_of
from tests.support.engine.fakes import FakeReranker


def points_of(contents: Sequence[str]) -> list[dict[str, Any]]:
    fixed = {"agentId": "a", "userId": "u", "type": "fact", "createdAt": 0, "updatedAt": 0}
    return [{"id": text, "payload": {"id": text, "content": text} | fixed} for text in contents]


async def rerank(reranker: FakeReranker, points: Sequence[dict[str, Any]], **more: Any) -> RerankedPoints:
    settings = settings_of("a", ranking=replace(EVERYTHING, rerank=Reranking(model="m", **more)))
    return await rerank_points(lambda _: reranker, settings, "q", points)


async def test_equal_scores_keep_their_order() -> None:
    points = points_of(["a2", "a1", "b", "a3"])

    reread = await rerank(FakeReranker(), points)

    assert [point["id"] for point in reread.points] == ["b", "a2", "a1", "a3"]


async def test_empty_results_skip_the_model() -> None:
    reranker = FakeReranker()

    reread = await rerank(reranker, [])

    assert (reread.points, reranker.read) == ([], [])


@pytest.mark.parametrize(
    ("url", "read", "order"),
    [("http://r/rerank", ("a", "b", "c"), "cxbya"), (None, ("a", "x", "b", "y", "c"), "yxcba")],
)
async def test_sealed_texts_are_not_sent_to_a_service(url: str | None, read: tuple[str, ...], order: str) -> None:
    reranker, points = FakeReranker(), points_of("axbyc")
    for sealed in (points[1], points[3]):
        sealed["payload"]["zone"] = "PERSONAL"

    reread = await rerank(reranker, points, url=url)

    assert [texts for _, _, texts in reranker.read] == [read]
    assert "".join(point["id"] for point in reread.points) == order
    assert set(reread.numbers) == set(read)


async def test_service_is_not_asked_for_sealed_texts_alone() -> None:
    reranker, points = FakeReranker(), points_of("ab")
    for point in points:
        point["payload"]["zone"] = "PERSONAL"

    reread = await rerank(reranker, points, url="http://r/rerank")

    assert (reread.points, reranker.read) == (points, [])
