"""Store memories: draft them, and write each by the rule that applies to it. Plain memories share one request.

Memories of one request with equal statements (`draft.py: find_first_indexes`) become one memory: the first is stored,
the duplicates return its id.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import replace
from itertools import zip_longest

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError, CollectionMoved, OutcomeUnknown, StoreRejected
from agentmemory_operator.memories import chains, duplicates, session_keywords
from agentmemory_operator.memories.chains import outcome_unknown_on_failure
from agentmemory_operator.memories.draft import (
    MemoryDraft,
    add_words,
    build_drafts_without_keywords,
    find_first_indexes,
)
from agentmemory_operator.memories.due_marks import DueMarks
from agentmemory_operator.memories.hierarchy import check_hierarchy
from agentmemory_operator.memories.identities import Identities
from agentmemory_operator.memories.incoming import IncomingMemory, ScrubbedMemory, scrub_memories
from agentmemory_operator.memories.insert import (
    Outcome,
    StoredMemory,
    duplicate_outcome,
    find_request_conflict,
    stored_outcome,
    write_with_followers,
)
from agentmemory_operator.memories.point_pages import read_row
from agentmemory_operator.memories.predecessors import check_predecessor, next_update_count, not_a_head_conflict
from agentmemory_operator.memories.rules.expiry import ttl_of
from agentmemory_operator.memories.rules.record import (
    LONG_CHAIN,
    TOMBSTONE_KEY,
    UPDATES_KEY,
    MemoryRecord,
)
from agentmemory_operator.memories.session_rows import SessionRows
from agentmemory_operator.memories.session_use import note_stored
from agentmemory_operator.ports.base import Json

_COMPARED_KEYS = ("requestHash", TOMBSTONE_KEY)


class Remember:
    """Writer of new memories.

    Args:
        on_long_chain: Called for each memory that reaches 20, 40, 60 ... versions since a model last read its chain.
    """

    def __init__(self, on_long_chain: Callable[[], None] = lambda: None) -> None:
        self._identities = Identities()
        self._on_long_chain = on_long_chain
        self._marks = DueMarks()

    async def run(self) -> None:
        """Clear marks of stored memories together until cancelled. Without this, each call clears its own."""
        await self._marks.run()

    async def store(self, agent: Agent, memories: Sequence[IncomingMemory]) -> list[Outcome]:
        """Store each memory; return one result per memory, in order: the stored memory, or its error.

        The error is RequestInvalid, NotFound (of the parent, or of the memory to supersede), Conflict, StoreRejected or
        a TransientError.

        Raises:
            EmbedderUnavailable, StoreUnavailable: If nothing was written. Retry.
            SpecInvalid, StoreRejected, KeysUnavailable: As in `build_drafts` and `write_drafts`.
            OutcomeUnknown: If the batch may have been written. Memories with idempotency keys can be sent again.
        """
        cleaned = await scrub_memories(agent, memories)
        first_indexes = await find_first_indexes([item.memory for item in cleaned], agent)
        distinct = list(dict.fromkeys(first_indexes))
        reader = SessionRows(agent)
        drafts, stored_ids = await _drafted(agent, [cleaned[index] for index in distinct], reader)
        written: list[Outcome] = []
        since_s = agent.sizes.now_s()
        try:
            written = await self._write(agent, drafts, reader, stored_ids)
        finally:
            _count_stored(agent, drafts, written, since_s=since_s)
            await session_keywords.update_stale_texts(
                agent, _changed(drafts, written), _places(drafts, written), reader, self._marks
            )
        if move_error := _moved(written):
            raise move_error
        await note_stored(agent, _stored(drafts, written), now_ms=agent.clock.now_ms())
        for outcome in written:
            if isinstance(outcome, StoredMemory) and (outcome.update_count + 1) % LONG_CHAIN == 0:
                self._on_long_chain()
        outcomes = dict(zip(distinct, written, strict=True))
        full = (outcomes[n] if n == index else duplicate_outcome(outcomes[n]) for index, n in enumerate(first_indexes))
        return [_warned(outcome, item.warnings) for outcome, item in zip(full, cleaned, strict=True)]

    async def _write(
        self,
        agent: Agent,
        drafts: Sequence[MemoryDraft | AgentMemoryError],
        reader: SessionRows,
        stored_ids: Set[str],
    ) -> list[Outcome]:
        """Write drafts by their rules, those with a predecessor one after the other.

        Return one outcome per entry, in order; errors are returned unchanged.
        """
        ready = [draft for draft in drafts if isinstance(draft, MemoryDraft)]
        outcomes = await self._put_plain(agent, [draft for draft in ready if draft.rule == "plain"], reader)
        with outcome_unknown_on_failure(StoreRejected) if outcomes else nullcontext():
            outcomes |= await self._put_keyed(agent, [draft for draft in ready if draft.rule == "keyed"], reader)
        with outcome_unknown_on_failure(StoreRejected) if outcomes else nullcontext():
            once = [draft for draft in ready if draft.rule == "once"]
            outcomes |= await duplicates.store_once(agent, once, reader, stored_ids)
        outcomes |= await self._identities.store(agent, [draft for draft in ready if draft.rule == "identity"])
        for draft in ready:
            if draft.rule == "chain":
                outcomes[draft.position] = await self._join_or_refuse(agent, draft)
        return [_with_draft_warnings(draft, outcomes) if isinstance(draft, MemoryDraft) else draft for draft in drafts]

    async def _put_plain(self, agent: Agent, drafts: Sequence[MemoryDraft], reader: SessionRows) -> dict[int, Outcome]:
        refused = await write_with_followers(agent, drafts, reader)
        return {draft.position: refused.get(draft.record.id) or stored_outcome(draft.record.id) for draft in drafts}

    async def _put_keyed(self, agent: Agent, drafts: Sequence[MemoryDraft], reader: SessionRows) -> dict[int, Outcome]:
        """Insert drafts with an idempotency key. If the key was used with another body, the outcome is a Conflict."""
        if not drafts:
            return {}
        refused: dict[str, AgentMemoryError] = dict(await write_with_followers(agent, drafts, reader, insert_only=True))
        with outcome_unknown_on_failure():
            places = {draft.record.id: draft.place for draft in drafts if draft.record.id not in refused}
            rows = await reader.read_back(list(places), _COMPARED_KEYS, filter(None, places.values()))
        for draft in drafts:
            if conflict := find_request_conflict(rows.get(draft.record.id), draft.record):
                refused[draft.record.id] = conflict
        return {draft.position: refused.get(draft.record.id) or stored_outcome(draft.record.id) for draft in drafts}

    async def _join_or_refuse(self, agent: Agent, draft: MemoryDraft) -> Outcome:
        try:
            return await self._join(agent, draft)
        except AgentMemoryError as error:
            return error

    async def _join(self, agent: Agent, draft: MemoryDraft) -> StoredMemory:
        """Write a memory that supersedes another, unless the same request wrote it before, and join it to the chain.

        Raises the errors of `check_predecessor` and `check_hierarchy`. Conflict also if another version took the
        predecessor in the meantime, or if the idempotency key was used with another body.
        """
        record = draft.record
        existing = await read_row(agent, record.id) if record.request_hash else None
        if existing is None:
            old = await check_predecessor(agent, record)
            record = replace(record, update_count=next_update_count(old))
            await check_hierarchy(agent, record)
            point = replace(draft, record=record).point(agent)
            await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
        with outcome_unknown_on_failure():
            row = existing or await read_row(agent, record.id)
            if conflict := find_request_conflict(row, record):
                raise conflict
            # The row was abandoned by another process, or erased or removed since.
            if row is None or not await chains.join(agent, row):
                raise not_a_head_conflict(record.supersedes_id)
        return stored_outcome(record.id, record.supersedes_id, update_count=row.get(UPDATES_KEY) or 0)


def _changed(drafts: Sequence[MemoryDraft | AgentMemoryError], outcomes: Sequence[Outcome]) -> Iterable[str | None]:
    """Yield the ids of memories whose sessions may need new keyword texts, and None values, which callers skip."""
    for draft in drafts:
        if isinstance(draft, MemoryDraft):
            yield draft.record.supersedes_id
            yield draft.record.id if draft.words and draft.words.order is not None else None
    for draft, outcome in zip(drafts, outcomes, strict=False):
        if isinstance(draft, MemoryDraft) and isinstance(outcome, StoredMemory) and draft.rule != "plain":
            yield from (outcome.id, outcome.supersedes)


async def _drafted(
    agent: Agent, cleaned: Sequence[ScrubbedMemory], reader: SessionRows
) -> tuple[list[MemoryDraft | AgentMemoryError], set[str]]:
    """Return the drafts, and the ids by which some of their contents are stored already."""
    drafts = await build_drafts_without_keywords(agent, cleaned)
    once = [draft for draft in drafts if isinstance(draft, MemoryDraft) and draft.rule == "once"]
    if not once:
        return await add_words(agent, drafts, reader), set()
    return await asyncio.gather(add_words(agent, drafts, reader), duplicates.read_stored_ids(agent, once, reader))


def _places(drafts: Sequence[MemoryDraft | AgentMemoryError], outcomes: Sequence[Outcome]) -> Iterable[Json]:
    """Yield the places of the memories that were stored in a session."""
    for draft, outcome in zip(drafts, outcomes, strict=False):
        if not isinstance(draft, MemoryDraft) or not isinstance(outcome, StoredMemory) or draft.place is None:
            continue
        if outcome.event in ("ADD", "SUPERSEDE"):
            yield draft.place | {"id": outcome.id}


def _count_stored(
    agent: Agent, drafts: Sequence[MemoryDraft | AgentMemoryError], written: Sequence[Outcome], *, since_s: float
) -> None:
    """Add the growth of each user's memories to the cached counts, or forget a count whose growth is uncertain."""
    growth: dict[str, int | None] = {}
    for draft, outcome in zip_longest(drafts, written):
        if isinstance(draft, MemoryDraft):
            user_id, added = draft.record.user_id, _added(agent, draft.record, outcome)
            total = growth.get(user_id, 0)
            growth[user_id] = None if added is None or total is None else total + added
    for user_id, total in growth.items():
        if total is None:
            agent.sizes.forget(user_id)
        else:
            agent.sizes.add_stored(user_id, total, since_s=since_s)


