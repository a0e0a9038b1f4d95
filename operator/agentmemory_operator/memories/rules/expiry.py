"""Decide which memories have expired: as a filter of searches, and as a test of one memory.

A type's time to live is read from the object at each call, not stored on memories: a changed value applies to all of
them immediately. The last use of a session is stored on each of its memories, because a filter cannot span two points.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from agentmemory_operator.spec.expression.variables import DAY_MS
from agentmemory_operator.spec.memory_types import SESSION_USED_KEY, MemoryType, Ttl

EXPIRY_KEYS = ("type", "createdAt", "importance", "accessCount", "expiresAt", SESSION_USED_KEY)
"""Payload keys that decide whether a memory has expired."""

HOUR_MS = 3_600_000

Condition = dict[str, Any]


def unexpired_conditions(types: Iterable[MemoryType], now_ms: int) -> list[Condition]:
    """Return the conditions that exclude memories expired by their type; empty if no type expires memories."""
    past = [expired_condition(type_.name, type_.ttl, now_ms) for type_ in types if type_.ttl and type_.ttl.expires]
    return [{"must_not": past}] if past else []


def expired_condition(type_name: str, ttl: Ttl, now_ms: int) -> Condition:
    """Return the condition that a memory of the type has expired. The type must have `days` or `idle_hours`."""
    of_type: Condition = {"key": "type", "match": {"value": type_name}}
    if ttl.days is None:
        return {"must": [of_type, _over_condition(ttl, now_ms)]}
    must: list[Condition] = [of_type, {"key": "createdAt", "range": {"lte": _begin_ms(ttl, now_ms)}}]
    if ttl.mode == "SoftUnlessUsed":
        must.append({"must_not": [{"key": "accessCount", "range": {"gt": 0}}]})
        if ttl.keep_importance is not None:
            must.append({"key": "importance", "range": {"lt": ttl.keep_importance}})
    return {"must": must}


def is_expired_by_type(payload: Mapping[str, Any], ttl: Ttl | None, now_ms: int) -> bool:
    """Return whether a memory has expired by its type, with the same result as `expired_condition`."""
    begin_ms = _begin_ms(ttl, now_ms) if ttl else None
    if ttl is None or begin_ms is None:
        return False
    if ttl.days is None:
        return _is_over(payload, begin_ms, now_ms)
    if payload["createdAt"] > begin_ms:
        return False
    if ttl.mode != "SoftUnlessUsed":
        return True
    is_important = ttl.keep_importance is not None and payload.get("importance", 1) >= ttl.keep_importance
    return not is_important and not payload.get("accessCount")


def is_expired(payload: Mapping[str, Any], types: Iterable[MemoryType], now_ms: int) -> bool:
    """Return whether no call may return a memory any more, because of its `expiresAt`, or a type that removes memories.

    A memory that its type only hides from searches and lists (mode Soft) is not expired here.
    """
    end = payload.get("expiresAt")
    if end is not None and end <= now_ms:
        return True
    ttl = ttl_of(payload, types)
    return ttl is not None and ttl.removes and is_expired_by_type(payload, ttl, now_ms)


def ttl_of(payload: Mapping[str, Any], types: Iterable[MemoryType]) -> Ttl | None:
    """Return the time to live of a memory's type; None if unlimited or the type is unknown."""
    return next((type_.ttl for type_ in types if type_.name == payload.get("type")), None)


def hidden_since_ms(payload: Mapping[str, Any], ttl: Ttl) -> int:
    """Return the time at which a memory's type hid it: `ttl.days` after `createdAt`, or `storedAt` if that is later.

    In Unix milliseconds. A memory may be stored with a `createdAt` in the past.
    """
    hidden_ms: int = payload["createdAt"] + round((ttl.days or 0) * DAY_MS)
    return max(hidden_ms, payload.get("storedAt") or 0)


def _over_condition(ttl: Ttl, now_ms: int) -> Condition:
    """Return the condition that a memory's session has been idle for too long.

    Memories stored before sessions had a time of use are judged by `createdAt`. A `createdAt` more than one idle period
    in the future is ignored: it is no clock drift, and a tenant could keep the memory forever with it.
    """
    begin_ms = _begin_ms(ttl, now_ms)
    recent: Condition = {"key": "createdAt", "range": {"gt": begin_ms, "lte": _ahead_ms(begin_ms, now_ms)}}
    unstamped = {"must": [{"is_empty": {"key": SESSION_USED_KEY}}, {"must_not": [recent]}]}
    return {"should": [{"key": SESSION_USED_KEY, "range": {"lte": begin_ms}}, unstamped]}


def _is_over(payload: Mapping[str, Any], begin_ms: int, now_ms: int) -> bool:
    used_at = payload.get(SESSION_USED_KEY)
    if used_at is not None:
        return bool(used_at <= begin_ms)
    return not begin_ms < payload["createdAt"] <= _ahead_ms(begin_ms, now_ms)


def _ahead_ms(begin_ms: int | None, now_ms: int) -> int:
    return 2 * now_ms - (begin_ms or now_ms)


def _begin_ms(ttl: Ttl, now_ms: int) -> int | None:
    """Return the newest `createdAt`, or time of use, that has expired; None if the type has no limit."""
    if ttl.days is not None:
        return now_ms - round(ttl.days * DAY_MS)
    return None if ttl.idle_hours is None else now_ms - round(ttl.idle_hours * HOUR_MS)
