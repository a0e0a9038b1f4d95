"""Conditions on nulls and numbers of values, which the engine answers otherwise than the server does."""

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
    """What the meaning of a condition depends on.

    Attributes:
        indexed: Keys of the collection that have a payload index.
    """

    features: Features
    indexed: frozenset[str] = frozenset()


USUAL = Conditions(features_of(DEFAULT_QDRANT_VERSION))

CONDITIONS: ContextVar[Conditions] = ContextVar("conditions", default=USUAL)
"""Of the collection that the request in progress names."""


@contextmanager
def nested_conditions() -> Iterator[None]:
    """Read conditions on the objects of a list, which no index of the collection answers."""
    outer = CONDITIONS.set(replace(CONDITIONS.get(), indexed=frozenset()))
    try:
        yield
    finally:
        CONDITIONS.reset(outer)


def is_null(key: str) -> "edge.ConditionType":
    """The engine's form of an `is_null` condition.

    The engine also matches a list with a null. The server (1.18.3 and 1.19.0, by their source) does so only by an index
    of the key; otherwise the value itself has to be null. Of the values that the engine calls null, that one alone is
    also empty.

    Raises:
        ErrorAnswer: 501 for a path through a list: which of its values are null the engine does not answer.
    """
    if key in CONDITIONS.get().indexed:
        return edge.IsNullCondition(key)
    if "[" in key:
        raise not_built(f"is_null without an index on {key!r}, a path through a list")
    return edge.Filter(must=[edge.IsNullCondition(key), edge.IsEmptyCondition(key)])


def check_count(bounds: Document) -> None:
    """Refuse bounds of a `values_count` that the engine takes a missing key to be within, where the server does not.

    Raises:
        ErrorAnswer: 501. The engine does not tell a missing key from an empty list, which the server counts as 0.
    """
    if not CONDITIONS.get().features.counts_missing_values and _holds_zero(bounds):
        raise not_built("values_count with bounds that allow 0 values, before Qdrant 1.19")


def _holds_zero(bounds: dict[str, Any]) -> bool:
    is_above = bounds.get("gt") is None and not bounds.get("gte")
    is_below = (bounds.get("lt") is None or bounds["lt"] > 0) and (bounds.get("lte") is None or bounds["lte"] >= 0)
    return is_above and is_below
