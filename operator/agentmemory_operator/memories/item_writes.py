"""PUTs of items: the new content, the point that replaces the stored point, and the merge of waiting PUTs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentmemory_operator.agents.checks import is_immutable, normalise_vector
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError, Conflict
from agentmemory_operator.memories import session_keywords
from agentmemory_operator.memories.entity_extraction import extract_memory_entities
from agentmemory_operator.memories.incoming import IncomingMemory, scrub_memories
from agentmemory_operator.memories.point_pages import replace_row
from agentmemory_operator.memories.rules.entities import ENTITIES_KEY, entities_to_payload
from agentmemory_operator.memories.rules.filters import NOT_DELETED, equals, point_filter
from agentmemory_operator.memories.rules.item_rules import (
    MAX_WRITE_MARKS,
    Address,
    append_mark,
    is_live,
    item_type,
    marks_of,
    namespace_key,
)
from agentmemory_operator.memories.rules.item_versions import versions_after
from agentmemory_operator.memories.rules.log_times import next_logged_at
from agentmemory_operator.memories.rules.preconditions import (
    Precondition,
    PreconditionFailed,
    append_request,
    etag_of,
    is_repeated,
    request_mark,
)
from agentmemory_operator.memories.rules.record import (
    CHANGED_KEY,
    ITEM_NAMESPACE_KEY,
    LOGGED_KEY,
    REQUEST_ETAGS_KEY,
    REQUEST_MARKS_KEY,
    STORED_KEY,
    WRITE_MARKS_KEY,
    MemoryRecord,
    Payload,
    hash_content,
    payload_of,
    record_of,
)
from agentmemory_operator.memories.zone_access import has_vector, with_encrypted_fields
from agentmemory_operator.ports.base import Json, Vector
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

_AUTHOR_KEYS = frozenset({"author", "speaker", "role", "observedBy", "observationCount"})

# Tag that no stored item has.
_UNKNOWN = ""

Outcome = Literal["created", "replaced", "repeated"]
"""Result of a PUT. "repeated": its idempotency key shows that it was already done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemContent:
    """New content of an item, which replaces the stored content completely.

    Attributes:
        author: Caller that sends the PUT, not part of the body; None stores no author.
        importance: 0..1.
        expires_at: Unix milliseconds; None leaves expiry to the type.
        parent_id: Id of a memory of the same user. None keeps the parent of an existing item; any other value must
            equal it.
        vector: Vector from the caller. Required with provider `none`, unless its zone has no vectors. Must be None with
            another provider.
        idempotency_key: The same key with the same body is the same write; with another body it is a Conflict. An item
            stores its last 16 keys. None: every PUT is a new write.
        precondition: Condition on the item that the PUT replaces; None for every item, or none. No part of the body.
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
    precondition: Precondition | None = None

    def mark(self, secret: str) -> str | None:
        """Return the request mark: hashes of the idempotency key and of the body, as `key:body`. None without a key.

        Args:
            secret: Scope of ids in the item's zone, which contains a secret; '' without a zone. Only holders of the
                secret can test whether a guessed body has this mark.
        """
        if self.idempotency_key is None:
            return None
        fields = self.importance, self.tags, self.category, self.expires_at, self.parent_id
        body = repr((self.content, self.metadata, list(self.vector or ()), *fields))
        return request_mark(self.idempotency_key, body, secret=secret)


async def scrub_item(agent: Agent, item: ItemContent) -> tuple[ItemContent, tuple[str, ...]]:
    """Return the item with secrets removed from content and metadata, and the warnings of `scrub_memories`.

    Nothing is removed if the agent's object disables scrubbing.
    """
    memory = IncomingMemory(user_id="", content=item.content, metadata=item.metadata)
    [result] = await scrub_memories(agent, [memory])
    return replace(item, content=result.memory.content, metadata=result.memory.metadata), result.warnings


class ItemWrite:
    """A waiting PUT. Its content is embedded at most once, and not if the stored item already has it.

    Attributes:
        mark: `ItemContent.mark`; None without an idempotency key.
        outcome: Result of the PUT, or its error; None until it is decided.
        etag: Entity tag of the item right after the PUT. None until it is decided, and if a repeated PUT was deleted.
        sent: Write mark under which it was last sent, with the outcome if that took effect; None if it was not sent.
    """

    def __init__(self, agent: Agent, address: Address, item: ItemContent, scope: str) -> None:
        self.mark = item.mark(scope if address.zone else "")
        self.outcome: Outcome | AgentMemoryError | None = None
        self.etag: str | None = None
        self.sent: tuple[str, Outcome | AgentMemoryError] | None = None
        self._agent = agent
        self._address = address
        self._scope = scope
        self._item = item
        self._vector: Vector | None = None

    async def write(self, row: Payload | None, now_ms: int, extra: Payload, *, count: int) -> None:
        """Write the item if the stored point is still `row`. Read the point to learn the outcome.

        Args:
            row: Payload of the point as read; None if there was no point.
            now_ms: Time of the write, Unix milliseconds.
            extra: Further payload: marks, and earlier versions.
            count: Number of merged writes of which this is the last; each raises `rev` by 1.
        """
        store, alias = self._agent.store, self._agent.alias
        changes = self._changes(row, now_ms, count=count) | extra
        if row is None:
            await store.upsert(alias, [await self._point(row, changes)], insert_only=True, strong=True)
        elif self._has_same_content(row, now_ms):
            await store.set_payload(
                alias,
                with_encrypted_fields(row, changes | self._logged(row)),
                unchanged_filter(row, NOT_DELETED),
                strong=True,
            )
        else:
            point = await self._point(row, changes)
            await replace_row(self._agent, point, unchanged_filter(row), replaced=row)

    def is_replacement(self, row: Payload | None, now_ms: int) -> bool:
        """Return whether `row` is a live item. False if it is None, a tombstone or an expired item."""
        return row is not None and is_live(row, self._agent.settings.ranking.endings, now_ms)

    def _has_same_content(self, row: Payload, now_ms: int) -> bool:
        is_same = row.get("content") == self._item.content and not self._agent.takes_vectors
        return is_same and self.is_replacement(row, now_ms)

    def find_failure(self, row: Payload | None, now_ms: int, *, is_first: bool) -> PreconditionFailed | None:
        """Return the error if the stored item does not meet the precondition, else None.

        Args:
            is_first: False if the PUT follows another one in the same write. No caller knows that item's tag yet, and
                `merge_puts` adds it to the error.
        """
        if self._item.precondition is None:
            return None
        etag = etag_of(row) if row is not None and self.is_replacement(row, now_ms) else None
        return self._item.precondition.find_failure(etag if is_first else _UNKNOWN)

    def etag_after(self, row: Payload | None, now_ms: int, mark: str) -> str:
        """Return the entity tag of the item after this PUT replaced `row`, with `mark` as its write mark."""
        item = self._item
        kept = row if row is not None and self.is_replacement(row, now_ms) else {"id": self._address.id_in(self._scope)}
        written = {"observedBy": [item.author] if item.author else None, "category": item.category}
        marks = {CHANGED_KEY: None, ZONE_KEY: self._address.zone, WRITE_MARKS_KEY: [mark]}
        return etag_of({**kept, **written, **marks, "importance": item.importance})

    def find_conflict(self, row: Payload | None, now_ms: int) -> Conflict | None:
        """Return the error if the stored item is immutable, or has another parent than the PUT names; else None.

        The parent cannot change, which rules out cycles.
        """
        parent_id = self._item.parent_id
        if row is None or not self.is_replacement(row, now_ms):
            return None
        if is_immutable(self._agent, row):
            rule = f"items of type {row['type']!r} are immutable (types[].immutable)"
            return Conflict(f"key: the item under {self._address.key!r} cannot be replaced: {rule}: use another key")
        if parent_id is None or row.get("parentId") == parent_id:
            return None
        return Conflict(
            f"parent_id: the item under key {self._address.key!r} has another parent or none, which cannot be changed:"
            " omit parent_id, or delete the item first"
        )

    def build_content(self, now_ms: int) -> Payload:
        """Return the payload of the new content; a None value deletes a stored key."""
        item = self._item
        entities = extract_memory_entities(
            self._agent, item.content, user_id=self._address.user_id, author=item.author, zone=self._address.zone
        )
        return {
            "author": item.author,
            "observedBy": [item.author] if item.author else None,
            "content": item.content,
            "contentHash": hash_content(item.content),
            ENTITIES_KEY: entities_to_payload(entities) or None,
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
        return self.build_content(now_ms) | {"updatedAt": now_ms, "rev": (row["rev"] if row else 0) + count}

    async def _point(self, row: Payload | None, changes: Payload) -> Json:
        whole = self._base(row, changes["updatedAt"]) | changes
        payload = {key: value for key, value in whole.items() if value is not None}
        is_found = has_vector(self._agent, self._address.zone)
        point = {"id": payload["id"], "vector": await self._embedded() if is_found else {}, "payload": payload}
        words = (await session_keywords.build_words(self._agent, [record_of(payload)])).get(payload["id"])
        if words is not None and self._agent.keyword is not None:
            point = words.add_to_point(point, self._agent.keyword)
        return point | {"payload": point["payload"] | self._logged(row)}

    def _logged(self, row: Payload | None) -> Payload:
        """Return the position in the change log: the time of the write, not that of the request."""
        return {LOGGED_KEY: next_logged_at(row, self._agent.clock.now_ms())}

    def _base(self, row: Payload | None, now_ms: int) -> Payload:
        """Return the payload that the changes are merged into: a new item's, or the live item's without its author."""
        if row is not None and self.is_replacement(row, now_ms):
            return {key: value for key, value in row.items() if key not in _AUTHOR_KEYS}
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
        return payload_of(record) | {ITEM_NAMESPACE_KEY: namespace_key(address.namespace)}

    async def _embedded(self) -> Vector:
        if self._vector is None:
            vector, distance = self._item.vector, self._agent.distance
            embed = self._agent.embedder.embed
            [self._vector] = (
                await embed([self._item.content]) if vector is None else [normalise_vector(vector, distance=distance)]
            )
        return self._vector


@dataclass(frozen=True, slots=True)
class MergedPuts:
    """Decision about all waiting PUTs of one key, as if they were done one after the other without interruption.

    Attributes:
        row: Stored payload; None if there is none.
        effective_writes: Writes that take effect; only the content of the last becomes visible.
        outcomes: Outcome of each write, valid once the last is written.
    """

    row: Payload | None
    effective_writes: tuple[ItemWrite, ...]
    outcomes: tuple[tuple[ItemWrite, Outcome | AgentMemoryError], ...]

    async def write(self, now_ms: int, *, mark: str, keep_versions: int) -> None:
        """Write the last PUT if the stored point is still `row`. Read the point to learn the outcome.

        Requires at least one effective write.

        Args:
            now_ms: Time of the write, Unix milliseconds.
            mark: Id of this write, which is added to the write marks of the point.
            keep_versions: Maximum number of earlier versions that the item keeps.
        """
        last = self.effective_writes[-1]
        row = self.row if self.row and last.is_replacement(self.row, now_ms) else None
        versions = versions_after(
            row, [write.build_content(now_ms) for write in self.effective_writes], keep=keep_versions
        )
        etags = [f"{write.mark.partition(':')[0]}:{write.etag}" for write in self.effective_writes if write.mark]
        marks = {
            WRITE_MARKS_KEY: append_mark(self.row, mark),
            REQUEST_MARKS_KEY: append_request(self.row, *(write.mark for write in self.effective_writes)),
            REQUEST_ETAGS_KEY: [*marks_of(self.row, REQUEST_ETAGS_KEY), *etags][-MAX_WRITE_MARKS:] or None,
        }
        for write, outcome in self.outcomes:
            write.sent = mark, outcome
        await last.write(self.row, now_ms, marks | versions, count=len(self.effective_writes))

    def set_outcomes(self) -> None:
        """Set the outcome of each write, for which its caller is waiting."""
        for write, outcome in self.outcomes:
            write.outcome = outcome


def merge_puts(writes: Sequence[ItemWrite], row: Payload | None, now_ms: int, *, mark: str) -> MergedPuts:
    """Decide outcomes and entity tags of PUTs that are executed in order on the stored item; write nothing.

    Args:
        mark: Id of the write that stores the last of them.
    """
    request_marks, taking, outcomes = marks_of(row, REQUEST_MARKS_KEY), list[ItemWrite](), []
    for write in writes:
        if write.sent and write.sent[0] in marks_of(row):
            # A caller that was cancelled had sent it, and it took effect: its precondition is not met any more.
            outcomes.append((write, write.sent[1]))
            continue
        outcome = _decide(write, row, now_ms, request_marks=request_marks, is_first=not taking)
        if outcome == "created" and taking:
            outcome = "replaced"
        if outcome in ("created", "replaced"):
            taking.append(write)
            request_marks.extend([write.mark] if write.mark else [])
        outcomes.append((write, outcome))
    _set_etags(taking, outcomes, row, now_ms, mark=mark)
    return MergedPuts(row, tuple(taking), tuple(outcomes))


def _decide(
    write: ItemWrite, row: Payload | None, now_ms: int, *, request_marks: Sequence[str], is_first: bool
) -> Outcome | AgentMemoryError:
    try:
        if is_repeated(write.mark, request_marks):
            return "repeated"
    except Conflict as error:
        return error
    refusal = write.find_failure(row, now_ms, is_first=is_first) or write.find_conflict(row, now_ms)
    return refusal or ("replaced" if write.is_replacement(row, now_ms) else "created")


def _set_etags(
    taking: Sequence[ItemWrite],
    outcomes: Sequence[tuple[ItemWrite, Outcome | AgentMemoryError]],
    row: Payload | None,
    now_ms: int,
    *,
    mark: str,
) -> None:
    """Set the entity tags of writes, and in the errors of those whose precondition an earlier write broke."""
    for number, write in enumerate(taking, 1):
        write.etag = write.etag_after(row, now_ms, mark if number == len(taking) else f"{mark}.{number}")
    stored = (entry.partition(":") for entry in marks_of(row, REQUEST_ETAGS_KEY))
    etags: dict[str, str | None] = {key: etag for key, _, etag in stored}
    etags |= {write.mark.partition(":")[0]: write.etag for write in taking if write.mark}
    for write, outcome in outcomes:
        if outcome == "repeated" and write.mark:
            write.etag = etags.get(write.mark.partition(":")[0])
        if isinstance(outcome, PreconditionFailed) and outcome.etag == _UNKNOWN:
            outcome.etag = taking[-1].etag


def unchanged_filter(row: Mapping[str, Any], *conditions: Json) -> Json:
    """Return the filter for a point that still has the `rev` of `row` and meets the conditions."""
    return point_filter(row["id"], equals("rev", row["rev"]), *conditions)
