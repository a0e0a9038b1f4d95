"""Find the memories that a cleanup removes, page by page. `lifecycle/rules/cleanup.py` decides.

Four phases run in order. Each assumes that the removals of the earlier ones are gone:
1. Earlier versions with a reason of their own, found by a filter.
2. Heads with a reason of their own, found by a filter, together with their chains.
3. Chains that are too long, walked from their heads.
4. Users above the cap: one pass over the user's memories keeps the least valuable in a heap.

Memory is bounded by the page sizes, and per user by `EVICTED_AT_ONCE` plus the user's pinned memories.
"""

import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.lifecycle.rules.cleanup import (
    IS_CHAIN_HEAD,
    IS_PINNED,
    ROW_KEYS,
    CleanupRules,
    Removal,
    Row,
    as_row,
    candidates,
    chain_removals,
    lasting_length,
    own_reason,
    surplus_of,
    value_rank,
    with_chain,
)
from agentmemory_operator.memories.point_pages import read_pages
from agentmemory_operator.memories.rules.filters import STORED, Filter, both, equals
from agentmemory_operator.memories.rules.links import predecessors

PAGE = 500
USERS_PAGE = 5_000
CHAINS_PAGE = 100
# Evictions chosen in one pass over a user's memories; more need another pass.
EVICTED_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Going:
    """Rows to remove together, oldest first, each with its reason. If the last row is a head, it is removed last."""

    rows: tuple[tuple[Row, Removal], ...]


@dataclass(slots=True)
class RemovalTally:
    """Removals found so far.

    Attributes:
        is_dry: True if nothing is removed during the search.
        counts: Removals by reason.
        gone: Ids that no longer count towards the cap. In a dry search with a cap these are all rows found.
    """

    is_dry: bool = True
    counts: Counter[Removal] = field(default_factory=Counter)
    gone: set[str] = field(default_factory=set)


async def find(agent: Agent, rules: CleanupRules, found: RemovalTally) -> AsyncIterator[Going]:
    """Yield all removals, for a caller that removes nothing during the search. Updates `found`."""
    for phase in PHASES:
        async for going in phase(agent, rules, found):
            if rules.lifecycle.max_memories_per_user is not None:
                found.gone.update(row["id"] for row, _ in going.rows)
            found.counts.update(reason for _, reason in going.rows)
            yield going


async def _earlier_versions(agent: Agent, rules: CleanupRules, found: RemovalTally) -> AsyncIterator[Going]:
    async for page in pages(agent, candidates(rules, heads=False), limit=PAGE):
        for row in page:
            if row.get("supersededById") and (reason := own_reason(row, rules)):
                yield Going(((row, reason),))


async def _heads(agent: Agent, rules: CleanupRules, found: RemovalTally) -> AsyncIterator[Going]:
    async for page in pages(agent, candidates(rules, heads=True), limit=PAGE):
        heads = [row for row in page if not row.get("supersededById") and own_reason(row, rules)]
        chains = await walk(agent, heads)
        for chain in chains.values():
            if with_chain(chain) or lasting_length(chain, rules) < len(chain):
                yield _going(chain, rules, is_dry=found.is_dry)


async def _long_chains(agent: Agent, rules: CleanupRules, found: RemovalTally) -> AsyncIterator[Going]:
    if rules.lifecycle.max_chain_length is None:
        return
    async for heads in pages(agent, IS_CHAIN_HEAD, limit=CHAINS_PAGE):
        for chain in (await walk(agent, heads)).values():
            is_removed_whole = own_reason(chain[-1], rules) and with_chain(chain)
            going = _going(chain, rules, is_dry=found.is_dry)
            if going.rows and not is_removed_whole:
                yield going


def _going(chain: Sequence[Row], rules: CleanupRules, *, is_dry: bool) -> Going:
    """Return the removals of a chain. A dry run leaves out earlier versions that the first phase has found."""
    removals = chain_removals(chain, rules)
    head = chain[-1]
    return Going(
        tuple(removal for removal in removals if not is_dry or removal[0] is head or not own_reason(removal[0], rules))
    )


