"""Insert points, including those with a derived id that only one of several writers may take.

The result of each memory to store, and of a repeated request, is an `Outcome`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError, Conflict, OutcomeUnknown, StoreRejected
from agentmemory_operator.memories import session_keywords
from agentmemory_operator.memories.chains import outcome_unknown_on_failure
from agentmemory_operator.memories.draft import MemoryDraft
from agentmemory_operator.memories.point_pages import read_row, replace_row
from agentmemory_operator.memories.rules.filters import NOT_SUPERSEDED, equals, point_filter
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, WINDOW_DUE_KEY, MemoryRecord, Payload
from agentmemory_operator.memories.session_rows import SessionRows

# Status codes that a point, or the number of points, causes. A smaller request may succeed.
_ABOUT_POINTS = frozenset({400, 413, 422})

Event = Literal["ADD", "SUPERSEDE", "CORROBORATE", "NONE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMemory:
    """A memory that is durably stored.

    Attributes:
        event: ADD: this request, or an earlier request with the same idempotency key, stored the memory. SUPERSEDE:
            likewise, and the memory has a predecessor. NONE: it was already stored, or equals an earlier memory of the
            request. CORROBORATE: another author had stored it already.
        supersedes: Id of the predecessor; None without one.
        is_recorded: False if the request wrote nothing for it. True also for a repeated request with an idempotency key
            whose first attempt stored the memory.
        update_count: Number of earlier versions since a model last read the chain; 0 if no version was added.
        warnings: Messages for the response, for example about secrets that were removed.
    """

    id: str
    event: Event
    supersedes: str | None = None
    is_recorded: bool = True
    update_count: int = 0
    warnings: tuple[str, ...] = ()


Outcome = StoredMemory | AgentMemoryError


def stored_outcome(memory_id: str, supersedes: str | None = None, *, update_count: int = 0) -> StoredMemory:
    """Return the outcome of a newly stored memory: SUPERSEDE if it has a predecessor, else ADD."""
    event: Event = "SUPERSEDE" if supersedes else "ADD"
    return StoredMemory(id=memory_id, event=event, supersedes=supersedes, update_count=update_count)


def duplicate_outcome(outcome: Outcome) -> Outcome:
    """Return the outcome of a memory that repeats an earlier memory of the request, from that memory's outcome."""
    return replace(outcome, event="NONE", is_recorded=False) if isinstance(outcome, StoredMemory) else outcome


def find_request_conflict(row: Mapping[str, Any] | None, record: MemoryRecord) -> Conflict | None:
    """Return the conflict with the row under the request's idempotency key, if it has another body or was deleted.

    None if there is no row, no key, or no conflict.
    """
    if row is None or record.request_hash is None:
        return None
    if TOMBSTONE_KEY in row:
        return Conflict(
            "Idempotency-Key: the memory stored under this key was deleted or rejected; send a new key to store it"
        )
    if row.get("requestHash") != record.request_hash:
        return Conflict("Idempotency-Key: already used with another body; send a new key")
    return None


async def write_drafts(
    agent: Agent, drafts: Sequence[MemoryDraft], *, insert_only: bool = False
) -> dict[str, StoreRejected]:
    """Write drafts in one request. If Qdrant rejects it, halve it until the bad drafts are isolated.

    Args:
        insert_only: True to leave existing points with the same ids unchanged; False overwrites them.

    Returns:
        Error of each rejected draft, by memory id.

    Raises:
        StoreUnavailable: If Qdrant is unavailable and nothing was written.
        StoreRejected, KeysUnavailable: If Qdrant rejects a request for another reason than its points, or the key
            of a zone is unavailable.
        OutcomeUnknown: If Qdrant or a key became unavailable, or Qdrant rejected the rest, after a part may have been
            written.
    """
    if not drafts:
        return {}
    points = [draft.point(agent) for draft in drafts]
    try:
        await agent.store.upsert(agent.alias, points, insert_only=insert_only, strong=insert_only)
    except StoreRejected as error:
        if error.status not in _ABOUT_POINTS:
            if error.is_partial:
                raise OutcomeUnknown(f"a part was written before the rejection: {error}") from error
            raise
        if len(drafts) == 1:
            return {drafts[0].record.id: error}
        is_partial = error.is_partial
    else:
        return {}
    half = len(drafts) // 2
    with outcome_unknown_on_failure(StoreRejected) if is_partial else nullcontext():
        refused = await write_drafts(agent, drafts[:half], insert_only=insert_only)
    with outcome_unknown_on_failure(StoreRejected):
        return refused | await write_drafts(agent, drafts[half:], insert_only=insert_only)


