"""Find the memories that a cleanup removes, page by page. `lifecycle/rules/cleanup_rules.py` decides.

Four phases run in order. Each assumes that the rows found by the earlier ones have been removed:
1. Earlier versions with a reason of their own, found by a filter.
2. Heads with a reason of their own, found by a filter, together with their chains.
3. Chains that are too long, walked from their heads.
4. Users above the cap: one pass over the user's memories keeps the least valuable in a heap.

RAM use is bounded by the page sizes, and per user by `MAX_EVICTED_PER_PASS` plus the user's pinned memories. A cap adds
a counter for each user and the ids in `RemovalTally.removed_ids`.
"""

import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.lifecycle.rules.cleanup_rules import (
    IS_CHAIN_HEAD,
    IS_PINNED,
    ROW_KEYS,
    CleanupRules,
    RemovalReason,
    Row,
    as_row,
    candidate_filter,
    chain_removals,
    lasting_length,
    own_reason,
    removable_chain,
    surplus_of,
    value_rank,
)
from agentmemory_operator.memories.point_pages import read_pages
from agentmemory_operator.memories.rules.filters import STORED_FILTER, Filter, equals, narrow
from agentmemory_operator.memories.rules.links import predecessors

PAGE = 500
USERS_PAGE = 5_000
CHAINS_PAGE = 100
# Maximum number of evictions in one pass over a user's memories. More need another pass.
MAX_EVICTED_PER_PASS = 10_000


@dataclass(frozen=True, slots=True)
class RemovalBatch:
    """Rows to remove together, oldest first, each with its reason. If the last row is a head, it is removed last."""

    rows: tuple[tuple[Row, RemovalReason], ...]


@dataclass(slots=True)
class RemovalTally:
    """Removals found so far.

    Attributes:
        is_dry: True if nothing is removed during the search.
        counts: Removals by reason; only `find_removals` counts them.
        removed_ids: Ids that no longer count towards the cap. In a dry search with a cap these are all rows found.
    """

    is_dry: bool = True
    counts: Counter[RemovalReason] = field(default_factory=Counter)
    removed_ids: set[str] = field(default_factory=set)


async def find_removals(agent: Agent, rules: CleanupRules, tally: RemovalTally) -> AsyncIterator[RemovalBatch]:
    """Yield all removals, for a caller that removes nothing during the search. Updates `tally`."""
    for phase in PHASES:
        async for batch in phase(agent, rules, tally):
            if rules.lifecycle.max_memories_per_user is not None:
                tally.removed_ids.update(row["id"] for row, _ in batch.rows)
            tally.counts.update(reason for _, reason in batch.rows)
            yield batch


async def _earlier_versions(agent: Agent, rules: CleanupRules, tally: RemovalTally) -> AsyncIterator[RemovalBatch]:
    async for page in read_row_pages(agent, candidate_filter(rules, heads=False), limit=PAGE):
        for row in page:
            if row.get("supersededById") and (reason := own_reason(row, rules)):
                yield RemovalBatch(((row, reason),))


async def _heads(agent: Agent, rules: CleanupRules, tally: RemovalTally) -> AsyncIterator[RemovalBatch]:
    async for page in read_row_pages(agent, candidate_filter(rules, heads=True), limit=PAGE):
        heads = [row for row in page if not row.get("supersededById") and own_reason(row, rules)]
        chains = await read_chains(agent, heads)
        for chain in chains.values():
            if removable_chain(chain) or lasting_length(chain, rules) < len(chain):
                yield _going(chain, rules, is_dry=tally.is_dry)


async def _long_chains(agent: Agent, rules: CleanupRules, tally: RemovalTally) -> AsyncIterator[RemovalBatch]:
    if rules.lifecycle.max_chain_length is None:
        return
    async for heads in read_row_pages(agent, IS_CHAIN_HEAD, limit=CHAINS_PAGE):
        for chain in (await read_chains(agent, heads)).values():
            is_removed_whole = own_reason(chain[-1], rules) and removable_chain(chain)
            batch = _going(chain, rules, is_dry=tally.is_dry)
            if batch.rows and not is_removed_whole:
                yield batch


def _going(chain: Sequence[Row], rules: CleanupRules, *, is_dry: bool) -> RemovalBatch:
    """Return the removals of a chain. A dry run leaves out earlier versions that the first phase has found."""
    removals = chain_removals(chain, rules)
    head = chain[-1]
    return RemovalBatch(
        tuple(removal for removal in removals if not is_dry or removal[0] is head or not own_reason(removal[0], rules))
    )


