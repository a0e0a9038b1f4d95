"""The built-in filter matcher, and the wider condition that the engine evaluates first."""

from typing import Any

import pytest

from agentmemory_operator.memories.rules.criteria import compile_criterion, is_exact
from agentmemory_operator.memories.rules.criteria_json import parse_filters
from agentmemory_operator.memories.rules.criteria_match import keys_of, matches

HAS_NOTE = {"must_not": [{"is_empty": {"key": "metadata.note"}}]}
CONTAINS = {"metadata.note": {"contains": "ant"}}


def is_match(filters: dict[str, Any], payload: dict[str, Any]) -> bool:
    criterion = parse_filters(filters)
    assert criterion is not None
    return matches(criterion, payload)


def note(value: Any) -> dict[str, Any]:
    return {"metadata": {"note": value}}


@pytest.mark.parametrize(
    ("filters", "payload"),
    [
        (CONTAINS, note("Big Ant here")),
        (CONTAINS, note(["bee", "an ANT"])),
        ({"metadata.note": {"contains": "HERE big"}}, note("Big Ant here")),
        ({"NOT": [CONTAINS]}, note("elephant")),
        ({"NOT": [CONTAINS]}, {}),
        ({"tags": {"contains": "ant"}}, {"tags": ["bee", "ant"]}),
        ({"metadata.a.b": 5}, {"metadata": {"a": {"b": [1, 5.0]}}}),
        ({"metadata.note": {"ne": "a"}}, note("A")),
        ({"metadata.note": {"in": [True, "x"]}}, note(True)),
        ({"metadata.note": None}, note([])),
        ({"metadata.note": None}, {"metadata": {"note": None}}),
        ({"metadata.note": {"gt": 1, "lte": 2}}, note([0, 2])),
        ({"metadata.note": {"gte": "2026-11-21T08:00:00Z"}}, note("2026-11-21T10:00:00+02:00")),
        ({"metadata.note": {"gt": "2026-11-21T08:00:00Z"}}, note("2026-11-21 08:00:00.000000001")),
        ({"metadata.note": {"lt": "2026-11-21T08:00:00Z"}}, note("2026-11-21")),
        ({"type": "fact", "importance": {"gte": 0.5}}, {"type": "fact", "importance": 0.5}),
        ({"created_at": {"lt": "1970-01-01T00:00:01Z"}}, {"createdAt": 999}),
        ({"NOT": [{"subject": "x"}]}, {"zone": "PERSONAL", "subject": "x"}),
    ],
)
def test_memory_matches_filter(filters: dict[str, Any], payload: dict[str, Any]) -> None:
    assert is_match(filters, payload)


@pytest.mark.parametrize(
    ("filters", "payload"),
    [
        (CONTAINS, note("elephant")),
        (CONTAINS, note(5)),
        (CONTAINS, note([["ant"]])),
        (CONTAINS, {}),
        ({"metadata.note": {"contains": "big ant"}}, note(["big", "ant"])),
        ({"metadata.note": True}, note(1)),
        ({"metadata.note": 1}, note(True)),
        ({"metadata.note": "1"}, note(1)),
        ({"metadata.note": {"gt": 1, "lt": 2}}, note([0, 3])),
        ({"metadata.note": {"gte": 0}}, note("2026-11-21T08:00:00Z")),
        ({"metadata.note": {"gte": "1970-01-01T00:00:00Z"}}, note(5)),
        ({"metadata.note": {"gte": "1970-01-01T00:00:00Z"}}, note("soon")),
        ({"metadata.note": None}, note([None])),
        ({"metadata.a.b": 5}, {"metadata": {"a": [{"b": 5}]}}),
        ({"metadata.note": "x"}, {"zone": "PERSONAL", **note("x")}),
        ({"tags": "x"}, {"zone": "SENSITIVE", "tags": ["x"]}),
    ],
)
def test_memory_does_not_match_filter(filters: dict[str, Any], payload: dict[str, Any]) -> None:
    assert not is_match(filters, payload)


@pytest.mark.parametrize(
    ("filters", "condition"),
    [
        (CONTAINS, HAS_NOTE),
        ({"NOT": [CONTAINS]}, {"must": []}),
        ({"NOT": [{"NOT": [CONTAINS]}]}, {"must_not": [{"must_not": [HAS_NOTE]}]}),
        (
            {"NOT": [{"OR": [CONTAINS, {"tags": "x"}]}]},
            {"must_not": [{"should": [{"key": "tags", "match": {"value": "x"}}]}]},
        ),
        ({"NOT": [{"type": "fact", **CONTAINS}]}, {"must": []}),
        ({"OR": [CONTAINS, {"NOT": [CONTAINS]}]}, {"must": []}),
    ],
)
def test_inexact_filter_compiles_to_wider_condition(filters: dict[str, Any], condition: dict[str, Any]) -> None:
    criterion = parse_filters(filters)
    assert criterion is not None

    assert not is_exact(criterion)
    assert compile_criterion(criterion) == condition
    assert {"zone", "metadata.note"} <= set(keys_of(criterion))


@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({"metadata.note": 5}, "datetime"),
        ({"metadata.note": {"gt": 5}}, "datetime"),
        ({"metadata.note": "0f8fad5b-d9cb-469f-a165-70867728950e"}, "integer"),
        ({"metadata.note": "0f8fad5b-d9cb-469f-a165-70867728950e"}, "datetime"),
        ({"metadata.note": {"gt": "2026-11-21T08:00:00Z"}}, "integer"),
        ({"metadata.note": {"gt": "2026-11-21T08:00:00Z"}}, "float"),
    ],
)
def test_index_of_another_type_is_not_used(filters: dict[str, Any], index: str) -> None:
    criterion = parse_filters(filters)
    assert criterion is not None

    assert is_exact(criterion)
    assert not is_exact(criterion, {"metadata.note": index})
    assert compile_criterion(criterion, {"metadata.note": index}) == HAS_NOTE
