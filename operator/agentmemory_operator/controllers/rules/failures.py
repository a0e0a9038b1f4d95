"""What a failed pass is told as: the one table from errors to reasons, for every kind of object.

Of an error that the table does not list, the nearest of its ancestors counts.
"""

from collections.abc import Mapping

from agentmemory_operator.errors import (
    AgentClosed,
    AgentMemoryError,
    BytesDiffer,
    CollectionNotFound,
    DeletionWaiting,
    KeysUnavailable,
    ModelAnswerInvalid,
    ModelUnavailable,
    NamespaceEnding,
    NamespaceFull,
    NotFound,
    NotOwned,
    NotServed,
    OutcomeUnknown,
    RebuildHeld,
    RebuildPaused,
    RebuildUnwanted,
    RequestInvalid,
    RestoreUnderWay,
    ServerFull,
    ServerFullForNow,
    SpecInvalid,
    StorageRejected,
    StorageUnavailable,
    StoreRejected,
    StoreUnavailable,
    StoreUntrusted,
    TransientError,
)
from agentmemory_operator.spec.kinds.conditions import Reason

REASONS: Mapping[type[AgentMemoryError], Reason] = {
    # What refuses a call for good, and is none of those below, is a server.
    AgentMemoryError: Reason.QDRANT_REJECTED,
    StoreRejected: Reason.QDRANT_REJECTED,
    StorageRejected: Reason.STORAGE_REJECTED,
    NotFound: Reason.QDRANT_UNAVAILABLE,
    CollectionNotFound: Reason.COLLECTION_LOST,
    RequestInvalid: Reason.INVALID_SPEC,
    RestoreUnderWay: Reason.RESTORING,
    RebuildPaused: Reason.REBUILD_PAUSED,
    RebuildHeld: Reason.AWAITING_APPROVAL,
    RebuildUnwanted: Reason.REBUILD_CANCELLED,
    NamespaceEnding: Reason.TARGET_GONE,
    ServerFull: Reason.SERVER_FULL,
    ServerFullForNow: Reason.SERVER_FULL,
    NamespaceFull: Reason.NAMESPACE_FULL,
    BytesDiffer: Reason.CHECKSUM_DIFFERS,
    TransientError: Reason.RETRYING,
    StoreUnavailable: Reason.QDRANT_UNAVAILABLE,
    OutcomeUnknown: Reason.QDRANT_UNAVAILABLE,
    StoreUntrusted: Reason.TLS_FAILED,
    NotServed: Reason.COLLECTION_LOST,
    AgentClosed: Reason.RESTORING,
    DeletionWaiting: Reason.DELETION_WAITING,
    StorageUnavailable: Reason.STORAGE_UNAVAILABLE,
    KeysUnavailable: Reason.KEY_STORE_UNAVAILABLE,
    ModelUnavailable: Reason.MODEL_UNAVAILABLE,
    ModelAnswerInvalid: Reason.MODEL_ANSWERS_INVALID,
}
"""SpecInvalid and NotOwned bring their own."""

_TRIED_AGAIN = (TransientError, RestoreUnderWay, NotFound)


def reason_of(exc: AgentMemoryError) -> tuple[str, bool]:
    """The reason that conditions and events give, and whether only a person can help."""
    needs_person = isinstance(exc, StoreUntrusted) or not isinstance(exc, _TRIED_AGAIN)
    if isinstance(exc, SpecInvalid | NotOwned):
        return exc.reason, needs_person
    return next(REASONS[cls] for cls in type(exc).__mro__ if cls in REASONS), needs_person
