"""Marks of recent entries of the change log, and their text in a cursor; see `log_read.py`. Pure."""

import base64
import binascii
from dataclasses import dataclass
from typing import NamedTuple

MAX_RECENT = 256
"""Maximum number of marks. A cursor has 12 characters for each."""

SALT_BYTES, HASH_BYTES = 3, 6
_START_BYTES, _TIME_BYTES = 6, 3
_RECORD_BYTES = _TIME_BYTES + HASH_BYTES


class Mark(NamedTuple):
    """Mark of one entry: its time in Unix milliseconds, and a hash of its id and kind.

    The time shows which change of the memory it is: `log_times.next_logged_at`. The kind distinguishes a deleted memory
    from one that was stored in its place without knowing of it.
    """

    at: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class RecentEntries:
    """Marks of the recent entries that a reader has.

    Attributes:
        salt: Random bytes that the hashes depend on. So no writer can choose ids whose marks are equal, which would
            hide one of the entries.
    """

    salt: bytes = b""
    marks: frozenset[Mark] = frozenset()

    def encode(self) -> str:
        """Return the text of the marks; empty if there are none."""
        if not self.marks:
            return ""
        start = min(mark.at for mark in self.marks)
        # Marks of one reader are minutes apart at most. Only a forged cursor has others.
        marks = [mark for mark in sorted(self.marks) if mark.at - start < 1 << 8 * _TIME_BYTES]
        records = [(mark.at - start).to_bytes(_TIME_BYTES, "big") + mark.hash for mark in marks]
        return base64.urlsafe_b64encode(start.to_bytes(_START_BYTES, "big") + self.salt + b"".join(records)).decode()


NO_RECENT = RecentEntries()


def decode_recent(text: str) -> RecentEntries | None:
    """Decode the text of the marks; None if it is malformed."""
    if not text:
        return NO_RECENT
    try:
        data = base64.b64decode(text.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    count, rest = divmod(len(data), _RECORD_BYTES)
    if rest or not 2 <= count <= MAX_RECENT + 1:
        return None
    start = int.from_bytes(data[:_START_BYTES], "big")
    records = (data[at : at + _RECORD_BYTES] for at in range(_RECORD_BYTES, len(data), _RECORD_BYTES))
    marks = (Mark(start + int.from_bytes(record[:_TIME_BYTES], "big"), record[_TIME_BYTES:]) for record in records)
    return RecentEntries(data[_START_BYTES:_RECORD_BYTES], frozenset(marks))