async def _over_cap(agent: Agent, rules: CleanupRules, tally: RemovalTally) -> AsyncIterator[RemovalBatch]:
    if rules.lifecycle.max_memories_per_user is None:
        return
    async for user_id, count in _users(agent, tally):
        surplus, evicted = surplus_of(count, rules), MAX_EVICTED_PER_PASS
        while surplus > 0 and evicted == MAX_EVICTED_PER_PASS:
            evicted = 0
            async for batch in _least_valuable(agent, rules, tally, user_id=user_id, number=surplus):
                tally.removed_ids.update(row["id"] for row, _ in batch.rows)
                evicted += 1
                yield batch
            surplus -= evicted


async def _least_valuable(
    agent: Agent, rules: CleanupRules, tally: RemovalTally, *, user_id: str, number: int
) -> AsyncIterator[RemovalBatch]:
    """Yield the `number` least valuable memories of a user, but at most 10,000. A head with a pinned version stays."""
    number = min(number, MAX_EVICTED_PER_PASS)
    of_user = narrow(STORED_FILTER, equals("userId", user_id))
    pinned = await agent.store.count(agent.alias, narrow(of_user, IS_PINNED))
    rows: list[Row] = []
    async for page in read_row_pages(agent, of_user, limit=PAGE):
        user_rows = [row for row in page if row["userId"] == user_id]
        evictable = [row for row in user_rows if not row.get("pinned") and row["id"] not in tally.removed_ids]
        rows = heapq.nsmallest(number + pinned, [*rows, *evictable], key=lambda row: value_rank(row, rules))
    chains = await read_chains(agent, [row for row in rows if not row.get("supersededById")] if pinned else [])
    for row in rows:
        if number and removable_chain(chains.get(row["id"], (row,))):
            number -= 1
            yield RemovalBatch(((row, RemovalReason.OVER_CAP),))


async def _users(agent: Agent, tally: RemovalTally) -> AsyncIterator[tuple[str, int]]:
    """Yield each user with the number of memories that remain after the removals found so far."""
    counts: Counter[str] = Counter()
    body = {"filter": STORED_FILTER, "limit": USERS_PAGE, "with_payload": ["userId"], "with_vector": False}
    async for points in read_pages(agent, body):
        present = [point for point in points if "userId" in point["payload"] and point["id"] not in tally.removed_ids]
        counts.update(point["payload"]["userId"] for point in present)
    for user_id, count in counts.items():
        yield user_id, count


Phase = Callable[[Agent, CleanupRules, RemovalTally], AsyncIterator[RemovalBatch]]
PHASES: tuple[Phase, ...] = (_earlier_versions, _heads, _long_chains, _over_cap)
"""Phases in order. Each assumes that the rows found by the earlier ones are removed."""


async def read_chains(agent: Agent, heads: Iterable[Row]) -> dict[str, list[Row]]:
    """Read the chains of some heads.

    Returns:
        Chains by the id of their head, each oldest first. They include the predecessors of merges, but no tombstones.
    """
    chains = {head["id"]: [head] for head in heads}
    links = {head_id: predecessors(chain[0]) for head_id, chain in chains.items()}
    while missing := sorted({before_id for ids in links.values() for before_id in ids}):
        points = await agent.store.retrieve(agent.alias, missing, keys=ROW_KEYS)
        rows = {point["id"]: point["payload"] for point in points}
        for head_id, ids in links.items():
            earlier = [rows[before_id] for before_id in ids if before_id in rows]
            chains[head_id] += [row for row in earlier if as_row(row)]
            links[head_id] = tuple(before_id for row in earlier for before_id in predecessors(row))
    return {head_id: chain[::-1] for head_id, chain in chains.items()}


async def read_row_pages(agent: Agent, filter_: Filter, *, limit: int) -> AsyncIterator[list[Row]]:
    """Yield the memories that match a filter, page by page, without tombstones and pending rows.

    Args:
        limit: Rows read per page.
    """
    body = {"filter": filter_, "limit": limit, "with_payload": list(ROW_KEYS), "with_vector": False}
    async for points in read_pages(agent, body):
        yield [row for point in points if (row := as_row(point["payload"])) and not row.get("pending")]
