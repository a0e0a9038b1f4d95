"""Which memories are past their time: as a filter of every search, and as a test of one memory.

A type's time to live is reckoned from the object at each call, not stamped on memories: a changed figure acts on all of
them at once.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from agentmemory_operator.domain.taxonomy import MemoryType, Ttl
from agentmemory_operator.domain.variables import DAY_MS

EXPIRY_KEYS = ("type", "createdAt", "importance", "accessCount", "expiresAt")
"""What of a payload says whether its memory is past its time."""

Condition = dict[str, Any]


def not_past(types: Iterable[MemoryType], now_ms: int) -> list[Condition]:
    """Return the conditions that leave out memories past the time of their type; none where no type has one."""
    past = [past_condition(type_.name, type_.ttl, now_ms) for type_ in types if type_.ttl and type_.ttl.days]
    return [{"must_not": past}] if past else []


def past_condition(type_name: str, ttl: Ttl, now_ms: int) -> Condition:
    """Return the condition that a memory of the type is past its time; the type has `days`."""
    must: list[Condition] = [
        {"key": "type", "match": {"value": type_name}},
        {"key": "createdAt", "range": {"lte": _begin_ms(ttl, now_ms)}},
    ]
    if ttl.mode == "SoftUnlessUsed":
        must.append({"must_not": [{"key": "accessCount", "range": {"gt": 0}}]})
        if ttl.keep_importance is not None:
            must.append({"key": "importance", "range": {"lt": ttl.keep_importance}})
    return {"must": must}


def is_past(payload: Mapping[str, Any], ttl: Ttl | None, now_ms: int) -> bool:
    """Tell whether a memory is past the time of its type: what `past_condition` finds."""
    begin_ms = _begin_ms(ttl, now_ms) if ttl else None
    if ttl is None or begin_ms is None or payload["createdAt"] > begin_ms:
        return False
    if ttl.mode != "SoftUnlessUsed":
        return True
    is_kept = ttl.keep_importance is not None and payload["importance"] >= ttl.keep_importance
    return not is_kept and not payload.get("accessCount")


def is_expired(payload: Mapping[str, Any], types: Iterable[MemoryType], now_ms: int) -> bool:
    """Tell whether a memory is gone for every call: past its own `expiresAt`, or the time of a type that removes."""
    end = payload.get("expiresAt")
    if end is not None and end <= now_ms:
        return True
    ttl = ttl_of(payload, types)
    return ttl is not None and ttl.removes and is_past(payload, ttl, now_ms)


def ttl_of(payload: Mapping[str, Any], types: Iterable[MemoryType]) -> Ttl | None:
    """Return how long a memory answers by its type; None is for ever."""
    return next((type_.ttl for type_ in types if type_.name == payload.get("type")), None)


def _begin_ms(ttl: Ttl, now_ms: int) -> int | None:
    """Return the createdAt up to which memories are past their time; None is none."""
    return None if ttl.days is None else now_ms - round(ttl.days * DAY_MS)
