"""Which memories a call may see, as Qdrant filters."""

from collections.abc import Sequence
from typing import Any

from agentmemory_operator.domain.records import TOMBSTONE_KEY

Filter = dict[str, Any]
Condition = dict[str, Any]

IS_PENDING: Condition = {"key": "pending", "match": {"value": True}}
NOT_PENDING: Condition = {"must_not": [IS_PENDING]}
NOT_DELETED: Condition = {"is_empty": {"key": TOMBSTONE_KEY}}
NOT_SUPERSEDED: Condition = {"is_empty": {"key": "supersededById"}}

STORED: Filter = {"must": [NOT_DELETED, NOT_PENDING]}
"""Every memory of every user, superseded and expired ones included."""


def equals(key: str, value: str | int) -> Condition:
    """Return the condition that a payload key holds exactly this value."""
    return {"key": key, "match": {"value": value}}


def visible(
    user_id: str,
    now_ms: int,
    *,
    types: Sequence[str] = (),
    tags: Sequence[str] = (),
    session_id: str | None = None,
    include_superseded: bool = False,
) -> Filter:
    """Return the filter of what a user may read: stored, head of its chain, not expired.

    Args:
        types: any of them.
        tags: all of them.
        include_superseded: earlier versions too.
    """
    must = [equals("userId", user_id), NOT_DELETED, NOT_PENDING, _not_expired(now_ms)]
    if not include_superseded:
        must.append(NOT_SUPERSEDED)
    if types:
        must.append({"key": "type", "match": {"any": list(types)}})
    must.extend(equals("tags", tag) for tag in tags)
    if session_id is not None:
        must.append(equals("sessionId", session_id))
    return {"must": must}


def only(memory_id: str, *conditions: Condition) -> Filter:
    """Return the filter of one point, provided the conditions hold: the condition of a compare-and-set."""
    return {"must": [{"has_id": [memory_id]}, *conditions]}


def both(filter_: Filter, *conditions: Condition) -> Filter:
    """Return the filter narrowed by more conditions."""
    return {"must": [*filter_["must"], *conditions]}


def _not_expired(now_ms: int) -> Condition:
    return {"should": [{"is_empty": {"key": "expiresAt"}}, {"key": "expiresAt", "range": {"gt": now_ms}}]}
