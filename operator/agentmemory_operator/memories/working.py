"""Working memory: what an agent has in mind within one session, a few memories and no more.

Nothing in the engine spans two points, so a bound on how many there are cannot be checked and kept in one step. It
holds by construction instead: a session has as many places as it may hold memories, each place is a point whose id is
made of user, session and number, and to remember is to take a place: a free one, else that of the memory least recently
used. Taking is a compare-and-set on the point's `rev`; whoever finds the place changed chooses anew. `usedAt` orders by
use: a time, and later than any other of the session, so that two uses within a millisecond are told apart.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal
from weakref import WeakValueDictionary

from agentmemory_operator.agents.checks import check_types
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import (
    AgentMemoryError,
    Conflict,
    FieldError,
    NotFound,
    RequestInvalid,
    StoreUnavailable,
)
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.access_counts import AccessCounts
from agentmemory_operator.memories.chains import MAX_ATTEMPTS
from agentmemory_operator.memories.draft import MemoryDraft, drafts_of
from agentmemory_operator.memories.incoming import IncomingMemory, clean
from agentmemory_operator.memories.point_pages import read_row, replace_row
from agentmemory_operator.memories.rules.expiry import is_expired
from agentmemory_operator.memories.rules.filters import NOT_DELETED, Selection, equals, only
from agentmemory_operator.memories.rules.ids import place_id
from agentmemory_operator.memories.rules.record import (
    EDIT_KEY,
    TOMBSTONE_KEY,
    USED_KEY,
    MemoryRecord,
    Payload,
    payload_of,
    record_of,
)
from agentmemory_operator.memories.session_use import note_read, note_stored
from agentmemory_operator.memories.stored import ListRequest, change_marked, delete_head, list_page, read_marked
from agentmemory_operator.runtime.tasks import update
from agentmemory_operator.spec.memory_types import MAX_WORKING_MEMORY_SLOTS, WORKING

log = logging.getLogger(__name__)

PAGE = 100


@dataclass(frozen=True, slots=True)
class Session:
    """A session of one user."""

    user_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class KeptMemory:
    """A working memory that is durable now.

    Attributes:
        event: NONE is what the session had in mind already.
        evicted: what had to go for it.
    """

    record: MemoryRecord
    event: Literal["ADD", "NONE"]
    evicted: MemoryRecord | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """How many memories were dropped, by type."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Place:
    """A place of a session: the point that lies there, or lay there, and whether a memory is in it."""

    number: int
    id: str
    row: Payload | None
    is_taken: bool
    used_at: int

    @property
    def rev(self) -> int:
        return self.row["rev"] if self.row else 0


