"""The state of an object's zone keys in its status: the condition KeysUnavailable, and `status.zones`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, find_condition, merge_conditions

Json = dict[str, Any]

KEYS_UNAVAILABLE = "KeysUnavailable"
"""Type of the condition. True indicates a problem."""

FIELD, TO_RESEAL = "zones", "toReseal"

TROUBLE_REASONS = (
    Reason.WRAPPING_KEY_MISSING,
    Reason.WRAPPING_KEY_INVALID,
    Reason.KEY_STORE_MISSING,
    Reason.KEY_STORE_UNAVAILABLE,
    Reason.KEYS_UNREADABLE,
    Reason.KEYS_LOST,
)
"""Reasons with which the condition can be True."""


@dataclass(frozen=True, slots=True)
class KeyHealth:
    """Result of a check of an object's keys.

    Attributes:
        reason: Reason of the condition. Every reason except KeysAvailable makes the condition True.
        message: Message for users, with the remedy.
        shards: Number of shards that store the keys; None before the first count.
        keys: Number of data keys; None before the first count.
        wrapping_key: Fingerprint of the wrapping key that all data keys use, or used before the wrapping key or the key
            store became unavailable. None during a rotation, before the first count, and if a key is lost or
            unreadable.
    """

    reason: str
    message: str
    shards: int | None = None
    keys: int | None = None
    wrapping_key: str | None = None

    @property
    def is_trouble(self) -> bool:
        """True if the keys have a fault: some memories with a zone may not be readable or storable."""
        return self.reason != Reason.KEYS_AVAILABLE


def with_health(status: Json, health: KeyHealth | None, *, old: Mapping[str, Any], generation: int, now: str) -> Json:
    """Return a status with the condition KeysUnavailable and `zones` set from a check.

    Fields of `zones` that the check did not determine keep their values of `old`, except `toReseal`, which comes from
    `status`. The number of shards never decreases.

    Args:
        status: Status of a pass. Its `zones` may contain the number of memories to encrypt again.
        health: Result of the check. None if there is none, as before the first check or for a deleted object. Then the
            condition and `zones` of `old` remain.
        old: Status before the pass.
        generation: Generation of the object.
        now: RFC 3339 UTC.
    """
    other_fields, present = without_health(status), status.get(FIELD) or {}
    conditions = other_fields.get("conditions") or []
    if health is None:
        old_condition = find_condition(old, KEYS_UNAVAILABLE)
        zones = {FIELD: fields} if (fields := _counted(KeyHealth("", ""), old.get(FIELD) or {}, present)) else {}
        return other_fields | zones | {"conditions": [*conditions, *([dict(old_condition)] if old_condition else [])]}
    state = ConditionState("KeysUnavailable", health.is_trouble, health.reason, health.message)
    merged = merge_conditions(old.get("conditions") or [], [state], generation=generation, now=now)
    return other_fields | {FIELD: _counted(health, old.get(FIELD) or {}, present), "conditions": [*conditions, *merged]}


def without_health(status: Json) -> Json:
    """Return a status without the condition KeysUnavailable and `zones`, for an object without zones."""
    remaining = {name: value for name, value in status.items() if name != FIELD}
    if "conditions" in remaining:
        remaining["conditions"] = [item for item in remaining["conditions"] or [] if item["type"] != KEYS_UNAVAILABLE]
    return remaining


def key_fields(status: Mapping[str, Any]) -> tuple[Json, Json]:
    """Return the condition KeysUnavailable and `zones` of a status, each empty if it is absent."""
    return dict(find_condition(status, KEYS_UNAVAILABLE)), dict(status.get(FIELD) or {})


def recorded_shards(status: Mapping[str, Any]) -> int:
    """Return the largest shard count recorded in a status, or 0. No shard is deleted while the object exists."""
    return int((status.get(FIELD) or {}).get("shards") or 0)


def _counted(health: KeyHealth, old_zones: Mapping[str, Any], pass_zones: Mapping[str, Any]) -> Json:
    shards = None if health.shards is None else max(health.shards, old_zones.get("shards") or 0)
    fields = {"shards": shards, "keys": health.keys, "wrappingKey": health.wrapping_key}
    old_fields = {name: value for name, value in old_zones.items() if name != TO_RESEAL}
    pass_fields = {TO_RESEAL: pass_zones[TO_RESEAL]} if TO_RESEAL in pass_zones else {}
    return {**old_fields, **{name: value for name, value in fields.items() if value is not None}, **pass_fields}
