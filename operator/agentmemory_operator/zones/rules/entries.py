"""The keys of an agent's zones as they are kept: whose they are, and in which shard of them each lies.

A scope is a zone of one owner. It has a shard at each of four levels, named by the first digits of its hash: one for
all scopes at level 0, then 16, 256 and 4,096. A key is made in the first that is not closed, and a shard closes for
good with its 64th key. So an agent of few users has few shards, one of many writes little for each new user, and of
two writers who want a scope's first key at once one finds the other's.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

LEVELS = 4
FIRST_SHARD = "0"
"""Every agent that has keys, or had any, has this one."""

SHARD_KEYS = 64
"""With so many a shard closes, but at the last level."""

KEY_BYTES = 64
"""Of a data key: the first half encrypts, the second makes keyed hashes."""

KEY_ID = re.compile(r"[0-3][0-9a-f]{31}")
SHARD_NAME = re.compile(r"0|1[0-9a-f]|2[0-9a-f]{2}|3[0-9a-f]{3}")
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_MOST_SLUG = 48
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Ring:
    """Whose keys: an agent's, of one namespace.

    A slug may come to belong to another namespace; the keys do not go along.

    Attributes:
        namespace: of the AgentMemory object.
        agent: its slug; never what a collection says of where its memories are from, which whoever restores a snapshot
            of their own may have written.

    Raises:
        ValueError: one of both is no such name.
    """

    namespace: str
    agent: str

    def __post_init__(self) -> None:
        """Let nothing through that could name another place."""
        if not _NAMESPACE.fullmatch(self.namespace) or len(self.agent) > _MOST_SLUG or not _SLUG.fullmatch(self.agent):
            raise ValueError(f"not a key ring: {self.namespace[:99]!r}, {self.agent[:99]!r}")

    def __str__(self) -> str:
        return f"{self.namespace}/{self.agent}"


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One data key as it is kept.

    Attributes:
        zone: whose memories it seals.
        scope: SHA-256, in hex, of zone and owner: see `scope_hash`.
        wrapped: the key's bytes, encrypted under the wrapping key; base64.
        by: fingerprint of that wrapping key.
        at: Unix milliseconds of its making.
        active: new memories are sealed with it; at most one of a scope is.
    """

    zone: str
    scope: str
    wrapped: str = field(repr=False)
    by: str
    at: int
    active: bool = True


def scope_hash(zone: str, owner: str) -> str:
    """What stands for the owner of a key: SHA-256 in hex.

    Args:
        owner: a user's id as stored, or an organisation.
    """
    return hashlib.sha256(f"{zone}\0{owner}".encode()).hexdigest()


def shard_at(scope: str, level: int) -> str:
    """The name of a scope's shard at a level: the level, then as many digits of the scope's hash."""
    return f"{level}{scope[:level]}"


def shards_below(shard: str) -> tuple[str, ...]:
    """The names of the shards that take the keys of a closed one's scopes; none below the last level."""
    level = int(shard[0]) + 1
    return tuple(f"{level}{shard[1:]}{digit:x}" for digit in range(16)) if level < LEVELS else ()


def new_key_id(shard: str) -> str:
    """A random id that begins with the name of its shard: 32 hex digits, so at least 112 bits by chance."""
    return shard + secrets.token_hex(16)[len(shard) :]


def shard_of_key(key_id: str) -> str | None:
    """The name of the shard that a key is in; None where that is no id of a key: a collection may say anything."""
    return key_id[: int(key_id[0]) + 1] if KEY_ID.fullmatch(key_id) else None


def active_in(entries: Mapping[str, KeyEntry], scope: str) -> str | None:
    """The id of the key that a scope's new memories are sealed with, None where there is none."""
    found = [(entry.at, key_id) for key_id, entry in entries.items() if entry.scope == scope and entry.active]
    return max(found)[1] if found else None
