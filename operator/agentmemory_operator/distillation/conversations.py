"""Store conversations turn by turn, durably, before a model reads them.

The ids of the turns are derived from the idempotency key, or a random key, so they are known before the write. The last
turn contains the ids of all turns that a model has to read. A crash after the write therefore loses nothing: the next
sweep of any process finds the last turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.distillation.rules.model_output import (
    TURN_EVENT,
    distilled_types,
    requires_event_type,
    turn_type,
)
from agentmemory_operator.errors import AgentMemoryError, Conflict, FieldError, RequestInvalid
from agentmemory_operator.memories.draft import build_drafts
from agentmemory_operator.memories.incoming import IncomingMemory, scrub_memories
from agentmemory_operator.memories.insert import Outcome, StoredMemory, find_request_conflict
from agentmemory_operator.memories.point_pages import read_row
from agentmemory_operator.memories.remember import Remember
from agentmemory_operator.memories.rules.ids import keyed_id
from agentmemory_operator.memories.rules.item_rules import find_length_errors
from agentmemory_operator.memories.zone_access import find_vector_errors

CONVERSATION = "conversation"
# Keys of callers have no control characters, so these never collide with keys of memories and batches.
_TURN_KEY, _RUN_KEY = "{key}\x1fturn\x1f{place}", "{key}\x1frun"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenTurn:
    """Turn of a conversation.

    Attributes:
        role: `user`, `assistant`, `tool` or `system`.
        content: Text of the turn.
        speaker: Name of the speaker, or None.
        at: Unix milliseconds. None for the time of storage, in the order of the turns.
        vector: Embedding of the content. Required with embedding provider `none` unless the zone stores no vectors,
            else forbidden.
    """

    role: str
    content: str
    speaker: str | None = None
    at: int | None = None
    vector: Sequence[float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Turns in order, at least one.

    Attributes:
        user_id: User who owns the turns.
        session_id: Session of the turns, or None.
        zone: Privacy zone that encrypts the turns; no model reads encrypted ones. None for no encryption.
        author: Author given by the request, or None.
        stored_by: Author to record if the request gives none.
        idempotency_key: A repeated key with the same turns returns the same result. None to store new turns.
        metadata: Metadata of the turns, and of the memories distilled from them.
        expires_at: Expiry of these in Unix milliseconds. None leaves it to their types.
    """

    user_id: str
    turns: tuple[SpokenTurn, ...]
    session_id: str | None = None
    zone: str | None = None
    author: str | None = None
    stored_by: str | None = None
    idempotency_key: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """Conversation after it was stored.

    Attributes:
        turns: Ids of the turns in order. None for a turn that was not stored; `warnings` gives the reason.
        run: Id of the distillation that follows. None if no distillation follows; `warnings` gives the reason.
        warnings: Reason why no distillation follows, reasons why turns were not stored, and warnings about stored ones.
    """

    turns: tuple[str | None, ...]
    run: str | None
    warnings: tuple[str, ...] = ()

    @property
    def last_turn_id(self) -> str:
        """Id of the last turn, which requests the distillation; '' if that turn was not stored."""
        return self.turns[-1] or ""


async def store_conversation(agent: Agent, remember: Remember, conversation: Conversation) -> StoredConversation:
    """Store the turns of a conversation.

    Raises:
        RequestInvalid: If a turn is invalid. Nothing was stored.
        Conflict: If the key was used with other turns. Nothing was stored.
        EmbedderUnavailable, StoreUnavailable, KeysUnavailable: If the embedder, Qdrant or the zone's keys are
            unavailable. Nothing was stored.
        StoreRejected: If Qdrant rejects the write. Nothing was stored.
        OutcomeUnknown: If the turns may have been stored. Repeating the request with its key is safe.
    """
    _check(agent, conversation)
    key = conversation.idempotency_key or f"\x1f{uuid4()}"
    reason = _why_not_distilled(agent, conversation)
    run = None if reason else keyed_id(agent.id_slug, conversation.user_id, _RUN_KEY.format(key=key))
    turns = _turns_of(agent, conversation, key, run)
    if conversation.idempotency_key is not None:
        await _check_first(agent, turns[0])
    outcomes = await remember.store(agent, turns)
    _check_outcomes(outcomes)
    if run and isinstance(outcomes[-1], AgentMemoryError):
        run, reason = None, "not distilled: the last turn was not stored"
    ids = tuple(outcome.id if isinstance(outcome, StoredMemory) else None for outcome in outcomes)
    return StoredConversation(ids, run, _warnings(outcomes, reason))


