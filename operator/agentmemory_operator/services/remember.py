"""Store memories: check, embed in one call, write in one request, join those that supersede others to their chains.

Items of one request that say the same are one memory: the first is stored, the others are answered with its id.
"""

import asyncio
import json
import secrets
from array import array
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from typing import Any, Literal

from agentmemory_operator.domain.identity import is_id, keyed_id, time_ordered_id
from agentmemory_operator.domain.keywords import Words
from agentmemory_operator.domain.records import TOMBSTONE_KEY, MemoryRecord, Payload, hash_content, payload_of
from agentmemory_operator.errors import (
    AgentMemoryError,
    Conflict,
    FieldError,
    NotFound,
    RequestInvalid,
    StoreRejected,
)
from agentmemory_operator.ports import Clock, Json, Vector
from agentmemory_operator.services.chains import Chains, midway, read_row
from agentmemory_operator.services.checks import check_types, check_vector, scaled
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.windows import Windows

# A namespace that begins with it is the user's whom the next part names.
USER_NAMESPACE = "memories"

Event = Literal["ADD", "SUPERSEDE", "NONE"]

# Between two of these others get their turn; 2 ms with vectors of 1,024 numbers.
DRAFTED_AT_ONCE = 32
# What the engine answers because of a point, or of how many there are: fewer of them may pass.
_ABOUT_POINTS = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMemory:
    """A memory to store. The caller has checked its form; what depends on the agent is checked here.

    Attributes:
        type: None is the agent's first type.
        importance: 0..1.
        namespace: where its first part is `memories`, the second must be the user.
        decay_rate: 0..10 a day; None is that of the type.
        created_at, expires_at: Unix milliseconds; created_at None is now.
        valid_from, valid_to: Unix milliseconds between which it is true; valid_from None is created_at.
        vector: only with provider `none`, and demanded there.
        idempotency_key: the same key and body again gives the same memory; another body is a Conflict.
    """

    user_id: str
    content: str
    type: str | None = None
    importance: float = 0.5
    confidence: float | None = None
    decay_rate: float | None = None
    session_id: str | None = None
    source: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    supersedes: str | None = None
    namespace: tuple[str, ...] = ()
    created_at: int | None = None
    expires_at: int | None = None
    valid_from: int | None = None
    valid_to: int | None = None
    vector: Sequence[float] | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A memory that is durable now.

    Attributes:
        event: NONE is another item of the same request, which said the same.
        recorded: false where an event left nothing new behind.
    """

    id: str
    event: Event
    supersedes: str | None = None
    recorded: bool = True
    warnings: tuple[str, ...] = ()


Outcome = Stored | AgentMemoryError

# What an item says: two items of a batch differ in their keys at least.
_SAID = tuple(field_.name for field_ in fields(NewMemory) if field_.name not in ("idempotency_key", "supersedes"))
_COMPARED_KEYS = ("requestHash", TOMBSTONE_KEY)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A checked memory on its way into the engine."""

    record: MemoryRecord
    vector: Vector
    words: Words | None = None

    def point(self, agent: Agent) -> Json:
        point = {"id": self.record.id, "vector": self.vector, "payload": payload_of(self.record)}
        return self.words.on(point, agent.keyword) if self.words and agent.keyword else point

    @property
    def stored(self) -> Stored:
        event: Event = "SUPERSEDE" if self.record.supersedes_id else "ADD"
        return Stored(id=self.record.id, event=event, supersedes=self.record.supersedes_id)


