"""The change log of an agent: what a point's place in it says, and from where one reads on. Pure.

Each memory lies in the log once, under `loggedAt`, the time of its latest change that readers see. What the change was
follows from the state of the point: one that others follow was superseded, a tombstone was deleted. So the log is as
large as the collection, and goes wherever the points go: into copies, snapshots and out of them.

| the point | kind | id | user |
|---|---|---|---|
| a memory | stored: it is new, was changed, or answers again | the memory's | its own |
| one that a consolidation made, unchanged since | consolidated | the memory's | its own |
| one with a successor | superseded | the memory's | its own |
| a tombstone of a deletion | deleted | the memory's | its own |
| a tombstone of a cleanup | expired | the memory's | its own |
| a receipt | forgotten | the receipt's | none: nobody can read there who was erased |
| none: another collection is behind the alias | restored, rebuilt | the epoch's number | none |

A tombstone that `forget` left has no place in the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentmemory_operator.collections.rules.epochs import Epoch
from agentmemory_operator.memories.rules.filters import IS_PENDING, NOT_DELETED, Condition, Filter
from agentmemory_operator.memories.rules.ids import decode_cursor, encode_cursor
from agentmemory_operator.memories.rules.record import (
    CHANGED_KEY,
    EXPIRED_KEY,
    LOGGED_KEY,
    RECEIPT_KEY,
    RUN_KEY,
    TOMBSTONE_KEY,
    hash_content,
)

CLOCKS_MS = 4_000
"""By how much the clocks of two processes that write and read may differ."""

Kind = Literal["stored", "superseded", "deleted", "expired", "forgotten", "consolidated", "restored", "rebuilt"]

KEYS = ("userId", "supersededById", TOMBSTONE_KEY, EXPIRED_KEY, LOGGED_KEY, CHANGED_KEY, RUN_KEY, f"{RECEIPT_KEY}.at")
"""What of a payload the log reads; no text."""

_SEEN: Condition = {"must_not": [{"must": [IS_PENDING, NOT_DELETED]}]}
_MOST = 1 << 53


@dataclass(frozen=True, slots=True)
class Position:
    """From where a reader reads on: after this point of the log, as it was while the alias led to this epoch.

    Attributes:
        at: Unix milliseconds; 0 is the beginning.
        id: of the last point of that time that was read; None where none of it was.
    """

    epoch: Epoch
    at: int = 0
    id: str | int | None = None

    def encode(self, slug: str) -> str:
        """The cursor, sealed with the agent that it is of, so that another's is not taken by mistake.

        The seal is no secret: who makes a cursor reads no more than the log itself would show.
        """
        told = [self.epoch.number, self.epoch.contents, self.at, self.id]
        return encode_cursor(*told, _seal(slug, told))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entry of the log.

    Attributes:
        position: after it.
        id: of the memory or the receipt; the number of the epoch where another collection is behind the alias.
        user_id: None where no user is named.
    """

    position: Position
    kind: Kind
    id: str
    user_id: str | None = None

    @property
    def at(self) -> int:
        """When, Unix milliseconds."""
        return self.position.epoch.number if self.kind in ("restored", "rebuilt") else self.position.at


def position_of(cursor: str, slug: str) -> Position | None:
    """The position that a cursor names; None where it is none of this agent's."""
    match decode_cursor(cursor):
        case [number, contents, at, id_, seal]:
            told = [number, contents, at, id_]
        case _:
            return None
    is_sealed = seal == _seal(slug, told) and all(_is_number(part) for part in (number, contents, at))
    if not is_sealed or not (id_ is None or isinstance(id_, str) or _is_number(id_)):
        return None
    return Position(Epoch(number=number, contents=contents), at, id_)


def moved(position: Position, now: Epoch) -> Change | None:
    """That another collection is behind the alias than when a reader was there last; None where none is.

    Of two processes one may not know of it yet: to a reader who came through the other it tells nothing.
    """
    if now.number <= position.epoch.number:
        return None
    kind: Kind = "rebuilt" if position.epoch.contents == now.contents else "restored"
    return Change(position=replace(position, epoch=now), kind=kind, id=str(now.number))


def change_of(id_: str | int, payload: Mapping[str, Any], epoch: Epoch) -> Change:
    """The entry that a point of the log is."""
    user_id = payload.get("userId")
    return Change(
        position=Position(epoch, time_of(payload), id_),
        kind=_kind(payload),
        id=str(id_),
        user_id=user_id if isinstance(user_id, str) else None,
    )


def time_of(payload: Mapping[str, Any]) -> int:
    """When the point was changed last, Unix milliseconds."""
    return int(payload[LOGGED_KEY])


def logged(since: Position, until_ms: int, of_user: Condition | None = None) -> Filter:
    """The filter of what was changed after the time of a position and until another."""
    return _within({"gt": since.at, "lte": until_ms}, of_user)


def logged_at(at_ms: int, of_user: Condition | None = None) -> Filter:
    """The filter of what was changed at a time."""
    return _within({"gte": at_ms, "lte": at_ms}, of_user)


def _within(times: Mapping[str, int], of_user: Condition | None) -> Filter:
    return {"must": [{"key": LOGGED_KEY, "range": dict(times)}, _SEEN, *([of_user] if of_user else [])]}


def _kind(payload: Mapping[str, Any]) -> Kind:
    if RECEIPT_KEY in payload:
        return "forgotten"
    if TOMBSTONE_KEY in payload:
        return "expired" if payload.get(EXPIRED_KEY) else "deleted"
    if payload.get("supersededById"):
        return "superseded"
    return "consolidated" if payload.get(RUN_KEY) and not payload.get(CHANGED_KEY) else "stored"


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _seal(slug: str, told: list[Any]) -> str:
    return hash_content(repr((slug, "changes", told)))
