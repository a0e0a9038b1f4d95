"""Conditions on nulls and value counts match as in Qdrant 1.18.3, or are rejected."""

from collections.abc import Iterator
from typing import Any

import pytest

from qdrant_devserver.features import features_of
from qdrant_devserver.points.value_conditions import CONDITIONS, Conditions, check_count, is_null
from tests.support.web.qdrant_nodes import DevServer

VALUES: list[Any] = [None, [None, None], [None], [None, 1], [], 1, [1, 2], {}, [[]], "x", False]
MISSING = len(VALUES)
# In Qdrant 1.18.3 a list that contains a null is null only with an index.
NULL, NULL_BY_INDEX = [0], [0, 1, 2, 3]


@pytest.fixture(scope="module", autouse=True)
def collection(server: DevServer) -> Iterator[None]:
    server.call("PUT", "/collections/v", {"vectors": {"size": 1, "distance": "Dot"}})
    payloads = [{"plain": v, "indexed": v, "in": {"plain": v}, "list": [{"indexed": v}]} for v in VALUES]
    points = [{"id": at, "vector": [1.0], "payload": payload} for at, payload in enumerate([*payloads, {}])]
    server.call("PUT", "/collections/v/points?wait=true", {"points": points})
    for field in ("indexed", "list[].indexed"):
        server.call("PUT", "/collections/v/index?wait=true", {"field_name": field, "field_schema": "integer"})
    yield
    server.call("DELETE", "/collections/v")


def found(server: DevServer, filter_: Any) -> list[int]:
    points = server.call("POST", "/collections/v/points/scroll", {"filter": filter_, "limit": 100})["points"]
    return sorted(point["id"] for point in points)


@pytest.mark.parametrize(
    ("condition", "matching"),
    [
        ({"is_null": {"key": "plain"}}, NULL),
        ({"is_null": {"key": "in.plain"}}, NULL),
        ({"is_null": {"key": "indexed"}}, NULL_BY_INDEX),
        ({"nested": {"key": "list", "filter": {"must": [{"is_null": {"key": "indexed"}}]}}}, NULL),
        ({"must_not": [{"is_null": {"key": "plain"}}]}, [*range(1, MISSING + 1)]),
        ({"key": "plain", "is_null": True}, NULL_BY_INDEX),
        ({"key": "plain", "is_null": False}, [*range(4, MISSING + 1)]),
        ({"is_empty": {"key": "plain"}}, [0, 4, MISSING]),
        ({"key": "plain", "values_count": {"gte": 1}}, [1, 2, 3, *range(5, MISSING)]),
        ({"key": "plain", "values_count": {"gt": 0, "lt": 2}}, [2, 5, 7, 8, 9, 10]),
    ],
    ids=str,
)
def test_condition_matches_as_on_the_server(server: DevServer, condition: Any, matching: list[int]) -> None:
    filter_ = condition if "must_not" in condition else {"must": [condition]}

    assert found(server, filter_) == matching
    assert server.call("POST", "/collections/v/points/count", {"filter": filter_})["count"] == len(matching)


@pytest.mark.parametrize(
    "condition",
    [
        {"is_null": {"key": "list[].plain"}},
        {"key": "plain", "values_count": {"lt": 2}},
        {"key": "plain", "values_count": {"lte": 0}},
        {"key": "plain", "values_count": {"gte": 0}},
    ],
    ids=str,
)
def test_unsupported_condition_is_501(server: DevServer, condition: Any) -> None:
    answer = server.http.post("/collections/v/points/scroll", json={"filter": {"must": [condition]}})

    assert (answer.status_code, "Not built" in answer.text) == (501, True), answer.text


@pytest.mark.parametrize("version", ["1.18.3", "1.19.0", "1.20.0"])
def test_is_null_in_a_list_needs_an_index(version: str) -> None:
    outer = CONDITIONS.set(Conditions(features_of(version)))
    try:
        with pytest.raises(Exception, match="Not built"):
            is_null("list[].plain")
        assert "IsEmpty" in repr(is_null("plain"))
    finally:
        CONDITIONS.reset(outer)


@pytest.mark.parametrize(("version", "is_refused"), [("1.18.3", True), ("1.19.0", False)])
def test_missing_key_counts_as_0_since_1_19(version: str, is_refused: bool) -> None:
    outer = CONDITIONS.set(Conditions(features_of(version)))
    try:
        for bounds in ({"lt": 1}, {"lte": 3}, {"lt": 3, "gte": 0}):
            if is_refused:
                with pytest.raises(Exception, match="Not built"):
                    check_count(bounds)
            else:
                check_count(bounds)
        for bounds in ({"gt": 0}, {"gte": 1, "lt": 5}, {"lt": 0}):
            check_count(bounds)
    finally:
        CONDITIONS.reset(outer)
