"""Remove tombstones that no copy needs any more, a few at a time: searches wait while the engine writes."""

import asyncio

from agentmemory_operator.domain.filters import both
from agentmemory_operator.domain.tombstones import purgeable
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.rows import read_pages

PAGE = 500
REST_S = 0.1


async def purge_tombstones(agent: Agent, before_ms: int, *, rest_s: float = REST_S) -> int:
    """Remove the tombstones from before a time that nothing leads to; return how many were found.

    One over which something is written meanwhile stays: the removal asks once more whether it is a tombstone.
    """
    filter_, count = purgeable(before_ms), 0
    body = {"filter": filter_, "limit": PAGE, "with_payload": False, "with_vector": False}
    async for points in read_pages(agent, body):
        if points:
            await agent.store.delete(agent.alias, both(filter_, {"has_id": [point["id"] for point in points]}))
            await asyncio.sleep(rest_s)
        count += len(points)
    return count
