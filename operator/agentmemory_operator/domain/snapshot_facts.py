"""What is known of a snapshot from its object as it came, whatever made it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentmemory_operator.domain.conditions import Reason, State, condition_of, merge_conditions
from agentmemory_operator.domain.resources import GROUP, Metadata
from agentmemory_operator.domain.restoring import check_version
from agentmemory_operator.domain.retention import Candidate
from agentmemory_operator.errors import SpecInvalid

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
    """Return what a MemorySnapshot's object says."""
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
    """Return the status of one whose bytes go next: nothing may count on it any more."""
    message = f"retention removes it: {why}"
    kept = [item for item in status.get("conditions") or [] if item["type"] != "Succeeded"]
    states = [State("Succeeded", False, Reason.BEING_REMOVED, message)]
    changed = merge_conditions(status.get("conditions") or [], states, generation=generation, now=now)
    return {**status, "conditions": [*changed, *kept]}


def is_restorable(taken: Taken, running: str | None) -> bool | None:
    """Tell whether the running server can restore a snapshot; None where a version is not known."""
    if running is None or taken.version is None:
        return None
    try:
        check_version(taken.version, running)
    except SpecInvalid:
        return False
    return True


def candidate_of(taken: Taken, running: str | None, users: Sequence[str]) -> Candidate:
    """Return what retention goes by.

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
    """Return Unix milliseconds of a time that an object tells; people may have written it."""
    try:
        return int(datetime.fromisoformat(str(time)).timestamp() * 1000)
    except ValueError:
        return None


def points_held(physical: str | None, snapshots: Iterable[Mapping[str, Any]]) -> int:
    """Return the most memories that any snapshot of a collection saw in it; 0 where none did.

    Args:
        snapshots: MemorySnapshots as they came.
    """
    statuses = [snapshot.get("status") or {} for snapshot in snapshots]
    seen = [(status.get("points") or {}).get("after") for status in statuses if status.get("physical") == physical]
    return max((number for number in seen if number), default=0)
