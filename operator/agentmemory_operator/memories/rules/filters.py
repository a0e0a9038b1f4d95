"""Build the Qdrant filters that limit a call to the memories that it may read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentmemory_operator.memories.rules import criteria
from agentmemory_operator.memories.rules.criteria import Criterion, compile_criterion
from agentmemory_operator.memories.rules.expiry import unexpired_conditions
from agentmemory_operator.memories.rules.record import (
    DISTIL_DUE_KEY,
    NAMESPACE_PATHS_KEY,
    TOMBSTONE_KEY,
    namespace_paths,
)
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

Filter = dict[str, Any]
Condition = criteria.Condition
TagsMatch = Literal["any", "all"]

IS_PENDING: Condition = {"key": "pending", "match": {"value": True}}
IS_DISTIL_DUE: Condition = {"key": DISTIL_DUE_KEY, "match": {"value": True}}
IS_WORKING: Condition = {"key": "working", "match": {"value": True}}
NOT_PENDING: Condition = {"must_not": [IS_PENDING]}
NOT_DELETED: Condition = {"is_empty": {"key": TOMBSTONE_KEY}}
UNSEALED: Condition = {"is_empty": {"key": ZONE_KEY}}
NOT_SUPERSEDED: Condition = {"is_empty": {"key": "supersededById"}}

# Request field, payload key, and type of the payload index that supports the comparison.
_SELDOM_INDEXED = (
    ("types", "type", "keyword"),
    ("tags", "tags", "keyword"),
    ("at_time", "validFrom", "integer"),
    ("at_time", "validTo", "integer"),
    ("namespace", NAMESPACE_PATHS_KEY, "keyword"),
)

STORED_FILTER: Filter = {"must": [NOT_DELETED, NOT_PENDING]}
"""Every memory of every user, including superseded and expired ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection of the memories of a user and of included scopes.

    Attributes:
        scopes: Further owners whose memories are included.
        types: Types of which the memory must have one; () is any.
        tags: Tags of which the memory must have one, or all if `tags_match` is "all".
        session_id: Session of the memory; None is any.
        namespace: Prefix of the memory's namespace; () is any.
        at_time: Unix milliseconds; only memories valid at that time, including those superseded later. None is any.
        include_superseded: True to include earlier versions.
        criterion: Condition from the `filters` of a request; None if there is none.
    """

    user_id: str
    scopes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    tags_match: TagsMatch = "any"
    session_id: str | None = None
    namespace: tuple[str, ...] = ()
    at_time: int | None = None
    include_superseded: bool = False
    criterion: Criterion | None = None

    @property
    def owners(self) -> list[str]:
        """Owners of the selected memories, the user first, without duplicates."""
        return list(dict.fromkeys([self.user_id, *self.scopes]))


def owners_filter(selection: Selection) -> Filter:
    """Return the filter for all points of a selection's owners, ignoring its other fields."""
    return {"must": [_owned_by(selection.owners)]}


def find_unindexed_keys(selection: Selection, indexes: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield each condition of a selection that has no index: request field, payload key, type of the index to add.

    Args:
        indexes: Type of the payload index by key.
    """
    if selection.criterion is not None:
        yield from (
            ("filters", key, type_) for key, type_ in criteria.find_unindexed(selection.criterion, indexes).items()
        )
    is_used = {
        "types": bool(selection.types),
        "tags": bool(selection.tags),
        "at_time": selection.at_time is not None,
        "namespace": bool(selection.namespace),
    }
    for field, key, type_ in _SELDOM_INDEXED:
        if is_used[field] and indexes.get(key) != type_:
            yield field, key, type_


def equals(key: str, value: str | int) -> Condition:
    """Return the condition that a payload key has exactly this value."""
    return {"key": key, "match": {"value": value}}


def equals_any(key: str, values: Sequence[str]) -> Condition:
    """Return the condition that a payload key has one of these values."""
    return {"key": key, "match": {"any": list(values)}}


def visible_filter(
    selection: Selection,
    now_ms: int,
    types: Iterable[MemoryType] = (),
    *,
    indexes: Mapping[str, str] = criteria.NO_INDEXES,
) -> Filter:
    """Return the filter for the memories of a selection that its user may read: stored and not expired.

    If Qdrant cannot decide the criterion (`criteria.is_exact`), the filter also finds memories that do not meet it.

    Args:
        types: Types of the object; each with a time to live adds a condition.
        indexes: Type of the payload index by key.
    """
    unexpired = {"should": [{"is_empty": {"key": "expiresAt"}}, {"key": "expiresAt", "range": {"gt": now_ms}}]}
    must = [_owned_by(selection.owners), NOT_DELETED, NOT_PENDING, unexpired]
    must.extend(unexpired_conditions(types, now_ms))
    if selection.at_time is not None:
        must.extend(_valid_at(selection.at_time))
    elif not selection.include_superseded:
        must.append(NOT_SUPERSEDED)
    if selection.types:
        must.append({"key": "type", "match": {"any": list(selection.types)}})
    asks_any = selection.tags and selection.tags_match == "any"
    must += [equals_any("tags", selection.tags)] if asks_any else [equals("tags", tag) for tag in selection.tags]
    if selection.session_id is not None:
        must.append(equals("sessionId", selection.session_id))
    if selection.namespace:
        must.append(equals(NAMESPACE_PATHS_KEY, namespace_paths(selection.namespace)[-1]))
    if selection.criterion is not None:
        must.append(compile_criterion(selection.criterion, indexes))
    return {"must": must}


def _owned_by(owners: list[str]) -> Condition:
    return equals("userId", owners[0]) if len(owners) == 1 else {"key": "userId", "match": {"any": owners}}


def point_filter(memory_id: str, *conditions: Condition) -> Filter:
    """Return the filter for one point if the conditions hold: the precondition of a compare-and-set."""
    return {"must": [{"has_id": [memory_id]}, *conditions]}


def narrow(filter_: Filter, *conditions: Condition) -> Filter:
    """Return a filter with the `must` conditions of `filter_` and additional ones. Drops other clauses of `filter_`."""
    return {"must": [*filter_["must"], *conditions]}


def _valid_at(time_ms: int) -> list[Condition]:
    """Return the conditions of being valid at a time; a missing start or end is no limit."""
    has_started = {"should": [{"is_empty": {"key": "validFrom"}}, {"key": "validFrom", "range": {"lte": time_ms}}]}
    has_not_ended = {"should": [{"is_empty": {"key": "validTo"}}, {"key": "validTo", "range": {"gt": time_ms}}]}
    return [has_started, has_not_ended]
