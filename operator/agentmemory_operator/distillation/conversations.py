"""Conversations are stored turn by turn, durably, before anything else is done about them.

The ids of the turns follow from the idempotency key, and are known before: so the last turn, written in the same
request as the others, says of which turns a model is still to make memories. Whoever is killed then loses nothing: the
next sweep of any process finds the last turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.distillation.rules.answers import TURN_EVENT, distilled_types, needs_event, turn_type
from agentmemory_operator.errors import AgentMemoryError, Conflict, FieldError, RequestInvalid
from agentmemory_operator.memories.draft import drafts_of
from agentmemory_operator.memories.incoming import IncomingMemory, clean
from agentmemory_operator.memories.insert import Outcome, StoredMemory, other_request
from agentmemory_operator.memories.point_pages import read_row
from agentmemory_operator.memories.remember import Remember
from agentmemory_operator.memories.rules.ids import keyed_id
from agentmemory_operator.memories.rules.items import check_content
from agentmemory_operator.memories.zoned import vector_errors

CONVERSATION = "conversation"
# No key that a caller sends has control characters: these never meet those of memories and batches.
_TURN_KEY, _RUN_KEY = "{key}\x1fturn\x1f{place}", "{key}\x1frun"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenTurn:
    """What one said.

    Attributes:
        role: user, assistant, tool or system.
        at: Unix milliseconds; None is now, in the order of the turns.
        vector: only with provider `none`, and demanded there.
    """

    role: str
    content: str
    speaker: str | None = None
    at: int | None = None
    vector: Sequence[float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Turns in the order in which they were said; at least one.

    Attributes:
        zone: how the turns are sealed; sealed ones are read by no model.
        author: who stores them, where that is said; stored_by where it is not.
        idempotency_key: the same key and turns again give the same.
    """

    user_id: str
    turns: tuple[SpokenTurn, ...]
    session_id: str | None = None
    zone: str | None = None
    author: str | None = None
    stored_by: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation that is durable now.

    Attributes:
        turns: the ids of the turns in order; None of one that could not be stored, of which a warning tells.
        run: of the distillation that follows, None where none does, of which a warning tells why.
    """

    turns: tuple[str | None, ...]
    run: str | None
    warnings: tuple[str, ...] = ()

    @property
    def last(self) -> str:
        """The turn that says what is to be distilled, of a conversation that has a run."""
        return self.turns[-1] or ""


async def store_conversation(agent: Agent, remember: Remember, conversation: Conversation) -> StoredConversation:
    """Store a conversation's turns.

    Raises:
        RequestInvalid: some turn is wrong; nothing was stored.
        Conflict: the key came with other turns before; nothing was stored.
        EmbedderUnavailable, StoreUnavailable: nothing was stored.
        OutcomeUnknown: it may have been stored; with its key it may be stored again.
    """
    _check(agent, conversation)
    key = conversation.idempotency_key or f"\x1f{uuid4()}"
    why_not = _why_not_distilled(agent, conversation)
    run = None if why_not else keyed_id(agent.id_scope, conversation.user_id, _RUN_KEY.format(key=key))
    turns = _turns_of(agent, conversation, key, run)
    if conversation.idempotency_key is not None:
        await _check_first(agent, turns[0])
    outcomes = await remember.store(agent, turns)
    _check_outcomes(outcomes)
    if run and isinstance(outcomes[-1], AgentMemoryError):
        run, why_not = None, "not distilled: the last turn was not stored"
    ids = tuple(outcome.id if isinstance(outcome, StoredMemory) else None for outcome in outcomes)
    return StoredConversation(ids, run, _warnings(outcomes, why_not))


def _check(agent: Agent, conversation: Conversation) -> None:
    """Refuse what is wrong with some turn, so that none is stored."""
    errors = [
        FieldError(f"messages[{place}].{error.field}", error.message)
        for place, turn in enumerate(conversation.turns)
        for error in (
            *check_content(turn.content, agent.settings.max_content_tokens),
            *vector_errors(agent, turn.vector, conversation.zone),
        )
    ]
    if errors:
        raise RequestInvalid(errors)


def _why_not_distilled(agent: Agent, conversation: Conversation) -> str | None:
    """Why no model reads a conversation, None where one does."""
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
    keys = [_TURN_KEY.format(key=key, place=place) for place in range(len(conversation.turns))]
    ids = tuple(keyed_id(agent.id_scope, conversation.user_id, turn_key) for turn_key in keys)
    last = len(keys) - 1
    return [
        IncomingMemory(
            user_id=conversation.user_id,
            content=turn.content,
            type=kind,
            event_type=TURN_EVENT if needs_event(types, kind) else None,
            role=turn.role,
            speaker=turn.speaker,
            session_id=conversation.session_id,
            source=CONVERSATION,
            author=conversation.author,
            stored_by=conversation.stored_by,
            zone=conversation.zone,
            vector=turn.vector,
            created_at=turn.at,
            offset_ms=last - place,
            is_turn=True,
            conversation_id=run,
            undistilled=ids if run and place == last else (),
            idempotency_key=turn_key,
        )
        for place, (turn, turn_key) in enumerate(zip(conversation.turns, keys, strict=True))
    ]


async def _check_first(agent: Agent, first: IncomingMemory) -> None:
    """Refuse a key that came with another number of turns, or another first one, before any turn is stored."""
    [draft] = await drafts_of(agent, await clean(agent, [first]))
    if isinstance(draft, AgentMemoryError):
        return
    if conflict := other_request(await read_row(agent, draft.record.id), draft.record):
        raise conflict


def _check_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Raise what kept all turns out, or that the key came with others: those are all there, so none was stored now."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, AgentMemoryError)]
    for error in errors:
        if isinstance(error, Conflict) or len(errors) == len(outcomes):
            raise error


def _warnings(outcomes: Sequence[Outcome], why_not: str | None) -> tuple[str, ...]:
    told = [] if why_not is None else [why_not]
    for place, outcome in enumerate(outcomes):
        if isinstance(outcome, AgentMemoryError):
            told.append(f"messages[{place}]: not stored: {outcome}")
        else:
            told.extend(f"messages[{place}]: {warning}" for warning in outcome.warnings)
    return tuple(told)
