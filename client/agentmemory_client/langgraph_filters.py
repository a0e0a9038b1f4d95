"""What a `filter` of LangGraph's means, and which part of it the API can look at.

`matches` decides, as LangGraph's own store in memory does. What the API is asked beside a query only spares it items:
its conditions hold for every item that matches, with whichever index, and for others too. So what is said of a number
lets pass all that is no number: text may be one, True is 1, and an index of integers has no fractions.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

# As the API has them; a number takes two conditions of five parts.
TEXT_MAX, CONDITIONS_MAX = 1024, 64
# Beyond it, not every whole number is a float.
EXACT = 2.0**53
_NAME = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matches(value: Mapping[str, Any], filter_: Mapping[str, Any] | None) -> bool:
    """Whether a value is what a filter says.

    Raises:
        ValueError: the filter has an operator that there is not, or compares with what is no number.
    """
    return all(_compare(value.get(name), condition) for name, condition in (filter_ or {}).items())


def prefilter(filter_: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    """Conditions of the API that hold for every value that matches.

    Args:
        path: of the value in an item.
    """
    known = ((f"{path}.{name}", condition) for name, condition in filter_.items() if _NAME.fullmatch(name))
    asked = (part for field, condition in known if len(field) <= TEXT_MAX for part in _asked(field, condition))
    return list(islice(asked, CONDITIONS_MAX))


def _asked(field: str, condition: Any) -> Iterator[dict[str, Any]]:
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
    elif isinstance(value, str) and 1 <= len(value) <= TEXT_MAX and value.isprintable() and value.strip():
        yield {field: value}
    elif _is_exact(value):
        # 1 is True too, and 1.0.
        yield from _number(field, {"gte": float(value), "lte": float(value)})


def _number(field: str, bounds: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """That there is something which is no number within an index, or one within bounds."""
    yield {field: {"ne": None}}
    yield {"OR": [{field: dict(bounds)}, {"NOT": [{field: {"gte": -EXACT}}]}]}


def _is_exact(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < EXACT


def _compare(value: Any, condition: Any) -> bool:
    """Whether a value is what a condition says: operators, an object's fields, a list's entries, or itself."""
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
