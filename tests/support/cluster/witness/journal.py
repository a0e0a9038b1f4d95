"""What the clients of an agent were told, so that what is read later can be held against it.

Only an answer of 2xx is an acknowledgement. What was answered 504, or not at all, may or may not have happened.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["plain", "keyed", "subject", "item"]
Trouble = Literal["api", "store", "embedder"]

CROWD = "crowd"
"""The user whose keys all writers write at once."""

FAULTS_MAX = 20


@dataclass(slots=True, eq=False)
class Version:
    """One memory.

    Attributes:
        changes: acknowledged writes to it, each of which raised its `rev`.
        request: Idempotency-Key and body that it was stored with, where the same may be sent again.
    """

    content: str
    id: str
    importance: float = 0.5
    changes: int = 1
    is_deleted: bool = False
    request: tuple[str, dict[str, Any]] | None = None


@dataclass(slots=True, eq=False)
class Unit:
    """The versions of one thing, oldest first; one writer changes it.

    Attributes:
        name: its tag, which no other memory has, and its key or subject.
        turn: odd while a change is under way.
        in_doubt: a change was begun whose outcome nobody will ever be told.
    """

    kind: Kind
    user: str
    name: str
    versions: list[Version] = field(default_factory=list)
    turn: int = 0
    in_doubt: bool = False

    @property
    def stored(self) -> list[Version]:
        """Those that are not deleted."""
        return [version for version in self.versions if not version.is_deleted]

    @property
    def head(self) -> Version | None:
        """The one that answers."""
        return self.stored[-1] if self.stored else None

    @property
    def is_settled(self) -> bool:
        """Tell whether what it should be is known."""
        return self.turn % 2 == 0 and not self.in_doubt

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Mark a change that is under way; readers judge nothing of what they see meanwhile."""
        self.turn += 1
        try:
            yield
        finally:
            self.turn += 1


@dataclass(slots=True)
class Journal:
    """What was acknowledged, what may have happened, and what was seen that should not be.

    Attributes:
        crowd: by key, id: content of what several writers stored at once.
        perhaps: contents whose storing was neither acknowledged nor refused.
        forgotten: users who were erased.
        statuses: answers to writes and reads, "lost" where none came.
    """

    units: list[Unit] = field(default_factory=list)
    crowd: dict[str, dict[str, str]] = field(default_factory=dict)
    perhaps: set[str] = field(default_factory=set)
    forgotten: set[str] = field(default_factory=set)
    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _troubles: list[tuple[Trouble, float, float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, status: int | str) -> None:
        """Count an answer."""
        with self._lock:
            self.statuses[str(status)] += 1

    def take_back(self, status: int) -> None:
        """Count an answer no more: a process of an earlier version is allowed to give it."""
        with self._lock:
            self.statuses -= Counter({str(status): 1})

    def blame(self, fault: str) -> None:
        """Write down what should not be."""
        with self._lock:
            if len(self.faults) < FAULTS_MAX:
                self.faults.append(f"{time.strftime('%H:%M:%S')} {fault}")

    def stored_in_crowd(self, key: str, memory_id: str, content: str) -> None:
        """Write down what one of many stored under a key."""
        with self._lock:
            self.crowd.setdefault(key, {})[memory_id] = content

    def known_contents(self) -> set[str]:
        """Return every content that may be stored."""
        crowd = {content for versions in self.crowd.values() for content in versions.values()}
        return crowd | self.perhaps | {version.content for unit in self.units for version in unit.versions}

    @property
    def acknowledged(self) -> int:
        """How many memories were."""
        return sum(len(unit.versions) for unit in self.units) + sum(map(len, self.crowd.values()))

    @contextlib.contextmanager
    def trouble(self, kind: Trouble) -> Iterator[None]:
        """Say that something is being broken on purpose, until the context ends."""
        begun, place = time.monotonic(), len(self._troubles)
        self._troubles.append((kind, begun, float("inf")))
        try:
            yield
        finally:
            self._troubles[place] = (kind, begun, time.monotonic())

    def was_troubled(self, since: float, *kinds: Trouble) -> bool:
        """Tell whether one of these was broken at any time since then, monotonic seconds."""
        return any(kind in kinds and ended >= since for kind, _, ended in self._troubles)