async def _over_cap(agent: Agent, rules: CleanupRules, found: RemovalTally) -> AsyncIterator[Going]:
    if rules.lifecycle.max_memories_per_user is None:
        return
    async for user_id, count in _users(agent, found):
        surplus, evicted = surplus_of(count, rules), EVICTED_AT_ONCE
        while surplus > 0 and evicted == EVICTED_AT_ONCE:
            evicted = 0
            async for going in _least_valuable(agent, rules, found, user_id=user_id, number=surplus):
                found.gone.update(row["id"] for row, _ in going.rows)
                evicted += 1
                yield going
            surplus -= evicted


async def _least_valuable(
    agent: Agent, rules: CleanupRules, found: RemovalTally, *, user_id: str, number: int
) -> AsyncIterator[Going]:
    """Yield the least valuable memories of a user, at most 10,000. A head with a pinned version stays."""
    number = min(number, EVICTED_AT_ONCE)
    of_user = both(STORED, equals("userId", user_id))
    pinned = await agent.store.count(agent.alias, both(of_user, IS_PINNED))
    rows: list[Row] = []
    async for page in pages(agent, of_user, limit=PAGE):
        own = [row for row in page if row["userId"] == user_id]
        evictable = [row for row in own if not row.get("pinned") and row["id"] not in found.gone]
        rows = heapq.nsmallest(number + pinned, [*rows, *evictable], key=lambda row: value_rank(row, rules))
    chains = await walk(agent, [row for row in rows if not row.get("supersededById")] if pinned else [])
    for row in rows:
        if number and with_chain(chains.get(row["id"], (row,))):
            number -= 1
            yield Going(((row, Removal.OVER_CAP),))


async def _users(agent: Agent, found: RemovalTally) -> AsyncIterator[tuple[str, int]]:
    """Yield each user with the number of memories that remain after the removals found so far."""
    counts: Counter[str] = Counter()
    body = {"filter": STORED, "limit": USERS_PAGE, "with_payload": ["userId"], "with_vector": False}
    async for points in read_pages(agent, body):
        counted = [point for point in points if "userId" in point["payload"] and point["id"] not in found.gone]
        counts.update(point["payload"]["userId"] for point in counted)
    for user_id, count in counts.items():
        yield user_id, count


Phase = Callable[[Agent, CleanupRules, RemovalTally], AsyncIterator[Going]]
PHASES: tuple[Phase, ...] = (
    _earlier_versions,
    _heads,
    _long_chains,
    _over_cap,
)
"""Phases in order. Each assumes that the rows found by the earlier ones are removed."""


async def walk(agent: Agent, heads: Iterable[Row]) -> dict[str, list[Row]]:
    """Read the chains of some heads.

    Returns:
        Chains by the id of their head, each oldest first. They include the predecessors of merges, but no tombstones.
    """
    chains = {head["id"]: [head] for head in heads}
    links = {head_id: predecessors(chain[0]) for head_id, chain in chains.items()}
    while missing := sorted({before_id for several in links.values() for before_id in several}):
        points = await agent.store.retrieve(agent.alias, missing, keys=ROW_KEYS)
        rows = {point["id"]: point["payload"] for point in points}
        for head_id, several in links.items():
            found = [rows[before_id] for before_id in several if before_id in rows]
            chains[head_id] += [row for row in found if as_row(row)]
            links[head_id] = tuple(before_id for row in found for before_id in predecessors(row))
    return {head_id: chain[::-1] for head_id, chain in chains.items()}


async def pages(agent: Agent, filter_: Filter, *, limit: int) -> AsyncIterator[list[Row]]:
    """Yield the memories that match a filter, page by page, without tombstones and pending rows.

    Args:
        limit: Rows read per page.
    """
    body = {"filter": filter_, "limit": limit, "with_payload": list(ROW_KEYS), "with_vector": False}
    async for points in read_pages(agent, body):
        yield [row for point in points if (row := as_row(point["payload"])) and not row.get("pending")]
