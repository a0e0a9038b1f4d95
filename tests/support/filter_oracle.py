"""What the conditions of `filters` mean, in Python: what the engine's answer is compared with."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from agentmemory_operator.domain.criteria import AllOf, AnyOf, Contains, Criterion, Empty, Equals, NoneOf, Within

COMPARED = {
    "gt": lambda value, bound: value > bound,
    "gte": lambda value, bound: value >= bound,
    "lt": lambda value, bound: value < bound,
    "lte": lambda value, bound: value <= bound,
}


def holds(criterion: Criterion, payload: Mapping[str, Any]) -> bool:
    """Tell whether a memory's payload meets the condition."""
    match criterion:
        case AllOf(parts):
            return all(holds(part, payload) for part in parts)
        case AnyOf(parts):
            return any(holds(part, payload) for part in parts)
        case NoneOf(parts):
            return not any(holds(part, payload) for part in parts)
        case Empty(field):
            return not values_at(payload, field.key)
        case Equals(field, wanted):
            return any(same(value, wanted) for value in values_at(payload, field.key))
        case Contains(field, text):
            return any(words_of(text) <= words_of(value) for value in values_at(payload, field.key) if words_of(text))
        case Within(field=field):
            return any(within(value, criterion.bounds) for value in values_at(payload, field.key))


def values_at(payload: Mapping[str, Any], path: str) -> list[Any]:
    value: Any = payload
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def same(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool | str):
        return type(value) is type(wanted) and bool(value == wanted)
    return is_number(value) and float(value) == wanted


def within(value: Any, bounds: Mapping[str, Any]) -> bool:
    if any(isinstance(bound, str) for bound in bounds.values()):
        moments = {name: datetime.fromisoformat(bound) for name, bound in bounds.items()}
        return (moment := moment_of(value)) is not None and all(COMPARED[n](moment, b) for n, b in moments.items())
    return is_number(value) and all(COMPARED[name](float(value), bound) for name, bound in bounds.items())


def words_of(value: Any) -> set[str]:
    return set(re.findall(r"[^\W_]+", value.lower())) if isinstance(value, str) else set()


def moment_of(value: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) and "T" in value else None
    except ValueError:
        return None


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
