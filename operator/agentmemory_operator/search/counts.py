"""Count what an agent holds, and what a search chooses from.

The engine counts, all that an agent holds in seven requests; how far confidence has faded is reckoned here.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import FieldError, RequestInvalid, StoreRejected
from agentmemory_operator.memories.point_pages import read_memories, read_pages
from agentmemory_operator.memories.rules.filters import Filter
from agentmemory_operator.search.rules.counts import DECAY_KEYS, STATES, State, Statistics, count_decayed, state_filters
from agentmemory_operator.spec.expression.models import Confidence

# Memories that a search lists to count them, in ten calls, where the strict mode forbids to count.
LISTED_MAX = 20_000
# Memories or types in one answer of the engine.
PAGE = 1_000
# Beyond so many, how far they have faded is not reckoned: 10 requests, some 100 ms in all.
DECAYED_MAX = 10_000
# Without an index on type they are counted by reading, one state after the other: some seconds.
TYPED_MAX = 100_000
TOO_MANY_TYPED = (
    f"cannot be counted for more than {TYPED_MAX:,} memories without an index: name user_id, or add"
    " {field: type, type: keyword} to spec.index.payloadIndexes"
)


async def count_matching(agent: Agent, filter_: Filter) -> int:
    """How many memories match; of many, where they cannot be counted at once, the engine's estimate."""
    if not agent.allows_exact:
        estimate = await agent.store.count(agent.alias, filter_, exact=False)
        if estimate > LISTED_MAX:
            return estimate
    return await agent.store.count(agent.alias, filter_)


async def count_memories(agent: Agent, user_id: str | None) -> Statistics:
    """The counts of a user's or a scope's memories; of None the whole agent's."""
    now_ms = agent.clock.now_ms()
    filters = state_filters(user_id, agent.settings.ranking.endings, now_ms)
    active = filters["active"]
    counted = await _types(agent, [filters[state] for state in STATES])
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


async def _types(agent: Agent, filters: Sequence[Filter]) -> list[dict[str, int]]:
    """How many memories each type has; the engine counts where it has an index, else they are read.

    Raises:
        RequestInvalid: they are too many to be read.
    """
    if agent.settings.indexes.get("type") == "keyword":
        most = agent.settings.ranking.max_query_limit
        limit = PAGE if most is None else min(PAGE, most)
        with suppress(StoreRejected):
            # Refused while the index is still to be made.
            facets = (agent.store.facet(agent.alias, "type", filter_, limit=limit) for filter_ in filters)
            return list(await asyncio.gather(*facets))
    return [await _listed_types(agent, filter_) for filter_ in filters]


async def _listed_types(agent: Agent, filter_: Filter) -> dict[str, int]:
    too_many = RequestInvalid([FieldError("type", TOO_MANY_TYPED)])
    if agent.allows_exact and await agent.store.count(agent.alias, filter_) > TYPED_MAX:
        raise too_many
    body = {"filter": filter_, "limit": PAGE, "with_payload": ["type"], "with_vector": False}
    counts = Counter[str]()
    async for points in read_pages(agent, body):
        counts.update(point["payload"]["type"] for point in points if "type" in point["payload"])
        if counts.total() > TYPED_MAX:
            raise too_many
    return counts


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
