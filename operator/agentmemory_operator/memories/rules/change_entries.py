"""The change log of an agent: the entry of each point, and the cursors by which readers continue. Pure.

Each memory has one entry, ordered by `loggedAt`, the time of its last change that readers can see. The state of the
point gives the kind of the change. So the log has the size of the collection, and is part of every copy and snapshot of
the points.

| the point | kind | id | user |
|---|---|---|---|
| a memory | stored: it is new, was changed, or became a head again | the memory's | its own |
| created by a distillation or consolidation, not edited since | consolidated | the memory's | its own |
| has a successor | superseded | the memory's | its own |
| a tombstone of a deletion | deleted | the memory's | its own |
| a tombstone of a cleanup | expired | the memory's | its own |
| a receipt | forgotten | the receipt's | none: the log does not disclose the erased user |
| none: the alias points to another collection | restored, rebuilt | the epoch's number | none |

The tombstones of `forget` and of abandoned versions have no entry.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentmemory_operator.collections.rules.epochs import Epoch
from agentmemory_operator.memories.rules.filters import IS_PENDING, NOT_DELETED, Condition, Filter
from agentmemory_operator.memories.rules.ids import decode_cursor, encode_cursor, is_id
from agentmemory_operator.memories.rules.recent_entries import NO_RECENT, RecentEntries, decode_recent
from agentmemory_operator.memories.rules.record import (
    CHANGED_KEY,
    EXPIRED_KEY,
    LOGGED_KEY,
    RECEIPT_KEY,
    RUN_KEY,
    TOMBSTONE_KEY,
    hash_content,
)

Kind = Literal["stored", "superseded", "deleted", "expired", "forgotten", "consolidated", "restored", "rebuilt"]

LOG_PAYLOAD_KEYS = (
    "userId",
    "supersededById",
    TOMBSTONE_KEY,
    EXPIRED_KEY,
    LOGGED_KEY,
    CHANGED_KEY,
    RUN_KEY,
    f"{RECEIPT_KEY}.at",
)
"""Payload keys that the log reads. None of them contains text."""

_IS_VISIBLE: Condition = {"must_not": [{"must": [IS_PENDING, NOT_DELETED]}]}
_MAX_NUMBER = 1 << 53


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a reader: after this point of the log, in the collection of this epoch.

    Attributes:
        at: Unix milliseconds; 0 is the start of the log.
        id: Id of the last point read among those of time `at`; None if all of them were read.
        recent: Entries after this point that the reader has too; see `log_read.py`.
    """

    epoch: Epoch
    at: int = 0
    id: str | int | None = None
    recent: RecentEntries = NO_RECENT

    def encode(self, slug: str) -> str:
        """Return the cursor, with a checksum over the agent, so a cursor of another agent is rejected.

        The checksum contains no secret: a forged cursor reads only entries that the log shows anyway. Versions without
        `recent` ignore what follows the padding of the first part.
        """
        values = [self.epoch.number, self.epoch.contents, self.at, self.id]
        recent = self.recent.encode()
        return encode_cursor(*values, _checksum(slug, values), is_padded=bool(recent)) + recent


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Entry of the change log.

    Attributes:
        position: Position of a reader after the entry.
        at: Time of the change, Unix milliseconds.
        id: Id of the memory or the receipt; the epoch's number if the alias points to another collection.
        user_id: None if the entry discloses no user.
    """

    position: Position
    at: int
    kind: Kind
    id: str
    user_id: str | None = None


def decode_position(cursor: str, slug: str) -> Position | None:
    """Decode a cursor; None if it is malformed or belongs to another agent."""
    point = without_recent(cursor)
    if (recent := decode_recent(cursor[len(point) :])) is None:
        return None
    match decode_cursor(point):
        case [number, contents, at, id_, seal]:
            values = [number, contents, at, id_]
        case _:
            return None
    is_valid = seal == _checksum(slug, values) and all(_is_number(part) for part in (number, contents, at))
    if not is_valid or not (id_ is None or (isinstance(id_, str) and is_id(id_)) or _is_number(id_)):
        return None
    return Position(Epoch(number=number, contents=contents), at, id_, recent)


def without_recent(cursor: str) -> str:
    """Return a cursor without its recent entries. A reader that continues from it gets those again."""
    recent = cursor.partition("=")[2].lstrip("=")
    return cursor.removesuffix(recent)


def find_move(position: Position, now: Epoch) -> Change | None:
    """Return the change if the alias points to another collection than at `position`; None if it does not.

    Also None if `now` is older than the epoch of `position`, in a process that has not seen the latest move yet.
    """
    if now.number <= position.epoch.number:
        return None
    kind: Kind = "rebuilt" if position.epoch.contents == now.contents else "restored"
    return Change(position=replace(position, epoch=now), at=now.number, kind=kind, id=str(now.number))


def build_change(id_: str | int, payload: Mapping[str, Any], epoch: Epoch) -> Change:
    """Return the log entry of a point, as the table of this module defines it."""
    user_id, at = payload.get("userId"), logged_at_ms(payload)
    return Change(
        position=Position(epoch, at, id_),
        at=at,
        kind=_kind(payload),
        id=str(id_),
        user_id=user_id if isinstance(user_id, str) else None,
    )


def logged_at_ms(payload: Mapping[str, Any]) -> int:
    """Return the time of a point's last logged change, Unix milliseconds."""
    return int(payload[LOGGED_KEY])


def changes_filter(since: Position, until_ms: int, of_user: Condition | None = None) -> Filter:
    """Return the filter for changes after a position's time, up to and including `until_ms`."""
    return _within({"gt": since.at, "lte": until_ms}, of_user)


def changes_at_filter(at_ms: int, of_user: Condition | None = None) -> Filter:
    """Return the filter for changes at exactly this time."""
    return _within({"gte": at_ms, "lte": at_ms}, of_user)


def _within(times: Mapping[str, int], of_user: Condition | None) -> Filter:
    return {"must": [{"key": LOGGED_KEY, "range": dict(times)}, _IS_VISIBLE, *([of_user] if of_user else [])]}


def _kind(payload: Mapping[str, Any]) -> Kind:
    if RECEIPT_KEY in payload:
        return "forgotten"
    if TOMBSTONE_KEY in payload:
        return "expired" if payload.get(EXPIRED_KEY) else "deleted"
    if payload.get("supersededById"):
        return "superseded"
    return "consolidated" if payload.get(RUN_KEY) and not payload.get(CHANGED_KEY) else "stored"


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER


def _checksum(slug: str, values: list[Any]) -> str:
    return hash_content(repr((slug, "changes", values)))
