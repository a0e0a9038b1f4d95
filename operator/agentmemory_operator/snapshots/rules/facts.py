"""Facts about a snapshot, parsed from its object as received, and the check of the Qdrant version that restores it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.snapshots.rules.retention import Candidate
from agentmemory_operator.spec.kinds.agent_memory import GROUP, Metadata
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, find_condition, merge_conditions

Json = dict[str, Any]

AGENT_MEMORY_LABEL = f"{GROUP}/agent-memory"
RETENTION_LABEL = f"{GROUP}/retention"
UNDER_RETENTION = "Scheduled"
SLOT = f"{GROUP}/slot"
PIN = f"{GROUP}/pin"

NEVER_MS = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """Facts about one snapshot from its MemorySnapshot.

    Attributes:
        slot_ms: Time of the schedule that it was created for, Unix milliseconds; None without a schedule.
        started_ms: Start time, else creation time of the object; Unix milliseconds.
        is_ended: True if it has succeeded or permanently failed.
        is_verified: Result of the verification; None if there is none.
        version: Qdrant version of the server that created it; None if unknown.
        physical: Collection that it was created from; None before it started, and for an import.
        is_imported: True if it was imported. The age of its memories is then unknown.
        is_being_removed: True if retention is removing its files.
        message: Result for users: the error of a failed verification, else the message of the condition Succeeded.
    """

    metadata: Metadata
    slot_ms: int | None
    started_ms: int
    is_ended: bool
    has_succeeded: bool
    is_verified: bool | None
    version: str | None
    physical: str | None
    is_imported: bool
    is_being_removed: bool
    message: str

    @property
    def name(self) -> str:
        """Name of the MemorySnapshot object."""
        return self.metadata.name

    @property
    def time_ms(self) -> int:
        """Time by which the retention rules sort: `slot_ms`, else `started_ms`."""
        return self.started_ms if self.slot_ms is None else self.slot_ms

    @property
    def is_removing(self) -> bool:
        """True if the snapshot or its object is being removed."""
        return self.is_being_removed or self.metadata.deletion_timestamp is not None

    @property
    def is_under_retention(self) -> bool:
        """True if retention may remove it. The label decides, which users can set and remove."""
        return self.metadata.labels.get(RETENTION_LABEL) == UNDER_RETENTION

    @property
    def is_pinned(self) -> bool:
        """True if a user pinned it. The annotation value `false` does not pin it."""
        return self.metadata.annotations.get(PIN, "false").lower() != "false"


def parse_facts(document: Mapping[str, Any]) -> SnapshotFacts:
    """Parse the facts from a MemorySnapshot as received. A malformed start time counts as 0, other times as None."""
    metadata = Metadata.model_validate(document["metadata"])
    status = document.get("status") or {}
    succeeded, verified = (find_condition(status, kind) for kind in ("Succeeded", "Verified"))
    start_time = status.get("startTime") or metadata.creation_timestamp
    return SnapshotFacts(
        metadata=metadata,
        slot_ms=_ms(metadata.annotations.get(SLOT)),
        started_ms=_ms(start_time) or NEVER_MS,
        is_ended=succeeded.get("status") in ("True", "False"),
        has_succeeded=succeeded.get("status") == "True",
        is_verified={"True": True, "False": False}.get(verified.get("status", "")),
        version=status.get("qdrantVersion"),
        physical=status.get("physical"),
        is_imported="import" in (document.get("spec") or {}),
        is_being_removed=succeeded.get("reason") == Reason.BEING_REMOVED,
        message=str((verified if verified.get("status") == "False" else succeeded).get("message", "")),
    )


def removal_status(status: Mapping[str, Any], cause: str, *, generation: int, now: str) -> Json:
    """Return the status of a snapshot before its files are removed. Restores reject the snapshot from then on.

    Args:
        cause: Reason of the removal, for users.
    """
    message = f"retention removes it: {cause}"
    other_conditions = [item for item in status.get("conditions") or [] if item["type"] != "Succeeded"]
    states = [ConditionState("Succeeded", False, Reason.BEING_REMOVED, message)]
    changed = merge_conditions(status.get("conditions") or [], states, generation=generation, now=now)
    return {**status, "conditions": [*changed, *other_conditions]}


def is_restorable(snapshot: SnapshotFacts, running: str | None) -> bool | None:
    """Return whether the running server can restore a snapshot; None if a version is unknown."""
    if running is None or snapshot.version is None:
        return None
    try:
        check_version(snapshot.version, running)
    except SpecInvalid:
        return False
    return True


def candidate_of(snapshot: SnapshotFacts, running: str | None, users: Sequence[str]) -> Candidate:
    """Return the facts that retention decides by.

    Args:
        running: Qdrant version of the server; None if unknown.
        users: Objects that need it, each as kind and name.
    """
    return Candidate(
        name=snapshot.name,
        time_ms=snapshot.time_ms,
        is_scheduled=snapshot.is_under_retention,
        is_finished=snapshot.is_ended,
        has_succeeded=snapshot.has_succeeded,
        is_verified=snapshot.is_verified,
        is_restorable=is_restorable(snapshot, running),
        is_pinned=snapshot.is_pinned,
        is_removing=snapshot.is_removing,
        users=tuple(users),
    )


def _ms(time: object) -> int | None:
    """Parse a time of an object to Unix milliseconds; None if it is malformed, because users can write it."""
    try:
        return int(datetime.fromisoformat(str(time)).timestamp() * 1000)
    except ValueError:
        return None


def max_recorded_points(physical: str | None, snapshots: Iterable[Mapping[str, Any]]) -> int:
    """Return the largest number of memories that a snapshot of a collection recorded; 0 if none did.

    Args:
        physical: Physical name of the collection; None counts snapshots without a recorded collection.
        snapshots: MemorySnapshots as received.
    """
    statuses = [snapshot.get("status") or {} for snapshot in snapshots]
    counts = [(status.get("points") or {}).get("after") for status in statuses if status.get("physical") == physical]
    return max((number for number in counts if number), default=0)


_VERSION = re.compile(r"^v?(\d+)\.(\d+)\.(\d+)")


def check_version(source: str | None, server: str) -> None:
    """Raise if the server cannot restore a snapshot of another version.

    Args:
        source: Qdrant version that created the snapshot; None if unknown.
        server: Qdrant version of the server. If either version is unknown or malformed, nothing is checked.

    Raises:
        SpecInvalid: If the server's minor version differs or its patch is older (Qdrant's documentation of snapshots).
    """
    origin, running = _version_of(source or ""), _version_of(server)
    if origin is None or running is None or (origin[:2] == running[:2] and origin[2] <= running[2]):
        return
    minor = f"{origin[0]}.{origin[1]}"
    raise SpecInvalid(
        Reason.VERSION_MISMATCH,
        f"the snapshot is from Qdrant {source}, but the server runs {server}: a snapshot can only be restored by its "
        f"minor version with the same or a later patch. Choose a snapshot from this version, or restore it on a "
        f"Qdrant {minor} (at least {source}), upgrade that server, and take a new snapshot there",
    )


def _version_of(version: str) -> tuple[int, int, int] | None:
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None
