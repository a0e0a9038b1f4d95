"""Keep one head per identity: a new memory supersedes the current one, whichever author wrote it.

An identity consists of user, type, and key or subject (`types[].supersedeBy`).
1. If nothing is stored under it, the new memory is inserted under an id derived from the identity, then read back. So
   concurrent first writers find each other.
2. Otherwise the new memory follows the head (`memories/chains.py`). Of two concurrent writers, the second follows the
   first. If the agent deduplicates, a memory with the content of the head corroborates it instead.

Writers of one process take a lock per identity, because they would otherwise mostly force each other to retry.
"""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from weakref import WeakValueDictionary

from agentmemory_operator.agents.checks import find_type
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError, Conflict
from agentmemory_operator.memories import chains, duplicates
from agentmemory_operator.memories.chains import MAX_IDENTITY_ATTEMPTS, contention_error, outcome_unknown_on_failure
from agentmemory_operator.memories.draft import MemoryDraft
from agentmemory_operator.memories.hierarchy import check_hierarchy
from agentmemory_operator.memories.insert import (
    Outcome,
    StoredMemory,
    claim_id,
    find_request_conflict,
    is_written_by,
    stored_outcome,
    with_id,
)
from agentmemory_operator.memories.point_pages import read_row
from agentmemory_operator.memories.predecessors import check_predecessor, check_zone, next_update_count
from agentmemory_operator.memories.rules.filters import equals
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, UPDATES_KEY, Payload
from agentmemory_operator.runtime.tasks import gather_bounded

# Identities of one batch that are written concurrently.
MAX_CONCURRENT_IDENTITIES = 8


