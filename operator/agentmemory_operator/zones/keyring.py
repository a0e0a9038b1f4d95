"""The data keys of one API process: made before the first memory that they seal, found again, destroyed.

What is known of a shard is relied on for `FRESH_MS` at most, and an opened key for as long after its wrapping key was
read. So a key that another replica destroyed ends here within a minute, and within a minute nothing opens any more
after the wrapping key went. A write asks once more when it has ended (`Keyring.confirm`): what is acknowledged is
under a key that was there then.

Shards are never deleted one by one, so a sealed memory whose shard is not there tells that keys were lost: it is not
taken for erased, and no other keys are made in the place of lost ones, because those of a backup could not come back.
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
from agentmemory_operator.ports.zone_keys import KeyShards
from agentmemory_operator.zones.key_lifecycle import destroy_scope, destroy_zone, find_scope, find_zone, is_due, rotated
from agentmemory_operator.zones.known_shards import KnownShards
from agentmemory_operator.zones.known_wrapping import KnownWrapping
from agentmemory_operator.zones.rules.entries import (
    KEY_BYTES,
    LEVELS,
    KeyEntry,
    Ring,
    active_in,
    new_key_id,
    scope_hash,
    shard_at,
    shard_of_key,
)
from agentmemory_operator.zones.rules.sealing import keyed_hash
from agentmemory_operator.zones.rules.shards import Shard
from agentmemory_operator.zones.wrapping import WrappingKeys

FRESH_MS = 60_000
"""What was read is relied on no longer."""

MOST_KNOWN_KEYS = 100_000
"""Of all shards that are remembered together, wrapped; about 60 MiB."""

MOST_SHARDS = 256
"""Shards that one reading asks for; what names keys of more stays locked for now."""

MOST_ABSENT = 100_000
MOST_OPEN_KEYS = 10_000
MOST_RINGS = 1_000

_RETRY_AFTER_S = 2.0
_FULL_RETRY_AFTER_S = 3600.0
_LOST_RETRY_AFTER_S = 30.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DataKey:
    """A key as memories are sealed with it.

    Attributes:
        id: what a sealed memory names it by.
        made_ms: when it was made, Unix milliseconds.
        cipher_key: 32 bytes.
        mac: 32 bytes, the same for all keys of its owner in the zone.
    """

    id: str
    zone: str
    made_ms: int
    cipher_key: bytes = field(repr=False)
    mac: bytes = field(repr=False)

    @property
    def id_secret(self) -> str:
        """What ids and hashes of the owner's memories in the zone are made with: 32 hex digits."""
        return keyed_hash(self.mac, "ids")[:32]


async def _nothing_sealed() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class AgentKeys:
    """Whose keys, and what they are under.

    Attributes:
        wrapping: reads the wrapping key; raises SpecInvalid or TransientError where there is none.
        has_sealed: tells whether any memory of the agent is sealed; asked before its first key is made.
        rotate_before_ms: keys made before are replaced, Unix milliseconds; not while that is to come.
    """

    ring: Ring
    wrapping: Callable[[], Awaitable[WrappingKeys]]
    has_sealed: Callable[[], Awaitable[bool]] = _nothing_sealed
    rotate_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Opened:
    """A key, and when the wrapping key was read that opened it."""

    key: DataKey
    at_ms: int


