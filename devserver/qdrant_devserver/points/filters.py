"""Translate filters for the engine; reject the shapes that a real server rejects."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

import qdrant_edge as edge

from qdrant_devserver.engine_faults import engine_errors
from qdrant_devserver.error_answers import invalid, malformed
from qdrant_devserver.fields import (
    Document,
    Json,
    Number,
    Structure,
    Unsigned,
    ensure_list,
    read_flag,
    read_object,
    read_structure,
    require,
)
from qdrant_devserver.points.identifiers import read_point_ids
from qdrant_devserver.points.value_conditions import check_count, is_null, nested_conditions

Condition: TypeAlias = "edge.ConditionType"
_CLAUSES = ("should", "min_should", "must", "must_not")
_BOUNDS = ("lt", "gt", "gte", "lte")
_NUMBER_BOUNDS: Structure = {bound: Number() for bound in _BOUNDS}
_COUNT_BOUNDS: Structure = {bound: Unsigned() for bound in _BOUNDS}
_SMALLEST_INTEGER, _LARGEST_INTEGER = -(2**63), 2**63 - 1
_NO_CONDITION = (
    'Expected some form of condition, which can be a field condition (like {"key": ..., "match": ... }), '
    "or some other mentioned in the documentation: "
    "https://qdrant.tech/documentation/concepts/filtering/#filtering-conditions"
)
_NO_MATCH = "data did not match any variant of untagged enum MatchInterface"

TEXT_INDEXED: ContextVar[frozenset[str]] = ContextVar("text_indexed", default=frozenset())
"""Fields with a text index, for the collection of the current request.

Only for these the server compares words. For other fields a text match is a case-sensitive substring match, whereas the
engine compares words in both cases.
"""


class _Truth:
    """A boolean that the engine does not take for an integer.

    The Python binding tries integers first, and Python's booleans are integers. It recognises numpy's boolean type by
    name.
    """

    def __init__(self, value: bool) -> None:
        self.value = value

    def __bool__(self) -> bool:
        return self.value


_Truth.__module__, _Truth.__name__, _Truth.__qualname__ = "numpy", "bool_", "bool_"


def read_filter(value: Json, path: str = "filter") -> edge.Filter | None:
    """Build the engine's filter; None for an absent one.

    Args:
        value: JSON filter.
        path: Path of the filter in the body, for messages.

    Raises:
        ErrorAnswer: 400 for an unknown shape; 422 for a field condition without a condition; 501 for a condition that
            the engine evaluates unlike the server (see `value_conditions`).
    """
    if value is None:
        return None
    with engine_errors():
        return _filter(read_object(value, path), path)


def _filter(document: Document, path: str) -> edge.Filter:
    if unknown := next((name for name in document if name not in _CLAUSES), None):
        expected = ", ".join(f"`{clause}`" for clause in _CLAUSES)
        raise malformed(f"unknown field `{unknown}`, expected one of {expected}")
    return edge.Filter(
        must=_conditions(document.get("must"), f"{path}.must"),
        should=_conditions(document.get("should"), f"{path}.should"),
        must_not=_conditions(document.get("must_not"), f"{path}.must_not"),
        min_should=_min_should(document.get("min_should"), f"{path}.min_should"),
    )


def _min_should(value: Json, path: str) -> edge.MinShould | None:
    if value is None:
        return None
    document = read_object(value, path)
    conditions = _conditions(require(document, "conditions"), f"{path}.conditions") or []
    return edge.MinShould(conditions, Unsigned().read(require(document, "min_count"), f"{path}.min_count"))


def _conditions(value: Json, path: str) -> list[Condition] | None:
    if value is None:
        return None
    return [read_condition(item, f"{path}[{index}]") for index, item in enumerate(ensure_list(value))]


def read_condition(value: Json, path: str) -> Condition:
    """Build the engine's form of one condition. Raises: As `read_filter`."""
    if not isinstance(value, dict):
        raise malformed(_NO_CONDITION)
    if "key" in value:
        return _field_condition(value, path)
    for name, read in _KINDS.items():
        if name in value:
            return read(value[name], path)
    if value.keys() <= set(_CLAUSES):
        return _filter(value, path)
    raise malformed(_NO_CONDITION)


def is_condition(document: Document) -> bool:
    """Return whether an object in a formula is a condition, not an expression."""
    return not _CONDITION_FIELDS.isdisjoint(document)


def _field_condition(document: Document, path: str) -> Condition:
    key = require(document, "key")
    if not isinstance(key, str):
        raise malformed("invalid type for `key`, expected a string")
    parts: dict[str, Any] = {
        name: read(document[name], f"{path}.{name}")
        for name, read in _FIELD_PARTS.items()
        if document.get(name) is not None
    }
    parts |= {name: read_flag(document, name) for name in ("is_empty", "is_null") if document.get(name) is not None}
    if not parts:
        raise invalid(f"{path}.__all__", "Validation error: At least one field condition must be specified [{}]")
    if key not in TEXT_INDEXED.get() and isinstance(parts.get("match"), _TEXT_MATCHES):
        return _substring_condition(key, document["match"])
    return edge.FieldCondition(key, **parts)


def _substring_condition(key: str, match: Document) -> Condition:
    """Build a text match for a field without a text index. For `text_any` each word is matched as a substring."""
    if "text_any" not in match:
        text = _words(match["text"] if "text" in match else match["phrase"])
        return edge.FieldCondition(key, match=edge.MatchSubstring(text))
    words: list[Condition] = [
        edge.FieldCondition(key, match=edge.MatchSubstring(word)) for word in match["text_any"].split()
    ]
    return edge.Filter(should=words) if words else edge.HasIdCondition(set())