class WorkingMemory:
    """What an agent's sessions have in mind, and how they end; every method may run on several replicas at once."""

    def __init__(self, access_counts: AccessCounts) -> None:
        self._access_counts = access_counts
        # Writers of one process wait for each other instead of taking the place from each other.
        self._locks: WeakValueDictionary[tuple[str, Session], asyncio.Lock] = WeakValueDictionary()

    async def read(self, agent: Agent, session: Session) -> tuple[MemoryRecord, ...]:
        """What the session has in mind, most recently used first. All of it was read, so the order stays."""
        taken = [place for place in await self._places(agent, session) if place.is_taken]
        await note_read(agent, [place.row for place in taken if place.row], now_ms=agent.clock.now_ms())
        within = (place for place in taken if place.number < agent.settings.working_memory_slots)
        ordered = sorted(within, key=lambda place: place.used_at, reverse=True)
        return tuple(record_of(place.row) for place in ordered if place.row)

    async def keep(self, agent: Agent, memory: IncomingMemory) -> KeptMemory:
        """Keep something in mind; what was least recently used goes where there is no room.

        Args:
            memory: of a session; what the session has in mind already is used once more, with its new importance.

        Raises:
            RequestInvalid: the agent's types have no `working`, or the vector does not fit.
            EmbedderUnavailable, StoreUnavailable: nothing was written.
            OutcomeUnknown: it may have been written; the same again is safe.
        """
        if check_types([WORKING], agent, field="type"):
            way_out = "add it to spec.types of its object, or use preset cognitive or importance"
            raise RequestInvalid(
                [FieldError("type", f"this agent has no type {WORKING!r} for working memory: {way_out}")]
            )
        [cleaned] = await clean(agent, [replace(memory, type=WORKING, is_working=True)])
        [draft] = await drafts_of(agent, [cleaned])
        if isinstance(draft, AgentMemoryError):
            raise draft
        session = Session(memory.user_id, memory.session_id or "")
        lock = self._locks.setdefault((agent.settings.slug, session), asyncio.Lock())
        try:
            async with lock:
                kept = replace(await self._keep(agent, session, draft), warnings=cleaned.warnings)
            await note_stored(agent, [draft.record], now_ms=agent.clock.now_ms())
            return kept
        finally:
            agent.sizes.forget(memory.user_id)

    async def touch(self, agent: Agent, record: MemoryRecord) -> None:
        """Note that a memory of a session was read by itself; where that cannot be, the reader has it all the same."""
        session = Session(record.user_id, record.session_id or "")
        await note_read(agent, [payload_of(record)], now_ms=agent.clock.now_ms())
        if not record.is_working:
            return
        try:
            places = await self._places(agent, session)
            for place in places:
                is_meant = place.is_taken and place.id == record.id
                if place.row and is_meant and place.used_at < _latest(places):
                    await change_marked(agent, place.row, {USED_KEY: _next_use(agent, places)}, NOT_DELETED)
        except AgentMemoryError as error:
            log.info("could not mark a working memory of agent %s as used: %s", agent.settings.slug, error)

    async def rows(self, agent: Agent, session: Session) -> list[Payload]:
        """What the session has in mind, as it is stored, in no order; nothing counts as read."""
        return [place.row for place in await self._places(agent, session) if place.is_taken and place.row]

    async def end(self, agent: Agent, session: Session, *, read_later: frozenset[str] = frozenset()) -> Ended:
        """Drop the session's working memory, and its memories of types that last as long as a session.

        What such a memory had superseded is dropped too, or answers again where it is of a type that lasts.

        Args:
            read_later: of the working memory: they end for everybody who reads, and are removed by another.

        Raises:
            StoreUnavailable, OutcomeUnknown: some may have been dropped; the same again drops the rest.
        """
        counts = {WORKING: await self._clear(agent, session, read_later)}
        types = agent.settings.session_types
        selection = Selection(user_id=session.user_id, types=types, session_id=session.session_id)
        while True:
            page = await list_page(agent, ListRequest(selection=selection, limit=PAGE))
            for record in page.records:
                dropped = await _drop(agent, record.id, user_id=session.user_id)
                counts[record.type] = counts.get(record.type, 0) + dropped
            if not page.records:
                return Ended({name: count for name, count in counts.items() if count})

    async def _clear(self, agent: Agent, session: Session, read_later: frozenset[str]) -> int:
        """Drop what the session has in mind; return how many memories that were."""
        places = [place for place in await self._places(agent, session) if place.is_taken]
        dropped = [
            await (self._expire(agent, place) if place.id in read_later else self._vacate(agent, place))
            for place in places
        ]
        agent.sizes.forget(session.user_id)
        return sum(dropped)

    async def _keep(self, agent: Agent, session: Session, draft: MemoryDraft) -> KeptMemory:
        async def write(places: list[_Place]) -> KeptMemory | None:
            within = places[: agent.settings.working_memory_slots]
            for place in places[len(within) :]:
                # From when the session had more places.
                if place.is_taken:
                    await self._vacate(agent, place)
            used_at = _next_use(agent, places)
            if known := _row_saying(draft.record.content_hash, within):
                used: Payload = {"importance": draft.record.importance, USED_KEY: used_at}
                row = await change_marked(agent, known, used, NOT_DELETED)
                return KeptMemory(record_of(row), "NONE") if row else None
            chosen = min(within, key=lambda place: (place.is_taken, place.used_at, place.number))
            row = await self._take(agent, chosen, draft, used_at=used_at)
            evicted = record_of(chosen.row) if chosen.is_taken and chosen.row else None
            return KeptMemory(record_of(row), "ADD", evicted) if row else None

        busy = StoreUnavailable(f"session {session.session_id!r} is being changed concurrently: retry")
        return await update(partial(self._places, agent, session), write, busy=busy)

    async def _places(self, agent: Agent, session: Session) -> list[_Place]:
        """All places that a session may ever have, in order."""
        owner = agent.id_scope, session.user_id, session.session_id
        ids = [place_id(*owner, number) for number in range(MAX_WORKING_MEMORY_SLOTS)]
        rows = {point["id"]: point["payload"] for point in await agent.store.retrieve(agent.alias, ids)}
        return [self._place(agent, number, id_, rows.get(id_)) for number, id_ in enumerate(ids)]

    def _place(self, agent: Agent, number: int, id_: str, row: Payload | None) -> _Place:
        slug, types = agent.settings.slug, agent.settings.ranking.endings
        is_taken = row is not None and TOMBSTONE_KEY not in row and not is_expired(row, types, agent.clock.now_ms())
        times = (row.get(USED_KEY, 0), row.get("lastAccessedAt") or 0) if row else ()
        return _Place(number, id_, row, is_taken, max(*times, self._access_counts.last_ms(slug, id_), 0))

    async def _take(self, agent: Agent, place: _Place, draft: MemoryDraft, *, used_at: int) -> Payload | None:
        """Put a memory where another is, or nothing, unless that changed; return what lies there then."""
        placed = replace(draft, record=replace(draft.record, id=place.id, rev=place.rev + 1))
        mark = secrets.token_hex(8)
        point = placed.point(agent)
        point["payload"] |= {USED_KEY: used_at, EDIT_KEY: mark}
        if place.row is None:
            await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
        else:
            unchanged = only(place.id, equals("rev", place.rev))
            await replace_row(agent, point, unchanged, replaced=place.row)
        return await read_marked(agent, place.id, mark)

    async def _expire(self, agent: Agent, place: _Place) -> bool:
        """Let what is in a place end now; return whether this call did."""
        now_ms = agent.clock.now_ms()

        async def write(row: Payload | None) -> bool | None:
            if row is None or TOMBSTONE_KEY in row or is_expired(row, agent.settings.ranking.endings, now_ms):
                return False
            return True if await change_marked(agent, row, {"expiresAt": now_ms}, NOT_DELETED) else None

        busy = StoreUnavailable("the session is being changed concurrently: retry")
        return await update(partial(read_row, agent, place.id), write, busy=busy)

    async def _vacate(self, agent: Agent, place: _Place) -> bool:
        """Leave a tombstone of what is in a place now; return whether this call made it."""
        row: Payload | None = place.row
        for _ in range(MAX_ATTEMPTS):
            if row is None or TOMBSTONE_KEY in row:
                return False
            before, row = row, await chains.bury(agent, row)
            if row is not None and TOMBSTONE_KEY in row:
                return bool(row["rev"] == before["rev"] + 1)
        raise StoreUnavailable("the session is being changed concurrently: retry")


def _next_use(agent: Agent, places: Iterable[_Place]) -> int:
    return max(agent.clock.now_ms(), _latest(places) + 1)


def _latest(places: Iterable[_Place]) -> int:
    return max((place.used_at for place in places), default=0)


def _row_saying(content_hash: str, places: Sequence[_Place]) -> Payload | None:
    """The memory that says the same."""
    rows = (place.row for place in places if place.is_taken and place.row)
    return next((row for row in rows if row.get("contentHash") == content_hash), None)


async def _drop(agent: Agent, memory_id: str, *, user_id: str) -> bool:
    """Delete a memory; return whether this call did, and nobody else at the same time."""
    try:
        await delete_head(agent, memory_id, user_id=user_id, is_admin=True)
    except (NotFound, Conflict):
        return False
    return True
