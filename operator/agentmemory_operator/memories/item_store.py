"""Items: one point under each key of a namespace. The last write wins.

A write
1. reads the point,
2. checks its precondition, and writes it by compare-and-set on `rev`, with a mark; the point keeps the last 16 marks,
3. reads it again. Qdrant does not report whether a conditional write took effect; the mark does, even if later
   writes followed.
4. Without the mark, it starts again with the row just read. If marks may have been dropped, the outcome is unknown.

Invariant: a write takes effect at most once, after the writes that it has read, and overwrites no later write. A write
without an error took effect exactly once.

Writers of one process take a lock per key, because they would otherwise mostly force each other to retry. The holder of
the lock executes all waiting writes of the key in order, and only has to send the last one.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeGuard
from uuid import uuid4
from weakref import WeakValueDictionary

from agentmemory_operator.agents.checks import check_deletable, expiry_errors, find_type
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.rules.rebuild_costs import MAX_TOKENS
from agentmemory_operator.connections.embedders import GatheringEmbedder
from agentmemory_operator.errors import (
    AgentMemoryError,
    CollectionMoved,
    FieldError,
    NotFound,
    OutcomeUnknown,
    RequestInvalid,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.memories.chains import outcome_unknown_on_failure
from agentmemory_operator.memories.hierarchy import check_parent
from agentmemory_operator.memories.item_writes import (
    ItemContent,
    ItemWrite,
    MergedPuts,
    Outcome,
    merge_puts,
    scrub_item,
)
from agentmemory_operator.memories.point_pages import read_memories, read_pages, read_row
from agentmemory_operator.memories.rules.ids import is_id, keyed_id
from agentmemory_operator.memories.rules.item_rules import (
    Address,
    find_length_errors,
    has_all_marks_since,
    is_live,
    item_tombstone,
    item_type,
    marks_of,
    namespace_filter,
    prefix_filter,
)
from agentmemory_operator.memories.rules.item_versions import NUMBER_KEY, version_number, versions_of
from agentmemory_operator.memories.rules.preconditions import (
    Precondition,
    check_precondition,
    is_repeated,
    request_mark,
    tagged_record,
)
from agentmemory_operator.memories.rules.record import REQUEST_MARKS_KEY, MemoryRecord, Payload
from agentmemory_operator.memories.tombstone_writes import read_confirmed, tombstone_write, write_tombstones
from agentmemory_operator.memories.zone_access import find_id_scope, find_vector_errors, id_scope
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.runtime.tasks import gather_bounded

# Maximum number of attempts. An attempt fails only if another writer changed the same point, so the writers together
# make progress.
MAX_ATTEMPTS = 100
# Concurrent items of a batch. Each item needs at least three calls of Qdrant.
MAX_CONCURRENT_PUTS = 8
PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredItem:
    """An item that is durably stored.

    Attributes:
        warnings: Messages about secrets that were removed from it, and about numbers that filters will not find.
        etag: Entity tag right after the write. None if it was repeated by its idempotency key, and was deleted since.
    """

    memory_id: str
    key: str
    outcome: Outcome
    warnings: tuple[str, ...] = ()
    etag: str | None = None


PlacedItem = tuple[Address, ItemContent]


@dataclass(frozen=True, slots=True)
class KeyPage:
    """One page of keys, sorted within the page only. `next_cursor` is None on the last page."""

    keys: tuple[str, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class NamespaceCount:
    """A namespace, and the number of a user's items in exactly this namespace."""

    namespace: tuple[str, ...]
    items: int


Write = Callable[[Payload | None, str], Awaitable[bool]]
"""Function that writes to a point, with a mark, if the point is still the given row (None: no point). It returns False
if there is nothing to write."""

Read = Callable[[Agent, str], Awaitable[Payload | None]]


