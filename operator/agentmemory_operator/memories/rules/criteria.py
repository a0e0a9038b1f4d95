"""Criteria: the `filters` of a request as a typed tree over the fields of a memory, compiled to Qdrant filters.

A field has no value if it is missing, null or an empty list; else one value, or those of the list. A condition holds if
at least one value meets it. Numbers compare exactly, times as Unix milliseconds. The filter compiled here finds
candidates; unless it is exact, `criteria_match.py` decides about each of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeGuard, assert_never
from uuid import UUID

from agentmemory_operator.memories.rules.exact_numbers import is_compared_exactly, is_int64, stored_float_bounds
from agentmemory_operator.memories.rules.record import ATTRIBUTES_BY_API_NAME, PAYLOAD_KEYS

Condition = dict[str, Any]
Value: TypeAlias = str | float | bool

METADATA = "metadata."
NO_INDEXES: Mapping[str, str] = MappingProxyType({})


class FieldKind(StrEnum):
    """Type of a field's values, which determines its operators and how values are parsed."""

    WORD = "word"
    WORDS = "words"
    NUMBER = "number"
    TIME = "time"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Field:
    """A field that requests can filter on.

    Attributes:
        name: Name in the API.
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
    name: Field(name, PAYLOAD_KEYS[ATTRIBUTES_BY_API_NAME.get(name, name)], kind)
    for kind, names in _NAMES.items()
    for name in names
}
"""All fields by API name, except those of `metadata`. `presets.RETRIEVAL_INDEXES` indexes those that every search uses.
"""

# Type of the index that supports every operator of the kind.
_INDEX_TYPES = {
    FieldKind.WORD: "keyword",
    FieldKind.WORDS: "keyword",
    FieldKind.NUMBER: "float",
    FieldKind.TIME: "integer",
}


@dataclass(frozen=True, slots=True)
class Equals:
    """Condition that some value equals `value`."""

    field: Field
    value: Value


@dataclass(frozen=True, slots=True)
class Empty:
    """Condition that the field has no value."""

    field: Field


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """Condition that some value is within all bounds: numbers, or RFC 3339 times for metadata with times as text."""

    field: Field
    gt: float | str | None = None
    gte: float | str | None = None
    lt: float | str | None = None
    lte: float | str | None = None

    @property
    def bounds(self) -> dict[str, float | str]:
        """The bounds that are set, by operator."""
        by_operator = {"gt": self.gt, "gte": self.gte, "lt": self.lt, "lte": self.lte}
        return {name: bound for name, bound in by_operator.items() if bound is not None}


@dataclass(frozen=True, slots=True)
class Contains:
    """Condition that some text value contains all words of `text`, in any order, ignoring case."""

    field: Field
    text: str


@dataclass(frozen=True, slots=True)
class AllOf:
    """Conjunction: every part holds."""

    parts: "tuple[Criterion, ...]"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Disjunction: at least one part holds."""

    parts: "tuple[Criterion, ...]"


@dataclass(frozen=True, slots=True)
class NoneOf:
    """Negation: no part holds."""

    parts: "tuple[Criterion, ...]"


Leaf: TypeAlias = Equals | Empty | Within | Contains
Criterion: TypeAlias = Leaf | AllOf | AnyOf | NoneOf


ListedState = Literal["active", "superseded", "pinned"]
STATE_CRITERIA: Mapping[ListedState, Criterion] = {
    "active": Empty(FIELDS["superseded_by"]),
    "superseded": NoneOf((Empty(FIELDS["superseded_by"]),)),
    "pinned": Equals(Field("pinned", PAYLOAD_KEYS["pinned"], FieldKind.WORD), True),
}
"""Condition of each state that a list can be limited to."""


def leaves(criterion: Criterion) -> Iterator[Leaf]:
    """Yield the conditions of a criterion, without the groups."""
    if isinstance(criterion, AllOf | AnyOf | NoneOf):
        for part in criterion.parts:
            yield from leaves(part)
    else:
        yield criterion


def compile_criterion(criterion: Criterion, indexes: Mapping[str, str] = NO_INDEXES) -> Condition:
    """Return a Qdrant condition that every memory meeting the criterion meets too.

    If `is_exact` is true, no other memory meets it. Otherwise check each memory with `criteria_match.matches`.

    Args:
        indexes: Type of the payload index by key.
    """
    condition = _compile(criterion, indexes, is_wider=True)
    if isinstance(condition, bool):
        return {"must": []} if condition else {"has_id": []}
    return condition


