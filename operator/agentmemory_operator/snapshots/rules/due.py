"""Decide when snapshots of an agent are due, how they are named, and whether the last ones are recent and verified.

The operator claims a time of the schedule by creating a MemorySnapshot named after it, so a second creation finds the
object of the first. Of several missed times, only the newest gets a snapshot.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from agentmemory_operator.snapshots.rules.facts import (
    AGENT_MEMORY_LABEL,
    RETENTION_LABEL,
    SLOT,
    UNDER_RETENTION,
    SnapshotFacts,
    is_restorable,
)
from agentmemory_operator.snapshots.rules.retention import RetentionRules
from agentmemory_operator.spec.cron import (
    MAX_SPREAD_MS,
    NEVER,
    last_time_ms,
    max_interval_ms,
    next_time_ms,
    schedule_fault,
    spread_ms,
    zone_fault,
)
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, AgentMemory
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason
from agentmemory_operator.spec.kinds.spec_rebuild import is_active
from agentmemory_operator.spec.kinds.spec_snapshot import SnapshotsSpec
from agentmemory_operator.spec.naming import append_suffix, label_of
from agentmemory_operator.spec.times import parse_time, render_second

Json = dict[str, Any]

FIELD = "spec.snapshots"
HOUR_MS = 3_600_000
# Default maximum age of the last verified snapshot: two intervals, because one snapshot may fail. It is at least an
# hour, because verification takes a large part of shorter intervals.
STALE_GAPS, MIN_STALE_MS = 2, HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """The `snapshots` block of an agent with defaults filled in.

    Attributes:
        schedule: Cron expression, or Never.
        rules: Retention rules; None without a valid block, so that nothing is removed.
        stale_ms: Age in milliseconds at which the last verified snapshot is too old; None without a schedule.
        verify: Field `verify` of the block: Full, Checksum, or the string None. None if the field is not set.
    """

    schedule: str = NEVER
    time_zone: str = "Etc/UTC"
    rules: RetentionRules | None = None
    stale_ms: int | None = None
    verify: str | None = None

    @property
    def has_schedule(self) -> bool:
        """True unless `schedule` is Never, as it also is without a valid `snapshots` block."""
        return self.schedule != NEVER


def read_settings(spec: SnapshotsSpec | None) -> SnapshotSettings:
    """Return the settings of a `snapshots` block, or of an agent without one, with defaults filled in.

    A block with an invalid schedule or time zone counts as no schedule and no retention; only its `verify` is kept.
    """
    if spec is None:
        return SnapshotSettings()
    zone = spec.time_zone or "Etc/UTC"
    if snapshots_fault(spec):
        return SnapshotSettings(verify=spec.verify)
    schedule = spec.schedule or NEVER
    retention = spec.retention.model_dump(exclude_none=True) if spec.retention else {}
    return SnapshotSettings(
        schedule=schedule,
        time_zone=zone,
        rules=RetentionRules(**retention, time_zone=zone),
        stale_ms=_stale_ms(spec, schedule, zone),
        verify=spec.verify,
    )


def _stale_ms(spec: SnapshotsSpec, schedule: str, zone: str) -> int | None:
    if schedule == NEVER:
        return None
    if spec.stale_after_hours is not None:
        return spec.stale_after_hours * HOUR_MS
    return max(STALE_GAPS * (max_interval_ms(schedule, zone) or 0), MIN_STALE_MS)


def snapshots_fault(spec: SnapshotsSpec | None) -> tuple[str, str] | None:
    """Return the first invalid field of a `snapshots` block, as its path in the object, and its error; else None.

    While a field is invalid, no snapshot is created on schedule or removed.
    """
    if spec is None:
        return None
    if spec.schedule and (fault := schedule_fault(spec.schedule)):
        return f"{FIELD}.schedule", fault
    if spec.time_zone and (fault := zone_fault(spec.time_zone)):
        return f"{FIELD}.timeZone", fault
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DueSnapshot:
    """A snapshot to be requested.

    Attributes:
        slot_ms: Time of the schedule, Unix milliseconds; None if the snapshot has another cause.
        due_ms: Time at which to create the object, Unix milliseconds: for a scheduled snapshot `slot_ms` plus an offset
            that depends on the agent, so that not all agents start at the same time.
        cause: Cause for users; empty for a scheduled snapshot.
    """

    name: str
    slot_ms: int | None
    due_ms: int
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOverview:
    """State of an agent's snapshots at one time, from which all decisions of this module are made.

    Attributes:
        figures: Settings of the agent's `snapshots` block.
        snapshots: Snapshots of the agent, in any order.
        slot_ms: Last time of the schedule that was claimed, Unix milliseconds; 0 before the first.
        server_version: Qdrant version of the server; None if unknown.
        now_ms: The time of this state, Unix milliseconds.
    """

    memory: AgentMemory
    figures: SnapshotSettings
    snapshots: Sequence[SnapshotFacts]
    slot_ms: int
    server_version: str | None
    now_ms: int

    @property
    def completed(self) -> list[SnapshotFacts]:
        """Completed snapshots, successful or failed, newest first.

        Imports and snapshots that are being removed are excluded.
        """
        ended = (item for item in self.snapshots if item.is_ended and not item.is_removing and not item.is_imported)
        return sorted(ended, key=lambda snapshot: (snapshot.started_ms, snapshot.name), reverse=True)

    @property
    def verified(self) -> list[SnapshotFacts]:
        """Verified snapshots, newest first. If the agent sets `verify: None`, unverified ones are included."""
        is_trusted = self.figures.verify == "None"
        return [
            snapshot
            for snapshot in self.completed
            if snapshot.has_succeeded and (snapshot.is_verified or (is_trusted and snapshot.is_verified is None))
        ]

    @property
    def readable(self) -> list[SnapshotFacts]:
        """Verified snapshots that the running server can restore, or may if a version is unknown; newest first."""
        return [snapshot for snapshot in self.verified if is_restorable(snapshot, self.server_version) is not False]

    @property
    def usable(self) -> list[SnapshotFacts]:
        """Readable snapshots that match the agent's current collection (`fits`), newest first."""
        return [snapshot for snapshot in self.readable if self.fits(snapshot)]

    @property
    def rebuilt_ms(self) -> int:
        """Time at which a rebuild made the current collection live, Unix milliseconds; 0 if none did."""
        rebuilt_time = (self.memory.status.get("collection") or {}).get("rebuiltTime")
        return parse_time(rebuilt_time) if rebuilt_time else 0

    def fits(self, snapshot: SnapshotFacts) -> bool:
        """Return whether a snapshot was created from the live collection, or started after the last rebuild's move."""
        live = self.memory.reported_physical
        return snapshot.started_ms >= self.rebuilt_ms or snapshot.physical == live

    @property
    def is_running(self) -> bool:
        """True if a scheduled snapshot is in progress. No other snapshot is requested until it ends."""
        return any(item.is_under_retention and not item.is_ended and not item.is_removing for item in self.snapshots)


