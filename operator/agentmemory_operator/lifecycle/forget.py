"""Forget: erase what a user, or a part of the user's memories, left behind, and say so on a receipt.

Copies of the collection follow by what the erasure leaves there (`erasure_replay`): one that is kept for a way back by
`restores/previous_sweeper.py`, a restored one by `erasure_restore`, one that a rebuild fills by `rebuilds/drain.py`.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import Conflict, FieldError, RequestInvalid, StoreUnavailable
from agentmemory_operator.lifecycle.erase import Erasing, Erasure, ErasurePreview
from agentmemory_operator.lifecycle.rules.erasure import (
    KEYS_FOUND_KEY,
    NO_RECEIPT,
    WRITERS_AHEAD_MS,
    Counts,
    ErasureReceipt,
    Scope,
    hash_request,
    hash_user,
    keys_to_delete,
    memories_erased_by,
    receipt_from_payload,
    receipt_id,
    receipt_to_payload,
    receipts_of,
    receipts_since,
)
from agentmemory_operator.memories.chains import midway
from agentmemory_operator.memories.point_pages import read_pages, read_row
from agentmemory_operator.memories.rules.filters import only
from agentmemory_operator.memories.rules.record import RECEIPT_KEY
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.zones.rules.sealing import USER_ZONES

PAGE = 1_000
# Each attempt but the first means that the alias has moved meanwhile, to a copy that still held something.
MAX_ATTEMPTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRequest:
    """What to forget.

    Attributes:
        filters: of the body, as they came.
        idempotency_key: the same key and body again gives the same receipt; another body is a Conflict.
        deletes_keys_first: before anything is erased; else the keys of a user who is erased go last.
    """

    scope: Scope
    filters: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    deletes_keys_first: bool = False

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones whose keys are to go: all of the user's, or the one that is named."""
        if self.scope.zone is not None:
            return (self.scope.zone,)
        return USER_ZONES if self.scope.is_whole else ()


@dataclass(frozen=True, slots=True)
class Receipts:
    """Receipts, newest first; `next_before` is None where there are no older ones."""

    receipts: tuple[ErasureReceipt, ...]
    next_before: int | None


class Forgetting:
    """Erases memories of users, and keeps the receipts."""

    def __init__(self, clock: Clock, erasing: Erasing) -> None:
        self._clock = clock
        self._erasing = erasing

    async def would_forget(self, agent: Agent, request: ForgetRequest) -> ErasurePreview:
        """What would be erased now; nothing is changed."""
        return await self._erasing.would_erase(agent, request.scope)

    async def forget(self, agent: Agent, request: ForgetRequest) -> ErasureReceipt:
        """Erase what was stored before, and return the receipt.

        Raises:
            Conflict: the idempotency key came with another body.
            RequestInvalid: the agent has no keys that could be deleted.
            KeysUnavailable: keys that are to be deleted cannot be reached.
            StoreUnavailable, OutcomeUnknown: some may be erased; the same again erases the rest.
        """
        scope, key = request.scope, request.idempotency_key
        id_ = receipt_id(agent.settings.slug, scope.user_id, key) if key else str(uuid4())
        if done := await self._same_request(agent, id_, request):
            return done
        try:
            with midway():
                return await self._carry_out(agent, id_, request)
        finally:
            agent.sizes.forget(scope.user_id)

    async def receipts(
        self, agent: Agent, *, limit: int, before: int | None = None, user_id: str | None = None
    ) -> Receipts:
        """The newest receipts.

        Args:
            before: Unix milliseconds; only earlier ones.
            user_id: only those of this user.
        """
        limit = _within(agent, limit)
        of_user = [receipts_of(agent.settings.slug, user_id)] if user_id is not None else []
        earlier = [] if before is None else [{"key": "deletedAt", "range": {"lt": before}}]
        body = {
            "filter": receipts_since(0, *of_user, *earlier),
            "limit": limit + 1,
            "with_payload": True,
            "order_by": {"key": "deletedAt", "direction": "desc"},
        }
        points, _ = await agent.store.scroll(agent.alias, body)
        found = [receipt_from_payload(point["payload"]) for point in points]
        return _page(found, limit)

    async def _carry_out(self, agent: Agent, id_: str, request: ForgetRequest) -> ErasureReceipt:
        began_ms = self._clock.now_ms()
        erasure = Erasure(id=id_, scope=request.scope, until_ms=began_ms + WRITERS_AHEAD_MS)
        # Before any key is deleted: a repeated request finds none, and its receipt has to list them all the same.
        zones = await _note_keys(agent, id_, request, now_ms=began_ms)
        if request.deletes_keys_first:
            zones |= await _delete_keys(agent, request)
        await self._erasing.erase(agent, replace(erasure, takes_what_it_sees=True))
        # Once more: somebody may have stored something under a new one.
        zones |= await _delete_keys(agent, request)
        for attempt in range(MAX_ATTEMPTS):
            receipt = await self._issue(agent, erasure, request, zones, is_first=not attempt)
            if not await self._erasing.erase(agent, erasure):
                return receipt
        raise StoreUnavailable("this user's memories are being written concurrently: retry")

    async def _issue(
        self, agent: Agent, erasure: Erasure, request: ForgetRequest, zones: Set[str], *, is_first: bool
    ) -> ErasureReceipt:
        """Write the receipt of what bears the erasure's id; of two that do, both get the first one's.

        Args:
            zones: Zones whose keys existed and are deleted.
        """
        scope, slug = request.scope, agent.settings.slug
        told = await _told(agent, erasure.id)
        receipt = ErasureReceipt(
            id=erasure.id,
            agent_id=slug,
            user_hash=hash_user(slug, scope.user_id),
            is_whole=scope.is_whole,
            older_than=scope.older_than if scope.criterion is None else None,
            until_ms=erasure.until_ms - WRITERS_AHEAD_MS,
            at=self._clock.now_ms(),
            counts=Counts(types=dict(sorted(told.types.items()))),
            sha256=told.digest.hexdigest(),
            request_hash=hash_request(erasure.id, scope, request.filters),
            zone=scope.zone,
            keys_deleted=tuple(zone for zone in request.zones if zone in zones),
        )
        point = {"id": receipt.id, "vector": {}, "payload": receipt_to_payload(receipt)}
        if is_first:
            await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
        else:
            await agent.store.upsert(agent.alias, [point], update_filter=only(receipt.id), strong=True)
        row = await read_row(agent, receipt.id)
        if row and RECEIPT_KEY not in row:
            await agent.store.upsert(agent.alias, [point], update_filter=only(receipt.id, NO_RECEIPT), strong=True)
            row = await read_row(agent, receipt.id)
        return receipt_from_payload(row) if row else receipt

    async def _same_request(self, agent: Agent, id_: str, request: ForgetRequest) -> ErasureReceipt | None:
        row = await read_row(agent, id_)
        if row is None or RECEIPT_KEY not in row:
            return None
        receipt = receipt_from_payload(row)
        if receipt.request_hash != hash_request(id_, request.scope, request.filters):
            raise Conflict("Idempotency-Key: already used with another body; send a new key")
        return receipt


