"""Replaces data keys that were made before a time, and destroys those of an owner or of a zone; no memory is touched.

Where one key of a shard is to be replaced, all of its keys that are as old go with it: one write for up to 64 users.
The key before stays beside the new one, because memories, snapshots and exports are sealed with it. Destroying asks for
no wrapping key.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from agentmemory_operator.errors import KeysUnavailable
from agentmemory_operator.zones.known_shards import KnownShards
from agentmemory_operator.zones.rules.entries import (
    FIRST_SHARD,
    KEY_BYTES,
    LEVELS,
    KeyEntry,
    Ring,
    active_in,
    new_key_id,
    shard_at,
    shards_below,
)
from agentmemory_operator.zones.rules.shards import Shard
from agentmemory_operator.zones.wrapping import WrappingKeys


def is_due(shard: Shard, key_id: str, before_ms: int) -> bool:
    """Whether a key of a shard is to be replaced. Where there is no room for another it stays in use."""
    return shard.entries[key_id].at < before_ms and not shard.is_full


def rotated(shard: Shard, wrapping: WrappingKeys, *, before_ms: int, now_ms: int) -> Shard:
    """A shard with a new key for every owner whose active one was made before a time.

    Keys that cannot be opened stay in use: nothing could make hashes as they do.

    Args:
        before_ms: Unix milliseconds, no later than now.
    """
    active = (active_in(shard.entries, scope) for scope in {entry.scope for entry in shard.entries.values()})
    for key_id in sorted({key_id for key_id in active if key_id is not None}):
        if is_due(shard, key_id, before_ms):
            shard = _with_successor(shard, key_id, wrapping, now_ms)
    return shard


def _with_successor(shard: Shard, key_id: str, wrapping: WrappingKeys, now_ms: int) -> Shard:
    entry = shard.entries[key_id]
    try:
        before = wrapping.unwrap(key_id, entry)
    except KeysUnavailable:
        return shard
    half = KEY_BYTES // 2
    # The ids and hashes of the owner's memories are made with the second half.
    material, new_id = secrets.token_bytes(half) + before[half:], new_key_id(shard.name)
    return shard.with_successor(
        key_id, new_id, wrapping.wrap(new_id, material, zone=entry.zone, scope=entry.scope, at=now_ms)
    )


SHARDS_AT_ONCE = 16

Chosen = Callable[[KeyEntry], bool]
Visit = Callable[[str], Awaitable[tuple[set[str], bool]]]
"""Handles the chosen keys of a shard by its name; returns their ids, and whether the shard is closed."""


async def find_scope(shards: KnownShards, ring: Ring, scope: str) -> set[str]:
    """Find the keys of a scope; return their ids.

    Raises:
        KeysUnavailable: the store is away.
    """
    return await _in_scope(scope, partial(_chosen_of, shards, ring, chosen=lambda entry: entry.scope == scope))


async def find_zone(shards: KnownShards, ring: Ring, zone: str) -> set[str]:
    """Find all keys of a zone, of every owner that an agent had there; return their ids.

    Raises:
        KeysUnavailable: the store is away.
    """
    return await _in_all(partial(_chosen_of, shards, ring, chosen=lambda entry: entry.zone == zone))


async def destroy_scope(shards: KnownShards, ring: Ring, scope: str) -> set[str]:
    """Destroy the keys of a scope; return their ids.

    It looks at every level: behind a shard that was lost and made again the scope may have keys too.

    Raises:
        KeysUnavailable: the store is away; some may be destroyed.
    """
    return await _in_scope(scope, partial(_without, shards, ring, chosen=lambda entry: entry.scope == scope))


async def destroy_zone(shards: KnownShards, ring: Ring, zone: str) -> set[str]:
    """Destroy all keys of a zone, of every owner that an agent had there; return their ids.

    Raises:
        KeysUnavailable: the store is away; some may be destroyed.
    """
    return await _in_all(partial(_without, shards, ring, chosen=lambda entry: entry.zone == zone))


async def _in_scope(scope: str, visit: Visit) -> set[str]:
    """Visit each shard that may hold keys of a scope; return the ids found."""
    found: set[str] = set()
    for level in range(LEVELS):
        ids, _ = await visit(shard_at(scope, level))
        found |= ids
    return found


async def _in_all(visit: Visit) -> set[str]:
    """Visit all shards of an agent; return the ids found."""
    ids: set[str] = set()
    names: Sequence[str] = (FIRST_SHARD,)
    while names:
        now, names = names[:SHARDS_AT_ONCE], names[SHARDS_AT_ONCE:]
        found = await asyncio.gather(*map(visit, now))
        ids = ids.union(*(part for part, _ in found))
        closed = (name for name, (_, is_closed) in zip(now, found, strict=True) if is_closed)
        names = [*names, *(below for name in closed for below in shards_below(name))]
    return ids


async def _chosen_of(shards: KnownShards, ring: Ring, name: str, *, chosen: Chosen) -> tuple[set[str], bool]:
    """Read a shard; return the ids of the chosen keys, and whether the shard is closed."""
    shard = await shards.now(ring, name)
    return {key_id for key_id, entry in shard.entries.items() if chosen(entry)}, shard.is_closed


async def _without(shards: KnownShards, ring: Ring, name: str, *, chosen: Chosen) -> tuple[set[str], bool]:
    """Take keys out of a shard; return their ids, and whether the shard is closed."""
    gone: set[str] = set()

    def drop(shard: Shard) -> Shard:
        gone.update(key_id for key_id, entry in shard.entries.items() if chosen(entry))
        return shard.without(chosen)

    return gone, (await shards.change(ring, name, drop)).is_closed
