"""A snapshot's way from asked for to done, as its status tells it. Pure: files, clock and names are arguments.

| step | what it does | in the status before it |
|---|---|---|
| Create | the server makes the file | whose it is, the collection, what was counted, the newest file there was |
| Copy | the file is copied off the server | the file's name, size and checksum, the copy's place |
| Verify | it is proven | every place of its bytes |
| Clean | after a failure: what was made goes | the reason |

An imported one begins with TakeIn in the place of Create and Copy.
"""

from collections.abc import Collection as AnyOf
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from agentmemory_operator.collections.rules.collection import Marker, marker_from_json
from agentmemory_operator.spec.kinds.agent_memory import GROUP
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, condition_of, merge_conditions

Json = dict[str, Any]

FINALIZER = f"{GROUP}/snapshot"
QDRANT, S3 = "Qdrant", "S3"
OBJECT_STORAGE = "ObjectStorage"
DEFAULT_VERIFY = "Full"
SUCCEEDED, VERIFIED = "Succeeded", "Verified"


class SnapshotStep(StrEnum):
    """Steps of a snapshot, in order."""

    CREATE = "Create"
    TAKE_IN = "TakeIn"
    COPY = "Copy"
    VERIFY = "Verify"
    CLEAN = "Clean"


TOLD = {
    SnapshotStep.CREATE: "Qdrant is taking the snapshot",
    SnapshotStep.TAKE_IN: "importing the snapshot",
    SnapshotStep.COPY: "copying the snapshot off the server",
    SnapshotStep.VERIFY: "verifying the snapshot",
    SnapshotStep.CLEAN: "removing partial data",
}


def is_ended(status: Mapping[str, Any]) -> bool:
    """Whether a snapshot was made, or has failed for good."""
    return _says(status, SUCCEEDED, "True") or _says(status, SUCCEEDED, "False")


def has_succeeded(status: Mapping[str, Any]) -> bool:
    """Whether a snapshot was made."""
    return _says(status, SUCCEEDED, "True")


def is_verified(status: Mapping[str, Any]) -> bool:
    """Whether a snapshot was made and proven."""
    return has_succeeded(status) and _says(status, VERIFIED, "True")


def _says(status: Mapping[str, Any], kind: str, value: str) -> bool:
    return condition_of(status, kind).get("status") == value


_STANDS_BEFORE: Mapping[SnapshotStep, tuple[str, ...]] = {
    SnapshotStep.CREATE: ("agent", "physical", "points", "newestBefore", "attempts"),
    SnapshotStep.COPY: ("agent", "name", "sizeBytes", "locations"),
}


def step_of(status: Mapping[str, Any]) -> SnapshotStep | None:
    """What a snapshot is at, None before its first step."""
    return next((step for step in SnapshotStep if step == status.get("step")), None)


def resumed_step(status: Mapping[str, Any]) -> SnapshotStep | None:
    """The step that a snapshot goes on with, None where it has to begin.

    Of one whose status lacks what stands there before its step nothing is known: that status we did not write.
    """
    step = step_of(status)
    return step if step and all(name in status for name in _STANDS_BEFORE.get(step, ())) else None


def running(
    status: Mapping[str, Any],
    *,
    generation: int,
    now: str,
    detail: str = "",
    reason: str = Reason.RUNNING,
    proof: ConditionState | None = None,
) -> Json:
    """The status of one under way.

    Args:
        detail: how far its step is, or what it waits for; of Clean, why the snapshot has failed.
        proof: the condition Verified, where it is known.
    """
    step = step_of(status)
    progress = TOLD[step] if step else "starting"
    message = detail if step is SnapshotStep.CLEAN else ": ".join(filter(None, (progress, detail)))
    states = [ConditionState(SUCCEEDED, None, reason, message), ConditionState("Progressing", True, reason, message)]
    return _told(status, states, proof=proof, generation=generation, now=now) | {"progress": message}


def failed(status: Mapping[str, Any], reason: str, message: str, *, generation: int, now: str) -> Json:
    """The status of one that has failed for good."""
    states = [ConditionState(SUCCEEDED, False, reason, message)]
    return _ended(_told(status, states, proof=None, generation=generation, now=now), now)


