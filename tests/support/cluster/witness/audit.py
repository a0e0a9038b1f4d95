"""Final check of a witness after all changes have settled: every memory through the API, every point in the engine."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import httpx

from agentmemory_operator.memories.rules.links import predecessors
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from tests.support.cluster.witness.calls import WitnessCaller
from tests.support.cluster.witness.journal import CROWD, Journal, Unit
from tests.support.cluster.witness.readers import MIN_SIMILARITY, UnitReads, reads_for
from tests.support.cluster.witness.writers import VectorOf
from tests.support.patience import Patience
from tests.support.web.http_server import check_success

Row = dict[str, Any]
PAGE = 500
AHEAD_MS = 60_000
# The API completes interrupted changes within a minute, if no request meets them before.
SWEPT_WITHIN_S = 90.0


def audit(
    journal: Journal,
    caller: WitnessCaller,
    engine: httpx.Client,
    alias: str,
    *,
    vector_of: VectorOf,
    sends_vectors: bool,
) -> list[str]:
    """Return all faults: those recorded during the run, and those found now.

    Args:
        engine: HTTP client of the Qdrant server.
        vector_of: Returns the vector that a text must have now.
        sends_vectors: True if the agent does not embed texts itself.
    """
    looks = UnitReads(caller, vector_of=vector_of if sends_vectors else None)
    found = list(_faults_of_answers(journal, looks))
    points = settled_points(engine, alias)
    rows = {str(point["id"]): point["payload"] for point in points}
    found += faults_of_rows(rows, journal)
    found += faults_of_vectors(points, vector_of)
    return journal.faults + found


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
    body: Row = {"limit": PAGE, "with_payload": True, "with_vector": True}
    while True:
        answer = check_success(engine.post(f"/collections/{collection}/points/scroll", json=body)).json()["result"]
        points += answer["points"]
        if answer["next_page_offset"] is None:
            return points
        body["offset"] = answer["next_page_offset"]


def faults_of_rows(rows: Mapping[str, Row], journal: Journal) -> list[str]:
    """Return the points that contradict the journal."""
    living = {key: row for key, row in rows.items() if TOMBSTONE_KEY not in row}
    found = [*find_malformed(rows), *_doubled(living, journal), *_unlinked(rows, living), *_many_headed(living)]
    for unit in journal.units:
        found += _misplaced(unit, rows, living)
    for key, versions in journal.crowd.items():
        lost = [content for memory_id, content in versions.items() if _content(living, memory_id) != content]
        found += [f"{CROWD} {key}: lost {lost}"] if lost else []
    back = {row["userId"] for row in living.values()} & journal.forgotten
    return found + ([f"forgotten users are back: {sorted(back)}"] if back else [])


def faults_of_vectors(points: Iterable[Row], vector_of: VectorOf) -> list[str]:
    """Return the memories with a vector that does not belong to their text."""
    found = []
    for point in points:
        content, vector = point["payload"].get("content"), _dense(point.get("vector"))
        if TOMBSTONE_KEY in point["payload"]:
            found += [f"the tombstone {point['id']} has a vector"] if vector else []
        elif not vector:
            found.append(f"{content!r} has no vector")
        elif (likeness := _cosine(vector, vector_of(content))) < MIN_SIMILARITY:
            found.append(f"{content!r} has another text's or model's vector, at {likeness:.3f}")
    return found


def _faults_of_answers(journal: Journal, looks: UnitReads) -> Iterator[str]:
    for unit in journal.units:
        if unit.is_settled:
            wrong = [seen for look in reads_for(unit, looks) if (seen := look(unit))]
            wrong += [seen for version in unit.versions[1:-1] if (seen := looks.get_version(unit.user, version))]
            yield from (f"{unit.kind} {unit.name}: {seen}" for seen in wrong)


def find_malformed(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yield invalid payload fields. No change may be pending."""
    newest_ms = time.time() * 1000 + AHEAD_MS
    for key, row in rows.items():
        if row.get("id") != key:
            yield f"the point {key} says that it is {row.get('id')}"
        if not (type(row.get("rev")) is int and row["rev"] >= 1):
            yield f"{key} has rev {row.get('rev')!r}"
        if not (type(row.get("updatedAt")) is int and 0 < row["updatedAt"] < newest_ms):
            yield f"{key} has updatedAt {row.get('updatedAt')!r}"
        if row.get("pending"):
            yield f"{key} is still pending"
        if TOMBSTONE_KEY in row and "content" in row:
            yield f"the tombstone {key} has a content"


def _doubled(living: Mapping[str, Row], journal: Journal) -> Iterator[str]:
    known = journal.known_contents()
    for content, count in Counter(row["content"] for row in living.values()).items():
        if count > 1:
            yield f"{content!r} is there {count} times"
        if content not in known:
            yield f"{content!r} is there, and nobody stored it, or it was replaced by an item's newer content"


def _unlinked(rows: Mapping[str, Row], living: Mapping[str, Row]) -> Iterator[str]:
    for key, row in living.items():
        after = row.get("supersededById")
        if after and key not in predecessors(living.get(after, {})):
            yield f"{row['content']!r} is superseded by {after}, which does not follow it"
        for before in predecessors(row):
            if rows.get(before, {}).get("supersededById") != key:
                yield f"{row['content']!r} supersedes {before}, which is not followed by it"


def _many_headed(living: Mapping[str, Row]) -> Iterator[str]:
    heads = defaultdict(list)
    for row in living.values():
        if row.get("identityId") and not row.get("supersededById"):
            heads[row["identityId"]].append(row["content"])
    yield from (f"one identity has {len(found)} heads: {sorted(found)}" for found in heads.values() if len(found) > 1)


def _misplaced(unit: Unit, rows: Mapping[str, Row], living: Mapping[str, Row]) -> Iterator[str]:
    """Yield wrong memories of a unit. If its last change is in doubt, ignore the version concerned."""
    doubted = unit.head if unit.in_doubt else None
    for version in (version for version in unit.versions if version is not doubted):
        row = living.get(version.id)
        if version.is_deleted:
            if row is not None:
                yield f"{unit.kind} {unit.name}: deleted, and back: {row['content']!r}"
        elif _content(living, version.id) != version.content:
            yield f"{unit.kind} {unit.name}: lost: {version.content!r}; there is {rows.get(version.id)}"
        elif row is not None and (row.get("rev") or 0) < version.changes:
            yield f"{unit.kind} {unit.name}: rev {row.get('rev')} after {version.changes} changes"
    heads = [version.id for version in unit.stored if _is_head(living.get(version.id))]
    if unit.is_settled and unit.kind != "item" and heads != ([unit.head.id] if unit.head else []):
        yield f"{unit.kind} {unit.name}: its heads are {heads}, not {unit.head}"


def _is_head(row: Row | None) -> bool:
    return row is not None and not row.get("supersededById")


def _content(living: Mapping[str, Row], memory_id: str) -> str | None:
    return living.get(memory_id, {}).get("content")


def _dense(vector: Any) -> list[float]:
    """Return a point's dense vector; empty if it has none."""
    found = vector.get("", []) if isinstance(vector, dict) else vector
    return found or []


def _cosine(one: list[float], other: list[float]) -> float:
    if len(one) != len(other):
        return -1.0
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / ((math.hypot(*one) * math.hypot(*other)) or 1.0)
