"""When snapshots of an agent are due, what they are called, and whether the last ones are fresh and proven.

A time of the schedule is claimed by creating an object that is named after it: whoever comes second finds it there. Of
any number of missed times the newest alone is made up for.
"""

import hashlib
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
    Taken,
    is_restorable,
)
from agentmemory_operator.snapshots.rules.retention import RetentionRules
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, AgentMemory
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason
from agentmemory_operator.spec.kinds.rebuild import is_under_way
from agentmemory_operator.spec.kinds.spec_snapshot import SnapshotsSpec
from agentmemory_operator.spec.schedule import (
    LARGEST_SPREAD_MS,
    NEVER,
    last_time_ms,
    longest_gap_ms,
    next_time_ms,
    schedule_fault,
    spread_ms,
    zone_fault,
)
from agentmemory_operator.spec.times import parse_time, render_second

Json = dict[str, Any]

FIELD = "spec.snapshots"
HOUR_MS = 3_600_000
# One snapshot may fail, the next one not; and below an hour the proof itself takes its share.
STALE_GAPS, LEAST_STALE_MS = 2, HOUR_MS

MAX_NAME, MAX_LABEL = 253, 63


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFigures:
    """An agent's `snapshots` block with the defaults filled in.

    Attributes:
        schedule: cron, or Never.
        rules: of retention; None where there is no block, and nothing is removed.
        stale_ms: the age from which the last proven snapshot is too old; None without a schedule.
        verify: as the block says, None where it does not.
    """

    schedule: str = NEVER
    time_zone: str = "Etc/UTC"
    rules: RetentionRules | None = None
    stale_ms: int | None = None
    verify: str | None = None

    @property
    def is_followed(self) -> bool:
        """Whether snapshots are made by a schedule."""
        return self.schedule != NEVER


def figures_of(spec: SnapshotsSpec | None) -> SnapshotFigures:
    """The figures in force; a schedule that cannot be followed is none."""
    if spec is None:
        return SnapshotFigures()
    zone = spec.time_zone or "Etc/UTC"
    if snapshots_fault(spec):
        return SnapshotFigures(verify=spec.verify)
    schedule = spec.schedule or NEVER
    given = spec.retention.model_dump(exclude_none=True) if spec.retention else {}
    return SnapshotFigures(
        schedule=schedule,
        time_zone=zone,
        rules=RetentionRules(**given, time_zone=zone),
        stale_ms=_stale_ms(spec, schedule, zone),
        verify=spec.verify,
    )


def _stale_ms(spec: SnapshotsSpec, schedule: str, zone: str) -> int | None:
    if schedule == NEVER:
        return None
    if spec.stale_after_hours is not None:
        return spec.stale_after_hours * HOUR_MS
    return max(STALE_GAPS * (longest_gap_ms(schedule, zone) or 0), LEAST_STALE_MS)


def snapshots_fault(spec: SnapshotsSpec | None) -> tuple[str, str] | None:
    """The field that keeps snapshots from being made and what is wrong with it, None where nothing does."""
    if spec is None:
        return None
    if spec.schedule and (fault := schedule_fault(spec.schedule)):
        return f"{FIELD}.schedule", fault
    if spec.time_zone and (fault := zone_fault(spec.time_zone)):
        return f"{FIELD}.timeZone", fault
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DueSnapshot:
    """A snapshot that is to be asked for.

    Attributes:
        name: of its object.
        slot_ms: the time of the schedule; None for one that something else asks for.
        due_ms: when; an agent comes a little later than its schedule says, always by the same time.
        why: for people; empty of one of the schedule.
    """

    name: str
    slot_ms: int | None
    due_ms: int
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Everything that is known of an agent's snapshots at one time.

    Attributes:
        taken: its snapshots, in any order.
        slot_ms: the last time of the schedule that was claimed, 0 before the first.
        running: version of the server, None where it is not known.
    """

    memory: AgentMemory
    figures: SnapshotFigures
    taken: Sequence[Taken]
    slot_ms: int
    running: str | None
    now_ms: int

    @property
    def made(self) -> list[Taken]:
        """Those of this agent's memories as they then were that came to an end, newest first."""
        ended = (one for one in self.taken if one.is_ended and not one.is_going and not one.is_imported)
        return sorted(ended, key=_begun, reverse=True)

    @property
    def proven(self) -> list[Taken]:
        """Those that were proven, or were not to be; newest first."""
        is_trusted = self.figures.verify == "None"
        return [
            one
            for one in self.made
            if one.has_succeeded and (one.is_verified or (is_trusted and one.is_verified is None))
        ]

    @property
    def readable(self) -> list[Taken]:
        """Those that were proven and that the running server can restore, as far as is known; newest first."""
        return [one for one in self.proven if is_restorable(one, self.running) is not False]

    @property
    def usable(self) -> list[Taken]:
        """Those of them that fit what the agent's collection is now."""
        return [one for one in self.readable if self.fits(one)]

    @property
    def rebuilt_ms(self) -> int:
        """When a rebuild made the live collection live, 0 where none did."""
        told = (self.memory.status.get("collection") or {}).get("rebuiltTime")
        return parse_time(told) if told else 0

    def fits(self, one: Taken) -> bool:
        """Whether a snapshot is of the live collection, or of none from before its rebuild."""
        live = self.memory.told_physical
        return one.begun_ms >= self.rebuilt_ms or one.physical == live

    @property
    def is_running(self) -> bool:
        """Whether one of the schedule is under way; the next one waits for it."""
        return any(one.is_under_retention and not one.is_ended and not one.is_going for one in self.taken)


