"""Earlier versions of an item. They are stored in the item's own point, and so copied, kept and deleted with it.

Searches, lists and counts do not find them, because they are not points. A PUT keeps the content that it replaces,
newest first, up to a number and a size.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from agentmemory_operator.memories.rules.record import (
    CHANGED_KEY,
    PAYLOAD_KEYS,
    STORED_KEY,
    VERSIONS_KEY,
    VERSIONS_SINCE_KEY,
    MemoryRecord,
    Payload,
    hash_content,
    record_of,
)

MAX_VERSIONS_CHARS = 256 * 1024
"""Maximum size of all versions of an item, in characters of their JSON: every write of the item sends them."""

NUMBER_KEY = PAYLOAD_KEYS["item_version"]
_CONTENT_KEYS = ("content", "contentHash", "metadata", "importance", "tags", "category")
_VERSION_KEYS = (*_CONTENT_KEYS, "validFrom", STORED_KEY, CHANGED_KEY)
# Keys with the same value in all versions of an item.
_SHARED_KEYS = ("id", "agentId", "userId", "type", "createdAt", "updatedAt", "namespace", "key", "parentId")


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemVersion:
    """An earlier version, as in an export.

    Attributes:
        valid_from, valid_to: Unix milliseconds between which it was the item's content.
        importance: 0..1.
        updated_at: Time of the last edit by a caller, Unix milliseconds; None uses `valid_from`.
        version: Version number; None in an export of an earlier API.
    """

    content: str
    valid_from: int
    valid_to: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    importance: float = 0.5
    tags: tuple[str, ...] = ()
    category: str | None = None
    updated_at: int | None = None
    version: int | None = None

    def to_payload(self, now_ms: int) -> Payload:
        """Return the payload of the version, with `now_ms` as its time of storage."""
        state = {
            "content": self.content,
            "contentHash": hash_content(self.content),
            "metadata": dict(self.metadata),
            "importance": self.importance,
            "tags": list(self.tags) or None,
            "category": self.category,
            "validFrom": self.valid_from,
            STORED_KEY: now_ms,
            CHANGED_KEY: self.valid_from if self.updated_at is None else self.updated_at,
        }
        return _version(state, ended_at=self.valid_to, number=self.version)


def versions_after(row: Mapping[str, Any] | None, writes: Sequence[Payload], *, keep: int) -> Payload:
    """Return the payload with the earlier versions of an item, and its version number, after a sequence of writes.

    Contents that have an `expiresAt` are not kept. A write that repeats the content before it adds no version.

    Args:
        row: Payload of the stored item; None if there is none.
        writes: Payloads in order; the last becomes the item's content.
        keep: Maximum number of versions.
    """
    versions: list[Payload] = list((row or {}).get(VERSIONS_KEY) or ())
    contents = [*([row] if row else []), *writes]
    number = version_number(row) if row else 1
    for before, after in pairwise(contents):
        if _has_same_content(before, after):
            continue
        if not before.get("expiresAt"):
            versions.insert(0, _version(before, ended_at=after["validFrom"], number=number))
        number += 1
    return bounded_versions(versions, keep=keep) | {NUMBER_KEY: number}


def version_number(row: Mapping[str, Any]) -> int:
    """Return the version number of an item. For items stored before numbers existed, count the kept versions."""
    return int(row.get(NUMBER_KEY) or len(row.get(VERSIONS_KEY) or ()) + 1)


def bounded_versions(versions: Sequence[Payload], *, keep: int) -> Payload:
    """Return the payload with versions, newest first, within both limits. A None value deletes stored versions."""
    newest: list[Payload] = []
    remaining_chars = MAX_VERSIONS_CHARS
    for version in versions[:keep]:
        remaining_chars -= len(json.dumps(version, ensure_ascii=False))
        if remaining_chars < 0:
            break
        newest.append(version)
    since = min((version.get(STORED_KEY) or 0 for version in newest), default=None)
    return {VERSIONS_KEY: newest or None, VERSIONS_SINCE_KEY: since}


def versions_of(row: Mapping[str, Any], *, keep: int) -> list[MemoryRecord]:
    """Return the earlier versions in an item's payload, newest first, at most `keep`."""
    shared = {key: row[key] for key in _SHARED_KEYS if key in row}
    return [record_of(shared | version) for version in (row.get(VERSIONS_KEY) or ())[:keep]]


def _version(state: Mapping[str, Any], *, ended_at: int, number: int | None) -> Payload:
    content = {key: state[key] for key in _VERSION_KEYS if state.get(key) is not None}
    numbered = {} if number is None else {NUMBER_KEY: number}
    return content | numbered | {"validTo": ended_at, "supersededAt": ended_at}


def _has_same_content(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return all((before.get(key) or None) == (after.get(key) or None) for key in _CONTENT_KEYS)
