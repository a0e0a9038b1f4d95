"""Remove tombstones that no copy needs any more, a few at a time: searches wait while the engine writes."""

import asyncio

from agentmemory_operator.domain.collection import is_placeholder
from agentmemory_operator.domain.filters import both
from agentmemory_operator.domain.rebuilding import record_from_json
from agentmemory_operator.domain.tombstones import purgeable
from agentmemory_operator.errors import NotFound
from agentmemory_operator.ports import Json
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.rows import read_pages

PAGE = 500
REST_S = 0.1


async def rebuilt_since_ms(agent: Agent) -> int | None:
    """Return when the first rebuild was begun whose source is still kept, Unix milliseconds; None where none is.

    Each collection says what it was rebuilt from, and so does that one.
    """
    begun_ms: dict[str, int] = {}
    record = record_from_json(await _metadata(agent, agent.alias))
    while record is not None and record.source not in begun_ms:
        metadata = await _metadata(agent, record.source)
        if metadata is None:
            break
        # A rebuild that was taken back leads round in a circle.
        begun_ms[record.source] = record.begun_ms
        record = record_from_json(metadata)
    return min(begun_ms.values(), default=None)


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


async def _metadata(agent: Agent, collection: str) -> Json | None:
    try:
        metadata: Json = (await agent.store.describe(collection))["config"].get("metadata") or {}
    except NotFound:
        return None
    return None if is_placeholder(metadata) else metadata
