"""Status conditions: the closed sets of types and reasons, and pure functions to merge and find conditions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentmemory_operator.spec.printable import printable_lines

Json = dict[str, Any]


class Reason(StrEnum):
    """Every reason that a condition can have; docs/conditions.md explains each."""

    SERVING = "Serving"
    ANSWERS = "Answers"
    CONVERGED = "Converged"
    INDEXING = "Indexing"
    COLLECTION_RED = "CollectionRed"
    DRIFTED = "Drifted"
    AWAITING_APPROVAL = "AwaitingApproval"
    REINDEX_QUEUED = "ReindexQueued"
    REPLICATING = "Replicating"
    REPLICAS_INACTIVE = "ReplicasInactive"
    TOO_FEW_PEERS = "TooFewPeers"
    SUSPENDED = "Suspended"
    INVALID_SPEC = "InvalidSpec"
    SLUG_TAKEN = "SlugTaken"
    COLLECTION_NOT_OWNED = "CollectionNotOwned"
    COLLECTION_LOST = "CollectionLost"
    CONNECTION_NOT_FOUND = "ConnectionNotFound"
    CONNECTION_NOT_ALLOWED = "ConnectionNotAllowed"
    SECRET_NOT_FOUND = "SecretNotFound"
    SECRET_NOT_USABLE = "SecretNotUsable"
    WRAPPING_KEY_MISSING = "WrappingKeyMissing"
    WRAPPING_KEY_INVALID = "WrappingKeyInvalid"
    KEY_STORE_MISSING = "KeyStoreMissing"
    KEY_STORE_UNAVAILABLE = "KeyStoreUnavailable"
    KEYS_UNREADABLE = "KeysUnreadable"
    KEYS_LOST = "KeysLost"
    KEYS_AVAILABLE = "KeysAvailable"
    HOST_NOT_ALLOWED = "HostNotAllowed"
    INVALID_CA = "InvalidCA"
    TLS_FAILED = "TLSFailed"
    QDRANT_UNAVAILABLE = "QdrantUnavailable"
    QDRANT_REJECTED = "QdrantRejected"
    QDRANT_TOO_OLD = "QdrantTooOld"
    DELETION_WAITING = "DeletionWaiting"
    CHANGE_IGNORED = "ChangeIgnored"
    SCORING_REJECTED = "ScoringRejected"
    TYPE_REMOVED = "TypeRemoved"
    SCHEDULE_REJECTED = "ScheduleRejected"
    BOOTSTRAP_FAILED = "BootstrapFailed"
    VERSION_MISMATCH = "VersionMismatch"
    SNAPSHOT_NOT_OWNED = "SnapshotNotOwned"
    SNAPSHOT_UNFIT = "SnapshotUnfit"
    NODES_NOT_LISTED = "NodesNotListed"
    SOURCE_NOT_ALLOWED = "SourceNotAllowed"
    NO_ALIAS = "NoAlias"
    VERIFIED = "Verified"
    COMPARED_WITH_RECORD = "ComparedWithRecord"
    CHECKSUM_MATCHES = "ChecksumMatches"
    NOT_VERIFIED = "NotVerified"
    COPY_DIFFERS = "CopyDiffers"
    CHECKSUM_DIFFERS = "ChecksumDiffers"
    NOT_RESTORABLE = "NotRestorable"
    SNAPSHOT_RECENT = "SnapshotRecent"
    SNAPSHOT_OVERDUE = "SnapshotOverdue"
    SERVER_VERSION_CHANGED = "ServerVersionChanged"
    COLLECTION_REBUILT = "CollectionRebuilt"
    NO_SNAPSHOT_YET = "NoSnapshotYet"
    SNAPSHOT_PROVEN = "SnapshotProven"
    SNAPSHOT_BAD = "SnapshotBad"
    SNAPSHOT_FAILED = "SnapshotFailed"
    BEING_REMOVED = "BeingRemoved"
    RUNNING = "Running"
    SNAPSHOT_TAKEN = "SnapshotTaken"
    AGENT_MEMORY_NOT_FOUND = "AgentMemoryNotFound"
    NO_COLLECTION = "NoCollection"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    SNAPSHOT_LOST = "SnapshotLost"
    STORAGE_UNAVAILABLE = "StorageUnavailable"
    STORAGE_REJECTED = "StorageRejected"
    STORAGE_GONE = "StorageGone"
    RESTORING = "Restoring"
    RETRYING = "Retrying"
    RESTORED = "Restored"
    ALREADY_APPLIED = "AlreadyApplied"
    WAITS_FOR_RESTORE = "WaitsForRestore"
    WAITS_FOR_REBUILD = "WaitsForRebuild"
    SNAPSHOT_NOT_FOUND = "SnapshotNotFound"
    SNAPSHOT_NOT_READY = "SnapshotNotReady"
    WRITES_GO_ON = "WritesGoOn"
    NOT_UNDONE = "NotUndone"
    SNAPSHOT_REFUSED = "SnapshotRefused"
    TARGET_GONE = "TargetGone"
    ROLLED_BACK = "RolledBack"
    PREVIOUS_GONE = "PreviousGone"
    NOT_LIVE = "NotLive"
    REBUILD_RUNNING = "RebuildRunning"
    REBUILD_PAUSED = "RebuildPaused"
    REBUILD_FAILED = "RebuildFailed"
    REBUILD_NOT_ALLOWED = "RebuildNotAllowed"
    REBUILD_CANCELLED = "RebuildCancelled"
    CANNOT_REBUILD = "CannotRebuild"
    INSUFFICIENT_SPACE = "InsufficientSpace"
    CAPACITY_UNKNOWN = "CapacityUnknown"
    ROOM_LEFT = "RoomLeft"
    LITTLE_ROOM_LEFT = "LittleRoomLeft"
    SERVER_FULL = "ServerFull"
    NAMESPACE_FULL = "NamespaceFull"
    CONSOLIDATION_DONE = "ConsolidationDone"
    CONSOLIDATION_LIMITED = "ConsolidationLimited"
    MODEL_UNAVAILABLE = "ModelUnavailable"
    MODEL_ANSWERS_INVALID = "ModelAnswersInvalid"
    GRAPH_OUTGROWN = "GraphOutgrown"
    SERVER_OUTGROWN = "ServerOutgrown"
    NODE_OUTGROWN = "NodeOutgrown"


TYPES: Mapping[str, Mapping[str, str]] = {
    "AgentMemory": {
        "Ready": "the collection serves requests",
        "InSync": "the collection matches the object; only while Ready",
        "Reconciling": "a failed operation is retried; only while True",
        "Stalled": "nothing changes until a person acts; only while True",
        "Suspended": "spec.suspend is true; only while True",
        "TypesListed": "False while memories have a type that is not listed",
        "Outgrown": "the layout is sized for fewer memories; only while True",
        "KeysUnavailable": "some or all memories with a zone cannot be read or stored; with spec.zones",
        "Consolidated": "the last consolidation succeeded; after the first one, with spec.consolidation.model",
        "SnapshotFresh": "the last verified snapshot is recent enough; with a schedule",
        "SnapshotVerified": "the last snapshot is verified; after the first one",
    },
    "QdrantConnection": {
        "Ready": "the server responds and can be used",
        "Reachable": "the server responds, with any status code",
        "NearCapacity": "few more collections fit, or none; Unknown if that cannot be determined",
        "Reconciling": "a failed operation is retried; only while True",
        "Stalled": "nothing changes until a person acts; only while True",
    },
    "MemorySnapshot": {
        "Progressing": "current step, or reason for waiting; only while it runs",
        "Succeeded": "the snapshot was created",
        "Verified": "the snapshot is verified; after the first attempt",
    },
    "MemoryRestore": {
        "Progressing": "current step, or reason for waiting; only while it runs",
        "Succeeded": "the restore succeeded; after its end",
        "AlreadyApplied": "the same restore is on record, nothing was done; only while True",
        "RolledBack": "the restore was rolled back; after a request",
    },
}
"""For each kind, the types of its conditions and their meaning."""


@dataclass(frozen=True, slots=True)
class ConditionState:
    """A condition to set.

    Attributes:
        status: True, False, or None for Unknown.
    """

    type: str
    status: bool | None
    reason: str
    message: str


def merge_conditions(
    old: Sequence[Mapping[str, Any]], states: Sequence[ConditionState], *, generation: int, now: str
) -> list[Json]:
    """Build the conditions list from `states`.

    `lastTransitionTime` is kept while the status is unchanged. Types that `states` lacks are removed: `Reconciling` and
    `Stalled` are present only while they are true (kstatus).

    Args:
        old: Conditions of the last pass.
        states: Current conditions.
        generation: metadata.generation of the object, written to each condition.
        now: Current time, RFC 3339 in UTC.
    """
    old_by_type = {condition["type"]: condition for condition in old}
    return [_condition(state, old_by_type.get(state.type), generation=generation, now=now) for state in states]


def _condition(state: ConditionState, old: Mapping[str, Any] | None, *, generation: int, now: str) -> Json:
    status = {True: "True", False: "False", None: "Unknown"}[state.status]
    is_unchanged = old is not None and old.get("status") == status
    return {
        "type": state.type,
        "status": status,
        "reason": str(state.reason),
        # Escape the message, because kubectl prints it unescaped, possibly in a terminal.
        "message": printable_lines(state.message),
        "observedGeneration": generation,
        "lastTransitionTime": old.get("lastTransitionTime", now) if old is not None and is_unchanged else now,
    }


def find_condition(status: Mapping[str, Any] | None, kind: str) -> Mapping[str, Any]:
    """Return the condition of a type in a status. Empty if the status lacks it."""
    conditions = (status or {}).get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def is_true(conditions: Sequence[Mapping[str, Any]], kind: str) -> bool:
    """Return whether the condition of a type is True. False if there is none of the type."""
    return any(condition["type"] == kind and condition["status"] == "True" for condition in conditions)