def compile_certain(criterion: Criterion, indexes: Mapping[str, str] = NO_INDEXES) -> Condition | None:
    """Return a Qdrant condition that only memories meeting the criterion meet; None if there is no such condition."""
    condition = _compile(criterion, indexes, is_wider=False)
    return None if isinstance(condition, bool) else condition


def is_exact(criterion: Criterion, indexes: Mapping[str, str] = NO_INDEXES) -> bool:
    """Return whether Qdrant decides a criterion exactly as `criteria_match.matches` does."""
    return all(_is_leaf_exact(leaf, indexes) for leaf in leaves(criterion))


def _compile(criterion: Criterion, indexes: Mapping[str, str], *, is_wider: bool) -> Condition | bool:
    """Return a condition, or True if all memories meet it, or False if none does.

    Args:
        is_wider: True if the condition may match more memories than the criterion, False if it may match fewer. A NOT
            inverts the value for its part.
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
    # Require only a value: Qdrant's own condition would miss some memories (`_is_leaf_exact`).
    return {"must_not": [{"is_empty": {"key": leaf.field.key}}]}


def _wider_than_numbers(leaf: Equals | Within) -> Condition:
    """Return a condition that matches every stored float that may represent a number meeting `leaf`."""
    if isinstance(leaf, Equals):
        below, above = stored_float_bounds(float(leaf.value))
        near = {"key": leaf.field.key, "range": {"gte": below, "lte": above}}
        return {"should": [near, _matching(leaf)]} if _is_integer(leaf.value) else near
    return {"key": leaf.field.key, "range": _moved(leaf.bounds, is_inwards=False)}


def _narrower_than_numbers(leaf: Equals | Within) -> Condition | bool:
    """Return a condition for the stored floats that only represent numbers meeting the condition."""
    if isinstance(leaf, Equals):
        return _matching(leaf) if _is_integer(leaf.value) else False
    bounds = _moved(leaf.bounds, is_inwards=True)
    return len(bounds) == len(leaf.bounds) and {"key": leaf.field.key, "range": bounds}


def _matching(leaf: Equals) -> Condition:
    # Match the integer, which Qdrant compares exactly. It would compare a range as float64.
    return {"key": leaf.field.key, "match": {"value": int(leaf.value)}}


def _is_integer(value: Value) -> bool:
    return is_int64(int(value)) and int(value) == value


def _moved(bounds: Mapping[str, float | str], *, is_inwards: bool) -> dict[str, float]:
    """Return bounds moved past all floats that may be stored for them. Coinciding bounds of one side become one."""
    shifted: dict[str, float] = {}
    for name, bound in bounds.items():
        number, side = float(bound), name[0]
        if is_compared_exactly(number):
            shifted[name] = number
        else:
            below, above = stored_float_bounds(number)
            # A lower bound (`g`) moves up to narrow the range.
            new_name = f"{side}t" if is_inwards else f"{side}te"
            shifted[new_name] = above if (side == "g") is is_inwards else below
    return shifted


def _condition_of(leaf: Leaf) -> Condition:
    match leaf:
        case Equals(field, bool() | str() as value):
            return {"key": field.key, "match": {"value": value}}
        case Equals(field, value):
            # Use a range for a float, because `match` distinguishes 5 from 5.0 and accepts integers only.
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
    """Return whether Qdrant and `criteria_match` give a condition the same meaning.

    Without an index, a text match in Qdrant is a case-sensitive substring match. An index of another type confuses
    numbers and times, or takes UUIDs for numbers. A UUID index ignores differences of spelling.
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
    """Return equality tests of one text field as one `any` condition, one index lookup; None for other parts."""
    fields = {part.field for part in parts if isinstance(part, Equals)}
    texts = [part.value for part in parts if isinstance(part, Equals) and isinstance(part.value, str)]
    if len(fields) != 1 or len(texts) != len(parts):
        return None
    return {"key": fields.pop().key, "match": {"any": texts}}


def find_unindexed(criterion: Criterion, indexes: Mapping[str, str]) -> dict[str, str]:
    """Return the keys without a suitable index, each with the type of the index to add.

    Keys of `Contains` are left out, because no index supports it.

    Args:
        indexes: Type of the payload index by key.
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
    """Return the index types that support a condition, the recommended one first."""
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