class Remember:
    """Stores memories."""

    def __init__(self, clock: Clock, chains: Chains, windows: Windows) -> None:
        self._clock = clock
        self._chains = chains
        self._windows = windows

    async def store(self, agent: Agent, memories: Sequence[NewMemory]) -> list[Outcome]:
        """Store each memory; one result an item, in order: stored, or the error that kept this one out.

        An item's error is RequestInvalid, NotFound (what it supersedes), Conflict or a TransientError.

        Raises:
            EmbedderUnavailable, StoreUnavailable: nothing was written.
            OutcomeUnknown: the batch may have been written. Items with keys may be stored again.
        """
        places = _places_of_first(memories)
        distinct = list(dict.fromkeys(places))
        drafts = await self._worded(agent, await self._draft(agent, [memories[place] for place in distinct]))
        try:
            outcomes = dict(zip(distinct, await self._write(agent, drafts), strict=True))
        finally:
            await self._windows.settle(agent, _changed(drafts))
            for memory in memories:
                agent.sizes.forget(memory.user_id)
        return [outcomes[first] if first == place else _repeated(outcomes[first]) for place, first in enumerate(places)]

    async def _write(self, agent: Agent, drafts: Sequence[_Draft | AgentMemoryError]) -> list[Outcome]:
        """Write drafts that nothing is compared with together, those with a predecessor one after the other."""
        ready = [draft for draft in drafts if isinstance(draft, _Draft) and draft.record.supersedes_id is None]
        plain = [draft for draft in ready if draft.record.request_hash is None]
        refused: dict[str, AgentMemoryError] = dict(await _put(agent, plain))
        with midway() if plain else nullcontext():
            refused |= await self._put_keyed(agent, [draft for draft in ready if draft.record.request_hash])
        return [await self._finish(agent, draft, refused) for draft in drafts]

    async def _put_keyed(self, agent: Agent, drafts: Sequence[_Draft]) -> dict[str, AgentMemoryError]:
        """Write what is not there yet; return by id what keeps a draft from being the memory under its key."""
        if not drafts:
            return {}
        refused: dict[str, AgentMemoryError] = dict(await _put(agent, drafts, insert_only=True))
        with midway():
            ids = [draft.record.id for draft in drafts if draft.record.id not in refused]
            points = await agent.store.retrieve(agent.alias, ids, keys=_COMPARED_KEYS)
        rows = {point["id"]: point["payload"] for point in points}
        for draft in drafts:
            if conflict := _other_request(rows.get(draft.record.id), draft.record):
                refused[draft.record.id] = conflict
        return refused

    async def _draft(self, agent: Agent, memories: Sequence[NewMemory]) -> list[_Draft | AgentMemoryError]:
        """Return each memory as it will be written, or what is wrong with it."""
        now_ms = self._clock.now_ms()
        errors = [_errors_of(memory, agent) for memory in memories]
        texts = [memory.content for memory, wrong in zip(memories, errors, strict=True) if not wrong]
        vectors = {} if agent.takes_vectors else await _embed(agent, texts)
        drafts: list[_Draft | AgentMemoryError] = []
        for place, (memory, wrong) in enumerate(zip(memories, errors, strict=True)):
            vector = RequestInvalid(wrong) if wrong else _vector_of(memory, agent, vectors)
            record = _record_of(memory, agent, now_ms, place=place)
            drafts.append(vector if isinstance(vector, AgentMemoryError) else _Draft(record, vector))
            if place % DRAFTED_AT_ONCE == DRAFTED_AT_ONCE - 1:
                await asyncio.sleep(0)
        return drafts

    async def _worded(
        self, agent: Agent, drafts: Sequence[_Draft | AgentMemoryError]
    ) -> list[_Draft | AgentMemoryError]:
        """Return the drafts with what finds them by words."""
        records = [draft.record for draft in drafts if isinstance(draft, _Draft)]
        words = await self._windows.words(agent, records)
        return [
            replace(draft, words=words.get(draft.record.id)) if isinstance(draft, _Draft) else draft for draft in drafts
        ]

    async def _finish(
        self, agent: Agent, draft: _Draft | AgentMemoryError, refused: Mapping[str, AgentMemoryError]
    ) -> Outcome:
        if isinstance(draft, AgentMemoryError):
            return draft
        if draft.record.supersedes_id is None:
            return refused.get(draft.record.id, draft.stored)
        try:
            return await self._join(agent, draft)
        except AgentMemoryError as error:
            return error

    async def _join(self, agent: Agent, draft: _Draft) -> Stored:
        """Write a memory that supersedes another."""
        record = draft.record
        before = await read_row(agent, record.id) if record.request_hash else None
        if before is None:
            await self._check_predecessor(agent, record)
            await agent.store.upsert(agent.alias, [draft.point(agent)], insert_only=True, strong=True)
        with midway():
            row = before or await read_row(agent, record.id)
            if conflict := _other_request(row, record):
                raise conflict
            if row is None or (row.get("pending") and not await self._chains.join(agent, row)):
                raise _superseded(record.supersedes_id)
        return draft.stored

    async def _check_predecessor(self, agent: Agent, record: MemoryRecord) -> None:
        if record.supersedes_id is None:
            return
        old = await read_row(agent, record.supersedes_id)
        if old and old.get("pending"):
            await self._chains.complete(agent, old)
            old = await read_row(agent, record.supersedes_id)
        if old is None or old["userId"] != record.user_id or _is_expired(old, self._clock.now_ms()):
            raise NotFound(f"supersedes: this user has no memory {record.supersedes_id}")
        if TOMBSTONE_KEY in old or old.get("supersededById"):
            raise _superseded(record.supersedes_id)


