"""Keep items: one point under each key of a namespace, of which the last write wins.

A write reads the point, writes it on condition that its `rev` is still the one that was read, and reads back. The
engine can not tell whether a conditional write took effect; so each leaves a mark, and the point keeps the last 16. A
mark that is there means that the write took effect, whatever came after; without it the write begins anew on what is
there now. So every write takes effect once, after those that it has seen, and none replaces a later one. Writers of one
process take turns, because those of one key would mostly make each other begin anew.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal
from uuid import uuid4
from weakref import WeakValueDictionary

from agentmemory_operator.domain.filters import NOT_DELETED, equals, only
from agentmemory_operator.domain.identity import is_id, keyed_id
from agentmemory_operator.domain.items import (
    KEPT_MARKS,
    TOKENS_MAX,
    Address,
    buried,
    check_content,
    is_live,
    item_type,
    items_below,
    items_in,
    marked,
    namespace_word,
)
from agentmemory_operator.domain.records import (
    ITEM_NAMESPACE_KEY,
    WRITE_MARKS_KEY,
    MemoryRecord,
    Payload,
    hash_content,
    payload_of,
    record_of,
)
from agentmemory_operator.errors import (
    Conflict,
    FieldError,
    NotFound,
    OutcomeUnknown,
    RequestInvalid,
    StoreUnavailable,
)
from agentmemory_operator.ports import Clock, Json, Vector
from agentmemory_operator.services.chains import midway, read_row
from agentmemory_operator.services.checks import check_given, scaled
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.drafts import NewMemory
from agentmemory_operator.services.scrubbing import clean
from agentmemory_operator.services.windows import Windows

# Only writers of other processes make an attempt fail; each failure means that one of them got on.
MAX_ATTEMPTS = 100
PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemContent:
    """What an item is to hold.

    Attributes:
        vector: only with provider `none`, and demanded there.
        idempotency_key: the same key and body again is the same write; another body is a Conflict.
    """

    content: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    vector: Sequence[float] | None = None
    idempotency_key: str | None = None

    def mark(self) -> str:
        """Return what tells this write from every other one: of its idempotency key and its body, or random."""
        if self.idempotency_key is None:
            return secrets.token_hex(8)
        body = repr((self.content, self.metadata, list(self.vector or ())))
        return f"{_digest(self.idempotency_key)}:{_digest(body)}"


Outcome = Literal["created", "replaced", "repeated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """An item that is durable now.

    Attributes:
        outcome: repeated is a write that its idempotency key shows to have been done before.
        warnings: what was taken out of it.
    """

    memory_id: str
    key: str
    outcome: Outcome
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Keys:
    """One page of keys, by name; `next_cursor` is None on the last."""

    keys: tuple[str, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class NamespaceSize:
    """A namespace and how many items lie in it."""

    namespace: tuple[str, ...]
    items: int


Write = Callable[[Payload | None], Awaitable[None]]
"""Writes to a point on condition that it still is as it was read; None is where there was none."""


class Items:
    """The items of an agent; every method may run on several replicas at once."""

    def __init__(self, clock: Clock, windows: Windows) -> None:
        self._clock = clock
        self._windows = windows
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def new_key(self, idempotency_key: str | None) -> str:
        """Return a key for an item that was given none: the same for the same idempotency key."""
        return keyed_id("", "item", idempotency_key) if idempotency_key else str(uuid4())

    async def put(self, agent: Agent, address: Address, item: ItemContent) -> Put:
        """Write an item in the place of what lies under its key.

        Raises:
            RequestInvalid: the content is too long, or the vector does not fit.
            Conflict: the idempotency key came with another body.
            EmbedderUnavailable, StoreUnavailable: nothing was written.
            OutcomeUnknown: it may have been written.
        """
        limit = agent.settings.max_content_tokens or TOKENS_MAX
        if errors := [*check_content(item.content, limit), *check_given(item.vector, agent)]:
            raise RequestInvalid(errors)
        item, warnings = await _clean(agent, item)
        memory_id, mark = address.id_in(agent.settings.slug), item.mark()
        draft = _Draft(agent, address, item, mark, self._windows)
        # Outside the turn: it may take as long as all the rest.
        await draft.prepare(await read_row(agent, memory_id))

        async def write(row: Payload | None) -> None:
            await draft.write(row, self._clock.now_ms())

        before = await self._change(agent, memory_id, mark=mark, write=write)
        agent.sizes.forget(address.user_id)
        if before is not None and mark in _marks_of(before):
            return Put(memory_id=memory_id, key=address.key, outcome="repeated", warnings=warnings)
        replaces = before is not None and draft.replaces(before, self._clock.now_ms())
        outcome: Outcome = "replaced" if replaces else "created"
        return Put(memory_id=memory_id, key=address.key, outcome=outcome, warnings=warnings)

    async def get(self, agent: Agent, address: Address) -> MemoryRecord:
        """Return an item.

        Raises:
            NotFound: there is none, or it is expired.
        """
        row = await read_row(agent, address.id_in(agent.settings.slug))
        if row is None or not _is_live(agent, row, self._clock.now_ms()):
            raise _not_there(address)
        return record_of(row)

    async def delete(self, agent: Agent, address: Address) -> None:
        """Delete an item.

        Raises:
            NotFound: there is none, or it is expired.
            StoreUnavailable: it was not deleted.
            OutcomeUnknown: it may have been deleted.
        """
        mark = secrets.token_hex(8)

        async def bury(row: Payload | None) -> None:
            now_ms = self._clock.now_ms()
            if row is None or not _is_live(agent, row, now_ms):
                raise _not_there(address)
            point = {"id": row["id"], "vector": {}, "payload": buried(row, mark, now_ms)}
            await agent.store.upsert(agent.alias, [point], update_filter=_unchanged(row), strong=True)

        await self._change(agent, address.id_in(agent.settings.slug), mark=mark, write=bury)
        agent.sizes.forget(address.user_id)

    async def keys(
        self, agent: Agent, user_id: str, *, namespace: tuple[str, ...], limit: int, cursor: str | None = None
    ) -> Keys:
        """Return a page of the keys of exactly one namespace.

        Raises:
            RequestInvalid: the cursor is not one of ours.
        """
        if cursor is not None and not is_id(cursor):
            raise RequestInvalid([FieldError("cursor", f"{cursor!r} is not the next_cursor of a list of keys")])
        body: Json = {
            "filter": items_in(user_id, namespace, self._clock.now_ms(), agent.settings.ranking.types),
            "limit": limit,
        }
        body |= {"with_payload": ["key"], "with_vector": False} | ({"offset": cursor} if cursor else {})
        points, following = await agent.store.scroll(agent.alias, body)
        return Keys(tuple(sorted(point["payload"]["key"] for point in points)), following)

    async def namespaces(self, agent: Agent, user_id: str, *, prefix: tuple[str, ...]) -> list[NamespaceSize]:
        """Return the namespaces of a user's items that begin with a prefix, by name."""
        body: Json = {
            "filter": items_below(user_id, prefix, self._clock.now_ms(), agent.settings.ranking.types),
            "limit": PAGE,
        }
        body |= {"with_payload": ["namespace"], "with_vector": False}
        sizes: Counter[tuple[str, ...]] = Counter()
        while True:
            points, following = await agent.store.scroll(agent.alias, body)
            sizes.update(tuple(point["payload"]["namespace"]) for point in points)
            if following is None:
                return [NamespaceSize(namespace, sizes[namespace]) for namespace in sorted(sizes)]
            body["offset"] = following

    async def _change(self, agent: Agent, memory_id: str, *, mark: str, write: Write) -> Payload | None:
        """Write until the point bears the mark; return it as it was before, or as it is where it bore the mark."""
        async with self._turn(memory_id):
            row = await read_row(agent, memory_id)
            for _ in range(MAX_ATTEMPTS):
                if row is not None and mark in _marks_of(row):
                    return row
                await write(row)
                with midway():
                    after = await read_row(agent, memory_id)
                if after is not None and mark in _marks_of(after):
                    return row
                _check_not_lost(row, after)
                row = after
        raise StoreUnavailable("this key is being written by many processes at once: try again")

    def _turn(self, memory_id: str) -> asyncio.Lock:
        lock = self._turns.get(memory_id)
        if lock is None:
            lock = self._turns[memory_id] = asyncio.Lock()
        return lock


