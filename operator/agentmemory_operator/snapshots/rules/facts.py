"""What is known of a snapshot from its object as it came, whatever made it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.snapshots.rules.retention import Candidate
from agentmemory_operator.spec.kinds.agent_memory import GROUP, Metadata
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, condition_of, merge_conditions

Json = dict[str, Any]

AGENT_MEMORY_LABEL = f"{GROUP}/agent-memory"
RETENTION_LABEL = f"{GROUP}/retention"
UNDER_RETENTION = "Scheduled"
SLOT = f"{GROUP}/slot"
PIN = f"{GROUP}/pin"

NEVER_MS = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One snapshot.

    Attributes:
        slot_ms: the time of the schedule that it was made for; None of any other.
        begun_ms: when it was begun, else when it was asked for; Unix milliseconds.
        is_ended: whether it was made or has failed for good.
        is_verified: None where nobody could tell.
        version: of the server that made it.
        physical: the collection that it was made of, None before it was begun.
        is_imported: whether it was taken in: nobody knows how old its memories are.
        is_being_removed: whether its bytes are going.
        message: how it ended, for people.
    """

    metadata: Metadata
    slot_ms: int | None
    begun_ms: int
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
        """The object's name."""
        return self.metadata.name

    @property
    def time_ms(self) -> int:
        """The time that it stands for: of its slot, else of its beginning."""
        return self.begun_ms if self.slot_ms is None else self.slot_ms

    @property
    def is_going(self) -> bool:
        """Whether it, or its object, is being removed."""
        return self.is_being_removed or self.metadata.deletion_timestamp is not None

    @property
    def is_under_retention(self) -> bool:
        """Whether retention may remove it: the label says so, which people may take off or put on."""
        return self.metadata.labels.get(RETENTION_LABEL) == UNDER_RETENTION

    @property
    def is_pinned(self) -> bool:
        """Whether somebody wants it kept; an annotation that says false is none."""
        return self.metadata.annotations.get(PIN, "false").lower() != "false"


def taken_of(document: Mapping[str, Any]) -> Taken:
    """What a MemorySnapshot's object says."""
    metadata = Metadata.model_validate(document["metadata"])
    status = document.get("status") or {}
    succeeded, verified = (condition_of(status, kind) for kind in ("Succeeded", "Verified"))
    begun = status.get("startTime") or metadata.creation_timestamp
    return Taken(
        metadata=metadata,
        slot_ms=_ms(metadata.annotations.get(SLOT)),
        begun_ms=_ms(begun) or NEVER_MS,
        is_ended=succeeded.get("status") in ("True", "False"),
        has_succeeded=succeeded.get("status") == "True",
        is_verified={"True": True, "False": False}.get(verified.get("status", "")),
        version=status.get("qdrantVersion"),
        physical=status.get("physical"),
        is_imported="import" in (document.get("spec") or {}),
        is_being_removed=succeeded.get("reason") == Reason.BEING_REMOVED,
        message=str((verified if verified.get("status") == "False" else succeeded).get("message", "")),
    )


def being_removed(status: Mapping[str, Any], why: str, *, generation: int, now: str) -> Json:
    """The status of one whose bytes go next: nothing may count on it any more."""
    message = f"retention removes it: {why}"
    kept = [item for item in status.get("conditions") or [] if item["type"] != "Succeeded"]
    states = [ConditionState("Succeeded", False, Reason.BEING_REMOVED, message)]
    changed = merge_conditions(status.get("conditions") or [], states, generation=generation, now=now)
    return {**status, "conditions": [*changed, *kept]}


def is_restorable(taken: Taken, running: str | None) -> bool | None:
    """Whether the running server can restore a snapshot; None where a version is not known."""
    if running is None or taken.version is None:
        return None
    try:
        check_version(taken.version, running)
    except SpecInvalid:
        return False
    return True


def candidate_of(taken: Taken, running: str | None, users: Sequence[str]) -> Candidate:
    """What retention goes by.

    Args:
        running: version of the server.
        users: who needs it, each as a person would name it.
    """
    return Candidate(
        name=taken.name,
        time_ms=taken.time_ms,
        is_scheduled=taken.is_under_retention,
        is_finished=taken.is_ended,
        has_succeeded=taken.has_succeeded,
        is_verified=taken.is_verified,
        is_restorable=is_restorable(taken, running),
        is_pinned=taken.is_pinned,
        is_going=taken.is_going,
        users=tuple(users),
    )


def _ms(time: object) -> int | None:
    """Unix milliseconds of a time that an object tells; people may have written it."""
    try:
        return int(datetime.fromisoformat(str(time)).timestamp() * 1000)
    except ValueError:
        return None


def points_held(physical: str | None, snapshots: Iterable[Mapping[str, Any]]) -> int:
    """The most memories that any snapshot of a collection saw in it; 0 where none did.

    Args:
        snapshots: MemorySnapshots as they came.
    """
    statuses = [snapshot.get("status") or {} for snapshot in snapshots]
    seen = [(status.get("points") or {}).get("after") for status in statuses if status.get("physical") == physical]
    return max((number for number in seen if number), default=0)


_VERSION = re.compile(r"^v?(\d+)\.(\d+)\.(\d+)")


def check_version(source: str | None, server: str) -> None:
    """Pass unless the server cannot restore what another version made.

    Args:
        source: the version that made the snapshot, None where nobody knows: then the server finds out.

    Raises:
        SpecInvalid: another minor version, or a later patch, made it. Source: Qdrant's documentation of snapshots.
    """
    made, runs = _version_of(source or ""), _version_of(server)
    if made is None or runs is None or (made[:2] == runs[:2] and made[2] <= runs[2]):
        return
    minor = f"{made[0]}.{made[1]}"
    raise SpecInvalid(
        Reason.VERSION_MISMATCH,
        f"the snapshot is from Qdrant {source}, but the server runs {server}: a snapshot can only be restored by its "
        f"minor version with the same or a later patch. Choose a snapshot from this version, or restore it on a "
        f"Qdrant {minor} (at least {source}), upgrade that server, and take a new snapshot there",
    )


def _version_of(version: str) -> tuple[int, int, int] | None:
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None
