"""A shard of an agent's keys, and its text, which is what a Secret or a file holds.

What of a text cannot be read is refused as a whole: whoever wrote it back without a key would destroy that key's
memories.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentmemory_operator.zones.rules.entries import (
    LEVELS,
    SHARD_KEYS,
    SHARD_NAME,
    KeyEntry,
    Ring,
    shard_of_key,
)

SHARD_BYTES = 700_000
"""The most that a shard's text takes: a Secret holds 1 MiB, and its body in base64 is to stay below that too."""

ENTRY_BYTES = 284
"""What one key adds to a shard's text at most."""

_FORMAT = 1
_SCOPE = re.compile(r"[0-9a-f]{64}")
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_WRAPPED = re.compile(r"[A-Za-z0-9+/]{123}=")
_ZONE = re.compile(r"[A-Z]{1,12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A part of an agent's keys, as it was read or is to be written.

    Attributes:
        name: `0`, `1a`, `2a3` or `3a3f`: its level, and how the hashes of its scopes begin.
        entries: by id of the key.
        is_closed: no owner is ever added; some may go.
        below: the next digits of the shards at the next level that hold keys, or held some: one of them that is not
            there was lost.
        version: changes with every write; empty before the first.
    """

    ring: Ring
    name: str
    entries: Mapping[str, KeyEntry] = field(default_factory=dict)
    is_closed: bool = False
    below: str = ""
    version: str = ""

    @property
    def is_full(self) -> bool:
        """Whether its text has no room for another key."""
        return (len(self.entries) + 1) * ENTRY_BYTES > SHARD_BYTES

    def with_key(self, key_id: str, entry: KeyEntry) -> "Shard":
        """The shard with one key more, closed where that is its last."""
        entries = {**self.entries, key_id: entry}
        is_last = int(self.name[0]) < LEVELS - 1 and len(entries) >= SHARD_KEYS
        return replace(self, entries=entries, is_closed=self.is_closed or is_last)

    def with_successor(self, key_id: str, new_id: str, entry: KeyEntry) -> "Shard":
        """The shard with another key in the place of an active one, which stays for what it sealed.

        A closed shard takes it too: an owner's keys lie together.
        """
        before = replace(self.entries[key_id], active=False)
        return replace(self, entries={**self.entries, key_id: before, new_id: entry})

    def leads_to(self, name: str) -> bool:
        """Whether it says that a shard of the next level is there."""
        return name[-1] in self.below

    def leading_to(self, name: str) -> "Shard":
        """The shard that says so."""
        return replace(self, below="".join(sorted({*self.below, name[-1]})))

    def without(self, chosen: Callable[[KeyEntry], bool]) -> "Shard":
        """The shard without the keys that are chosen."""
        return replace(self, entries={key_id: entry for key_id, entry in self.entries.items() if not chosen(entry)})


def shard_to_text(shard: Shard) -> str:
    """What is kept of a shard: JSON, a line each key, in the order of their ids."""
    rows = ",\n".join(f"{json.dumps(key_id)}:{_row(entry)}" for key_id, entry in sorted(shard.entries.items()))
    head = f'"format":{_FORMAT},"closed":{json.dumps(shard.is_closed)},"below":{json.dumps(shard.below)}'
    return f'{{{head},"keys":{{\n{rows}\n}}}}'


def shard_from_text(text: str, *, ring: Ring, name: str, version: str) -> Shard:
    """The shard that a text holds.

    Raises:
        ValueError: it holds none, or another one's keys; says no more of it.
    """
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError("it has an unknown format")
    rows, is_closed, below = document.get("keys"), document.get("closed"), document.get("below", "")
    if not isinstance(rows, dict) or not isinstance(is_closed, bool) or not isinstance(below, str):
        raise ValueError("it contains no keys")
    if any(shard_of_key(key_id) != name for key_id in rows):
        raise ValueError("it contains the keys of another shard")
    entries = {key_id: _entry(row) for key_id, row in rows.items()}
    return Shard(ring=ring, name=name, entries=entries, is_closed=is_closed, below=below, version=version)


def is_shard_name(name: str) -> bool:
    """Whether a shard may have that name."""
    return SHARD_NAME.fullmatch(name) is not None


def _row(entry: KeyEntry) -> str:
    row = [entry.zone, entry.scope, entry.wrapped, entry.by, entry.at, int(entry.active)]
    return json.dumps(row, separators=(",", ":"))


def _entry(row: Any) -> KeyEntry:
    if not isinstance(row, list) or len(row) != 6:
        raise ValueError("a key does not have six fields")
    zone, scope, wrapped, by, at, active = row
    forms = (_ZONE, zone), (_SCOPE, scope), (_WRAPPED, wrapped), (_FINGERPRINT, by)
    if not all(isinstance(text, str) and form.fullmatch(text) for form, text in forms):
        raise ValueError("a field of a key is malformed")
    if type(at) is not int or active not in (0, 1):
        raise ValueError("a field of a key is malformed")
    return KeyEntry(zone=zone, scope=scope, wrapped=wrapped, by=by, at=at, active=bool(active))
