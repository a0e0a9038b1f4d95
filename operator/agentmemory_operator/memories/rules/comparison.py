"""Compare the points of a live collection with those of a copy: missing points, and points that differ. Pure.

The copy is a snapshot's, or the target of a rebuild. Writers continue during the comparison. So the contents of a point
are compared only if `rev` and `updatedAt` are equal in both: points written since may differ.
"""

import hashlib
import heapq
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR
from agentmemory_operator.memories.rules.record import ORDER_KEY, PAYLOAD_KEYS, WINDOW_DUE_KEY, is_emptied
from agentmemory_operator.zones.rules.sealing import is_locked

Json = dict[str, Any]
PointId = str | int
Rows = dict[PointId, Json]
"""Payloads by id, with the requested keys."""

VERSION_KEYS = ("rev", "updatedAt")
"""Payload keys that identify a version of a point."""

SAMPLE_SIZE = 256
"""Number of points in a sample. If 1 % of all points are damaged, the sample has one with a probability of 92 %."""

UNREVISED_KEYS = frozenset({WINDOW_DUE_KEY, ORDER_KEY})
"""Keys that change without a new `rev`; see `memories/session_keywords.py`."""

_TOLERANCE = 1e-6
"""Relative and absolute tolerance of scores: two searches may add up in a different order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Differences between a copy and the live collection.

    Attributes:
        alike: Points of the same version in both.
        stale: Live points that the copy lacks or has with a lower revision.
        strayed: Points whose versions differ otherwise, with their revision in the copy; None without one.
        extra: Points that only the copy has.
    """

    alike: frozenset[PointId]
    stale: tuple[PointId, ...]
    strayed: Mapping[PointId, int | None]
    extra: tuple[PointId, ...]


def find_divergence(live: Rows, copy: Rows) -> Divergence:
    """Compare points by version. Points read without version keys count as alike if both collections have them.

    Args:
        live, copy: Points of the same range of ids, or of the same ids.
    """
    alike, behind, strayed = set(), [], {}
    for id_, row in live.items():
        copied_row = copy.get(id_)
        if copied_row is None or rev_of(copied_row) < rev_of(row):
            behind.append(id_)
        elif is_alike(row, copied_row):
            alike.add(id_)
        else:
            strayed[id_] = copied_row.get("rev")
    extra = tuple(id_ for id_ in copy if id_ not in live)
    return Divergence(alike=frozenset(alike), stale=tuple(behind), strayed=strayed, extra=extra)


def rev_of(row: Mapping[str, Any]) -> int:
    """Return a point's revision, from 1; 0 if it has none, because another tool wrote it."""
    rev: int = row.get("rev") or 0
    return rev


def is_alike(first: Mapping[str, Any], second: Mapping[str, Any] | None) -> bool:
    """Return whether two points have the same revision and time. A missing value equals a missing value.

    Args:
        second: None if the point does not exist.
    """
    return second is not None and all(first.get(key) == second.get(key) for key in VERSION_KEYS)


