"""Record of the responses that clients received, to be compared with later reads.

Only a 2xx response is an acknowledgement. After 504 or no response, the change may or may not have taken effect.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["plain", "keyed", "subject", "item"]
FaultKind = Literal["api", "store", "embedder"]

CROWD = "crowd"
"""User with keys that all writers write concurrently."""

MAX_FAULTS = 20


@dataclass(slots=True, eq=False)
class Version:
    """One memory.

    Attributes:
        changes: Number of acknowledged writes to it; each incremented its `rev`.
        request: Idempotency-Key and body with which it was stored; None if it must not be sent again.
    """

    content: str
    id: str
    importance: float = 0.5
    changes: int = 1
    is_deleted: bool = False
    request: tuple[str, dict[str, Any]] | None = None


@dataclass(slots=True, eq=False)
class Unit:
    """Versions of one thing, oldest first. Only one writer changes it.

    Attributes:
        name: Its tag, which no other unit has, and its key or subject.
        turn: Odd while a change is in progress.
        in_doubt: True if a change has an unknown outcome.
    """

    kind: Kind
    user: str
    name: str
    versions: list[Version] = field(default_factory=list)
    turn: int = 0
    in_doubt: bool = False

    @property
    def stored(self) -> list[Version]:
        """Versions that are not deleted."""
        return [version for version in self.versions if not version.is_deleted]

    @property
    def head(self) -> Version | None:
        """The newest version that is not deleted; None if all are deleted."""
        return self.stored[-1] if self.stored else None

    @property
    def is_settled(self) -> bool:
        """True if the expected state is known."""
        return self.turn % 2 == 0 and not self.in_doubt

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Mark a change in progress. Readers ignore results during it."""
        self.turn += 1
        try:
            yield
        finally:
            self.turn += 1


@dataclass(slots=True)
class Journal:
    """Acknowledged changes, possible changes, and observed faults.

    Attributes:
        crowd: For each key, id -> content of the memories that several writers stored concurrently.
        unconfirmed: Contents of stores that were neither acknowledged nor refused.
        forgotten: Users that were erased.
        statuses: Number of responses by status; "lost" for none.
    """

    units: list[Unit] = field(default_factory=list)
    crowd: dict[str, dict[str, str]] = field(default_factory=dict)
    unconfirmed: set[str] = field(default_factory=set)
    forgotten: set[str] = field(default_factory=set)
    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _troubles: list[tuple[FaultKind, float, float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count_response(self, status: int | str) -> None:
        """Count a response."""
        with self._lock:
            self.statuses[str(status)] += 1

    def take_back(self, status: int) -> None:
        """Undo the count of a response that only a process of an earlier version may give."""
        with self._lock:
            self.statuses -= Counter({str(status): 1})

    def record_fault(self, fault: str) -> None:
        """Record a fault."""
        with self._lock:
            if len(self.faults) < MAX_FAULTS:
                self.faults.append(f"{time.strftime('%H:%M:%S')} {fault}")

    def stored_in_crowd(self, key: str, memory_id: str, content: str) -> None:
        """Record a memory that one of several writers stored under a key."""
        with self._lock:
            self.crowd.setdefault(key, {})[memory_id] = content

    def known_contents(self) -> set[str]:
        """Return all contents that may be stored."""
        crowd = {content for versions in self.crowd.values() for content in versions.values()}
        return crowd | self.unconfirmed | {version.content for unit in self.units for version in unit.versions}

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged memories."""
        return sum(len(unit.versions) for unit in self.units) + sum(map(len, self.crowd.values()))

    @contextlib.contextmanager
    def fault(self, kind: FaultKind) -> Iterator[None]:
        """Record that a fault is injected until the context ends."""
        begun, place = time.monotonic(), len(self._troubles)
        self._troubles.append((kind, begun, float("inf")))
        try:
            yield
        finally:
            self._troubles[place] = (kind, begun, time.monotonic())

    def had_fault(self, since: float, *kinds: FaultKind) -> bool:
        """Return whether one of these faults was active at any time since `since`, in monotonic seconds."""
        return any(kind in kinds and ended >= since for kind, _, ended in self._troubles)
