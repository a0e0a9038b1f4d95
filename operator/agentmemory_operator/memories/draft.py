"""Turn received memories into drafts: checked, embedded, and with their keyword texts.

Drafting writes no point, but may create the data key of a zone. The order is: check the memory, embed its text, hash
it, build its keyword text. So every change to the text, such as scrubbing, must come before drafting.
"""

import json
import secrets
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from operator import attrgetter
from typing import Any, Literal
from uuid import uuid4

from agentmemory_operator.agents.checks import check_types, expiry_errors, find_type, normalise_vector
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.connections.embedders import Embedded, embed_each
from agentmemory_operator.errors import AgentMemoryError, FieldError, KeysUnavailable, RequestInvalid
from agentmemory_operator.memories import session_keywords
from agentmemory_operator.memories.entity_extraction import extract_memory_entities
from agentmemory_operator.memories.hierarchy import find_missing_parents
from agentmemory_operator.memories.incoming import IncomingMemory, ScrubbedMemory
from agentmemory_operator.memories.rules.ids import content_id, identity_id, is_id, keyed_id, time_ordered_id
from agentmemory_operator.memories.rules.item_rules import USER_NAMESPACE, find_length_errors
from agentmemory_operator.memories.rules.keywords import KeywordText
from agentmemory_operator.memories.rules.record import (
    LOGGED_KEY,
    ORDER_KEY,
    MemoryRecord,
    StatedMemory,
    hash_content,
    payload_of,
)
from agentmemory_operator.memories.session_rows import SessionRows
from agentmemory_operator.memories.zone_access import (
    find_vector_errors,
    find_zone_errors,
    has_vector,
    read_writing_keys,
    scope_of_key,
)
from agentmemory_operator.ports.base import Json, Vector
from agentmemory_operator.runtime.tasks import map_with_pauses, run_in_slices
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.zones.keyring import DataKey

# Fields that are not part of a statement, for example because memories of a batch differ in their idempotency keys.
_UNCOMPARED_FIELDS = ("idempotency_key", "stored_by", "supersedes", "conversation_id", "undistilled")
_STATEMENT_FIELDS = tuple(field_.name for field_ in fields(IncomingMemory) if field_.name not in _UNCOMPARED_FIELDS)
_read_statement = attrgetter(*_STATEMENT_FIELDS)
_STATED_FIELDS = tuple(field_.name for field_ in fields(StatedMemory))


@dataclass(frozen=True, slots=True)
class MemoryDraft:
    """A checked memory, ready to be written.

    Attributes:
        vector: None if its zone has no vectors.
        position: Position among the memories drafted together.
        scope: String that its ids are derived from: the agent's `id_slug`, in a zone combined with a secret.
        words: None if the memory has no keyword text, or before `add_words`.
        warnings: Messages for the response, if the memory lacks the field by which its type identifies memories.
    """

    record: MemoryRecord
    vector: Vector | None
    position: int
    scope: str
    words: KeywordText | None = None
    warnings: tuple[str, ...] = ()

    @property
    def rule(self) -> Literal["plain", "keyed", "once", "identity", "chain"]:
        """Rule for writing the draft. The first matching rule applies.

        "identity": the memory has an identity. "chain": it names its predecessor. "once": it is deduplicated. "keyed":
        it has an idempotency key. "plain": none of these.

        Plain drafts are written in one request, keyed drafts in another. The rest are compared with stored memories
        first.
        """
        record = self.record
        if record.identity_id is not None:
            return "identity"
        if record.supersedes_id is not None:
            return "chain"
        if record.lookup_ids:
            return "once"
        return "plain" if record.request_hash is None else "keyed"

    @property
    def place(self) -> Json | None:
        """Id, user, session and position; None if no other keyword text may include its words."""
        record, order = self.record, self.words.order if self.words else None
        if order is None:
            return None
        return {"id": record.id, "userId": record.user_id, "sessionId": record.session_id, ORDER_KEY: order}

    def point(self, agent: Agent) -> Json:
        """Return the point to write, with the current time as its position in the change log."""
        payload = payload_of(self.record) | {LOGGED_KEY: agent.clock.now_ms()}
        point = {"id": self.record.id, "vector": {} if self.vector is None else self.vector, "payload": payload}
        return self.words.add_to_point(point, agent.keyword) if self.words and agent.keyword else point


