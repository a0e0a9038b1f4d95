"""Store a memory that takes the place of several: all of them are superseded by it, or none."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.memories import chains, session_keywords
from agentmemory_operator.memories.chains import midway
from agentmemory_operator.memories.draft import MemoryDraft
from agentmemory_operator.memories.point_pages import read_row
from agentmemory_operator.memories.rules.links import links_to
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, Payload


async def merge(agent: Agent, draft: MemoryDraft, replaced: Sequence[str], marks: Mapping[str, Any]) -> Payload | None:
    """Store a draft as the successor of several memories; the same draft again finishes what was begun.

    Args:
        draft: under an id that is the same in every attempt.
        replaced: memories of its user that have no identity; none lets it stand by itself.
        marks: what its point bears beside.

    Returns:
        What lies there; None where one of `replaced` was superseded or deleted meanwhile, and the others answer as
        before, or where it was stored before and deleted since.

    Raises:
        OutcomeUnknown: it may have been stored.
    """
    # In one order, so that of two that merge the same one gets all.
    links = links_to(sorted(replaced))
    record = replace(
        draft.record,
        supersedes_id=links["supersedesId"],
        supersedes_ids=tuple(links["supersedesIds"] or ()),
        pending=bool(replaced),
    )
    point = replace(draft, record=record).point(agent)
    point["payload"] |= marks
    await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
    with midway():
        row = await read_row(agent, record.id)
        if row is None or TOMBSTONE_KEY in row:
            return None
        is_joined = not row.get("pending") or await chains.join(agent, row)
        await session_keywords.settle(agent, [record.id, *replaced])
        return await read_row(agent, record.id) if is_joined else None
