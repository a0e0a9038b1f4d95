"""Walk through the memories of agents whose data keys were rotated, and encrypt them with the active keys.

Ids, hashes and vectors do not change, so nothing is embedded. Several replicas may walk concurrently, and each may be
killed at any point. A memory is written only if its `rev` is unchanged, and remaining memories are found by the
creation time of their key.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachetools import FIFOCache

from agentmemory_operator.errors import DecryptionFailed, KeysUnavailable
from agentmemory_operator.memories.rules.filters import NOT_DELETED, equals, point_filter
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.spec.zones import KEY_CREATED_KEY
from agentmemory_operator.zones.keyring import DataKey
from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.rules.sealing import SEALED_KEY, ZONE_KEY, Envelope, Payload, parse_envelope
from agentmemory_operator.zones.sealed_store import ZoneKeys, decrypt_fields, encrypt_fields

log = logging.getLogger(__name__)

PAGE = 100
# Pages after which a call ends, so that the caller can process other agents too.
MAX_PAGES_PER_CALL = 20

PAUSE_AFTER_FAILURE_MS = 600_000
"""Pause in milliseconds after a walk that found memories with old keys, and could encrypt none of them again."""

MAX_WALKS = 10_000

_READ = ("id", "userId", "rev", ZONE_KEY, SEALED_KEY)


@dataclass(frozen=True, slots=True)
class SealedPoints:
    """The points of an agent with zones.

    Attributes:
        store: Store that returns the points as stored, encrypted.
        max_page_size: Maximum number of points in a response of Qdrant. None if unlimited.
    """

    store: PointStore
    alias: str
    keys: ZoneKeys
    max_page_size: int | None = None

    @property
    def before_ms(self) -> int:
        """Keys created before this time are replaced, Unix milliseconds."""
        return self.keys.keys.rotate_before_ms

    async def read_stale_page(self, offset: Any) -> tuple[list[Json], Any]:
        """Return a page of memories with keys created before `before_ms`, and the offset of the next page or None.

        Args:
            offset: Offset that the previous page returned. None for the first page.
        """
        has_old_key = {"key": KEY_CREATED_KEY, "range": {"lt": self.before_ms}}
        body = {"filter": {"must": [NOT_DELETED, has_old_key]}, "limit": min(PAGE, self.max_page_size or PAGE)}
        from_offset = {} if offset is None else {"offset": offset}
        return await self.store.scroll(self.alias, {**body, "with_payload": [*_READ], **from_offset})

    async def reseal(self, points: Sequence[Json], now_ms: int) -> int:
        """Encrypt the memories of a page with the active keys; return the number of writes sent.

        A memory without `rev` is skipped. One that another writer changed in the meantime is not written.

        Raises:
            KeysUnavailable: If no key of the page is available, an active key cannot be read or rotated, or a new key
                was destroyed in the meantime. Nothing was written.
            StoreUnavailable, OutcomeUnknown: If Qdrant is unavailable. Some memories may be encrypted again.
        """
        rows = [point["payload"] for point in points]
        operations = [
            _write(point["id"], row, {**change, "updatedAt": now_ms})
            for point, row, change in zip(points, rows, await plan_reencryption(self.keys, rows), strict=True)
            if change is not None and isinstance(row.get("rev"), int)
        ]
        if operations:
            await self.store.batch(self.alias, operations, strong=True)
        return len(operations)


@dataclass(slots=True)
class _Walk:
    """Progress of this process with an agent.

    Attributes:
        before_ms: Keys created before this time are replaced.
        offset: Offset of the next page; None for the first.
        done, failed: Memories since the first page that were encrypted again, and that could not be.
        due_ms: Time of the next read, Unix milliseconds; 0 if it is due now.
    """

    before_ms: int
    offset: Any = None
    done: int = 0
    failed: int = 0
    due_ms: int = 0

    def end(self, now_ms: int) -> None:
        """Restart at the first page, after a pause if memories remain and none could be encrypted."""
        self.due_ms = now_ms + PAUSE_AFTER_FAILURE_MS if self.failed and not self.done else 0
        self.offset, self.done, self.failed = None, 0, 0


class ResealWalks:
    """Walks of one process, one for each agent. An agent without a past rotation time is not read."""

    def __init__(self) -> None:
        self._walks: FIFOCache[Ring, _Walk] = FIFOCache(MAX_WALKS)

    async def advance(self, points: SealedPoints, now_ms: int) -> int:
        """Encrypt up to 20 pages of memories again; return the number of writes sent.

        Skip memories without a usable key. Return early after a page for which `reseal` raises KeysUnavailable. Do
        nothing if no rotation time has passed, or during the pause after a walk that could encrypt no memory.

        Raises:
            StoreUnavailable, OutcomeUnknown: If Qdrant is unavailable. Some memories may be encrypted again; the next
                call continues.
        """
        ring = points.keys.keys.ring
        if not 0 < points.before_ms <= now_ms:
            self._walks.pop(ring, None)
            return 0
        walk = self._walks.get(ring)
        if walk is None or walk.before_ms != points.before_ms:
            walk = self._walks[ring] = _Walk(points.before_ms)
        return await _advance(points, walk, now_ms) if now_ms >= walk.due_ms else 0


async def _advance(points: SealedPoints, walk: _Walk, now_ms: int) -> int:
    sealed = 0
    for _ in range(MAX_PAGES_PER_CALL):
        page, next_offset = await points.read_stale_page(walk.offset)
        try:
            resealed = await points.reseal(page, now_ms)
            are_keys_unavailable = False
        except KeysUnavailable as error:
            # Count the page as failed. The next call continues after it, because only this page may have lost its keys.
            log.info("resealing memories of agent %s is postponed: %s", points.keys.keys.ring, error)
            resealed, are_keys_unavailable = 0, True
        sealed, walk.offset = sealed + resealed, next_offset
        walk.done, walk.failed = walk.done + resealed, walk.failed + len(page) - resealed
        if next_offset is None:
            walk.end(now_ms)
        if next_offset is None or are_keys_unavailable:
            break
    return sealed


def _write(point_id: str, row: Json, change: Json) -> Json:
    unchanged = point_filter(point_id, equals("rev", row["rev"]), NOT_DELETED)
    return {"set_payload": {"payload": {**change, "rev": row["rev"] + 1}, "filter": unchanged}}


_NONE = Envelope("", b"")


async def plan_reencryption(zone_keys: ZoneKeys, rows: Sequence[Mapping[str, Any]]) -> list[Payload | None]:
    """Return the payload change of each memory; None if its key is current, or its ciphertext is absent or unreadable.

    On return, the new keys are stored: once a change is written, its ciphertext is the only one of the memory.

    Args:
        rows: Payloads as stored, with at least `id`, `userId`, `zone` and the ciphertext.

    Raises:
        KeysUnavailable: If no old key is available, an active key cannot be read or rotated, or a new key was destroyed
            in the meantime.
    """
    envelopes = [parse_envelope(row) or _NONE for row in rows]
    old_keys = await zone_keys.read_keys({envelope.key_id for envelope in envelopes})
    active_keys = {key_id: await zone_keys.keyring.find_active_key(zone_keys.keys, key_id) for key_id in old_keys}
    new_keys = {key_id: key for key_id, key in active_keys.items() if key is not None and key.id != key_id}
    changes = [
        _resealed(zone_keys.scope, row, envelope, old_keys[envelope.key_id], new_keys[envelope.key_id])
        if envelope.key_id in new_keys
        else None
        for row, envelope in zip(rows, envelopes, strict=True)
    ]
    await zone_keys.keyring.check_stored(zone_keys.keys, {key.id for key in new_keys.values()})
    return changes


def _resealed(scope: str, row: Mapping[str, Any], envelope: Envelope, old: DataKey, new: DataKey) -> Payload | None:
    try:
        inner = decrypt_fields(old, envelope, scope=scope, payload=row)
    except DecryptionFailed:
        return None
    return encrypt_fields(new, inner, scope=scope, payload=row)
