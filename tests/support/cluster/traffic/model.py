"""Checks whether responses to concurrent clients are possible, even while an agent's memories are restored.

Pure: a history is a list of operations with the time of the request, the time of the response, and the outcome. An
acknowledged operation took effect between the two times. A refused one (4xx, 503) never did. For any other it is
unknown whether and when it took effect.

The live collection has a lineage: the intervals of time with the operations that it contains.

- A restore sets the lineage to that of the snapshot, plus everything after the restore.
- A rollback sets it to that of the collection before the restore, plus everything after the rollback.
- A rebuild does not change it, because it copies everything.

The exact time at which a snapshot was taken or an alias moved is known only within a span. An operation that overlaps
the span may be before or after it.

A memory is identified by its content, which is unique.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any

FOREVER = float("inf")
IMPORTANCE = 0.5
"""Importance of a memory without edits."""


class Kind(Enum):
    STORE = "store"
    DELETE = "delete"
    EDIT = "edit"
    FORGET = "forget"
    SEARCH = "search"
    LIST = "list"


class Outcome(Enum):
    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Certainty(IntEnum):
    """Certainty that an operation took effect."""

    NO = 0
    PERHAPS = 1
    YES = 2


@dataclass(frozen=True, slots=True)
class Span:
    """Interval that contains a single event; seconds of one monotonic clock."""

    first: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One request, including all attempts under one Idempotency-Key.

    Attributes:
        process: API process of the last attempt.
        content: Content of a stored memory, or of the only memory that a read returns.
        tag: Tag of a stored memory, or of all memories that a read returns; empty if a read returns all of its user's.
        targets: Contents of the memory that a deletion deletes, an edit changes, or a store supersedes. There are
            several candidates if memories had the same id: the first memory of an identity gets the id of an erased
            predecessor.
        chain: Key of an identity in which each store supersedes the last one; empty without one.
        found: Contents that a search or a list returned.
        importance: Value that an edit sets or a read returned.
        status: Status of the last response.
    """

    kind: Kind
    user: str
    begun: float
    ended: float
    outcome: Outcome
    process: str = ""
    content: str = ""
    tag: str = ""
    targets: tuple[str, ...] = ()
    chain: str = ""
    found: frozenset[str] = frozenset()
    importance: float | None = None
    status: str = ""

    @property
    def until(self) -> float:
        """Latest time at which it took effect, if it did."""
        return FOREVER if self.outcome is Outcome.UNKNOWN else self.ended


@dataclass(frozen=True, slots=True)
class Segment:
    """Interval in which a collection received writes; `ended` is None if it still does."""

    begun: Span
    ended: Span | None = None

    def holds(self, operation: Operation) -> Certainty:
        """Return how certain it is that the segment contains an operation."""
        if operation.outcome is Outcome.REFUSED:
            return Certainty.NO
        ended = self.ended or Span(FOREVER, FOREVER)
        if operation.until < self.begun.first or operation.begun > ended.last:
            return Certainty.NO
        is_within = operation.begun >= self.begun.last and operation.ended <= ended.first
        return Certainty.YES if is_within and operation.outcome is Outcome.OK else Certainty.PERHAPS


Lineage = tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Era:
    """Period between two moves, in which one lineage was live.

    Attributes:
        calm: Time at which the move was reported as complete. Before it, reads may return memories that were erased
            after the snapshot was taken.
    """

    begun: Span
    calm: float
    lineage: Lineage
    name: str = "the beginning"


class Timeline:
    """Eras of an agent, from its creation on."""

    def __init__(self, begun: float) -> None:
        span = Span(begun, begun)
        self.eras = [Era(begun=span, calm=begun, lineage=(Segment(span),))]
        self._snapshots: dict[str, Lineage] = {}
        self._replaced: list[Lineage] = []

    def snapshot(self, name: str, cut: Span) -> None:
        """Record that a snapshot of the live lineage was taken."""
        self._snapshots[name] = _cut(self.eras[-1].lineage, cut)

    def restore(self, name: str, moved: Span, *, calm: float) -> None:
        """Record that a snapshot was restored."""
        self._replaced.append(_cut(self.eras[-1].lineage, moved))
        self._add(self._snapshots[name], moved, calm, f"restore of {name}")

    def roll_back(self, moved: Span, *, calm: float) -> None:
        """Record that the last restore was rolled back."""
        self._add(self._replaced.pop(), moved, calm, "rollback")

    def eras_during(self, begun: float, ended: float) -> list[Era]:
        """Return the eras that an operation in this interval may have seen."""
        ends = [era.begun.last for era in self.eras[1:]] + [FOREVER]
        return [era for era, end in zip(self.eras, ends, strict=True) if era.begun.first <= ended and end >= begun]

    def _add(self, lineage: Lineage, moved: Span, calm: float, name: str) -> None:
        self.eras.append(Era(begun=moved, calm=calm, lineage=(*lineage, Segment(moved)), name=name))


