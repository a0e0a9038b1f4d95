"""Final check of all recorded operations, and of every point in the engine, after all changes have settled.

The points at rest are two more reads of each user: of all memories, and of the newest versions. So one model
(`traffic.model`) finds lost memories, deleted ones that are visible again, and ones that were never stored.
"""

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from agentmemory_operator.memories.rules.links import predecessors
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from tests.support.cluster.traffic.journal import Journal, Kill
from tests.support.cluster.traffic.model import History, Kind, Operation, Outcome, Timeline, Violation, violations
from tests.support.cluster.traffic.readers import MIN_SIMILARITY
from tests.support.cluster.traffic.writers import VectorOf
from tests.support.patience import Patience
from tests.support.web.http_server import check_success

Row = Mapping[str, Any]
Rows = Mapping[str, Row]
ENGINE = "engine"
PAGE = 500
AHEAD_MS = 60_000
# The API completes interrupted changes within a minute, if no request meets them before.
SWEPT_WITHIN_S = 90.0
FLUSHED_WITHIN_S = 120.0
"""Seconds after which a recorded access is certainly written; the contract promises it within a minute."""


def audit(
    journal: Journal,
    points: Iterable[Row],
    *,
    timeline: Timeline | None = None,
    vector_of: VectorOf | None = None,
    counts_accesses: bool = False,
    besides: Collection[str] = (),
) -> list[Violation]:
    """Return everything in the recorded responses and in the points that no order of the operations explains.

    Args:
        points: All points at rest, with vectors.
        timeline: Restores and rollbacks. None if nothing was ever restored; then predecessors are complete.
        vector_of: Returns the vector that a text must have now; None if vectors are not checked.
        counts_accesses: True if all API processes have stopped and so have written their recorded accesses.
        besides: Contents that the test has stored itself.
    """
    points = [point for point in points if point["payload"].get("content") not in besides]
    rows = {str(point["id"]): point["payload"] for point in points}
    at = time.monotonic()
    history = journal.history(timeline)
    history.operations = [*history.operations, *_as_reads(history, rows, at)]
    found = [*violations(history), *find_malformed(rows, at), *_doubled(journal, rows, at)]
    found += chain_violations(rows, at, is_whole=timeline is None)
    if timeline is None:
        found += _unrevised(history, rows, at)
    if counts_accesses:
        found += count_violations(history, rows, journal.kills, at, journal.contents_by_id())
    return found + (vector_violations(points, vector_of, at) if vector_of else [])


def settled_points(engine: httpx.Client, collection: str) -> list[Row]:
    """Return all points with vectors, once none is pending or after 90 s."""
    patience = Patience(SWEPT_WITHIN_S)
    while True:
        points = read_points(engine, collection)
        if not any(point["payload"].get("pending") for point in points) or patience.is_over:
            return points
        time.sleep(1)


def read_points(engine: httpx.Client, collection: str) -> list[Row]:
    """Return all points with payload and vector."""
    points: list[Row] = []
    body: dict[str, Any] = {"limit": PAGE, "with_payload": True, "with_vector": True}
    while True:
        answer = check_success(engine.post(f"/collections/{collection}/points/scroll", json=body)).json()["result"]
        points += answer["points"]
        if answer["next_page_offset"] is None:
            return points
        body["offset"] = answer["next_page_offset"]


def _as_reads(history: History, rows: Rows, at: float) -> Iterator[Operation]:
    living = _living(rows).values()
    for user in sorted({each.user for each in history.operations} | {row["userId"] for row in living}):
        mine = [row for row in living if row["userId"] == user]
        heads = [row for row in mine if not row.get("supersededById")]
        for kind, seen in ((Kind.LIST, mine), (Kind.SEARCH, heads)):
            found = frozenset(row["content"] for row in seen)
            yield Operation(kind=kind, user=user, begun=at, ended=at, outcome=Outcome.OK, process=ENGINE, found=found)


def _living(rows: Rows) -> dict[str, Row]:
    return {key: row for key, row in rows.items() if TOMBSTONE_KEY not in row}


def find_malformed(rows: Rows, at: float) -> Iterator[Violation]:
    """Yield invalid payload fields. No change may be pending."""
    newest_ms = time.time() * 1000 + AHEAD_MS
    for key, row in rows.items():
        if row.get("id") != key:
            yield _wrong(row, f"a point has another id: {key}", at)
        if not (type(row.get("rev")) is int and row["rev"] >= 1):
            yield _wrong(row, f"it has an invalid rev: {row.get('rev')!r}", at)
        if not (type(row.get("updatedAt")) is int and 0 < row["updatedAt"] < newest_ms):
            yield _wrong(row, f"it has an invalid updatedAt: {row.get('updatedAt')!r}", at)
        if row.get("pending"):
            yield _wrong(row, "it is still pending", at)
        if TOMBSTONE_KEY in row and "content" in row:
            yield _wrong(row, "a tombstone has a content", at)


