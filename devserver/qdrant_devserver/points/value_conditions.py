"""Conditions on nulls and value counts, for which the engine and the server give different results."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import qdrant_edge as edge

from qdrant_devserver.error_answers import not_built
from qdrant_devserver.features import DEFAULT_QDRANT_VERSION, Features, features_of
from qdrant_devserver.fields import Document


@dataclass(frozen=True, slots=True)
class Conditions:
    """Facts on which the meaning of a condition depends.

    Attributes:
        indexed: Keys of the collection that have a payload index.
    """

    features: Features
    indexed: frozenset[str] = frozenset()


DEFAULT_CONDITIONS = Conditions(features_of(DEFAULT_QDRANT_VERSION))

CONDITIONS: ContextVar[Conditions] = ContextVar("conditions", default=DEFAULT_CONDITIONS)
"""Facts of the collection of the current request."""


@contextmanager
def nested_conditions() -> Iterator[None]:
    """Read conditions on the objects of a list; payload indexes of the collection do not apply to them."""
    outer = CONDITIONS.set(replace(CONDITIONS.get(), indexed=frozenset()))
    try:
        yield
    finally:
        CONDITIONS.reset(outer)


def is_null(key: str) -> "edge.ConditionType":
    """Build the engine's form of an `is_null` condition.

    The engine also matches a list that contains a null. The server (1.18.3 and 1.19.0, by their source) does so only
    with an index on the key; otherwise the value itself must be null. The added condition separates the cases: of the
    values that the engine calls null, only null itself is also empty.

    Raises:
        ErrorAnswer: 501 for a path through a list. The engine does not report which of its values are null.
    """
    if key in CONDITIONS.get().indexed:
        return edge.IsNullCondition(key)
    if "[" in key:
        raise not_built(f"is_null without an index on {key!r}, a path through a list")
    return edge.Filter(must=[edge.IsNullCondition(key), edge.IsEmptyCondition(key)])


def check_count(bounds: Document) -> None:
    """Raise if a `values_count` would match a missing key in the engine but not on the server.

    Raises:
        ErrorAnswer: 501. The engine does not distinguish a missing key from an empty list, which the server counts as
            0.
    """
    if not CONDITIONS.get().features.counts_missing_values and _allows_zero(bounds):
        raise not_built("values_count with bounds that allow 0 values, before Qdrant 1.19")


def _allows_zero(bounds: dict[str, Any]) -> bool:
    is_above = bounds.get("gt") is None and not bounds.get("gte")
    is_below = (bounds.get("lt") is None or bounds["lt"] > 0) and (bounds.get("lte") is None or bounds["lte"] >= 0)
    return is_above and is_below
