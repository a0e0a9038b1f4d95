"""Verification of a restored copy of a snapshot: what is compared, and the finding of each check.

| check | passes if |
|---|---|
| Checksum | the SHA-256 of the file equals the recorded one, and the server's |
| Restore | the server restores a collection from the file |
| Owner | the copy's marker names the object that the snapshot was created for |
| Configuration | the hash of its settings equals the recorded one, else its settings equal the live collection's |
| Indexes | the same for its payload indexes |
| Count | the number of memories is between the counts before and after; deletions in between widen the range |
| Missing | every live point that was last written before the snapshot is in the copy |
| Sample | sampled points with the same revision in both are equal bit for bit |
| Probes | exact searches among those points return the same points and scores in both |

Settings that equal the live collection's do not count if the live collection differs from the record too. Writers
continue during the comparison, so a point is compared only if it has not been written since the snapshot.

In three cases the copy is compared with the record only, and the verdict contains a note: there is no live collection,
another snapshot was restored into it since, or a rebuild was completing when the snapshot started.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from agentmemory_operator.collections.rules.collection import Collection, Marker, settings_by_name
from agentmemory_operator.collections.rules.drift import SPEC_PATHS
from agentmemory_operator.memories.rules.comparison import Json, PointId, vectors_of
from agentmemory_operator.memories.rules.findings import (
    MAX_EXAMPLES,
    VERIFIED_CONDITION,
    Check,
    CheckFinding,
    distance_from_range,
    list_examples,
    points_differ_finding,
)
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason

CLOCK_MARGIN_MS = 300_000
"""Margin for clock differences between machines and for writes in transit.

A point whose time is more than this before the start of a snapshot was written before it. A point with a later time may
have been written at any time.
"""

MAX_PROBES = 8
"""Maximum number of points that one verification searches for, each in both collections."""

MAX_SHA_DIGITS = 12
"""Number of hex digits of a SHA-256 in a message."""

UNVERIFIED = ConditionState(VERIFIED_CONDITION, None, Reason.NOT_VERIFIED, "not verified: verify is None")
"""Condition Verified of a snapshot with `verify: None`; its status is Unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord:
    """Facts that were recorded when the snapshot was created. None if a fact was not recorded.

    Attributes:
        started_ms: Start time in Unix milliseconds.
        before, after: Exact number of memories before and after, without tombstones.
        deleted: Memories that were deleted between these two counts.
        config_hashes: See `hash_configuration`. Two if the settings changed during the snapshot: its file has either.
            Empty if none was recorded.
    """

    started_ms: int | None = None
    before: int | None = None
    after: int | None = None
    deleted: int | None = None
    config_hashes: tuple[str, ...] = ()


def hash_configuration(collection: Collection) -> str:
    """Return the first 16 hex digits of a SHA-256 over all settings that a snapshot contains.

    The marker is excluded, because it contains a generation, which a restore changes.
    """
    content = json.dumps(_settings(collection), sort_keys=True, default=asdict)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def compare_checksum(computed: str, *, recorded: str | None, listed: str | None, size: int) -> CheckFinding:
    """Compare the SHA-256 of the content that was read with the recorded and the listed one; return the finding.

    If neither is known, the finding is neither good nor bad.

    Args:
        computed: SHA-256 of the content that was read, hex.
        recorded: SHA-256 from the creation of the snapshot; None if unknown.
        listed: SHA-256 that the server lists now; None if it lists none.
        size: Number of bytes read.
    """
    expected = {name: value for name, value in (("recorded", recorded), ("Qdrant's", listed)) if value}
    mismatches = [f"{name} is {value[:MAX_SHA_DIGITS]}" for name, value in expected.items() if value != computed]
    if mismatches:
        message = f"SHA-256 of its {size} bytes is {computed[:MAX_SHA_DIGITS]}, {', '.join(mismatches)}"
        return CheckFinding(Check.CHECKSUM, False, message, compared=size, differing=len(mismatches))
    if not expected:
        return CheckFinding(Check.CHECKSUM, None, "no SHA-256 to compare with")
    message = f"{size} bytes read, SHA-256 as {' and '.join(expected)}"
    return CheckFinding(Check.CHECKSUM, True, message, compared=size)


