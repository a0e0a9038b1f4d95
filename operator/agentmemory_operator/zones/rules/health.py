"""How the keys of an object's zones are, as its status tells it: the condition KeysUnavailable, and `status.zones`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, condition_of, merge_conditions

Json = dict[str, Any]

KEYS_UNAVAILABLE = "KeysUnavailable"
"""The type of the condition; True says that something is wrong."""

FIELD, TO_RESEAL = "zones", "toReseal"

TROUBLES = (
    Reason.WRAPPING_KEY_MISSING,
    Reason.WRAPPING_KEY_INVALID,
    Reason.KEY_STORE_MISSING,
    Reason.KEY_STORE_UNAVAILABLE,
    Reason.KEYS_UNREADABLE,
    Reason.KEYS_LOST,
)
"""Why the condition can be True."""


@dataclass(frozen=True, slots=True)
class KeyHealth:
    """What a look at the keys of an object found.

    Attributes:
        reason: of the condition; every one but KeysAvailable makes it True.
        message: for people, with the way out.
        shards: how many shards hold them; None where nobody has counted.
        keys: how many data keys there are; None where nobody has counted.
        wrapping_key: fingerprint of the wrapping key that they were last all under; None where they never were.
    """

    reason: str
    message: str
    shards: int | None = None
    keys: int | None = None
    wrapping_key: str | None = None

    @property
    def is_trouble(self) -> bool:
        """Whether memories with a zone cannot be read or stored, or some of them."""
        return self.reason != Reason.KEYS_AVAILABLE


def with_health(status: Json, health: KeyHealth | None, *, old: Mapping[str, Any], generation: int, now: str) -> Json:
    """A status that says how the keys are.

    Args:
        status: what a pass has to say; in `zones`, how many memories are to be sealed again.
        health: None where nobody has looked yet: what was said before stays.
        old: the status before.
        generation: the object's.
        now: RFC 3339 UTC.
    """
    bare, said = without_health(status), status.get(FIELD) or {}
    conditions = bare.get("conditions") or []
    if health is None:
        before = condition_of(old, KEYS_UNAVAILABLE)
        kept = {FIELD: counted} if (counted := _counted(KeyHealth("", ""), old.get(FIELD) or {}, said)) else {}
        return bare | kept | {"conditions": [*conditions, *([dict(before)] if before else [])]}
    state = ConditionState("KeysUnavailable", health.is_trouble, health.reason, health.message)
    told = merge_conditions(old.get("conditions") or [], [state], generation=generation, now=now)
    return bare | {FIELD: _counted(health, old.get(FIELD) or {}, said), "conditions": [*conditions, *told]}


def without_health(status: Json) -> Json:
    """A status that says nothing of keys, as of an object without zones."""
    others = {name: value for name, value in status.items() if name != FIELD}
    if "conditions" in others:
        others["conditions"] = [item for item in others["conditions"] or [] if item["type"] != KEYS_UNAVAILABLE]
    return others


def own_part(status: Mapping[str, Any]) -> tuple[Json, Json]:
    """What a status says of keys."""
    return dict(condition_of(status, KEYS_UNAVAILABLE)), dict(status.get(FIELD) or {})


def most_shards(status: Mapping[str, Any]) -> int:
    """How many shards a status says that there were: none ever goes while the object is there."""
    return int((status.get(FIELD) or {}).get("shards") or 0)


def _counted(health: KeyHealth, before: Mapping[str, Any], said: Mapping[str, Any]) -> Json:
    shards = None if health.shards is None else max(health.shards, before.get("shards") or 0)
    fields = {"shards": shards, "keys": health.keys, "wrappingKey": health.wrapping_key}
    kept = {name: value for name, value in before.items() if name != TO_RESEAL}
    of_pass = {TO_RESEAL: said[TO_RESEAL]} if TO_RESEAL in said else {}
    return {**kept, **{name: value for name, value in fields.items() if value is not None}, **of_pass}
