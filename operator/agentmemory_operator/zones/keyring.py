"""Create, find and destroy the data keys of all agents in one API process. A key is stored before its first memory.

Caches: a shard is reused for `FRESH_MS`, and a decrypted key until `FRESH_MS` after its wrapping key was read. So a key
that another replica destroyed stops working here within a minute. If the wrapping key is removed, no key decrypts
anything after a minute. A writer calls `Keyring.check_stored` after its write, so an acknowledged memory uses a key
that was still stored after the write.

Shards are never deleted one by one. So if the shard of an encrypted memory does not exist, its keys were lost. Such a
memory does not count as erased. No new shard replaces a lost shard, because its backup could then not be restored.
"""

import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from cachetools import LRUCache

from agentmemory_operator.errors import KeysUnavailable
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.key_shards import KeyShards
from agentmemory_operator.zones.key_lifecycle import (
    destroy_scope,
    destroy_zone,
    find_scope,
    find_zone,
    is_due,
    rotate_due_keys,
)
from agentmemory_operator.zones.rules.entries import (
    KEY_BYTES,
    LEVELS,
    KeyEntry,
    Ring,
    find_active_key_id,
    new_key_id,
    scope_hash,
    shard_at,
    shard_of_key,
)
from agentmemory_operator.zones.rules.sealing import keyed_hash
from agentmemory_operator.zones.rules.shards import Shard
from agentmemory_operator.zones.shard_cache import ShardCache
from agentmemory_operator.zones.wrapping_key_cache import WrappingKeyCache
from agentmemory_operator.zones.wrapping_keys import WrappingKeys

FRESH_MS = 60_000
"""Time in milliseconds for which cached shards and wrapping keys are used."""

MAX_CACHED_KEYS = 100_000
"""Maximum number of wrapped keys in all cached shards together, about 60 MiB."""

MAX_SHARDS_PER_READ = 256
"""Maximum number of shards that one call of `read_keys` reads. Memories with keys in further shards stay encrypted."""

MAX_ABSENT_KEYS = 100_000
MAX_OPEN_KEYS = 10_000
MAX_RINGS = 1_000

_RETRY_AFTER_S = 2.0
_FULL_RETRY_AFTER_S = 3600.0
_LOST_RETRY_AFTER_S = 30.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DataKey:
    """A decrypted data key.

    Attributes:
        id: Id by which encrypted memories refer to it.
        created_ms: Creation time in Unix milliseconds.
        cipher_key: 32 bytes for AES-256-GCM.
        mac: 32 bytes for keyed hashes, the same in all keys of the scope.
    """

    id: str
    zone: str
    created_ms: int
    cipher_key: bytes = field(repr=False)
    mac: bytes = field(repr=False)

    @property
    def id_secret(self) -> str:
        """Secret for ids and hashes of the owner's memories in the zone: 32 hex digits."""
        return keyed_hash(self.mac, "ids")[:32]


async def _nothing_sealed() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class AgentKeys:
    """The keys of one agent, and how to decrypt them.

    Attributes:
        read_wrapping_keys: Reads the wrapping keys; raises SpecInvalid or TransientError if there are none.
        has_sealed: Returns whether any memory is encrypted with a key of this agent. Called if a shard does not exist.
        rotate_before_ms: Keys created before this time are replaced, Unix milliseconds. No effect while it is in the
            future.
    """

    ring: Ring
    read_wrapping_keys: Callable[[], Awaitable[WrappingKeys]]
    has_sealed: Callable[[], Awaitable[bool]] = _nothing_sealed
    rotate_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class _OpenKey:
    """A decrypted key, and the time at which its wrapping key was read, Unix milliseconds."""

    key: DataKey
    at_ms: int