def next_scheduled(overview: SnapshotOverview) -> DueSnapshot | None:
    """Return the next scheduled snapshot, or None if the schedule has no further time.

    If times of the schedule have passed since the last claimed one, the newest of them counts.
    """
    figures, metadata = overview.figures, overview.memory.metadata
    created_ms = int(datetime.fromisoformat(metadata.creation_timestamp).timestamp() * 1000)
    since_ms = max(created_ms, overview.slot_ms)
    slot_ms = last_time_ms(figures.schedule, figures.time_zone, until_ms=overview.now_ms)
    if slot_ms is None or slot_ms <= since_ms:
        after_ms = max(since_ms, overview.now_ms)
        slot_ms = next_time_ms(figures.schedule, figures.time_zone, after_ms=after_ms)
    if slot_ms is None:
        return None
    offset_ms = spread_ms(overview.memory.slug, figures.schedule, figures.time_zone, at_ms=slot_ms)
    return DueSnapshot(name=slot_name(metadata.name, slot_ms), slot_ms=slot_ms, due_ms=slot_ms + offset_ms)


def due_after_upgrade(overview: SnapshotOverview, *, since_ms: int) -> DueSnapshot | None:
    """Return the snapshot that a new Qdrant version requires, or None.

    It is required if there is a schedule and there are verified snapshots, but the running version can restore none of
    them. While the object requested for a version exists, no other is requested for that version.

    Args:
        since_ms: Time at which the version was first observed, Unix milliseconds.
    """
    if (
        overview.server_version is None
        or not overview.figures.has_schedule
        or not overview.verified
        or overview.readable
    ):
        return None
    name = append_suffix(overview.memory.metadata.name, f"-qdrant-{_name_part(overview.server_version)}")
    if any(snapshot.name == name for snapshot in overview.snapshots):
        return None
    offset_ms = zlib.crc32(overview.memory.slug.encode()) % (MAX_SPREAD_MS + 1)
    cause = f"Qdrant now runs {overview.server_version}, which cannot restore the existing snapshots"
    return DueSnapshot(name=name, slot_ms=None, due_ms=since_ms + offset_ms, cause=cause)


