"""Count what an agent holds: the engine does, in seven requests; how far confidence has faded is reckoned here."""

import asyncio
from collections import defaultdict

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.memories.point_pages import read_memories, read_pages
from agentmemory_operator.memories.rules.filters import Filter
from agentmemory_operator.search.rules.counts import DECAY_KEYS, STATES, State, Statistics, count_decayed, state_filters
from agentmemory_operator.spec.expression.models import Confidence

# Memories or types in one answer of the engine.
PAGE = 1_000
# Beyond so many, how far they have faded is not reckoned: 10 requests, some 100 ms in all.
DECAYED_MAX = 10_000


async def count_memories(agent: Agent, user_id: str | None) -> Statistics:
    """The counts of a user's or a scope's memories; of None the whole agent's."""
    now_ms = agent.clock.now_ms()
    filters = state_filters(user_id, agent.settings.ranking.endings, now_ms)
    active = filters["active"]
    counted = await asyncio.gather(*(_by_type(agent, filters[state]) for state in STATES))
    decayed = await _decayed(agent, active, sum(counted[0].values()), now_ms)
    oldest, newest = await asyncio.gather(*(_edge(agent, active, direction) for direction in ("asc", "desc")))
    return Statistics(types=_by_state(counted), decayed=decayed, oldest=oldest, newest=newest)


async def _decayed(agent: Agent, active: Filter, size: int, now_ms: int) -> int | None:
    """How many memories have faded; a filter cannot reckon it, so they are read, up to so many."""
    if not isinstance(agent.settings.ranking.model, Confidence) or size > DECAYED_MAX:
        return None
    body = {"filter": active, "limit": PAGE, "with_payload": list(DECAY_KEYS), "with_vector": False}
    decayed = 0
    async for points in read_pages(agent, body):
        # What was deleted after it was found has no times any more.
        rows = (point["payload"] for point in points)
        decayed += count_decayed((row for row in rows if "createdAt" in row), agent.settings.ranking, now_ms)
    return decayed


async def _by_type(agent: Agent, filter_: Filter) -> dict[str, int]:
    most = agent.settings.ranking.max_query_limit
    return await agent.store.facet(agent.alias, "type", filter_, limit=PAGE if most is None else min(PAGE, most))


def _by_state(counted: list[dict[str, int]]) -> dict[str, dict[State, int]]:
    types: defaultdict[str, dict[State, int]] = defaultdict(dict)
    for state, counts in zip(STATES, counted, strict=True):
        for name, count in counts.items():
            types[name][state] = count
    return {name: types[name] for name in sorted(types)}


async def _edge(agent: Agent, filter_: Filter, direction: str) -> int | None:
    """The first createdAt in an order."""
    order = {"key": "createdAt", "direction": direction}
    body = {"filter": filter_, "limit": 1, "with_payload": ["createdAt"], "with_vector": False, "order_by": order}
    points, _ = await read_memories(agent, body)
    return points[0]["payload"]["createdAt"] if points else None
