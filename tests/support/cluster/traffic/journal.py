"""Requests and responses of all clients, one line per operation, with times of the machine's monotonic clock.

Only a 2xx response is an acknowledgement. A 4xx or 503 means that nothing was done. After any other response, or none,
the change may or may not have taken effect.
"""

import contextlib
import copy
import json
import pathlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.support.cluster.traffic.model import FOREVER, History, Kind, Operation, Outcome, Timeline, Violation

CROWD = "crowd"
"""User with keys that writers without a shared pool write concurrently."""

UnitKind = Literal["plain", "keyed", "subject", "item"]
FaultKind = Literal["api", "store", "embedder"]

# Statuses that mean, by the API's contract, "nothing was done".
BUSY, AWAY = 429, 503
MAX_EXCERPT_LINES = 30
MAX_FAULTS = 20


def outcome_of(kind: Kind, status: int | None) -> Outcome:
    """Return the outcome that a status implies; None is no response."""
    if status is not None and 200 <= status < 300:
        return Outcome.OK
    # A refused `forget` may be done in part, so its caller has to repeat it.
    if status is not None and (status < 500 or (status == AWAY and kind is not Kind.FORGET)):
        return Outcome.REFUSED
    return Outcome.UNKNOWN


@dataclass(slots=True, eq=False)
class Version:
    """One acknowledged memory.

    Attributes:
        request: Idempotency-Key and body with which it was stored; None if it must not be sent again.
    """

    content: str
    id: str
    is_deleted: bool = False
    request: tuple[str, dict[str, Any]] | None = None


@dataclass(slots=True, eq=False)
class Unit:
    """Versions of one memory or item, oldest first, as recorded by its writers.

    Attributes:
        name: Its tag, and its key or subject.
        in_doubt: True if a change has an unknown outcome.
    """

    kind: UnitKind
    user: str
    name: str
    versions: list[Version] = field(default_factory=list)
    in_doubt: bool = False

    @property
    def stored(self) -> list[Version]:
        """Versions that are not deleted."""
        return [version for version in self.versions if not version.is_deleted]

    @property
    def head(self) -> Version | None:
        """The newest version that is not deleted; None if all are deleted."""
        return self.stored[-1] if self.stored else None


@dataclass(frozen=True, slots=True)
class Kill:
    """A killed process and its time."""

    process: str
    at: float


@dataclass(slots=True)
class Entry:
    """One operation of the journal. `target_id` identifies a memory whose content is not known yet."""

    operation: Operation
    target_id: str | None = None
    note: str = ""