def _cut(lineage: Lineage, at: Span) -> Lineage:
    return (*lineage[:-1], replace(lineage[-1], ended=at))


@dataclass(frozen=True, slots=True)
class Violation:
    """A response that no order of the operations explains.

    Attributes:
        content: Content of the memory concerned.
    """

    what: str
    user: str
    content: str
    at: float


@dataclass(frozen=True, slots=True)
class _View:
    """State of an era as a read sees it.

    It lacks operations that started after `until`, and has those that ended before `since`.
    """

    history: "History"
    era: Era
    since: float
    until: float

    def _placed(self, operation: Operation) -> Certainty:
        if operation.begun > self.until:
            return Certainty.NO
        sure = max(segment.holds(operation) for segment in self.era.lineage)
        return sure if operation.ended < self.since else min(sure, Certainty.PERHAPS)

    def _is_gone(self, store: Operation) -> Certainty:
        """Return how certain it is that the memory was deleted or forgotten."""
        found = [_among(each, self._placed(each)) for each in self.history.deletes[store.content]]
        found += [self._forgotten(store, each) for each in self.history.forgets[store.user]]
        return max(found, default=Certainty.NO)

    def _forgotten(self, store: Operation, forget: Operation) -> Certainty:
        """Return how certain it is that the memory was forgotten. A restore never brings it back."""
        if forget.outcome is Outcome.REFUSED or forget.begun > self.until or forget.until < store.begun:
            return Certainty.NO
        is_after = store.outcome is Outcome.OK and store.ended <= forget.begun and forget.outcome is Outcome.OK
        return (
            Certainty.YES
            if is_after and forget.ended < self.since and self.since >= self.era.calm
            else Certainty.PERHAPS
        )

    def exists(self, store: Operation) -> Certainty:
        """Return how certain it is that a memory exists, in its newest or an earlier version."""
        gone = self._is_gone(store)
        if gone is Certainty.YES:
            return Certainty.NO
        return min(self._placed(store), Certainty.YES if gone is Certainty.NO else Certainty.PERHAPS)

    def answers(self, store: Operation) -> Certainty:
        """Return how certain it is that a memory exists and is the newest version."""
        followers = self.history.followers(store)
        if any(_among(each, self.exists(each)) is Certainty.YES for each in followers):
            return Certainty.NO
        later = max(map(self.exists, self.history.descendants(store)), default=Certainty.NO)
        # A store that is in progress or was interrupted hides the head of its chain for a while.
        beside = any(self.exists(each) is Certainty.PERHAPS for each in self.history.same_key(store))
        return min(self.exists(store), Certainty.PERHAPS if beside or later is not Certainty.NO else Certainty.YES)


def _among(operation: Operation, sure: Certainty) -> Certainty:
    """Return how certain it is that an operation affected this one of its targets."""
    return sure if len(operation.targets) == 1 else min(sure, Certainty.PERHAPS)