def due_after_rebuild(overview: SnapshotOverview) -> DueSnapshot | None:
    """Return the snapshot that a completed rebuild requires, or None.

    It is required if there is a schedule and there are verified snapshots, but none of the current collection that the
    server can restore. It is not required while a snapshot that `fits` is in progress, or if the object for this
    rebuild exists.
    """
    memory = overview.memory
    is_ended = not is_active(memory.status.get("rebuild") or {})
    if not (overview.rebuilt_ms and is_ended and overview.figures.has_schedule and overview.verified):
        return None
    rebuilt_time = datetime.fromtimestamp(overview.rebuilt_ms / 1000, UTC)
    name = append_suffix(memory.metadata.name, f"-rebuilt-{rebuilt_time:%Y%m%dt%H%M%Sz}")
    if overview.usable or any(
        item.name == name or (not item.is_ended and overview.fits(item)) for item in overview.snapshots
    ):
        return None
    cause = "the collection was rebuilt, and existing snapshots do not match it"
    return DueSnapshot(name=name, slot_ms=None, due_ms=overview.rebuilt_ms, cause=cause)


def slot_name(memory_name: str, slot_ms: int) -> str:
    """Return the name of the MemorySnapshot for a time of the schedule. Every process derives the same name."""
    slot_time = datetime.fromtimestamp(slot_ms / 1000, UTC)
    return append_suffix(memory_name, f"-{slot_time:%Y%m%dt%H%Mz}")