async def build_drafts(agent: Agent, cleaned: Sequence[ScrubbedMemory]) -> list[MemoryDraft | AgentMemoryError]:
    """Draft each memory; return the draft, or the error of this memory.

    Raises:
        EmbedderUnavailable, StoreUnavailable: If no memory could be drafted. Retry.
        SpecInvalid: If the embedding provider's key, model or number of dimensions is wrong.
    """
    return await add_words(agent, await build_drafts_without_keywords(agent, cleaned))


async def build_drafts_without_keywords(
    agent: Agent, cleaned: Sequence[ScrubbedMemory], *, is_new: bool = True
) -> list[MemoryDraft | AgentMemoryError]:
    """Draft memories without keyword texts, which depend on the final ids.

    Args:
        is_new: False for memories that were stored before, for example imported ones: required fields may be missing.

    Raises:
        EmbedderUnavailable, StoreUnavailable, SpecInvalid: As in `build_drafts`.
    """
    memories = [item.memory for item in cleaned]
    refused = await _errors_at(agent, memories, is_new=is_new)
    keys = await read_writing_keys(agent, _owners(memories, refused))
    found = ((index, keys.get((memory.zone or "", memory.user_id))) for index, memory in enumerate(memories))
    refused |= {index: error for index, error in found if isinstance(error, KeysUnavailable)}
    texts = [memory.content for n, memory in enumerate(memories) if n not in refused and has_vector(agent, memory.zone)]
    vectors = {} if agent.takes_vectors else await embed_each(agent.embedder, texts)
    now_ms = agent.clock.now_ms()

    def draft(index: int, memory: IncomingMemory) -> MemoryDraft | AgentMemoryError:
        vector = refused.get(index) or _vector_of(memory, agent, vectors)
        if isinstance(vector, AgentMemoryError):
            return vector
        key = keys.get((memory.zone or "", memory.user_id))
        assert not isinstance(key, KeysUnavailable)
        record = _record_of(memory, agent, now_ms, place=index, key=key)
        return MemoryDraft(record, vector, index, scope_of_key(agent, key), warnings=_warnings_of(memory, agent))

    return await run_in_slices(map_with_pauses(draft, memories))


def _owners(
    memories: Sequence[IncomingMemory], refused: Mapping[int, AgentMemoryError]
) -> Iterator[tuple[str | None, str]]:
    """Yield zone and user of the memories without an error."""
    return ((memory.zone, memory.user_id) for index, memory in enumerate(memories) if index not in refused)


async def _errors_at(agent: Agent, memories: Sequence[IncomingMemory], *, is_new: bool) -> dict[int, AgentMemoryError]:
    """Return the errors of invalid memories, and of missing parents, by index in `memories`.

    Args:
        is_new: True to check also the fields that only new memories must have.
    """

    def errors_of(_: int, memory: IncomingMemory) -> list[FieldError]:
        return _errors_of(memory, agent) + (_new_errors(memory, agent) if is_new else [])

    errors = await run_in_slices(map_with_pauses(errors_of, memories))
    invalid = {index: RequestInvalid(field_errors) for index, field_errors in enumerate(errors) if field_errors}
    children = {
        index: (memory.user_id, memory.parent_id)
        for index, memory in enumerate(memories)
        if memory.parent_id is not None and index not in invalid
    }
    return invalid | await find_missing_parents(agent, children, agent.clock.now_ms())


async def add_words(
    agent: Agent, drafts: Sequence[MemoryDraft | AgentMemoryError], reader: SessionRows | None = None
) -> list[MemoryDraft | AgentMemoryError]:
    """Return the drafts with keyword texts, if their agent has keyword vectors. Errors are returned unchanged."""
    records = [draft.record for draft in drafts if isinstance(draft, MemoryDraft)]
    words = await session_keywords.build_words(agent, records, reader)
    if not words:
        return list(drafts)
    return [
        replace(draft, words=words.get(draft.record.id)) if isinstance(draft, MemoryDraft) else draft
        for draft in drafts
    ]


