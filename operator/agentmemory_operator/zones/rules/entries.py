"""Data keys of an agent's zones: the record of a key, and the name of the shard that stores it.

A *scope* is one zone of one owner. A scope has one shard at each of four levels. The name of a shard is its level and
the first digits of the scope's hash: one shard for all scopes at level 0, then 16, 256 and 4,096 shards.

If a scope has no active key, a new key is stored in the first of these shards that is not closed. A shard closes
permanently with its 64th key, except at the last level. A rotation adds a key to the shard of the old key. So an agent
with few users has few shards, and an agent with many users writes little for each new user. Two writers that create the
first key of a scope write to the same shard, so the second writer finds the key of the first.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

LEVELS = 4
FIRST_SHARD = "0"
"""Name of the shard at level 0. Every agent that has keys, or had some, has it."""

MAX_SHARD_KEYS = 64
"""Number of keys with which a shard closes. The shards at the last level do not close."""

KEY_BYTES = 64
"""Length of a data key. The first half encrypts, the second half is the secret of keyed hashes."""

KEY_ID = re.compile(r"[0-3][0-9a-f]{31}")
SHARD_NAME = re.compile(r"0|1[0-9a-f]|2[0-9a-f]{2}|3[0-9a-f]{3}")
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_MAX_SLUG = 48
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Ring:
    """The keys of one agent of one namespace.

    If a slug passes to another namespace, the keys do not pass with it.

    Attributes:
        namespace: Namespace of the AgentMemory object.
        agent: Slug of the agent, from the object. It is never taken from a collection's metadata, which a tenant can
            write by restoring a snapshot.

    Raises:
        ValueError: If either is not a valid name, so that no key path can leave the agent's folder.
    """

    namespace: str
    agent: str

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.namespace) or len(self.agent) > _MAX_SLUG or not _SLUG.fullmatch(self.agent):
            raise ValueError(f"not a key ring: {self.namespace[:99]!r}, {self.agent[:99]!r}")

    def __str__(self) -> str:
        return f"{self.namespace}/{self.agent}"


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A data key as it is stored.

    Attributes:
        zone: Zone whose memories the key encrypts.
        scope: Hex SHA-256 of zone and owner, see `scope_hash`.
        wrapped: Bytes of the key, encrypted with the wrapping key, in base64.
        wrapping_fingerprint: Fingerprint of that wrapping key.
        created_ms: Creation time in Unix milliseconds.
        is_active: True if the key encrypts new memories. At most one key of a scope is active.
    """

    zone: str
    scope: str
    wrapped: str = field(repr=False)
    wrapping_fingerprint: str
    created_ms: int
    is_active: bool = True


def scope_hash(zone: str, owner: str) -> str:
    """Return the hex SHA-256 of zone and owner, which is stored instead of the owner's id.

    Args:
        owner: Id of a user as stored, or an organisation.
    """
    return hashlib.sha256(f"{zone}\0{owner}".encode()).hexdigest()


def shard_at(scope: str, level: int) -> str:
    """Return the name of a scope's shard at a level: the level, then `level` digits of the scope's hash."""
    return f"{level}{scope[:level]}"


def shards_below(shard: str) -> tuple[str, ...]:
    """Return the names of the 16 shards that take new scopes of a closed shard; empty at the last level."""
    level = int(shard[0]) + 1
    return tuple(f"{level}{shard[1:]}{digit:x}" for digit in range(16)) if level < LEVELS else ()


def new_key_id(shard: str) -> str:
    """Return a random key id that starts with the name of its shard: 32 hex digits, at least 112 random bits."""
    return shard + secrets.token_hex(16)[len(shard) :]


def shard_of_key(key_id: str) -> str | None:
    """Return the name of the shard of a key, or None for a malformed id. Ids are read from untrusted collections."""
    return key_id[: int(key_id[0]) + 1] if KEY_ID.fullmatch(key_id) else None


def find_active_key_id(entries: Mapping[str, KeyEntry], scope: str) -> str | None:
    """Return the id of the newest active key of a scope, which encrypts new memories, or None."""
    active_keys = [
        (entry.created_ms, key_id) for key_id, entry in entries.items() if entry.scope == scope and entry.is_active
    ]
    return max(active_keys)[1] if active_keys else None
