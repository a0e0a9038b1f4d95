"""Points of a live collection beside those of its copy: which are looked at, and whether they are the same.

A point is judged only where both say the same `rev` and `updatedAt`: what was written since has to differ.
"""

import hashlib
import heapq
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.domain.collection import KEYWORD_VECTOR
from agentmemory_operator.domain.records import DUE_KEY, ORDER_KEY, PAYLOAD_KEYS, TOMBSTONE_KEY
from agentmemory_operator.domain.verification import SHOWN, Check, Finding

Json = dict[str, Any]
PointId = str | int

SameVector = Callable[[str, Any, Any], bool]
"""Tells of a vector's name, and of the copy's and the live one's numbers, whether they are the same."""

SAMPLED = 256
"""Points that are compared bit for bit: one in a hundred damaged is met with a probability of 92 %."""

PROBES = 8
"""Exact searches."""

UNREVISED = frozenset({DUE_KEY, ORDER_KEY})
"""Keys that change without a new `rev`; see `services/windows.py`."""

_TOLERANCE = 1e-6
"""Relative and absolute, of scores: two machines sum up in another order."""


@dataclass(slots=True)
class Lots:
    """Draws points by lot, the same ones whatever the order: those whose hash with a seed is smallest.

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
            lot = -self._lot(id_)
            if len(self._heap) < self.size:
                heapq.heappush(self._heap, (lot, str(id_), id_))
            elif lot > self._heap[0][0]:
                heapq.heapreplace(self._heap, (lot, str(id_), id_))

    @property
    def drawn(self) -> list[PointId]:
        """Return the points drawn, sorted by lot."""
        return [id_ for _, _, id_ in sorted(self._heap, reverse=True)]

    def _lot(self, id_: PointId) -> int:
        digest = hashlib.blake2b(f"{self.seed}\x00{id_}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What became of the points drawn.

    Attributes:
        equal: unchanged, and the same in both.
        changed: how many were written or removed since.
        differing: unchanged by their revision, and yet not the same; with what differs.
    """

    equal: tuple[PointId, ...]
    changed: int
    differing: tuple[tuple[PointId, tuple[str, ...]], ...]


