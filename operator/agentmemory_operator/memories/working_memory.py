"""Working memory: a few memories of one session, at most as many as the agent has slots.

Qdrant has no transaction over several points, so it cannot check and enforce a limit on their number atomically.
Instead, a session has a fixed number of slots. Each slot is a point whose id is derived from user, session and slot
number.

1. Read all slots.
2. Choose a free slot, else the slot of the least recently used memory.
3. Write the memory into it by compare-and-set on the point's `rev`. If the slot changed, start again.

`usedAt` orders memories by use. It is the time of use, but always later than that of every other memory in the session,
which orders two uses within one millisecond.
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
from agentmemory_operator.memories.draft import MemoryDraft, build_drafts
from agentmemory_operator.memories.incoming import IncomingMemory, scrub_memories
from agentmemory_operator.memories.point_pages import read_row, replace_row
from agentmemory_operator.memories.rules.expiry import is_expired
from agentmemory_operator.memories.rules.filters import NOT_DELETED, Selection, equals, point_filter
from agentmemory_operator.memories.rules.ids import slot_id
from agentmemory_operator.memories.rules.record import (
    EDIT_MARK_KEY,
    LOGGED_KEY,
    TOMBSTONE_KEY,
    WORKING_USED_KEY,
    MemoryRecord,
    Payload,
    payload_of,
    record_of,
)
from agentmemory_operator.memories.session_use import note_read, note_stored
from agentmemory_operator.memories.stored_memories import (
    ListRequest,
    change_and_confirm,
    delete_head,
    list_page,
    read_if_marked,
)
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
class StoredWorkingMemory:
    """A working memory that is durably stored.

    Attributes:
        event: "NONE" if the session had a memory with this content already, else "ADD".
        evicted: Memory that was replaced; None if no memory was.
        warnings: Messages about secrets that were removed, and about numbers that filters will not find.
    """

    record: MemoryRecord
    event: Literal["ADD", "NONE"]
    evicted: MemoryRecord | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EndedSession:
    """Numbers of memories that the end of a session deleted or let expire, by type, without zeros."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Slot:
    """A slot of a session.

    Attributes:
        row: Stored payload; None if the slot has no point.
        is_taken: True if the slot contains a live memory.
        used_at: Last use, Unix milliseconds, including uses that are not written yet; 0 if there was none.
    """

    number: int
    id: str
    row: Payload | None
    is_taken: bool
    used_at: int

    @property
    def rev(self) -> int:
        return self.row["rev"] if self.row else 0


