"""What a failed pass is told as."""

from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.errors import (
    AgentMemoryError,
    DeletionWaiting,
    NotOwned,
    RestoreUnderWay,
    SpecInvalid,
    StoreRejected,
    StoreUntrusted,
)


def reason_of(exc: AgentMemoryError) -> tuple[str, bool]:
    """Return the condition's reason, and whether only a person can help."""
    match exc:
        case SpecInvalid() | NotOwned():
            return exc.reason, True
        case StoreRejected():
            return Reason.QDRANT_REJECTED, True
        case DeletionWaiting():
            return Reason.DELETION_WAITING, False
        case RestoreUnderWay():
            return Reason.RESTORING, False
        case StoreUntrusted():
            return Reason.TLS_FAILED, True
        case _:
            return Reason.QDRANT_UNAVAILABLE, False
