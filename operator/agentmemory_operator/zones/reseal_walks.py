"""Walks through the memories of agents whose data keys were replaced, and seals them again.

Nothing is embedded, and no id, hash or vector changes. Several replicas may do so at once, and any may be killed: a
memory is written if nobody else has written it meanwhile, and what is left is found by the age of its key.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachetools import FIFOCache

from agentmemory_operator.errors import KeysUnavailable, Unreadable
from agentmemory_operator.memories.rules.filters import NOT_DELETED, equals, only
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.spec.zones import KEY_MADE_KEY
from agentmemory_operator.zones.keyring import DataKey
from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.rules.sealing import SEALED_KEY, ZONE_KEY, Envelope, Payload, envelope_of
from agentmemory_operator.zones.sealed_store import ZoneKeys, opened_with, sealed_with

log = logging.getLogger(__name__)

PAGE = 100
# So that other agents are swept too.
PAGES_AT_ONCE = 20

LOOK_AGAIN_MS = 600_000
"""After a walk that found locked memories alone."""

MOST_WALKS = 10_000

_READ = ("id", "userId", "rev", ZONE_KEY, SEALED_KEY)


@dataclass(frozen=True, slots=True)
class SealedPoints:
    """The points of an agent with zones.

    Attributes:
        store: of the points as they lie.
        most_a_page: what the engine lets a scroll ask for; None is any.
    """

    store: PointStore
    alias: str
    keys: ZoneKeys
    most_a_page: int | None = None

    @property
    def before_ms(self) -> int:
        """Keys made before are replaced, Unix milliseconds."""
        return self.keys.keys.rotate_before_ms

    async def older(self, offset: Any) -> tuple[list[Json], Any]:
        """A page of memories under keys that are to be replaced, and where the next one begins, None at the end."""
        made = {"key": KEY_MADE_KEY, "range": {"lt": self.before_ms}}
        body = {"filter": {"must": [NOT_DELETED, made]}, "limit": min(PAGE, self.most_a_page or PAGE)}
        start = {} if offset is None else {"offset": offset}
        return await self.store.scroll(self.alias, {**body, "with_payload": [*_READ], **start})

    async def reseal(self, points: Sequence[Json], now_ms: int) -> int:
        """Seal a page again; return how many were to be written. What somebody wrote meanwhile is left for later.

        Raises:
            KeysUnavailable: no key of the page can be had.
        """
        rows = [point["payload"] for point in points]
        operations = [
            _write(point["id"], row, {**change, "updatedAt": now_ms})
            for point, row, change in zip(points, rows, await resealed(self.keys, rows), strict=True)
            if change is not None and isinstance(row.get("rev"), int)
        ]
        if operations:
            await self.store.batch(self.alias, operations, strong=True)
        return len(operations)


@dataclass(slots=True)
class _Walk:
    """How far this process is with an agent.

    Attributes:
        before_ms: what it looks for is under keys made before.
        offset: where the next page begins, None at the first.
        done, left: memories that were sealed again since the first page, and those that could not be.
        due_ms: nothing is read before.
    """

    before_ms: int
    offset: Any = None
    done: int = 0
    left: int = 0
    due_ms: int = 0

    def end(self, now_ms: int) -> None:
        """Begin again: soon where that may find more, later where it found only what cannot be opened."""
        self.due_ms = now_ms + LOOK_AGAIN_MS if self.left and not self.done else 0
        self.offset, self.done, self.left = None, 0, 0


class ResealWalks:
    """The walks of one process. Where nothing is to be replaced, none reads anything."""

    def __init__(self) -> None:
        self._walks: FIFOCache[Ring, _Walk] = FIFOCache(MOST_WALKS)

    async def go_on(self, points: SealedPoints, now_ms: int) -> int:
        """Seal some memories again; return how many. What cannot be opened is left, and keeps nothing else from it.

        Raises:
            StoreUnavailable, OutcomeUnknown: some may be sealed again; the next call goes on.
        """
        ring = points.keys.keys.ring
        if not 0 < points.before_ms <= now_ms:
            self._walks.pop(ring, None)
            return 0
        walk = self._walks.get(ring)
        if walk is None or walk.before_ms != points.before_ms:
            walk = self._walks[ring] = _Walk(points.before_ms)
        return await _some(points, walk, now_ms) if now_ms >= walk.due_ms else 0


async def _some(points: SealedPoints, walk: _Walk, now_ms: int) -> int:
    sealed = 0
    for _ in range(PAGES_AT_ONCE):
        page, following = await points.older(walk.offset)
        try:
            done = await points.reseal(page, now_ms)
            is_away = False
        except KeysUnavailable as error:
            # These alone may have lost theirs: the next call begins behind them.
            log.info("resealing memories of agent %s is postponed: %s", points.keys.keys.ring, error)
            done, is_away = 0, True
        sealed, walk.offset = sealed + done, following
        walk.done, walk.left = walk.done + done, walk.left + len(page) - done
        if following is None:
            walk.end(now_ms)
        if following is None or is_away:
            break
    return sealed


def _write(point_id: str, row: Json, change: Json) -> Json:
    unchanged = only(point_id, equals("rev", row["rev"]), NOT_DELETED)
    return {"set_payload": {"payload": {**change, "rev": row["rev"] + 1}, "filter": unchanged}}


_NONE = Envelope("", b"")


async def resealed(zone_keys: ZoneKeys, rows: Sequence[Mapping[str, Any]]) -> list[Payload | None]:
    """What is to change of each memory; None where that is nothing, or the memory cannot be opened.

    The new keys are there when this returns: what is written with them takes the place of the only other text.

    Args:
        rows: payloads as they lie; of each `id`, `userId`, `zone` and the sealed text.

    Raises:
        KeysUnavailable: no key can be had now, or one was destroyed meanwhile.
    """
    envelopes = [envelope_of(row) or _NONE for row in rows]
    before = await zone_keys.reading({envelope.key_id for envelope in envelopes})
    after = {key_id: await zone_keys.keyring.successor(zone_keys.keys, key_id) for key_id in before}
    new = {key_id: key for key_id, key in after.items() if key is not None and key.id != key_id}
    changes = [
        _resealed(zone_keys.scope, row, envelope, before[envelope.key_id], new[envelope.key_id])
        if envelope.key_id in new
        else None
        for row, envelope in zip(rows, envelopes, strict=True)
    ]
    await zone_keys.keyring.confirm(zone_keys.keys, {key.id for key in new.values()})
    return changes


def _resealed(scope: str, row: Mapping[str, Any], envelope: Envelope, old: DataKey, new: DataKey) -> Payload | None:
    try:
        inner = opened_with(old, envelope, scope=scope, payload=row)
    except Unreadable:
        return None
    return sealed_with(new, inner, scope=scope, payload=row)
