"""One PUT of an item on its way into the engine: what it says, and the point that it makes of what lay there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal

from agentmemory_operator.agents.checks import is_immutable, scaled
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError, Conflict
from agentmemory_operator.memories import session_keywords
from agentmemory_operator.memories.incoming import IncomingMemory, clean
from agentmemory_operator.memories.naming_walks import entities_of
from agentmemory_operator.memories.point_pages import replace_row
from agentmemory_operator.memories.rules.entities import ENTITIES_KEY, entities_to_payload
from agentmemory_operator.memories.rules.filters import NOT_DELETED, equals, only
from agentmemory_operator.memories.rules.item_versions import versions_after
from agentmemory_operator.memories.rules.items import (
    KEPT_MARKS,
    Address,
    is_live,
    item_type,
    marked,
    marks_of,
    namespace_word,
)
from agentmemory_operator.memories.rules.record import (
    CHANGED_KEY,
    ITEM_NAMESPACE_KEY,
    LOGGED_KEY,
    REQUEST_MARKS_KEY,
    STORED_KEY,
    WRITE_MARKS_KEY,
    MemoryRecord,
    Payload,
    hash_content,
    payload_of,
    record_of,
)
from agentmemory_operator.memories.zoned import has_vector, whole
from agentmemory_operator.ports.base import Json, Vector

_SAID_BY = frozenset({"author", "speaker", "role", "observedBy", "observationCount"})

Outcome = Literal["created", "replaced", "repeated"]
"""Of a PUT; repeated is one that its idempotency key shows to have been done before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemContent:
    """What an item is to hold; what lies there is replaced by it as a whole.

    Attributes:
        author: who puts it; no part of the body.
        importance: 0..1.
        expires_at: Unix milliseconds.
        parent_id: a memory of the same user; None leaves an item that is there below the one that it is below.
        vector: only with provider `none`, and demanded there.
        idempotency_key: the same key and body again is the same write; another body is a Conflict.
    """

    content: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    author: str | None = None
    importance: float = 0.5
    tags: tuple[str, ...] = ()
    category: str | None = None
    expires_at: int | None = None
    parent_id: str | None = None
    vector: Sequence[float] | None = None
    idempotency_key: str | None = None

    def mark(self, secret: str) -> str | None:
        """What tells a request with an idempotency key from every other one, and its body from another.

        Args:
            secret: of an item with a zone: nobody without it can try which body has this mark.
        """
        if self.idempotency_key is None:
            return None
        more = self.importance, self.tags, self.category, self.expires_at, self.parent_id
        body = repr((self.content, self.metadata, list(self.vector or ()), *more))
        return f"{_digest(secret + self.idempotency_key)}:{_digest(secret + body)}"


async def cleaned(agent: Agent, item: ItemContent) -> tuple[ItemContent, tuple[str, ...]]:
    """The item without secrets, and of which kinds some were taken out."""
    said = IncomingMemory(user_id="", content=item.content, metadata=item.metadata)
    [one] = await clean(agent, [said])
    return replace(item, content=one.memory.content, metadata=one.memory.metadata), one.warnings