def is_unchanged(copy: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Tell whether two payloads are of the same revision; a point that carries none is never judged."""
    return "rev" in copy and all(copy.get(key) == live.get(key) for key in ("rev", "updatedAt"))


def is_bit_for_bit(name: str, one: Any, other: Any) -> bool:
    """Tell whether two vectors are the same down to the last bit."""
    return _bits(one) == _bits(other)


def compare_points(
    copies: Iterable[Json],
    lives: Iterable[Json],
    *,
    has_keyword: bool,
    is_same: SameVector = is_bit_for_bit,
    ignored: frozenset[str] = UNREVISED,
) -> Compared:
    """Compare points with payload and vectors.

    Args:
        copies: the points drawn, of the copy.
        lives: those of them that are still live.
        has_keyword: both collections have keyword vectors; else they are no part of it.
        ignored: keys that may differ.
    """
    live_by_id = {point["id"]: point for point in lives}
    equal: list[PointId] = []
    differing: list[tuple[PointId, tuple[str, ...]]] = []
    changed = 0
    for copy in copies:
        live = live_by_id.get(copy["id"])
        if live is None or not is_unchanged(copy["payload"] or {}, live["payload"] or {}):
            changed += 1
        elif parts := _differences(copy, live, has_keyword=has_keyword, is_same=is_same, ignored=ignored):
            differing.append((copy["id"], parts))
        else:
            equal.append(copy["id"])
    return Compared(equal=tuple(equal), changed=changed, differing=tuple(differing))


def judge_sample(compared: Compared, *, how: str = "bit for bit") -> Finding:
    """Judge the points drawn.

    Args:
        how: equality is meant.
    """
    total = len(compared.equal) + len(compared.differing)
    since = f", {compared.changed} were written since" if compared.changed else ""
    if compared.differing:
        parts = sorted({part for _, names in compared.differing for part in names})
        ids = tuple(str(id_) for id_, _ in compared.differing[:SHOWN])
        message = f"{len(compared.differing)} of {total} points differ in {', '.join(parts)}: {', '.join(ids)}{since}"
        return Finding(
            check=Check.SAMPLE,
            is_good=False,
            message=message,
            compared=total,
            differing=len(compared.differing),
            ids=ids,
        )
    if not total:
        return Finding(check=Check.SAMPLE, is_good=None, message=f"no point could be compared{since}")
    return Finding(check=Check.SAMPLE, is_good=True, message=f"{total} points equal {how}{since}", compared=total)


def probe_points(points: Sequence[Json], equal: Iterable[PointId], *, most: int = PROBES) -> list[Json]:
    """Return the points whose vectors are searched for: the first with a dense vector among those that are equal."""
    among = set(equal)
    fit = (
        point
        for point in points
        if point["id"] in among and TOMBSTONE_KEY not in point["payload"] and vectors_of(point).get("")
    )
    return [point for point, _ in zip(fit, range(most), strict=False)]


def probe_of(point: Json, ids: Sequence[PointId]) -> Json:
    """Return the exact search for a point's vector among points; every one of them is to come back with its score.

    Its user's, where it has one, so that the payload index takes part.
    """
    user = point["payload"].get("userId")
    owned = [{"key": "userId", "match": {"value": user}}] if isinstance(user, str) else []
    return {
        "query": vectors_of(point)[""],
        "filter": {"must": [{"has_id": list(ids)}, *owned]},
        "params": {"exact": True},
        "limit": len(ids),
        "with_payload": False,
        "with_vector": False,
    }


def score_differences(copy: Iterable[Json], live: Iterable[Json]) -> set[PointId]:
    """Return the ids whose scores differ, or that only one search has found."""
    copied, found = ({point["id"]: point["score"] for point in points} for points in (copy, live))
    both = copied.keys() & found.keys()
    off = {id_ for id_ in both if not _is_close(copied[id_], found[id_])}
    return off | (copied.keys() ^ found.keys())


def judge_probes(searches: int, differing: Sequence[PointId], *, refused: str = "") -> Finding:
    """Judge the searches.

    Args:
        differing: ids that differ in any of them, though they have not changed.
        refused: why the server makes no such search.
    """
    if refused:
        return Finding(check=Check.PROBES, is_good=None, message=f"no exact search: {refused}")
    if not searches:
        return Finding(check=Check.PROBES, is_good=None, message="nothing to search for")
    if differing:
        ids = tuple(map(str, differing[:SHOWN]))
        message = f"{len(differing)} points come out differently in exact searches: {', '.join(ids)}"
        return Finding(
            check=Check.PROBES,
            is_good=False,
            message=message,
            compared=searches,
            differing=len(differing),
            ids=ids,
        )
    return Finding(
        check=Check.PROBES, is_good=True, message=f"{searches} exact searches gave the same", compared=searches
    )


def vectors_of(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point's vectors by name; the nameless one's is empty."""
    vector = point.get("vector")
    if isinstance(vector, Mapping):
        return dict(vector)
    return {"": vector} if vector else {}


def _differences(
    copy: Json, live: Json, *, has_keyword: bool, is_same: SameVector, ignored: frozenset[str]
) -> tuple[str, ...]:
    """Return which parts of a point differ; keys of a payload that are none of ours are called `payload`."""
    ours = set(PAYLOAD_KEYS.values())
    before, now = copy["payload"] or {}, live["payload"] or {}
    keys = [key for key in sorted(before.keys() | now.keys()) if key not in ignored]
    off = [key for key in keys if not _same(before.get(key), now.get(key)) or (key in before) != (key in now)]
    parts = dict.fromkeys(key if key in ours else "payload" for key in off)
    vectors, others = vectors_of(copy), vectors_of(live)
    if not has_keyword:
        vectors.pop(KEYWORD_VECTOR, None)
        others.pop(KEYWORD_VECTOR, None)
    names = vectors.keys() | others.keys()
    is_off = not all(is_same(name, vectors.get(name), others.get(name)) for name in names)
    return (*parts, *(("vector",) if is_off else ()))


def _same(one: object, other: object) -> bool:
    """Tell whether two values of JSON are the same, down to whether a number is whole."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def _bits(vector: Any) -> object:
    """Return a vector as the bits of its float32 numbers; of a sparse one with its indices, in their order."""
    if isinstance(vector, Mapping):
        pairs = sorted(zip(vector["indices"], vector["values"], strict=True))
        return tuple(index for index, _ in pairs), _bits([value for _, value in pairs])
    return struct.pack(f"<{len(vector)}f", *vector) if vector else None


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
