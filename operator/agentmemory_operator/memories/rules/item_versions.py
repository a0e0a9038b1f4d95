"""Earlier versions of an item: they lie in its own point, so that they go, stay and are copied with it as one.

No search, list or count sees them, because they are no points. What a PUT replaces is kept as it was said, the newest
first, up to a number and a size.
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

MAX_CHARS = 256 * 1024
"""Of all versions of an item together, as JSON: every write of the item carries them."""

NUMBER_KEY = PAYLOAD_KEYS["item_version"]
_SAID = ("content", "contentHash", "metadata", "importance", "tags", "category")
_KEPT = (*_SAID, "validFrom", STORED_KEY, CHANGED_KEY)
# What all versions of an item have in common.
_SHARED = ("id", "agentId", "userId", "type", "createdAt", "updatedAt", "namespace", "key", "parentId")


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemVersion:
    """An earlier version as an export tells it.

    Attributes:
        valid_from, valid_to: Unix milliseconds between which it was what the item says.
        updated_at: when somebody changed it last, Unix milliseconds.
        version: its number; None in an export of an earlier API.
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

    def stored(self, now_ms: int) -> Payload:
        """What a point bears of it, which is stored now, whenever it was said."""
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
    """What a point bears of its versions after some writes, in order, of which the last is what it says then.

    Args:
        row: the item that lies there; None where there is none.
        writes: what each says.
        keep: how many versions at most.
    """
    versions: list[Payload] = list((row or {}).get(VERSIONS_KEY) or ())
    states = [*([row] if row else []), *writes]
    number = number_of(row) if row else 1
    for before, after in pairwise(states):
        if _says_the_same(before, after):
            continue
        if not before.get("expiresAt"):
            versions.insert(0, _version(before, ended_at=after["validFrom"], number=number))
        number += 1
    return bounded(versions, keep=keep) | {NUMBER_KEY: number}


def number_of(row: Mapping[str, Any]) -> int:
    """Return the version number of an item. One from before numbers were stored counts its kept versions."""
    return int(row.get(NUMBER_KEY) or len(row.get(VERSIONS_KEY) or ()) + 1)


def bounded(versions: Sequence[Payload], *, keep: int) -> Payload:
    """Versions as a point bears them, newest first; None takes away those that it has."""
    kept: list[Payload] = []
    room = MAX_CHARS
    for version in versions[:keep]:
        room -= len(json.dumps(version, ensure_ascii=False))
        if room < 0:
            break
        kept.append(version)
    since = min((version.get(STORED_KEY) or 0 for version in kept), default=None)
    return {VERSIONS_KEY: kept or None, VERSIONS_SINCE_KEY: since}


def versions_of(row: Mapping[str, Any], *, keep: int) -> list[MemoryRecord]:
    """The versions that a point bears, newest first."""
    shared = {key: row[key] for key in _SHARED if key in row}
    return [record_of(shared | version) for version in (row.get(VERSIONS_KEY) or ())[:keep]]


def _version(state: Mapping[str, Any], *, ended_at: int, number: int | None) -> Payload:
    said = {key: state[key] for key in _KEPT if state.get(key) is not None}
    numbered = {} if number is None else {NUMBER_KEY: number}
    return said | numbered | {"validTo": ended_at, "supersededAt": ended_at}


def _says_the_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all((one.get(key) or None) == (other.get(key) or None) for key in _SAID)
