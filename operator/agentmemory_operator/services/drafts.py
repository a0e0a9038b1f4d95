"""From what callers send to what is written: checked, embedded, with the words that find it.

Drafting reads, and writes nothing. Its order is: check the memory, hash its text, embed it, find its words; so whatever
changes the text stands before the first.
"""

import asyncio
import json
import secrets
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from typing import Any, Literal
from uuid import uuid4

from agentmemory_operator.domain.identity import content_id, identity_id, is_id, keyed_id, time_ordered_id
from agentmemory_operator.domain.items import USER_NAMESPACE, check_content
from agentmemory_operator.domain.keywords import Words
from agentmemory_operator.domain.records import MemoryRecord, hash_content, payload_of
from agentmemory_operator.domain.taxonomy import MemoryType
from agentmemory_operator.errors import AgentMemoryError, FieldError, RequestInvalid
from agentmemory_operator.ports import Clock, Json, Vector
from agentmemory_operator.services.checks import check_given, check_types, scaled, type_of
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.embedding import embed_each
from agentmemory_operator.services.parents import missing_parents
from agentmemory_operator.services.windows import Windows

# Between two of these others get their turn; 2 ms with vectors of 1,024 numbers.
DRAFTED_AT_ONCE = 32


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
        parent_id: a memory of the same user.
        source_ids: memories that it was made of; they need not be there.
        pinned: never cleaned up.
        is_working: it is for a place of its session's working memory.
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
    author: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    subject: str | None = None
    status_value: str | None = None
    category: str | None = None
    knowledge_category: str | None = None
    event_type: str | None = None
    context: str | Mapping[str, Any] | None = None
    domain: str | None = None
    source_ids: tuple[str, ...] = ()
    parent_id: str | None = None
    supersedes: str | None = None
    namespace: tuple[str, ...] = ()
    created_at: int | None = None
    expires_at: int | None = None
    valid_from: int | None = None
    valid_to: int | None = None
    pinned: bool = False
    is_working: bool = False
    vector: Sequence[float] | None = None
    idempotency_key: str | None = None


# What an item says: two items of a batch differ in their keys at least.
_SAID = tuple(field_.name for field_ in fields(NewMemory) if field_.name not in ("idempotency_key", "supersedes"))
_DEFAULTED = {"type", "confidence", "created_at", "valid_from"}
# What is stored as it was given.
_KEPT = {field_.name for field_ in fields(MemoryRecord)}.intersection(_SAID) - _DEFAULTED


@dataclass(frozen=True, slots=True)
class Draft:
    """A checked memory on its way into the engine.

    Attributes:
        place: in its request.
    """

    record: MemoryRecord
    vector: Vector
    place: int
    words: Words | None = None
    warnings: tuple[str, ...] = ()

    @property
    def rule(self) -> Literal["plain", "keyed", "once", "identity", "chain"]:
        """By what rule it is written: some may go together, some are compared with what is stored."""
        record = self.record
        if record.identity_id is not None:
            return "identity"
        if record.supersedes_id is not None:
            return "chain"
        if record.lookup_ids:
            return "once"
        return "plain" if record.request_hash is None else "keyed"

    def point(self, agent: Agent) -> Json:
        """Return the point to write."""
        point = {"id": self.record.id, "vector": self.vector, "payload": payload_of(self.record)}
        return self.words.on(point, agent.keyword) if self.words and agent.keyword else point


@dataclass(frozen=True, slots=True)
class Clean:
    """A memory without secrets, as `scrubbing.clean` alone makes it.

    Attributes:
        warnings: of which kinds some were taken out, for the answer.
    """

    memory: NewMemory
    warnings: tuple[str, ...] = ()


