"""The scope of a `forget`, and what it leaves: tombstones and a receipt, which hold nothing of what was erased.

An erasure takes what was stored up to a time (`storedAt`). So it can be made again on any copy of the collection, and
never takes what was stored after it. A receipt names its user by a hash: whoever knows the user's name can tell that
it is meant, nobody can read it there.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.memories.rules.criteria import NO_INDEXES, Criterion, compile_criterion
from agentmemory_operator.memories.rules.criteria_match import keys_of, matches
from agentmemory_operator.memories.rules.filters import IS_PENDING, NOT_DELETED, Condition, Filter, equals
from agentmemory_operator.memories.rules.ids import keyed_id
from agentmemory_operator.memories.rules.links import LINK_KEYS
from agentmemory_operator.memories.rules.record import (
    DUE_KEY,
    ERASED_ID_KEY,
    ERASURE_KEY,
    LOGGED_KEY,
    RECEIPT_KEY,
    STORED_KEY,
    TOMBSTONE_KEY,
    VERSIONS_SINCE_KEY,
    Payload,
    erasure_trace,
    window_mark,
)
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

Row = Mapping[str, Any]

WRITERS_AHEAD_MS = 2_000
"""By how much the clock of a process that writes may be ahead of that of the one that forgets."""

ORGANISATION = "\x00organisation"
"""In a user's place: the key of PROFESSIONAL memories is deleted, which belongs to no user. No user has this name."""

KEYS_FOUND_KEY = "zonesWithKeys"
"""Of the point that becomes a receipt: the zones whose keys the request deletes."""

JOINING_KEY = "joining"
"""Of a tombstone of what was not joined to its chain yet."""

IS_RECEIPT: Condition = {"must_not": [{"is_empty": {"key": f"{RECEIPT_KEY}.at"}}]}
NO_RECEIPT: Condition = {"is_empty": {"key": f"{RECEIPT_KEY}.at"}}
# The index on the time finds tombstones; what erased them is then read from each.
IS_TOMBSTONE: Condition = {"key": TOMBSTONE_KEY, "range": {"gte": 0}}
_IS_ERASED: Condition = {"must_not": [{"is_empty": {"key": ERASURE_KEY}}]}
_WAS_MEMORY: Condition = {"must_not": [{"is_empty": {"key": "type"}}]}


UNFINISHED: Filter = {"must": [IS_PENDING, _IS_ERASED]}
"""Tombstones of erasures whose chains are not closed yet."""

