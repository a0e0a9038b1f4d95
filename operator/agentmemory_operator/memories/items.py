"""Keep items: one point under each key of a namespace, of which the last write wins.

A write reads the point, writes it on condition that its `rev` is still the one that was read, and reads back. The
engine can not tell whether a conditional write took effect; so each leaves a mark, and the point keeps the last 16. A
mark that is there means that the write took effect, whatever came after; without it the write begins anew on what is
there now. So every write takes effect once, after those that it has seen, and none replaces a later one.

Writers of one process take turns, because those of one key would mostly make each other begin anew; and whoever has the
turn takes those along that wait: they are done one after the other, and only the last has to be written.
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

from agentmemory_operator.agents.checks import check_deletable, expiry_errors, type_of
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.rules.rebuild_costs import TOKENS_MAX
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
from agentmemory_operator.memories.chains import midway
from agentmemory_operator.memories.hierarchy import check_parent
from agentmemory_operator.memories.item_writes import ItemContent, ItemWrite, Outcome, Turn, cleaned, turn_of
from agentmemory_operator.memories.point_pages import read_memories, read_pages, read_row
from agentmemory_operator.memories.rules.ids import is_id, keyed_id
from agentmemory_operator.memories.rules.item_versions import NUMBER_KEY, number_of, versions_of
from agentmemory_operator.memories.rules.items import (
    Address,
    buried,
    check_content,
    is_live,
    item_type,
    items_below,
    items_in,
    marks_of,
    tells_all_since,
)
from agentmemory_operator.memories.rules.record import MemoryRecord, Payload, record_of
from agentmemory_operator.memories.tombstone_writes import entomb, grave_of, read_emptied
from agentmemory_operator.memories.zoned import id_scope, known_id_scope, vector_errors
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.runtime.tasks import side_by_side

# Only writers of other processes make an attempt fail; each failure means that one of them got on.
MAX_ATTEMPTS = 100
# Of a batch: each takes three calls of the engine.
PUT_AT_ONCE = 8
PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """An item that is durable now.

    Attributes:
        warnings: what was taken out of it.
    """

    memory_id: str
    key: str
    outcome: Outcome
    warnings: tuple[str, ...] = ()


PlacedItem = tuple[Address, ItemContent]


@dataclass(frozen=True, slots=True)
class Keys:
    """One page of keys, by name; `next_cursor` is None on the last."""

    keys: tuple[str, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class NamespaceCount:
    """A namespace and how many items lie in it."""

    namespace: tuple[str, ...]
    items: int


Write = Callable[[Payload | None, str], Awaitable[bool]]
"""Writes, with a mark, to a point on condition that it still is as it was read, None where there was none; returns
whether there is anything to write."""

Read = Callable[[Agent, str], Awaitable[Payload | None]]


class Items:
    """The items of an agent; every method may run on several replicas at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._waiting: dict[str, list[ItemWrite]] = {}

    def new_key(self, idempotency_key: str | None) -> str:
        """A key for an item that was given none: the same for the same idempotency key."""
        return keyed_id("", "item", idempotency_key) if idempotency_key else str(uuid4())

    async def put(self, agent: Agent, address: Address, item: ItemContent) -> Put:
        """Write an item in the place of what lies under its key.

        Raises:
            RequestInvalid: the content is too long, the vector does not fit, or the agent does not take the zone.
            KeysUnavailable: the key of the zone cannot be had now.
            NotFound: the user has no such parent.
            Conflict: the idempotency key came with another body, or the stored item has another parent, or is of an
                immutable type.
            EmbedderUnavailable, StoreUnavailable: nothing was written.
            OutcomeUnknown: it may have been written.
        """
        limit = agent.settings.max_content_tokens or TOKENS_MAX
        errors = [*check_content(item.content, limit), *vector_errors(agent, item.vector, address.zone)]
        if errors := errors + expiry_errors(type_of(agent, item_type(agent.settings.ranking)), item.expires_at):
            raise RequestInvalid(errors)
        item, warnings = await cleaned(agent, item)
        scope = await id_scope(agent, address.zone, address.user_id)
        memory_id = address.id_in(scope)
        if item.parent_id is not None:
            await check_parent(agent, item.parent_id, own_id=memory_id, user_id=address.user_id)
        write = ItemWrite(agent, address, item, scope)
        outcome = await self._wait_for(agent, memory_id, write)
        agent.sizes.forget(address.user_id)
        return Put(memory_id=memory_id, key=address.key, outcome=outcome, warnings=warnings)

    async def put_many(self, agent: Agent, items: Sequence[PlacedItem]) -> list[Put | AgentMemoryError]:
        """Put each item; one result an item, in order: put, or the error that kept this one out.

        Items of one address are put one after the other. Contents of several items are embedded in one call.

        Raises:
            TransientError: no item was written, and all may be if they are put again.
        """
        groups: dict[Address, list[int]] = {}
        for place, (address, _) in enumerate(items):
            groups.setdefault(address, []).append(place)
        agent = replace(agent, embedder=GatheringEmbedder(agent.embedder))

        async def put_in_order(places: Sequence[int]) -> list[tuple[int, Put | AgentMemoryError]]:
            return [(place, await self._put_or_refuse(agent, *items[place])) for place in places]

        done = await side_by_side(map(put_in_order, groups.values()), at_once=PUT_AT_ONCE)
        outcomes = dict(chain.from_iterable(done))
        unwritten = [one for one in outcomes.values() if _is_unwritten(one)]
        if len(unwritten) == len(outcomes):
            # Where the agent's collection was replaced, the caller opens the agent again.
            raise next((one for one in unwritten if isinstance(one, CollectionMoved)), unwritten[0])
        return [outcomes[place] for place in range(len(items))]

    async def _put_or_refuse(self, agent: Agent, address: Address, item: ItemContent) -> Put | AgentMemoryError:
        try:
            return await self.put(agent, address, item)
        except AgentMemoryError as error:
            return error

    async def get(self, agent: Agent, address: Address) -> MemoryRecord:
        """An item.

        Raises:
            NotFound: there is none, or it is expired.
        """
        row = await read_row(agent, await _id_of(agent, address))
        if row is None or not is_live(row, agent.settings.ranking.endings, self._clock.now_ms()):
            raise _not_there(address)
        return record_of(row | {NUMBER_KEY: number_of(row)})

    async def versions(self, agent: Agent, address: Address) -> list[MemoryRecord]:
        """What puts have replaced of an item, newest first, as far as it is kept.

        Raises:
            NotFound: there is no such item, or it is expired.
        """
        row = await read_row(agent, await _id_of(agent, address))
        if row is None or not is_live(row, agent.settings.ranking.endings, self._clock.now_ms()):
            raise _not_there(address)
        return versions_of(row, keep=agent.settings.keep_versions)

    async def delete(self, agent: Agent, address: Address, *, is_admin: bool = False) -> None:
        """Delete an item.

        Args:
            is_admin: Items of immutable types may be deleted too.

        Raises:
            NotFound: there is none, or it is expired.
            Forbidden: Its type is immutable, and only administrators may delete it.
            StoreUnavailable: it was not deleted.
            OutcomeUnknown: it may have been deleted.
        """

        async def bury(row: Payload | None, mark: str) -> bool:
            now_ms = self._clock.now_ms()
            if row is None or not is_live(row, agent.settings.ranking.endings, now_ms):
                raise _not_there(address)
            check_deletable(agent, row, is_admin=is_admin)
            await entomb(agent, [grave_of(row, buried(row, mark, now_ms))])
            return True

        memory_id = await _id_of(agent, address)
        async with self._turn(memory_id):
            await self._change(agent, memory_id, bury, read=_read_emptied)
        agent.sizes.forget(address.user_id)

    async def keys(
        self, agent: Agent, user_id: str, *, namespace: tuple[str, ...], limit: int, cursor: str | None = None
    ) -> Keys:
        """A page of the keys of exactly one namespace.

        Raises:
            RequestInvalid: the cursor is not one of ours.
        """
        if cursor is not None and not is_id(cursor):
            raise RequestInvalid([FieldError("cursor", f"{cursor!r} is not a next_cursor of a list of keys")])
        body: Json = {
            "filter": items_in(user_id, namespace, self._clock.now_ms(), agent.settings.ranking.endings),
            "limit": limit,
        }
        body |= {"with_payload": ["key"], "with_vector": False} | ({"offset": cursor} if cursor else {})
        points, following = await read_memories(agent, body)
        # What is locked does not tell its key.
        keys = (point["payload"].get("key") for point in points)
        return Keys(tuple(sorted(key for key in keys if key is not None)), following)

    async def namespaces(self, agent: Agent, user_id: str, *, prefix: tuple[str, ...]) -> list[NamespaceCount]:
        """The namespaces of a user's items that begin with a prefix, by name."""
        body: Json = {
            "filter": items_below(user_id, prefix, self._clock.now_ms(), agent.settings.ranking.endings),
            "limit": PAGE,
        }
        body |= {"with_payload": ["namespace"], "with_vector": False}
        sizes: Counter[tuple[str, ...]] = Counter()
        async for points in read_pages(agent, body):
            sizes.update(tuple(point["payload"]["namespace"]) for point in points if "namespace" in point["payload"])
        return [NamespaceCount(namespace, sizes[namespace]) for namespace in sorted(sizes)]

    async def _wait_for(self, agent: Agent, memory_id: str, write: ItemWrite) -> Outcome:
        """Wait for the turn of a write, or until whoever had one took it along."""
        self._waiting.setdefault(memory_id, []).append(write)
        async with self._turn(memory_id):
            if write.outcome is None:
                writes = self._waiting.pop(memory_id, [])
                # It is not among them where whoever took it along was cancelled.
                await self._carry_out(agent, memory_id, writes if write in writes else [*writes, write])
        if isinstance(write.outcome, AgentMemoryError):
            raise write.outcome
        assert write.outcome is not None
        return write.outcome

    async def _carry_out(self, agent: Agent, memory_id: str, writes: Sequence[ItemWrite]) -> None:
        try:
            await self._put_all(agent, memory_id, writes)
        except RequestInvalid as error:
            # The embedder refuses the content of one.
            if len(writes) == 1:
                writes[0].outcome = error
                return
            for write in writes:
                await self._carry_out(agent, memory_id, [write])
        except AgentMemoryError as error:
            for write in writes:
                write.outcome = error

    async def _put_all(self, agent: Agent, memory_id: str, writes: Sequence[ItemWrite]) -> None:
        turn: Turn | None = None

        async def write_last(row: Payload | None, mark: str) -> bool:
            nonlocal turn
            turn = turn_of(writes, row, self._clock.now_ms())
            if turn.taking:
                await turn.write(self._clock.now_ms(), mark=mark, keep_versions=agent.settings.keep_versions)
            return bool(turn.taking)

        await self._change(agent, memory_id, write_last)
        if turn is not None:
            turn.settle()

    async def _change(self, agent: Agent, memory_id: str, write: Write, *, read: Read = read_row) -> None:
        """Write until the point bears the mark of the write.

        Args:
            read: how it is read afterwards.
        """
        mark = secrets.token_hex(8)
        row = await read_row(agent, memory_id)
        for _ in range(MAX_ATTEMPTS):
            if not await write(row, mark):
                return
            with midway():
                after = await read(agent, memory_id)
            if mark in marks_of(after):
                return
            if not tells_all_since(row, after):
                raise OutcomeUnknown("this key was written concurrently: read before retrying")
            row = after
        raise StoreUnavailable("this key is being written concurrently: retry")

    def _turn(self, memory_id: str) -> asyncio.Lock:
        return self._turns.setdefault(memory_id, asyncio.Lock())


def _is_unwritten(outcome: Put | AgentMemoryError) -> TypeGuard[TransientError]:
    """Whether an item was not written, and may be if it is put again."""
    return isinstance(outcome, TransientError) and not isinstance(outcome, OutcomeUnknown)


async def _id_of(agent: Agent, address: Address) -> str:
    scope = await known_id_scope(agent, address.zone, address.user_id)
    if scope is None:
        raise _not_there(address)
    return address.id_in(scope)


async def _read_emptied(agent: Agent, memory_id: str) -> Payload | None:
    return (await read_emptied(agent, [memory_id])).get(memory_id)


def _not_there(address: Address) -> NotFound:
    return NotFound(f"this user has no item {address.key!r} in the namespace {'/'.join(address.namespace)}")
