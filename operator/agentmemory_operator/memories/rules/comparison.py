"""Points of a live collection beside those of a copy: what the copy lacks, and which points are the same. Pure.

The copy is a snapshot's, or the target that a rebuild fills. Writers go on meanwhile, so the contents of a point are
judged only where both say the same `rev` and `updatedAt`: what was written since has to differ.
"""

import hashlib
import heapq
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR
from agentmemory_operator.memories.rules.record import DUE_KEY, ORDER_KEY, PAYLOAD_KEYS, is_emptied
from agentmemory_operator.zones.rules.sealing import is_locked

Json = dict[str, Any]
PointId = str | int
Rows = dict[PointId, Json]
"""Payloads by id, of each what was asked for."""

VERSION_KEYS = ("rev", "updatedAt")
"""What of a payload tells two versions of a point apart."""

SAMPLED = 256
"""Points that are compared bit for bit: one in a hundred damaged is met with a probability of 92 %."""

UNREVISED = frozenset({DUE_KEY, ORDER_KEY})
"""Keys that change without a new `rev`; see `memories/session_keywords.py`."""

_TOLERANCE = 1e-6
"""Relative and absolute, of scores: two machines sum up in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """How a copy differs from the live collection.

    Attributes:
        alike: of one version in both.
        behind: live, and missing in the copy or of an earlier revision there.
        strayed: of another version otherwise, with the revision that each has in the copy.
        extra: in the copy alone.
    """

    alike: frozenset[PointId]
    behind: tuple[PointId, ...]
    strayed: Mapping[PointId, int | None]
    extra: tuple[PointId, ...]


def divergence(live: Rows, copy: Rows) -> Divergence:
    """How points differ by versions; of points read without any, which are in both.

    Args:
        live, copy: points of the same stretch of ids, or the same ids.
    """
    alike, behind, strayed = set(), [], {}
    for id_, row in live.items():
        other = copy.get(id_)
        if other is None or rev_of(other) < rev_of(row):
            behind.append(id_)
        elif is_alike(row, other):
            alike.add(id_)
        else:
            strayed[id_] = other.get("rev")
    extra = tuple(id_ for id_ in copy if id_ not in live)
    return Divergence(alike=frozenset(alike), behind=tuple(behind), strayed=strayed, extra=extra)


def rev_of(row: Mapping[str, Any]) -> int:
    """A point's revision; 0 of what none of our writers wrote, theirs begin at 1."""
    rev: int = row.get("rev") or 0
    return rev