TOMBSTONES: Filter = {"must": [IS_TOMBSTONE, _IS_ERASED]}
"""Tombstones of erasures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which memories of a user are to be erased: those that the conditions select, or the whole user.

    Attributes:
        older_than: Unix milliseconds; only what was created before.
        zone: only memories of this zone.
        is_whole: erase the user, and all that is known of the user. It excludes the conditions.

    Raises:
        ValueError: If there is neither a condition nor `is_whole`, or both. A lost condition erases nothing.
    """

    user_id: str
    criterion: Criterion | None = None
    older_than: int | None = None
    zone: str | None = None
    is_whole: bool = False

    def __post_init__(self) -> None:
        has_condition = self.criterion is not None or self.older_than is not None or self.zone is not None
        if self.is_whole == has_condition:
            raise ValueError("an erasure has conditions, or erases the whole user")

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of a payload that `covers` reads."""
        own = ("userId", STORED_KEY, VERSIONS_SINCE_KEY, TOMBSTONE_KEY, "createdAt", ZONE_KEY)
        return own if self.criterion is None else (*own, *keys_of(self.criterion))

    def covers(self, row: Row, until_ms: int) -> bool:
        """Return whether a row is to be erased: what the filter finds are candidates."""
        if row.get("userId") != self.user_id or stored_first(row) > until_ms:
            return False
        if self.is_whole:
            return True
        created = row.get("createdAt")
        is_older = self.older_than is None or (isinstance(created, int | float) and created < self.older_than)
        is_of_zone = self.zone is None or row.get(ZONE_KEY) == self.zone
        is_met = self.criterion is None or matches(self.criterion, row)
        return TOMBSTONE_KEY not in row and is_older and is_of_zone and is_met

    def filter_at(self, until_ms: int, indexes: Mapping[str, str] = NO_INDEXES) -> Filter:
        """The filter of candidates: what was stored until then, whatever its state.

        Args:
            indexes: Type of the payload index by key.
        """
        must: list[Condition] = [equals("userId", self.user_id), stored_by(until_ms)]
        if self.is_whole:
            # Tombstones of the user too: they say whose they are.
            return {"must": must}
        must.append(NOT_DELETED)
        if self.older_than is not None:
            must.append({"key": "createdAt", "range": {"lt": self.older_than}})
        if self.criterion is not None:
            must.append(compile_criterion(self.criterion, indexes))
        if self.zone is not None:
            must.append(equals(ZONE_KEY, self.zone))
        return {"must": must}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many memories, by type."""

    types: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.types.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReceipt:
    """What an erasure came to; nothing of what was erased.

    Attributes:
        agent_id: slug of the agent whose user it was.
        user_hash: `hash_user` of the user.
        is_whole: the user was erased, not only some memories.
        older_than: Unix milliseconds; what was created before, where nothing else chose; else None.
        until_ms: what was stored until then was erased, Unix milliseconds.
        at: when it was done, Unix milliseconds.
        sha256: of the ids of the memories, sorted, each followed by a line feed.
        request_hash: tells another request under the same idempotency key.
        zone: whose memories were chosen; None where something else chose.
        keys_deleted: zones of which this user, or organisation, had data keys that are deleted.
    """

    id: str
    agent_id: str
    user_hash: str
    is_whole: bool
    older_than: int | None
    until_ms: int
    at: int
    counts: Counts
    sha256: str
    request_hash: str
    zone: str | None = None
    keys_deleted: tuple[str, ...] = ()

    @property
    def scope_name(self) -> str:
        """What chose the memories: `user`, `zone`, `older_than` or `filters`."""
        if self.is_whole:
            return "user"
        return "zone" if self.zone else "filters" if self.older_than is None else "older_than"

    @property
    def is_filter_known(self) -> bool:
        """Whether what was erased can be found in another copy without its ids."""
        return self.is_whole or self.zone is not None or self.older_than is not None

    def scope_of(self, user_id: str) -> Scope | None:
        """What to erase of a user in another copy; None where the receipt no longer holds its filters."""
        if self.is_whole or self.zone is not None:
            return Scope(user_id=user_id, zone=self.zone, is_whole=self.is_whole)
        return None if self.older_than is None else Scope(user_id=user_id, older_than=self.older_than)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What an erasure left of one memory.

    Attributes:
        at: when, Unix milliseconds; the memory was stored no later.
        is_replaced: another memory has the id since, and the trace is in a point of its own.
    """

    id: str
    erasure_id: str
    at: int
    is_replaced: bool = False

    def names(self, row: Row) -> bool:
        """Whether a row of a copy is what was erased, and not what was stored under its id since."""
        return TOMBSTONE_KEY not in row and stored_first(row) <= self.at

    @property
    def payload(self) -> Payload:
        """Its point in a copy that has none under the id, or where another memory has the id."""
        if self.is_replaced:
            return erasure_trace(self.id, self.erasure_id, self.at, now_ms=self.at)
        times = {"updatedAt": self.at, TOMBSTONE_KEY: self.at}
        return {"id": self.id, "rev": 1, **times, "pending": False, ERASURE_KEY: self.erasure_id}


Trace = ErasureReceipt | Tombstone
"""What an erasure leaves, as it is carried to copies."""


def hash_user(agent_id: str, user_id: str) -> str:
    """The user in a receipt: 32 hex digits of a SHA-256 of agent and user."""
    return _hash("user", agent_id, user_id)[:32]


def hash_request(receipt_id: str, scope: Scope, filters: Mapping[str, Any]) -> str:
    """The digest that shows whether two requests under one idempotency key are the same."""
    conditions = (repr(scope.older_than), json.dumps(filters, sort_keys=True), scope.zone or "")
    return _hash(receipt_id, scope.user_id, *conditions)[:16]


def receipt_id(agent_id: str, user_id: str, idempotency_key: str) -> str:
    """The id of the receipt of a request with a key; no key of a memory gives the same id."""
    return keyed_id(agent_id, user_id, f"forget\x1f{idempotency_key}")


def stored_by(until_ms: int) -> Condition:
    """The filter condition for what was stored by then; a point without a time counts as old.

    An item that bears a version from then is one of them, as if its last write had come before.
    """
    times = (STORED_KEY, VERSIONS_SINCE_KEY)
    return {
        "should": [
            {"is_empty": {"key": STORED_KEY}},
            *({"key": key, "range": {"lte": until_ms}} for key in times),
        ]
    }


def stored_first(row: Row) -> int:
    """When the oldest of what a row says was stored, Unix milliseconds; 0 where that was not noted."""
    stored: int = row.get(STORED_KEY) or 0
    oldest: int = row.get(VERSIONS_SINCE_KEY, stored)
    return min(stored, oldest)


def erased_by(erasure_id: str, *conditions: Condition) -> Filter:
    """The filter of the tombstones of one erasure."""
    return {"must": [IS_TOMBSTONE, equals(ERASURE_KEY, erasure_id), *conditions]}


def memories_erased_by(erasure_id: str) -> Filter:
    """The filter of the tombstones of memories that were stored by then."""
    return erased_by(erasure_id, _WAS_MEMORY)


def tombstones_since(since_ms: int) -> Filter:
    """The filter of what erasures have left since."""
    return {"must": [{"key": TOMBSTONE_KEY, "range": {"gte": since_ms}}, _IS_ERASED]}


def receipts_since(since_ms: int, *conditions: Condition) -> Filter:
    """The filter of receipts."""
    return {"must": [{"key": TOMBSTONE_KEY, "range": {"gte": since_ms}}, IS_RECEIPT, *conditions]}


def receipts_of(agent_id: str, user_id: str) -> Condition:
    """The condition of being a receipt of a user."""
    return equals(f"{RECEIPT_KEY}.userHash", hash_user(agent_id, user_id))


def erased(row: Row, erasure_id: str, now_ms: int, *, at_ms: int | None = None) -> Payload:
    """What an erased memory, or an older tombstone of the user, leaves: neither whose it was nor what it said.

    It bears a time no earlier than that at which the memory was stored, whatever the clocks.

    Args:
        at_ms: when it was erased first, Unix milliseconds, where this is a copy; None is now.
    """
    was_memory = TOMBSTONE_KEY not in row
    names = ("identityId", *LINK_KEYS, *(("type",) if was_memory else ()))
    kept = {key: row[key] for key in names if row.get(key) is not None}
    time_ms = max(now_ms if at_ms is None else at_ms, row.get(STORED_KEY) or 0)
    pending = not kept.keys().isdisjoint(LINK_KEYS)
    due = window_mark(row) if was_memory else {DUE_KEY: True} if row.get(DUE_KEY) else {}
    # Somebody may be about to link an earlier version to it.
    joining = {JOINING_KEY: True} if was_memory and row.get("pending") else {}
    marks = {"id": row["id"], "rev": (row.get("rev") or 0) + 1, "updatedAt": now_ms, TOMBSTONE_KEY: time_ms}
    return kept | marks | due | joining | {ERASURE_KEY: erasure_id, "pending": pending}


def bare(tombstone: Row) -> Payload:
    """An erasure's tombstone without its links, once nothing of its chain is left."""
    kept = {key: value for key, value in tombstone.items() if key not in ("identityId", *LINK_KEYS)}
    return kept | {"rev": tombstone["rev"] + 1, "pending": False}