class Drafting:
    """Makes drafts of memories."""

    def __init__(self, clock: Clock, windows: Windows) -> None:
        self._clock = clock
        self._windows = windows

    async def draft(self, agent: Agent, cleaned: Sequence[Clean]) -> list[Draft | AgentMemoryError]:
        """Return each memory as it will be written, or what is wrong with it.

        Raises:
            EmbedderUnavailable, StoreUnavailable: as a whole.
        """
        return await self.worded(agent, await self.bare(agent, cleaned))

    async def bare(self, agent: Agent, cleaned: Sequence[Clean]) -> list[Draft | AgentMemoryError]:
        """Return the drafts without what finds them by words, which depends on their ids."""
        memories = [item.memory for item in cleaned]
        refused = await self._refused(agent, memories)
        texts = [memory.content for place, memory in enumerate(memories) if place not in refused]
        vectors = {} if agent.takes_vectors else await embed_each(agent.embedder, texts)
        now_ms = self._clock.now_ms()
        drafts: list[Draft | AgentMemoryError] = []
        for place, memory in enumerate(memories):
            vector = refused.get(place) or _vector_of(memory, agent, vectors)
            record = _record_of(memory, agent, now_ms, place=place)
            warnings = _warnings_of(memory, agent)
            drafts.append(
                vector if isinstance(vector, AgentMemoryError) else Draft(record, vector, place, warnings=warnings)
            )
            if place % DRAFTED_AT_ONCE == DRAFTED_AT_ONCE - 1:
                await asyncio.sleep(0)
        return drafts

    async def _refused(self, agent: Agent, memories: Sequence[NewMemory]) -> dict[int, AgentMemoryError]:
        """Return by place what is wrong with a memory."""
        errors = {place: _errors_of(memory, agent) for place, memory in enumerate(memories)}
        invalid = {place: RequestInvalid(wrong) for place, wrong in errors.items() if wrong}
        children = {
            place: (memory.user_id, memory.parent_id)
            for place, memory in enumerate(memories)
            if memory.parent_id is not None and place not in invalid
        }
        return invalid | await missing_parents(agent, children, self._clock.now_ms())

    async def worded(self, agent: Agent, drafts: Sequence[Draft | AgentMemoryError]) -> list[Draft | AgentMemoryError]:
        """Return the drafts with what finds them by words."""
        records = [draft.record for draft in drafts if isinstance(draft, Draft)]
        words = await self._windows.words(agent, records)
        return [
            replace(draft, words=words.get(draft.record.id)) if isinstance(draft, Draft) else draft for draft in drafts
        ]