def _check(agent: Agent, conversation: Conversation) -> None:
    """Raise RequestInvalid if a turn is invalid, before any turn is stored."""
    errors = [
        FieldError(f"messages[{index}].{error.field}", error.message)
        for index, turn in enumerate(conversation.turns)
        for error in (
            *find_length_errors(turn.content, agent.settings.max_content_tokens),
            *find_vector_errors(agent, turn.vector, conversation.zone),
        )
    ]
    if errors:
        raise RequestInvalid(errors)


def _why_not_distilled(agent: Agent, conversation: Conversation) -> str | None:
    """Return the warning that no model reads a conversation, with the reason; None if a model reads it."""
    ranking = agent.settings.ranking
    if agent.settings.language_model is None:
        return "turns stored but not distilled: the agent has no language model (spec.consolidation.model)"
    if conversation.zone is not None:
        return f"turns stored but not distilled: a language model must not read sealed memories ({conversation.zone})"
    if agent.takes_vectors:
        return "turns stored but not distilled: the agent has embedding.provider none"
    if not distilled_types(ranking.types, ranking.default_type, has_session=conversation.session_id is not None):
        return "turns stored but not distilled: no type of the agent accepts distilled memories"
    return None


def _turns_of(agent: Agent, conversation: Conversation, key: str, run: str | None) -> list[IncomingMemory]:
    types = agent.settings.ranking.types
    kind = turn_type(types)
    keys = [_TURN_KEY.format(key=key, place=index) for index in range(len(conversation.turns))]
    ids = tuple(keyed_id(agent.id_slug, conversation.user_id, turn_key) for turn_key in keys)
    last = len(keys) - 1
    return [
        IncomingMemory(
            user_id=conversation.user_id,
            content=turn.content,
            type=kind,
            event_type=TURN_EVENT if requires_event_type(types, kind) else None,
            role=turn.role,
            speaker=turn.speaker,
            session_id=conversation.session_id,
            source=CONVERSATION,
            author=conversation.author,
            stored_by=conversation.stored_by,
            zone=conversation.zone,
            vector=turn.vector,
            created_at=turn.at,
            offset_ms=last - index,
            is_turn=True,
            conversation_id=run,
            undistilled=ids if run and index == last else (),
            idempotency_key=turn_key,
            metadata=conversation.metadata,
            expires_at=conversation.expires_at,
        )
        for index, (turn, turn_key) in enumerate(zip(conversation.turns, keys, strict=True))
    ]


async def _check_first(agent: Agent, first: IncomingMemory) -> None:
    """Raise Conflict, before any turn is stored, if the key belongs to another request.

    This detects another number of turns or another first turn.
    """
    [draft] = await build_drafts(agent, await scrub_memories(agent, [first]))
    if isinstance(draft, AgentMemoryError):
        return
    if conflict := find_request_conflict(await read_row(agent, draft.record.id), draft.record):
        raise conflict


def _check_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Raise if no turn was stored, or if the key was used with other turns.

    In the second case an earlier request has stored all of its turns, so this request has stored nothing.
    """
    errors = [outcome for outcome in outcomes if isinstance(outcome, AgentMemoryError)]
    for error in errors:
        if isinstance(error, Conflict) or len(errors) == len(outcomes):
            raise error


def _warnings(outcomes: Sequence[Outcome], reason: str | None) -> tuple[str, ...]:
    warnings = [] if reason is None else [reason]
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, AgentMemoryError):
            warnings.append(f"messages[{index}]: not stored: {outcome}")
        else:
            warnings.extend(f"messages[{index}]: {warning}" for warning in outcome.warnings)
    return tuple(warnings)
