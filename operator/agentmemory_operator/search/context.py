"""Context: one text for a prompt, with what is known of a user, what bears on a question, and the last turns.

1. Three reads at the same time: the newest statements about the user, the newest turns of the session, and a search.
2. `rules/context_value.py` orders the memories of each section, `rules/context_budget.py` chooses from them and writes
   the text. Equal memories, request and time give an equal text.
3. The memories of `relevant` count as accessed, as those that a search returns. Facts do not: they are in every
   context, so counting them would raise their own rank.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.memories.access_counts import AccessCounts
from agentmemory_operator.memories.point_pages import page_limit, read_memories
from agentmemory_operator.memories.rules.filters import IS_WORKING, Condition, Selection, narrow, visible_filter
from agentmemory_operator.memories.rules.record import PUBLIC_PAYLOAD, MemoryRecord, record_of
from agentmemory_operator.ports.base import Clock, Vector
from agentmemory_operator.search.answers import SearchAnswer
from agentmemory_operator.search.requests import DEFAULT_TIME_ZONE, SearchRequest
from agentmemory_operator.search.rules.context_budget import ComposedContext, TextMeasure, compose_context
from agentmemory_operator.search.rules.context_text import TITLES, SectionName
from agentmemory_operator.search.rules.context_value import NOT_A_STATEMENT, order_facts, order_hits, question_of
from agentmemory_operator.search.search import SearchService
from agentmemory_operator.spec.cron import zone_of

ALL_SECTIONS: tuple[SectionName, ...] = tuple(TITLES)
# Results of the search, and memories of each other section. Of the results more are read than fit, because those next
# to each other raise each other.
TOKENS_PER_HIT, MIN_HITS, MAX_HITS = 12, 50, 200
TOKENS_PER_LINE, MIN_LISTED, MAX_LISTED = 16, 10, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest:
    """A request for a context.

    Attributes:
        selection: Memories of the section `relevant`. Its user has the facts and the turns.
        query: Text to search for; None searches for the last of `messages`.
        messages: Role and text of the messages that the caller's prompt has already, oldest first.
        vector: Vector to search for, if callers send vectors.
        session_id: Session with the recent turns; None leaves them out.
        budget: Maximum number of tokens of the text.
        reference_time, time_zone: As in `SearchRequest`. The days in the text are those of the zone.
        sections: Sections to fill.
    """

    selection: Selection
    budget: int
    query: str | None = None
    messages: Sequence[tuple[str, str]] = ()
    vector: Vector | None = None
    session_id: str | None = None
    reference_time: int | None = None
    time_zone: str = DEFAULT_TIME_ZONE
    sections: Sequence[SectionName] = ALL_SECTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextAnswer:
    """A context with its figures.

    Attributes:
        scores: Score by memory id, of the results of the search.
        generation: Generation of the object whose settings ranked.
        warnings: Warnings of the search.
    """

    context: ComposedContext
    tokenizer: str
    scores: Mapping[str, float]
    generation: int
    duration_ms: float
    warnings: Sequence[str] = ()


class ContextService:
    """Builds contexts, and adds the memories that bear on the question to the access counts."""

    def __init__(
        self, clock: Clock, access_counts: AccessCounts, searches: SearchService, measure: TextMeasure
    ) -> None:
        self._clock = clock
        self._access_counts = access_counts
        self._searches = searches
        self._measure = measure

    async def build(self, agent: Agent, request: ContextRequest) -> ContextAnswer:
        """Return the context of a request.

        Raises:
            RequestInvalid: If there is nothing to search for, or the search is invalid.
            AgentMemoryError: Other errors of `SearchService.find` and of reads.
        """
        started_s = time.perf_counter()
        if "relevant" in request.sections and not (request.query or request.messages or request.vector):
            raise RequestInvalid([FieldError("query", "send query, messages or vector for the section relevant")])
        limit = min(MAX_LISTED, max(MIN_LISTED, request.budget // TOKENS_PER_LINE))
        facts, recent, answer = await asyncio.gather(
            self._read_facts(agent, request, limit), self._read_turns(agent, request, limit), self._ask(agent, request)
        )
        scores = {hit.record.id: hit.score for hit in answer.results} if answer else {}
        candidates: dict[SectionName, list[MemoryRecord]] = {
            "facts": order_facts(facts),
            "recent": recent,
            "relevant": order_hits([hit.record for hit in answer.results]) if answer else [],
        }
        compose = partial(compose_context, budget=request.budget, zone=zone_of(request.time_zone))
        sent = [text for _, text in request.messages]
        # In a thread: a long text takes milliseconds to tokenize, and the tokenizer releases the lock meanwhile.
        context = await asyncio.to_thread(compose, candidates, self._measure, sent=sent)
        self._access_counts.note(agent.settings.slug, [line.record.id for line in context.sections["relevant"]])
        return ContextAnswer(
            context=context,
            tokenizer=self._measure.name,
            scores=scores,
            generation=agent.settings.ranking_generation,
            duration_ms=(time.perf_counter() - started_s) * 1000,
            warnings=answer.warnings if answer else (),
        )

    async def _ask(self, agent: Agent, request: ContextRequest) -> SearchAnswer | None:
        if "relevant" not in request.sections:
            return None
        query = request.query or (question_of(request.messages) if request.messages else None)
        if request.query is None and request.vector is not None and agent.keyword is None:
            # Without keywords, a vector is the whole search.
            query = None
        top_k = min(MAX_HITS, max(MIN_HITS, request.budget // TOKENS_PER_HIT))
        search = SearchRequest(
            selection=request.selection,
            query=query,
            vector=request.vector,
            top_k=page_limit(agent, top_k),
            reference_time=request.reference_time,
            time_zone=request.time_zone,
        )
        return await self._searches.find(agent, search)

    async def _read_facts(self, agent: Agent, request: ContextRequest, limit: int) -> list[MemoryRecord]:
        """Read the newest statements about the user whose `valid_to` has not passed."""
        if "facts" not in request.sections:
            return []
        selection = Selection(user_id=request.selection.user_id)
        has_not_ended = {
            "should": [{"is_empty": {"key": "validTo"}}, {"key": "validTo", "range": {"gt": self._clock.now_ms()}}]
        }
        conditions = ({"must_not": list(NOT_A_STATEMENT)}, _HAS_NO_ROLE, has_not_ended)
        return await self._newest(agent, selection, limit, *conditions)

    async def _read_turns(self, agent: Agent, request: ContextRequest, limit: int) -> list[MemoryRecord]:
        """Read the newest turns and working memories of the session, newest first."""
        if "recent" not in request.sections or request.session_id is None:
            return []
        selection = Selection(user_id=request.selection.user_id, session_id=request.session_id)
        return await self._newest(agent, selection, limit, _IS_TURN)

    async def _newest(
        self, agent: Agent, selection: Selection, limit: int, *conditions: Condition
    ) -> list[MemoryRecord]:
        visible = visible_filter(selection, self._clock.now_ms(), agent.settings.ranking.endings)
        body = {
            "filter": narrow(visible, *conditions),
            "limit": page_limit(agent, limit),
            "order_by": {"key": "createdAt", "direction": "desc"},
            "with_payload": PUBLIC_PAYLOAD,
            "with_vector": False,
        }
        points, _ = await read_memories(agent, body)
        records = [record_of(point["payload"]) for point in points]
        return sorted(records, key=lambda record: (-record.created_at, record.id))


_HAS_NO_ROLE: Condition = {"is_empty": {"key": "role"}}
_IS_TURN: Condition = {"should": [{"must_not": [_HAS_NO_ROLE]}, IS_WORKING]}
