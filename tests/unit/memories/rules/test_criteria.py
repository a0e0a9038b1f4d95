"""Filters of a search: conditions, errors with their path, and required indexes."""

from typing import Any

import pytest

from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.memories.rules.criteria import FIELDS, Field, FieldKind, compile_criterion, find_unindexed
from agentmemory_operator.memories.rules.criteria_json import MAX_CONDITIONS, MAX_DEPTH, parse_filters
from agentmemory_operator.spec.presets import RETRIEVAL_INDEXES

INDEXES = dict(RETRIEVAL_INDEXES)
DAY = "2026-11-21T00:00:00Z"
DAY_MS = 1_795_219_200_000.0


def compiled(document: dict[str, Any]) -> dict[str, Any]:
    criterion = parse_filters(document)
    assert criterion is not None
    return compile_criterion(criterion)


def nested(levels: int) -> dict[str, Any]:
    return {"AND": [nested(levels - 1)]} if levels else {"type": "fact"}


@pytest.mark.parametrize(
    ("document", "condition"),
    [
        ({"type": "fact"}, {"key": "type", "match": {"value": "fact"}}),
        ({"type": {"eq": "fact"}}, {"key": "type", "match": {"value": "fact"}}),
        ({"type": {"ne": "fact"}}, {"must_not": [{"key": "type", "match": {"value": "fact"}}]}),
        ({"session_id": {"in": ["a", "b"]}}, {"key": "sessionId", "match": {"any": ["a", "b"]}}),
        ({"tags": {"contains": "x"}}, {"key": "tags", "match": {"value": "x"}}),
        ({"expires_at": None}, {"is_empty": {"key": "expiresAt"}}),
        ({"importance": 0.5}, {"key": "importance", "range": {"gte": 0.5, "lte": 0.5}}),
        ({"importance": {"gt": 0.5, "lte": 1}}, {"key": "importance", "range": {"gt": 0.5, "lte": 1.0}}),
        ({"created_at": {"gte": DAY}}, {"key": "createdAt", "range": {"gte": DAY_MS}}),
        ({"access_count": {"gte": 1.5, "lt": 2.5}}, {"key": "accessCount", "range": {"gte": 1.5, "lt": 2.5}}),
        ({"metadata.a.b": True}, {"key": "metadata.a.b", "match": {"value": True}}),
        ({"metadata.a": {"contains": "x"}}, {"must_not": [{"is_empty": {"key": "metadata.a"}}]}),
        ({"metadata.at": {"lt": DAY}}, {"key": "metadata.at", "range": {"lt": DAY}}),
        (
            {"metadata.a": {"in": [1, "x"]}},
            {
                "should": [
                    {"key": "metadata.a", "range": {"gte": 1.0, "lte": 1.0}},
                    {"key": "metadata.a", "match": {"value": "x"}},
                ]
            },
        ),
        (
            {"NOT": [{"type": "fact"}, {"OR": [{"tags": "x"}, {"source": "y"}]}]},
            {
                "must_not": [
                    {"key": "type", "match": {"value": "fact"}},
                    {
                        "should": [
                            {"key": "tags", "match": {"value": "x"}},
                            {"key": "source", "match": {"value": "y"}},
                        ]
                    },
                ]
            },
        ),
        (
            {"type": "fact", "tags": "x"},
            {"must": [{"key": "type", "match": {"value": "fact"}}, {"key": "tags", "match": {"value": "x"}}]},
        ),
    ],
)
def test_filters_compile_to_engine_conditions(document: dict[str, Any], condition: dict[str, Any]) -> None:
    assert compiled(document) == condition