def is_unchanged(copy: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Return whether two payloads have the same revision and time. A copy without a revision never does."""
    return "rev" in copy and is_alike(copy, live)


@dataclass(slots=True)
class BottomKSample:
    """Bottom-k sample: the `size` points with the smallest seeded hash, independent of their order.

    Args:
        seed: Distinguishes samples: the uid of the snapshot, or the name of a rebuild's target.
        size: Number of points in the sample.
    """

    seed: str
    size: int = SAMPLE_SIZE
    _heap: list[tuple[int, str, PointId]] = field(default_factory=list)

    def add(self, ids: Iterable[PointId]) -> None:
        """Add candidates. The caller adds each id only once."""
        for id_ in ids:
            rank = -self._hash(id_)
            if len(self._heap) < self.size:
                heapq.heappush(self._heap, (rank, str(id_), id_))
            elif rank > self._heap[0][0]:
                heapq.heapreplace(self._heap, (rank, str(id_), id_))

    @property
    def ids(self) -> list[PointId]:
        """Ids of the sample, in the order of their hashes."""
        return [id_ for _, _, id_ in sorted(self._heap, reverse=True)]

    def _hash(self, id_: PointId) -> int:
        digest = hashlib.blake2b(f"{self.seed}\x00{id_}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult:
    """Result of comparing sampled points of a copy with the live collection.

    Attributes:
        equal: Points with the same revision and content in both.
        changed: Number of points written or removed in the live collection since the copy, or without a revision.
        differing: Points with the same revision and other content, each with the names of the parts that differ.
    """

    equal: tuple[PointId, ...]
    changed: int
    differing: tuple[tuple[PointId, tuple[str, ...]], ...]

    def with_second_read(self, repeated: "SampleResult") -> "SampleResult":
        """Return the result after a second comparison, `repeated`, of the points that differed."""
        return SampleResult(
            equal=self.equal + repeated.equal,
            # Count points as changed that the second read did not find: they were removed.
            changed=self.changed + len(self.differing) - len(repeated.equal) - len(repeated.differing),
            differing=repeated.differing,
        )


def is_bit_for_bit(name: str, first: Any, second: Any) -> bool:
    """Return whether two vectors are equal in every bit of their float32 values."""
    return _bits(first) == _bits(second)


SameVector = Callable[[str, Any, Any], bool]
"""Function that returns whether two vectors are equal, given their name, the copy's vector and the live one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """Definition of equality for two points of the same revision.

    Attributes:
        has_keyword: True if both collections have keyword vectors; otherwise these are not compared.
        ignored: Payload keys that may differ.
        ignores_locked: True to skip the vectors of locked memories, which the copying process could not create.
    """

    has_keyword: bool
    is_same: SameVector = is_bit_for_bit
    ignored: frozenset[str] = UNREVISED_KEYS
    ignores_locked: bool = False
    description: str = "bit for bit"


def compare_points(copies: Iterable[Json], live_points: Iterable[Json], equality: Equality) -> SampleResult:
    """Compare points with payload and vectors.

    Args:
        copies: Sampled points of the copy.
        live_points: Those of them that the live collection still has.
    """
    live_by_id = {point["id"]: point for point in live_points}
    equal: list[PointId] = []
    differing: list[tuple[PointId, tuple[str, ...]]] = []
    changed = 0
    for copy in copies:
        live = live_by_id.get(copy["id"])
        if live is None or not is_unchanged(copy["payload"], live["payload"]):
            changed += 1
        elif parts := _differences(copy, live, equality):
            differing.append((copy["id"], parts))
        else:
            equal.append(copy["id"])
    return SampleResult(equal=tuple(equal), changed=changed, differing=tuple(differing))


def find_score_differences(copy: Iterable[Json], live: Iterable[Json]) -> set[PointId]:
    """Return the ids whose scores differ, and those that only one search found."""
    copied, found = ({point["id"]: point["score"] for point in points} for points in (copy, live))
    both = copied.keys() & found.keys()
    differing = {id_ for id_ in both if not is_same_score(copied[id_], found[id_])}
    return differing | (copied.keys() ^ found.keys())


def is_same_score(first: float, second: float) -> bool:
    """Return whether two scores are equal within rounding errors of a sum."""
    return math.isclose(first, second, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def vectors_of(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point's vectors by name. The unnamed vector has the name ''."""
    vector = point.get("vector")
    if isinstance(vector, Mapping):
        return dict(vector)
    return {"": vector} if vector else {}


def _differences(copy: Json, live: Json, equality: Equality) -> tuple[str, ...]:
    """Return the names of the parts of a point that differ; all foreign payload keys are called `payload`."""
    own = set(PAYLOAD_KEYS.values())
    before, now = copy["payload"], live["payload"]
    keys = [key for key in sorted(before.keys() | now.keys()) if key not in equality.ignored]
    keys_off = [key for key in keys if not _same(before.get(key), now.get(key)) or (key in before) != (key in now)]
    parts = dict.fromkeys(_part_name(key if key in own else "payload", key in before, key in now) for key in keys_off)
    copy_vectors, live_vectors = vectors_of(copy), vectors_of(live)
    if not equality.has_keyword:
        copy_vectors.pop(KEYWORD_VECTOR, None)
        live_vectors.pop(KEYWORD_VECTOR, None)
    # Ignore vectors of tombstones: a tombstone may have been copied before its vectors were deleted.
    are_emptied = is_emptied(before) and is_emptied(now)
    if are_emptied or (equality.ignores_locked and is_locked(now)):
        return tuple(parts)
    names = sorted(copy_vectors.keys() | live_vectors.keys())
    unlike = [name for name in names if not equality.is_same(name, copy_vectors.get(name), live_vectors.get(name))]
    parts |= dict.fromkeys(_part_name(_vector_of(name), name in copy_vectors, name in live_vectors) for name in unlike)
    return tuple(parts)


def _part_name(part: str, is_copied: bool, is_live: bool) -> str:
    """Return the name of a part, and which side has it if only one does."""
    return part if is_copied and is_live else f"{part} only in {'the copy' if is_copied else 'the live one'}"


def _vector_of(name: str) -> str:
    """Return the display name of a vector."""
    return {"": "vector", KEYWORD_VECTOR: "keyword vector"}.get(name, "another vector")


def _same(left: object, right: object) -> bool:
    """Return whether two JSON values are equal, including the distinction of 1 and 1.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return left == right


def _bits(vector: Any) -> object:
    """Return a vector as the bytes of its float32 values. Those of a sparse vector follow its indices, ascending."""
    if isinstance(vector, Mapping):
        pairs = sorted(zip(vector["indices"], vector["values"], strict=True))
        return tuple(index for index, _ in pairs), _bits([value for _, value in pairs])
    return struct.pack(f"<{len(vector)}f", *vector) if vector else None
