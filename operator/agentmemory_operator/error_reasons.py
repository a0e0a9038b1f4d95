"""Map each error to a condition reason and a problem type of the HTTP API. This table is the only such mapping.

An error class without a row uses the row of its nearest ancestor. Some errors never occur in a pass over an object,
others never in a request: the unused column of their row has no effect.
"""

from collections.abc import Mapping

from agentmemory_operator import errors as e
from agentmemory_operator.memories.rules.preconditions import PreconditionFailed
from agentmemory_operator.spec.kinds.conditions import Reason

ERROR_REASONS: Mapping[type[e.AgentMemoryError], tuple[Reason, str]] = {
    e.AgentMemoryError: (Reason.QDRANT_REJECTED, "internal-error"),
    e.SpecInvalid: (Reason.QDRANT_REJECTED, "agent-misconfigured"),
    e.NotOwned: (Reason.QDRANT_REJECTED, "agent-misconfigured"),
    e.RequestInvalid: (Reason.INVALID_SPEC, "invalid-request"),
    e.NotFound: (Reason.QDRANT_UNAVAILABLE, "not-found"),
    e.CollectionNotFound: (Reason.COLLECTION_LOST, "not-found"),
    e.Unauthenticated: (Reason.QDRANT_REJECTED, "unauthorized"),
    e.Forbidden: (Reason.QDRANT_REJECTED, "forbidden"),
    e.Conflict: (Reason.QDRANT_REJECTED, "conflict"),
    PreconditionFailed: (Reason.QDRANT_REJECTED, "precondition-failed"),
    e.RestoreInProgress: (Reason.RESTORING, "internal-error"),
    e.RebuildPaused: (Reason.REBUILD_PAUSED, "internal-error"),
    e.RebuildAwaitsApproval: (Reason.AWAITING_APPROVAL, "internal-error"),
    e.RebuildCancelled: (Reason.REBUILD_CANCELLED, "internal-error"),
    e.StoreRejected: (Reason.QDRANT_REJECTED, "store-rejected"),
    e.StorageRejected: (Reason.STORAGE_REJECTED, "store-rejected"),
    e.ServerFull: (Reason.SERVER_FULL, "internal-error"),
    e.NamespaceFull: (Reason.NAMESPACE_FULL, "internal-error"),
    e.NamespaceTerminating: (Reason.TARGET_GONE, "internal-error"),
    e.ChecksumMismatch: (Reason.CHECKSUM_DIFFERS, "internal-error"),
    e.ModelOutputInvalid: (Reason.MODEL_ANSWERS_INVALID, "internal-error"),
    e.TransientError: (Reason.RETRYING, "unavailable"),
    e.ServerFullRetryable: (Reason.SERVER_FULL, "unavailable"),
    e.StoreUnavailable: (Reason.QDRANT_UNAVAILABLE, "store-unavailable"),
    e.TlsVerificationFailed: (Reason.TLS_FAILED, "store-unavailable"),
    e.CollectionUnavailable: (Reason.COLLECTION_LOST, "collection-missing"),
    e.AgentClosed: (Reason.RESTORING, "agent-closed"),
    e.DeletionPending: (Reason.DELETION_WAITING, "store-unavailable"),
    e.StorageUnavailable: (Reason.STORAGE_UNAVAILABLE, "unavailable"),
    e.KeysUnavailable: (Reason.KEY_STORE_UNAVAILABLE, "keys-unavailable"),
    e.EmbedderUnavailable: (Reason.RETRYING, "embedder-unavailable"),
    e.EmbedderOutputInvalid: (Reason.RETRYING, "embedder-answer-invalid"),
    e.ModelUnavailable: (Reason.MODEL_UNAVAILABLE, "unavailable"),
    e.OutcomeUnknown: (Reason.QDRANT_UNAVAILABLE, "outcome-unknown"),
}
"""Condition reason and problem type by error class. The `reason` of a SpecInvalid or NotOwned takes precedence."""

_RETRIED = (e.TransientError, e.RestoreInProgress, e.NotFound)


def reason_of(exc: e.AgentMemoryError) -> tuple[str, bool]:
    """Return the condition reason of an error, and whether only a person can resolve it.

    False for TransientError except TlsVerificationFailed, for RestoreInProgress and for NotFound.
    """
    needs_person = isinstance(exc, e.TlsVerificationFailed) or not isinstance(exc, _RETRIED)
    specific = exc.reason if isinstance(exc, e.SpecInvalid | e.NotOwned) else None
    return specific or row_of(exc)[0], needs_person


def row_of(exc: e.AgentMemoryError) -> tuple[Reason, str]:
    """Return the table row of an error: condition reason and problem type."""
    return next(ERROR_REASONS[cls] for cls in type(exc).__mro__ if cls in ERROR_REASONS)
