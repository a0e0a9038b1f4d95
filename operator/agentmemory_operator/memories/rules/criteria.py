"""What a caller's `filters` mean: a typed tree over the fields of a memory, and the Qdrant filter that it compiles to.

A field holds any number of values: none where it is missing, null or an empty list, else one, or a list's. A condition
holds if some value meets it. Numbers compare exactly, times as Unix milliseconds. `criteria_match.py` decides about
one memory; what compiles here finds the candidates.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeAlias, TypeGuard, assert_never
from uuid import UUID

from agentmemory_operator.memories.rules.exact_numbers import around, is_compared_exactly, is_int64
from agentmemory_operator.memories.rules.record import PAYLOAD_KEYS, RENAMED

Condition = dict[str, Any]
Value: TypeAlias = str | float | bool

METADATA = "metadata."
NO_INDEXES: Mapping[str, str] = MappingProxyType({})


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
    """Some text contains each of these words, in any order and case."""

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


def leaves(criterion: Criterion) -> Iterator[Leaf]:
    """Yield the conditions of a criterion."""
    if isinstance(criterion, AllOf | AnyOf | NoneOf):
        for part in criterion.parts:
            yield from leaves(part)
    else:
        yield criterion


def compile_criterion(criterion: Criterion, indexes: Mapping[str, str] = NO_INDEXES) -> Condition:
    """Return the Qdrant condition that every memory meets that meets the criterion.

    Where `is_exact`, no other memory meets it. Otherwise `criteria_match.matches` has to decide.

    Args:
        indexes: Type of the payload index by key.
    """
    condition = _compile(criterion, indexes, is_wider=True)
    return {"must": []} if isinstance(condition, bool) else condition


def compile_certain(criterion: Criterion, indexes: Mapping[str, str] = NO_INDEXES) -> Condition | None:
    """Return a Qdrant condition that no memory meets but those that meet the criterion; None if there is none."""
    condition = _compile(criterion, indexes, is_wider=False)
    return None if isinstance(condition, bool) else condition


def is_exact(criterion: Criterion, indexes: Mapping[str, str] = NO_INDEXES) -> bool:
    """Return whether Qdrant decides a criterion as `criteria_match.matches` does."""
    return all(_is_leaf_exact(leaf, indexes) for leaf in leaves(criterion))


def _compile(criterion: Criterion, indexes: Mapping[str, str], *, is_wider: bool) -> Condition | bool:
    """Return a condition, True if all memories meet it, False if none does.

    Args:
        is_wider: The condition may hold for more memories than the criterion; otherwise for fewer, as within a NOT.
    """
    if not isinstance(criterion, AllOf | AnyOf | NoneOf):
        return _compile_leaf(criterion, indexes, is_wider=is_wider)
    if isinstance(criterion, AnyOf) and is_exact(criterion, indexes) and (values := _values_of_text(criterion.parts)):
        return values
    is_inner_wider = is_wider is not isinstance(criterion, NoneOf)
    conditions = [_compile(part, indexes, is_wider=is_inner_wider) for part in criterion.parts]
    found = [condition for condition in conditions if not isinstance(condition, bool)]
    match criterion:
        case AllOf():
            return False if False in conditions else {"must": found} if found else True
        case AnyOf():
            return True if True in conditions else {"should": found} if found else False
        case NoneOf():
            return False if True in conditions else {"must_not": found} if found else True


def _compile_leaf(leaf: Leaf, indexes: Mapping[str, str], *, is_wider: bool) -> Condition | bool:
    if _is_leaf_exact(leaf, indexes):
        return _condition_of(leaf)
    if _is_of_numbers(leaf) and indexes.get(leaf.field.key) != "datetime":
        return _wider_than_numbers(leaf) if is_wider else _narrower_than_numbers(leaf)
    if not is_wider:
        return False
    if indexes.get(leaf.field.key) == "uuid" and isinstance(leaf, Equals):
        return _condition_of(leaf)
    # What the engine would find is not all: see `_is_leaf_exact`.
    return {"must_not": [{"is_empty": {"key": leaf.field.key}}]}


def _wider_than_numbers(leaf: Equals | Within) -> Condition:
    """Return the condition of having a number whose stored float may meet a condition."""
    if isinstance(leaf, Equals):
        below, above = around(float(leaf.value))
        near = {"key": leaf.field.key, "range": {"gte": below, "lte": above}}
        return {"should": [near, _matching(leaf)]} if _is_integer(leaf.value) else near
    return {"key": leaf.field.key, "range": _moved(leaf.bounds, is_inwards=False)}


def _narrower_than_numbers(leaf: Equals | Within) -> Condition | bool:
    """Return the condition of having a number that meets a condition whatever number the stored float stands for."""
    if isinstance(leaf, Equals):
        return _matching(leaf) if _is_integer(leaf.value) else False
    bounds = _moved(leaf.bounds, is_inwards=True)
    return len(bounds) == len(leaf.bounds) and {"key": leaf.field.key, "range": bounds}


def _matching(leaf: Equals) -> Condition:
    # Qdrant matches integers of 64 bits exactly, and compares ranges as float64.
    return {"key": leaf.field.key, "match": {"value": int(leaf.value)}}


def _is_integer(value: Value) -> bool:
    return is_int64(int(value)) and int(value) == value


def _moved(bounds: Mapping[str, float | str], *, is_inwards: bool) -> dict[str, float]:
    """Return bounds moved over all floats that may be stored for them; fewer if two of one side become one."""
    moved: dict[str, float] = {}
    for name, bound in bounds.items():
        number, side = float(bound), name[0]
        if is_compared_exactly(number):
            moved[name] = number
        else:
            below, above = around(number)
            # `g` of the lower bounds, which move up to be narrower.
            name_moved = f"{side}t" if is_inwards else f"{side}te"
            moved[name_moved] = above if (side == "g") is is_inwards else below
    return moved


def _condition_of(leaf: Leaf) -> Condition:
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
        case Contains():
            raise AssertionError("no condition of the engine means the same")
        case _ as never:
            assert_never(never)


def _is_leaf_exact(leaf: Leaf, indexes: Mapping[str, str]) -> bool:
    """Return whether Qdrant's meaning of a condition is ours.

    A text match without an index is a case-sensitive substring match in Qdrant. An index of another type takes numbers
    for times and times for numbers, and one of numbers or times takes UUIDs for numbers; one of UUIDs ignores their
    spelling.
    """
    if isinstance(leaf, Contains):
        return False
    if _is_of_numbers(leaf) and not all(is_compared_exactly(float(number)) for number in _values_of(leaf)):
        return False
    index = indexes.get(leaf.field.key)
    if leaf.field.kind is not FieldKind.ANY or index is None or isinstance(leaf, Empty):
        return True
    if isinstance(leaf, Equals) and isinstance(leaf.value, str):
        return index not in ("uuid", "integer", "float", "datetime") or (index != "uuid" and not _is_uuid(leaf.value))
    if _has_text(leaf):
        return index not in ("integer", "float")
    return index != "datetime"


def _is_of_numbers(leaf: Leaf) -> TypeGuard[Equals | Within]:
    if not isinstance(leaf, Equals | Within) or leaf.field.kind is FieldKind.TIME:
        return False
    return not any(isinstance(value, str | bool) for value in _values_of(leaf))


def _values_of(leaf: Equals | Within) -> list[Value]:
    return [leaf.value] if isinstance(leaf, Equals) else list(leaf.bounds.values())


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _has_text(leaf: Equals | Within) -> bool:
    return any(isinstance(value, str) for value in _values_of(leaf))


def _values_of_text(parts: tuple[Criterion, ...]) -> Condition | None:
    """Return the values of one text field as one condition, which the index answers at once; None for others."""
    fields = {part.field for part in parts if isinstance(part, Equals)}
    texts = [part.value for part in parts if isinstance(part, Equals) and isinstance(part.value, str)]
    if len(fields) != 1 or len(texts) != len(parts):
        return None
    return {"key": fields.pop().key, "match": {"any": texts}}


def unindexed(criterion: Criterion, indexes: Mapping[str, str]) -> dict[str, str]:
    """The keys that no fitting index serves, each with the type of the index to add; none serves `Contains`.

    Args:
        indexes: type of the payload index by key.
    """
    missing: dict[str, str] = {}
    for leaf in leaves(criterion):
        if isinstance(leaf, Contains):
            continue
        fitting = _fitting_indexes(leaf)
        if indexes.get(leaf.field.key) not in fitting:
            missing.setdefault(leaf.field.key, _INDEX_TYPES.get(leaf.field.kind, fitting[0]))
    return missing


def _fitting_indexes(leaf: Equals | Empty | Within) -> tuple[str, ...]:
    """The types of an index that can answer the condition, the one to advise first."""
    match leaf:
        case Equals(value=bool()):
            return ("bool",)
        case Equals(value=str()):
            return ("keyword", "uuid")
        case Within() if any(isinstance(bound, str) for bound in leaf.bounds.values()):
            return ("datetime",)
        case Empty():
            return ("keyword", "integer", "float", "bool", "datetime", "geo", "text", "uuid")
        case _:
            return ("float", "integer")