def test_empty_filters_compile_to_nothing() -> None:
    assert parse_filters({}) is None


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"colour": "red"}, "filters.colour"),
        ({"user_id": "somebody"}, "filters.user_id"),
        ({"content": {"contains": "x"}}, "filters.content"),
        ({"metadata": {"eq": 1}}, "filters.metadata"),
        ({"metadata.": 1}, "filters.metadata."),
        ({"metadata.a b": 1}, "filters.metadata.a b"),
        ({"metadata.a[]": 1}, "filters.metadata.a[]"),
        ({"and": [{"type": "fact"}]}, "filters.and"),
        ({"type": {"like": "f"}}, "filters.type.like"),
        ({"type": {"gt": "f"}}, "filters.type.gt"),
        ({"importance": {"contains": "x"}}, "filters.importance.contains"),
        ({"type": {}}, "filters.type"),
        ({"type": 5}, "filters.type"),
        ({"type": ["fact"]}, "filters.type"),
        ({"type": ""}, "filters.type"),
        ({"type": "x" * 1025}, "filters.type"),
        ({"type": {"in": []}}, "filters.type.in"),
        ({"type": {"in": "fact"}}, "filters.type.in"),
        ({"type": {"in": ["fact", 1]}}, "filters.type.in[1]"),
        ({"importance": {"gt": None}}, "filters.importance.gt"),
        ({"importance": "high"}, "filters.importance"),
        ({"importance": True}, "filters.importance"),
        ({"importance": float("inf")}, "filters.importance"),
        ({"importance": 10**400}, "filters.importance"),
        ({"created_at": 5}, "filters.created_at"),
        ({"created_at": {"gt": "2026-11-21"}}, "filters.created_at.gt"),
        ({"metadata.a": {"eq": {"b": 1}}}, "filters.metadata.a.eq"),
        ({"metadata.a": {"gt": "soon"}}, "filters.metadata.a.gt"),
        ({"metadata.a": {"gt": True}}, "filters.metadata.a.gt"),
        ({"metadata.a": {"gt": 1, "lt": DAY}}, "filters.metadata.a"),
        ({"metadata.a": {"contains": 1}}, "filters.metadata.a.contains"),
        ({"metadata.a": {"contains": "?!"}}, "filters.metadata.a.contains"),
        ({"AND": {"type": "fact"}}, "filters.AND"),
        ({"OR": []}, "filters.OR"),
        ({"NOT": ["fact"]}, "filters.NOT[0]"),
        ({"AND": [{"type": "fact"}, {}]}, "filters.AND[1]"),
        ({"AND": [{"OR": [{"colour": 1}]}]}, "filters.AND[0].OR[0].colour"),
        (nested(MAX_DEPTH), "filters" + ".AND[0]" * MAX_DEPTH),
        ({"type": {"in": ["x"] * (MAX_CONDITIONS + 1)}}, f"filters.type.in[{MAX_CONDITIONS}]"),
    ],
)
def test_error_names_the_path(document: dict[str, Any], path: str) -> None:
    with pytest.raises(RequestInvalid) as raised:
        parse_filters(document)

    assert [error.field for error in raised.value.errors] == [path]


def test_maximum_depth_and_size_are_accepted() -> None:
    assert parse_filters(nested(MAX_DEPTH - 1)) is not None
    assert parse_filters({"type": {"in": ["x"] * MAX_CONDITIONS}}) is not None


FILTER_VALUES: dict[FieldKind, Any] = {
    FieldKind.WORD: "x",
    FieldKind.WORDS: "x",
    FieldKind.NUMBER: {"gte": 1},
    FieldKind.TIME: {"gte": DAY},
}


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("asks_for_none", [False, True])
def test_advised_index_fits_the_field_type(field: Field, asks_for_none: bool) -> None:
    criterion = parse_filters({field.name: None if asks_for_none else FILTER_VALUES[field.kind]})
    assert criterion is not None

    missing = find_unindexed(criterion, INDEXES)

    assert set(missing) == {field.key} - set(INDEXES)
    assert find_unindexed(criterion, INDEXES | missing) == {}
    kinds = {
        FieldKind.WORD: {"keyword"},
        FieldKind.WORDS: {"keyword"},
        FieldKind.NUMBER: {"float", "integer"},
        FieldKind.TIME: {"integer"},
    }
    assert (INDEXES | missing)[field.key] in kinds[field.kind]


@pytest.mark.parametrize(
    ("condition", "indexed_as", "advised"),
    [
        ("x", None, "keyword"),
        ("x", "text", "keyword"),
        ("x", "keyword", None),
        ("x", "uuid", None),
        (1, None, "float"),
        (1, "integer", None),
        ({"gte": 1}, "float", None),
        ({"gte": 1}, "keyword", "float"),
        ({"gte": DAY}, "keyword", "datetime"),
        ({"gte": DAY}, "datetime", None),
        (True, None, "bool"),
        (True, "bool", None),
        ({"contains": "x"}, "keyword", None),
        ({"contains": "x"}, "text", None),
        (None, None, "keyword"),
        (None, "geo", None),
    ],
)
def test_unindexed_metadata_field_gets_advice(condition: Any, indexed_as: str | None, advised: str | None) -> None:
    criterion = parse_filters({"OR": [{"type": "fact"}, {"NOT": [{"metadata.a": condition}]}]})
    assert criterion is not None

    missing = find_unindexed(criterion, INDEXES | ({"metadata.a": indexed_as} if indexed_as else {}))

    assert missing == ({"metadata.a": advised} if advised else {})


def test_unindexed_memory_field_gets_advice() -> None:
    criterion = parse_filters({"author": "ada", "status_value": None, "type": "fact"})
    assert criterion is not None

    assert find_unindexed(criterion, INDEXES) == {"author": "keyword", "statusValue": "keyword"}