class _Draft:
    """An item on its way into the engine; its content is embedded once, and only if it is not there already."""

    def __init__(self, agent: Agent, address: Address, item: ItemContent, mark: str, windows: Windows) -> None:
        self._agent = agent
        self._address = address
        self._item = item
        self._mark = mark
        self._windows = windows
        self._vector: Vector | None = None

    async def prepare(self, row: Payload | None) -> None:
        """Embed the content, if it is another one than the point's."""
        if not self._says_the_same(row):
            await self._embed()

    def replaces(self, row: Payload, now_ms: int) -> bool:
        """Tell whether what lies there is an item that answers."""
        return _is_live(self._agent, row, now_ms)

    async def write(self, row: Payload | None, now_ms: int) -> None:
        """Write the item, if the point still is as it was read."""
        self._check_repeats(row)
        if row is None:
            await self._agent.store.upsert(
                self._agent.alias, [await self._point(self._payload(None, now_ms))], insert_only=True, strong=True
            )
        elif self.replaces(row, now_ms) and self._says_the_same(row):
            changes = self._changes(row, now_ms)
            filter_ = only(row["id"], equals("rev", row["rev"]), NOT_DELETED)
            await self._agent.store.set_payload(self._agent.alias, changes, filter_, strong=True)
        else:
            point = await self._point(self._payload(row, now_ms))
            await self._agent.store.upsert(self._agent.alias, [point], update_filter=_unchanged(row), strong=True)

    def _says_the_same(self, row: Payload | None) -> bool:
        return row is not None and row.get("content") == self._item.content and not self._agent.takes_vectors

    def _check_repeats(self, row: Payload | None) -> None:
        key, _, body = self._mark.partition(":")
        if row is not None and body and any(mark.partition(":")[0] == key for mark in _marks_of(row)):
            raise Conflict("Idempotency-Key: it came with another body before; send a new key")

    def _payload(self, row: Payload | None, now_ms: int) -> Payload:
        """Return the whole payload: what the item says now, and what else the point carried while it lived."""
        changes = self._changes(row, now_ms)
        if row is not None and self.replaces(row, now_ms):
            return row | changes
        address, slug = self._address, self._agent.settings.slug
        record = MemoryRecord(
            id=address.id_in(slug),
            agent_id=slug,
            user_id=address.user_id,
            type=item_type(self._agent.settings.ranking),
            content=self._item.content,
            created_at=now_ms,
            updated_at=now_ms,
            namespace=address.namespace,
            key=address.key,
        )
        return payload_of(record) | {ITEM_NAMESPACE_KEY: namespace_word(address.namespace)} | changes

    def _changes(self, row: Payload | None, now_ms: int) -> Payload:
        return {
            "content": self._item.content,
            "contentHash": hash_content(self._item.content),
            "metadata": dict(self._item.metadata),
            "validFrom": now_ms,
            "updatedAt": now_ms,
            "rev": 1 if row is None else row["rev"] + 1,
            WRITE_MARKS_KEY: marked(row, self._mark),
        }

    async def _point(self, payload: Payload) -> Json:
        point = {"id": payload["id"], "vector": await self._embed(), "payload": payload}
        if self._agent.keyword is None:
            return point
        words = await self._windows.words(self._agent, [record_of(payload)])
        return words[payload["id"]].on(point, self._agent.keyword)

    async def _embed(self) -> Vector:
        if self._vector is None:
            given = self._item.vector
            embed = self._agent.embedder.embed
            distance = self._agent.distance
            [self._vector] = await embed([self._item.content]) if given is None else [scaled(given, distance=distance)]
        return self._vector


