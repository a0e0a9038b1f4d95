"""Count the memories of an agent and the memories that a search may return.

With an index on type, Qdrant counts the memories of an agent in seven requests: one for each of the five states,
and two for the oldest and the newest memory. The scoring model Confidence lowers the confidence of a memory while it is
not used. With this model and at most 10,000 active memories, this process also counts those with faded confidence.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import FieldError, RequestInvalid, StoreRejected
from agentmemory_operator.memories.point_pages import read_memories, read_pages
from agentmemory_operator.memories.rules.filters import Filter, narrow
from agentmemory_operator.runtime.tasks import gather_bounded
from agentmemory_operator.search.rules.memory_states import (
    DAY_MS,
    DECAY_KEYS,
    STATES,
    Period,
    State,
    Statistics,
    count_decayed,
    split_days,
    state_filters,
)
from agentmemory_operator.spec.expression.scoring_parameters import Confidence

# Maximum number of memories to count exactly if the strict mode forbids exact counts. Listing them takes ten calls.
MAX_LISTED = 20_000
# Memories or types per response of Qdrant.
PAGE = 1_000
# Maximum number of active memories to read for counting faded ones. They take 10 requests, about 100 ms in total.
MAX_DECAY_READS = 10_000
# Maximum number of memories of one state to read for counting their types. They take some seconds.
MAX_TYPE_READS = 100_000
MAX_CONCURRENT_PERIODS = 4
TOO_MANY_UNINDEXED = (
    f"cannot be counted for more than {MAX_TYPE_READS:,} memories without an index, or of 1,000 types: name user_id, or"
    " add {field: type, type: keyword} to spec.index.payloadIndexes"
)


async def count_matching(agent: Agent, filter_: Filter) -> int:
    """Return the number of matching memories.

    If the strict mode forbids exact counts and Qdrant estimates more than 20,000, return that estimate.
    """
    if not agent.allows_exact:
        estimate = await agent.store.count(agent.alias, filter_, exact=False)
        if estimate > MAX_LISTED:
            return estimate
    return await agent.store.count(agent.alias, filter_)


async def count_memories(agent: Agent, user_id: str | None) -> Statistics:
    """Count the memories of a user or scope; None counts those of the whole agent.

    Raises:
        RequestInvalid: If memories must be read to count their types, and one state has over 100,000 of them. They are
            read if there is no index on type, or a state has 1,000 types (or as many as the query limit, if lower).
        StoreUnavailable: If Qdrant is unavailable, or memories were deleted during each of 10 reads.
    """
    now_ms = agent.clock.now_ms()
    filters = state_filters(user_id, agent.settings.ranking.endings, now_ms)
    active = filters["active"]
    counts_by_state = await _types(agent, [filters[state] for state in STATES])
    decayed = await _decayed(agent, active, sum(counts_by_state[0].values()), now_ms)
    oldest, newest = await asyncio.gather(*(_edge(agent, active, direction) for direction in ("asc", "desc")))
    return Statistics(types=_by_state(counts_by_state), decayed=decayed, oldest=oldest, newest=newest)


async def count_periods(agent: Agent, user_id: str | None, found: Statistics, max_periods: int) -> list[Period]:
    """Count the active memories of a user or scope (None: of the agent) by day of creation, oldest first.

    Args:
        found: The user's statistics.
        max_periods: Maximum number of periods, each of whole days, and all equally long.
    """
    if found.oldest is None or found.newest is None:
        return []
    active = state_filters(user_id, agent.settings.ranking.endings, agent.clock.now_ms())["active"]
    starts, days = split_days(found.oldest, found.newest, max_periods)

    async def count(start_ms: int) -> Period:
        created = {"key": "createdAt", "range": {"gte": start_ms, "lt": start_ms + days * DAY_MS}}
        return Period(start_ms, days, await count_matching(agent, narrow(active, created)))

    return await gather_bounded(map(count, starts), concurrency=MAX_CONCURRENT_PERIODS)


async def _decayed(agent: Agent, active: Filter, size: int, now_ms: int) -> int | None:
    """Count memories with faded confidence by reading them, because a filter cannot compute it.

    None if the scoring model is not Confidence, or more than 10,000 memories are active.
    """
    if not isinstance(agent.settings.ranking.model, Confidence) or size > MAX_DECAY_READS:
        return None
    body = {"filter": active, "limit": PAGE, "with_payload": list(DECAY_KEYS), "with_vector": False}
    decayed = 0
    async for points in read_pages(agent, body):
        # Skip tombstones, which have no times: Qdrant reads payloads after it matches, and so returns memories that
        # were deleted in between.
        rows = (point["payload"] for point in points)
        decayed += count_decayed((row for row in rows if "createdAt" in row), agent.settings.ranking, now_ms)
    return decayed


async def _types(agent: Agent, filters: Sequence[Filter]) -> list[dict[str, int]]:
    """Count the memories per type for each filter. Read them if there is no index on type, or there are 1,000 types.

    Raises:
        RequestInvalid: If more than 100,000 memories that match one filter would have to be read.
    """
    if agent.settings.indexes.get("type") == "keyword":
        max_limit = agent.settings.ranking.max_query_limit
        limit = PAGE if max_limit is None else min(PAGE, max_limit)
        with suppress(StoreRejected):
            # The collection may lack the index that the object declares. Then Qdrant rejects the facet.
            facets = (agent.store.facet(agent.alias, "type", filter_, limit=limit) for filter_ in filters)
            counts = list(await asyncio.gather(*facets))
            # A facet of as many types as its limit may lack others.
            if all(len(types) < limit for types in counts):
                return counts
    return [await _count_types_by_reading(agent, filter_) for filter_ in filters]


async def _count_types_by_reading(agent: Agent, filter_: Filter) -> dict[str, int]:
    too_many = RequestInvalid([FieldError("type", TOO_MANY_UNINDEXED)])
    if agent.allows_exact and await agent.store.count(agent.alias, filter_) > MAX_TYPE_READS:
        raise too_many
    body = {"filter": filter_, "limit": PAGE, "with_payload": ["type"], "with_vector": False}
    counts = Counter[str]()
    async for points in read_pages(agent, body):
        counts.update(point["payload"]["type"] for point in points if "type" in point["payload"])
        if counts.total() > MAX_TYPE_READS:
            raise too_many
    return counts


def _by_state(counts_by_state: list[dict[str, int]]) -> dict[str, dict[State, int]]:
    types: defaultdict[str, dict[State, int]] = defaultdict(dict)
    for state, counts in zip(STATES, counts_by_state, strict=True):
        for name, count in counts.items():
            types[name][state] = count
    return {name: types[name] for name in sorted(types)}


async def _edge(agent: Agent, filter_: Filter, direction: str) -> int | None:
    """Return the smallest (asc) or largest (desc) createdAt of the matching memories; None if there are none."""
    order = {"key": "createdAt", "direction": direction}
    body = {"filter": filter_, "limit": 1, "with_payload": ["createdAt"], "with_vector": False, "order_by": order}
    points, _ = await read_memories(agent, body)
    return points[0]["payload"]["createdAt"] if points else None