def _changed(drafts: Sequence[_Draft | AgentMemoryError]) -> list[str | None]:
    """Return the memories whose sessions' keyword texts may have to follow."""
    in_session = [d.record for d in drafts if isinstance(d, _Draft) and d.words and d.words.order is not None]
    superseding = [d.record.supersedes_id for d in drafts if isinstance(d, _Draft)]
    return [*(record.id for record in in_session), *superseding]


def _vector_of(
    memory: NewMemory, agent: Agent, embedded: Mapping[str, Vector | RequestInvalid]
) -> Vector | RequestInvalid:
    if memory.vector is None:
        return embedded[memory.content]
    return scaled(memory.vector, distance=agent.distance)


async def _embed(agent: Agent, contents: Sequence[str]) -> dict[str, Vector | RequestInvalid]:
    """Return a vector for each content, in one call; where the provider refuses one, the others get theirs."""
    distinct = list(dict.fromkeys(contents))
    if not distinct:
        return {}
    try:
        return dict(zip(distinct, await agent.embedder.embed(distinct), strict=True))
    except RequestInvalid as error:
        if len(distinct) == 1:
            return {distinct[0]: error}
        half = len(distinct) // 2
        return await _embed(agent, distinct[:half]) | await _embed(agent, distinct[half:])


async def _put(agent: Agent, drafts: Sequence[_Draft], *, insert_only: bool = False) -> dict[str, StoreRejected]:
    """Write drafts in one request; where the engine refuses some, without them. Return those by id."""
    if not drafts:
        return {}
    points = [draft.point(agent) for draft in drafts]
    try:
        await agent.store.upsert(agent.alias, points, insert_only=insert_only, strong=insert_only)
    except StoreRejected as error:
        if error.status not in _ABOUT_POINTS:
            raise
        if len(drafts) == 1:
            return {drafts[0].record.id: error}
    else:
        return {}
    half = len(drafts) // 2
    refused = await _put(agent, drafts[:half], insert_only=insert_only)
    with midway():
        return refused | await _put(agent, drafts[half:], insert_only=insert_only)


def _places_of_first(memories: Sequence[NewMemory]) -> list[int]:
    """Return for each memory the place of the first that says the same, keys aside; mostly its own.

    What supersedes another is never the same: its second is a conflict.
    """
    first: dict[tuple[Any, ...], int] = {}
    return [
        place if memory.supersedes is not None else first.setdefault(_said(memory), place)
        for place, memory in enumerate(memories)
    ]


def _said(memory: NewMemory) -> tuple[Any, ...]:
    values = (getattr(memory, name) for name in _SAID)
    return tuple(
        json.dumps(value, sort_keys=True)
        if isinstance(value, Mapping)
        else tuple(value)
        if isinstance(value, list)
        else value
        for value in values
    )


