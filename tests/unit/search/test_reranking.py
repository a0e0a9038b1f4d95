"""The order of what is read again, where the readings do not decide it."""

from collections.abc import Sequence
from typing import Any

import pytest

from agentmemory_operator.search.rerank import read_again
from agentmemory_operator.spec.presets.table import Reranking
from tests.support.engine.fakes import FakeReranker


def points_of(contents: Sequence[str]) -> list[dict[str, Any]]:
    fixed = {"agentId": "a", "userId": "u", "type": "fact", "createdAt": 0, "updatedAt": 0}
    return [{"id": text, "payload": {"id": text, "content": text} | fixed} for text in contents]


async def test_texts_that_read_alike_keep_their_order() -> None:
    points = points_of(["a2", "a1", "b", "a3"])

    reread = await read_again(FakeReranker(), Reranking(model="m"), "q", points)

    assert [point["id"] for point in reread.points] == ["b", "a2", "a1", "a3"]


@pytest.mark.parametrize(
    ("asked", "query", "contents"),
    [(None, "q", ["a", "b"]), (Reranking(model="m"), None, ["a", "b"]), (Reranking(model="m"), "q", [])],
    ids=["off", "no query", "no result"],
)
async def test_nothing_is_read(asked: Reranking | None, query: str | None, contents: list[str]) -> None:
    reranker = FakeReranker()

    reread = await read_again(reranker, asked, query, points_of(contents))

    assert ([point["id"] for point in reread.points], reranker.read) == (contents, [])