class ItemWrite:
    """A PUT that waits; its content is embedded once, and only if it is not there already.

    Attributes:
        mark: of a request with an idempotency key.
        outcome: None until it is decided.
    """

    def __init__(self, agent: Agent, address: Address, item: ItemContent, scope: str) -> None:
        self.mark = item.mark(scope if address.zone else "")
        self.outcome: Outcome | AgentMemoryError | None = None
        self._agent = agent
        self._address = address
        self._scope = scope
        self._item = item
        self._vector: Vector | None = None

    async def write(self, row: Payload | None, now_ms: int, kept: Payload, *, count: int) -> None:
        """Write the item, if the point still is as it was read.

        Args:
            kept: what else the point is to bear: marks, and earlier versions.
            count: of the writes that this is the last of; each raises `rev`.
        """
        store, alias = self._agent.store, self._agent.alias
        changes = self._changes(row, now_ms, count=count) | kept
        if row is None:
            await store.upsert(alias, [await self._point(row, changes)], insert_only=True, strong=True)
        elif self._says_the_same(row, now_ms):
            await store.set_payload(
                alias, whole(row, changes | self._logged()), unchanged(row, NOT_DELETED), strong=True
            )
        else:
            point = await self._point(row, changes)
            await replace_row(self._agent, point, unchanged(row), replaced=row)

    def replaces(self, row: Payload | None, now_ms: int) -> bool:
        """Whether what lies there is an item that answers."""
        return row is not None and is_live(row, self._agent.settings.ranking.endings, now_ms)

    def _says_the_same(self, row: Payload, now_ms: int) -> bool:
        is_same = row.get("content") == self._item.content and not self._agent.takes_vectors
        return is_same and self.replaces(row, now_ms)

    def refusal(self, row: Payload | None, now_ms: int) -> Conflict | None:
        """The reason why the item cannot replace the stored one: that is immutable, or has another parent.

        The place in a hierarchy stays, so that no circle is made.
        """
        wanted = self._item.parent_id
        if row is None or not self.replaces(row, now_ms):
            return None
        if is_immutable(self._agent, row):
            rule = f"items of type {row['type']!r} are immutable (types[].immutable)"
            return Conflict(f"key: the item under {self._address.key!r} cannot be replaced: {rule}: use another key")
        if wanted is None or row.get("parentId") == wanted:
            return None
        return Conflict(
            f"parent_id: the item under key {self._address.key!r} has another parent or none, which cannot be changed:"
            " omit parent_id, or delete the item first"
        )

    def says(self, now_ms: int) -> Payload:
        """What the point says once it is written; None takes away what it said."""
        item = self._item
        named = entities_of(
            self._agent,
            item.content,
            user_id=self._address.user_id,
            author=item.author,
            zone=self._address.zone,
        )
        return {
            "author": item.author,
            "observedBy": [item.author] if item.author else None,
            "content": item.content,
            "contentHash": hash_content(item.content),
            ENTITIES_KEY: entities_to_payload(named) or None,
            "metadata": dict(item.metadata),
            "importance": item.importance,
            "tags": list(item.tags) or None,
            "category": item.category,
            "expiresAt": item.expires_at,
            "validFrom": now_ms,
            STORED_KEY: now_ms,
            CHANGED_KEY: None,
        }

    def _changes(self, row: Payload | None, now_ms: int, *, count: int) -> Payload:
        return self.says(now_ms) | {"updatedAt": now_ms, "rev": (row["rev"] if row else 0) + count}

    async def _point(self, row: Payload | None, changes: Payload) -> Json:
        whole = self._base(row, changes["updatedAt"]) | changes
        payload = {key: value for key, value in whole.items() if value is not None}
        is_found = has_vector(self._agent, self._address.zone)
        point = {"id": payload["id"], "vector": await self._embedded() if is_found else {}, "payload": payload}
        words = (await session_keywords.words(self._agent, [record_of(payload)])).get(payload["id"])
        if words is not None and self._agent.keyword is not None:
            point = words.on(point, self._agent.keyword)
        return point | {"payload": point["payload"] | self._logged()}

    def _logged(self) -> Payload:
        """Its place in the change log: when it is written, not when it was sent."""
        return {LOGGED_KEY: self._agent.clock.now_ms()}

    def _base(self, row: Payload | None, now_ms: int) -> Payload:
        """What else the point carries: what it did, but for who said that, or what a new one begins with."""
        if row is not None and self.replaces(row, now_ms):
            return {key: value for key, value in row.items() if key not in _SAID_BY}
        address, agent = self._address, self._agent
        record = MemoryRecord(
            id=address.id_in(self._scope),
            agent_id=agent.settings.slug,
            user_id=address.user_id,
            type=item_type(self._agent.settings.ranking),
            content=self._item.content,
            created_at=now_ms,
            updated_at=now_ms,
            namespace=address.namespace,
            key=address.key,
            parent_id=self._item.parent_id,
            zone=address.zone,
        )
        return payload_of(record) | {ITEM_NAMESPACE_KEY: namespace_word(address.namespace)}

    async def _embedded(self) -> Vector:
        if self._vector is None:
            given, distance = self._item.vector, self._agent.distance
            embed = self._agent.embedder.embed
            [self._vector] = await embed([self._item.content]) if given is None else [scaled(given, distance=distance)]
        return self._vector


@dataclass(frozen=True, slots=True)
class Turn:
    """What becomes of PUTs that wait for the same key, done one after the other with nothing in between.

    Attributes:
        row: what lies there.
        taking: those that take effect; only the last is seen.
        outcomes: of each, once that is done.
    """

    row: Payload | None
    taking: tuple[ItemWrite, ...]
    outcomes: tuple[tuple[ItemWrite, Outcome | AgentMemoryError], ...]

    async def write(self, now_ms: int, *, mark: str, keep_versions: int) -> None:
        """Write the last, if the point still is as it was read."""
        last = self.taking[-1]
        row = self.row if self.row and last.replaces(self.row, now_ms) else None
        versions = versions_after(row, [write.says(now_ms) for write in self.taking], keep=keep_versions)
        requests = marks_of(self.row, REQUEST_MARKS_KEY) + [write.mark for write in self.taking if write.mark]
        marks = {WRITE_MARKS_KEY: marked(self.row, mark), REQUEST_MARKS_KEY: requests[-KEPT_MARKS:]}
        await last.write(self.row, now_ms, marks | versions, count=len(self.taking))

    def settle(self) -> None:
        """Tell each what became of it."""
        for write, outcome in self.outcomes:
            write.outcome = outcome


def turn_of(writes: Sequence[ItemWrite], row: Payload | None, now_ms: int) -> Turn:
    """What becomes of PUTs on what lies there."""
    seen, taking, outcomes = marks_of(row, REQUEST_MARKS_KEY), list[ItemWrite](), []
    for write in writes:
        outcome = _earlier(write, seen) or write.refusal(row, now_ms)
        if outcome is None:
            outcome = "replaced" if taking or write.replaces(row, now_ms) else "created"
            taking.append(write)
            seen.extend([write.mark] if write.mark else [])
        outcomes.append((write, outcome))
    return Turn(row, tuple(taking), tuple(outcomes))


def unchanged(row: Mapping[str, Any], *conditions: Json) -> Json:
    """The filter of a point that still is as it was read."""
    return only(row["id"], equals("rev", row["rev"]), *conditions)


def _earlier(write: ItemWrite, seen: Sequence[str]) -> Outcome | AgentMemoryError | None:
    """What an earlier request with the same idempotency key makes of a write."""
    if write.mark is None:
        return None
    key = write.mark.partition(":")[0]
    # Of what was deleted since, the body is not known any more.
    if write.mark in seen or f"{key}:" in seen:
        return "repeated"
    if any(mark.partition(":")[0] == key for mark in seen):
        return Conflict("Idempotency-Key: already used with another body; send a new key")
    return None


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