@dataclass(slots=True)
class History:
    """All operations on an agent."""

    operations: Sequence[Operation]
    timeline: Timeline
    stores: dict[str, Operation] = field(init=False)
    deletes: Mapping[str, list[Operation]] = field(init=False)
    edits: Mapping[str, list[Operation]] = field(init=False)
    forgets: Mapping[str, list[Operation]] = field(init=False)
    _followers: Mapping[str, list[Operation]] = field(init=False)
    _in_chain: Mapping[tuple[str, str], list[Operation]] = field(init=False)
    _with_tag: Mapping[tuple[str, str], list[Operation]] = field(init=False)

    def __post_init__(self) -> None:
        stores = [each for each in self.operations if each.kind is Kind.STORE]
        self.stores = {store.content: store for store in stores}
        self.deletes = _grouped(self._all(Kind.DELETE), lambda each: each.targets)
        self.edits = _grouped(self._all(Kind.EDIT), lambda each: each.targets)
        self.forgets = _grouped(self._all(Kind.FORGET), lambda each: [each.user])
        self._followers = _grouped(stores, lambda each: each.targets)
        self._in_chain = _grouped(stores, lambda each: [(each.user, each.chain)] if each.chain else [])
        self._with_tag = _grouped(stores, lambda each: {(each.user, ""), (each.user, each.tag)})

    def followers(self, store: Operation) -> list[Operation]:
        """Return the stores that supersede a memory."""
        return self._followers[store.content]

    def descendants(self, store: Operation) -> list[Operation]:
        """Return the stores that directly or indirectly supersede a memory."""
        waiting, found = self.followers(store)[:], dict[str, Operation]()
        while waiting:
            each = waiting.pop()
            if each.content not in found and each is not store:
                found[each.content] = each
                waiting += self.followers(each)
        return list(found.values())

    def same_key(self, store: Operation) -> list[Operation]:
        """Return the other stores with the same key."""
        return [each for each in self._in_chain[store.user, store.chain] if each is not store]

    def within(self, read: Operation) -> list[Operation]:
        """Return the stores of the memories that a read may return."""
        if not read.content:
            return self._with_tag[read.user, read.tag]
        store = self.stores.get(read.content)
        return [store] if store is not None and store.user == read.user else []

    def reads(self) -> Iterator[Operation]:
        """Yield the reads that succeeded."""
        for operation in self.operations:
            if operation.kind in (Kind.SEARCH, Kind.LIST) and operation.outcome is Outcome.OK:
                yield operation

    def _all(self, kind: Kind) -> list[Operation]:
        return [each for each in self.operations if each.kind is kind]

    def expected(self, store: Operation, read: Operation) -> tuple[bool, bool]:
        """Return whether a read must return a memory, and whether it may."""
        found = []
        for era in self.timeline.eras_during(read.begun, read.ended):
            view = _View(self, era, read.begun, read.ended)
            found.append(view.answers(store) if read.kind is Kind.SEARCH else view.exists(store))
        return min(found) is Certainty.YES, max(found) is not Certainty.NO


def _grouped(
    operations: Iterable[Operation], keys: Callable[[Operation], Iterable[Any]]
) -> Mapping[Any, list[Operation]]:
    found = defaultdict(list)
    for each in operations:
        for key in keys(each):
            found[key].append(each)
    return found


def violations(history: History) -> list[Violation]:
    """Return all wrong results of reads."""
    return [violation for read in history.reads() for violation in _of_read(history, read)]


def _of_read(history: History, read: Operation) -> Iterator[Violation]:
    stores = history.within(read)
    if strange := sorted(read.found - {store.content for store in stores}):
        yield Violation("nobody stored it for this user", read.user, strange[0], read.begun)
    if read.importance is not None and read.importance not in (expected := _importances(history, read)):
        yield Violation(f"its importance is {read.importance}, not {expected}", read.user, read.content, read.begun)
    for store in stores:
        must, may = history.expected(store, read)
        if must and store.content not in read.found:
            yield Violation(f"a {read.kind.value} misses what has to be there", read.user, store.content, read.begun)
        elif not may and store.content in read.found:
            yield Violation(_why_not(store, read), read.user, store.content, read.begun)


def _importances(history: History, read: Operation) -> list[float | None]:
    """Return the values that the importance of a memory may have. Its edits follow each other."""
    values: list[float | None] = [IMPORTANCE]
    for edit in history.edits[read.content]:
        if edit.outcome is Outcome.REFUSED or edit.begun > read.ended:
            continue
        is_certain = edit.outcome is Outcome.OK and edit.ended < read.begun
        values = [edit.importance] if is_certain else [*values, edit.importance]
    return values


def _why_not(store: Operation, read: Operation) -> str:
    if store.outcome is Outcome.REFUSED:
        return f"a {read.kind.value} finds what was refused with {store.status}"
    return f"a {read.kind.value} finds what cannot be there"
