"""Brings the data keys of an agent under the wrapping key in force, shard by shard; no memory is touched.

Killed anywhere it is begun again: a key that is under the wrapping key in force is left as it is, and every shard is
written by compare-and-set, so that no key that is made or destroyed meanwhile is lost, or comes back.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from agentmemory_operator.errors import Conflict, KeysDamaged, KeysUnavailable, TransientError
from agentmemory_operator.ports.zone_keys import KeyShards
from agentmemory_operator.runtime.tasks import update
from agentmemory_operator.zones.rules.entries import KeyEntry, Ring, shards_below
from agentmemory_operator.zones.rules.shards import Shard
from agentmemory_operator.zones.wrapping import WrappingKeys

ATTEMPTS = 8
"""Of a write that others are ahead of."""

_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class Census:
    """What a walk through an agent's shards found.

    Attributes:
        shards: how many there are.
        keys: how many data keys there are.
        rewrapped: how many of them it brought under the wrapping key in force.
        unreadable: how many are under another one, or were changed where they are kept.
        damaged: how many shards cannot be read, whose keys are none of those.
        trouble: what is wrong with the first of all these; empty where there is none.
        missing: names of shards that are not there, though others lead to them.
    """

    shards: int = 0
    keys: int = 0
    rewrapped: int = 0
    unreadable: int = 0
    damaged: int = 0
    trouble: str = ""
    missing: frozenset[str] = frozenset()

    def __add__(self, other: "Census") -> "Census":
        """Both together."""
        return Census(
            shards=self.shards + other.shards,
            keys=self.keys + other.keys,
            rewrapped=self.rewrapped + other.rewrapped,
            unreadable=self.unreadable + other.unreadable,
            damaged=self.damaged + other.damaged,
            trouble=self.trouble or other.trouble,
            missing=self.missing | other.missing,
        )


async def rewrap(shards: KeyShards, ring: Ring, wrapping: WrappingKeys) -> Census:
    """Bring every key under the current wrapping key; what cannot be opened or read stays as it is.

    Raises:
        TransientError: the store is away, or others write a shard all the time; what is done stays.
    """
    found, names = Census(), await shards.list_names(ring)
    for name in names:
        try:
            found += await _rewrap_shard(shards, ring, name, wrapping)
        except KeysDamaged as exc:
            found += Census(shards=1, damaged=1, trouble=str(exc))
    return replace(found, missing=found.missing - set(names))


async def _rewrap_shard(shards: KeyShards, ring: Ring, name: str, wrapping: WrappingKeys) -> Census:
    async def write(shard: Shard) -> Census | None:
        wanted, found = rewrapped(shard, wrapping)
        with suppress(Conflict):
            if found.rewrapped:
                await shards.write(wanted)
            return found
        return None

    busy = TransientError(f"key shard {name} of agent {ring} is being written concurrently")
    return await update(partial(shards.read, ring, name), write, busy=busy, max_attempts=ATTEMPTS, wait_s=_WAIT_S)


def rewrapped(shard: Shard, wrapping: WrappingKeys) -> tuple[Shard, Census]:
    """A shard whose keys are under the current wrapping key, and what was found in it."""
    entries: dict[str, KeyEntry] = {}
    found = Census(
        shards=1, keys=len(shard.entries), missing=frozenset(filter(shard.leads_to, shards_below(shard.name)))
    )
    for key_id, entry in shard.entries.items():
        try:
            entries[key_id] = wrapping.rewrap(key_id, entry)
        except KeysUnavailable as exc:
            entries[key_id] = entry
            found += Census(unreadable=1, trouble=str(exc))
        else:
            found += Census(rewrapped=entries[key_id] is not entry)
    return replace(shard, entries=entries), found