async def _note_keys(agent: Agent, id_: str, request: ForgetRequest, *, now_ms: int) -> set[str]:
    """Return the zones with keys to delete, as the first attempt of this request found them, and store them."""
    if agent.zone_keys is None:
        return set()
    zones = await agent.zone_keys.zones_with_keys(request.scope.user_id, request.zones)
    if zones:
        point = {"id": id_, "vector": {}, "payload": keys_to_delete(id_, zones, now_ms)}
        await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
    row = await read_row(agent, id_)
    return {*zones, *((row or {}).get(KEYS_FOUND_KEY) or ())}


async def _delete_keys(agent: Agent, request: ForgetRequest) -> set[str]:
    """Delete the keys of the erased memories, if the agent may have some; return the zones that had keys."""
    if agent.zone_keys is not None:
        return {*await agent.zone_keys.destroy(request.scope.user_id, request.zones)}
    if request.deletes_keys_first:
        raise RequestInvalid([FieldError("crypto", "this API has no zone keys: omit crypto")])
    return set()


@dataclass(slots=True)
class _Told:
    """What the tombstones of an erasure tell."""

    types: Counter[str] = field(default_factory=Counter)
    digest: Any = field(default_factory=hashlib.sha256)


async def _told(agent: Agent, erasure_id: str) -> _Told:
    """Read the tombstones by id, as the engine gives them."""
    told = _Told()
    body = {"filter": memories_erased_by(erasure_id), "limit": PAGE, "with_payload": ["type"], "with_vector": False}
    async for points in read_pages(agent, body):
        for point in points:
            told.types[point["payload"]["type"]] += 1
            told.digest.update(f"{point['id']}\n".encode())
    return told


def _within(agent: Agent, limit: int) -> int:
    """The page's size, smaller where the engine's limit leaves no room for the one read beyond it."""
    most = agent.settings.ranking.max_query_limit
    return limit if most is None else max(1, min(limit, most - 1))


def _page(found: Sequence[ErasureReceipt], limit: int) -> Receipts:
    """The page cut so that it does not end between receipts of the same time, unless all of it has one time."""
    if len(found) <= limit:
        return Receipts(tuple(found), None)
    whole = [receipt for receipt in found[:limit] if receipt.at > found[limit].at] or found[:limit]
    return Receipts(tuple(whole), whole[-1].at)