class Items:
    """Reads and writes the items of agents. Several replicas may call every method concurrently."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._waiting: dict[str, list[ItemWrite]] = {}

    def new_key(self, idempotency_key: str | None) -> str:
        """Return a key for an item that was sent without one: derived from the idempotency key, else random."""
        return keyed_id("", "item", idempotency_key) if idempotency_key else str(uuid4())

    async def put(self, agent: Agent, address: Address, item: ItemContent) -> StoredItem:
        """Write an item. It replaces the item that has its key.

        Raises:
            RequestInvalid: If the content is too long or rejected by the embedder, the vector does not fit, the type
                allows no `expires_at`, or the zone is not allowed. Also if the parent is the item, is below it, or is
                more than 1,000 levels deep.
            KeysUnavailable: If the key of the zone is unavailable.
            NotFound: If the user has no such parent.
            SpecInvalid: If the embedding provider's key, model or number of dimensions is wrong.
            Conflict: If the idempotency key was used with another body, or the stored item has another parent or an
                immutable type.
            PreconditionFailed: If the stored item does not meet the precondition.
            StoreRejected: If Qdrant rejects the point.
            EmbedderUnavailable, StoreUnavailable: If nothing was written. Retry.
            OutcomeUnknown: If it may have been written. Read before retrying.
        """
        limit = agent.settings.max_content_tokens or MAX_TOKENS
        errors = [*find_length_errors(item.content, limit), *find_vector_errors(agent, item.vector, address.zone)]
        if errors := errors + expiry_errors(find_type(agent, item_type(agent.settings.ranking)), item.expires_at):
            raise RequestInvalid(errors)
        item, warnings = await scrub_item(agent, item)
        scope = await id_scope(agent, address.zone, address.user_id)
        memory_id = address.id_in(scope)
        if item.parent_id is not None:
            await check_parent(agent, item.parent_id, own_id=memory_id, user_id=address.user_id)
        write = ItemWrite(agent, address, item, scope)
        outcome = await self._wait_for(agent, memory_id, write)
        agent.sizes.forget(address.user_id)
        return StoredItem(memory_id=memory_id, key=address.key, outcome=outcome, warnings=warnings, etag=write.etag)

    async def put_many(self, agent: Agent, items: Sequence[PlacedItem]) -> list[StoredItem | AgentMemoryError]:
        """Write each item; return one result per item, in order: the stored item, or its error.

        Items of one address are written one after the other. The contents of concurrent items are embedded together.

        Args:
            items: At least one item.

        Raises:
            TransientError: If no item was written and a retry may succeed for all.
        """
        groups: dict[Address, list[int]] = {}
        for index, (address, _) in enumerate(items):
            groups.setdefault(address, []).append(index)
        agent = replace(agent, embedder=GatheringEmbedder(agent.embedder))

        async def put_in_order(indexes: Sequence[int]) -> list[tuple[int, StoredItem | AgentMemoryError]]:
            return [(index, await self._put_or_refuse(agent, *items[index])) for index in indexes]

        results = await gather_bounded(map(put_in_order, groups.values()), concurrency=MAX_CONCURRENT_PUTS)
        outcomes = dict(chain.from_iterable(results))
        unwritten = [outcome for outcome in outcomes.values() if _is_unwritten(outcome)]
        if len(unwritten) == len(outcomes):
            # Raise CollectionMoved rather than another error, so that the caller opens the agent again.
            raise next((outcome for outcome in unwritten if isinstance(outcome, CollectionMoved)), unwritten[0])
        return [outcomes[index] for index in range(len(items))]

    async def _put_or_refuse(self, agent: Agent, address: Address, item: ItemContent) -> StoredItem | AgentMemoryError:
        try:
            return await self.put(agent, address, item)
        except AgentMemoryError as error:
            return error

    async def get(self, agent: Agent, address: Address) -> MemoryRecord:
        """Read an item.

        Raises:
            NotFound: If it does not exist or has expired.
            RequestInvalid, KeysUnavailable: As in `find_id_scope`.
        """
        row = await read_row(agent, await _id_of(agent, address))
        if row is None or not is_live(row, agent.settings.ranking.endings, self._clock.now_ms()):
            raise _not_found(address)
        return tagged_record(row | {NUMBER_KEY: version_number(row)})

    async def versions(self, agent: Agent, address: Address) -> list[MemoryRecord]:
        """Return the earlier versions of an item, newest first, at most `keep_versions` of the agent's settings.

        Raises:
            NotFound: If the item does not exist or has expired.
            RequestInvalid, KeysUnavailable: As in `find_id_scope`.
        """
        row = await read_row(agent, await _id_of(agent, address))
        if row is None or not is_live(row, agent.settings.ranking.endings, self._clock.now_ms()):
            raise _not_found(address)
        return versions_of(row, keep=agent.settings.keep_versions)

    async def delete(
        self,
        agent: Agent,
        address: Address,
        *,
        is_admin: bool = False,
        precondition: Precondition | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Delete an item.

        Args:
            is_admin: True if items of immutable types may be deleted.
            precondition: Condition on the stored item; None for none.
            idempotency_key: A repeated deletion with the same key deletes nothing. None: every deletion is a new one.

        Raises:
            NotFound: If it does not exist or has expired.
            Forbidden: If its type is immutable and `is_admin` is false.
            PreconditionFailed, Conflict: If the item does not meet the precondition, or the key had another request.
            RequestInvalid, KeysUnavailable: As in `find_id_scope`.
            StoreUnavailable, OutcomeUnknown: If it was not deleted (retry), or may have been deleted.
        """
        request = request_mark(idempotency_key, "DELETE") if idempotency_key else None

        async def bury(row: Payload | None, mark: str) -> bool:
            if is_repeated(request, marks_of(row, REQUEST_MARKS_KEY)):
                return False
            now_ms = self._clock.now_ms()
            if row is None or not is_live(row, agent.settings.ranking.endings, now_ms):
                raise _not_found(address)
            check_precondition(precondition, row)
            check_deletable(agent, row, is_admin=is_admin)
            await write_tombstones(agent, [tombstone_write(row, item_tombstone(row, mark, now_ms, request=request))])
            return True

        memory_id = await _id_of(agent, address)
        async with self._lock(memory_id):
            await self._change(agent, memory_id, bury, read=_read_emptied)
        agent.sizes.forget(address.user_id)

    async def keys(
        self, agent: Agent, user_id: str, *, namespace: tuple[str, ...], limit: int, cursor: str | None = None
    ) -> KeyPage:
        """Return a page of the keys of exactly one namespace, without those of locked items.

        Args:
            limit: Maximum number of items read for the page, locked ones included.
            cursor: `next_cursor` of the previous page; None for the first page.

        Raises:
            RequestInvalid: If the cursor is malformed.
        """
        if cursor is not None and not is_id(cursor):
            raise RequestInvalid([FieldError("cursor", f"{cursor!r} is not a next_cursor of a list of keys")])
        body: Json = {
            "filter": namespace_filter(user_id, namespace, self._clock.now_ms(), agent.settings.ranking.endings),
            "limit": limit,
        }
        body |= {"with_payload": ["key"], "with_vector": False} | ({"offset": cursor} if cursor else {})
        points, following = await read_memories(agent, body)
        # Leave out locked items, which have no readable key.
        keys = (point["payload"].get("key") for point in points)
        return KeyPage(tuple(sorted(key for key in keys if key is not None)), following)

    async def namespaces(self, agent: Agent, user_id: str, *, prefix: tuple[str, ...]) -> list[NamespaceCount]:
        """Return the namespaces that start with `prefix` (() is any) and have items of a user, sorted, with counts."""
        body: Json = {
            "filter": prefix_filter(user_id, prefix, self._clock.now_ms(), agent.settings.ranking.endings),
            "limit": PAGE,
        }
        body |= {"with_payload": ["namespace"], "with_vector": False}
        sizes: Counter[tuple[str, ...]] = Counter()
        async for points in read_pages(agent, body):
            sizes.update(tuple(point["payload"]["namespace"]) for point in points if "namespace" in point["payload"])
        return [NamespaceCount(namespace, sizes[namespace]) for namespace in sorted(sizes)]

    async def _wait_for(self, agent: Agent, memory_id: str, write: ItemWrite) -> Outcome:
        """Wait until the write is executed: by this call once it has the lock, or by an earlier holder.

        Return the outcome of the write, or raise its error.
        """
        self._waiting.setdefault(memory_id, []).append(write)
        async with self._lock(memory_id):
            if write.outcome is None:
                writes = self._waiting.pop(memory_id, [])
                # Add the write again if an earlier holder of the lock took it and was cancelled.
                await self._execute(agent, memory_id, writes if write in writes else [*writes, write])
        if isinstance(write.outcome, AgentMemoryError):
            raise write.outcome
        assert write.outcome is not None
        return write.outcome

    async def _execute(self, agent: Agent, memory_id: str, writes: Sequence[ItemWrite]) -> None:
        try:
            await self._put_all(agent, memory_id, writes)
        except RequestInvalid as error:
            # Execute the writes one by one, because the embedder rejected one of the contents.
            if len(writes) == 1:
                writes[0].outcome = error
                return
            for each_write in writes:
                await self._execute(agent, memory_id, [each_write])
        except AgentMemoryError as error:
            for each_write in writes:
                each_write.outcome = error

    async def _put_all(self, agent: Agent, memory_id: str, writes: Sequence[ItemWrite]) -> None:
        merged: MergedPuts | None = None

        async def write_last(row: Payload | None, mark: str) -> bool:
            nonlocal merged
            now_ms = self._clock.now_ms()
            merged = merge_puts(writes, row, now_ms, mark=mark)
            if merged.effective_writes:
                await merged.write(now_ms, mark=mark, keep_versions=agent.settings.keep_versions)
            return bool(merged.effective_writes)

        await self._change(agent, memory_id, write_last)
        if merged is not None:
            merged.set_outcomes()

    async def _change(self, agent: Agent, memory_id: str, write: Write, *, read: Read = read_row) -> None:
        """Write until the point has the mark of the write, or `write` returns False.

        Args:
            read: Reads the point after the write.

        Raises:
            OutcomeUnknown: If so many writes followed that the mark may have been dropped.
            StoreUnavailable: If other writers changed the point in every attempt.
        """
        mark = secrets.token_hex(8)
        row = await read_row(agent, memory_id)
        for _ in range(MAX_ATTEMPTS):
            if not await write(row, mark):
                return
            with outcome_unknown_on_failure():
                after = await read(agent, memory_id)
            if mark in marks_of(after):
                return
            if not has_all_marks_since(row, after):
                raise OutcomeUnknown("this key was written concurrently: read before retrying")
            row = after
        raise StoreUnavailable("this key is being written concurrently: retry")

    def _lock(self, memory_id: str) -> asyncio.Lock:
        return self._locks.setdefault(memory_id, asyncio.Lock())


def _is_unwritten(outcome: StoredItem | AgentMemoryError) -> TypeGuard[TransientError]:
    """Return whether an item was not written and a retry may succeed."""
    return isinstance(outcome, TransientError) and not isinstance(outcome, OutcomeUnknown)


async def _id_of(agent: Agent, address: Address) -> str:
    scope = await find_id_scope(agent, address.zone, address.user_id)
    if scope is None:
        raise _not_found(address)
    return address.id_in(scope)


async def _read_emptied(agent: Agent, memory_id: str) -> Payload | None:
    return (await read_confirmed(agent, [memory_id])).get(memory_id)


def _not_found(address: Address) -> NotFound:
    return NotFound(f"this user has no item {address.key!r} in the namespace {'/'.join(address.namespace)}")