def places_of_first(memories: Sequence[NewMemory], agent: Agent) -> list[int]:
    """Return for each memory the place of the first that says the same, keys aside; mostly its own.

    What supersedes another is never the same: its second is a conflict, or, of one identity, the newer version.
    """
    first: dict[tuple[Any, ...], int] = {}
    return [
        place
        if memory.supersedes is not None or _identity_of(memory, agent) is not None
        else first.setdefault(_said(memory), place)
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


def _vector_of(
    memory: NewMemory, agent: Agent, embedded: Mapping[str, Vector | RequestInvalid]
) -> Vector | RequestInvalid:
    if memory.vector is None:
        return embedded[memory.content]
    return scaled(memory.vector, distance=agent.distance)


def _errors_of(memory: NewMemory, agent: Agent) -> list[FieldError]:
    errors = check_types([memory.type] if memory.type is not None else [], agent, field="type")
    if memory.supersedes is not None and not is_id(memory.supersedes):
        errors.append(FieldError("supersedes", f"{memory.supersedes!r} is not the id of a memory"))
    errors.extend(_place_errors(memory))
    errors.extend(_event_errors(memory, _kind_of(memory, agent)))
    errors.extend(check_content(memory.content, agent.settings.max_content_tokens))
    return errors + check_given(memory.vector, agent)


def _place_errors(memory: NewMemory) -> list[FieldError]:
    """Return what is wrong with where and when the memory belongs."""
    errors, place = [], memory.namespace
    if place[:1] == (USER_NAMESPACE,) and place[1:2] != (memory.user_id,):
        errors.append(FieldError("namespace", f"{USER_NAMESPACE!r} has to be followed by user_id: {memory.user_id!r}"))
    begin, end = memory.valid_from, memory.valid_to
    if begin is not None and end is not None and end <= begin:
        errors.append(FieldError("valid_to", "must be later than valid_from"))
    return errors


def _event_errors(memory: NewMemory, kind: MemoryType) -> list[FieldError]:
    given = memory.event_type
    if given is None or not kind.event_types or given in kind.event_types:
        return []
    known = ", ".join(kind.event_types)
    rule = f"none of those that memories of type {kind.name!r} may have (types[].eventTypes)"
    return [FieldError("event_type", f"{given!r} is {rule}: {known}")]


def _kind_of(memory: NewMemory, agent: Agent) -> MemoryType:
    name = memory.type or agent.settings.ranking.default_type
    return type_of(agent, name) or MemoryType(name, half_life_days=None)


def _identity_of(memory: NewMemory, agent: Agent) -> str | None:
    """Return the id of the first memory of a memory's identity; None where it has none."""
    kind = _kind_of(memory, agent)
    field = kind.supersede_by
    if field is None or (value := getattr(memory, field)) is None:
        return None
    return identity_id(agent.id_scope, memory.user_id, kind.name, field=field, value=value)


def _warnings_of(memory: NewMemory, agent: Agent) -> tuple[str, ...]:
    kind = _kind_of(memory, agent)
    if not kind.supersede_by or getattr(memory, kind.supersede_by):
        return ()
    return (f"{kind.supersede_by}: none given, so this {kind.name} neither replaces another nor is replaced",)


def _record_of(memory: NewMemory, agent: Agent, now_ms: int, *, place: int) -> MemoryRecord:
    scope, key = agent.id_scope, memory.idempotency_key
    kind, content_hash = _kind_of(memory, agent), hash_content(memory.content)
    identity = _identity_of(memory, agent)
    # What lies in a place of the working memory gives way, so nothing is looked up there.
    is_compared = agent.settings.deduplicate and not memory.is_working
    content = content_id(scope, memory.user_id, kind.name, content_hash) if is_compared else None
    request = keyed_id(scope, memory.user_id, key) if key else None
    is_looked_up = identity is not None or content is not None
    first = content if identity is None and memory.supersedes is None else None
    created_at = now_ms if memory.created_at is None else memory.created_at
    return MemoryRecord(
        **{name: getattr(memory, name) for name in _KEPT},
        id=first or request or _new_id(now_ms, place),
        agent_id=agent.settings.slug,
        type=kind.name,
        confidence=kind.confidence if memory.confidence is None else memory.confidence,
        created_at=created_at,
        updated_at=now_ms,
        stored_at=now_ms,
        valid_from=created_at if memory.valid_from is None else memory.valid_from,
        supersedes_id=memory.supersedes,
        pending=memory.supersedes is not None or identity is not None,
        observed_by=() if memory.author is None else (memory.author,),
        identity_id=identity,
        lookup_ids=tuple(id_ for id_ in (identity, content, request) if id_) if is_looked_up else (),
        request_id=(request or str(uuid4())) if is_looked_up else None,
        content_hash=content_hash,
        request_hash=_hash_request(memory) if key else None,
    )


def _new_id(now_ms: int, place: int) -> str:
    return time_ordered_id(now_ms, place, randomness=secrets.randbits(62))


def _hash_request(memory: NewMemory) -> str:
    """Return what tells two bodies under one key apart."""
    values = ((name, getattr(memory, name)) for name in (*_SAID, "supersedes") if name != "vector")
    given = {name: value for name, value in values if value not in (None, (), {}) and value is not False}
    digest = sha256(json.dumps(given, sort_keys=True, default=list).encode())
    digest.update(array("d", memory.vector or ()).tobytes())
    return digest.hexdigest()[:16]