def _doubled(journal: Journal, rows: Rows, at: float) -> Iterator[Violation]:
    """Yield contents that are stored twice, or that responses returned with several ids."""
    stored = Counter(row["content"] for row in _living(rows).values())
    returned = Counter(content for contents in journal.contents.values() for content in contents)
    for what, counts in (("is stored more than once", stored), ("has several ids", returned)):
        yield from (Violation(f"it {what}: {n}", "", content, at) for content, n in counts.items() if n > 1)


def chain_violations(rows: Rows, at: float, *, is_whole: bool = False) -> list[Violation]:
    """Return the rows whose links do not form complete chains.

    Args:
        is_whole: True if no predecessor can be missing; a deleted one is a tombstone.
    """
    heads = Counter(row.get("identityId") for row in _living(rows).values() if not row.get("supersededById"))
    doubled = [identity for identity, count in heads.items() if identity and count > 1]
    found = [Violation("an identity has several heads", "", identity, at) for identity in doubled]
    return [*found, *_of_chains(rows, at, is_whole)]


def _of_chains(rows: Rows, at: float, is_whole: bool) -> Iterator[Violation]:
    living, after = _living(rows), dict[str, str]()
    for key, row in living.items():
        if successor := row.get("supersededById"):
            if successor not in living:
                yield _wrong(row, "it is replaced by what is not there", at)
            elif key not in predecessors(living[successor]):
                yield _wrong(row, "it is replaced by what does not follow it", at)
        for before in predecessors(row):
            if (other := after.setdefault(before, key)) != key:
                yield _wrong(row, f"a chain has two heads: {living[other]['content']!r} follows the same", at)
        kept = [before for before in predecessors(row) if is_whole or before in living]
        if any(rows.get(before, {}).get("supersededById") != key for before in kept):
            yield _wrong(row, "what it follows is still a head", at)


def _unrevised(history: History, rows: Rows, at: float) -> Iterator[Violation]:
    """Yield rows with a revision below the number of acknowledged changes."""
    for row in _living(rows).values():
        edits = history.edits.get(row["content"], ())
        least = 1 + sum(edit.outcome is Outcome.OK for edit in edits)
        if (row.get("rev") or 0) < least:
            yield _wrong(row, f"its rev is too low: {row.get('rev')} after {least} changes", at)


def vector_violations(points: Iterable[Row], vector_of: VectorOf, at: float) -> list[Violation]:
    """Return the memories whose vector is missing or belongs to another text, and the tombstones with a vector."""
    found = []
    for point in points:
        row, vector = point["payload"], _dense(point.get("vector"))
        if TOMBSTONE_KEY in row:
            found += [_wrong(row, "a tombstone has a vector", at)] if vector else []
        elif not vector:
            found.append(_wrong(row, "it has no vector", at))
        elif (likeness := _cosine(vector, vector_of(row["content"]))) < MIN_SIMILARITY:
            found.append(_wrong(row, f"it has another text's or model's vector: at {likeness:.3f}", at))
    return found


def count_violations(
    history: History, rows: Rows, kills: Sequence[Kill], at: float, same: Mapping[str, frozenset[str]]
) -> list[Violation]:
    """Return memories with more accesses than searches, or with fewer than were certainly written.

    Every remaining process was stopped by SIGTERM, so it has written its recorded accesses. A killed process may have
    lost some. Accesses written before the last move may be in another collection.

    Args:
        same: For each content, all contents that had the same id. Accesses are counted by id.
    """
    counting = _Counting(history, kills)
    found = []
    for row in _living(rows).values():
        if (store := history.stores.get(row["content"])) is not None:
            least, most = counting.bounds(store, same.get(store.content, frozenset({store.content})))
            accesses = row.get("accessCount", 0)
            if not least <= accesses <= most:
                found.append(_wrong(row, f"it has {accesses} accesses, not {least} to {most}", at))
    return found


@dataclass(slots=True)
class _Counting:
    history: History
    kills: Sequence[Kill]

    def bounds(self, store: Operation, same: frozenset[str]) -> tuple[int, int]:
        searches = [
            each
            for each in self.history.operations
            if each.kind is Kind.SEARCH and each.user == store.user and each.process != ENGINE
        ]
        found = [each for each in searches if store.content in each.found]
        most = sum(bool(same & each.found) for each in searches)
        unanswered = [each for each in searches if each.outcome is not Outcome.OK]
        since = self.history.timeline.eras[-1].begun.last
        return (
            sum(each.begun >= since and not self._may_be_lost(each) for each in found),
            most + len(unanswered),
        )

    def _may_be_lost(self, search: Operation) -> bool:
        return any(
            kill.process == search.process and search.begun <= kill.at <= search.ended + FLUSHED_WITHIN_S
            for kill in self.kills
        )


def _wrong(row: Row, what: str, at: float) -> Violation:
    return Violation(what, row.get("userId", ""), row.get("content", row.get("id", "")), at)


def _dense(vector: Any) -> list[float]:
    """Return a point's dense vector; empty if it has none."""
    found = vector.get("", []) if isinstance(vector, dict) else vector
    return found or []


def _cosine(one: list[float], other: list[float]) -> float:
    if len(one) != len(other):
        return -1.0
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / ((math.hypot(*one) * math.hypot(*other)) or 1.0)
