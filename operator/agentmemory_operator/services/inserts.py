"""Insert points, and the first memory of something, whose id says what it is the first of."""

from collections.abc import Sequence
from dataclasses import replace

from agentmemory_operator.domain.filters import NOT_SUPERSEDED, equals, only
from agentmemory_operator.domain.records import DUE_KEY, TOMBSTONE_KEY, Payload
from agentmemory_operator.errors import StoreRejected
from agentmemory_operator.services.chains import midway
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.drafts import Draft
from agentmemory_operator.services.rows import read_row
from agentmemory_operator.services.stored import other_request
from agentmemory_operator.services.windows import Windows

# What the engine answers because of a point, or of how many there are: fewer of them may pass.
_ABOUT_POINTS = frozenset({400, 413, 422})


async def put(agent: Agent, drafts: Sequence[Draft], *, insert_only: bool = False) -> dict[str, StoreRejected]:
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


async def claim(agent: Agent, draft: Draft, windows: Windows) -> Payload:
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
            await windows.settle(agent, [memory_id])
            row = await _there(agent, memory_id)
        newer = replace(draft, record=replace(draft.record, rev=row["rev"] + 1))
        unchanged = only(memory_id, equals("rev", row["rev"]), NOT_SUPERSEDED)
        await agent.store.upsert(agent.alias, [newer.point(agent)], update_filter=unchanged, strong=True)
        return await _there(agent, memory_id)


def is_of(draft: Draft, row: Payload) -> bool:
    """Tell whether a row is what this write made."""
    return TOMBSTONE_KEY not in row and row.get("requestId") == draft.record.request_id


def with_id(draft: Draft, memory_id: str) -> Draft:
    """Return the draft as a first memory of its own."""
    return replace(draft, record=replace(draft.record, id=memory_id, supersedes_id=None, pending=False))


async def _there(agent: Agent, memory_id: str) -> Payload:
    row = await read_row(agent, memory_id)
    if row is None:
        # Removed between two calls: whoever did that removed all of the user's.
        return {"id": memory_id, "rev": 0, TOMBSTONE_KEY: 0, "supersededById": memory_id}
    return row