@dataclass(slots=True)
class Journal:
    """All operations in the order of their completion; thread-safe.

    Attributes:
        contents: Contents by id, for each memory in a response; several if a memory was erased and stored again.
        units: Units that the readers read. Only one writer changes each of them.
        crowd: Memories of `CROWD`.
        acknowledged: Number of acknowledged memories.
        statuses: Number of responses by status; "lost" for none.
        faults: Responses that are wrong, whatever the order of the operations.
        events: Faults and moves with their times.
    """

    begun: float = field(default_factory=time.monotonic)
    entries: list[Entry] = field(default_factory=list)
    contents: dict[str, list[str]] = field(default_factory=dict)
    units: list[Unit] = field(default_factory=list)
    crowd: list[Version] = field(default_factory=list)
    acknowledged: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    _troubles: list[tuple[FaultKind, float, float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, entry: Entry) -> None:
        """Record a completed operation."""
        with self._lock:
            self.entries.append(entry)
            self.acknowledged += entry.operation.kind is Kind.STORE and entry.operation.outcome is Outcome.OK

    def name(self, memory_id: str, content: str) -> None:
        """Record the content of the memory with an id."""
        with self._lock:
            known = self.contents.setdefault(memory_id, [])
            if content not in known:
                known.append(content)

    def count_response(self, status: int | str, by: int = 1) -> None:
        """Count a response; -1 takes back one that only a process of an earlier version may give."""
        with self._lock:
            self.statuses[str(status)] += by
            self.statuses += Counter()

    def record_fault(self, fault: str) -> None:
        """Record a response that must never occur."""
        with self._lock:
            if len(self.faults) < MAX_FAULTS:
                self.faults.append(f"{self.at(time.monotonic())} {fault}")

    def record_event(self, event: str) -> None:
        """Record a fault or a move."""
        with self._lock:
            self.events.append((time.monotonic(), event))

    def record_kill(self, process: str) -> None:
        """Record that a process was killed."""
        with self._lock:
            self.kills.append(Kill(process, time.monotonic()))

    @contextlib.contextmanager
    def fault(self, kind: FaultKind) -> Iterator[None]:
        """Record that a fault is injected until the context ends."""
        begun, place = time.monotonic(), len(self._troubles)
        self._troubles.append((kind, begun, FOREVER))
        try:
            yield
        finally:
            self._troubles[place] = (kind, begun, time.monotonic())

    def had_fault(self, since: float, *kinds: FaultKind) -> bool:
        """Return whether one of these faults was active at any time since `since`, in monotonic seconds."""
        return any(kind in kinds and ended >= since for kind, _, ended in self._troubles)

    @property
    def forgotten(self) -> set[str]:
        """Users with an acknowledged erasure."""
        operations = [entry.operation for entry in self.entries if entry.operation.kind is Kind.FORGET]
        return {each.user for each in operations if each.outcome is Outcome.OK}

    def fork(self) -> "Journal":
        """Return a copy that takes further operations and faults of its own."""
        return replace(
            self,
            entries=self.entries[:],
            contents=copy.deepcopy(self.contents),
            faults=self.faults[:],
            _lock=threading.Lock(),
        )

    def at(self, moment: float) -> str:
        """Format a time as seconds from the start."""
        return f"{moment - self.begun:8.3f}" if moment != FOREVER else "   never"

    def history(self, timeline: Timeline | None = None) -> History:
        """Return all operations. Without a timeline, nothing was ever restored."""
        return History([self._resolved(entry) for entry in self.entries], timeline or Timeline(self.begun))

    def _resolved(self, entry: Entry) -> Operation:
        if entry.target_id is None:
            return entry.operation
        # A memory that no response contained has no known content. Its id replaces the content.
        return replace(entry.operation, targets=tuple(self.contents.get(entry.target_id, [entry.target_id])))

    def contents_by_id(self) -> dict[str, frozenset[str]]:
        """Return for each content all contents that had the same id."""
        return {content: frozenset(all_) for all_ in self.contents.values() for content in all_}

    def write(self, path: pathlib.Path) -> None:
        """Write all lines as JSON."""
        with path.open("w") as lines:
            for entry in self.entries:
                lines.write(json.dumps(self._line(entry), ensure_ascii=False) + "\n")
            for moment, event in self.events:
                lines.write(json.dumps({"at": round(moment - self.begun, 3), "event": event}) + "\n")

    def _line(self, entry: Entry) -> dict[str, Any]:
        found = self._resolved(entry)
        line = {
            "begun": round(found.begun - self.begun, 3),
            "ended": round(found.ended - self.begun, 3),
            "kind": found.kind.value,
            "outcome": found.outcome.value,
            "status": found.status,
            "process": found.process,
            "user": found.user,
            "content": found.content,
            "tag": found.tag,
            "targets": list(found.targets),
            "chain": found.chain,
            "found": sorted(found.found),
            "importance": found.importance,
            "note": entry.note,
        }
        return {name: value for name, value in line.items() if value not in ("", [], None)}

    def excerpt(self, violation: Violation) -> str:
        """Return the lines that concern a violation: its memory, the memories linked with it, and the events."""
        near = self._relatives(violation.content)
        lines = [
            (entry.operation.begun, self._shown(entry, near))
            for entry in self.entries
            if self._concerns(entry, near, violation)
        ]
        lines += [(moment, f"{self.at(moment)}           ** {event}") for moment, event in self.events]
        lines.sort()
        shown = [text for _, text in _around(lines, violation.at)]
        return "\n".join([f"{self.at(violation.at)} {violation.what}: {violation.content!r}", *shown])

    def _relatives(self, content: str) -> set[str]:
        near = {content}
        for _ in range(2):
            for entry in self.entries:
                found = self._resolved(entry)
                if found.kind is Kind.STORE and found.targets and near & {found.content, *found.targets}:
                    near |= {found.content, *found.targets}
        return near

    def _concerns(self, entry: Entry, near: set[str], violation: Violation) -> bool:
        found = self._resolved(entry)
        if found.kind is Kind.FORGET:
            return found.user == violation.user
        if found.kind in (Kind.STORE, Kind.DELETE, Kind.EDIT):
            return bool(near & {found.content, *found.targets})
        return found.user == violation.user and abs(found.begun - violation.at) < 3

    def _shown(self, entry: Entry, near: set[str]) -> str:
        found = self._resolved(entry)
        what = sorted(found.found & near) if found.kind in (Kind.SEARCH, Kind.LIST) else found.content
        after = f" of {list(found.targets)}" if found.targets else ""
        told = f"{found.kind.value} {found.status} {found.process} {what}{after} {entry.note[:80]}"
        return f"{self.at(found.begun)} {self.at(found.ended)} {told}"


def _around(lines: list[tuple[float, str]], at: float) -> Iterable[tuple[float, str]]:
    """Return the lines nearest to a time, in order."""
    nearest = sorted(lines, key=lambda line: abs(line[0] - at))[:MAX_EXCERPT_LINES]
    return sorted(nearest)


def deduplicate(violations: Iterable[Violation], by: Callable[[Violation], object]) -> list[Violation]:
    """Return the first violation for each key."""
    found: dict[object, Violation] = {}
    for violation in violations:
        found.setdefault(by(violation), violation)
    return list(found.values())
