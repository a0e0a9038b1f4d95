"""Replaces data keys that were made before a time; no memory is touched.

Where one key of a shard is to be replaced, all of its keys that are as old go with it: one write for up to 64 users.
The key before stays beside the new one, because memories, snapshots and exports are sealed with it.
"""

import secrets
from collections.abc import Mapping

from agentmemory_operator.errors import KeysUnavailable
from agentmemory_operator.zones.rules.entries import KEY_BYTES, KeyEntry, active_in, new_key_id
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
    for key_id in sorted(_active_ids(shard.entries)):
        if is_due(shard, key_id, before_ms):
            shard = _with_successor(shard, key_id, wrapping, now_ms)
    return shard


def _active_ids(entries: Mapping[str, KeyEntry]) -> set[str]:
    found = (active_in(entries, scope) for scope in {entry.scope for entry in entries.values()})
    return {key_id for key_id in found if key_id is not None}


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
