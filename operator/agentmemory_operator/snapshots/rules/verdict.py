"""Whether a restored copy is what its snapshot was made of: what is compared, and what comes of it.

| check | good where |
|---|---|
| Checksum | the bytes have the SHA-256 that was recorded, and that the server tells |
| Restore | the server makes a collection of them |
| Owner | the copy's marker names the object that the snapshot was made for |
| Configuration | its settings have the hash that was recorded, or are those of the live collection |
| Indexes | so are its payload indexes |
| Count | as many memories as before, as after, or between; deletions meanwhile widen that by their number |
| Missing | every live point that was last written before the snapshot is in it |
| Sample | chosen points, the same in both by revision, are equal bit for bit |
| Probes | exact searches among those points give the same points and scores in both |

Writers go on meanwhile, so a point counts only where nobody has written it since. Where the live collection is gone,
what was recorded is all there is to compare with, and the verdict says so.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from agentmemory_operator.collections.rules.collection import Collection, Marker, figures_in
from agentmemory_operator.collections.rules.drift import PATHS
from agentmemory_operator.memories.rules.comparison import Json, PointId, vectors_of
from agentmemory_operator.memories.rules.findings import (
    SHOWN,
    VERIFIED,
    Check,
    CheckFinding,
    first_of,
    off_by,
    points_differ,
)
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason

SURELY_BEFORE_MS = 300_000
"""What bears a time so long before a snapshot was begun was written before it, however far the clocks of two machines
differ and however long a write is on its way. What bears a later one may have been written at any time."""

PROBES = 8
"""Exact searches."""

SHA_SHOWN = 12
"""Hex digits of a SHA-256 that a message shows."""

UNVERIFIED = ConditionState(VERIFIED, None, Reason.NOT_VERIFIED, "not verified: verify is None")
"""The condition of a snapshot that nobody verifies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What was noted when the snapshot was made; None is what nobody noted.

    Attributes:
        begun_ms: Unix milliseconds.
        before, after: exact numbers of memories, tombstones left out.
        deleted: memories that were deleted between these two counts.
        config_hash: see `hash_configuration`.
    """

    begun_ms: int | None = None
    before: int | None = None
    after: int | None = None
    deleted: int | None = None
    config_hash: str | None = None


def hash_configuration(collection: Collection) -> str:
    """The first 16 hex digits of a SHA-256 over everything that a snapshot carries of a collection's settings.

    The marker does not count: it names a generation, and a restore writes it anew.
    """
    content = json.dumps(_settings(collection), sort_keys=True, default=asdict)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def compare_checksum(computed: str, *, recorded: str | None, told: str | None, size: int) -> CheckFinding:
    """Compare the SHA-256 of the bytes that were read.

    Args:
        recorded: when the snapshot was made.
        told: by the server now.
        size: bytes that were read.
    """
    others = {name: value for name, value in (("recorded", recorded), ("Qdrant's", told)) if value}
    off = [f"{name} is {value[:SHA_SHOWN]}" for name, value in others.items() if value != computed]
    if off:
        message = f"SHA-256 of its {size} bytes is {computed[:SHA_SHOWN]}, {', '.join(off)}"
        return CheckFinding(Check.CHECKSUM, False, message, compared=size, differing=len(off))
    if not others:
        return CheckFinding(Check.CHECKSUM, None, "no SHA-256 to compare with")
    message = f"{size} bytes read, SHA-256 as {' and '.join(others)}"
    return CheckFinding(Check.CHECKSUM, True, message, compared=size)


def compare_owner(copy: Marker | None, owner: Marker | None) -> CheckFinding:
    """Compare whose the copy says it is with whose the snapshot was to be."""
    if copy is None or owner is None:
        return CheckFinding(Check.OWNER, None, "it has no ownership marker")
    if copy.is_same_object(owner):
        return CheckFinding(Check.OWNER, True, "it belongs to the agent", compared=1)
    message = f"it is a snapshot of {copy.namespace}/{copy.name}, not of {owner.namespace}/{owner.name}"
    return CheckFinding(Check.OWNER, False, message, compared=1, differing=1)


def compare_configuration(
    copy: Collection, live: Collection | None, recorded: str | None
) -> tuple[CheckFinding, CheckFinding]:
    """Compare settings and payload indexes; a live collection that was changed since has to differ.

    Args:
        recorded: `hash_configuration` of the collection that the snapshot was made of.
    """
    if hash_configuration(copy) == recorded:
        return (
            CheckFinding(Check.CONFIGURATION, True, "settings match the record", compared=len(COMPARED)),
            CheckFinding(Check.INDEXES, True, "indexes match the record", compared=len(copy.indexes)),
        )
    if live is None:
        is_good = None if recorded is None else False
        message = (
            "no settings were recorded" if recorded is None else "the hash of its settings differs from the record"
        )
        return (
            CheckFinding(Check.CONFIGURATION, is_good, message),
            CheckFinding(Check.INDEXES, None, "no indexes to compare with"),
        )
    has_changed = recorded is not None and hash_configuration(live) != recorded
    return _compared_settings(copy, live, has_changed=has_changed), _compared_indexes(copy, live)


def _compared_settings(copy: Collection, live: Collection, *, has_changed: bool) -> CheckFinding:
    """Compare figure by figure.

    Args:
        has_changed: the live collection is not what was recorded either, so an equal copy is not it.
    """
    found, expected = figures_in(copy), figures_in(live)
    differing = [name for name in COMPARED if found[name] != expected[name]]
    shown = ", ".join(
        f"{PATHS.get(name, name)} {found[name]} instead of {expected[name]}" for name in differing[:SHOWN]
    )
    if not differing and not has_changed:
        return CheckFinding(Check.CONFIGURATION, True, "settings match the live collection", compared=len(COMPARED))
    told = f"settings differ from the live collection: {shown}" if differing else "settings differ from the record"
    return CheckFinding(Check.CONFIGURATION, False, told, compared=len(COMPARED), differing=len(differing))


def _compared_indexes(copy: Collection, live: Collection) -> CheckFinding:
    differing = sorted({field for field, _ in set(copy.indexes) ^ set(live.indexes)})
    if not differing:
        return CheckFinding(Check.INDEXES, True, "indexes match the live collection", compared=len(live.indexes))
    message = f"indexes differ from the live collection: {first_of(differing)}"
    return CheckFinding(Check.INDEXES, False, message, compared=len(live.indexes), differing=len(differing))


def compare_count(copied: int, recorded: Recorded, deleted_since: int | None) -> CheckFinding:
    """Compare the number of memories; what was deleted while it was made left tombstones, which are counted.

    Args:
        copied: memories of the copy, tombstones left out.
        deleted_since: as far as the live collection can tell now, for want of a record; None where it cannot.
    """
    before, after = recorded.before, recorded.after
    if before is None or after is None:
        return CheckFinding(Check.COUNT, None, f"{copied} memories; no count was recorded with it")
    widened = (deleted_since or 0) if recorded.deleted is None else recorded.deleted
    when = "since" if recorded.deleted is None else "meanwhile"
    deletions = f", {widened} deleted {when}" if widened else ""
    message = f"{copied} memories, {before} before and {after} after it was made{deletions}"
    off = off_by(copied, before, after, changed=widened)
    return CheckFinding(Check.COUNT, not off, message, compared=copied, differing=off)


def was_there(updated_at: object, begun_ms: int | None) -> bool:
    """Whether a live point has not been written since well before the snapshot, and so has to be in it."""
    is_number = isinstance(updated_at, int) and not isinstance(updated_at, bool)
    return begun_ms is not None and is_number and updated_at < begun_ms - SURELY_BEFORE_MS  # type: ignore[operator]


def probes_of(points: Sequence[Json], equal: Iterable[PointId], *, most: int = PROBES) -> list[Json]:
    """The searches for the first vectors among points that are equal in both; each has to find all of them.

    No tombstone is among them: one that has a vector in one of both would be found there alone.
    """
    among = set(equal)
    living = [point for point in points if point["id"] in among and TOMBSTONE_KEY not in point["payload"]]
    ids = [point["id"] for point in living]
    return [probe_of(point, ids) for point in living if vectors_of(point).get("")][:most]


def probe_of(point: Json, ids: Sequence[PointId]) -> Json:
    """The exact search for a point's vector among points; every one of them is to come back with its score.

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


def judge_probes(searches: int, differing: Sequence[PointId], *, refused: str = "") -> CheckFinding:
    """Judge the searches.

    Args:
        differing: ids that differ in any of them, though they have not changed.
        refused: why the server makes no such search.
    """
    if refused:
        return CheckFinding(Check.PROBES, None, f"no exact search: {refused}")
    if not searches:
        return CheckFinding(Check.PROBES, None, "nothing to search for")
    if differing:
        told = first_of(map(str, differing))
        message = f"{len(differing)} points rank differently in exact searches: {told}"
        return points_differ(Check.PROBES, differing, message, compared=searches)
    return CheckFinding(Check.PROBES, True, f"{searches} exact searches returned the same results", compared=searches)


def _settings(collection: Collection) -> dict[str, object]:
    values = figures_in(collection)
    kind = type(collection.quantization).__name__ if collection.quantization else None
    return {name: values[name] for name in (*COMPARED, "indexes")} | {"quantization kind": kind}


COMPARED = tuple(name for name in figures_in(Collection(size=0, distance="")) if name not in ("indexes", "marker"))
"""The settings that have to be equal."""