def _added(agent: Agent, record: MemoryRecord, outcome: Outcome | None) -> int | None:
    """Return the growth of the user's cached memory count by an outcome, 0 or 1; None if it is uncertain."""
    if not isinstance(outcome, StoredMemory):
        return None
    if outcome.event in ("NONE", "CORROBORATE"):
        return 0
    ttl = ttl_of({"type": record.type}, agent.settings.ranking.endings)
    may_end = record.expires_at is not None or (ttl is not None and ttl.expires)
    # The growth is uncertain, for example with an idempotency key: the memory may have been stored before.
    is_certain = outcome.event == "ADD" and not (record.request_hash or record.zone or record.is_working or may_end)
    return 1 if is_certain else None


def _stored(drafts: Sequence[MemoryDraft | AgentMemoryError], outcomes: Sequence[Outcome]) -> Iterable[MemoryRecord]:
    """Yield the stored memories, with the ids that they are stored under."""
    for draft, outcome in zip(drafts, outcomes, strict=True):
        if isinstance(draft, MemoryDraft) and isinstance(outcome, StoredMemory):
            is_same = outcome.id == draft.record.id
            yield draft.record if is_same else replace(draft.record, id=outcome.id)


def _moved(outcomes: Sequence[Outcome]) -> CollectionMoved | None:
    """Return the CollectionMoved of a batch of which nothing was written, so that the caller opens the agent again.

    None if a memory was stored or may have been stored, or if no outcome is a CollectionMoved.
    """
    if any(isinstance(outcome, StoredMemory | OutcomeUnknown) for outcome in outcomes):
        return None
    return next((outcome for outcome in outcomes if isinstance(outcome, CollectionMoved)), None)


def _warned(outcome: Outcome, warnings: tuple[str, ...]) -> Outcome:
    if not warnings or not isinstance(outcome, StoredMemory):
        return outcome
    return replace(outcome, warnings=warnings + outcome.warnings)


def _with_draft_warnings(draft: MemoryDraft, outcomes: Mapping[int, Outcome]) -> Outcome:
    return _warned(outcomes[draft.position], draft.warnings)
