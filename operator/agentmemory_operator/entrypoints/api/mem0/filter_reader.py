"""Convert mem0's filters to the owners of the memories to read, and a criterion over their other fields.

    part                     owners                    criterion
    user_id: U, {in: [U]}    those users               none
    user_id: "*", {ne: U}    any                       none, or not U
    another field            any                       its condition
    AND, sibling keys        intersection              all of them
    OR                       union; any if one is any  one of them, each with its owners
    NOT                      any                       none of them, each with its owners

Invariant: a memory meets the filters if and only if its owner is among the owners, and it meets the criterion. So a
caller who may act for all owners reads no memory of another user, whatever the filters contain.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentmemory_operator.entrypoints.api.bodies import request_invalid
from agentmemory_operator.entrypoints.api.fields import UserId
from agentmemory_operator.entrypoints.api.mem0.mem0_times import day_after, time_text
from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.memories.rules.criteria import (
    AllOf,
    AnyOf,
    Criterion,
    Empty,
    Equals,
    Field,
    FieldKind,
    NoneOf,
    leaves,
)
from agentmemory_operator.memories.rules.criteria_json import GROUPS, MAX_CONDITIONS, MAX_DEPTH, parse_filters
from agentmemory_operator.memories.rules.record import CHANGED_KEY, STORED_KEY
from agentmemory_operator.spec.canonical_names import canonical

RESERVED_KEY = "mem0"
"""Key of a memory's metadata that contains `agent_id` and `app_id`, and after an update `id`, `mark` and `created_at`.