def _name_part(version: str) -> str:
    """Return a version with only characters that are valid in an object name."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in version.lower()).strip("-")


def build_manifest(claim: DueSnapshot, overview: SnapshotOverview) -> Json:
    """Build the MemorySnapshot that claims a due snapshot.

    The object has no owner reference, because a backup must survive the deletion of the agent and a prune of its
    manifests.
    """
    metadata = overview.memory.metadata
    annotations = {SLOT: render_second(claim.slot_ms / 1000)} if claim.slot_ms is not None else {}
    spec: Json = {"agentMemoryRef": {"name": metadata.name}}
    return {
        "apiVersion": API_VERSION,
        "kind": "MemorySnapshot",
        "metadata": {
            "name": claim.name,
            "namespace": metadata.namespace,
            "labels": {AGENT_MEMORY_LABEL: label_of(metadata.name), RETENTION_LABEL: UNDER_RETENTION},
            "annotations": annotations,
        },
        "spec": spec | ({"verify": overview.figures.verify} if overview.figures.verify else {}),
    }


def last_snapshot_status(overview: SnapshotOverview) -> Json:
    """Return `status.lastSnapshot`: the newest of `completed` that succeeded; an empty dict if there is none."""
    for snapshot in overview.completed:
        if snapshot.has_succeeded:
            fields: Json = {
                "name": snapshot.name,
                "time": render_second(snapshot.started_ms / 1000),
                "verified": bool(snapshot.is_verified),
            }
            return fields | ({"qdrantVersion": snapshot.version} if snapshot.version else {})
    return {}


def stale_at_ms(overview: SnapshotOverview) -> int | None:
    """Return the time at which the last usable snapshot becomes too old, Unix milliseconds.

    None without a schedule or a usable snapshot.
    """
    stale_ms, usable = overview.figures.stale_ms, overview.usable
    return usable[0].started_ms + stale_ms if stale_ms is not None and usable else None


def states_of(overview: SnapshotOverview) -> list[ConditionState]:
    """Return the condition SnapshotFresh if there is a schedule, and SnapshotVerified if a snapshot has completed."""
    freshness = [_fresh(overview)] if overview.figures.stale_ms is not None else []
    return freshness + [_verified(snapshot) for snapshot in overview.completed[:1]]


def _fresh(outlook: SnapshotOverview) -> ConditionState:
    verified, usable, stale_ms = outlook.verified, outlook.usable, outlook.figures.stale_ms or 0
    hours = f"{stale_ms / HOUR_MS:g} h"
    if usable and usable[0].started_ms + stale_ms > outlook.now_ms:
        message = f"{_dated(usable[0])} is verified; it is overdue after {hours}"
        return ConditionState("SnapshotFresh", True, Reason.SNAPSHOT_RECENT, message)
    if outlook.readable and not usable:
        message = (
            f"the collection was rebuilt at {render_second(outlook.rebuilt_ms / 1000)}: the last verified snapshot,"
            f" {_dated(outlook.readable[0])}, is of the replaced collection and no longer matches; a new one is "
            f"taken at once{_failure(outlook)}"
        )
        return ConditionState("SnapshotFresh", False, Reason.COLLECTION_REBUILT, message)
    if verified and not usable:
        message = (
            f"the server runs Qdrant {outlook.server_version}, which cannot restore snapshots of {verified[0].version}:"
            f" the last verified snapshot is {_dated(verified[0])}; a new one is taken at once{_failure(outlook)}"
        )
        return ConditionState("SnapshotFresh", False, Reason.SERVER_VERSION_CHANGED, message)
    if usable:
        message = f"the last verified snapshot is {_dated(usable[0])}, which is older than {hours}{_failure(outlook)}"
        return ConditionState("SnapshotFresh", False, Reason.SNAPSHOT_OVERDUE, message)
    return _none_yet(outlook, hours)


def _none_yet(outlook: SnapshotOverview, hours: str) -> ConditionState:
    created_ms = int(datetime.fromisoformat(outlook.memory.metadata.creation_timestamp).timestamp() * 1000)
    is_young = outlook.now_ms < created_ms + (outlook.figures.stale_ms or 0)
    if not outlook.completed and (is_young or outlook.is_running):
        return ConditionState("SnapshotFresh", None, Reason.NO_SNAPSHOT_YET, "waiting for the first scheduled snapshot")
    message = f"no snapshot was verified within {hours}, or the last one failed{_failure(outlook)}"
    return ConditionState("SnapshotFresh", False, Reason.SNAPSHOT_OVERDUE, message)


def _failure(outlook: SnapshotOverview) -> str:
    """Return the error of the last completed snapshot as the end of a message, or "" if there is no error."""
    for snapshot in outlook.completed[:1]:
        if not snapshot.has_succeeded or snapshot.is_verified is False:
            return f". {snapshot.name} failed: {snapshot.message}"
    return ""


def _verified(last: SnapshotFacts) -> ConditionState:
    if last.is_verified is False:
        return ConditionState(
            "SnapshotVerified", False, Reason.SNAPSHOT_BAD, f"{_dated(last)} failed verification: {last.message}"
        )
    if not last.has_succeeded:
        return ConditionState("SnapshotVerified", False, Reason.SNAPSHOT_FAILED, f"{last.name} failed: {last.message}")
    if last.is_verified is None:
        return ConditionState(
            "SnapshotVerified", None, Reason.NOT_VERIFIED, f"{_dated(last)} was taken but not verified"
        )
    return ConditionState("SnapshotVerified", True, Reason.SNAPSHOT_PROVEN, f"{_dated(last)} is verified")


def _dated(snapshot: SnapshotFacts) -> str:
    return f"{snapshot.name} of {render_second(snapshot.started_ms / 1000)}"