def _begun(taken: Taken) -> tuple[int, str]:
    return taken.begun_ms, taken.name


def next_claim(outlook: Outlook) -> DueSnapshot | None:
    """The snapshot of the schedule that is to be asked for next, None where none ever is."""
    figures, metadata = outlook.figures, outlook.memory.metadata
    created_ms = int(datetime.fromisoformat(metadata.creation_timestamp).timestamp() * 1000)
    since_ms = max(created_ms, outlook.slot_ms)
    slot_ms = last_time_ms(figures.schedule, figures.time_zone, until_ms=outlook.now_ms)
    if slot_ms is None or slot_ms <= since_ms:
        after_ms = max(since_ms, outlook.now_ms)
        slot_ms = next_time_ms(figures.schedule, figures.time_zone, after_ms=after_ms)
    if slot_ms is None:
        return None
    late_ms = spread_ms(outlook.memory.slug, figures.schedule, figures.time_zone, at_ms=slot_ms)
    return DueSnapshot(name=slot_name(metadata.name, slot_ms), slot_ms=slot_ms, due_ms=slot_ms + late_ms)


def version_claim(outlook: Outlook, *, since_ms: int) -> DueSnapshot | None:
    """The snapshot that a new version of the server asks for, once a version; None where it asks for none.

    Args:
        since_ms: when the version was first seen.
    """
    if outlook.running is None or not outlook.figures.is_followed or not outlook.proven or outlook.readable:
        return None
    name = _limited(outlook.memory.metadata.name, f"-qdrant-{_plain(outlook.running)}", MAX_NAME)
    if any(one.name == name for one in outlook.taken):
        return None
    late_ms = zlib.crc32(outlook.memory.slug.encode()) % (LARGEST_SPREAD_MS + 1)
    why = f"Qdrant now runs {outlook.running}, which cannot restore the existing snapshots"
    return DueSnapshot(name=name, slot_ms=None, due_ms=since_ms + late_ms, why=why)


def rebuild_claim(outlook: Outlook) -> DueSnapshot | None:
    """The snapshot that a rebuild asks for once it has ended, None where it asks for none."""
    memory = outlook.memory
    is_ended = not is_under_way(memory.status.get("rebuild") or {})
    if not (outlook.rebuilt_ms and is_ended and outlook.figures.is_followed and outlook.proven):
        return None
    moved = datetime.fromtimestamp(outlook.rebuilt_ms / 1000, UTC)
    name = _limited(memory.metadata.name, f"-rebuilt-{moved:%Y%m%dt%H%M%Sz}", MAX_NAME)
    if outlook.usable or any(one.name == name or (not one.is_ended and outlook.fits(one)) for one in outlook.taken):
        return None
    why = "the collection was rebuilt, and existing snapshots do not match it"
    return DueSnapshot(name=name, slot_ms=None, due_ms=outlook.rebuilt_ms, why=why)


def slot_name(memory_name: str, slot_ms: int) -> str:
    """What the object of a time of the schedule is called: the same for everybody who asks."""
    slot = datetime.fromtimestamp(slot_ms / 1000, UTC)
    return _limited(memory_name, f"-{slot:%Y%m%dt%H%Mz}", MAX_NAME)