`id` is that of the first version, `created_at` its time. `mark` shows that `id` is authentic (`public_id`).
"""

ANY_VALUE = "*"
MAX_VALUES = 4 * MAX_CONDITIONS
"""Maximum number of values of all conditions. A condition has at most 4, the bounds of a range."""

USER_FIELD = Field("user_id", "userId", FieldKind.WORD)
ID_FIELD = Field("id", "id", FieldKind.WORD)
_CONTENT = Field("text", "content", FieldKind.ANY)
_CHANGED = Field("updated_at", CHANGED_KEY, FieldKind.TIME)
_STORED = Field("updated_at", STORED_KEY, FieldKind.TIME)
_EVERYTHING = AllOf(())

# mem0's field -> field of the native filters.
_NAMES = {
    "run_id": "session_id",
    "session_id": "session_id",
    "agent_id": f"metadata.{RESERVED_KEY}.agent_id",
    "app_id": f"metadata.{RESERVED_KEY}.app_id",
    "categories": "tags",
}
_OPERATORS = {"icontains": "contains"}
_METADATA_OPERATORS = ("eq", "ne", "contains", "icontains")
_user_id = TypeAdapter(UserId)


@dataclass(frozen=True, slots=True)
class FilterPart:
    """Owners and criterion of filters.

    Attributes:
        owners: None allows every owner.
        criterion: None allows every memory of the owners.
        names_everyone: True if `user_id` is `*` somewhere.
    """

    owners: frozenset[str] | None = None
    criterion: Criterion | None = None
    names_everyone: bool = False

    @property
    def whole(self) -> Criterion:
        """Criterion that includes the owners."""
        users = () if self.owners is None else (AnyOf(tuple(Equals(USER_FIELD, name) for name in sorted(self.owners))),)
        return AllOf((*users, *(() if self.criterion is None else (self.criterion,))))


def read_filter(documents: Sequence[Mapping[str, Any]], *, takes_any_key: bool = False) -> FilterPart:
    """Convert filters, all of which must hold.

    Args:
        takes_any_key: True to use unknown keys as keys of the metadata, as mem0's open server does.

    Raises:
        RequestInvalid: If a key, operator or value is invalid, or the filters are too deep or too large.
    """
    reader = _Reader(takes_any_key=takes_any_key)
    part = _all([reader.read_group(document, depth=1) for document in documents if document])
    if part.criterion is not None and sum(1 for _ in leaves(part.criterion)) > MAX_CONDITIONS:
        raise _too_large()
    return part


def _too_large() -> RequestInvalid:
    return filter_error("filters", f"must not have more than {MAX_CONDITIONS} conditions and values")


def filter_error(field: str, message: str) -> RequestInvalid:
    """Build the error of one invalid field."""
    return RequestInvalid([FieldError(field, message)])


def _all(parts: Sequence[FilterPart]) -> FilterPart:
    limits = [part.owners for part in parts if part.owners is not None]
    criteria = tuple(part.criterion for part in parts if part.criterion is not None)
    return FilterPart(
        frozenset.intersection(*limits) if limits else None,
        criteria[0] if len(criteria) == 1 else AllOf(criteria) if criteria else None,
        any(part.names_everyone for part in parts),
    )


def _any(parts: Sequence[FilterPart]) -> FilterPart:
    limits = [part.owners for part in parts if part.owners is not None]
    owners = frozenset[str]().union(*limits) if len(limits) == len(parts) else None
    is_simple = owners is not None and all(part.criterion is None for part in parts)
    criterion = None if is_simple else AnyOf(tuple(part.whole for part in parts))
    return FilterPart(owners, criterion, any(part.names_everyone for part in parts))


def _none(parts: Sequence[FilterPart]) -> FilterPart:
    return FilterPart(None, NoneOf(tuple(part.whole for part in parts)))


_GROUPS: dict[str, Callable[[Sequence[FilterPart]], FilterPart]] = {"AND": _all, "OR": _any, "NOT": _none}


class _Reader:
    def __init__(self, *, takes_any_key: bool) -> None:
        self._takes_any_key = takes_any_key
        self._values = 0

    def read_group(self, document: object, *, depth: int) -> FilterPart:
        """Convert an object of fields and groups; all entries must hold."""
        if depth > MAX_DEPTH:
            raise filter_error("filters", f"must not be nested deeper than {MAX_DEPTH} levels")
        if not isinstance(document, Mapping) or not document:
            raise filter_error("filters", 'must be an object with at least one field, or "AND", "OR" or "NOT"')
        return _all([self._read_entry(name, value, depth=depth) for name, value in document.items()])

    def _read_entry(self, name: str, value: Any, *, depth: int) -> FilterPart:
        group = name.removeprefix("$").upper()
        if group in GROUPS:
            documents = value if isinstance(value, list) else [value]
            if not documents:
                raise filter_error(f"filters.{name}", "must be a list of at least one filter")
            return _GROUPS[group]([self.read_group(document, depth=depth + 1) for document in documents])
        if name == "user_id":
            return _users(value)
        # Stop early, because parsing all conditions of a large body would block other requests. `read_filter` checks
        # the exact number.
        self._values += _count_values(value)
        if self._values > MAX_VALUES:
            raise _too_large()
        return FilterPart(None, self._condition(name, value))

    def _condition(self, name: str, value: Any) -> Criterion:
        if name in _READERS:
            return _READERS[name](value)
        if name in _NAMES:
            return _parsed(_NAMES[name], _map_operands(value, _canonical))
        if self._takes_any_key:
            return _parsed(f"metadata.{name}", value)
        known = ", ".join(sorted((*_NAMES, *_READERS, "user_id")))
        raise filter_error(f"filters.{name[:64]}", f"unknown: use AND, OR, NOT, {known}, or metadata: {{name: value}}")


def _count_values(value: Any) -> int:
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return sum(map(_count_values, parts)) or 1


def _users(value: Any) -> FilterPart:
    if value == ANY_VALUE:
        return FilterPart(names_everyone=True)
    if not isinstance(value, Mapping):
        return FilterPart(frozenset(map(read_user_id, value if isinstance(value, list) else [value])))
    parts = []
    for operator, operand in value.items():
        match operator:
            case "eq":
                parts.append(_users(operand))
            case "in" if isinstance(operand, list) and operand:
                parts.append(_users(operand))
            case "ne":
                parts.append(FilterPart(None, NoneOf((Equals(USER_FIELD, read_user_id(operand)),))))
            case _:
                raise filter_error("filters.user_id", "must be a user, *, or {eq, ne: USER} or {in: [USER]}")
    return _all(parts)


def read_user_id(value: Any) -> str:
    """Validate a user id, and return its canonical spelling.

    Raises:
        RequestInvalid: If it is not a user id.
    """
    try:
        return _user_id.validate_python(value, strict=True)
    except ValidationError as error:
        raise request_invalid([{**item, "loc": ("user_id",)} for item in error.errors(include_url=False)]) from None


def _canonical(value: Any) -> Any:
    return canonical(value) if isinstance(value, str) else value


def _map_operands(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Convert the values of a condition, which may be one, a list, or an object of operators."""
    if isinstance(value, Mapping):
        return {operator: _map_operands(operand, convert) for operator, operand in value.items()}
    if isinstance(value, list):
        return [convert(part) for part in value]
    return value if value == ANY_VALUE else convert(value)


