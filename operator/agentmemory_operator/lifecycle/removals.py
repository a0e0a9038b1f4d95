"""Finds what a cleanup has to remove, page by page; `lifecycle/rules/cleanup.py` decides.

What stands for itself is found behind a filter; chains are walked from their heads, a page of them at a time; of a user
over the cap the least valuable are kept in a heap while the user's memories pass by.
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
# Of one user so many are chosen at a time; the user's memories are read once more for the next.
EVICTED_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Going:
    """Rows that go together, oldest first, each with its reason; the last may be a head, which goes last."""

    rows: tuple[tuple[Row, Removal], ...]


@dataclass(slots=True)
class RemovalTally:
    """What was found so far.

    Attributes:
        is_dry: nothing is removed meanwhile.
        gone: ids that the cap does not count any more; in a dry search, where users have a cap, all that was found.
    """

    is_dry: bool = True
    counts: Counter[Removal] = field(default_factory=Counter)
    gone: set[str] = field(default_factory=set)


async def find(agent: Agent, rules: CleanupRules, found: RemovalTally) -> AsyncIterator[Going]:
    """Yield what has to go, where nothing is removed meanwhile."""
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
            is_going = own_reason(chain[-1], rules) and with_chain(chain)
            going = _going(chain, rules, is_dry=found.is_dry)
            if going.rows and not is_going:
                yield going


def _going(chain: Sequence[Row], rules: CleanupRules, *, is_dry: bool) -> Going:
    """What is removed of a chain; in a dry run without the earlier versions that were found on their own."""
    removals = chain_removals(chain, rules)
    head = chain[-1]
    return Going(tuple(each for each in removals if not is_dry or each[0] is head or not own_reason(each[0], rules)))


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
    """Yield the least valuable memories of a user, at most 10,000; a head that a pinned version needs stays."""
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
    """Yield how many memories each user will have left, of what is found to go."""
    counts: Counter[str] = Counter()
    body = {"filter": STORED, "limit": USERS_PAGE, "with_payload": ["userId"], "with_vector": False}
    async for points in read_pages(agent, body):
        there = [point for point in points if "userId" in point["payload"] and point["id"] not in found.gone]
        counts.update(point["payload"]["userId"] for point in there)
    for user_id, count in counts.items():
        yield user_id, count


Phase = Callable[[Agent, CleanupRules, RemovalTally], AsyncIterator[Going]]
PHASES: tuple[Phase, ...] = (
    _earlier_versions,
    _heads,
    _long_chains,
    _over_cap,
)
"""What is found one after the other: each counts on what the one before found being gone."""


async def walk(agent: Agent, heads: Iterable[Row]) -> dict[str, list[Row]]:
    """The chains of some heads by the head's id, each oldest first, what was merged included, without tombstones."""
    chains = {head["id"]: [head] for head in heads}
    links = {head_id: predecessors(chain[0]) for head_id, chain in chains.items()}
    while wanted := sorted({before for several in links.values() for before in several}):
        points = await agent.store.retrieve(agent.alias, wanted, keys=ROW_KEYS)
        rows = {point["id"]: point["payload"] for point in points}
        for head_id, several in links.items():
            found = [rows[before] for before in several if before in rows]
            chains[head_id] += [row for row in found if as_row(row)]
            links[head_id] = tuple(before for row in found for before in predecessors(row))
    return {head_id: chain[::-1] for head_id, chain in chains.items()}


async def pages(agent: Agent, filter_: Filter, *, limit: int) -> AsyncIterator[list[Row]]:
    """Yield the rows behind a filter of memories that are not pending, page by page."""
    body = {"filter": filter_, "limit": limit, "with_payload": list(ROW_KEYS), "with_vector": False}
    async for points in read_pages(agent, body):
        yield [row for point in points if (row := as_row(point["payload"])) and not row.get("pending")]
