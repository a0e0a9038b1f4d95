"""The memories around each result in its session, read in one request of the engine."""

from collections.abc import Mapping, Sequence

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.memories.point_pages import read_whole
from agentmemory_operator.memories.rules.filters import Selection, both, visible
from agentmemory_operator.memories.rules.record import ORDER_KEY, SHOWN, MemoryRecord, record_of
from agentmemory_operator.ports.base import Json

MOST_RESULTS = 100
"""Results that may have neighbours: each asks for two lists."""

Neighbours = Mapping[str, tuple[MemoryRecord, ...]]
"""Of each result, by id, those around it in its session, in order and without itself."""


async def read_neighbours(agent: Agent, points: Sequence[Json], count: int, *, now_ms: int) -> Neighbours:
    """The neighbours of results, as they answer now; of what has no place in a session there are none.

    Args:
        points: the results.
        count: how many before each, and how many after it.
    """
    placed = [point["payload"] for point in points if ORDER_KEY in point["payload"]]
    if not placed:
        return {}
    bodies = [body for row in placed for body in _lists(agent, row, count, now_ms)]
    found = await read_whole(
        lambda: agent.store.query_batch(agent.alias, bodies),
        lambda lists: [point for list_ in lists for point in list_],
    )
    read = [[record_of(point["payload"]) for point in points] for points in found]
    return {
        row["id"]: (*reversed(before), *after) for row, before, after in zip(placed, read[::2], read[1::2], strict=True)
    }


def _lists(agent: Agent, row: Json, count: int, now_ms: int) -> list[Json]:
    """The queries for those before a memory, the nearest first, and for those after it."""
    session = Selection(user_id=row["userId"], scopes=(), session_id=row["sessionId"])
    answering = visible(session, now_ms, agent.settings.ranking.endings)
    return [
        {
            "filter": both(answering, {"key": ORDER_KEY, "range": {bound: row[ORDER_KEY]}}),
            "query": {"order_by": {"key": ORDER_KEY, "direction": direction}},
            "limit": count,
            "with_payload": SHOWN,
        }
        for bound, direction in (("lt", "desc"), ("gt", "asc"))
    ]
