"""Steps of a MemorySnapshot, and the status before and after each. Pure: files, times and names are arguments.

| step | action | written to the status before it starts |
|---|---|---|
| Create | the server creates the file | owner, collection, number of memories, time of the newest existing file |
| Copy | the file is copied to object storage | name, size and checksum of the file, location of the copy |
| Verify | the snapshot is verified | all locations of its files |
| Clean | after a failure, partial data is removed | the reason of the failure |

An import has the step TakeIn instead of Create, Copy and Verify.
"""

from collections.abc import Collection as AnyOf
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from agentmemory_operator.collections.rules.collection import Marker, marker_from_json
from agentmemory_operator.spec.kinds.agent_memory import GROUP
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, find_condition, merge_conditions

Json = dict[str, Any]

FINALIZER = f"{GROUP}/snapshot"
QDRANT, S3 = "Qdrant", "S3"
OBJECT_STORAGE = "ObjectStorage"
DEFAULT_VERIFY = "Full"
SUCCEEDED, VERIFIED = "Succeeded", "Verified"


class SnapshotStep(StrEnum):
    """Step of a snapshot, in order; see the module's table."""

    CREATE = "Create"
    TAKE_IN = "TakeIn"
    COPY = "Copy"
    VERIFY = "Verify"
    CLEAN = "Clean"


PROGRESS_MESSAGES = {
    SnapshotStep.CREATE: "Qdrant is taking the snapshot",
    SnapshotStep.TAKE_IN: "importing the snapshot",
    SnapshotStep.COPY: "copying the snapshot off the server",
    SnapshotStep.VERIFY: "verifying the snapshot",
    SnapshotStep.CLEAN: "removing partial data",
}


def is_ended(status: Mapping[str, Any]) -> bool:
    """Return whether a snapshot has succeeded or permanently failed."""
    return _has_condition(status, SUCCEEDED, "True") or _has_condition(status, SUCCEEDED, "False")


def has_succeeded(status: Mapping[str, Any]) -> bool:
    """Return whether a snapshot was created or imported and did not fail its first verification.

    False once retention has recorded its removal.
    """
    return _has_condition(status, SUCCEEDED, "True")


def is_verified(status: Mapping[str, Any]) -> bool:
    """Return whether a snapshot was created and verified."""
    return has_succeeded(status) and _has_condition(status, VERIFIED, "True")


def _has_condition(status: Mapping[str, Any], kind: str, value: str) -> bool:
    return find_condition(status, kind).get("status") == value


_REQUIRED_FIELDS: Mapping[SnapshotStep, tuple[str, ...]] = {
    SnapshotStep.CREATE: ("agent", "physical", "points", "newestBefore", "attempts"),
    SnapshotStep.COPY: ("agent", "name", "sizeBytes", "locations"),
}


def current_step(status: Mapping[str, Any]) -> SnapshotStep | None:
    """Return the current step of a snapshot; None before its first step and after its end."""
    return next((step for step in SnapshotStep if step == status.get("step")), None)


def resumed_step(status: Mapping[str, Any]) -> SnapshotStep | None:
    """Return the step to resume at, or None to start from the beginning.

    A status that lacks fields written before its step is not from the operator: the snapshot starts from the beginning.
    """
    step = current_step(status)
    return step if step and all(name in status for name in _REQUIRED_FIELDS.get(step, ())) else None


def running_status(
    status: Mapping[str, Any],
    *,
    generation: int,
    now: str,
    detail: str = "",
    reason: str = Reason.RUNNING,
    proof: ConditionState | None = None,
) -> Json:
    """Return the status of a snapshot in progress.

    Args:
        detail: Progress of the step, or the cause of a wait. For Clean, the message of the failure.
        proof: Condition Verified. None keeps the old condition.
    """
    step = current_step(status)
    progress = PROGRESS_MESSAGES[step] if step else "starting"
    message = detail if step is SnapshotStep.CLEAN else ": ".join(filter(None, (progress, detail)))
    states = [ConditionState(SUCCEEDED, None, reason, message), ConditionState("Progressing", True, reason, message)]
    return _with_conditions(status, states, proof=proof, generation=generation, now=now) | {"progress": message}


def failed_status(status: Mapping[str, Any], reason: str, message: str, *, generation: int, now: str) -> Json:
    """Return the status of a snapshot that has permanently failed. It has no step, and keeps the condition Verified."""
    states = [ConditionState(SUCCEEDED, False, reason, message)]
    return _complete(_with_conditions(status, states, proof=None, generation=generation, now=now), now)


