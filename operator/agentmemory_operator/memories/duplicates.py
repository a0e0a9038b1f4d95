"""Keep one memory of what is said again: by the same author it is known, by another it is corroborated.

What is the same is told by the content's hash, within user and type, among memories that answer. The first of a content
has an id made of it, so that two first writers end in one. Where the first was superseded since, the content's next
place is taken: an id for each time that it was said anew.
"""

from collections.abc import Sequence
from itertools import count

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories.chains import MAX_TURNS, contended, midway
from agentmemory_operator.memories.draft import MemoryDraft
from agentmemory_operator.memories.insert import (
    Outcome,
    StoredMemory,
    claim,
    is_of,
    other_request,
    put,
    stored_of,
    with_id,
)
from agentmemory_operator.memories.point_pages import change_row, read_memories, read_pages, read_row
from agentmemory_operator.memories.rules.expiry import is_expired
from agentmemory_operator.memories.rules.filters import NOT_DELETED, NOT_SUPERSEDED
from agentmemory_operator.memories.rules.ids import content_id
from agentmemory_operator.memories.rules.record import LOGGED_KEY, TOMBSTONE_KEY, Payload, count_of

OBSERVERS_MAX = 20
# Contents looked up in one request.
PAGE = 100


async def store(agent: Agent, drafts: Sequence[MemoryDraft]) -> dict[int, Outcome]:
    """Store each draft or find what says the same; return the outcome by the draft's place.

    Raises:
        StoreUnavailable: nothing was written.
        OutcomeUnknown: some may have been written.
    """
    outcomes = await _store_unknown(agent, drafts) if len(drafts) > 1 else {}
    with midway():
        for draft in drafts:
            if draft.place not in outcomes:
                outcomes[draft.place] = await _outcome(agent, draft)
    return outcomes


async def corroborate(agent: Agent, row: Payload, author: str | None) -> StoredMemory | None:
    """Note that an author says what a memory says already; None where it does not answer any more."""
    now: Payload | None = row
    for _ in range(MAX_TURNS):
        if now is None or not answers(agent, now):
            return None
        # An imported memory may name its author alone.
        observers = now.get("observedBy") or ([now["author"]] if now.get("author") else [])
        if author is None or author in observers:
            return StoredMemory(id=row["id"], event="NONE", recorded=False)
        if len(observers) >= OBSERVERS_MAX:
            return StoredMemory(id=row["id"], event="CORROBORATE", recorded=False)
        now_ms, seen = agent.clock.now_ms(), [*observers, author]
        said = {"observedBy": seen, "observationCount": count_of(seen), LOGGED_KEY: now_ms}
        await change_row(agent, now, said, NOT_DELETED, NOT_SUPERSEDED, now_ms=now_ms)
        with midway():
            now = await read_row(agent, row["id"])
        if now and author in now.get("observedBy", []):
            return StoredMemory(id=row["id"], event="CORROBORATE")
    raise contended(row["id"])


def answers(agent: Agent, row: Payload) -> bool:
    """Whether a memory is the newest version of itself and not past its time."""
    if TOMBSTONE_KEY in row or row.get("supersededById") or row.get("pending"):
        return False
    return not is_expired(row, agent.settings.ranking.endings, agent.clock.now_ms())


async def _store_unknown(agent: Agent, drafts: Sequence[MemoryDraft]) -> dict[int, Outcome]:
    """Store together what nothing stored is like; what is left may be known by now."""
    known = await _known(agent, drafts)
    firsts: dict[str, MemoryDraft] = {}
    for draft in drafts:
        if known.isdisjoint(draft.record.lookup_ids):
            firsts.setdefault(_content_of(draft), draft)
    refused = await put(agent, [with_id(draft, id_) for id_, draft in firsts.items()], insert_only=True)
    with midway():
        points = await agent.store.retrieve(agent.alias, list(firsts), keys=("requestId", TOMBSTONE_KEY))
    rows = {point["id"]: point["payload"] for point in points}
    outcomes: dict[int, Outcome] = {firsts[id_].place: error for id_, error in refused.items()}
    for id_, draft in firsts.items():
        if id_ in rows and is_of(draft, rows[id_]):
            outcomes[draft.place] = stored_of(id_)
    return outcomes


async def _outcome(agent: Agent, draft: MemoryDraft) -> Outcome:
    try:
        return await _store_one(agent, draft)
    except AgentMemoryError as error:
        return error


async def _store_one(agent: Agent, draft: MemoryDraft) -> StoredMemory:
    for _ in range(MAX_TURNS):
        if done := await _find(agent, draft):
            return done
        if memory_id := await _claim(agent, draft):
            return stored_of(memory_id)
    raise contended(draft.record.id)


async def _find(agent: Agent, draft: MemoryDraft) -> StoredMemory | None:
    """What became of the same request before, or of the same content."""
    any_of = {"key": "lookupIds", "match": {"any": list(draft.record.lookup_ids)}}
    body = {"filter": {"must": [any_of, NOT_DELETED]}, "limit": PAGE, "with_payload": True}
    points, _ = await read_memories(agent, body)
    rows = [point["payload"] for point in points]
    for row in rows:
        if draft.record.request_hash and row.get("requestId") == draft.record.request_id:
            if conflict := other_request(row, draft.record):
                raise conflict
            return stored_of(row["id"])
    content = _content_of(draft)
    for row in rows:
        if content in row["lookupIds"] and (done := await corroborate(agent, row, draft.record.author)):
            return done
    return None


async def _claim(agent: Agent, draft: MemoryDraft) -> str | None:
    """Take the content's first free place; None where another took it, who says the same."""
    for place in count():
        memory_id = _content_of(draft, place)
        row = await claim(agent, with_id(draft, memory_id))
        if is_of(draft, row):
            return memory_id
        # What moved to another zone keeps the place, and is another's content there.
        if answers(agent, row) and _content_of(draft) in row.get("lookupIds", ()):
            return None
    return None


async def _known(agent: Agent, drafts: Sequence[MemoryDraft]) -> set[str]:
    """What is stored of the contents and keys of drafts, as lookup ids."""
    wanted = sorted({lookup for draft in drafts for lookup in draft.record.lookup_ids})
    known: set[str] = set()
    for start in range(0, len(wanted), PAGE):
        any_of = {"key": "lookupIds", "match": {"any": wanted[start : start + PAGE]}}
        body = {"filter": {"must": [any_of]}, "limit": PAGE, "with_payload": ["lookupIds"]}
        async for points in read_pages(agent, body):
            known.update(lookup for point in points for lookup in point["payload"].get("lookupIds", ()))
    return known


def _content_of(draft: MemoryDraft, place: int = 0) -> str:
    record = draft.record
    return content_id(draft.scope, record.user_id, record.type, record.content_hash, place=place)