async def find_first_indexes(memories: Sequence[IncomingMemory], agent: Agent) -> list[int]:
    """Return for each memory the index of the first memory with the same statement, usually its own index.

    A memory that supersedes another, or has an identity, always gets its own index, because a second memory like it is
    a conflict or a newer version.
    """
    first: dict[tuple[Any, ...], int] = {}
    # Only memories of one content are compared, because a vector makes that slow.
    repeated = Counter(memory.content for memory in memories)

    def first_index_of(index: int, memory: IncomingMemory) -> int:
        if repeated[memory.content] == 1 or memory.supersedes is not None or _identity_of(memory, agent) is not None:
            return index
        return first.setdefault(_statement_of(memory), index)

    return await run_in_slices(map_with_pauses(first_index_of, memories))


def _statement_of(memory: IncomingMemory) -> tuple[Any, ...]:
    return tuple(
        json.dumps(value, sort_keys=True)
        if isinstance(value, Mapping)
        else tuple(value)
        if isinstance(value, list)
        else value
        for value in _read_statement(memory)
    )


def _vector_of(memory: IncomingMemory, agent: Agent, embedded: Mapping[str, Embedded]) -> Embedded | None:
    if not has_vector(agent, memory.zone):
        return None
    if memory.vector is None:
        return embedded[memory.content]
    return normalise_vector(memory.vector, distance=agent.distance)


def _errors_of(memory: IncomingMemory, agent: Agent) -> list[FieldError]:
    errors = check_types([memory.type] if memory.type is not None else [], agent, field="type")
    if memory.supersedes is not None and not is_id(memory.supersedes):
        errors.append(FieldError("supersedes", f"{memory.supersedes!r} is not the ID of a memory"))
    errors.extend(_place_errors(memory))
    kind = _kind_of(memory, agent)
    errors.extend(_event_errors(memory, kind))
    errors.extend(expiry_errors(kind, memory.expires_at))
    errors.extend(find_length_errors(memory.content, agent.settings.max_content_tokens))
    errors.extend(find_zone_errors(agent, memory.zone, memory.user_id))
    return errors + find_vector_errors(agent, memory.vector, memory.zone)


def _new_errors(memory: IncomingMemory, agent: Agent) -> list[FieldError]:
    """Return the errors of fields that only new memories must have."""
    kind = _kind_of(memory, agent)
    session_errors = _session_errors(memory, kind)
    reported_fields = {error.field for error in session_errors}
    return session_errors + [error for error in _required_errors(memory, kind) if error.field not in reported_fields]


def _required_errors(memory: IncomingMemory, kind: MemoryType) -> list[FieldError]:
    """Return an error for each field that the type requires and the memory lacks."""
    if memory.is_working:
        return []
    errors = []
    for field in kind.required:
        if not getattr(memory, field):
            event_types = ", ".join(kind.event_types) if field == "event_type" else ""
            remedy = f"set it{f' to one of {event_types},' if event_types else ''} or store the memory as another type"
            message = f"required: memories of type {kind.name!r} have one (types[].required): {remedy}"
            errors.append(FieldError(field, message))
    return errors


def _session_errors(memory: IncomingMemory, kind: MemoryType) -> list[FieldError]:
    """Return an error if the type ends with an idle session and the memory has no session."""
    if memory.session_id is not None or not (kind.ttl and kind.ttl.idle_hours):
        return []
    remedy = "set session_id, or store it as another type"
    return [FieldError("session_id", f"required: a memory of type {kind.name!r} ends with its session: {remedy}")]


def _place_errors(memory: IncomingMemory) -> list[FieldError]:
    """Return errors in the namespace and the validity of the memory."""
    errors, namespace = [], memory.namespace
    if namespace[:1] == (USER_NAMESPACE,) and namespace[1:2] != (memory.user_id,):
        errors.append(FieldError("namespace", f"{USER_NAMESPACE!r} must be followed by user_id: {memory.user_id!r}"))
    begin, end = memory.valid_from, memory.valid_to
    if begin is not None and end is not None and end <= begin:
        errors.append(FieldError("valid_to", "must be later than valid_from"))
    return errors