def compare_owner(copy: Marker | None, owner: Marker | None) -> CheckFinding:
    """Compare the owner in the copy's marker with the expected owner; return the finding.

    If one of the markers is None, the finding is neither good nor bad.
    """
    if copy is None or owner is None:
        return CheckFinding(Check.OWNER, None, "it has no ownership marker")
    if copy.is_same_object(owner):
        return CheckFinding(Check.OWNER, True, "it belongs to the agent", compared=1)
    message = f"it is a snapshot of {copy.namespace}/{copy.name}, not of {owner.namespace}/{owner.name}"
    return CheckFinding(Check.OWNER, False, message, compared=1, differing=1)


def compare_configuration(
    copy: Collection, live: Collection | None, recorded: Sequence[str]
) -> tuple[CheckFinding, CheckFinding]:
    """Return the findings for settings and payload indexes of a restored copy.

    They are good if the hash of the copy is recorded. Otherwise they are compared with the live collection. If the hash
    of the live collection is not recorded either, it was changed since: then the settings never count as good. Without
    a live collection, the settings are bad if any hash was recorded; all other findings are neither good nor bad.

    Args:
        live: Settings of the live collection; None if there is none to compare with.
        recorded: `SnapshotRecord.config_hashes`. Empty if none was recorded.
    """
    if hash_configuration(copy) in recorded:
        return (
            CheckFinding(Check.CONFIGURATION, True, "settings match the record", compared=len(COMPARED_SETTINGS)),
            CheckFinding(Check.INDEXES, True, "indexes match the record", compared=len(copy.indexes)),
        )
    if live is None:
        is_good = False if recorded else None
        message = "the hash of its settings differs from the record" if recorded else "no settings were recorded"
        return (
            CheckFinding(Check.CONFIGURATION, is_good, message),
            CheckFinding(Check.INDEXES, None, "no indexes to compare with"),
        )
    has_changed = bool(recorded) and hash_configuration(live) not in recorded
    return _compare_settings(copy, live, has_changed=has_changed), _compare_indexes(copy, live)


def _compare_settings(copy: Collection, live: Collection, *, has_changed: bool) -> CheckFinding:
    """Compare the settings except indexes one by one.

    Args:
        has_changed: True if the live collection differs from the record too. An equal copy then fails.
    """
    found, expected = settings_by_name(copy), settings_by_name(live)
    differing = [name for name in COMPARED_SETTINGS if found[name] != expected[name]]
    described = ", ".join(
        f"{SPEC_PATHS.get(name, name)} {found[name]} instead of {expected[name]}" for name in differing[:MAX_EXAMPLES]
    )
    if not differing and not has_changed:
        return CheckFinding(
            Check.CONFIGURATION, True, "settings match the live collection", compared=len(COMPARED_SETTINGS)
        )
    text = f"settings differ from the live collection: {described}" if differing else "settings differ from the record"
    return CheckFinding(Check.CONFIGURATION, False, text, compared=len(COMPARED_SETTINGS), differing=len(differing))


def _compare_indexes(copy: Collection, live: Collection) -> CheckFinding:
    differing = sorted({field for field, _ in set(copy.indexes) ^ set(live.indexes)})
    if not differing:
        return CheckFinding(Check.INDEXES, True, "indexes match the live collection", compared=len(live.indexes))
    message = f"indexes differ from the live collection: {list_examples(differing)}"
    return CheckFinding(Check.INDEXES, False, message, compared=len(live.indexes), differing=len(differing))


