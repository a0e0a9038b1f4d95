"""Read the change log although slow writes, and clocks that differ, may still add entries before those read. Pure.

The log is *complete* up to a time after which no write can add entries any more (`change_log.complete_until_ms`). A
later entry is *recent*. A reader gets recent entries too. So its position consists of two parts: the last complete
entry before which it has everything, and a mark of each recent entry that it has.

    time in the log      a   b   c   │   d   e   f         complete up to │
    first read           a   b   c       d       f         position: after c, marks of d and f
    write e is slow                          e
    second read                              e             position: after c, marks of d, e and f
    20 s later                                       │     position: after f, no marks

Each read begins after the position again and skips the marked entries. A mark leaves the position when the log is
complete beyond it, or when its entry is gone, because the memory changed again. So every entry is returned once, and
none is missed, in whatever order writes take effect. The marks have a limit: a reader that has `MAX_RECENT` of them
gets the next recent entry only once the first of them is complete.
"""

import hashlib
from dataclasses import dataclass, field, replace

from agentmemory_operator.memories.rules.change_entries import Change, Position
from agentmemory_operator.memories.rules.recent_entries import (
    HASH_BYTES,
    MAX_RECENT,
    NO_RECENT,
    Mark,
    RecentEntries,
)


@dataclass(slots=True)
class LogRead:
    """One read of the log, to which the entries after a position are given in their order.

    Args:
        new_salt: Random bytes, used if the position has no marks yet.

    Attributes:
        position: Position of the reader after the entries so far.
        complete_until_ms: Time up to which the log was complete before the entries were read.
        is_full: True if the position has no room for the last entry: the read ends before it.
    """

    position: Position
    complete_until_ms: int
    new_salt: bytes
    is_full: bool = field(init=False, default=False)
    _salt: bytes = field(init=False)
    _passed: set[Mark] = field(init=False, default_factory=set)
    _ahead: set[Mark] = field(init=False)

    def __post_init__(self) -> None:
        recent = self.position.recent
        self._salt = recent.salt if recent.marks else self.new_salt
        self._ahead = set(recent.marks)

    def take(self, entry: Change) -> Change | None:
        """Move past an entry; return it with the position after it. None if the reader has it, or `is_full`."""
        mark = self._mark(entry)
        is_new, is_recent = mark not in self._ahead, entry.at > self.complete_until_ms
        # An earlier mark was not met: its memory has changed again.
        self._ahead = {other for other in self._ahead if other.at >= entry.at and other != mark}
        if is_new and is_recent and len(self._ahead) + len(self._passed) >= MAX_RECENT:
            self.is_full = True
            return None
        if is_recent:
            self._passed.add(mark)
        else:
            self.position = replace(self.position, at=entry.position.at, id=entry.position.id)
        self._mark_position()
        return replace(entry, position=self.position) if is_new else None

    def cross(self, move: Change) -> Change:
        """Move past a move of the alias; return it with the position after it."""
        self.position = replace(self.position, epoch=move.position.epoch)
        return replace(move, position=self.position)

    def end(self, until_ms: int) -> None:
        """Move to the end of the log, after all entries up to a time were given.

        Args:
            until_ms: Unix milliseconds. Another process, whose clock is ahead, may have read on.
        """
        self._ahead = {mark for mark in self._ahead if mark.at > until_ms}
        self.position = replace(self.position, id=None)
        self._mark_position()

    def _mark_position(self) -> None:
        marks = frozenset(self._passed | self._ahead)
        recent = RecentEntries(self._salt, marks) if marks else NO_RECENT
        self.position = replace(self.position, recent=recent)

    def _mark(self, entry: Change) -> Mark:
        text = repr((entry.id, entry.kind)).encode()
        return Mark(entry.at, hashlib.blake2b(text, digest_size=HASH_BYTES, key=self._salt).digest())