def _event_errors(memory: IncomingMemory, kind: MemoryType) -> list[FieldError]:
    event_type = memory.event_type
    if event_type is None or not kind.event_types or event_type in kind.event_types:
        return []
    allowed = ", ".join(kind.event_types)
    rule = f"not allowed for memories of type {kind.name!r} (types[].eventTypes)"
    return [FieldError("event_type", f"{event_type!r} is {rule}: {allowed}")]


def _kind_of(memory: IncomingMemory, agent: Agent) -> MemoryType:
    name = memory.type or agent.settings.ranking.default_type
    return find_type(agent, name) or MemoryType(name, half_life_days=None)


def _identity_of(memory: IncomingMemory, agent: Agent, scope: str = "") -> str | None:
    """Return the id of the root of a memory's identity; None if it has no identity.

    Args:
        scope: Scope that ids are derived from; '' if the caller only tests for an identity.
    """
    kind = _kind_of(memory, agent)
    field = kind.supersede_by
    if field is None or (value := getattr(memory, field)) is None:
        return None
    return identity_id(scope, memory.user_id, kind.name, field=field, value=value)


def _warnings_of(memory: IncomingMemory, agent: Agent) -> tuple[str, ...]:
    kind = _kind_of(memory, agent)
    if not kind.supersede_by or getattr(memory, kind.supersede_by):
        return ()
    return (f"{kind.supersede_by}: not given, so this {kind.name} does not supersede another and is not superseded",)


def _record_of(memory: IncomingMemory, agent: Agent, now_ms: int, *, place: int, key: DataKey | None) -> MemoryRecord:
    scope, secret = scope_of_key(agent, key), key.id_secret if key else ""
    kind, content_hash = _kind_of(memory, agent), hash_content(memory.content, secret)
    identity = _identity_of(memory, agent, scope)
    # Exclude working memories from lookups, because they may be replaced at any time.
    is_compared = agent.settings.deduplicate and not (memory.is_working or memory.is_turn)
    content = content_id(scope, memory.user_id, kind.name, content_hash) if is_compared else None
    request = keyed_id(scope, memory.user_id, memory.idempotency_key) if memory.idempotency_key else None
    is_looked_up = identity is not None or content is not None
    first = content if identity is None and memory.supersedes is None else None
    created_at = now_ms - (memory.offset_ms or 0) if memory.created_at is None else memory.created_at
    author = memory.author or memory.stored_by
    return MemoryRecord(
        **{name: getattr(memory, name) for name in _STATED_FIELDS},
        id=first or request or time_ordered_id(now_ms, place, randomness=secrets.randbits(62)),
        agent_id=agent.settings.slug,
        type=kind.name,
        confidence=kind.confidence if memory.confidence is None else memory.confidence,
        knowledge_category=memory.knowledge_category or agent.settings.knowledge_category,
        created_at=created_at,
        updated_at=now_ms,
        stored_at=now_ms,
        session_used_at=min(created_at, now_ms) if kind.name in agent.settings.session_types else None,
        valid_from=created_at if memory.valid_from is None else memory.valid_from,
        supersedes_id=memory.supersedes,
        pending=memory.supersedes is not None or identity is not None,
        author=author,
        observed_by=(author,) if author else (),
        identity_id=identity,
        lookup_ids=tuple(id_ for id_ in (identity, content, request) if id_) if is_looked_up else (),
        request_id=(request or str(uuid4())) if is_looked_up else None,
        content_hash=content_hash,
        request_hash=_hash_request(memory, secret) if memory.idempotency_key else None,
        entities=extract_memory_entities(
            agent, memory.content, user_id=memory.user_id, author=author, zone=memory.zone
        ),
    )


def _hash_request(memory: IncomingMemory, secret: str) -> str:
    """Return the hash of a request's body, which must be equal if its idempotency key is repeated.

    With a secret, only its holders can compute the hash.
    """
    values = ((name, getattr(memory, name)) for name in (*_STATEMENT_FIELDS, "supersedes") if name != "vector")
    provided = {name: value for name, value in values if value not in (None, (), {}) and value is not False}
    digest = sha256(secret.encode() + json.dumps(provided, sort_keys=True, default=list).encode())
    digest.update(array("d", memory.vector or ()).tobytes())
    return digest.hexdigest()[:16]