def compare_count(copied: int, recorded: SnapshotRecord, deleted_since: int | None) -> CheckFinding:
    """Check that the copy's number of memories is in the range of the counts before and after the snapshot.

    Each memory that was deleted during the snapshot widens the range by one at both ends. If one of the two counts was
    not recorded, the finding is neither good nor bad.

    Args:
        copied: Memories of the copy, without tombstones.
        deleted_since: Estimate from the live collection, used if no number of deletions was recorded. None if unknown.
    """
    before, after = recorded.before, recorded.after
    if before is None or after is None:
        return CheckFinding(Check.COUNT, None, f"{copied} memories; no count was recorded with it")
    deletions_count = (deleted_since or 0) if recorded.deleted is None else recorded.deleted
    period = "since" if recorded.deleted is None else "meanwhile"
    note = f", {deletions_count} deleted {period}" if deletions_count else ""
    message = f"{copied} memories, {before} before and {after} after it was made{note}"
    excess = distance_from_range(copied, before, after, changed=deletions_count)
    return CheckFinding(Check.COUNT, not excess, message, compared=copied, differing=excess)


def must_contain(updated_at: object, started_ms: int | None) -> bool:
    """Return whether a snapshot must contain a live point, because its last write was well before the start.

    Args:
        updated_at: Time of the last write from the payload; False is returned if it is no number.
        started_ms: Start of the snapshot, Unix milliseconds. None returns False.
    """
    is_number = isinstance(updated_at, int) and not isinstance(updated_at, bool)
    return started_ms is not None and is_number and updated_at < started_ms - CLOCK_MARGIN_MS  # type: ignore[operator]


def build_probes(points: Sequence[Json], equal: Iterable[PointId], *, max_probes: int = MAX_PROBES) -> list[Json]:
    """Build exact searches among the points that are equal in both collections.

    Each search is for the vector of one of the first `max_probes` points, and must return all points of the same user.
    Points without a vector are not searched for. Tombstones are excluded, because their vectors may exist in only one
    of the collections.
    """
    equal_ids = set(equal)
    memories = [point for point in points if point["id"] in equal_ids and TOMBSTONE_KEY not in point["payload"]]
    ids = [point["id"] for point in memories]
    return [build_probe(point, ids) for point in memories if vectors_of(point).get("")][:max_probes]


def build_probe(point: Json, ids: Sequence[PointId]) -> Json:
    """Build the exact search for a point's vector among the points `ids`, which returns them with their scores.

    If the point has a user, the search is limited to points of that user, which uses the payload index.
    """
    user = point["payload"].get("userId")
    user_filter = [{"key": "userId", "match": {"value": user}}] if isinstance(user, str) else []
    return {
        "query": vectors_of(point)[""],
        "filter": {"must": [{"has_id": list(ids)}, *user_filter]},
        "params": {"exact": True},
        "limit": len(ids),
        "with_payload": False,
        "with_vector": False,
    }


def judge_probes(searches: int, differing: Sequence[PointId], *, refused: str = "") -> CheckFinding:
    """Return the finding of the exact searches. It is neither good nor bad if there were none, or Qdrant rejects them.

    Args:
        searches: Number of searches in each collection.
        differing: Ids of unchanged points that differ in any search.
        refused: Error message of a server that rejects such searches; "" if it accepts them.
    """
    if refused:
        return CheckFinding(Check.PROBES, None, f"no exact search: {refused}")
    if not searches:
        return CheckFinding(Check.PROBES, None, "nothing to search for")
    if differing:
        examples = list_examples(map(str, differing))
        message = f"{len(differing)} points rank differently in exact searches: {examples}"
        return points_differ_finding(Check.PROBES, differing, message, compared=searches)
    return CheckFinding(Check.PROBES, True, f"{searches} exact searches returned the same results", compared=searches)


def _settings(collection: Collection) -> dict[str, object]:
    values = settings_by_name(collection)
    kind = type(collection.quantization).__name__ if collection.quantization else None
    return {name: values[name] for name in (*COMPARED_SETTINGS, "indexes")} | {"quantization kind": kind}


COMPARED_SETTINGS = tuple(
    name for name in settings_by_name(Collection(size=0, distance="")) if name not in ("indexes", "marker")
)
"""Names of the settings that must be equal: all except `indexes` and `marker`."""
