"""Parse the JSON of `filters` into a criterion; errors name the path of the invalid part."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.memories.rules.criteria import (
    FIELDS,
    METADATA,
    AllOf,
    AnyOf,
    Contains,
    Criterion,
    Empty,
    Equals,
    Field,
    FieldKind,
    NoneOf,
    Value,
    Within,
)
from agentmemory_operator.memories.rules.exact_numbers import OUT_OF_INT64, is_int64
from agentmemory_operator.memories.rules.words import split_words
from agentmemory_operator.spec.canonical_names import canonical, did_you_mean
from agentmemory_operator.spec.times import parse_time

MAX_DEPTH = 8
MAX_CONDITIONS = 256
MAX_TEXT_CHARS = 1024

GROUPS: dict[str, Callable[[tuple[Criterion, ...]], Criterion]] = {"AND": AllOf, "OR": AnyOf, "NOT": NoneOf}
BOUNDS = ("gt", "gte", "lt", "lte")
OPERATORS = {
    FieldKind.WORD: ("eq", "ne", "in"),
    FieldKind.WORDS: ("eq", "ne", "in", "contains"),
    FieldKind.NUMBER: ("eq", "ne", "in", *BOUNDS),
    FieldKind.TIME: ("eq", "ne", "in", *BOUNDS),
    FieldKind.ANY: ("eq", "ne", "in", "contains", *BOUNDS),
}

# Same pattern as the paths of `payloadIndexes`, so that every filterable field can be indexed.
_METADATA_PATH = re.compile(r"metadata(\.[A-Za-z0-9_-]+)+", re.ASCII)


class _WrongError(Exception):
    """First error found in a document of `filters`, with the path of the invalid part."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(path, message)
        self.error = FieldError(path, message)


def parse_filters(document: Mapping[str, Any]) -> Criterion | None:
    """Parse `filters`; return None if there are no conditions.

    Raises:
        RequestInvalid: If a field or operator is unknown, a value does not fit, or the document is nested too deep or
            too large.
    """
    if not document:
        return None
    reader = _Reader()
    try:
        return reader.group(document, "filters", depth=1)
    except _WrongError as error:
        raise RequestInvalid([error.error]) from None


class _Reader:
    """Parser of one document, which counts its conditions. It raises `_WrongError` at the first invalid part."""

    def __init__(self) -> None:
        self._conditions = 0

    def group(self, document: object, path: str, *, depth: int) -> Criterion:
        """Parse an object of fields and groups; all entries must hold."""
        if depth > MAX_DEPTH:
            raise _WrongError(path, f"must not be nested deeper than {MAX_DEPTH} levels")
        if not isinstance(document, Mapping) or not document:
            raise _WrongError(path, 'must be an object with at least one field, or "AND", "OR" or "NOT"')
        return _all([self._entry(name, value, f"{path}.{name}", depth=depth) for name, value in document.items()])

    def _entry(self, name: str, value: object, path: str, *, depth: int) -> Criterion:
        if name not in GROUPS:
            return self._conditions_of(_field(name, path), value, path)
        if not isinstance(value, list) or not value:
            raise _WrongError(path, "must be a list of at least one filter")
        return GROUPS[name](
            tuple(self.group(part, f"{path}[{index}]", depth=depth + 1) for index, part in enumerate(value))
        )

    def _conditions_of(self, field: Field, value: object, path: str) -> Criterion:
        """Parse the conditions on one field: a value, or an object of operators."""
        if not isinstance(value, Mapping):
            return self._equals(field, value, path)
        operators = OPERATORS[field.kind]
        if not value:
            raise _WrongError(path, f"must have an operator: {', '.join(operators)}")
        for operator in value:
            if operator not in operators:
                question = did_you_mean(operator, operators)
                raise _WrongError(f"{path}.{operator}", f"unknown{question}; {field.name} takes {', '.join(operators)}")
        parts = [
            self._operator(field, operator, operand, f"{path}.{operator}")
            for operator, operand in value.items()
            if operator not in BOUNDS
        ]
        bounds = {operator: operand for operator, operand in value.items() if operator in BOUNDS}
        return _all([*parts, self._within(field, bounds, path)] if bounds else parts)

    def _operator(self, field: Field, operator: str, operand: object, path: str) -> Criterion:
        match operator:
            case "eq":
                return self._equals(field, operand, path)
            case "ne":
                return NoneOf((self._equals(field, operand, path),))
            case "in":
                return self._one_of(field, operand, path)
            case _:
                return self._contains(field, operand, path)

    def _equals(self, field: Field, value: object, path: str) -> Criterion:
        self._count(path)
        return Empty(field) if value is None else Equals(field, _value(field, value, path))

    def _one_of(self, field: Field, values: object, path: str) -> Criterion:
        if not isinstance(values, list) or not values:
            raise _WrongError(path, "must be a list of at least one value")
        return AnyOf(tuple(self._equals(field, value, f"{path}[{index}]") for index, value in enumerate(values)))

    def _contains(self, field: Field, value: object, path: str) -> Criterion:
        if field.kind is FieldKind.WORDS:
            return self._equals(field, value, path)
        self._count(path)
        text = _text(value, path)
        if not split_words(text):
            raise _WrongError(path, "must have at least one letter or digit")
        return Contains(field, text)

    def _within(self, field: Field, bounds: Mapping[str, object], path: str) -> Criterion:
        self._count(path)
        read = {name: _bound(field, bound, f"{path}.{name}") for name, bound in bounds.items()}
        if len({isinstance(bound, str) for bound in read.values()}) > 1:
            raise _WrongError(path, "must have bounds of one kind: numbers, or times")
        return Within(field=field, **read)

    def _count(self, path: str) -> None:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise _WrongError(path, f"must not have more than {MAX_CONDITIONS} conditions and values")


