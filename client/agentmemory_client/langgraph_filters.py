"""Evaluate LangGraph filters, and translate a part of them into filters of the API.

`matches` decides, like LangGraph's own in-memory store. The API's conditions only reduce the number of candidates:
they hold for every item that matches, with any payload index, and also for some that do not match.

So a condition on a number also accepts every value that is not a number. A text may be numeric, True equals 1, and an
integer index ignores fractions.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

# Limits of the API. A condition on a number takes two conditions with five parts in all.
MAX_TEXT_CHARS, MAX_CONDITIONS = 1024, 64
# Not every larger integer has an exact float.
MAX_EXACT_INTEGER = 2.0**53
_NAME = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matches(value: Mapping[str, Any], filter_: Mapping[str, Any] | None) -> bool:
    """Return whether a value matches a LangGraph filter. None or an empty filter matches every value.

    Raises:
        ValueError: If the filter has an unknown operator, or compares with a bound that is not a number.
    """
    return all(_compare(value.get(name), condition) for name, condition in (filter_ or {}).items())


def prefilter(filter_: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    """Translate a filter into API conditions that hold for every value that matches; at most `MAX_CONDITIONS`.

    Args:
        path: Path of the value in an item's payload.
    """
    known = ((f"{path}.{name}", condition) for name, condition in filter_.items() if _NAME.fullmatch(name))
    conditions = (
        part for field, condition in known if len(field) <= MAX_TEXT_CHARS for part in _translate(field, condition)
    )
    return list(islice(conditions, MAX_CONDITIONS))


def _translate(field: str, condition: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(condition, dict):
        yield from _equal(field, condition)
    for name, bound in condition.items() if isinstance(condition, dict) else ():
        if name == "$eq":
            yield from _equal(field, bound)
        elif name in _BOUNDS and _is_exact(bound):
            yield from _number(field, {name[1:]: float(bound)})


def _equal(field: str, value: Any) -> Iterator[dict[str, Any]]:
    if value is None:
        yield {field: None}
    elif isinstance(value, str) and 1 <= len(value) <= MAX_TEXT_CHARS and value.isprintable() and value.strip():
        yield {field: value}
    elif _is_exact(value):
        # True and 1.0 equal 1 too.
        yield from _number(field, {"gte": float(value), "lte": float(value)})


def _number(field: str, bounds: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """Yield two conditions: the field is set; it is within the bounds, or an index has no number for it."""
    yield {field: {"ne": None}}
    yield {"OR": [{field: dict(bounds)}, {"NOT": [{field: {"gte": -MAX_EXACT_INTEGER}}]}]}


def _is_exact(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < MAX_EXACT_INTEGER


def _compare(value: Any, condition: Any) -> bool:
    """Return whether a value matches a condition: operators, fields of an object, entries of a list, or equality."""
    if isinstance(condition, dict):
        if any(name.startswith("$") for name in condition):
            return all(_holds(value, name, bound) for name, bound in condition.items())
        return isinstance(value, dict) and all(_compare(value.get(name), part) for name, part in condition.items())
    if isinstance(condition, list | tuple):
        is_list = isinstance(value, list) and len(value) == len(condition)
        return is_list and all(map(_compare, value, condition))
    return bool(value == condition)


def _holds(value: Any, name: str, bound: Any) -> bool:
    if name in ("$eq", "$ne"):
        return bool(value == bound) is (name == "$eq")
    compare = _BOUNDS.get(name)
    if compare is None:
        raise ValueError(f"filter: {name} is no operator: $eq, $ne, {', '.join(_BOUNDS)}")
    number, limit = _float(value), _float(bound)
    if limit is None:
        raise ValueError(f"filter: {name}: compares numbers, and {bound!r} is none")
    return number is not None and compare(number, limit)


def _float(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
