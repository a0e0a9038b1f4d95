"""Encrypt the data keys of an agent with the current wrapping key, shard by shard. No memory is changed.

The walk can be repeated after a crash at any point: a key that uses the current wrapping key stays as it is. Each shard
is written by compare-and-set. So keys that other processes create in the meantime are not lost, and keys that they
destroy are not restored.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from agentmemory_operator.errors import Conflict, KeysDamaged, KeysUnavailable, TransientError
from agentmemory_operator.ports.key_shards import KeyShards
from agentmemory_operator.runtime.tasks import update
from agentmemory_operator.zones.rules.entries import KeyEntry, Ring, shards_below
from agentmemory_operator.zones.rules.shards import Shard
from agentmemory_operator.zones.wrapping_keys import WrappingKeys

MAX_WRITE_ATTEMPTS = 8
"""Maximum number of attempts to write a shard that other processes write too."""

_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class Census:
    """Counts of a walk through an agent's shards.

    Attributes:
        shards: Number of shards, including damaged ones.
        keys: Number of data keys in readable shards.
        rewrapped: Number of keys that the walk encrypted with the current wrapping key.
        unreadable: Number of keys that use an unknown wrapping key or were modified in the store.
        damaged: Number of shards that cannot be parsed. Their keys are not counted.
        error_message: Message of the first problem; empty if there is none.
        missing: Names of shards that a parent records but that do not exist.
    """

    shards: int = 0
    keys: int = 0
    rewrapped: int = 0
    unreadable: int = 0
    damaged: int = 0
    error_message: str = ""
    missing: frozenset[str] = frozenset()

    def __add__(self, other: "Census") -> "Census":
        """Add the counts, keep the first message, and join the missing names."""
        return Census(
            shards=self.shards + other.shards,
            keys=self.keys + other.keys,
            rewrapped=self.rewrapped + other.rewrapped,
            unreadable=self.unreadable + other.unreadable,
            damaged=self.damaged + other.damaged,
            error_message=self.error_message or other.error_message,
            missing=self.missing | other.missing,
        )


async def rewrap(shards: KeyShards, ring: Ring, wrapping: WrappingKeys) -> Census:
    """Encrypt every data key of an agent with the current wrapping key; return the counts.

    Keys that cannot be decrypted, and shards that cannot be parsed, stay as they are.

    Raises:
        TransientError: If the key store is unavailable, or other processes were faster in every attempt. Shards that
            are done stay done.
    """
    census, names = Census(), await shards.list_names(ring)
    for name in names:
        try:
            census += await _rewrap_shard(shards, ring, name, wrapping)
        except KeysDamaged as exc:
            census += Census(shards=1, damaged=1, error_message=str(exc))
    return replace(census, missing=census.missing - set(names))


async def _rewrap_shard(shards: KeyShards, ring: Ring, name: str, wrapping: WrappingKeys) -> Census:
    async def write(shard: Shard) -> Census | None:
        changed, census = rewrap_shard(shard, wrapping)
        with suppress(Conflict):
            if census.rewrapped:
                await shards.write(changed)
            return census
        return None

    busy = TransientError(f"key shard {name} of agent {ring} is being written concurrently")
    return await update(
        partial(shards.read, ring, name), write, busy=busy, max_attempts=MAX_WRITE_ATTEMPTS, wait_s=_WAIT_S
    )


def rewrap_shard(shard: Shard, wrapping: WrappingKeys) -> tuple[Shard, Census]:
    """Return a shard in which all keys that can be decrypted use the current wrapping key, and its counts.

    `missing` of the counts names all children that the shard records, whether they exist or not.
    """
    entries: dict[str, KeyEntry] = {}
    census = Census(
        shards=1, keys=len(shard.entries), missing=frozenset(filter(shard.has_child, shards_below(shard.name)))
    )
    for key_id, entry in shard.entries.items():
        try:
            entries[key_id] = wrapping.rewrap(key_id, entry)
        except KeysUnavailable as exc:
            entries[key_id] = entry
            census += Census(unreadable=1, error_message=str(exc))
        else:
            census += Census(rewrapped=entries[key_id] is not entry)
    return replace(shard, entries=entries), census
