"""Insert points, and the first memory of something, whose id says what it is the first of.

What became of each memory that was to be stored, and of a request that comes again, is an `Outcome`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError, Conflict, StoreRejected
from agentmemory_operator.memories import session_keywords
from agentmemory_operator.memories.chains import midway
from agentmemory_operator.memories.draft import MemoryDraft
from agentmemory_operator.memories.point_pages import read_row, replace_row
from agentmemory_operator.memories.rules.filters import NOT_SUPERSEDED, equals, only
from agentmemory_operator.memories.rules.record import DUE_KEY, TOMBSTONE_KEY, MemoryRecord, Payload

# What the engine answers because of a point, or of how many there are: fewer of them may pass.
_ABOUT_POINTS = frozenset({400, 413, 422})

Event = Literal["ADD", "SUPERSEDE", "CORROBORATE", "NONE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMemory:
    """A memory that is durable now.

    Attributes:
        event: NONE: it was there already, or another item of the same request says the same. CORROBORATE: it was there
            already, and another author says so too.
        recorded: false where an event left nothing new behind.
        update_count: how many versions came before it.
    """

    id: str
    event: Event
    supersedes: str | None = None
    recorded: bool = True
    update_count: int = 0
    warnings: tuple[str, ...] = ()


Outcome = StoredMemory | AgentMemoryError


def stored_of(memory_id: str, supersedes: str | None = None, *, update_count: int = 0) -> StoredMemory:
    """That a memory of its own was stored."""
    event: Event = "SUPERSEDE" if supersedes else "ADD"
    return StoredMemory(id=memory_id, event=event, supersedes=supersedes, update_count=update_count)


def repeated(outcome: Outcome) -> Outcome:
    """The outcome of an item that says what another said."""
    return replace(outcome, event="NONE", recorded=False) if isinstance(outcome, StoredMemory) else outcome


def other_request(row: Payload | None, record: MemoryRecord) -> Conflict | None:
    """Why a record is not the one that was stored under its key."""
    if row is None or record.request_hash is None:
        return None
    if TOMBSTONE_KEY in row:
        return Conflict(
            "Idempotency-Key: the memory stored under this key was deleted or rejected; send a new key to store it"
        )
    if row.get("requestHash") != record.request_hash:
        return Conflict("Idempotency-Key: already used with another body; send a new key")
    return None


async def put(agent: Agent, drafts: Sequence[MemoryDraft], *, insert_only: bool = False) -> dict[str, StoreRejected]:
    """Write drafts in one request; where the engine refuses some, without them. Return those by id."""
    if not drafts:
        return {}
    points = [draft.point(agent) for draft in drafts]
    try:
        await agent.store.upsert(agent.alias, points, insert_only=insert_only, strong=insert_only)
    except StoreRejected as error:
        if error.status not in _ABOUT_POINTS:
            raise
        if len(drafts) == 1:
            return {drafts[0].record.id: error}
    else:
        return {}
    half = len(drafts) // 2
    refused = await put(agent, drafts[:half], insert_only=insert_only)
    with midway():
        return refused | await put(agent, drafts[half:], insert_only=insert_only)


async def claim(agent: Agent, draft: MemoryDraft) -> Payload:
    """Write a first memory where nothing lies under its id, or only a tombstone; return what lies there then.

    Several writers claim one id: `is_of` tells whose memory it is.

    Raises:
        Conflict: the same request stored it before, and it was deleted.
    """
    memory_id = draft.record.id
    await agent.store.upsert(agent.alias, [draft.point(agent)], insert_only=True, strong=True)
    with midway():
        row = await _there(agent, memory_id)
        if TOMBSTONE_KEY not in row or row.get("supersededById"):
            return row
        if row.get("requestId") == draft.record.request_id and (conflict := other_request(row, draft.record)):
            raise conflict
        if row.get(DUE_KEY):
            # The texts that hold the words of what was deleted would not be known from those of the new one.
            await session_keywords.settle(agent, [memory_id])
            row = await _there(agent, memory_id)
        newer = replace(draft, record=replace(draft.record, rev=row["rev"] + 1))
        unchanged = only(memory_id, equals("rev", row["rev"]), NOT_SUPERSEDED)
        await replace_row(agent, newer.point(agent), unchanged, replaced=row)
        return await _there(agent, memory_id)


def is_of(draft: MemoryDraft, row: Payload) -> bool:
    """Whether a row is what this write made."""
    return TOMBSTONE_KEY not in row and row.get("requestId") == draft.record.request_id


def with_id(draft: MemoryDraft, memory_id: str) -> MemoryDraft:
    """The draft as a first memory of its own."""
    return replace(draft, record=replace(draft.record, id=memory_id, supersedes_id=None, pending=False))


async def _there(agent: Agent, memory_id: str) -> Payload:
    row = await read_row(agent, memory_id)
    if row is None:
        # Removed between two calls: whoever did that removed all of the user's.
        return {"id": memory_id, "rev": 0, TOMBSTONE_KEY: 0, "supersededById": memory_id}
    return row