def receipt_to_payload(receipt: ErasureReceipt) -> Payload:
    """The payload of the point that keeps a receipt; whoever reads memories takes it for a tombstone."""
    said = {
        "agentId": receipt.agent_id,
        "userHash": receipt.user_hash,
        "isWhole": receipt.is_whole,
        "olderThan": receipt.older_than,
        "untilMs": receipt.until_ms,
        "at": receipt.at,
        "types": dict(receipt.counts.types),
        "sha256": receipt.sha256,
        "requestHash": receipt.request_hash,
        "zone": receipt.zone,
        "keysDeleted": list(receipt.keys_deleted) or None,
    }
    kept = {key: value for key, value in said.items() if value is not None}
    times = {"updatedAt": receipt.at, TOMBSTONE_KEY: receipt.at, LOGGED_KEY: receipt.at}
    return {"id": receipt.id, "rev": 1, **times, "pending": False, RECEIPT_KEY: kept}


def keys_to_delete(receipt_id: str, zones: Sequence[str], now_ms: int) -> Payload:
    """The payload of a receipt's point before any key is deleted: a tombstone for readers of memories."""
    times = {"updatedAt": now_ms, TOMBSTONE_KEY: now_ms}
    return {"id": receipt_id, "rev": 1, **times, "pending": False, KEYS_FOUND_KEY: list(zones)}


def receipt_from_payload(payload: Row) -> ErasureReceipt:
    """The receipt that a point keeps."""
    said = payload[RECEIPT_KEY]
    return ErasureReceipt(
        id=payload["id"],
        agent_id=said["agentId"],
        user_hash=said["userHash"],
        is_whole=said["isWhole"],
        older_than=said.get("olderThan"),
        until_ms=said["untilMs"],
        at=said["at"],
        counts=Counts(types=dict(said["types"])),
        sha256=said["sha256"],
        request_hash=said["requestHash"],
        zone=said.get("zone"),
        keys_deleted=tuple(said.get("keysDeleted", ())),
    )


def trace_from_payload(payload: Row) -> Trace:
    """The trace that a point keeps."""
    if RECEIPT_KEY in payload:
        return receipt_from_payload(payload)
    id_ = payload.get(ERASED_ID_KEY, payload["id"])
    return Tombstone(id_, payload[ERASURE_KEY], payload[TOMBSTONE_KEY], is_replaced=ERASED_ID_KEY in payload)


def trace_to_line(trace: Trace) -> bytes:
    """A trace as a line of JSON, its line feed included."""
    payload = receipt_to_payload(trace) if isinstance(trace, ErasureReceipt) else trace.payload
    names = ("id", TOMBSTONE_KEY, ERASURE_KEY, RECEIPT_KEY, ERASED_ID_KEY)
    said = {name: payload[name] for name in names if name in payload}
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


def trace_from_line(line: bytes) -> Trace:
    """The trace of a line.

    Raises:
        ValueError: it is none.
    """
    try:
        return trace_from_payload(json.loads(line))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a tombstone: {error}") from error


def _hash(*parts: str) -> str:
    return hashlib.sha256("\x00".join(("agentmemory erasure", *parts)).encode()).hexdigest()
