"""Find a memory by the id that mem0's clients use; store, update and read memories.

The id is that of the first version of a chain, or of any other version. Its owner is known only after the memory was
read, and is checked then: a memory of a user that the caller may not act for is as unknown as a deleted one.
"""

import secrets
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from typing import Any

from pydantic.alias_generators import to_camel

from agentmemory_operator.agents.authorisation import AgentRights
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.distillation.conversations import CONVERSATION, Conversation, SpokenTurn, store_conversation
from agentmemory_operator.entrypoints.api.mem0.filter_reader import RESERVED_KEY
from agentmemory_operator.entrypoints.api.mem0.mem0_requests import Mem0AddIn, Mem0UpdateIn
from agentmemory_operator.entrypoints.api.mem0.memory_views import EVENTS, own_fields, public_id, version_key
from agentmemory_operator.entrypoints.api.problems import BAD_REQUEST, Problem, ProblemRaised
from agentmemory_operator.entrypoints.api.use_cases import Services
from agentmemory_operator.errors import AgentMemoryError, Conflict, NotFound
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.history import MAX_VERSIONS
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.point_pages import read_memories, read_row
from agentmemory_operator.memories.rules.filters import NOT_SUPERSEDED, STORED_FILTER, equals, narrow
from agentmemory_operator.memories.rules.ids import is_id
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, MemoryRecord, Payload, StatedMemory, record_of
from agentmemory_operator.memories.stored_memories import change_head, read_memory
from agentmemory_operator.spec.times import render_time

Json = dict[str, Any]

# Attempts to change a memory whose newest version other writers replace in the meantime.
MAX_ATTEMPTS = 5
# Versions of a chain that are read one by one before its head is searched, and heads that the search returns.
MAX_HOPS, MAX_HEADS = 4, 10
NOT_FOUND = "Memory not found!"
_STATED = tuple(field.name for field in fields(StatedMemory))
# Fields that are edited in place -> payload key.
_EDITED = {name: to_camel(name) for name in ("importance", "tags", "metadata", "expires_at", "pinned")}
# Fields of a version that describe its origin, which a new version with another text does not share.
_ORIGIN = {"source": None, "run_id": None, "conversation_id": None, "undistilled": (), "is_working": False}


@dataclass(frozen=True, slots=True)
class FoundMemory:
    """A memory that the caller may act for.

    Attributes:
        sent_id: Id that the client uses.
        head: Newest version.
    """

    sent_id: str
    head: MemoryRecord


@dataclass(frozen=True, slots=True)
class AddedMemories:
    """Result of storing messages.

    Attributes:
        results: Stored messages as mem0 renders them.
        event_id: Id of the last stored memory; None if nothing was stored.
        is_distilling: True if a language model reads the messages afterwards.
        warnings: Messages for the response.
    """

    results: Sequence[Json]
    event_id: str | None
    is_distilling: bool = False
    warnings: Sequence[str] = ()


def check_id(sent: str) -> str:
    """Return an id in its stored spelling.

    Raises:
        ProblemRaised: If it is not a UUID. The status is 400, as of mem0.
    """
    if not is_id(sent.lower()):
        raise ProblemRaised(Problem(type=BAD_REQUEST, detail="memory_id should be a valid UUID"))
    return sent.lower()


async def read_allowed_row(agent: Agent, rights: AgentRights, memory_id: str) -> Payload:
    """Read a version of a memory by its id.

    Raises:
        NotFound: If there is none, or the caller may not act for its owner.
    """
    row = await chains.read_completed(agent, memory_id)
    if row is None or TOMBSTONE_KEY in row or not rights.scopes.allows(row["userId"]):
        raise NotFound(NOT_FOUND)
    return row


async def find_memory(agent: Agent, rights: AgentRights, sent_id: str) -> FoundMemory:
    """Find the newest version of the memory with an id.

    Raises:
        ProblemRaised: If the id is not a UUID.
        NotFound: If there is no such memory, it has expired, or the caller may not act for its owner.
    """
    memory_id = check_id(sent_id)
    for _ in range(MAX_ATTEMPTS):
        row = await _follow(agent, await read_allowed_row(agent, rights, memory_id), memory_id)
        if not row.get("supersededById"):
            break
    if not rights.scopes.allows(row["userId"]):
        raise NotFound(NOT_FOUND)
    try:
        return FoundMemory(memory_id, await read_memory(agent, row["id"], user_id=row["userId"]))
    except NotFound:
        raise NotFound(NOT_FOUND) from None