def _match(value: Json, path: str) -> "edge.MatchType":
    document = read_object(value, path)
    for name, read in _MATCHES.items():
        if name in document:
            return read(document[name])
    raise malformed(_NO_MATCH)


def _match_value(value: Json) -> edge.MatchValue:
    if isinstance(value, bool):
        truth: Any = _Truth(value)
        return edge.MatchValue(truth)
    if isinstance(value, str) or (isinstance(value, int) and _SMALLEST_INTEGER <= value <= _LARGEST_INTEGER):
        return edge.MatchValue(value)
    raise malformed(_NO_MATCH)


def _variants(value: Json) -> list[Any]:
    if not isinstance(value, list):
        raise malformed(_NO_MATCH)
    if all(isinstance(item, str) for item in value):
        return value
    if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return value
    raise malformed(_NO_MATCH)


def _words(value: Json) -> str:
    if not isinstance(value, str):
        raise malformed(_NO_MATCH)
    return value


def _range(value: Json, path: str) -> "edge.RangeType":
    document = read_object(value, path)
    bounds = {bound: document[bound] for bound in _BOUNDS if document.get(bound) is not None}
    if any(isinstance(bound, str) for bound in bounds.values()):
        if not all(isinstance(bound, str) for bound in bounds.values()):
            raise malformed(f"invalid type for {path}: datetime and number bounds cannot be mixed")
        return edge.RangeDateTime(**bounds)
    return edge.RangeFloat(**read_structure(document, _NUMBER_BOUNDS, path))


def _values_count(value: Json, path: str) -> edge.ValuesCount:
    bounds = read_structure(value, _COUNT_BOUNDS, path)
    check_count(bounds)
    return edge.ValuesCount(**bounds)


def read_geo_point(value: Json, path: str) -> edge.GeoPoint:
    """Build the engine's point on the globe from `{"lon", "lat"}`, in degrees.

    Raises:
        ErrorAnswer: 400 if either is missing or no number.
    """
    document = read_object(value, path)
    return edge.GeoPoint(
        Number().read(require(document, "lon"), f"{path}.lon"), Number().read(require(document, "lat"), f"{path}.lat")
    )


def _bounding_box(value: Json, path: str) -> edge.GeoBoundingBox:
    document = read_object(value, path)
    corners = [read_geo_point(require(document, corner), path) for corner in ("top_left", "bottom_right")]
    return edge.GeoBoundingBox(*corners)


def _radius(value: Json, path: str) -> edge.GeoRadius:
    document = read_object(value, path)
    radius = Number().read(require(document, "radius"), f"{path}.radius")
    return edge.GeoRadius(read_geo_point(require(document, "center"), path), float(radius))


def _polygon(value: Json, path: str) -> edge.GeoPolygon:
    document = read_object(value, path)
    interiors = [_ring(ring, path) for ring in ensure_list(document.get("interiors"))]
    return edge.GeoPolygon(_ring(require(document, "exterior"), path), interiors or None)


def _ring(value: Json, path: str) -> list[edge.GeoPoint]:
    points = require(read_object(value, path), "points")
    return [read_geo_point(point, path) for point in ensure_list(points)]


def _payload_key(value: Json, path: str) -> str:
    key = require(read_object(value, path), "key")
    if not isinstance(key, str):
        raise malformed("invalid type for `key`, expected a string")
    return key


def _nested(value: Json, path: str) -> edge.NestedCondition:
    document = read_object(value, path)
    key, inner = _payload_key(document, path), read_object(require(document, "filter"), f"{path}.nested.filter")
    within = f"{key.removesuffix('[]')}[]."
    indexed = frozenset(field.removeprefix(within) for field in TEXT_INDEXED.get() if field.startswith(within))
    outside = TEXT_INDEXED.set(indexed)
    try:
        with nested_conditions():
            return edge.NestedCondition(key, _filter(inner, f"{path}.nested.filter"))
    finally:
        TEXT_INDEXED.reset(outside)


def _has_vector(value: Json, path: str) -> edge.HasVectorCondition:
    if not isinstance(value, str):
        raise malformed(_NO_CONDITION)
    return edge.HasVectorCondition(value)


_KINDS: dict[str, Callable[[Json, str], Condition]] = {
    "is_empty": lambda value, path: edge.IsEmptyCondition(_payload_key(value, path)),
    "is_null": lambda value, path: is_null(_payload_key(value, path)),
    "has_id": lambda value, path: edge.HasIdCondition(set(read_point_ids(value, f"{path}.has_id"))),
    "has_vector": _has_vector,
    "nested": _nested,
}
_FIELD_PARTS: dict[str, Callable[[Json, str], Any]] = {
    "match": _match,
    "range": _range,
    "geo_bounding_box": _bounding_box,
    "geo_radius": _radius,
    "geo_polygon": _polygon,
    "values_count": _values_count,
}
_MATCHES: dict[str, Callable[[Json], "edge.MatchType"]] = {
    "value": _match_value,
    "text": lambda value: edge.MatchText(_words(value)),
    "text_any": lambda value: edge.MatchTextAny(_words(value)),
    "phrase": lambda value: edge.MatchPhrase(_words(value)),
    "any": lambda value: edge.MatchAny(_variants(value)),
    "except": lambda value: edge.MatchExcept(_variants(value)),
}
_TEXT_MATCHES = (edge.MatchText, edge.MatchTextAny, edge.MatchPhrase)
_CONDITION_FIELDS = frozenset({"key", *_KINDS, *_CLAUSES})