def _repeated(outcome: Outcome) -> Outcome:
    return replace(outcome, event="NONE", recorded=False) if isinstance(outcome, Stored) else outcome


def _errors_of(memory: NewMemory, agent: Agent) -> list[FieldError]:
    errors = check_types([memory.type] if memory.type is not None else [], agent, field="type")
    if memory.supersedes is not None and not is_id(memory.supersedes):
        errors.append(FieldError("supersedes", f"{memory.supersedes!r} is not the id of a memory"))
    errors.extend(_place_errors(memory))
    size = agent.source.dimensions
    if memory.vector is not None and not agent.takes_vectors:
        errors.append(FieldError("vector", "this agent embeds content itself: leave vector out"))
    elif memory.vector is not None:
        errors.extend(check_vector(memory.vector, size=size))
    elif agent.takes_vectors:
        errors.append(FieldError("vector", f"required, {size} numbers: this agent embeds nothing"))
    return errors


def _place_errors(memory: NewMemory) -> list[FieldError]:
    """Return what is wrong with where and when the memory belongs."""
    errors, place = [], memory.namespace
    if place[:1] == (USER_NAMESPACE,) and place[1:2] != (memory.user_id,):
        errors.append(FieldError("namespace", f"{USER_NAMESPACE!r} has to be followed by user_id: {memory.user_id!r}"))
    begin, end = memory.valid_from, memory.valid_to
    if begin is not None and end is not None and end <= begin:
        errors.append(FieldError("valid_to", "must be later than valid_from"))
    return errors


def _record_of(memory: NewMemory, agent: Agent, now_ms: int, *, place: int) -> MemoryRecord:
    slug, key = agent.settings.slug, memory.idempotency_key
    created_at = now_ms if memory.created_at is None else memory.created_at
    return MemoryRecord(
        id=keyed_id(slug, memory.user_id, key) if key else _new_id(now_ms, place),
        agent_id=slug,
        user_id=memory.user_id,
        type=memory.type or agent.settings.ranking.types[0].name,
        content=memory.content,
        created_at=created_at,
        updated_at=now_ms,
        importance=memory.importance,
        confidence=memory.confidence,
        decay_rate=memory.decay_rate,
        session_id=memory.session_id,
        source=memory.source,
        tags=memory.tags,
        metadata=memory.metadata,
        namespace=memory.namespace,
        expires_at=memory.expires_at,
        valid_from=created_at if memory.valid_from is None else memory.valid_from,
        valid_to=memory.valid_to,
        supersedes_id=memory.supersedes,
        pending=memory.supersedes is not None,
        content_hash=hash_content(memory.content),
        request_hash=_hash_request(memory) if key else None,
    )


def _new_id(now_ms: int, place: int) -> str:
    return time_ordered_id(now_ms, place, randomness=secrets.randbits(62))


def _hash_request(memory: NewMemory) -> str:
    """Return what tells two bodies under one key apart."""
    document = {name: getattr(memory, name) for name in _SAID if name != "vector"} | {"supersedes": memory.supersedes}
    digest = sha256(json.dumps(document, sort_keys=True, default=list).encode())
    digest.update(array("d", memory.vector or ()).tobytes())
    return digest.hexdigest()[:16]


def _other_request(row: Payload | None, record: MemoryRecord) -> Conflict | None:
    """Return why a record is not the one that was stored under its key."""
    if row is None or record.request_hash is None:
        return None
    if TOMBSTONE_KEY in row:
        return Conflict(
            "Idempotency-Key: the memory stored under this key was deleted; send a new key to store it again"
        )
    if row.get("requestHash") != record.request_hash:
        return Conflict("Idempotency-Key: it came with another body before; send a new key")
    return None


def _superseded(memory_id: str | None) -> Conflict:
    return Conflict(f"supersedes: {memory_id} is superseded or deleted; supersede the head of its chain instead")


def _is_expired(row: Payload, now_ms: int) -> bool:
    return bool(row.get("expiresAt", now_ms + 1) <= now_ms)
