"""Verdicts on the target of a rebuild, compared with its source."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import Collection, KeywordSource, Observation
from agentmemory_operator.memories.rules.comparison import compare_points
from agentmemory_operator.memories.rules.findings import judge_sample
from agentmemory_operator.rebuilds.rules.target_verdict import (
    CopyGaps,
    PointCounts,
    build_equality,
    judge_counts,
    judge_embeddings,
    judge_settings,
)
from agentmemory_operator.rebuilds.rules.vector_tolerance import VectorTolerance
from agentmemory_operator.spec.presets.table import Hnsw
from tests.support.spec.plans import marker_of

MARKER = marker_of(dimensions=2, provider="fake", model="new")
DESIRED = Collection(size=2, distance="Dot", hnsw=Hnsw(m=16), indexes=(("userId", "keyword"),), marker=MARKER)


def observed(**changes: Any) -> Observation:
    return Observation(
        physical="agent_memory_mine__2",
        is_aliased=False,
        collection=replace(DESIRED, **changes),
        points=10,
        indexed=10,
        state="green",
        is_busy=False,
    )


def test_target_matching_the_spec_is_good() -> None:
    assert judge_settings(observed(), DESIRED).is_good


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hnsw": Hnsw(m=8)}, "index.hnsw.m"),
        ({"indexes": ()}, "index.payloadIndexes[userId]"),
        ({"marker": replace(MARKER, embedding=replace(MARKER.embedding, model="old"))}, "embedding.model"),
        ({"marker": None}, "WriteMarker"),
        ({"marker": replace(MARKER, name="other")}, "WriteMarker"),
    ],
)
def test_mismatched_setting_is_named(changes: dict[str, Any], named: str) -> None:
    finding = judge_settings(observed(**changes), DESIRED)

    assert not finding.is_good
    assert named in finding.message


def row(rev: int | None = 1, updated: int | None = 5) -> dict[str, Any]:
    return {key: value for key, value in (("rev", rev), ("updatedAt", updated)) if value is not None}


def test_gaps_list_missing_older_and_extra_points() -> None:
    gaps = CopyGaps()

    alike = gaps.record(
        {"same": row(), "newer": row(2), "missing": row(3), "accessed": row(updated=9), 7: {}},
        {"same": row(), "newer": row(1), "accessed": row(), 7: {}, "extra": row()},
    )

    assert alike == {"same", 7}
    assert gaps.revisions == {"newer": 2, "missing": 3}
    assert (gaps.common, gaps.extra) == (3, ["extra"])


def test_copied_points_leave_the_gaps() -> None:
    gaps = CopyGaps()
    gaps.record({"a": row(2), "b": row(2), "c": row(2)}, {})

    assert gaps.find_remaining({"a": row(2), "b": row(1), "d": row()}) == ["b", "c"]


@pytest.mark.parametrize(
    ("before", "after", "found", "changed", "is_good"),
    [
        (10, 10, 10, 0, True),
        (10, 10, 9, 0, False),
        (10, 10, 11, 0, False),
        (10, 12, 11, 0, True),
        (10, 12, 9, 1, True),
        (10, 12, 8, 1, False),
        (12, 10, 13, 1, True),
    ],
)
def test_counts_may_differ_by_concurrent_writes(
    before: int, after: int, found: int, changed: int, is_good: bool
) -> None:
    counted = PointCounts(kind="memories", before=before, after=after, found=found)

    assert judge_counts([counted], changed=changed).is_good is is_good


def test_wrong_count_is_shown_with_the_others() -> None:
    counts = [
        PointCounts(kind="memories", before=5, after=5, found=5),
        PointCounts(kind="tombstones", before=2, after=2, found=1),
    ]

    assert judge_counts(counts, changed=0).message == "5 memories and 1 tombstones instead of 2"


def point(id_: str = "a", vector: Any = (1.0, 2.0), **changes: Any) -> dict[str, Any]:
    payload = {"userId": "ada", "content": "bees", "rev": 1, "updatedAt": 5} | changes
    return {"id": id_, "payload": payload, "vector": list(vector) if isinstance(vector, tuple) else vector}


def vectors(*, language: str = "english", is_embedded: bool = False) -> VectorTolerance:
    def with_words(language: str) -> Collection:
        keyword = KeywordSource(language=language, window=2)
        return replace(DESIRED, has_keyword=True, datatype="Float32", marker=replace(MARKER, keyword=keyword))

    return VectorTolerance(with_words("english"), with_words(language), is_embedded)


@pytest.mark.parametrize(
    ("target", "how", "is_good"),
    [
        (point(), vectors(), True),
        (point(vector=(1.0, 2.1)), vectors(), False),
        (point(vector=(1.0, 2.1)), vectors(is_embedded=True), True),
        (point(vector=None), vectors(is_embedded=True), False),
        (point(content="wasps"), vectors(is_embedded=True), False),
        (point(windowIds=["b"]), vectors(), False),
        (point(windowIds=["b"]), vectors(language="german"), True),
        (point(vector={"": [1.0, 2.0], "agentmemory_keyword": {"indices": [1], "values": [1.0]}}), vectors(), False),
        (
            point(vector={"": [1.0, 2.0], "agentmemory_keyword": {"indices": [1], "values": [1.0]}}),
            vectors(language="german"),
            True,
        ),
        (point(content="wasps", rev=2), vectors(), None),
    ],
)
def test_only_copied_parts_are_compared(target: dict[str, Any], how: VectorTolerance, is_good: bool | None) -> None:
    compared = compare_points([target], [point()], build_equality(how))

    assert judge_sample(compared).is_good is is_good


@pytest.mark.parametrize(("embedded", "is_good"), [([[1.0, 2.0], [2.0, 4.0]], True), ([[1.0, 2.0], [2.0, 1.0]], False)])
def test_vector_of_another_model_is_detected(embedded: list[list[float]], is_good: bool) -> None:
    finding = judge_embeddings([point("a"), point("b")], embedded, vectors(is_embedded=True))

    assert finding.is_good is is_good
    assert is_good or finding.ids == ("b",)


def test_no_text_gives_no_embedding_verdict() -> None:
    assert judge_embeddings([], [], vectors(is_embedded=True)).is_good is None