def _parsed(name: str, value: Any) -> Criterion:
    """Parse one condition by the native rules, after renaming mem0's operators."""
    if value == ANY_VALUE:
        document: dict[str, Any] = {"NOT": [{name: None}]}
    elif isinstance(value, Mapping) and "nin" in value:
        rest = {operator: operand for operator, operand in value.items() if operator != "nin"}
        document = {"NOT": [{name: {"in": value["nin"]}}], **({name: _renamed(rest)} if rest else {})}
    else:
        document = {name: _renamed(value)}
    return parse_filters(document) or _EVERYTHING


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return {"in": value}
    return {_OPERATORS.get(name, name): part for name, part in value.items()} if isinstance(value, Mapping) else value


def _metadata(value: Any) -> Criterion:
    if not isinstance(value, Mapping) or not value:
        raise filter_error("filters.metadata", "must be an object with at least one key")
    parts = []
    for key, operand in value.items():
        if key in _METADATA_OPERATORS and isinstance(operand, Mapping) and operand:
            operator = _OPERATORS.get(key, key)
            parts += [_parsed(f"metadata.{name}", {operator: part}) for name, part in operand.items()]
        else:
            parts.append(_parsed(f"metadata.{key}", operand))
    return AllOf(tuple(parts))


def _among(value: Any) -> Criterion:
    ids = value.get("in") if isinstance(value, Mapping) else value
    if not isinstance(ids, list) or not ids or not all(isinstance(id_, str) for id_ in ids):
        raise filter_error("filters.memory_ids", "must be a list of at least one ID")
    first = Field("id", f"metadata.{RESERVED_KEY}.id", FieldKind.ANY)
    return AnyOf(tuple(Equals(field, id_.lower()) for id_ in ids for field in (ID_FIELD, first)))


def _updated(criterion: Criterion) -> Criterion:
    """Apply a condition to the time of the last edit, or without one to that of the write."""
    never = Empty(_CHANGED)
    return AnyOf((AllOf((NoneOf((never,)), _on(criterion, _CHANGED))), AllOf((never, _on(criterion, _STORED)))))


def _on(criterion: Criterion, field: Field = _CONTENT) -> Criterion:
    """Apply a criterion to another field."""
    if isinstance(criterion, AllOf | AnyOf | NoneOf):
        return replace(criterion, parts=tuple(_on(part, field) for part in criterion.parts))
    return replace(criterion, field=field)


def _of_creation(value: Any) -> Criterion:
    return _parsed("created_at", _map_operands(value, time_text))


def _of_expiry(value: Any) -> Criterion:
    return _parsed("expires_at", _map_operands(value, lambda date: time_text(day_after(date))))


def _of_text(value: Any) -> Criterion:
    return _on(_parsed("metadata.text", value if isinstance(value, Mapping) else {"contains": value}))


_READERS: dict[str, Callable[[Any], Criterion]] = {
    "created_at": _of_creation,
    "timestamp": _of_creation,
    "updated_at": lambda value: _updated(_of_creation(value)),
    "expiration_date": _of_expiry,
    "keywords": _of_text,
    "text": _of_text,
    "metadata": _metadata,
    "memory_ids": _among,
}
