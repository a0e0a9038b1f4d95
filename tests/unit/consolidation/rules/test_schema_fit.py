"""fit(): the parts of a model's output that match the schema."""

from typing import Any

import pytest

from agentmemory_operator.consolidation.rules.schema_fit import Fitted, SchemaMismatch, fit

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 4},
        "kind": {"type": "string", "enum": ["a", "b"], "maxLength": 1},
        "share": {"type": "number", "minimum": 0, "maximum": 1},
        "count": {"type": "integer"},
        "is_new": {"type": "boolean"},
        "tags": {"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 2}},
        "parts": {
            "type": "array",
            "maxItems": 2,
            "items": {"type": "object", "properties": {"id": {"type": "string", "maxLength": 2}}, "required": ["id"]},
        },
    },
    "required": ["name"],
}


@pytest.mark.parametrize(
    "value",
    [
        {"name": "Ada"},
        {"name": "Ada", "kind": "a", "share": 1, "count": -3, "is_new": False, "tags": [], "parts": [{"id": "m1"}]},
        {"name": "Ada", "share": 0.5},
    ],
)
def test_matching_value_is_kept(value: Any) -> None:
    assert fit(value, SCHEMA) == Fitted(value, 0)


@pytest.mark.parametrize(
    ("value", "kept", "dropped"),
    [
        ({"more": 1}, {}, 0),
        ({"kind": "A"}, {"kind": "a"}, 0),
        ({"kind": " a\n"}, {"kind": "a"}, 0),
        ({"kind": "c"}, {}, 1),
        ({"kind": 1}, {}, 1),
        ({"share": 1.1}, {}, 1),
        ({"share": float("nan")}, {}, 1),
        ({"share": True}, {}, 1),
        ({"count": 1.0}, {"count": 1}, 0),
        ({"count": 1.5}, {}, 1),
        ({"is_new": 0}, {}, 1),
        ({"tags": ["a", "b", "c"]}, {"tags": ["a", "b"]}, 1),
        ({"tags": ["abc", "b", 1, "c"]}, {"tags": ["b", "c"]}, 2),
        ({"tags": "ab"}, {}, 1),
        ({"tags": [["a"]]}, {}, 1),
        ({"parts": [{}, {"id": "m1", "more": 1}]}, {"parts": [{"id": "m1"}]}, 1),
        ({"parts": [{"id": 1}]}, {}, 1),
    ],
    ids=str,
)
def test_only_mismatched_part_is_dropped(value: Any, kept: Any, dropped: int) -> None:
    assert fit({"name": "Ada", **value}, SCHEMA) == Fitted({"name": "Ada", **kept}, dropped)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ([], "the answer is not of type object"),
        (None, "the answer is not of type object"),
        ({}, "name is missing"),
        ({"name": 1}, "name is not of type string"),
        ({"name": ""}, "name is too short or too long"),
        ({"name": "Adele"}, "name is too short or too long"),
    ],
    ids=str,
)
def test_required_part_must_match(value: Any, fault: str) -> None:
    with pytest.raises(SchemaMismatch) as raised:
        fit(value, SCHEMA)

    assert str(raised.value) == fault


def test_only_bad_parts_is_an_error() -> None:
    optional = {"type": "object", "properties": {"parts": SCHEMA["properties"]["parts"]}}  # type: ignore[index]

    assert fit({}, optional) == fit({"more": 1}, optional) == Fitted({}, 0)
    assert fit({"parts": []}, optional) == Fitted({"parts": []}, 0)
    with pytest.raises(SchemaMismatch, match=r"parts\[\].id is missing"):
        fit({"parts": [{}]}, optional)


def test_enum_prefers_exact_case() -> None:
    schema = {"type": "string", "enum": ["note", "Note"], "maxLength": 4}

    assert [fit(name, schema).value for name in ("Note", "note", "NOTE")] == ["Note", "note", "note"]