class WorkingMemory:
    """Reads, stores and deletes the working memories of agents' sessions, and ends sessions.

    Several replicas may call every method concurrently.
    """

    def __init__(self, access_counts: AccessCounts) -> None:
        self._access_counts = access_counts
        # Locks, without which writers of one process would choose the same slot, and all but one would have to retry.
        self._locks: WeakValueDictionary[tuple[str, Session], asyncio.Lock] = WeakValueDictionary()

    async def read(self, agent: Agent, session: Session) -> tuple[MemoryRecord, ...]:
        """Return a session's working memory, most recently used first, without slots that the agent no longer has.

        The call counts as a use of the session, not of its memories.
        """
        occupied = [slot for slot in await self._read_slots(agent, session) if slot.is_taken]
        await note_read(agent, [slot.row for slot in occupied if slot.row], now_ms=agent.clock.now_ms())
        usable = (slot for slot in occupied if slot.number < agent.settings.working_memory_slots)
        ordered = sorted(usable, key=lambda slot: slot.used_at, reverse=True)
        return tuple(record_of(slot.row) for slot in ordered if slot.row)

    async def store(self, agent: Agent, memory: IncomingMemory) -> StoredWorkingMemory:
        """Store a working memory; if no slot is free, replace the least recently used one.

        Args:
            memory: Memory with a session. If a working memory of the session has the same content, that memory is
                marked as used and gets the new importance.

        Raises:
            RequestInvalid: If the agent has types, but no type `working`, or the memory is invalid.
            NotFound, KeysUnavailable: If the parent does not exist, or the key of the zone is unavailable.
            SpecInvalid: As in `build_drafts`.
            StoreRejected: If Qdrant rejects the point.
            EmbedderUnavailable, StoreUnavailable: If nothing was written. Retry.
            OutcomeUnknown: If it may have been written. It is safe to retry.
        """
        if check_types([WORKING], agent, field="type"):
            remedy = "add it to spec.types of its object, or use preset cognitive or importance"
            raise RequestInvalid(
                [FieldError("type", f"this agent has no type {WORKING!r} for working memory: {remedy}")]
            )
        [cleaned] = await scrub_memories(agent, [replace(memory, type=WORKING, is_working=True)])
        [draft] = await build_drafts(agent, [cleaned])
        if isinstance(draft, AgentMemoryError):
            raise draft
        session = Session(memory.user_id, memory.session_id or "")
        lock = self._locks.setdefault((agent.settings.slug, session), asyncio.Lock())
        try:
            async with lock:
                stored = replace(await self._keep(agent, session, draft), warnings=cleaned.warnings)
            await note_stored(agent, [draft.record], now_ms=agent.clock.now_ms())
            return stored
        finally:
            agent.sizes.forget(memory.user_id)

    async def mark_used(self, agent: Agent, record: MemoryRecord) -> None:
        """Stamp the session of a memory that was read by id; mark a working memory as the last used of its session.

        An error is only logged: the read itself has succeeded.
        """
        session = Session(record.user_id, record.session_id or "")
        await note_read(agent, [payload_of(record)], now_ms=agent.clock.now_ms())
        if not record.is_working:
            return
        try:
            slots = await self._read_slots(agent, session)
            for slot in slots:
                is_target = slot.is_taken and slot.id == record.id
                if slot.row and is_target and slot.used_at < _latest(slots):
                    await change_and_confirm(agent, slot.row, {WORKING_USED_KEY: _next_use(agent, slots)}, NOT_DELETED)
        except AgentMemoryError as error:
            log.info("could not mark a working memory of agent %s as used: %s", agent.settings.slug, error)

    async def read_rows(self, agent: Agent, session: Session) -> list[Payload]:
        """Return the stored rows of a session's working memory, unordered, without marking a use."""
        return [slot.row for slot in await self._read_slots(agent, session) if slot.is_taken and slot.row]

    async def end_session(
        self, agent: Agent, session: Session, *, expiring_ids: frozenset[str] = frozenset()
    ) -> EndedSession:
        """Delete a session's working memory, and its memories of types that end with the session.

        A predecessor of such a memory is deleted too, or becomes a head again if its type does not end with the
        session.

        Args:
            expiring_ids: Ids of working memories that expire now instead: readers no longer see them, and a cleanup
                deletes them after a model has processed them.

        Raises:
            StoreUnavailable, OutcomeUnknown: If some may have been deleted. The same call again deletes the rest.
        """
        counts = {WORKING: await self._clear(agent, session, expiring_ids)}
        types = agent.settings.session_types
        selection = Selection(user_id=session.user_id, types=types, session_id=session.session_id)
        while True:
            page = await list_page(agent, ListRequest(selection=selection, limit=PAGE))
            for record in page.records:
                dropped = await _try_delete(agent, record.id, user_id=session.user_id)
                counts[record.type] = counts.get(record.type, 0) + dropped
            if not page.records:
                return EndedSession({name: count for name, count in counts.items() if count})

    async def _clear(self, agent: Agent, session: Session, expiring_ids: frozenset[str]) -> int:
        """Delete or expire a session's working memory; return the number of memories."""
        slots = [slot for slot in await self._read_slots(agent, session) if slot.is_taken]
        dropped = [
            await (self._expire(agent, slot) if slot.id in expiring_ids else self._vacate(agent, slot))
            for slot in slots
        ]
        agent.sizes.forget(session.user_id)
        return sum(dropped)

    async def _keep(self, agent: Agent, session: Session, draft: MemoryDraft) -> StoredWorkingMemory:
        async def write(slots: list[_Slot]) -> StoredWorkingMemory | None:
            usable = slots[: agent.settings.working_memory_slots]
            for slot in slots[len(usable) :]:
                # Vacate a slot that is left from a time when the agent had more slots.
                if slot.is_taken:
                    await self._vacate(agent, slot)
            used_at = _next_use(agent, slots)
            if existing := _row_with_content(draft.record.content_hash, usable):
                changes: Payload = {"importance": draft.record.importance, WORKING_USED_KEY: used_at}
                if changes["importance"] != existing.get("importance", 0):
                    changes[LOGGED_KEY] = agent.clock.now_ms()
                row = await change_and_confirm(agent, existing, changes, NOT_DELETED)
                return StoredWorkingMemory(record_of(row), "NONE") if row else None
            chosen = min(usable, key=lambda slot: (slot.is_taken, slot.used_at, slot.number))
            row = await self._take(agent, chosen, draft, used_at=used_at)
            evicted = record_of(chosen.row) if chosen.is_taken and chosen.row else None
            return StoredWorkingMemory(record_of(row), "ADD", evicted) if row else None

        busy = StoreUnavailable(f"session {session.session_id!r} is being changed concurrently: retry")
        return await update(partial(self._read_slots, agent, session), write, busy=busy)

    async def _read_slots(self, agent: Agent, session: Session) -> list[_Slot]:
        """Return all slots that a session can ever have, in order."""
        owner = agent.id_slug, session.user_id, session.session_id
        ids = [slot_id(*owner, number) for number in range(MAX_WORKING_MEMORY_SLOTS)]
        rows = {point["id"]: point["payload"] for point in await agent.store.retrieve(agent.alias, ids)}
        return [self._slot_of(agent, number, id_, rows.get(id_)) for number, id_ in enumerate(ids)]

    def _slot_of(self, agent: Agent, number: int, id_: str, row: Payload | None) -> _Slot:
        slug, types = agent.settings.slug, agent.settings.ranking.endings
        is_occupied = row is not None and TOMBSTONE_KEY not in row and not is_expired(row, types, agent.clock.now_ms())
        times = (row.get(WORKING_USED_KEY, 0), row.get("lastAccessedAt") or 0) if row else ()
        return _Slot(number, id_, row, is_occupied, max(*times, self._access_counts.last_ms(slug, id_), 0))

    async def _take(self, agent: Agent, slot: _Slot, draft: MemoryDraft, *, used_at: int) -> Payload | None:
        """Write a memory into a slot by compare-and-set; return the stored payload, or None if the slot changed."""
        slot_draft = replace(draft, record=replace(draft.record, id=slot.id, rev=slot.rev + 1))
        mark = secrets.token_hex(8)
        point = slot_draft.point(agent)
        point["payload"] |= {WORKING_USED_KEY: used_at, EDIT_MARK_KEY: mark}
        if slot.row is None:
            await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
        else:
            unchanged = point_filter(slot.id, equals("rev", slot.rev))
            await replace_row(agent, point, unchanged, replaced=slot.row)
        return await read_if_marked(agent, slot.id, mark)

    async def _expire(self, agent: Agent, slot: _Slot) -> bool:
        """Let the memory in a slot expire now; return whether this call did."""
        now_ms = agent.clock.now_ms()

        async def write(row: Payload | None) -> bool | None:
            if row is None or TOMBSTONE_KEY in row or is_expired(row, agent.settings.ranking.endings, now_ms):
                return False
            return True if await change_and_confirm(agent, row, {"expiresAt": now_ms}, NOT_DELETED) else None

        busy = StoreUnavailable("the session is being changed concurrently: retry")
        return await update(partial(read_row, agent, slot.id), write, busy=busy)

    async def _vacate(self, agent: Agent, slot: _Slot) -> bool:
        """Replace the memory in a slot by a tombstone; return whether this call did.

        Raise StoreUnavailable if writers changed the slot in every attempt.
        """
        row: Payload | None = slot.row
        for _ in range(MAX_ATTEMPTS):
            if row is None or TOMBSTONE_KEY in row:
                return False
            before, row = row, await chains.tombstone_head(agent, row)
            if row is not None and TOMBSTONE_KEY in row:
                return bool(row["rev"] == before["rev"] + 1)
        raise StoreUnavailable("the session is being changed concurrently: retry")


def _next_use(agent: Agent, slots: Iterable[_Slot]) -> int:
    return max(agent.clock.now_ms(), _latest(slots) + 1)


def _latest(slots: Iterable[_Slot]) -> int:
    return max((slot.used_at for slot in slots), default=0)


def _row_with_content(content_hash: str, slots: Sequence[_Slot]) -> Payload | None:
    """Return the working memory with this content; None if there is none."""
    rows = (slot.row for slot in slots if slot.is_taken and slot.row)
    return next((row for row in rows if row.get("contentHash") == content_hash), None)


async def _try_delete(agent: Agent, memory_id: str, *, user_id: str) -> bool:
    """Delete a memory; return False if it was deleted or superseded concurrently."""
    try:
        await delete_head(agent, memory_id, user_id=user_id, is_admin=True)
    except (NotFound, Conflict):
        return False
    return True