class Identities:
    """Writer of memories that have an identity. Every method may run on several replicas concurrently."""

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def store(self, agent: Agent, drafts: Sequence[MemoryDraft]) -> dict[int, Outcome]:
        """Store the drafts, those of one identity in order; return the outcomes by `MemoryDraft.position`.

        An outcome is the stored memory, or the AgentMemoryError of this draft.
        """
        by_identity: dict[str, list[MemoryDraft]] = {}
        for draft in drafts:
            by_identity.setdefault(_identity(draft), []).append(draft)
        outcomes: dict[int, Outcome] = {}

        async def store_in_order(group: Sequence[MemoryDraft]) -> None:
            for draft in group:
                outcomes[draft.position] = await self._outcome(agent, draft)

        await gather_bounded(map(store_in_order, by_identity.values()), concurrency=MAX_CONCURRENT_IDENTITIES)
        return outcomes

    async def _outcome(self, agent: Agent, draft: MemoryDraft) -> Outcome:
        lock = self._turns.setdefault(_identity(draft), asyncio.Lock())
        try:
            async with lock:
                return await self._store_one(agent, draft)
        except AgentMemoryError as error:
            return error

    async def _store_one(self, agent: Agent, draft: MemoryDraft) -> StoredMemory:
        if draft.record.supersedes_id and await self._same_request(agent, draft) is None:
            draft = await _continued(agent, draft, draft.record.supersedes_id)
            await check_predecessor(agent, draft.record)
        for attempt in range(MAX_IDENTITY_ATTEMPTS):
            with outcome_unknown_on_failure() if attempt else nullcontext():
                if stored := await self._try(agent, draft):
                    return stored
        raise contention_error(draft.record.id)

    async def _try(self, agent: Agent, draft: MemoryDraft) -> StoredMemory | None:
        """Store a draft as the first version or after the current head; return None if another writer was faster."""
        head = await chains.find_head(agent, _identity(draft))
        # Look for the request after the head was read, to find it if another process stored it as a head.
        if row := await self._same_request(agent, draft):
            return await self._found(agent, row, draft)
        if head is None:
            return await self._begin(agent, draft)
        is_same = agent.settings.deduplicate and head.get("contentHash") == draft.record.content_hash
        if is_same and (corroborated := await duplicates.corroborate(agent, head, draft.record.author)):
            return corroborated
        return await self._follow(agent, draft, head)

    async def _begin(self, agent: Agent, draft: MemoryDraft) -> StoredMemory | None:
        row = await claim_id(agent, with_id(draft, _identity(draft)))
        if is_written_by(draft, row):
            return stored_outcome(row["id"])
        if row.get("supersededById"):
            with outcome_unknown_on_failure():
                await chains.repair_root(agent, row["id"])
        return None

    async def _follow(self, agent: Agent, draft: MemoryDraft, head: Payload) -> StoredMemory | None:
        """Write a draft as the successor of the head, or of the version that superseded it in the meantime.

        Raise RequestInvalid as `check_hierarchy` does. Raise Conflict if the new memory has a lower zone than the head,
        if its idempotency key was used with another body, or if it was deleted or removed in the meantime.
        """
        check_zone(head, draft.record)
        count = next_update_count(head)
        record = replace(draft.record, supersedes_id=head["id"], update_count=count, pending=True)
        await check_hierarchy(agent, record)
        point = replace(draft, record=record).point(agent)
        await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
        with outcome_unknown_on_failure():
            row = await read_row(agent, record.id)
            if row and (conflict := find_request_conflict(row, record)):
                raise conflict
            if row is None:
                raise Conflict(f"memory {record.id} was removed while it was being stored")
            return await self._found(agent, row, draft)

    async def _same_request(self, agent: Agent, draft: MemoryDraft) -> Payload | None:
        """Return the row that the same request stored before; None if there is none, or no idempotency key.

        Raise Conflict if the key was used with another body, or the row was deleted.
        """
        record = draft.record
        if record.request_hash is None or record.request_id is None:
            return None
        same_request = {"should": [{"has_id": [record.id]}, equals("lookupIds", record.request_id)]}
        body = {"filter": {"must": [same_request]}, "limit": 1, "with_payload": True}
        points, _ = await agent.store.scroll(agent.alias, body)
        row: Payload | None = points[0]["payload"] if points else None
        if conflict := find_request_conflict(row, record):
            raise conflict
        return row

    async def _found(self, agent: Agent, row: Payload, draft: MemoryDraft) -> StoredMemory:
        """Complete a stored row if it is pending, and return its outcome."""
        if row.get("pending"):
            await chains.complete(agent, row)
            row = await read_row(agent, row["id"]) or row
        older_id = row.get("supersedesId")
        # Report no predecessor if it is the tombstone at the root: then the new memory superseded no memory.
        is_alive = older_id and (older_id != _identity(draft) or await self._is_alive(agent, older_id))
        return stored_outcome(row["id"], older_id if is_alive else None, update_count=row.get(UPDATES_KEY) or 0)

    async def _is_alive(self, agent: Agent, memory_id: str) -> bool:
        row = await read_row(agent, memory_id)
        return row is not None and TOMBSTONE_KEY not in row


async def _continued(agent: Agent, draft: MemoryDraft, predecessor_id: str) -> MemoryDraft:
    """Return the draft with the identity id of its predecessor, if both have the same user, type and key or subject.

    All versions share one identity id, which was derived in the zone of the first version. The id of the draft differs
    if it has another zone. Any other draft is returned unchanged.
    """
    record, row = draft.record, await read_row(agent, predecessor_id) or {}
    kind = find_type(agent, record.type)
    if kind is None or kind.supersede_by is None or "identityId" not in row:
        return draft
    stored_identity = row.get("userId"), row.get("type"), row.get(kind.supersede_by)
    if stored_identity != (record.user_id, record.type, getattr(record, kind.supersede_by)):
        return draft
    identity: str = row["identityId"]
    lookups = tuple(identity if lookup == record.identity_id else lookup for lookup in record.lookup_ids)
    return replace(draft, record=replace(record, identity_id=identity, lookup_ids=lookups))


def _identity(draft: MemoryDraft) -> str:
    assert draft.record.identity_id is not None
    return draft.record.identity_id