def _all(parts: list[Criterion]) -> Criterion:
    return parts[0] if len(parts) == 1 else AllOf(tuple(parts))


def _field(name: str, path: str) -> Field:
    if field := FIELDS.get(name):
        return field
    if not name.startswith(METADATA):
        question = did_you_mean(name, (*GROUPS, *FIELDS))
        raise _WrongError(path, f"unknown{question}; known are AND, OR, NOT, {', '.join(FIELDS)} and {METADATA}NAME")
    if not _METADATA_PATH.fullmatch(name) or len(name) > MAX_TEXT_CHARS:
        raise _WrongError(path, "must be metadata.NAME or metadata.NAME.NAME with only letters, digits, _ and -")
    return Field(name, name, FieldKind.ANY)


def _value(field: Field, value: object, path: str) -> Value:
    match field.kind:
        case FieldKind.WORD | FieldKind.WORDS:
            return canonical(_text(value, path))
        case FieldKind.NUMBER:
            return _number(value, path)
        case FieldKind.TIME:
            return float(_time(value, path))
    if isinstance(value, bool):
        return value
    return _text(value, path) if isinstance(value, str) else _number(value, path, "a text, a number, true or false")


def _bound(field: Field, value: object, path: str) -> float | str:
    if field.kind is FieldKind.TIME:
        return float(_time(value, path))
    if field.kind is FieldKind.ANY and isinstance(value, str):
        _time(value, path)
        return value
    return _number(value, path, "a number or a time" if field.kind is FieldKind.ANY else "a number")


def _time(value: object, path: str) -> int:
    try:
        return parse_time(value)
    except ValueError as error:
        raise _WrongError(path, str(error)) from None


def _number(value: Any, path: str, expected: str = "a number") -> float:
    """Return a number unchanged, because a float cannot represent an integer of more than 53 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _WrongError(path, f"must be {expected}")
    if isinstance(value, int) and not is_int64(value):
        raise _WrongError(path, OUT_OF_INT64)
    if not math.isfinite(value):
        raise _WrongError(path, f"must be {expected}")
    return value


def _text(value: object, path: str) -> str:
    if isinstance(value, str) and 1 <= len(value) <= MAX_TEXT_CHARS:
        return value
    raise _WrongError(path, f"must be a text of 1 to {MAX_TEXT_CHARS} characters")
