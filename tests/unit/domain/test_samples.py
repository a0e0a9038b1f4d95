"""Points side by side: equal bit for bit, or not, or written since."""

from typing import Any

import pytest

from agentmemory_operator.domain.collection import KEYWORD_VECTOR
from agentmemory_operator.domain.samples import (
    Compared,
    Lots,
    compare_points,
    judge_probes,
    judge_sample,
    probe_of,
    probe_points,
    score_differences,
)

TEXT = "she keeps bees"
PAYLOAD = {"id": "a", "userId": "ada", "content": TEXT, "rev": 2, "updatedAt": 5, "importance": 0.5, "tags": ["x"]}
WORDS = {"indices": [3, 1], "values": [0.5, 0.25]}


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
        (point(), point(vector=None), ("vector",)),
        (point(), point(tags=...), ("tags",)),
        (point(importance=1), point(importance=1.0), ("importance",)),
        (point(), point(extra=1), ("payload",)),
        (point(metadata={"a": 1}), point(metadata={"a": True}), ("metadata",)),
        (point(vector=both()), point(vector=both(**{KEYWORD_VECTOR: {"indices": [1], "values": [1.0]}})), ("vector",)),
        (point(vector=both()), point(), ("vector",)),
    ],
)
def test_a_point_that_is_not_the_same_at_the_same_revision_differs(copy, live, parts) -> None:
    compared = compare_points([copy], [live], has_keyword=True)

    assert compared == Compared(equal=(), changed=0, differing=(("a", parts),))


@pytest.mark.parametrize(
    ("copy", "live"),
    [
        (point(), point()),
        (point(windowDue=True), point(windowDue=False, sessionOrder=7)),
        (point(vector=both()), point(vector=both(**{KEYWORD_VECTOR: {"indices": [1, 3], "values": [0.25, 0.5]}}))),
        (point(deletedAt=9, vector={}), point(deletedAt=9, vector=None)),
    ],
)
def test_a_point_is_equal_whatever_the_order_of_its_words_and_what_changes_without_a_revision(copy, live) -> None:
    assert compare_points([copy], [live], has_keyword=True).equal == ("a",)


def test_keyword_vectors_count_only_where_both_collections_have_them() -> None:
    assert compare_points([point(vector=both())], [point()], has_keyword=False).equal == ("a",)


@pytest.mark.parametrize(
    ("copy", "lives"),
    [
        (point(), []),
        (point(), [point(rev=3, content="other")]),
        (point(), [point(updatedAt=6, content="other")]),
        (point(rev=...), [point(rev=..., content="other")]),
    ],
)
def test_a_point_that_was_written_or_removed_since_is_not_judged(copy, lives) -> None:
    assert compare_points([copy], lives, has_keyword=False) == Compared(equal=(), changed=1, differing=())


@pytest.mark.parametrize(
    ("compared", "is_good", "message"),
    [
        (Compared(equal=("a", "b"), changed=0, differing=()), True, "2 points equal bit for bit"),
        (Compared(equal=(), changed=3, differing=()), None, "no point could be compared, 3 were written since"),
        (
            Compared(equal=("a",), changed=1, differing=(("b", ("content",)), ("c", ("tags", "vector")))),
            False,
            "2 of 3 points differ in content, tags, vector: b, c, 1 were written since",
        ),
    ],
)
def test_a_sample_s_finding_counts_and_names_fields_never_contents(compared, is_good, message) -> None:
    finding = judge_sample(compared)

    assert (finding.is_good, finding.message) == (is_good, message)


def test_the_lots_are_the_same_in_any_order_and_others_for_another_snapshot() -> None:
    ids = [f"id-{number}" for number in range(50)]
    drawn = []
    for seed, order in (("s", ids), ("s", ids[::-1]), ("t", ids)):
        lots = Lots(seed, 5)
        lots.offer(order)
        drawn.append(lots.drawn)

    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_probes_search_for_equal_points_that_have_a_vector() -> None:
    points = [point("a"), point("b", vector=None), point("c", deletedAt=1), point("d"), point("e")]

    assert [found["id"] for found in probe_points(points, ("a", "b", "c", "e"), most=2)] == ["a", "e"]


def test_a_probe_is_exact_and_asks_for_every_point_of_its_user() -> None:
    probe = probe_of(point(), ["a", "b"])

    assert probe["params"] == {"exact": True}
    assert probe["limit"] == 2
    assert probe["filter"]["must"][1] == {"key": "userId", "match": {"value": "ada"}}


@pytest.mark.parametrize(
    ("copy", "live", "off"),
    [
        ({"a": 0.5, "b": 0.25}, {"b": 0.25, "a": 0.5}, set()),
        ({"a": 0.5}, {"a": 0.5000001}, set()),
        ({"a": 0.5}, {"a": 0.501}, {"a"}),
        ({"a": 0.5, "b": 0.1}, {"a": 0.5, "c": 0.1}, {"b", "c"}),
    ],
)
def test_searches_differ_in_points_and_scores_not_in_the_order_of_equals(copy, live, off) -> None:
    rows = [[{"id": id_, "score": score} for id_, score in found.items()] for found in (copy, live)]

    assert score_differences(*rows) == off


@pytest.mark.parametrize(
    ("searches", "differing", "refused", "is_good"),
    [(8, [], "", True), (8, ["a"], "", False), (0, [], "", None), (0, [], "strict mode", None)],
)
def test_searches_that_could_not_be_made_prove_nothing(searches, differing, refused, is_good) -> None:
    assert judge_probes(searches, differing, refused=refused).is_good is is_good
