"""Forget: erase a user, or some memories of a user, and issue a receipt.

1. With `deletes_keys_first`, delete the data keys. Before any deletion, store which privacy zones have keys, because a
   repeated request no longer finds these keys.
2. Erase all memories in the scope (`lifecycle/erase.py`).
3. Delete the keys, including keys created by concurrent writes.
4. Write the receipt, then erase again. If that finds memories, the alias has moved to a copy that contained some:
   repeat this step, at most 9 times. A repeated request that finds its receipt does this step too.

Copies of the collection repeat the erasure from its traces (`erasure_replay`). `restores/previous_sweeper.py` does so
in a collection kept for rollback, `erasure_restore` in a restored one, and `rebuilds/drain.py` in the target of a
rebuild.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import Conflict, FieldError, RequestInvalid, StoreUnavailable
from agentmemory_operator.lifecycle.erase import Eraser, Erasure, ErasurePreview
from agentmemory_operator.lifecycle.rules.erasure import (
    KEYS_FOUND_KEY,
    MAX_CLOCK_LEAD_MS,
    NO_RECEIPT,
    ErasureReceipt,
    ErasureScope,
    MemoryCounts,
    Row,
    erased_memories_filter,
    hash_request,
    hash_user,
    keys_found_payload,
    receipt_from_payload,
    receipt_id,
    receipt_to_payload,
    receipts_since_filter,
    user_receipts_condition,
)
from agentmemory_operator.memories.chains import outcome_unknown_on_failure
from agentmemory_operator.memories.point_pages import page_limit, read_pages, read_row
from agentmemory_operator.memories.rules.filters import Condition, equals, point_filter
from agentmemory_operator.memories.rules.record import RECEIPT_KEY
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.runtime.tasks import update
from agentmemory_operator.zones.rules.sealing import USER_ZONES

TOMBSTONE_PAGE = 1_000
# Maximum number of attempts. One after the first means that the alias moved to a copy that still contained memories.
MAX_ATTEMPTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRequest:
    """Scope and options of an erasure.

    Attributes:
        filters: Filters of the request body, unparsed, for the digest.
        idempotency_key: If the key has a receipt, a repeated request with the same scope returns it, and a request with
            another scope is a Conflict. None creates a new receipt each time.
        deletes_keys_first: True to delete keys before erasing anything. Keys are deleted after erasing in any case.
    """

    scope: ErasureScope
    filters: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    deletes_keys_first: bool = False

    @property
    def zones(self) -> tuple[str, ...]:
        """Zones whose keys are deleted: the zone of the scope, or all zones of an erased user."""
        if self.scope.zone is not None:
            return (self.scope.zone,)
        return USER_ZONES if self.scope.is_whole else ()


@dataclass(frozen=True, slots=True)
class ReceiptPage:
    """A page of receipts, newest first. `next_before` is the `before` of the next page, or None on the last page."""

    receipts: tuple[ErasureReceipt, ...]
    next_before: int | None


class ForgetUseCase:
    """Erases memories of users, and stores and lists the receipts."""

    def __init__(self, clock: Clock, eraser: Eraser) -> None:
        self._clock = clock
        self._erasing = eraser

    async def preview(self, agent: Agent, request: ForgetRequest) -> ErasurePreview:
        """Count the memories that the request would erase now, and list up to 100 of their ids. Changes nothing."""
        return await self._erasing.preview(agent, request.scope)

    async def forget(self, agent: Agent, request: ForgetRequest) -> ErasureReceipt:
        """Erase the memories in the scope that were stored before the call, and return the receipt.

        Raises:
            Conflict: If the idempotency key has a receipt of another scope. Nothing was erased.
            RequestInvalid: If `deletes_keys_first` is set and this API has no zone keys. Nothing was erased.
            StoreUnavailable: If Qdrant is unavailable at the start, or the collection was replaced. Nothing was erased.
            OutcomeUnknown: If Qdrant becomes unavailable later, or the key store is unavailable. Some memories and keys
                may be deleted; repeating the request deletes the rest.
        """
        scope, key = request.scope, request.idempotency_key
        id_ = receipt_id(agent.settings.slug, scope.user_id, key) if key else str(uuid4())
        done = await self._same_request(agent, id_, request)
        try:
            with outcome_unknown_on_failure():
                if done:
                    return await self._complete(agent, done, request, done.until_ms)
                return await self._execute(agent, id_, request)
        finally:
            agent.sizes.forget(scope.user_id)

    async def list_receipts(
        self, agent: Agent, *, limit: int, before: int | None = None, user_id: str | None = None
    ) -> ReceiptPage:
        """List receipts, newest first.

        Args:
            limit: Maximum number of receipts. If Qdrant limits the points of a query, at most one less than that. If
                more receipts share the newest time of the page, it contains all of them, because `before` is a time.
            before: Unix milliseconds; only earlier receipts. None for the newest.
            user_id: Only receipts of this user. None for all users.
        """
        limit = page_limit(agent, limit, beyond=1)
        of_user = [user_receipts_condition(agent.settings.slug, user_id)] if user_id is not None else []
        earlier = [] if before is None else [{"key": "deletedAt", "range": {"lt": before}}]
        body = {
            "filter": receipts_since_filter(0, *of_user, *earlier),
            "limit": limit + 1,
            "with_payload": True,
            "order_by": {"key": "deletedAt", "direction": "desc"},
        }
        points, _ = await agent.store.scroll(agent.alias, body)
        found = [receipt_from_payload(point["payload"]) for point in points]
        if len(found) <= limit:
            return ReceiptPage(tuple(found), None)
        last = found[limit].at
        page = [receipt for receipt in found if receipt.at > last]
        if not page:
            same: Condition = {"key": "deletedAt", "range": {"gte": last, "lte": last}}
            body = {"filter": receipts_since_filter(0, *of_user, same), "limit": limit, "with_payload": True}
            async for points in read_pages(agent, body):
                page += [receipt_from_payload(point["payload"]) for point in points]
        return ReceiptPage(tuple(page), page[-1].at)

    async def _execute(self, agent: Agent, id_: str, request: ForgetRequest) -> ErasureReceipt:
        began_ms = self._clock.now_ms()
        erasure = Erasure(id=id_, scope=request.scope, until_ms=began_ms + MAX_CLOCK_LEAD_MS)
        zones = await _delete_keys(agent, id_, request, now_ms=began_ms) if request.deletes_keys_first else set()
        await self._erasing.erase(agent, replace(erasure, includes_newer_at_start=True))
        # Delete keys again, because a concurrent write may have created one.
        zones |= await _delete_keys(agent, id_, request, now_ms=began_ms)
        receipt = await self._issue(agent, erasure, request, zones, is_first=True)
        return await self._complete(agent, receipt, request, erasure.until_ms)

    async def _complete(
        self, agent: Agent, receipt: ErasureReceipt, request: ForgetRequest, until_ms: int
    ) -> ErasureReceipt:
        """Erase again what was stored by `until_ms`; if that finds memories, replace the receipt.

        The receipt may come from an earlier attempt, whose process was killed after it wrote the receipt.
        """
        erasure = Erasure(id=receipt.id, scope=request.scope, until_ms=until_ms)
        for _ in range(MAX_ATTEMPTS):
            if not await self._erasing.erase(agent, erasure):
                return receipt
            receipt = await self._issue(agent, erasure, request, {*receipt.keys_deleted}, is_first=False)
        raise StoreUnavailable("this user's memories are being written concurrently: retry")

    async def _issue(
        self, agent: Agent, erasure: Erasure, request: ForgetRequest, zones: Set[str], *, is_first: bool
    ) -> ErasureReceipt:
        """Write the receipt from the erasure's tombstones.

        Of two concurrent requests with one id, both return the first receipt.

        Args:
            zones: Zones with deleted keys.
            is_first: False to replace the receipt of an earlier attempt of this request.
        """
        scope, slug = request.scope, agent.settings.slug
        summary = await _summarise(agent, erasure.id)
        receipt = ErasureReceipt(
            id=erasure.id,
            agent_id=slug,
            user_hash=hash_user(slug, scope.user_id),
            is_whole=scope.is_whole,
            older_than=scope.older_than if scope.criterion is None else None,
            until_ms=erasure.until_ms - MAX_CLOCK_LEAD_MS,
            at=self._clock.now_ms(),
            counts=MemoryCounts(types=dict(sorted(summary.types.items()))),
            sha256=summary.digest.hexdigest(),
            request_hash=hash_request(erasure.id, scope, request.filters, crypto=request.deletes_keys_first),
            zone=scope.zone,
            keys_deleted=tuple(zone for zone in request.zones if zone in zones),
        )
        point = {"id": receipt.id, "vector": {}, "payload": receipt_to_payload(receipt)}
        if is_first:
            await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
        else:
            await agent.store.upsert(agent.alias, [point], update_filter=point_filter(receipt.id), strong=True)
        row = await read_row(agent, receipt.id)
        if row and RECEIPT_KEY not in row:
            await agent.store.upsert(
                agent.alias, [point], update_filter=point_filter(receipt.id, NO_RECEIPT), strong=True
            )
            row = await read_row(agent, receipt.id)
        return receipt_from_payload(row) if row else receipt

    async def _same_request(self, agent: Agent, id_: str, request: ForgetRequest) -> ErasureReceipt | None:
        row = await read_row(agent, id_)
        if row is None or RECEIPT_KEY not in row:
            return None
        receipt = receipt_from_payload(row)
        if receipt.request_hash != hash_request(id_, request.scope, request.filters, crypto=request.deletes_keys_first):
            raise Conflict("Idempotency-Key: already used with another body; send a new key")
        return receipt


async def _delete_keys(agent: Agent, id_: str, request: ForgetRequest, *, now_ms: int) -> set[str]:
    """Delete the keys in the request's zones; return the zones that had keys, also at earlier attempts of the request.

    Raises:
        RequestInvalid: If the request is to delete keys first and this API has no zone keys.
        StoreUnavailable: If Qdrant is unavailable, or other attempts of the request write the same point each time.
        KeysUnavailable: If the key store is unavailable. Some keys may be deleted.
    """
    if agent.zone_keys is None:
        if request.deletes_keys_first:
            raise RequestInvalid([FieldError("crypto", "this API has no zone keys: omit crypto")])
        return set()
    zones = {*await agent.zone_keys.zones_with_keys(request.scope.user_id, request.zones)}
    zones |= await update(
        partial(read_row, agent, id_),
        lambda row: _note_zones(agent, id_, zones, row, now_ms=now_ms),
        busy=StoreUnavailable("other attempts of this request are in progress: retry"),
    )
    return zones | {*await agent.zone_keys.destroy(request.scope.user_id, request.zones)}


async def _note_zones(agent: Agent, id_: str, zones: Set[str], row: Row | None, *, now_ms: int) -> set[str] | None:
    """Add zones to those in the receipt's point; return those it has, or None if another attempt was faster."""
    noted: set[str] = {*((row or {}).get(KEYS_FOUND_KEY) or ())}
    if zones <= noted or (row and RECEIPT_KEY in row):
        return noted
    rev = row["rev"] if row else 0
    point = {"id": id_, "vector": {}, "payload": keys_found_payload(id_, sorted(zones | noted), now_ms, rev=rev + 1)}
    if row:
        unchanged = point_filter(id_, equals("rev", rev), NO_RECEIPT)
        await agent.store.upsert(agent.alias, [point], update_filter=unchanged, strong=True)
    else:
        await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
    return None


@dataclass(slots=True)
class _ErasureSummary:
    """Counts by type of the memories that an erasure erased, and a SHA-256 over their ids."""

    types: Counter[str] = field(default_factory=Counter)
    digest: Any = field(default_factory=hashlib.sha256)


async def _summarise(agent: Agent, erasure_id: str) -> _ErasureSummary:
    """Summarise the tombstones of an erasure. Qdrant returns them sorted by id, as the digest requires."""
    summary = _ErasureSummary()
    body = {
        "filter": erased_memories_filter(erasure_id),
        "limit": TOMBSTONE_PAGE,
        "with_payload": ["type"],
        "with_vector": False,
    }
    async for points in read_pages(agent, body):
        for point in points:
            summary.types[point["payload"]["type"]] += 1
            summary.digest.update(f"{point['id']}\n".encode())
    return summary