async def _clean(agent: Agent, item: ItemContent) -> tuple[ItemContent, tuple[str, ...]]:
    """Return the item without secrets, and of which kinds some were taken out."""
    said = NewMemory(user_id="", content=item.content, metadata=item.metadata)
    [cleaned] = await clean(agent, [said])
    memory = cleaned.memory
    return replace(item, content=memory.content, metadata=memory.metadata), cleaned.warnings


def _is_live(agent: Agent, row: Mapping[str, Any], now_ms: int) -> bool:
    return is_live(row, agent.settings.ranking.types, now_ms)


def _marks_of(row: Mapping[str, Any]) -> Sequence[str]:
    return row.get(WRITE_MARKS_KEY) or ()


def _unchanged(row: Mapping[str, Any]) -> Json:
    return only(row["id"], equals("rev", row["rev"]))


def _check_not_lost(before: Payload | None, after: Payload | None) -> None:
    """Refuse to begin anew where the mark may have been there: so many wrote since that it would be gone."""
    passed = (after or {}).get("rev", 0) - (before or {}).get("rev", 0)
    if passed > KEPT_MARKS:
        raise OutcomeUnknown("many wrote under this key at once: read before repeating")


def _not_there(address: Address) -> NotFound:
    return NotFound(f"this user has no item {address.key!r} in the namespace {'/'.join(address.namespace)}")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
