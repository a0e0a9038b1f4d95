"""Rotate data keys by age, and destroy the keys of an owner or of a zone. No memory is changed.

If one key of a shard is rotated, all active keys of the shard that are due are rotated in the same write: at most 64
keys, more at the last level. The old key stays, because memories, snapshots and exports are encrypted with it.
Destruction does not read the wrapping key.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from functools import partial

from agentmemory_operator.errors import KeysUnavailable
from agentmemory_operator.zones.rules.entries import (
    FIRST_SHARD,
    KEY_BYTES,
    LEVELS,
    KeyEntry,
    Ring,
    find_active_key_id,
    new_key_id,
    shard_at,
    shards_below,
)
from agentmemory_operator.zones.rules.shards import Shard
from agentmemory_operator.zones.shard_cache import ShardCache
from agentmemory_operator.zones.wrapping_keys import WrappingKeys


def is_due(shard: Shard, key_id: str, before_ms: int) -> bool:
    """Return whether a key is due for rotation: created before the time, and its shard has capacity for another key."""
    return shard.entries[key_id].created_ms < before_ms and not shard.is_full


def rotate_due_keys(shard: Shard, wrapping: WrappingKeys, *, before_ms: int, now_ms: int) -> Shard:
    """Return a shard with a new key for each scope whose active key `is_due`.

    A key that cannot be decrypted stays active, because the new key must contain the same secret for hashes.

    Args:
        before_ms: Keys created before this time are due, Unix milliseconds. Not later than now.
    """
    active = (find_active_key_id(shard.entries, scope) for scope in {entry.scope for entry in shard.entries.values()})
    for key_id in sorted({key_id for key_id in active if key_id is not None}):
        if is_due(shard, key_id, before_ms):
            shard = _with_successor(shard, key_id, wrapping, now_ms)
    return shard


def _with_successor(shard: Shard, key_id: str, wrapping: WrappingKeys, now_ms: int) -> Shard:
    entry = shard.entries[key_id]
    try:
        old_material = wrapping.unwrap(key_id, entry)
    except KeysUnavailable:
        return shard
    middle = KEY_BYTES // 2
    # Keep the second half: ids and hashes of the owner's memories depend on it.
    material, new_id = secrets.token_bytes(middle) + old_material[middle:], new_key_id(shard.name)
    return shard.with_successor(
        key_id, new_id, wrapping.wrap(new_id, material, zone=entry.zone, scope=entry.scope, at=now_ms)
    )


MAX_CONCURRENT_SHARDS = 16

Chosen = Callable[[KeyEntry], bool]
Visit = Callable[[str], Awaitable[tuple[set[str], Shard]]]
"""Processes the chosen keys of the shard with this name; returns their ids, and the shard as stored."""


async def find_scope(shards: ShardCache, ring: Ring, scope: str) -> set[str]:
    """Return the ids of all keys of a scope, read from its shard at each level.

    Raises:
        KeysUnavailable: If a shard cannot be read.
    """
    return await _in_scope(scope, partial(_find_chosen, shards, ring, chosen=lambda entry: entry.scope == scope))


async def find_zone(shards: ShardCache, ring: Ring, zone: str) -> set[str]:
    """Return the ids of all keys of a zone, of every owner.

    Raises:
        KeysUnavailable: If a shard cannot be read.
    """
    return await _in_all(partial(_find_chosen, shards, ring, chosen=lambda entry: entry.zone == zone))


async def destroy_scope(shards: ShardCache, ring: Ring, scope: str) -> set[str]:
    """Destroy the keys of a scope; return their ids.

    Reads the shards of all levels, because the scope may also have keys below a shard that was lost and recreated.

    Raises:
        KeysUnavailable: If a shard cannot be read or written. Some keys may be destroyed.
    """
    return await _in_scope(scope, partial(_remove_chosen, shards, ring, chosen=lambda entry: entry.scope == scope))


async def destroy_zone(shards: ShardCache, ring: Ring, zone: str) -> set[str]:
    """Destroy all keys of a zone, of every owner; return their ids.

    Raises:
        KeysUnavailable: If a shard cannot be read or written. Some keys may be destroyed.
    """
    return await _in_all(partial(_remove_chosen, shards, ring, chosen=lambda entry: entry.zone == zone))


async def _in_scope(scope: str, visit: Visit) -> set[str]:
    """Visit the shard of a scope at each level; return the ids found."""
    key_ids: set[str] = set()
    for level in range(LEVELS):
        ids, _ = await visit(shard_at(scope, level))
        key_ids |= ids
    return key_ids


async def _in_all(visit: Visit) -> set[str]:
    """Visit an agent's shards from the top; return the ids found.

    Shards below another shard are visited if that shard is closed or lost. A missing shard counts as lost if its parent
    records it, or was lost too. Shards below the first shard are always visited, because it may have been lost and
    created again.
    """
    ids: set[str] = set()
    names, recorded = [FIRST_SHARD], set[str]()
    while names:
        batch, names = names[:MAX_CONCURRENT_SHARDS], names[MAX_CONCURRENT_SHARDS:]
        for found_ids, shard in await asyncio.gather(*map(visit, batch)):
            ids |= found_ids
            below, is_lost = shards_below(shard.name), shard.name in recorded and not shard.version
            recorded.update(below if is_lost else filter(shard.has_child, below))
            if shard.is_closed or is_lost or shard.name == FIRST_SHARD:
                names += below
    return ids


async def _find_chosen(shards: ShardCache, ring: Ring, name: str, *, chosen: Chosen) -> tuple[set[str], Shard]:
    shard = await shards.read_now(ring, name)
    return {key_id for key_id, entry in shard.entries.items() if chosen(entry)}, shard


async def _remove_chosen(shards: ShardCache, ring: Ring, name: str, *, chosen: Chosen) -> tuple[set[str], Shard]:
    removed: set[str] = set()

    def drop(shard: Shard) -> Shard:
        removed.update(key_id for key_id, entry in shard.entries.items() if chosen(entry))
        return shard.without(chosen)

    return removed, await shards.change(ring, name, drop)
