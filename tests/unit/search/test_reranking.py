"""Order of reranked results, and results with a maximum number for each session."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.search.results import RerankedPoints, cap_sessions, max_fetched, rerank_points
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


def sessions(spelled: str) -> list[dict[str, Any]]:
    """Build points whose ids are letter and place; the letter is the session, `-` is none."""
    points = points_of([f"{session}{place}" for place, session in enumerate(spelled)])
    for point, session in zip(points, spelled, strict=True):
        point["payload"] |= {} if session == "-" else {"sessionId": session}
    return points


@pytest.mark.parametrize(
    ("spelled", "per_session", "top_k", "expected", "left_out"),
    [
        ("aaabb", None, 3, ["a0", "a1", "a2"], []),
        ("aaabb", 1, 2, ["a0", "b3"], ["a1", "a2"]),
        ("aaabb", 2, 3, ["a0", "a1", "b3"], ["a2"]),
        ("aaabb", 2, 2, ["a0", "a1"], []),
        ("-a-a-", 1, 4, ["-0", "a1", "-2", "-4"], ["a3"]),
        ("", 1, 3, [], []),
    ],
)
def test_next_best_results_take_the_places(
    spelled: str, per_session: int | None, top_k: int, expected: list[str], left_out: list[str]
) -> None:
    capped = cap_sessions(sessions(spelled), per_session, top_k)

    assert [point["id"] for point in capped.points] == expected
    assert [point["id"] for point in capped.left_out] == left_out
    assert capped.warnings == ()


def test_sessions_of_two_users_are_two() -> None:
    points = sessions("aa")
    points[1]["payload"]["userId"] = "v"

    assert cap_sessions(points, 1, 2).points == points


@pytest.mark.parametrize(("spelled", "warns"), [("aaa", True), ("a", False)])
def test_too_few_sessions_are_a_warning(spelled: str, *, warns: bool) -> None:
    capped = cap_sessions(sessions(spelled), 1, 2)

    assert len(capped.points) == 1
    assert [warning.partition(":")[0] for warning in capped.warnings] == (["diversity"] if warns else [])


@pytest.mark.parametrize(("top_k", "fetched"), [(1, 10), (10, 100), (100, 300), (10_000, 10_200)])
def test_number_of_fetched_results_is_bounded(top_k: int, fetched: int) -> None:
    assert max_fetched(top_k) == fetched