async def _follow(agent: Agent, row: Payload, first_id: str) -> Payload:
    """Follow the successors of a version; return the last one found."""
    for hop in range(MAX_VERSIONS):
        successor = row.get("supersededById")
        if hop == MAX_HOPS and successor and (head := await _find_head(agent, row["userId"], first_id)):
            return head
        following = await chains.read_completed(agent, successor) if successor else None
        if following is None or TOMBSTONE_KEY in following:
            break
        row = following
    return row


async def _find_head(agent: Agent, user_id: str, first_id: str) -> Payload | None:
    """Find the head of a long chain by the id of its first version; None unless an update by mem0's client wrote it."""
    conditions = [equals("userId", user_id), equals(f"metadata.{RESERVED_KEY}.id", first_id)]
    filter_ = narrow(STORED_FILTER, *conditions, NOT_SUPERSEDED)
    body = {"filter": filter_, "limit": MAX_HEADS, "with_payload": True, "with_vector": False}
    points, _ = await read_memories(agent, body)
    rows = (point["payload"] for point in points)
    return next((row for row in rows if public_id(record_of(row), agent) == first_id), None)


async def add_memories(
    services: Services, agent: Agent, rights: AgentRights, body: Mem0AddIn, *, user_id: str, default_type: str | None
) -> AddedMemories:
    """Store messages: as turns of a conversation, which a model may distil, or with `infer: false` as plain memories.

    System messages are left out, as by mem0.

    Raises:
        RequestInvalid, Conflict: If a message cannot be stored, for example because it is too long.
        StoreUnavailable, EmbedderUnavailable, OutcomeUnknown: As in `Remember.store`.
    """
    if all(message.role == "system" for message in body.messages):
        return AddedMemories((), None)
    store = _store_verbatim if body.infer is False else _store_turns
    return await store(services, agent, rights, body, user_id=user_id, default_type=default_type)


async def _store_verbatim(
    services: Services, agent: Agent, rights: AgentRights, body: Mem0AddIn, *, user_id: str, default_type: str | None
) -> AddedMemories:
    memories = [
        IncomingMemory(
            user_id=user_id,
            content=message.content,
            type=default_type,
            role=message.role,
            speaker=message.name,
            session_id=body.named_entities.get("run_id"),
            source=CONVERSATION,
            stored_by=rights.author,
            metadata=_metadata_of(body),
            expires_at=body.expiration_date,
            created_at=None if body.timestamp is None else body.timestamp + place,
        )
        for place, message in enumerate(_stored_messages(body))
    ]
    outcomes = await services.remember.store(agent, memories)
    results: list[Json] = []
    warnings: list[str] = []
    for memory, outcome in zip(memories, outcomes, strict=True):
        if isinstance(outcome, AgentMemoryError):
            raise outcome
        results.append(_result(outcome.id, memory.content, memory.role, EVENTS[outcome.event]))
        warnings += outcome.warnings
    return AddedMemories(results, results[-1]["id"], warnings=tuple(dict.fromkeys(warnings)))


async def _store_turns(
    services: Services, agent: Agent, rights: AgentRights, body: Mem0AddIn, *, user_id: str, default_type: str | None
) -> AddedMemories:
    messages = _stored_messages(body)
    turns = tuple(
        SpokenTurn(
            role=message.role,
            content=message.content,
            speaker=message.name,
            at=None if body.timestamp is None else body.timestamp + place,
        )
        for place, message in enumerate(messages)
    )
    conversation = Conversation(
        user_id=user_id,
        turns=turns,
        session_id=body.named_entities.get("run_id"),
        stored_by=rights.author,
        metadata=_metadata_of(body),
        expires_at=body.expiration_date,
    )
    stored = await store_conversation(agent, services.remember, conversation)
    if stored.run is not None:
        services.distillation.enqueue(agent.settings.slug, stored.last_turn_id)
    results = [
        _result(id_, message.content, message.role, "ADD")
        for id_, message in zip(stored.turns, messages, strict=True)
        if id_ is not None
    ]
    event_id = next((id_ for id_ in reversed(stored.turns) if id_ is not None), None)
    return AddedMemories(results, event_id, stored.run is not None, stored.warnings)


def _stored_messages(body: Mem0AddIn) -> list[Any]:
    return [message for message in body.messages if message.role != "system"]


