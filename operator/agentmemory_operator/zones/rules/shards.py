"""A shard of an agent's keys, and its text, which is stored in a Secret or a file.

A text with any malformed entry is rejected as a whole. If it were written back without that key, the key's memories
would be lost.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentmemory_operator.zones.rules.entries import LEVELS, MAX_SHARD_KEYS, SHARD_NAME, KeyEntry, Ring, shard_of_key

MAX_SHARD_BYTES = 700_000
"""Maximum size of a shard's text in bytes.

A Secret holds 1 MiB. In base64, as it is sent to the Kubernetes API, the text is a third larger and still below that.
"""

MAX_ENTRY_BYTES = 284
"""Maximum size of one key in a shard's text, in bytes."""

_FORMAT = 1
_SCOPE = re.compile(r"[0-9a-f]{64}")
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_WRAPPED = re.compile(r"[A-Za-z0-9+/]{123}=")
_ZONE = re.compile(r"[A-Z]{1,12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Some of an agent's keys, as read from the store or to be written to it.

    Attributes:
        name: `0`, `1a`, `2a3` or `3a3f`: the level and the first digits of the hashes of its scopes.
        entries: Keys by their id.
        is_closed: True if no new scope is added any more. Keys can be removed and rotated.
        child_digits: Next digits of the child shards that have keys, or had some. If such a child does not exist, it
            was lost.
        version: Version of the stored shard, which changes with each write; empty if it is not stored.
    """

    ring: Ring
    name: str
    entries: Mapping[str, KeyEntry] = field(default_factory=dict)
    is_closed: bool = False
    child_digits: str = ""
    version: str = ""

    @property
    def is_full(self) -> bool:
        """True if one more key of maximum size could make the text larger than `MAX_SHARD_BYTES`."""
        return (len(self.entries) + 1) * MAX_ENTRY_BYTES > MAX_SHARD_BYTES

    def with_key(self, key_id: str, entry: KeyEntry) -> "Shard":
        """Return the shard with one more key. The 64th key closes the shard, unless it is at the last level."""
        entries = {**self.entries, key_id: entry}
        closes = int(self.name[0]) < LEVELS - 1 and len(entries) >= MAX_SHARD_KEYS
        return replace(self, entries=entries, is_closed=self.is_closed or closes)

    def with_successor(self, key_id: str, new_id: str, entry: KeyEntry) -> "Shard":
        """Return the shard with a new active key of a scope. The old key stays, to decrypt existing memories.

        A closed shard accepts the new key too, because all keys of a scope must be in the same shard.
        """
        replaced = replace(self.entries[key_id], is_active=False)
        return replace(self, entries={**self.entries, key_id: replaced, new_id: entry})

    def has_child(self, name: str) -> bool:
        """Return whether a child shard is recorded in `child_digits`."""
        return name[-1] in self.child_digits

    def with_child(self, name: str) -> "Shard":
        """Return the shard with a child recorded in `child_digits`."""
        return replace(self, child_digits="".join(sorted({*self.child_digits, name[-1]})))

    def without(self, chosen: Callable[[KeyEntry], bool]) -> "Shard":
        """Return the shard without the keys for which `chosen` returns True."""
        return replace(self, entries={key_id: entry for key_id, entry in self.entries.items() if not chosen(entry)})


def render_shard(shard: Shard) -> str:
    """Render a shard as JSON, one line for each key, sorted by id."""
    rows = ",\n".join(f"{json.dumps(key_id)}:{_row(entry)}" for key_id, entry in sorted(shard.entries.items()))
    head = f'"format":{_FORMAT},"closed":{json.dumps(shard.is_closed)},"below":{json.dumps(shard.child_digits)}'
    return f'{{{head},"keys":{{\n{rows}\n}}}}'


def parse_shard(text: str, *, ring: Ring, name: str, version: str) -> Shard:
    """Parse the text of a shard.

    Raises:
        ValueError: If the text is not a shard, or contains keys of another shard. The message quotes no key.
    """
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError("it has an unknown format")
    rows, is_closed, child_digits = document.get("keys"), document.get("closed"), document.get("below", "")
    if not isinstance(rows, dict) or not isinstance(is_closed, bool) or not isinstance(child_digits, str):
        raise ValueError("it contains no keys")
    if any(shard_of_key(key_id) != name for key_id in rows):
        raise ValueError("it contains the keys of another shard")
    entries = {key_id: _entry(row) for key_id, row in rows.items()}
    return Shard(ring=ring, name=name, entries=entries, is_closed=is_closed, child_digits=child_digits, version=version)


def is_shard_name(name: str) -> bool:
    """Return whether a name is a level from 0 to 3, followed by as many hex digits."""
    return SHARD_NAME.fullmatch(name) is not None


def _row(entry: KeyEntry) -> str:
    row = [entry.zone, entry.scope, entry.wrapped, entry.wrapping_fingerprint, entry.created_ms, int(entry.is_active)]
    return json.dumps(row, separators=(",", ":"))


def _entry(row: Any) -> KeyEntry:
    if not isinstance(row, list) or len(row) != 6:
        raise ValueError("a key does not have six fields")
    zone, scope, wrapped, fingerprint, at, active = row
    patterns = (_ZONE, zone), (_SCOPE, scope), (_WRAPPED, wrapped), (_FINGERPRINT, fingerprint)
    if not all(isinstance(text, str) and pattern.fullmatch(text) for pattern, text in patterns):
        raise ValueError("a field of a key is malformed")
    if type(at) is not int or active not in (0, 1):
        raise ValueError("a field of a key is malformed")
    return KeyEntry(
        zone=zone, scope=scope, wrapped=wrapped, wrapping_fingerprint=fingerprint, created_ms=at, is_active=bool(active)
    )
