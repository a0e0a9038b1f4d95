"""Store each content once. A repetition by the same author adds nothing, by another author it corroborates the memory.

Equal content means an equal hash, within user, type and zone, among visible memories. Memories stored here get an id
derived from their content, so concurrent first writers store one memory. A content has several ids, numbered from 0
(`content_id`). If the memory under one id was superseded, has expired or was moved to another zone, the next id is
tried.
"""

from collections.abc import Sequence, Set
from itertools import count

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories.chains import MAX_IDENTITY_ATTEMPTS, contention_error, outcome_unknown_on_failure
from agentmemory_operator.memories.draft import MemoryDraft
from agentmemory_operator.memories.insert import (
    Outcome,
    StoredMemory,
    claim_id,
    find_request_conflict,
    is_written_by,
    stored_outcome,
    with_id,
    write_with_followers,
)
from agentmemory_operator.memories.point_pages import change_row, page_limit, read_memories, read_pages, read_row
from agentmemory_operator.memories.rules.expiry import is_expired
from agentmemory_operator.memories.rules.filters import NOT_DELETED, NOT_SUPERSEDED
from agentmemory_operator.memories.rules.ids import content_id
from agentmemory_operator.memories.rules.record import LOGGED_KEY, TOMBSTONE_KEY, Payload, observation_count
from agentmemory_operator.memories.session_rows import SessionRows
from agentmemory_operator.runtime.tasks import gather_bounded

MAX_OBSERVERS = 20
# Maximum number of lookup ids in one search, and of memories on one page of its results.
PAGE = 100
MAX_CONCURRENT_READS = 10


async def store_once(
    agent: Agent, drafts: Sequence[MemoryDraft], reader: SessionRows, stored_ids: Set[str]
) -> dict[int, Outcome]:
    """Store each draft, or find a visible memory with the same content; return the outcomes by `MemoryDraft.position`.

    An outcome is the stored memory, or the error of this draft.

    Args:
        stored_ids: Result of `read_stored_ids`.

    Raises:
        StoreUnavailable: If nothing was written. Retry.
        StoreRejected, KeysUnavailable: As in `write_drafts`.
        OutcomeUnknown: If some drafts may have been written.
    """
    outcomes = await _store_unknown(agent, drafts, reader, stored_ids)
    with outcome_unknown_on_failure():
        for draft in drafts:
            if draft.position not in outcomes:
                outcomes[draft.position] = await _outcome(agent, draft)
    return outcomes


async def corroborate(agent: Agent, row: Payload, author: str | None) -> StoredMemory | None:
    """Add an author to a memory with the same content. At most 20 authors are recorded.

    Returns:
        Event NONE if `author` is None or recorded already, else CORROBORATE, even if the memory has 20 authors and this
        one is not added. None if the memory is no longer visible.

    Raises:
        StoreUnavailable: If other writers changed the memory in every attempt, or Qdrant is unavailable.
        OutcomeUnknown: If the author may have been added.
    """
    current: Payload | None = row
    for _ in range(MAX_IDENTITY_ATTEMPTS):
        if current is None or not is_visible(agent, current):
            return None
        # Without `observedBy`, as in some imported memories, `author` is the only observer.
        observers = current.get("observedBy") or ([current["author"]] if current.get("author") else [])
        if author is None or author in observers:
            return StoredMemory(id=row["id"], event="NONE", is_recorded=False)
        if len(observers) >= MAX_OBSERVERS:
            return StoredMemory(id=row["id"], event="CORROBORATE", is_recorded=False)
        now_ms, authors = agent.clock.now_ms(), [*observers, author]
        changes = {"observedBy": authors, "observationCount": observation_count(authors), LOGGED_KEY: now_ms}
        await change_row(agent, current, changes, NOT_DELETED, NOT_SUPERSEDED, now_ms=now_ms)
        with outcome_unknown_on_failure():
            current = await read_row(agent, row["id"])
        if current and author in current.get("observedBy", []):
            return StoredMemory(id=row["id"], event="CORROBORATE")
    raise contention_error(row["id"])


def is_visible(agent: Agent, row: Payload) -> bool:
    """Return whether a row is visible: a head that is not pending and not expired."""
    if TOMBSTONE_KEY in row or row.get("supersededById") or row.get("pending"):
        return False
    return not is_expired(row, agent.settings.ranking.endings, agent.clock.now_ms())