def _plain(version: str) -> str:
    """A version as part of an object's name."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in version.lower()).strip("-")


def _limited(name: str, suffix: str, most: int) -> str:
    """A name with its suffix; a name that is too long is cut, and told from others by a digest."""
    if len(name) + len(suffix) <= most:
        return name + suffix
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: most - len(suffix) - 9].rstrip('-.')}-{digest}{suffix}"


def label_of(memory_name: str) -> str:
    """The label that finds the snapshots of an agent."""
    return _limited(memory_name, "", MAX_LABEL)


def claimed_object(claim: DueSnapshot, outlook: Outlook) -> Json:
    """The object that a claim creates.

    It has no owner: neither the deletion of the agent nor a prune of its manifests removes a backup.
    """
    metadata = outlook.memory.metadata
    slot = {SLOT: render_second(claim.slot_ms / 1000)} if claim.slot_ms is not None else {}
    spec: Json = {"agentMemoryRef": {"name": metadata.name}}
    return {
        "apiVersion": API_VERSION,
        "kind": "MemorySnapshot",
        "metadata": {
            "name": claim.name,
            "namespace": metadata.namespace,
            "labels": {AGENT_MEMORY_LABEL: label_of(metadata.name), RETENTION_LABEL: UNDER_RETENTION},
            "annotations": slot,
        },
        "spec": spec | ({"verify": outlook.figures.verify} if outlook.figures.verify else {}),
    }


def last_status(outlook: Outlook) -> Json:
    """`status.lastSnapshot`: the newest one that was made; empty before the first."""
    for one in outlook.made:
        if one.has_succeeded:
            told: Json = {
                "name": one.name,
                "time": render_second(one.begun_ms / 1000),
                "verified": bool(one.is_verified),
            }
            return told | ({"qdrantVersion": one.version} if one.version else {})
    return {}


def stale_at_ms(outlook: Outlook) -> int | None:
    """When the last proven snapshot becomes too old, None where none can."""
    stale_ms, usable = outlook.figures.stale_ms, outlook.usable
    return usable[0].begun_ms + stale_ms if stale_ms is not None and usable else None


def states_of(outlook: Outlook) -> list[ConditionState]:
    """The conditions SnapshotFresh and SnapshotVerified; none of an agent without schedule and snapshots."""
    fresh = [_fresh(outlook)] if outlook.figures.stale_ms is not None else []
    return fresh + [_verified(one) for one in outlook.made[:1]]


def _fresh(outlook: Outlook) -> ConditionState:
    proven, usable, stale_ms = outlook.proven, outlook.usable, outlook.figures.stale_ms or 0
    hours = f"{stale_ms / HOUR_MS:g} h"
    if usable and usable[0].begun_ms + stale_ms > outlook.now_ms:
        message = f"{_dated(usable[0])} is verified; it is overdue after {hours}"
        return ConditionState("SnapshotFresh", True, Reason.SNAPSHOT_RECENT, message)
    if outlook.readable and not usable:
        message = (
            f"the collection was rebuilt at {render_second(outlook.rebuilt_ms / 1000)}: the last verified snapshot,"
            f" {_dated(outlook.readable[0])}, is of the replaced collection and no longer matches; a new one is "
            f"taken at once{_failure(outlook)}"
        )
        return ConditionState("SnapshotFresh", False, Reason.COLLECTION_REBUILT, message)
    if proven and not usable:
        message = (
            f"the server runs Qdrant {outlook.running}, which cannot restore snapshots of {proven[0].version}: the last"
            f" verified snapshot is {_dated(proven[0])}; a new one is taken at once{_failure(outlook)}"
        )
        return ConditionState("SnapshotFresh", False, Reason.SERVER_VERSION_CHANGED, message)
    if usable:
        message = f"the last verified snapshot is {_dated(usable[0])}, which is older than {hours}{_failure(outlook)}"
        return ConditionState("SnapshotFresh", False, Reason.SNAPSHOT_OVERDUE, message)
    return _none_yet(outlook, hours)


def _none_yet(outlook: Outlook, hours: str) -> ConditionState:
    created_ms = int(datetime.fromisoformat(outlook.memory.metadata.creation_timestamp).timestamp() * 1000)
    is_young = outlook.now_ms < created_ms + (outlook.figures.stale_ms or 0)
    if not outlook.made and (is_young or outlook.is_running):
        return ConditionState("SnapshotFresh", None, Reason.NO_SNAPSHOT_YET, "waiting for the first scheduled snapshot")
    message = f"no snapshot was verified within {hours}, or the last one failed{_failure(outlook)}"
    return ConditionState("SnapshotFresh", False, Reason.SNAPSHOT_OVERDUE, message)


def _failure(outlook: Outlook) -> str:
    """What the last one failed of, where it did."""
    for last in outlook.made[:1]:
        if not last.has_succeeded or last.is_verified is False:
            return f". {last.name} failed: {last.message}"
    return ""


def _verified(last: Taken) -> ConditionState:
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


def _dated(taken: Taken) -> str:
    return f"{taken.name} of {render_second(taken.begun_ms / 1000)}"