class Keyring:
    """Keys of all agents of a process. Except for `read_keys`, a failed read of the key store raises KeysUnavailable.

    Args:
        shards: Store of the key shards.
        clock: Clock for creation times and for the age of cached values.
    """

    def __init__(self, shards: KeyShards, clock: Clock) -> None:
        self._clock = clock
        self._shards = ShardCache(shards, clock, fresh_ms=FRESH_MS, max_keys=MAX_CACHED_KEYS)
        self._open: LRUCache[tuple[Ring, str], _OpenKey] = LRUCache(MAX_OPEN_KEYS)
        self._wrapping = WrappingKeyCache(clock, fresh_ms=FRESH_MS, max_agents=MAX_RINGS)
        self._absent: LRUCache[tuple[Ring, str], int] = LRUCache(MAX_ABSENT_KEYS)

    async def get_or_create_key(self, keys: AgentKeys, zone: str, owner: str) -> DataKey:
        """Return the data key that encrypts new memories of an owner, creating it if needed.

        Call `check_stored` after writing the memories.

        Args:
            owner: Id of a user as stored, or an organisation.

        Raises:
            KeysUnavailable: If the keys or the wrapping key are unavailable or lost, or none of the four shards of the
                scope takes another key.
        """
        scope, parent = scope_hash(zone, owner), None
        for level in range(LEVELS):
            shard = await self._shards.read_cached(keys.ring, shard_at(scope, level))
            key = await self._active(keys, shard, scope)
            if key is None and not shard.is_closed:
                shard = await self._with_new_key(keys, shard, parent, zone=zone, scope=scope)
                key = await self._active(keys, shard, scope)
            if key is not None:
                await self._record_child(keys.ring, parent, shard.name)
                return key
            parent = shard
        raise KeysUnavailable(
            f"agent {keys.ring} has no room for another key: erase users that are no longer needed",
            retry_after_s=_FULL_RETRY_AFTER_S,
        )

    async def find_key(self, keys: AgentKeys, zone: str, owner: str) -> DataKey | None:
        """Return the data key that encrypts new memories of an owner, or None. Never creates or rotates one.

        Raises:
            KeysUnavailable: If the keys or the wrapping key are unavailable, or a shard of the scope is lost.
        """
        scope, parent = scope_hash(zone, owner), None
        for level in range(LEVELS):
            name = shard_at(scope, level)
            # Read again if the cached shard lacks the key, because another replica may have created it since.
            for read in (self._shards.read_cached, self._shards.read_now):
                shard = await read(keys.ring, name)
                if (key := await self._open_active(keys, shard, scope)) is not None:
                    return key
            if parent is not None and parent.has_child(name) and not shard.version:
                raise _keys_lost_error(keys.ring, name)
            if not shard.is_closed and not shard.is_full:
                return None
            parent = shard
        return None

    async def read_keys(self, keys: AgentKeys, ids: Collection[str]) -> dict[str, DataKey]:
        """Return the data keys with these ids; ids of destroyed keys are absent.

        If only some keys are available, only these are returned. At most 256 shards are read.

        Args:
            ids: Ids from a collection. Malformed ids are absent from the result.

        Raises:
            KeysUnavailable: If no key was found and at least one is unavailable or lost.
        """
        keys_by_id: dict[str, DataKey] = {}
        failure: KeysUnavailable | None = None
        absent_ids = {key_id for key_id in ids if self._is_absent(keys.ring, key_id)}
        for name, key_ids in islice(_by_shard(set(ids) - absent_ids).items(), MAX_SHARDS_PER_READ):
            try:
                entries = await self._entries(keys, name, key_ids)
            except KeysUnavailable as exc:
                failure = exc
                continue
            for key_id, entry in entries.items():
                try:
                    keys_by_id[key_id] = await self._open_entry(keys, key_id, entry)
                except KeysUnavailable as exc:
                    failure = exc
        if failure is not None and not keys_by_id:
            raise failure
        return keys_by_id

    async def _entries(self, keys: AgentKeys, name: str, key_ids: set[str]) -> dict[str, KeyEntry]:
        """Return the entries of a shard with these ids; ids without an entry are absent, and recorded as such.

        Read the shard again if the cached shard lacks an id: another replica may have added its key.

        Raises:
            KeysUnavailable: If the shard cannot be read, or is lost: it is absent although memories are sealed.
        """
        ring = keys.ring
        shard = await self._shards.read_cached(ring, name)
        if not key_ids <= shard.entries.keys():
            shard = await self._shards.read_now(ring, name)
        # Report lost keys only for an agent with encrypted memories. Other unknown ids come from elsewhere, for example
        # an import.
        if not shard.version and await keys.has_sealed():
            raise _keys_lost_error(ring, name)
        for key_id in key_ids - shard.entries.keys():
            self._absent[ring, key_id] = self._clock.now_ms()
        return {key_id: entry for key_id, entry in shard.entries.items() if key_id in key_ids}

    def _is_absent(self, ring: Ring, key_id: str) -> bool:
        """Return whether a read within `FRESH_MS` found no such key.

        A key is stored before its first memory, so a missing key is not added later. Anyone who can write points can
        write invalid ids; the cache limits the reads that they cause.
        """
        at_ms = self._absent.get((ring, key_id))
        return at_ms is not None and self._age_ms(at_ms) < FRESH_MS

    async def find_active_key(self, keys: AgentKeys, key_id: str) -> DataKey | None:
        """Return the active key of the owner and zone that a key belongs to. It may be that same key.

        Replaces the active key if it is due for rotation. Returns None if the key does not exist or its scope has no
        active key.

        Raises:
            KeysUnavailable: If the keys or the wrapping key are unavailable.
        """
        if (name := shard_of_key(key_id)) is None:
            return None
        shard = await self._shards.read_cached(keys.ring, name)
        entry = shard.entries.get(key_id)
        return None if entry is None else await self._active(keys, shard, entry.scope)

    async def check_stored(self, keys: AgentKeys, ids: Collection[str]) -> None:
        """Raise unless all keys are stored now. Memories that were written with them before this call can be decrypted.

        Raises:
            KeysUnavailable: If a key was destroyed in the meantime, or the key store is unavailable. The written
                memories may be unreadable.
        """
        for name, key_ids in _by_shard(ids).items():
            shard = await self._shards.read_now(keys.ring, name)
            if not key_ids <= shard.entries.keys():
                raise KeysUnavailable(
                    f"keys of agent {keys.ring} were destroyed during a write: the written memories"
                    " cannot be read, send them again",
                    retry_after_s=_RETRY_AFTER_S,
                )

    async def has_keys(self, keys: AgentKeys, *, owner: str, zone: str) -> bool:
        """Return whether an owner has keys in a zone. Does not read the wrapping key."""
        return bool(await find_scope(self._shards, keys.ring, scope_hash(zone, owner)))

    async def has_zone_keys(self, keys: AgentKeys, zone: str) -> bool:
        """Return whether any owner has keys in a zone. Does not read the wrapping key."""
        return bool(await find_zone(self._shards, keys.ring, zone))

    async def destroy(self, keys: AgentKeys, *, owner: str, zones: Collection[str]) -> list[str]:
        """Destroy all keys of an owner in some zones; return their ids, sorted. Does not read the wrapping key.

        Raises:
            KeysUnavailable: If the key store is unavailable. Some keys may be destroyed; call it again.
        """
        scopes = [scope_hash(zone, owner) for zone in zones]
        destroyed_ids = [await destroy_scope(self._shards, keys.ring, scope) for scope in scopes]
        return self._evict(keys.ring, set().union(*destroyed_ids))

    async def destroy_zone(self, keys: AgentKeys, zone: str) -> list[str]:
        """Destroy the keys of all owners in a zone; return their ids, sorted. Does not read the wrapping key.

        Raises:
            KeysUnavailable: If the key store is unavailable. Some keys may be destroyed; call it again.
        """
        return self._evict(keys.ring, await destroy_zone(self._shards, keys.ring, zone))

    def _evict(self, ring: Ring, destroyed_ids: set[str]) -> list[str]:
        """Remove destroyed keys from the cache; return their ids, sorted."""
        for key_id in destroyed_ids:
            self._open.pop((ring, key_id), None)
        return sorted(destroyed_ids)

    async def _active(self, keys: AgentKeys, shard: Shard, scope: str) -> DataKey | None:
        """Return the active key of a scope in a shard, or None. Rotate it first if it is due."""
        key_id = find_active_key_id(shard.entries, scope)
        now_ms, before_ms = self._clock.now_ms(), keys.rotate_before_ms
        if key_id is not None and before_ms <= now_ms and is_due(shard, key_id, before_ms):
            wrapping, _ = await self._wrapping_keys(keys, shard.entries[key_id].wrapping_fingerprint)
            replace_old = partial(rotate_due_keys, wrapping=wrapping, before_ms=before_ms, now_ms=now_ms)
            shard = await self._shards.change(keys.ring, shard.name, replace_old)
        return await self._open_active(keys, shard, scope)

    async def _open_active(self, keys: AgentKeys, shard: Shard, scope: str) -> DataKey | None:
        """Return the active key of a scope in a shard, or None. Never rotates it."""
        key_id = find_active_key_id(shard.entries, scope)
        return None if key_id is None else await self._open_entry(keys, key_id, shard.entries[key_id])

    async def _with_new_key(
        self, keys: AgentKeys, cached: Shard, parent: Shard | None, *, zone: str, scope: str
    ) -> Shard:
        """Add a key for a scope to a shard; return the shard as stored.

        No change if the scope has a key by now, or the shard is closed or full.

        Args:
            parent: Closed shard of the level above; None at the first level.

        Raises:
            KeysUnavailable: If the keys or the wrapping key are unavailable, or this shard or all keys of the agent are
                lost.
        """
        wrapping, _ = await self._wrapping_keys(keys)
        material, key_id = secrets.token_bytes(KEY_BYTES), new_key_id(cached.name)
        entry = wrapping.wrap(key_id, material, zone=zone, scope=scope, at=self._clock.now_ms())

        def add(shard: Shard) -> Shard:
            is_free = not shard.is_closed and not shard.is_full and (may_create or bool(shard.version))
            return shard.with_key(key_id, entry) if is_free and not find_active_key_id(shard.entries, scope) else shard

        may_create = False
        shard = await self._shards.change(keys.ring, cached.name, add)
        if shard.version:
            return shard
        may_create = await self._was_never_created(keys, cached.name, parent)
        # In the meantime another replica may have created the shard and encrypted the first memory.
        shard = await self._shards.change(keys.ring, cached.name, add)
        if not may_create and not shard.version:
            raise _keys_lost_error(keys.ring, cached.name)
        return shard

    async def _was_never_created(self, keys: AgentKeys, name: str, parent: Shard | None) -> bool:
        """Return whether a shard that does not exist was never created, so that it is not lost."""
        if parent is None:
            return not await keys.has_sealed()
        current = await self._shards.read_now(keys.ring, parent.name)
        is_parent_lost = bool(parent.version) and not current.version
        return not is_parent_lost and not current.has_child(name)

    async def _record_child(self, ring: Ring, parent: Shard | None, name: str) -> None:
        """Record a shard in its parent, before any memory is encrypted with its keys."""
        if parent is not None and not parent.has_child(name):
            await self._shards.change(ring, parent.name, lambda shard: shard.with_child(name))

    async def _open_entry(self, keys: AgentKeys, key_id: str, entry: KeyEntry) -> DataKey:
        location = keys.ring, key_id
        opened = self._open.get(location)
        if opened is not None and self._age_ms(opened.at_ms) < FRESH_MS:
            return opened.key
        wrapping, at_ms = await self._wrapping_keys(keys, entry.wrapping_fingerprint)
        material = wrapping.unwrap(key_id, entry)
        middle = len(material) // 2
        key = DataKey(key_id, entry.zone, entry.created_ms, cipher_key=material[:middle], mac=material[middle:])
        self._open[location] = _OpenKey(key, at_ms)
        return key

    async def _wrapping_keys(self, keys: AgentKeys, fingerprint: str = "") -> tuple[WrappingKeys, int]:
        return await self._wrapping.read(keys.ring, keys.read_wrapping_keys, fingerprint)

    def _age_ms(self, at_ms: int) -> float:
        """Return the milliseconds since a time. The result is infinite if the clock was set back."""
        age_ms = self._clock.now_ms() - at_ms
        return age_ms if age_ms >= 0 else math.inf


def _keys_lost_error(ring: Ring, name: str) -> KeysUnavailable:
    log.error("agent %s: key shard %s is missing, and memories need it: restore it", ring, name)
    return KeysUnavailable(
        f"keys of agent {ring} are missing: restore them from a backup", retry_after_s=_LOST_RETRY_AFTER_S
    )


def _by_shard(ids: Iterable[str]) -> dict[str, set[str]]:
    by_shard: dict[str, set[str]] = {}
    for key_id in ids:
        if (name := shard_of_key(key_id)) is not None:
            by_shard.setdefault(name, set()).add(key_id)
    return by_shard