def failure_of(status: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and message of a snapshot that is at Clean."""
    succeeded = condition_of(status, SUCCEEDED)
    return succeeded.get("reason", Reason.RUNNING), succeeded.get("message", "")


def made(status: Mapping[str, Any], proof: ConditionState, *, generation: int, now: str) -> Json:
    """The status of one that was made."""
    states = [ConditionState(SUCCEEDED, True, Reason.SNAPSHOT_TAKEN, _message_of(status))]
    return _ended(_told(status, states, proof=proof, generation=generation, now=now), now)


def proven_again(status: Mapping[str, Any], proof: ConditionState, *, request: str, generation: int, now: str) -> Json:
    """The status of one that was made before and verified again.

    Args:
        request: what asked for it.
    """
    states = [ConditionState(SUCCEEDED, True, Reason.SNAPSHOT_TAKEN, _message_of(status))]
    return _told({**status, "verifyRequest": request}, states, proof=proof, generation=generation, now=now)


def lost(status: Mapping[str, Any], *, generation: int, now: str) -> Json:
    """The status of one that was made, and whose bytes are nowhere any more."""
    told = {**status, "locations": []}
    states = [ConditionState(SUCCEEDED, True, Reason.SNAPSHOT_TAKEN, "taken, but its bytes no longer exist")]
    proof = ConditionState(
        VERIFIED, False, Reason.SNAPSHOT_LOST, "the file no longer exists in Qdrant, and there is no copy"
    )
    return _told(told, states, proof=proof, generation=generation, now=now)


def _message_of(status: Mapping[str, Any]) -> str:
    places = [place["type"] for place in places_of(status)]
    size = f"{status.get('sizeBytes', 0)} bytes"
    if S3 in places:
        return f"{size}, off the server too" if QDRANT in places else f"{size}, off the server"
    if (location_of(status, QDRANT) or {}).get("keptIn") == OBJECT_STORAGE:
        return f"{size}, in Qdrant's own object storage for snapshots"
    return f"{size}, only on the same disk as the memories: set spec.snapshots.storage to survive the loss of that disk"


def _told(
    status: Mapping[str, Any],
    states: Sequence[ConditionState],
    *,
    proof: ConditionState | None,
    generation: int,
    now: str,
) -> Json:
    old = status.get("conditions") or []
    proven = [proof] if proof else _proven(old)
    conditions = merge_conditions(old, [*states, *proven], generation=generation, now=now)
    return {**status, "observedGeneration": generation, "conditions": conditions}


def _proven(conditions: Iterable[Mapping[str, Any]]) -> list[ConditionState]:
    known = {"True": True, "False": False}
    found = (item for item in conditions if item["type"] == VERIFIED)
    return [ConditionState(VERIFIED, known.get(item["status"]), item["reason"], item["message"]) for item in found]


def _ended(status: Json, now: str) -> Json:
    return {key: value for key, value in status.items() if key not in ("step", "progress")} | {"endTime": now}


def owner_status(marker: Marker) -> Json:
    """Whose memories a collection has, and by what they are embedded, as a snapshot's status says it."""
    owner = {
        "clusterId": marker.cluster_id,
        "namespace": marker.namespace,
        "name": marker.name,
        "uid": marker.uid,
    }
    embedding = {
        "provider": marker.embedding.provider,
        "model": marker.embedding.model,
        "dimensions": marker.embedding.dimensions,
    }
    return {"owner": owner, "embedding": {key: value for key, value in embedding.items() if value is not None}}


def owner_of(status: Mapping[str, Any]) -> Marker | None:
    """The marker that a snapshot's status tells of, None where it tells of none."""
    owner = status.get("owner")
    return marker_from_json({**owner, "embedding": status.get("embedding")}) if owner else None


def qdrant_location(physical: str, name: str, *, is_on_disk: bool = True) -> Json:
    """The place of a file on the server.

    Args:
        is_on_disk: it lies on the server's disk, not in an object storage that Qdrant keeps snapshots in.
    """
    kept = {} if is_on_disk else {"keptIn": OBJECT_STORAGE}
    return {"type": QDRANT, "physical": physical, "name": name, **kept}


def places_of(status: Mapping[str, Any]) -> list[Json]:
    """Where the bytes are; a place that does not say where in full is none."""
    return [dict(place) for place in status.get("locations") or [] if _is_whole(place)]


def _is_whole(place: Mapping[str, Any]) -> bool:
    return place.get("type") == S3 or (place.get("type") == QDRANT and "physical" in place and "name" in place)


def location_of(status: Mapping[str, Any], kind: str) -> Json | None:
    """Where the bytes are of that kind of place, None where they are not."""
    return next((place for place in places_of(status) if place["type"] == kind), None)


def without_location(status: Mapping[str, Any], kind: str) -> Json:
    """The status without the places of a kind."""
    return {**status, "locations": [place for place in status.get("locations") or [] if place.get("type") != kind]}


def files_named(statuses: Iterable[Mapping[str, Any]], physical: str) -> frozenset[str]:
    """The files of a collection that snapshots have on record."""
    places = (location_of(status, QDRANT) for status in statuses)
    return frozenset(place["name"] for place in places if place and place.get("physical") == physical)


def files_copied(statuses: Iterable[Mapping[str, Any]], physical: str) -> frozenset[str]:
    """The files of a collection whose bytes are off the server too: it is no loss when they go."""
    return files_named((status for status in statuses if has_succeeded(status) and location_of(status, S3)), physical)


def lost_files(names_by_time: Sequence[tuple[int, str]], *, newest_before_ms: int, named: AnyOf[str]) -> list[str]:
    """The files that a create has left whose end nobody saw, oldest first.

    Args:
        names_by_time: files of the collection with the server's time of each, Unix milliseconds.
        newest_before_ms: of the newest one there was before it, by the server's clock too.
        named: those that other snapshots have on record.
    """
    found = sorted((made_ms, name) for made_ms, name in names_by_time if made_ms > newest_before_ms)
    return [name for _, name in found if name not in named]
