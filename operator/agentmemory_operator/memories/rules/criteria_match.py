"""Decide whether a memory meets a criterion: the definition of `filters`, independent of Qdrant and its indexes.

Qdrant returns candidates (`criteria.py`). A search checks here those that Qdrant cannot decide with certainty.
An erasure checks every candidate here before it deletes.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import Any, assert_never

from agentmemory_operator.memories.rules.criteria import (
    AllOf,
    AnyOf,
    Contains,
    Criterion,
    Empty,
    Equals,
    NoneOf,
    Value,
    Within,
    leaves,
)
from agentmemory_operator.memories.rules.words import split_words
from agentmemory_operator.zones.rules.sealing import ZONE_KEY, sealed_keys

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {"gt": gt, "gte": ge, "lt": lt, "lte": le}
# Formats of times that Qdrant parses.
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?: ?(?:[Zz]|[+-]\d\d(?::?\d\d)?))?)?", re.ASCII
)
_NANOSECONDS = re.compile(r"(?<=\.)\d+")

_words_of = lru_cache(maxsize=64)(split_words)


def matches(criterion: Criterion, payload: Mapping[str, Any]) -> bool:
    """Return whether a memory meets a criterion.

    Args:
        payload: Payload of the memory, with at least `keys_of`. Fields that its zone encrypts count as having no value.
    """
    hidden = sealed_keys(payload[ZONE_KEY]) if payload.get(ZONE_KEY) else frozenset()
    return _matches(criterion, {key: value for key, value in payload.items() if key not in hidden})


def keys_of(criterion: Criterion) -> list[str]:
    """Return the payload keys that `matches` reads."""
    return list(dict.fromkeys([ZONE_KEY, *(leaf.field.key for leaf in leaves(criterion))]))


def _matches(criterion: Criterion, payload: Mapping[str, Any]) -> bool:
    match criterion:
        case AllOf(parts):
            return all(_matches(part, payload) for part in parts)
        case AnyOf(parts):
            return any(_matches(part, payload) for part in parts)
        case NoneOf(parts):
            return not any(_matches(part, payload) for part in parts)
    values = values_at(payload, criterion.field.key)
    match criterion:
        case Empty():
            return not values
        case Equals(value=expected):
            return any(_equals(value, expected) for value in values)
        case Within():
            return any(_is_within(value, criterion.bounds) for value in values)
        case Contains(text=text):
            words = _words_of(text)
            return any(isinstance(value, str) and split_words(value).contain(words) for value in values)
        case _ as never:
            assert_never(never)


def values_at(payload: Mapping[str, Any], path: str) -> list[Any]:
    """Return the values of a field: none, one, or those of a list."""
    value: Any = payload
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _equals(value: Any, expected: Value) -> bool:
    if isinstance(expected, str | bool):
        return type(value) is type(expected) and value == expected
    # Python compares integers and floats exactly.
    return _is_number(value) and bool(value == expected)


def _is_within(value: Any, bounds: Mapping[str, float | str]) -> bool:
    compared: Any = value
    limits: dict[str, Any] = dict(bounds)
    if any(isinstance(bound, str) for bound in bounds.values()):
        compared = _moment(value) if isinstance(value, str) else None
        limits = {name: _moment(str(bound)) for name, bound in bounds.items()}
    else:
        compared = value if _is_number(value) else None
    return compared is not None and all(_COMPARED[name](compared, limit) for name, limit in limits.items())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _moment(text: str) -> tuple[datetime, str] | None:
    """Parse a time into whole seconds in UTC and 9 digits of fraction; None for other text.

    The default offset is UTC.
    """
    if not _TIME.fullmatch(text):
        return None
    fraction = found.group() if (found := _NANOSECONDS.search(text)) else ""
    whole = text.replace(f".{fraction}", "") if fraction else text
    try:
        moment = datetime.fromisoformat(whole.upper().replace(" Z", "Z"))
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return moment, fraction.ljust(9, "0")