async def _store_unknown(
    agent: Agent, drafts: Sequence[MemoryDraft], reader: SessionRows, stored_ids: Set[str]
) -> dict[int, Outcome]:
    """In one request, write the drafts of which no lookup id is stored yet, one draft for each content.

    Return the outcomes of the drafts that this request stored, or Qdrant rejected, by position.
    """
    firsts: dict[str, MemoryDraft] = {}
    for draft in drafts:
        if stored_ids.isdisjoint(draft.record.lookup_ids):
            firsts.setdefault(_content_of(draft), draft)
    if not firsts:
        return {}
    new = [with_id(draft, id_) for id_, draft in firsts.items()]
    refused = await write_with_followers(agent, new, reader, insert_only=True)
    places = [draft.place for draft in new if draft.place and draft.record.id not in refused]
    with outcome_unknown_on_failure():
        rows = await reader.read_back(list(firsts), ("requestId", TOMBSTONE_KEY), places)
    outcomes: dict[int, Outcome] = {firsts[id_].position: error for id_, error in refused.items()}
    for id_, draft in firsts.items():
        if id_ in rows and is_written_by(draft, rows[id_]):
            outcomes[draft.position] = stored_outcome(id_)
    return outcomes


async def _outcome(agent: Agent, draft: MemoryDraft) -> Outcome:
    try:
        return await _store_one(agent, draft)
    except AgentMemoryError as error:
        return error


async def _store_one(agent: Agent, draft: MemoryDraft) -> StoredMemory:
    for _ in range(MAX_IDENTITY_ATTEMPTS):
        if stored := await _find(agent, draft):
            return stored
        if memory_id := await _claim(agent, draft):
            return stored_outcome(memory_id)
    raise contention_error(draft.record.id)


async def _find(agent: Agent, draft: MemoryDraft) -> StoredMemory | None:
    """Return the outcome of a memory stored by the same request, or of a visible one with the same content, or None.

    Raise Conflict if the idempotency key was used with another body.
    """
    any_of = {"key": "lookupIds", "match": {"any": list(draft.record.lookup_ids)}}
    body = {"filter": {"must": [any_of, NOT_DELETED]}, "limit": PAGE, "with_payload": True}
    points, _ = await read_memories(agent, body)
    rows = [point["payload"] for point in points]
    for row in rows:
        if draft.record.request_hash and row.get("requestId") == draft.record.request_id:
            if conflict := find_request_conflict(row, draft.record):
                raise conflict
            return stored_outcome(row["id"])
    content = _content_of(draft)
    for row in rows:
        if content in row["lookupIds"] and (corroborated := await corroborate(agent, row, draft.record.author)):
            return corroborated
    return None


async def _claim(agent: Agent, draft: MemoryDraft) -> str | None:
    """Store the draft under the first free id of its content; return the id.

    None if another writer stored the same content first.
    """
    for number in count():
        memory_id = _content_of(draft, number)
        row = await claim_id(agent, with_id(draft, memory_id))
        if is_written_by(draft, row):
            return memory_id
        # Compare the lookup ids too: a memory that was moved to another zone keeps its id, but has other lookup ids.
        if is_visible(agent, row) and _content_of(draft) in row.get("lookupIds", ()):
            return None
    return None


async def read_stored_ids(agent: Agent, drafts: Sequence[MemoryDraft], reader: SessionRows) -> set[str]:
    """Return the lookup ids of all stored memories that share a lookup id with a draft."""
    lookup_ids = sorted({lookup for draft in drafts for lookup in draft.record.lookup_ids})
    parts = [lookup_ids[start : start + PAGE] for start in range(0, len(lookup_ids), PAGE)]
    reads = [_stored_among(agent, part, reader) for part in parts]
    return set().union(*await gather_bounded(reads, concurrency=MAX_CONCURRENT_READS))


async def _stored_among(agent: Agent, lookup_ids: Sequence[str], reader: SessionRows) -> set[str]:
    any_of = {"must": [{"key": "lookupIds", "match": {"any": lookup_ids}}]}
    limit = page_limit(agent, PAGE)
    rows = await reader.find(any_of, limit=limit, keys=("lookupIds",))
    if len(rows) == limit:
        body = {"filter": any_of, "limit": PAGE, "with_payload": ["lookupIds"]}
        rows = [point["payload"] async for points in read_pages(agent, body) for point in points]
    return {lookup for row in rows for lookup in row.get("lookupIds", ())}


def _content_of(draft: MemoryDraft, number: int = 0) -> str:
    record = draft.record
    return content_id(draft.scope, record.user_id, record.type, record.content_hash, index=number)
