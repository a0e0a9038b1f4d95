"""One table from errors to reasons: each error has one, and nothing else decides it."""

import pathlib
import re
from collections.abc import Iterator

import pytest

from agentmemory_operator import errors
from agentmemory_operator.error_reasons import reason_of
from agentmemory_operator.errors import AgentMemoryError, FieldError
from agentmemory_operator.spec.kinds.conditions import Reason

PACKAGE = pathlib.Path(errors.__file__).parent
OWN = "its own"
# Errors of requests to the API, which no pass meets.
OF_REQUESTS = {"Conflict", "Forbidden", "Unauthenticated", "DecryptionFailed"}
# Every error of the tree, with its reason and whether only a person can help.
TOLD: dict[str, tuple[str, bool]] = {
    "AgentMemoryError": ("QdrantRejected", True),
    "SpecInvalid": (OWN, True),
    "SecretMissing": ("SecretNotFound", True),
    "SecretNotUsable": ("SecretNotUsable", True),
    "NotOwned": (OWN, True),
    "RequestInvalid": ("InvalidSpec", True),
    "NotFound": ("QdrantUnavailable", False),
    "CollectionNotFound": ("CollectionLost", False),
    "RestoreInProgress": ("Restoring", False),
    "RebuildPaused": ("RebuildPaused", True),
    "RebuildAwaitsApproval": ("AwaitingApproval", True),
    "RebuildCancelled": ("RebuildCancelled", True),
    "StoreRejected": ("QdrantRejected", True),
    "StorageRejected": ("StorageRejected", True),
    "ServerFull": ("ServerFull", True),
    "NamespaceFull": ("NamespaceFull", True),
    "ServerFullRetryable": ("ServerFull", False),
    "NamespaceTerminating": ("TargetGone", True),
    "ChecksumMismatch": ("ChecksumDiffers", True),
    "TransientError": ("Retrying", False),
    "StoreUnavailable": ("QdrantUnavailable", False),
    "TlsVerificationFailed": ("TLSFailed", True),
    "ResponseTimeout": ("QdrantUnavailable", False),
    "RouteNotFound": ("QdrantUnavailable", False),
    "RecoveryOutcomeUnknown": ("QdrantUnavailable", False),
    "AgentClosed": ("Restoring", False),
    "CollectionUnavailable": ("CollectionLost", False),
    "CollectionDeleted": ("CollectionLost", False),
    "CollectionMoved": ("QdrantUnavailable", False),
    "DeletionPending": ("DeletionWaiting", False),
    "StorageUnavailable": ("StorageUnavailable", False),
    "KeysUnavailable": ("KeyStoreUnavailable", False),
    "KeysDamaged": ("KeyStoreUnavailable", False),
    "ModelUnavailable": ("ModelUnavailable", False),
    "ModelOutputInvalid": ("ModelAnswersInvalid", True),
    "EmbedderUnavailable": ("Retrying", False),
    "EmbedderFailed": ("Retrying", False),
    "EmbedderOutputInvalid": ("Retrying", False),
    "RerankerUnavailable": ("Retrying", False),
    "OutcomeUnknown": ("QdrantUnavailable", False),
    "LeadershipLost": ("Retrying", False),
}


def tree(root: type[AgentMemoryError] = AgentMemoryError) -> Iterator[type[AgentMemoryError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


def one_of(kind: type[AgentMemoryError]) -> AgentMemoryError:
    match kind.__name__:
        case "SpecInvalid" | "NotOwned":
            return kind(OWN, "a message")
        case "SecretMissing":
            return kind("agents", "key", "api-key")
        case "RequestInvalid":
            return kind([FieldError("a", "b")])
        case "StoreRejected":
            return kind(403, "a message")
        case "StorageRejected":
            return kind(403, "AccessDenied", "a message")
        case _:
            return kind("a message")


def test_every_error_of_the_tree_is_decided() -> None:
    assert {kind.__name__ for kind in tree()} == TOLD.keys() | OF_REQUESTS


@pytest.mark.parametrize("kind", [kind for kind in tree() if kind.__name__ not in OF_REQUESTS])
def test_an_error_has_one_reason(kind: type[AgentMemoryError]) -> None:
    assert reason_of(one_of(kind)) == TOLD[kind.__name__]
    assert TOLD[kind.__name__][0] in {*Reason, OWN}


def test_nothing_else_turns_errors_into_reasons() -> None:
    tables = [path.name for path in PACKAGE.rglob("*.py") if re.search(r"def _?reason_of", path.read_text("utf-8"))]

    assert tables == ["error_reasons.py"]
