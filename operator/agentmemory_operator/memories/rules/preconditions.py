"""Entity tags of stored memories, preconditions of writes that name them (RFC 9110), and marks of repeated requests.

A tag identifies a version of a memory or item. Every write by a caller changes it, and so do a supersession, a merge,
a note of a consolidation and a further author. Access counts and other work on a point keep it, and so does a copy of
the point: the tags of a rebuilt collection are those of its source, the tags of a restored one those of the snapshot.

A write checks its precondition on the row that it then replaces by compare-and-set on `rev`. If the row has changed in
between, nothing is written, and the next attempt checks the new row.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from agentmemory_operator.errors import AgentMemoryError, Conflict
from agentmemory_operator.memories.rules.item_rules import MAX_WRITE_MARKS, marks_of
from agentmemory_operator.memories.rules.record import (
    CHANGED_KEY,
    CONNECTIONS_KEY,
    NOTED_KEY,
    REQUEST_MARKS_KEY,
    STORED_KEY,
    MemoryRecord,
    Payload,
    record_of,
)
from agentmemory_operator.zones.rules.sealing import ZONE_KEY, sealed_keys

ANY = "*"
"""Tag of a precondition that every stored version meets."""

# What readers can see, and may change without a new write mark. Content never changes without one.
_TAGGED_KEYS = (
    *("id", CHANGED_KEY, ZONE_KEY, "observedBy", "category", "knowledgeCategory", CONNECTIONS_KEY),
    *("supersedesId", "supersedesIds", "supersededById", NOTED_KEY),
)


class PreconditionFailed(AgentMemoryError):
    """The stored version is not the one that a conditional write names. Nothing was written. HTTP 412.

    Attributes:
        etag: Entity tag of the stored version; None if there is none.
    """

    def __init__(self, message: str, *, etag: str | None = None) -> None:
        super().__init__(message)
        self.etag = etag


@dataclass(frozen=True, slots=True)
class Precondition:
    """Condition on the version that a write replaces, changes or deletes.

    Attributes:
        etag: Tag that the version must have; ANY is met by every version; None if there must be no version.
    """

    etag: str | None

    def find_failure(self, current: str | None) -> PreconditionFailed | None:
        """Return the error if the condition is not met, else None.

        Args:
            current: Tag of the stored version; None if there is none.
        """
        if current == self.etag or (self.etag == ANY and current is not None):
            return None
        if self.etag is None:
            message = "If-None-Match: it is stored already: to replace it, send If-Match with its ETag"
        elif current is None:
            message = "If-Match: nothing is stored here: to create it, send If-None-Match: *"
        else:
            message = "If-Match: the stored version has another ETag: read it, and repeat the request with its ETag"
        return PreconditionFailed(message, etag=current)


def check_precondition(precondition: Precondition | None, row: Mapping[str, Any]) -> None:
    """Raise unless a stored row meets the precondition.

    Raises:
        PreconditionFailed: If it does not.
    """
    if precondition and (failure := precondition.find_failure(etag_of(row))):
        raise failure


def etag_of(row: Mapping[str, Any]) -> str:
    """Return the entity tag of a stored row, without quotes. It is the same if the row is locked."""
    zone = row.get(ZONE_KEY)
    hidden = sealed_keys(zone) if zone else frozenset[str]()
    last_write: list[Any] = marks_of(row)[-1:] or [row.get(STORED_KEY)]
    state = [row.get(key) or None for key in _TAGGED_KEYS if key not in hidden]
    text = json.dumps([last_write, float(row.get("importance") or 0), *state], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:24]


def tagged_record(row: Payload) -> MemoryRecord:
    """Return the memory stored in a row, with its entity tag."""
    return replace(record_of(row), etag=etag_of(row))


def request_mark(idempotency_key: str, body: str, *, secret: str = "") -> str:
    """Return the mark of a request: hashes of its idempotency key and body, as `key:body`. No hash of an empty body.

    Args:
        secret: Makes the hashes useless for testing guesses of key and body.
    """
    return f"{_digest(secret + idempotency_key)}:{_digest(secret + body) if body else ''}"


def is_repeated(mark: str | None, earlier_marks: Sequence[str]) -> bool:
    """Return whether an earlier request had the same idempotency key and body; False without a key.

    Raises:
        Conflict: If an earlier request had the same key and another body.
    """
    if mark is None:
        return False
    key = mark.partition(":")[0]
    # Compare only the keys if one of the marks has no body: a tombstone does not keep the hash of the body.
    if mark in earlier_marks or f"{key}:" in earlier_marks:
        return True
    if any(earlier.partition(":")[0] == key for earlier in earlier_marks):
        raise Conflict("Idempotency-Key: already used with another body; send a new key")
    return False


def append_request(row: Mapping[str, Any] | None, *marks: str | None) -> list[str]:
    """Return the request marks of a point after further requests: the last 16, oldest first. None has no mark."""
    return [*marks_of(row, REQUEST_MARKS_KEY), *filter(None, marks)][-MAX_WRITE_MARKS:]


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