class Keyring:
    """Keeps the keys of all agents of a process.

    Args:
        shards: where they lie.
        clock: of their making, and of how old what is known is.
    """

    def __init__(self, shards: KeyShards, clock: Clock) -> None:
        self._clock = clock
        self._shards = KnownShards(shards, clock, fresh_ms=FRESH_MS, most_keys=MOST_KNOWN_KEYS)
        self._open: LRUCache[tuple[Ring, str], _Opened] = LRUCache(MOST_OPEN_KEYS)
        self._wrapping = KnownWrapping(clock, fresh_ms=FRESH_MS, most=MOST_RINGS)
        self._absent: LRUCache[tuple[Ring, str], int] = LRUCache(MOST_ABSENT)

    async def writing(self, keys: AgentKeys, zone: str, owner: str) -> DataKey:
        """The key that new memories of an owner are sealed with; made where there is none.

        Ask `confirm` when they are written.

        Args:
            owner: a user's id as stored, or an organisation.

        Raises:
            KeysUnavailable: the keys, or the wrapping key, are away; or there is no room for another key.
        """
        scope, above = scope_hash(zone, owner), None
        for level in range(LEVELS):
            shard = await self._shards.recent(keys.ring, shard_at(scope, level))
            key = await self._active(keys, shard, scope)
            if key is None and not shard.is_closed:
                shard = await self._with_new_key(keys, shard, above, zone=zone, scope=scope)
                key = await self._active(keys, shard, scope)
            if key is not None:
                await self._mark(keys.ring, above, shard.name)
                return key
            above = shard
        raise KeysUnavailable(
            f"agent {keys.ring} has no room for another key: erase users that are no longer needed",
            retry_after_s=_FULL_RETRY_AFTER_S,
        )

    async def known(self, keys: AgentKeys, zone: str, owner: str) -> DataKey | None:
        """The key that an owner's memories of a zone are sealed with; None where none was made. Nothing is written.

        Raises:
            KeysUnavailable: the keys, or the wrapping key, are away.
        """
        scope = scope_hash(zone, owner)
        for level in range(LEVELS):
            name = shard_at(scope, level)
            # Another replica may have made it since.
            for read in (self._shards.recent, self._shards.now):
                shard = await read(keys.ring, name)
                if (key := await self._in_use(keys, shard, scope)) is not None:
                    return key
            if not shard.is_closed and not shard.is_full:
                return None
        return None

    async def reading(self, keys: AgentKeys, ids: Collection[str]) -> dict[str, DataKey]:
        """The keys of sealed memories by their ids; those that were destroyed are absent.

        Where only some of them can be had, it is these: the others are absent too.

        Args:
            ids: as collections have them: what is no id is absent too.

        Raises:
            KeysUnavailable: none can be had: the keys, or the wrapping key, are away, or lost.
        """
        found: dict[str, DataKey] = {}
        trouble: KeysUnavailable | None = None
        absent = {key_id for key_id in ids if self._is_absent(keys.ring, key_id)}
        for name, wanted in islice(_by_shard(set(ids) - absent).items(), MOST_SHARDS):
            try:
                entries = await self._entries(keys, name, wanted)
            except KeysUnavailable as exc:
                trouble = exc
                continue
            for key_id, entry in entries.items():
                try:
                    found[key_id] = await self._opened(keys, key_id, entry)
                except KeysUnavailable as exc:
                    trouble = exc
        if trouble is not None and not found:
            raise trouble
        return found

    async def _entries(self, keys: AgentKeys, name: str, wanted: set[str]) -> dict[str, KeyEntry]:
        """The entries of a shard with these ids; looked at again where one is missing, which another replica made."""
        ring = keys.ring
        shard = await self._shards.recent(ring, name)
        if not wanted <= shard.entries.keys():
            shard = await self._shards.now(ring, name)
        # An agent that never sealed anything has no keys to lose: those of a line from elsewhere are just not here.
        if not shard.version and await keys.has_sealed():
            raise _lost(ring, name)
        for key_id in wanted - shard.entries.keys():
            self._absent[ring, key_id] = self._clock.now_ms()
        return {key_id: entry for key_id, entry in shard.entries.items() if key_id in wanted}

    def _is_absent(self, ring: Ring, key_id: str) -> bool:
        """Whether there was no such key lately: a key is there before what it seals, so none comes later.

        What names keys that are none, as whoever may write points can, is not looked for at every reading.
        """
        at_ms = self._absent.get((ring, key_id))
        return at_ms is not None and self._age_ms(at_ms) < FRESH_MS

    async def successor(self, keys: AgentKeys, key_id: str) -> DataKey | None:
        """The key that what a key sealed is to be sealed with now, of the same owner and zone: it may be the same.

        None where there is no such key, or its owner has none in use.

        Raises:
            KeysUnavailable: the keys, or the wrapping key, are away.
        """
        if (name := shard_of_key(key_id)) is None:
            return None
        shard = await self._shards.recent(keys.ring, name)
        entry = shard.entries.get(key_id)
        return None if entry is None else await self._active(keys, shard, entry.scope)

    async def confirm(self, keys: AgentKeys, ids: Collection[str]) -> None:
        """Pass where all keys are there now: what was sealed with them and written before can be read.

        Raises:
            KeysUnavailable: one was destroyed meanwhile, or nobody can tell: what was written may be unreadable.
        """
        for name, wanted in _by_shard(ids).items():
            shard = await self._shards.now(keys.ring, name)
            if not wanted <= shard.entries.keys():
                raise KeysUnavailable(
                    f"keys of agent {keys.ring} were destroyed during a write: the written memories"
                    " cannot be read, send them again",
                    retry_after_s=_RETRY_AFTER_S,
                )

    async def has_keys(self, keys: AgentKeys, *, owner: str, zone: str) -> bool:
        """Return whether an owner has keys in a zone. No wrapping key is asked for.

        Raises:
            KeysUnavailable: the keys are away.
        """
        return bool(await find_scope(self._shards, keys.ring, scope_hash(zone, owner)))

    async def has_zone_keys(self, keys: AgentKeys, zone: str) -> bool:
        """Return whether anybody has keys in a zone. No wrapping key is asked for.

        Raises:
            KeysUnavailable: the keys are away.
        """
        return bool(await find_zone(self._shards, keys.ring, zone))

    async def destroy(self, keys: AgentKeys, *, owner: str, zones: Collection[str]) -> list[str]:
        """Destroy all keys of an owner in zones; return their ids. No wrapping key is asked for.

        Raises:
            KeysUnavailable: the keys are away; some may be destroyed. It may be called again.
        """
        scopes = [scope_hash(zone, owner) for zone in zones]
        gone = [await destroy_scope(self._shards, keys.ring, scope) for scope in scopes]
        return self._forgotten(keys.ring, set().union(*gone))

    async def destroy_zone(self, keys: AgentKeys, zone: str) -> list[str]:
        """Destroy all keys of a zone, whoever owns them; return their ids. No wrapping key is asked for.

        Raises:
            KeysUnavailable: the keys are away; some may be destroyed. It may be called again.
        """
        return self._forgotten(keys.ring, await destroy_zone(self._shards, keys.ring, zone))

    def _forgotten(self, ring: Ring, destroyed: set[str]) -> list[str]:
        """Open nothing with these any more; return them in order."""
        for key_id in destroyed:
            self._open.pop((ring, key_id), None)
        return sorted(destroyed)

    async def _active(self, keys: AgentKeys, shard: Shard, scope: str) -> DataKey | None:
        """The key of a scope that is in use in a shard, replaced where it is too old."""
        key_id = active_in(shard.entries, scope)
        now_ms, before_ms = self._clock.now_ms(), keys.rotate_before_ms
        if key_id is not None and before_ms <= now_ms and is_due(shard, key_id, before_ms):
            wrapping, _ = await self._wrapping_keys(keys, shard.entries[key_id].by)
            replace_old = partial(rotated, wrapping=wrapping, before_ms=before_ms, now_ms=now_ms)
            shard = await self._shards.change(keys.ring, shard.name, replace_old)
        return await self._in_use(keys, shard, scope)

    async def _in_use(self, keys: AgentKeys, shard: Shard, scope: str) -> DataKey | None:
        """The key of a scope that is in use in a shard, however old."""
        key_id = active_in(shard.entries, scope)
        return None if key_id is None else await self._opened(keys, key_id, shard.entries[key_id])

    async def _with_new_key(
        self, keys: AgentKeys, known: Shard, above: Shard | None, *, zone: str, scope: str
    ) -> Shard:
        """A shard with a key for a scope, unless there is one by now, or no room for any.

        Args:
            above: the closed one that leads to it; None for the first.

        Raises:
            KeysUnavailable: the keys, or the wrapping key, are away; or all keys of the agent, or of this shard, are
                lost.
        """
        wrapping, _ = await self._wrapping_keys(keys)
        material, key_id = secrets.token_bytes(KEY_BYTES), new_key_id(known.name)
        entry = wrapping.wrap(key_id, material, zone=zone, scope=scope, at=self._clock.now_ms())

        def add(shard: Shard) -> Shard:
            has_place = not shard.is_closed and not shard.is_full and (may_begin or bool(shard.version))
            return shard.with_key(key_id, entry) if has_place and not active_in(shard.entries, scope) else shard

        may_begin = False
        shard = await self._shards.change(keys.ring, known.name, add)
        if shard.version:
            return shard
        may_begin = await self._was_never_there(keys, known.name, above)
        # Another replica may have made it since, and have sealed the first memory.
        shard = await self._shards.change(keys.ring, known.name, add)
        if not may_begin and not shard.version:
            raise _lost(keys.ring, known.name)
        return shard

    async def _was_never_there(self, keys: AgentKeys, name: str, above: Shard | None) -> bool:
        """Whether a shard that is not there is not one that was lost."""
        if above is None:
            return not await keys.has_sealed()
        now = await self._shards.now(keys.ring, above.name)
        is_lost_too = bool(above.version) and not now.version
        return not is_lost_too and not now.leads_to(name)

    async def _mark(self, ring: Ring, above: Shard | None, name: str) -> None:
        """Have it written down that a shard is there, before anything is sealed with its keys."""
        if above is not None and not above.leads_to(name):
            await self._shards.change(ring, above.name, lambda shard: shard.leading_to(name))

    async def _opened(self, keys: AgentKeys, key_id: str, entry: KeyEntry) -> DataKey:
        place = keys.ring, key_id
        known = self._open.get(place)
        if known is not None and self._age_ms(known.at_ms) < FRESH_MS:
            return known.key
        wrapping, at_ms = await self._wrapping_keys(keys, entry.by)
        material = wrapping.unwrap(key_id, entry)
        half = len(material) // 2
        key = DataKey(key_id, entry.zone, entry.at, cipher_key=material[:half], mac=material[half:])
        self._open[place] = _Opened(key, at_ms)
        return key

    async def _wrapping_keys(self, keys: AgentKeys, wanted: str = "") -> tuple[WrappingKeys, int]:
        return await self._wrapping.of(keys.ring, keys.wrapping, wanted)

    def _age_ms(self, at_ms: int) -> float:
        """How old something is; a clock that was set back makes it older than anything."""
        age_ms = self._clock.now_ms() - at_ms
        return age_ms if age_ms >= 0 else math.inf


def _lost(ring: Ring, name: str) -> KeysUnavailable:
    log.error("agent %s: key shard %s is missing, and memories need it: restore it", ring, name)
    return KeysUnavailable(
        f"keys of agent {ring} are missing: restore them from a backup", retry_after_s=_LOST_RETRY_AFTER_S
    )


def _by_shard(ids: Iterable[str]) -> dict[str, set[str]]:
    """Ids of keys by the name of their shard, without what is no id."""
    found: dict[str, set[str]] = {}
    for key_id in ids:
        if (name := shard_of_key(key_id)) is not None:
            found.setdefault(name, set()).add(key_id)
    return found
