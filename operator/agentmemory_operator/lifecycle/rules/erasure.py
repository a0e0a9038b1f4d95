"""Scope of a `forget`, and the traces that an erasure leaves: tombstones and a receipt, without any erased content.

A receipt and a tombstone contain the time (`storedAt`) up to which memories were erased. So an erasure can be repeated
on any copy of the collection without erasing a memory stored later.

A receipt identifies its user by a hash of agent and user name. A reader who has the user's name can recompute the hash,
but the name cannot be read from the receipt.
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
    ERASED_ID_KEY,
    ERASURE_KEY,
    LOGGED_KEY,
    RECEIPT_KEY,
    STORED_KEY,
    TOMBSTONE_KEY,
    VERSIONS_SINCE_KEY,
    WINDOW_DUE_KEY,
    Payload,
    erasure_trace,
    window_mark,
)
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

Row = Mapping[str, Any]

MAX_CLOCK_LEAD_MS = 2_000
"""Milliseconds by which the clock of a writing process may be ahead of the clock of the erasing process."""

ORGANISATION_OWNER = "\x00organisation"
"""User id in a request to delete the keys of zone PROFESSIONAL. The null character keeps it distinct from users."""

KEYS_FOUND_KEY = "zonesWithKeys"
"""Payload key of a point that becomes a receipt: the zones whose keys the request deletes."""

WAS_PENDING_KEY = "joining"
"""Payload key that marks the tombstone of a memory that was erased while it was still pending."""

IS_RECEIPT: Condition = {"must_not": [{"is_empty": {"key": f"{RECEIPT_KEY}.at"}}]}
NO_RECEIPT: Condition = {"is_empty": {"key": f"{RECEIPT_KEY}.at"}}
# Finds tombstones by their time, which has an index. The erasure id has none, and is read from each tombstone.
IS_TOMBSTONE: Condition = {"key": TOMBSTONE_KEY, "range": {"gte": 0}}
_IS_ERASED: Condition = {"must_not": [{"is_empty": {"key": ERASURE_KEY}}]}
_WAS_MEMORY: Condition = {"must_not": [{"is_empty": {"key": "type"}}]}


PENDING_ERASURES: Filter = {"must": [IS_PENDING, _IS_ERASED]}
"""Tombstones of erasures with pending chain links."""

TOMBSTONES: Filter = {"must": [IS_TOMBSTONE, _IS_ERASED]}
"""All tombstones of erasures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureScope:
    """Memories of a user to erase: those that match all conditions, or the whole user.

    Attributes:
        user_id: User who owns the memories.
        criterion: Filter condition. None for no filter.
        older_than: Unix milliseconds; only memories created before it. None for no limit.
        zone: Only memories of this privacy zone. None for any.
        is_whole: True to erase all points of the user, including facts and tombstones. Then there are no conditions.

    Raises:
        ValueError: If there is neither a condition nor `is_whole`, or both. So losing a condition erases nothing.
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
        """Payload keys that `covers` reads."""
        scope_keys = ("userId", STORED_KEY, VERSIONS_SINCE_KEY, TOMBSTONE_KEY, "createdAt", ZONE_KEY)
        return scope_keys if self.criterion is None else (*scope_keys, *keys_of(self.criterion))

    def covers(self, row: Row, until_ms: int) -> bool:
        """Return whether a row is in the scope and was stored by `until_ms`.

        `filter_at` only finds candidates; this method decides.
        """
        if row.get("userId") != self.user_id or first_stored_ms(row) > until_ms:
            return False
        if self.is_whole:
            return True
        created = row.get("createdAt")
        is_older = self.older_than is None or (isinstance(created, int | float) and created < self.older_than)
        is_in_zone = self.zone is None or row.get(ZONE_KEY) == self.zone
        is_met = self.criterion is None or matches(self.criterion, row)
        return TOMBSTONE_KEY not in row and is_older and is_in_zone and is_met

    def filter_at(self, until_ms: int, indexes: Mapping[str, str] = NO_INDEXES) -> Filter:
        """Build the filter for candidates stored by `until_ms`, pending and superseded ones included.

        Args:
            until_ms: Unix milliseconds.
            indexes: Type of the payload index by key.
        """
        must: list[Condition] = [equals("userId", self.user_id), stored_by_condition(until_ms)]
        if self.is_whole:
            # Include tombstones of the user only here, because they contain the user id.
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
class MemoryCounts:
    """Number of memories by type; a type without memories may be absent."""

    types: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Number of memories of all types."""
        return sum(self.types.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReceipt:
    """Result of an erasure, without any erased content.

    Attributes:
        id: Id of the receipt's point, and of the erasure.
        agent_id: Slug of the agent.
        user_hash: `hash_user` of the user.
        is_whole: True if the whole user was erased.
        older_than: Unix milliseconds; the scope was memories created before it. None if the scope had a filter, or no
            age.
        until_ms: Start of the erasure, Unix milliseconds. In copies, memories stored up to then are erased.
        at: Time at which the receipt was written, Unix milliseconds.
        counts: Erased memories by type.
        sha256: Digest of the erased memories' ids, sorted, each followed by a line feed.
        request_hash: `hash_request` of the request, to detect another request under the same idempotency key.
        zone: Privacy zone that was erased. None if the scope had no zone.
        keys_deleted: Zones whose data keys were deleted.
    """

    id: str
    agent_id: str
    user_hash: str
    is_whole: bool
    older_than: int | None
    until_ms: int
    at: int
    counts: MemoryCounts
    sha256: str
    request_hash: str
    zone: str | None = None
    keys_deleted: tuple[str, ...] = ()

    @property
    def scope_name(self) -> str:
        """Kind of scope: `user`, `zone`, `older_than` or `filters`."""
        if self.is_whole:
            return "user"
        return "zone" if self.zone else "filters" if self.older_than is None else "older_than"

    @property
    def is_repeatable(self) -> bool:
        """True if `rebuild_scope` can rebuild the scope, so that a repetition needs no ids of memories."""
        return self.is_whole or self.zone is not None or self.older_than is not None

    def rebuild_scope(self, user_id: str) -> ErasureScope | None:
        """Rebuild the scope for another copy. None if the request had filters, which the receipt does not store.

        It relies on the API, which never combines `zone` with a filter.
        """
        if not self.is_repeatable:
            return None
        return ErasureScope(user_id=user_id, zone=self.zone, older_than=self.older_than, is_whole=self.is_whole)


@dataclass(frozen=True, slots=True)
class TombstoneTrace:
    """Trace of one erased memory.

    Attributes:
        erasure_id: Id of the erasure's receipt.
        at: Time of the erasure, Unix milliseconds. The memory was stored no later.
        is_replaced: True if a later memory has the id, and the trace is stored in a point of its own.
    """

    id: str
    erasure_id: str
    at: int
    is_replaced: bool = False

    def matches(self, row: Row) -> bool:
        """Return whether a row of a copy is the erased memory, rather than a later memory with the same id."""
        return TOMBSTONE_KEY not in row and first_stored_ms(row) <= self.at

    @property
    def payload(self) -> Payload:
        """Payload that represents this trace in a copy: a tombstone, or a separate trace point if `is_replaced`."""
        if self.is_replaced:
            return erasure_trace(self.id, self.erasure_id, self.at, now_ms=self.at)
        times = {"updatedAt": self.at, TOMBSTONE_KEY: self.at}
        return {"id": self.id, "rev": 1, **times, "pending": False, ERASURE_KEY: self.erasure_id}


ErasureTrace = ErasureReceipt | TombstoneTrace
"""Trace of an erasure, as it is transferred to copies."""


def hash_user(agent_id: str, user_id: str) -> str:
    """Return the user's hash for receipts: 32 hex digits of a SHA-256 of agent and user."""
    return _hash("user", agent_id, user_id)[:32]


def hash_request(receipt_id: str, scope: ErasureScope, filters: Mapping[str, Any], *, crypto: bool) -> str:
    """Return a digest of a request, to compare two under one idempotency key: 16 hex digits.

    Args:
        crypto: True if the request deletes keys before memories. False has no effect on the digest.
    """
    conditions = (repr(scope.older_than), json.dumps(filters, sort_keys=True), scope.zone or "")
    return _hash(receipt_id, scope.user_id, *conditions, *(["crypto"] if crypto else ()))[:16]


def receipt_id(agent_id: str, user_id: str, idempotency_key: str) -> str:
    """Return the id of the receipt of a request with an idempotency key. No memory's key gives the same id."""
    return keyed_id(agent_id, user_id, f"forget\x1f{idempotency_key}")


def stored_by_condition(until_ms: int) -> Condition:
    """Build the condition for points stored by `until_ms`. A point without a time counts as old.

    An item that keeps a previous version from that time counts as stored then, although its last write is newer.
    """
    times = (STORED_KEY, VERSIONS_SINCE_KEY)
    return {"should": [{"is_empty": {"key": STORED_KEY}}, *({"key": key, "range": {"lte": until_ms}} for key in times)]}


def first_stored_ms(row: Row) -> int:
    """Return when the oldest version in a row was stored, Unix milliseconds; 0 if unknown."""
    stored: int = row.get(STORED_KEY) or 0
    oldest: int = row.get(VERSIONS_SINCE_KEY, stored)
    return min(stored, oldest)


def erased_by_filter(erasure_id: str, *conditions: Condition) -> Filter:
    """Build the filter for the tombstones of one erasure."""
    return {"must": [IS_TOMBSTONE, equals(ERASURE_KEY, erasure_id), *conditions]}


def erased_memories_filter(erasure_id: str) -> Filter:
    """Build the filter for those tombstones of an erasure that were memories, not older tombstones."""
    return erased_by_filter(erasure_id, _WAS_MEMORY)


def tombstones_since_filter(since_ms: int) -> Filter:
    """Build the filter for tombstones of erasures at `since_ms` (Unix milliseconds) or later."""
    return {"must": [{"key": TOMBSTONE_KEY, "range": {"gte": since_ms}}, _IS_ERASED]}


def receipts_since_filter(since_ms: int, *conditions: Condition) -> Filter:
    """Build the filter for receipts written at `since_ms` (Unix milliseconds) or later."""
    return {"must": [{"key": TOMBSTONE_KEY, "range": {"gte": since_ms}}, IS_RECEIPT, *conditions]}


def user_receipts_condition(agent_id: str, user_id: str) -> Condition:
    """Build the condition for receipts of a user of an agent. A receipt stores only the user's hash."""
    return equals(f"{RECEIPT_KEY}.userHash", hash_user(agent_id, user_id))


def erasure_tombstone(row: Row, erasure_id: str, now_ms: int, *, at_ms: int | None = None) -> Payload:
    """Build the tombstone of an erased memory, or of an older tombstone of the user.

    The tombstone contains neither user nor content. Its time is at least the time at which the memory was stored, even
    if the clocks of the processes differ.

    Args:
        row: Payload with at least the keys in `lifecycle/erase.py: ERASURE_ROW_KEYS`.
        now_ms: Current time, Unix milliseconds.
        at_ms: Time of the original erasure if this is a copy, Unix milliseconds. None for `now_ms`.
    """
    was_memory = TOMBSTONE_KEY not in row
    keys = ("identityId", *LINK_KEYS, *(("type",) if was_memory else ()))
    fields = {key: row[key] for key in keys if row.get(key) is not None}
    time_ms = max(now_ms if at_ms is None else at_ms, row.get(STORED_KEY) or 0)
    pending = not fields.keys().isdisjoint(LINK_KEYS)
    window_fields = window_mark(row) if was_memory else {WINDOW_DUE_KEY: True} if row.get(WINDOW_DUE_KEY) else {}
    # Record that the row was pending: another process may be about to link an earlier version to it.
    pending_fields = {WAS_PENDING_KEY: True} if was_memory and row.get("pending") else {}
    tombstone_fields = {"id": row["id"], "rev": (row.get("rev") or 0) + 1, "updatedAt": now_ms, TOMBSTONE_KEY: time_ms}
    return fields | tombstone_fields | window_fields | pending_fields | {ERASURE_KEY: erasure_id, "pending": pending}


def without_links(tombstone: Row) -> Payload:
    """Return an erasure's tombstone without its links, for a chain that is erased completely."""
    remaining = {key: value for key, value in tombstone.items() if key not in ("identityId", *LINK_KEYS)}
    return remaining | {"rev": tombstone["rev"] + 1, "pending": False}


def receipt_to_payload(receipt: ErasureReceipt) -> Payload:
    """Build the payload of a receipt's point. Readers of memories treat it as a tombstone."""
    fields = {
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
    stored = {key: value for key, value in fields.items() if value is not None}
    times = {"updatedAt": receipt.at, TOMBSTONE_KEY: receipt.at, LOGGED_KEY: receipt.at}
    return {"id": receipt.id, "rev": 1, **times, "pending": False, RECEIPT_KEY: stored}


def keys_found_payload(receipt_id: str, zones: Sequence[str], now_ms: int, *, rev: int) -> Payload:
    """Build the payload of a receipt's point before any key is deleted. Readers of memories treat it as a tombstone."""
    # Write 0 as the time of deletion: the removal of tombstones searches for later times, and so keeps this point.
    times = {"updatedAt": now_ms, TOMBSTONE_KEY: 0}
    return {"id": receipt_id, "rev": rev, **times, "pending": False, KEYS_FOUND_KEY: list(zones)}


def receipt_from_payload(payload: Row) -> ErasureReceipt:
    """Parse the receipt in a point's payload. KeyError if the payload contains none, or it lacks a field."""
    stored = payload[RECEIPT_KEY]
    return ErasureReceipt(
        id=payload["id"],
        agent_id=stored["agentId"],
        user_hash=stored["userHash"],
        is_whole=stored["isWhole"],
        older_than=stored.get("olderThan"),
        until_ms=stored["untilMs"],
        at=stored["at"],
        counts=MemoryCounts(types=dict(stored["types"])),
        sha256=stored["sha256"],
        request_hash=stored["requestHash"],
        zone=stored.get("zone"),
        keys_deleted=tuple(stored.get("keysDeleted", ())),
    )


def trace_from_payload(payload: Row) -> ErasureTrace:
    """Parse the trace in a point's payload: a receipt if it has one, else a tombstone. KeyError if it is neither."""
    if RECEIPT_KEY in payload:
        return receipt_from_payload(payload)
    id_ = payload.get(ERASED_ID_KEY, payload["id"])
    return TombstoneTrace(id_, payload[ERASURE_KEY], payload[TOMBSTONE_KEY], is_replaced=ERASED_ID_KEY in payload)


def trace_to_line(trace: ErasureTrace) -> bytes:
    """Render a trace as a line of JSON, including the line feed."""
    payload = receipt_to_payload(trace) if isinstance(trace, ErasureReceipt) else trace.payload
    names = ("id", TOMBSTONE_KEY, ERASURE_KEY, RECEIPT_KEY, ERASED_ID_KEY)
    document = {name: payload[name] for name in names if name in payload}
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def trace_from_line(line: bytes) -> ErasureTrace:
    """Parse a line of JSON.

    Raises:
        ValueError: If the line contains no trace.
    """
    try:
        return trace_from_payload(json.loads(line))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a tombstone: {error}") from error


def _hash(*parts: str) -> str:
    return hashlib.sha256("\x00".join(("agentmemory erasure", *parts)).encode()).hexdigest()