def _metadata_of(body: Mem0AddIn) -> Json:
    entities = body.named_entities
    own = {name: entities[name] for name in ("agent_id", "app_id") if name in entities}
    return {**(body.metadata or {}), **({RESERVED_KEY: own} if own else {})}


def _result(memory_id: str, content: str, role: str | None, event: str) -> Json:
    return {"id": memory_id, "memory": content, "data": {"memory": content}, "event": event, "role": role}


async def update_memory(
    services: Services, agent: Agent, rights: AgentRights, sent_id: str, change: Mem0UpdateIn
) -> FoundMemory:
    """Change a memory: another text becomes its newest version, other changes are made in place.

    Raises:
        ProblemRaised, NotFound: As in `find_memory`.
        Conflict: If its type is immutable, it is an item or a working memory, or other writers keep replacing it.
        RequestInvalid, StoreUnavailable, OutcomeUnknown: As in `Remember.store` and `change_head`.
    """
    found = await find_memory(agent, rights, sent_id)
    for attempt in range(MAX_ATTEMPTS):
        try:
            await _change(services, agent, rights, found, change)
        except Conflict:
            before, found = found.head.id, await find_memory(agent, rights, sent_id)
            # A conflict with an unchanged head is not caused by another writer, so a retry cannot succeed.
            if found.head.id == before or attempt == MAX_ATTEMPTS - 1:
                raise
        else:
            break
    return await find_memory(agent, rights, sent_id)


async def _change(
    services: Services, agent: Agent, rights: AgentRights, found: FoundMemory, change: Mem0UpdateIn
) -> None:
    head, sent = found.head, change.model_fields_set
    expires_at = change.expiration_date if "expiration_date" in sent else head.expires_at
    metadata = head.metadata
    if change.metadata is not None:
        kept = {RESERVED_KEY: own} if (own := own_fields(head)) else {}
        metadata = {**change.metadata, **kept}
    if change.text is not None and change.text != head.content:
        version = _successor(agent, found, change.text, metadata, expires_at, rights)
        [outcome] = await services.remember.store(agent, [version])
        if isinstance(outcome, AgentMemoryError):
            raise outcome
        named = {"expires_at" if "expiration_date" in sent else "", "metadata" if change.metadata is not None else ""}
        with chains.outcome_unknown_on_failure():
            await _repeat_edits(agent, head, version, outcome.id, named)
        return
    changes: Json = {"metadata": metadata} if change.metadata is not None else {}
    changes |= {"expiresAt": expires_at} if "expiration_date" in sent else {}
    if changes:
        await change_head(agent, head.id, changes, user_id=head.user_id)


async def _repeat_edits(agent: Agent, before: MemoryRecord, version: IncomingMemory, id_: str, named: Set[str]) -> None:
    """Edit a new version as its predecessor was edited after it was read. Superseded, that is not edited any more.

    Args:
        id_: Id of the new version.
        named: Fields that the update itself sets.
    """
    row = await read_row(agent, before.id)
    if row is None or TOMBSTONE_KEY in row or (after := record_of(row)).locked:
        return
    edited = [name for name in _EDITED if name not in named and getattr(after, name) != getattr(before, name)]
    changes = {_EDITED[name]: getattr(after, name) for name in edited}
    if "metadata" in changes:
        changes["metadata"] = {**after.metadata, RESERVED_KEY: version.metadata[RESERVED_KEY]}
    if changes:
        await change_head(agent, id_, changes, user_id=before.user_id)


def _successor(
    agent: Agent,
    found: FoundMemory,
    text: str,
    metadata: Mapping[str, Any],
    expires_at: int | None,
    rights: AgentRights,
) -> IncomingMemory:
    """Return the next version of a memory: as its head, with another text.

    A head that was stored by another request has no public id of its own; the memory keeps the one that was sent.
    """
    head = found.head
    stated = {name: getattr(head, name) for name in _STATED}
    public, mark = public_id(head, agent), secrets.token_hex(8)
    first_id = found.sent_id if public == head.id else public
    created = {"created_at": render_time(head.created_at)} if public == head.id else {}
    own = {**own_fields(head), **created, "id": first_id, "mark": mark}
    version = IncomingMemory(
        **{**stated, **_ORIGIN},
        type=head.type,
        confidence=head.confidence,
        knowledge_category=head.knowledge_category,
        stored_by=rights.author,
        supersedes=head.id,
        idempotency_key=version_key(first_id, mark),
    )
    return replace(version, content=text, metadata={**metadata, RESERVED_KEY: own}, expires_at=expires_at)