def read_failure(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return the reason and message of the failure that the status of a snapshot in step Clean contains."""
    succeeded = find_condition(status, SUCCEEDED)
    return succeeded.get("reason", Reason.RUNNING), succeeded.get("message", "")


def succeeded_status(status: Mapping[str, Any], proof: ConditionState, *, generation: int, now: str) -> Json:
    """Return the status of a snapshot that was created or imported.

    Args:
        proof: Condition Verified.
    """
    states = [ConditionState(SUCCEEDED, True, Reason.SNAPSHOT_TAKEN, _message_of(status))]
    return _complete(_with_conditions(status, states, proof=proof, generation=generation, now=now), now)


def reverified_status(
    status: Mapping[str, Any], proof: ConditionState, *, request: str, generation: int, now: str
) -> Json:
    """Return the status of an existing snapshot that was verified again.

    Args:
        proof: New condition Verified.
        request: Value of the annotation that requested the verification.
    """
    states = [ConditionState(SUCCEEDED, True, Reason.SNAPSHOT_TAKEN, _message_of(status))]
    return _with_conditions({**status, "verifyRequest": request}, states, proof=proof, generation=generation, now=now)


def lost_status(status: Mapping[str, Any], *, generation: int, now: str) -> Json:
    """Return the status of a created snapshot whose files no longer exist: without locations, and Verified is False."""
    without_locations = {**status, "locations": []}
    states = [ConditionState(SUCCEEDED, True, Reason.SNAPSHOT_TAKEN, "taken, but its bytes no longer exist")]
    proof = ConditionState(
        VERIFIED, False, Reason.SNAPSHOT_LOST, "the file no longer exists in Qdrant, and there is no copy"
    )
    return _with_conditions(without_locations, states, proof=proof, generation=generation, now=now)


def _message_of(status: Mapping[str, Any]) -> str:
    locations = [location["type"] for location in locations_of(status)]
    size = f"{status.get('sizeBytes', 0)} bytes"
    if S3 in locations:
        return f"{size}, off the server too" if QDRANT in locations else f"{size}, off the server"
    if (location_of(status, QDRANT) or {}).get("keptIn") == OBJECT_STORAGE:
        return f"{size}, in Qdrant's own object storage for snapshots"
    return f"{size}, only on the same disk as the memories: set spec.snapshots.storage to survive the loss of that disk"


def _with_conditions(
    status: Mapping[str, Any],
    states: Sequence[ConditionState],
    *,
    proof: ConditionState | None,
    generation: int,
    now: str,
) -> Json:
    old = status.get("conditions") or []
    verified = [proof] if proof else _old_verified(old)
    conditions = merge_conditions(old, [*states, *verified], generation=generation, now=now)
    return {**status, "observedGeneration": generation, "conditions": conditions}


def _old_verified(conditions: Iterable[Mapping[str, Any]]) -> list[ConditionState]:
    values = {"True": True, "False": False}
    items = (item for item in conditions if item["type"] == VERIFIED)
    return [ConditionState(VERIFIED, values.get(item["status"]), item["reason"], item["message"]) for item in items]


def _complete(status: Json, now: str) -> Json:
    return {key: value for key, value in status.items() if key not in ("step", "progress")} | {"endTime": now}


def owner_status(marker: Marker) -> Json:
    """Return the status fields `owner` and `embedding`, from the marker of a collection."""
    owner = {"clusterId": marker.cluster_id, "namespace": marker.namespace, "name": marker.name, "uid": marker.uid}
    embedding = {
        "provider": marker.embedding.provider,
        "model": marker.embedding.model,
        "dimensions": marker.embedding.dimensions,
    }
    return {"owner": owner, "embedding": {key: value for key, value in embedding.items() if value is not None}}


def read_owner(status: Mapping[str, Any]) -> Marker | None:
    """Return the marker of the collection as recorded in a snapshot's status, or None if no owner is recorded."""
    owner = status.get("owner")
    return marker_from_json({**owner, "embedding": status.get("embedding")}) if owner else None


def qdrant_location(physical: str, name: str, *, is_on_disk: bool = True) -> Json:
    """Return the location of a file on the Qdrant server.

    Args:
        is_on_disk: True if the file is on the server's disk; False if Qdrant stores snapshots in object storage.
    """
    storage = {} if is_on_disk else {"keptIn": OBJECT_STORAGE}
    return {"type": QDRANT, "physical": physical, "name": name, **storage}


def locations_of(status: Mapping[str, Any]) -> list[Json]:
    """Return the complete locations of a snapshot's files. Locations without the required fields are ignored."""
    return [dict(location) for location in status.get("locations") or [] if _is_complete(location)]


def _is_complete(entry: Mapping[str, Any]) -> bool:
    return entry.get("type") == S3 or (entry.get("type") == QDRANT and "physical" in entry and "name" in entry)


def location_of(status: Mapping[str, Any], kind: str) -> Json | None:
    """Return the first location of a type (`QDRANT` or `S3`), or None."""
    return next((location for location in locations_of(status) if location["type"] == kind), None)


def without_location(status: Mapping[str, Any], kind: str) -> Json:
    """Return the status without the locations of a type."""
    return {**status, "locations": [entry for entry in status.get("locations") or [] if entry.get("type") != kind]}


def recorded_files(statuses: Iterable[Mapping[str, Any]], physical: str) -> frozenset[str]:
    """Return the names of a collection's files in Qdrant that the statuses of snapshots record."""
    locations = (location_of(status, QDRANT) for status in statuses)
    return frozenset(location["name"] for location in locations if location and location.get("physical") == physical)


def recorded_hashes(status: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the recorded hashes of the settings: one, or two if they changed during the snapshot; empty if unknown."""
    return tuple(status[field] for field in ("configHash", "configHashAfter") if status.get(field))


def copied_files(statuses: Iterable[Mapping[str, Any]], physical: str) -> frozenset[str]:
    """Return the names of a collection's files that may be deleted, because object storage has a copy of each."""
    return recorded_files(
        (status for status in statuses if has_succeeded(status) and location_of(status, S3)), physical
    )


def unrecorded_files(
    names_by_time: Sequence[tuple[int, str]], *, newest_before_ms: int, named: AnyOf[str]
) -> list[str]:
    """Return the names of the files that an interrupted create has left, oldest first.

    Args:
        names_by_time: Creation time by the server's clock, in Unix milliseconds, and name of each file of the
            collection.
        newest_before_ms: Time of the newest file before the create, by the same clock; 0 if there was none.
        named: Names of the files that other snapshots record.
    """
    newer = sorted((created_ms, name) for created_ms, name in names_by_time if created_ms > newest_before_ms)
    return [name for _, name in newer if name not in named]