def is_alike(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    """Whether two points are of one revision and one time; two that carry neither are.

    Args:
        other: None where there is no such point.
    """
    return other is not None and all(one.get(key) == other.get(key) for key in VERSION_KEYS)


def is_unchanged(copy: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Whether two payloads are of the same revision; a point that carries none is never judged."""
    return "rev" in copy and is_alike(copy, live)


@dataclass(slots=True)
class Draw:
    """Draws a sample of points, the same one whatever the order: those whose hash with a seed is smallest.

    Args:
        seed: tells one drawing from another: the uid of the snapshot, the name of a rebuild's target.
        size: how many are drawn.
    """

    seed: str
    size: int = SAMPLED
    _heap: list[tuple[int, str, PointId]] = field(default_factory=list)

    def offer(self, ids: Iterable[PointId]) -> None:
        """Let points take part, each once."""
        for id_ in ids:
            rank = -self._hash(id_)
            if len(self._heap) < self.size:
                heapq.heappush(self._heap, (rank, str(id_), id_))
            elif rank > self._heap[0][0]:
                heapq.heapreplace(self._heap, (rank, str(id_), id_))

    @property
    def drawn(self) -> list[PointId]:
        """The points drawn, by their hashes."""
        return [id_ for _, _, id_ in sorted(self._heap, reverse=True)]

    def _hash(self, id_: PointId) -> int:
        digest = hashlib.blake2b(f"{self.seed}\x00{id_}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What became of the points drawn.

    Attributes:
        equal: unchanged, and the same in both.
        changed: how many were written or removed since.
        differing: unchanged by their revision, and yet not the same; with what differs, and how.
    """

    equal: tuple[PointId, ...]
    changed: int
    differing: tuple[tuple[PointId, tuple[str, ...]], ...]

    def reread(self, again: "Compared") -> "Compared":
        """What came of the points drawn, where those that differed were read `again`."""
        return Compared(
            equal=self.equal + again.equal,
            # What is not found any more was removed.
            changed=self.changed + len(self.differing) - len(again.equal) - len(again.differing),
            differing=again.differing,
        )


def is_bit_for_bit(name: str, one: Any, other: Any) -> bool:
    """Whether two vectors are the same down to the last bit."""
    return _bits(one) == _bits(other)


SameVector = Callable[[str, Any, Any], bool]
"""Tells of a vector's name, and of the copy's and the live one's numbers, whether they are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """What makes two points of one revision the same.

    Attributes:
        has_keyword: both collections have keyword vectors; else they are no part of it.
        ignored: keys that may differ.
        leaves_sealed: vectors of sealed memories are no part of it: whoever made the copy could not make them.
        described: in a person's words.
    """

    has_keyword: bool
    is_same: SameVector = is_bit_for_bit
    ignored: frozenset[str] = UNREVISED
    leaves_sealed: bool = False
    described: str = "bit for bit"


def compare_points(copies: Iterable[Json], lives: Iterable[Json], equality: Equality) -> Compared:
    """Compare points with payload and vectors.

    Args:
        copies: the points drawn, of the copy.
        lives: those of them that are still live.
    """
    live_by_id = {point["id"]: point for point in lives}
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
    return Compared(equal=tuple(equal), changed=changed, differing=tuple(differing))


def score_differences(copy: Iterable[Json], live: Iterable[Json]) -> set[PointId]:
    """The ids whose scores differ, or that only one search has found."""
    copied, found = ({point["id"]: point["score"] for point in points} for points in (copy, live))
    both = copied.keys() & found.keys()
    off = {id_ for id_ in both if not is_same_score(copied[id_], found[id_])}
    return off | (copied.keys() ^ found.keys())


def is_same_score(one: float, other: float) -> bool:
    """Whether two scores are the same but for the order of a sum."""
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def vectors_of(point: Mapping[str, Any]) -> dict[str, Any]:
    """A point's vectors by name; the nameless one's is empty."""
    vector = point.get("vector")
    if isinstance(vector, Mapping):
        return dict(vector)
    return {"": vector} if vector else {}


def _differences(copy: Json, live: Json, equality: Equality) -> tuple[str, ...]:
    """Which parts of a point differ and how; keys of a payload that are none of ours are called `payload`."""
    ours = set(PAYLOAD_KEYS.values())
    before, now = copy["payload"], live["payload"]
    keys = [key for key in sorted(before.keys() | now.keys()) if key not in equality.ignored]
    off = [key for key in keys if not _same(before.get(key), now.get(key)) or (key in before) != (key in now)]
    parts = dict.fromkeys(_told(key if key in ours else "payload", key in before, key in now) for key in off)
    vectors, others = vectors_of(copy), vectors_of(live)
    if not equality.has_keyword:
        vectors.pop(KEYWORD_VECTOR, None)
        others.pop(KEYWORD_VECTOR, None)
    # Copied while it was being emptied, or emptied later, a tombstone has vectors in one of both and means the same.
    are_emptied = is_emptied(before) and is_emptied(now)
    if are_emptied or (equality.leaves_sealed and is_locked(now)):
        return tuple(parts)
    names = sorted(vectors.keys() | others.keys())
    unlike = [name for name in names if not equality.is_same(name, vectors.get(name), others.get(name))]
    parts |= dict.fromkeys(_told(_vector_of(name), name in vectors, name in others) for name in unlike)
    return tuple(parts)


def _told(part: str, is_copied: bool, is_live: bool) -> str:
    """The name of a part, and which of both has it where one has not."""
    return part if is_copied and is_live else f"{part} only in {'the copy' if is_copied else 'the live one'}"


def _vector_of(name: str) -> str:
    """What people call a vector."""
    return {"": "vector", KEYWORD_VECTOR: "keyword vector"}.get(name, "another vector")


def _same(one: object, other: object) -> bool:
    """Whether two values of JSON are the same, down to whether a number is whole."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def _bits(vector: Any) -> object:
    """A vector as the bits of its float32 numbers; of a sparse one with its indices, in their order."""
    if isinstance(vector, Mapping):
        pairs = sorted(zip(vector["indices"], vector["values"], strict=True))
        return tuple(index for index, _ in pairs), _bits([value for _, value in pairs])
    return struct.pack(f"<{len(vector)}f", *vector) if vector else None
