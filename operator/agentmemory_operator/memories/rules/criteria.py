"""What a caller's `filters` mean: a typed tree over the fields of a memory, and the Qdrant filter that it compiles to.

A field holds any number of values: none where it is missing, null or an empty list, else one, or a list's. A condition
holds if some value meets it. Numbers compare as float64, times as Unix milliseconds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, assert_never

from agentmemory_operator.memories.rules.record import PAYLOAD_KEYS, RENAMED

Condition = dict[str, Any]
Value: TypeAlias = str | float | bool

METADATA = "metadata."


class FieldKind(StrEnum):
    """What a field holds, which decides the operators that it takes and how values are read."""

    WORD = "word"
    WORDS = "words"
    NUMBER = "number"
    TIME = "time"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Field:
    """A field that can be filtered on.

    Attributes:
        name: outside.
        key: on the point.
    """

    name: str
    key: str
    kind: FieldKind


_NAMES = {
    FieldKind.WORD: (
        *("type", "session_id", "source", "author", "speaker", "role", "key", "subject", "status_value", "category"),
        *("knowledge_category", "event_type", "domain", "parent_id", "run_id", "zone", "supersedes", "superseded_by"),
    ),
    FieldKind.WORDS: ("tags", "source_ids", "observed_by"),
    FieldKind.NUMBER: ("importance", "confidence", "access_count"),
    FieldKind.TIME: ("created_at", "last_accessed_at", "expires_at", "valid_from", "valid_to", "superseded_at"),
}
FIELDS = {
    name: Field(name, PAYLOAD_KEYS[RENAMED.get(name, name)], kind) for kind, names in _NAMES.items() for name in names
}
"""Every field but those of `metadata`. What searches need themselves is indexed (`presets.RETRIEVAL_INDEXES`)."""

# The index that serves whatever can be asked of a field of the kind.
_INDEX_TYPES = {
    FieldKind.WORD: "keyword",
    FieldKind.WORDS: "keyword",
    FieldKind.NUMBER: "float",
    FieldKind.TIME: "integer",
}


@dataclass(frozen=True, slots=True)
class Equals:
    """Some value is this one."""

    field: Field
    value: Value


@dataclass(frozen=True, slots=True)
class Empty:
    """There is no value."""

    field: Field


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """Some value lies within all of these bounds: numbers, or RFC 3339 times for times kept as text in metadata."""

    field: Field
    gt: float | str | None = None
    gte: float | str | None = None
    lt: float | str | None = None
    lte: float | str | None = None

    @property
    def bounds(self) -> dict[str, float | str]:
        """The bounds that are given."""
        given = {"gt": self.gt, "gte": self.gte, "lt": self.lt, "lte": self.lte}
        return {name: bound for name, bound in given.items() if bound is not None}


@dataclass(frozen=True, slots=True)
class Contains:
    """Some text holds each of these words, in any order and case."""

    field: Field
    text: str


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every part holds."""

    parts: "tuple[Criterion, ...]"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Some part holds."""

    parts: "tuple[Criterion, ...]"


@dataclass(frozen=True, slots=True)
class NoneOf:
    """No part holds."""

    parts: "tuple[Criterion, ...]"


Leaf: TypeAlias = Equals | Empty | Within | Contains
Criterion: TypeAlias = Leaf | AllOf | AnyOf | NoneOf


def compile_criterion(criterion: Criterion) -> Condition:
    """The Qdrant condition."""
    match criterion:
        case AllOf(parts):
            return {"must": [compile_criterion(part) for part in parts]}
        case AnyOf(parts):
            return _compile_any(parts)
        case NoneOf(parts):
            return {"must_not": [compile_criterion(part) for part in parts]}
        case _:
            return _compile_leaf(criterion)


def _compile_leaf(leaf: Leaf) -> Condition:
    match leaf:
        case Equals(field, bool() | str() as value):
            return {"key": field.key, "match": {"value": value}}
        case Equals(field, value):
            # The engine matches whole numbers exactly, which would tell 5 and 5.0 apart, and no others.
            return {"key": field.key, "range": {"gte": value, "lte": value}}
        case Empty(field):
            return {"is_empty": {"key": field.key}}
        case Within(field=field):
            return {"key": field.key, "range": leaf.bounds}
        case Contains(field, text):
            return {"key": field.key, "match": {"text": text}}
        case _ as never:
            assert_never(never)


def unindexed(criterion: Criterion, indexes: Mapping[str, str]) -> dict[str, str]:
    """The keys that no fitting index serves, each with the type of the index to add.

    Args:
        indexes: type of the payload index by key.
    """
    missing: dict[str, str] = {}
    for leaf in _leaves(criterion):
        fitting = _fitting_indexes(leaf)
        if indexes.get(leaf.field.key) not in fitting:
            missing.setdefault(leaf.field.key, _INDEX_TYPES.get(leaf.field.kind, fitting[0]))
    return missing


def _compile_any(parts: tuple[Criterion, ...]) -> Condition:
    """Alternatives; values of one text field as one condition, which the index answers at once."""
    fields = {part.field for part in parts if isinstance(part, Equals)}
    texts = [part.value for part in parts if isinstance(part, Equals) and isinstance(part.value, str)]
    if len(fields) == 1 and len(texts) == len(parts):
        return {"key": fields.pop().key, "match": {"any": texts}}
    return {"should": [compile_criterion(part) for part in parts]}


def _leaves(criterion: Criterion) -> Iterator[Leaf]:
    if isinstance(criterion, AllOf | AnyOf | NoneOf):
        for part in criterion.parts:
            yield from _leaves(part)
    else:
        yield criterion


def _fitting_indexes(leaf: Leaf) -> tuple[str, ...]:
    """The types of an index that can answer the condition, the one to advise first."""
    match leaf:
        case Equals(value=bool()):
            return ("bool",)
        case Equals(value=str()):
            return ("keyword", "uuid")
        case Contains():
            return ("text",)
        case Within() if any(isinstance(bound, str) for bound in leaf.bounds.values()):
            return ("datetime",)
        case Empty():
            return ("keyword", "integer", "float", "bool", "datetime", "geo", "text", "uuid")
        case _:
            return ("float", "integer")
