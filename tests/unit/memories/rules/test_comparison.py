"""Comparison of points: equal, differing, or changed since."""

from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR
from agentmemory_operator.memories.rules.comparison import (
    BottomKSample,
    Equality,
    SampleResult,
    compare_points,
    find_divergence,
    find_score_differences,
)

Row = dict[str, Any]
WITH_WORDS, WITHOUT_WORDS = Equality(has_keyword=True), Equality(has_keyword=False)
TEXT = "she keeps bees"
PAYLOAD = {"id": "a", "userId": "ada", "content": TEXT, "rev": 2, "updatedAt": 5, "importance": 0.5, "tags": ["x"]}
WORDS = {"indices": [3, 1], "values": [0.5, 0.25]}
OTHER_WORDS = {"indices": [1], "values": [1.0]}


def point(id_: str = "a", *, vector: Any = (0.1, 0.2), **changes: Any) -> dict[str, Any]:
    payload = {key: value for key, value in (PAYLOAD | {"id": id_} | changes).items() if value is not ...}
    return {"id": id_, "payload": payload, "vector": list(vector) if isinstance(vector, tuple) else vector}


def both(**vectors: Any) -> dict[str, Any]:
    return {"": [0.1, 0.2], KEYWORD_VECTOR: WORDS} | vectors


@pytest.mark.parametrize(
    ("copy", "live", "parts"),
    [
        (point(), point(content="she kept bees"), ("content",)),
        (point(), point(vector=(0.1, 0.20000003)), ("vector",)),
        (point(), point(vector=None), ("vector only in the copy",)),
        (point(), point(tags=...), ("tags only in the copy",)),
        (point(importance=1), point(importance=1.0), ("importance",)),
        (point(), point(extra=1), ("payload only in the live one",)),
        (point(metadata={"a": 1}), point(metadata={"a": True}), ("metadata",)),
        (
            point(vector=both()),
            point(vector=both(**{KEYWORD_VECTOR: {"indices": [1], "values": [1.0]}})),
            ("keyword vector",),
        ),
        (point(vector=both()), point(), ("keyword vector only in the copy",)),
    ],
)
def test_point_with_equal_revision_can_differ(copy, live, parts) -> None:
    compared = compare_points([copy], [live], WITH_WORDS)

    assert compared == SampleResult(equal=(), changed=0, differing=(("a", parts),))


@pytest.mark.parametrize(
    ("copy", "live"),
    [
        (point(), point()),
        (point(windowDue=True), point(windowDue=False, sessionOrder=7)),
        (point(vector=both()), point(vector=both(**{KEYWORD_VECTOR: {"indices": [1, 3], "values": [0.25, 0.5]}}))),
        (point(deletedAt=9, vector={}), point(deletedAt=9, vector=None)),
    ],
)
def test_order_and_unversioned_fields_are_ignored(copy, live) -> None:
    assert compare_points([copy], [live], WITH_WORDS).equal == ("a",)


def test_keyword_vectors_count_only_if_both_have_them() -> None:
    assert compare_points([point(vector=both())], [point()], WITHOUT_WORDS).equal == ("a",)


@pytest.mark.parametrize(
    ("copy", "lives"),
    [
        (point(), []),
        (point(), [point(rev=3, content="other")]),
        (point(), [point(updatedAt=6, content="other")]),
        (point(rev=...), [point(rev=..., content="other")]),
    ],
)
def test_changed_or_removed_point_is_not_compared(copy, lives) -> None:
    assert compare_points([copy], lives, WITHOUT_WORDS) == SampleResult(equal=(), changed=1, differing=())


def test_difference_must_persist_in_second_read() -> None:
    """A point missing from the second read was removed."""

    first = SampleResult(equal=("a",), changed=1, differing=(("b", ("vector",)), ("c", ("tags",)), ("d", ("vector",))))
    again = SampleResult(equal=("b",), changed=0, differing=(("c", ("tags",)),))

    assert first.with_second_read(again) == SampleResult(equal=("a", "b"), changed=2, differing=(("c", ("tags",)),))


def test_sample_depends_on_seed_not_order() -> None:
    ids = [f"id-{number}" for number in range(50)]
    drawn = []
    for seed, order in (("s", ids), ("s", ids[::-1]), ("t", ids)):
        draw = BottomKSample(seed, 5)
        draw.add(order)
        drawn.append(draw.ids)

    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@pytest.mark.parametrize(
    ("copy", "live", "off"),
    [
        ({"a": 0.5, "b": 0.25}, {"b": 0.25, "a": 0.5}, set()),
        ({"a": 0.5}, {"a": 0.5000001}, set()),
        ({"a": 0.5}, {"a": 0.501}, {"a"}),
        ({"a": 0.5, "b": 0.1}, {"a": 0.5, "c": 0.1}, {"b", "c"}),
    ],
)
def test_equal_scores_may_differ_in_order(copy, live, off) -> None:
    rows = [[{"id": id_, "score": score} for id_, score in found.items()] for found in (copy, live)]

    assert find_score_differences(*rows) == off


V1, V2 = {"rev": 1, "updatedAt": 10}, {"rev": 2, "updatedAt": 20}


@pytest.mark.parametrize(
    ("live", "copy", "behind", "strayed", "extra"),
    [
        pytest.param({1: V1}, {1: V1}, (), {}, (), id="the same"),
        pytest.param({1: V1}, {}, (1,), {}, (), id="missing"),
        pytest.param({1: V2}, {1: V1}, (1,), {}, (), id="older"),
        pytest.param({1: V1}, {1: {}}, (1,), {}, (), id="without a revision"),
        pytest.param({1: V1}, {1: V2}, (), {1: 2}, (), id="ahead, as of a point that was purged and written again"),
        pytest.param(
            {1: V1}, {1: V1 | {"updatedAt": 11}}, (), {1: 1}, (), id="of the same revision, written otherwise"
        ),
        pytest.param({1: {}}, {1: V1}, (), {1: 1}, (), id="written by another hand since"),
        pytest.param({1: {}}, {1: {}}, (), {}, (), id="of another hand, on both sides"),
        pytest.param({}, {1: V1}, (), {}, (1,), id="in the copy alone"),
        pytest.param({"a": V1, 7: V2}, {"a": V2, 7: V1}, (7,), {"a": 2}, (), id="of several"),
    ],
)
def test_divergence(
    live: dict[Any, Row], copy: dict[Any, Row], behind: tuple[Any, ...], strayed: Row, extra: tuple[Any, ...]
) -> None:
    found = find_divergence(live, copy)

    assert (found.stale, dict(found.strayed), found.extra) == (behind, strayed, extra)
    assert found.alike == live.keys() - {*behind, *strayed}


def test_points_without_versions_count_as_alike() -> None:
    found = find_divergence({1: {}, 2: {}}, {2: {}, 3: {}})

    assert (found.alike, found.stale, found.extra) == ({2}, (1,), (3,))
