"""Destroys data keys: all of an owner's in a zone, or all of a zone, whoever's they are. Asks for no wrapping key."""

import asyncio
from collections.abc import Callable, Sequence

from agentmemory_operator.zones.known_shards import KnownShards
from agentmemory_operator.zones.rules.entries import FIRST_SHARD, LEVELS, KeyEntry, Ring, shard_at, shards_below
from agentmemory_operator.zones.rules.shards import Shard

SHARDS_AT_ONCE = 16

Chosen = Callable[[KeyEntry], bool]


async def destroy_scope(shards: KnownShards, ring: Ring, scope: str) -> set[str]:
    """Destroy the keys of a scope; return their ids.

    It looks at every level: behind a shard that was lost and made again the scope may have keys too.

    Raises:
        KeysUnavailable: the store is away; some may be destroyed.
    """
    gone: set[str] = set()
    for level in range(LEVELS):
        destroyed, _ = await _without(shards, ring, shard_at(scope, level), lambda entry: entry.scope == scope)
        gone |= destroyed
    return gone


async def destroy_zone(shards: KnownShards, ring: Ring, zone: str) -> set[str]:
    """Destroy all keys of a zone, of every owner that an agent had there; return their ids.

    Raises:
        KeysUnavailable: the store is away; some may be destroyed.
    """
    gone: set[str] = set()
    names: Sequence[str] = (FIRST_SHARD,)
    while names:
        now, names = names[:SHARDS_AT_ONCE], names[SHARDS_AT_ONCE:]
        found = await asyncio.gather(*(_without(shards, ring, name, lambda entry: entry.zone == zone) for name in now))
        gone = gone.union(*(destroyed for destroyed, _ in found))
        closed = (name for name, (_, is_closed) in zip(now, found, strict=True) if is_closed)
        names = [*names, *(below for name in closed for below in shards_below(name))]
    return gone


async def _without(shards: KnownShards, ring: Ring, name: str, chosen: Chosen) -> tuple[set[str], bool]:
    """Take keys out of a shard; return their ids, and whether the shard is closed."""
    gone: set[str] = set()

    def drop(shard: Shard) -> Shard:
        gone.update(key_id for key_id, entry in shard.entries.items() if chosen(entry))
        return shard.without(chosen)

    return gone, (await shards.change(ring, name, drop)).is_closed