async def write_with_followers(
    agent: Agent, drafts: Sequence[MemoryDraft], reader: SessionRows, *, insert_only: bool = False
) -> dict[str, StoreRejected]:
    """As `write_drafts`; then rewrite the keyword texts of later memories that are to include the new ones."""
    if not drafts or not reader.followers or reader.is_rewritten:
        return await write_drafts(agent, drafts, insert_only=insert_only)
    refused, followers = await asyncio.gather(
        write_drafts(agent, drafts, insert_only=insert_only), session_keywords.read_followers(agent, reader)
    )
    if not refused:
        reader.is_rewritten = True
        await session_keywords.rewrite_followers(agent, reader, followers)
    return refused


async def claim_id(agent: Agent, draft: MemoryDraft) -> Payload:
    """Insert a memory under its derived id, or replace a tombstone without successor; return the stored row.

    Several writers may claim an id concurrently: `is_written_by` returns whether this writer succeeded. If the point
    was removed before it was read, return a superseded tombstone, which matches no draft.

    Raises:
        Conflict: If the same request stored the memory before and it was deleted.
        StoreRejected, KeysUnavailable: As in `write_drafts`.
        StoreUnavailable: If nothing was written. Retry.
        OutcomeUnknown: If the memory may have been written.
    """
    memory_id = draft.record.id
    await agent.store.upsert(agent.alias, [draft.point(agent)], insert_only=True, strong=True)
    with outcome_unknown_on_failure():
        row = await _read_stored(agent, memory_id)
        if TOMBSTONE_KEY not in row or row.get("supersededById"):
            return row
        if row.get("requestId") == draft.record.request_id and (conflict := find_request_conflict(row, draft.record)):
            raise conflict
        if row.get(WINDOW_DUE_KEY):
            # First update the keyword texts that include the deleted words. Later they cannot be found, because the new
            # point lacks the marks.
            await session_keywords.update_stale_texts(agent, [memory_id])
            row = await _read_stored(agent, memory_id)
        newer = replace(draft, record=replace(draft.record, rev=row["rev"] + 1))
        unchanged = point_filter(memory_id, equals("rev", row["rev"]), NOT_SUPERSEDED)
        await replace_row(agent, newer.point(agent), unchanged, replaced=row)
        return await _read_stored(agent, memory_id)


def is_written_by(draft: MemoryDraft, row: Mapping[str, Any]) -> bool:
    """Return whether a row was written by this draft's request and is not deleted."""
    return TOMBSTONE_KEY not in row and row.get("requestId") == draft.record.request_id


def with_id(draft: MemoryDraft, memory_id: str) -> MemoryDraft:
    """Return the draft under another id, without a predecessor and not pending."""
    record = draft.record
    if (record.id, record.supersedes_id, record.pending) == (memory_id, None, False):
        return draft
    return replace(draft, record=replace(record, id=memory_id, supersedes_id=None, pending=False))


async def _read_stored(agent: Agent, memory_id: str) -> Payload:
    row = await read_row(agent, memory_id)
    if row is None:
        # The point was removed between two calls, with all data of the user: return a superseded tombstone, which
        # matches no draft.
        return {"id": memory_id, "rev": 0, TOMBSTONE_KEY: 0, "supersededById": memory_id}
    return row
