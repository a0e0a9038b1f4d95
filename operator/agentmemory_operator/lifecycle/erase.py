"""Erase memories of a user from one collection, leaving no content.

1. Replace the memories by tombstones that contain the id of the erasure, earlier versions before their head. Delete the
   proposals that a consolidation made from them.
2. Complete the chains over these tombstones.
3. Rewrite the keyword texts of the sessions that contained their words.
4. Delete vectors that the tombstones still have.

All state is in Qdrant: an erasure that is killed at any step and repeated has the same result. Each step finds its work
by a filter, page by page, so RAM use is bounded.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from dataclasses import dataclass

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.consolidation.rules.proposals import proposals_filter
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.lifecycle.removals import read_chains
from agentmemory_operator.lifecycle.rules.erasure import (
    PENDING_ERASURES,
    WAS_PENDING_KEY,
    ErasureScope,
    MemoryCounts,
    Row,
    erased_by_filter,
    erasure_tombstone,
    without_links,
)
from agentmemory_operator.memories import chains, session_keywords
from agentmemory_operator.memories.point_pages import read_pages
from agentmemory_operator.memories.rules.filters import Condition, Filter, narrow
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.memories.rules.keywords import IS_DUE
from agentmemory_operator.memories.rules.links import LINK_KEYS, neighbours
from agentmemory_operator.memories.rules.record import (
    ERASURE_KEY,
    ORDER_KEY,
    STORED_KEY,
    TOMBSTONE_KEY,
    WINDOW_DUE_KEY,
    Payload,
)
from agentmemory_operator.memories.tombstone_writes import BATCH, delete_remaining_vectors, tombstone_rows
from agentmemory_operator.ports.base import Clock

PAGE = 500
# Maximum number of rounds. The last one finds nothing. More than two mean that memories were written concurrently.
MAX_ROUNDS = 200
ROUND_PAUSE_S = 0.02
MAX_PREVIEW_IDS = 100
MAX_TIME_MS = 1 << 53

ERASURE_ROW_KEYS = (
    "id",
    "rev",
    "type",
    "pending",
    "identityId",
    *LINK_KEYS,
    ORDER_KEY,
    WINDOW_DUE_KEY,
    STORED_KEY,
    TOMBSTONE_KEY,
    ERASURE_KEY,
)
"""Payload keys that an erasure reads, in addition to `ErasureScope.keys`. None of them contains text."""


FindSpared = Callable[[Sequence[Row]], Awaitable[Set[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """Erasure in one collection.

    Attributes:
        id: Id of the receipt, which each tombstone contains.
        scope: Memories to erase.
        until_ms: Memories stored up to this time are erased, Unix milliseconds.
        at_ms: Time of the original erasure if it is repeated in a copy, Unix milliseconds. None uses the current time.
        includes_newer_at_start: True to erase any memory of the scope in the first round, even with a later `storedAt`:
            the clock of its writer may be ahead.
        find_spared: Returns the ids of rows that are not erased. None erases all rows of the scope.
    """

    id: str
    scope: ErasureScope
    until_ms: int
    at_ms: int | None = None
    includes_newer_at_start: bool = False
    find_spared: FindSpared | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasurePreview:
    """Memories that an erasure would remove.

    Attributes:
        counts: Memories by type.
        ids: Ids of at most 100 of them, sorted.
    """

    counts: MemoryCounts
    ids: tuple[str, ...]

    @property
    def unlisted_count(self) -> int:
        """Number of memories that `ids` does not list."""
        return self.counts.total - len(self.ids)


@dataclass(frozen=True, slots=True)
class _Found:
    """A page of rows to erase.

    Attributes:
        rows: Rows in the scope; with `is_whole` also tombstones of the user.
        earlier: Earlier versions of the heads in `rows` that are not in the scope themselves.
    """

    rows: Sequence[Row]
    earlier: Sequence[Row] = ()

    @property
    def memories(self) -> list[Row]:
        return [row for row in (*self.rows, *self.earlier) if TOMBSTONE_KEY not in row]


class Eraser:
    """Erases memories. Several erasures may run concurrently, even on the same memories.

    Args:
        note_erased: Called with slug and ids after memories were erased, so that caches drop them.
    """

    def __init__(
        self, clock: Clock, note_erased: Callable[[str, Sequence[str]], None] = lambda slug, ids: None
    ) -> None:
        self._clock = clock
        self._note_gone = note_erased

    async def preview(self, agent: Agent, scope: ErasureScope) -> ErasurePreview:
        """Count the memories that an erasure would remove now, and list up to 100 of their ids. Changes nothing."""
        types: Counter[str] = Counter()
        ids: list[str] = []
        async for found in _find(agent, scope, MAX_TIME_MS):
            types.update(str(row.get("type", "")) for row in found.memories)
            ids = sorted([*ids, *(row["id"] for row in found.memories)])[:MAX_PREVIEW_IDS]
        return ErasurePreview(counts=MemoryCounts(types=dict(sorted(types.items()))), ids=tuple(ids))

    async def erase(self, agent: Agent, erasure: Erasure) -> int:
        """Erase until the scope has no memory stored by `until_ms`; return the number of points found, over all rounds.

        Raises:
            StoreUnavailable: If Qdrant is unavailable, or memories are written concurrently in every round.
            OutcomeUnknown: If a write may have been applied. In both cases, repeating the erasure erases the rest.
        """
        count, until_ms = 0, erasure.until_ms
        for number in range(MAX_ROUNDS):
            is_first_round = erasure.includes_newer_at_start and not number
            changed, newest_ms = await self._round(agent, erasure, MAX_TIME_MS if is_first_round else until_ms)
            # Raise the limit to the newest time in the first round, so that a row that changed during that round is
            # found again.
            until_ms = max(until_ms, newest_ms) if is_first_round else until_ms
            count += changed
            if not changed:
                await self.complete_chains(agent, erased_by_filter(erasure.id), lambda _: erasure.scope.is_whole)
                await delete_remaining_vectors(agent, erased_by_filter(erasure.id))
                return count
            await asyncio.sleep(ROUND_PAUSE_S if number else 0)
        raise StoreUnavailable("this user's memories are being written concurrently: retry")

    async def _round(self, agent: Agent, erasure: Erasure, until_ms: int) -> tuple[int, int]:
        """Erase all rows found now; return the number of points, and the newest `storedAt` among them."""
        count = newest_ms = 0
        async for found in _find(agent, erasure.scope, until_ms):
            rows = [*found.earlier, *sorted(found.rows, key=lambda row: not row.get("supersededById"))]
            if erasure.find_spared:
                spared = await erasure.find_spared(rows)
                rows = [row for row in rows if row["id"] not in spared]
            await self.write_tombstones(agent, rows, erasure_id=erasure.id, at_ms=lambda _: erasure.at_ms)
            self._note_gone(agent.settings.slug, [row["id"] for row in rows])
            count += len(rows)
            newest_ms = max([newest_ms, *(row.get(STORED_KEY) or 0 for row in found.rows)])
        return count, newest_ms

    async def write_tombstones(
        self, agent: Agent, rows: Sequence[Row], *, erasure_id: str, at_ms: Callable[[Row], int | None]
    ) -> Set[str]:
        """Replace rows by tombstones of an erasure, in order, and delete the proposals made from them.

        Return the ids of the rows that are tombstones now.

        A row that changed since it was read stays.

        Args:
            at_ms: Returns the time of a row's original erasure in Unix milliseconds, or None for the current time.

        Raises:
            StoreUnavailable: If Qdrant is unavailable, or still has vectors of a tombstone after 5 attempts.
            OutcomeUnknown: If a write may have been applied.
        """
        tombstones = await tombstone_rows(
            agent, rows, lambda row: erasure_tombstone(row, erasure_id, self._clock.now_ms(), at_ms=at_ms(row))
        )
        if rows:
            # Delete proposals made from these rows, because they repeat the content.
            await agent.store.delete(agent.alias, proposals_filter(row["id"] for row in rows))
        return tombstones.keys()

    async def complete_chains(self, agent: Agent, tombstones: Filter, is_whole: Callable[[str], bool]) -> None:
        """Complete the chains over tombstones of erasures, and rewrite keyword texts with words of the erased memories.

        Without keyword vectors, only the chains are completed.

        Args:
            tombstones: Filter for the tombstones.
            is_whole: Returns whether an erasure, given its id, erased a whole user.

        Raises:
            StoreUnavailable: If Qdrant is unavailable, or other writers change the same chains or sessions in every
                round.
            OutcomeUnknown: If a write may have been applied.
        """
        await self._close(agent, narrow(tombstones, *PENDING_ERASURES["must"]), is_whole)
        if agent.keyword is not None:
            await self._settle(agent, narrow(tombstones, IS_DUE))

    async def _close(self, agent: Agent, pending: Filter, is_whole: Callable[[str], bool]) -> None:
        body = {"filter": pending, "limit": BATCH, "with_payload": True, "with_vector": False}
        for _ in range(MAX_ROUNDS):
            count = 0
            async for points in read_pages(agent, body):
                rows = [point["payload"] for point in points]
                count += len(rows)
                unneeded = await _alone(agent, [row for row in rows if is_whole(row[ERASURE_KEY])])
                await tombstone_rows(agent, unneeded, without_links)
                unneeded_ids = {row["id"] for row in unneeded}
                for row in rows:
                    if row["id"] not in unneeded_ids:
                        await chains.complete(agent, row)
            if not count:
                return
        raise StoreUnavailable("chains of erased memories are being changed concurrently: retry")

    async def _settle(self, agent: Agent, filter_: Filter) -> None:
        body = {"filter": filter_, "limit": BATCH, "with_payload": ["id"], "with_vector": False}
        for _ in range(MAX_ROUNDS):
            count = 0
            async for points in read_pages(agent, body):
                count += len(points)
                await session_keywords.update_stale_texts(agent, [point["id"] for point in points])
            if not count:
                return
        raise StoreUnavailable("keyword texts still contain words of erased memories: retry")


async def _find(agent: Agent, scope: ErasureScope, until_ms: int) -> AsyncIterator[_Found]:
    """Yield the rows to erase, page by page, with the earlier versions of each head, so that none becomes visible.

    The filter finds candidates; `ErasureScope.covers` decides.
    """
    async for rows in _covered(agent, scope, until_ms):
        if rows:
            yield _Found(rows) if scope.is_whole else _Found(rows, await _earlier(agent, rows, scope, until_ms))


async def _covered(
    agent: Agent, scope: ErasureScope, until_ms: int, *conditions: Condition
) -> AsyncIterator[list[Row]]:
    filter_ = narrow(scope.filter_at(until_ms, agent.settings.indexes), *conditions)
    keys = list(dict.fromkeys([*ERASURE_ROW_KEYS, *scope.keys]))
    body = {"filter": filter_, "limit": PAGE, "with_payload": keys, "with_vector": False}
    async for points in read_pages(agent, body):
        rows = [point["payload"] | {"id": point["id"]} for point in points]
        yield [row for row in rows if scope.covers(row, until_ms)]


async def read_earlier_versions(agent: Agent, rows: Sequence[Row]) -> dict[str, Row]:
    """Read the earlier versions of the heads among `rows`, by id. Pending rows count as no heads."""
    heads = [
        row for row in rows if row.get("supersedesId") and not row.get("supersededById") and not row.get("pending")
    ]
    chains = await read_chains(agent, heads)
    return {row["id"]: row for chain in chains.values() for row in chain[:-1]}


async def _earlier(agent: Agent, rows: Sequence[Row], scope: ErasureScope, until_ms: int) -> list[Row]:
    """Read the earlier versions of the heads among rows, except those that the scope covers itself."""
    earlier = await read_earlier_versions(agent, rows)
    covered_ids: set[str] = set()
    for ids in chunks_of(sorted(earlier), PAGE):
        async for page in _covered(agent, scope, until_ms, {"has_id": list(ids)}):
            covered_ids.update(row["id"] for row in page)
    return [row for memory_id, row in earlier.items() if memory_id not in covered_ids]


async def _alone(agent: Agent, rows: Sequence[Payload]) -> list[Payload]:
    """Return the tombstones of `rows` with neither a memory as neighbour nor a link from a completed tombstone.

    The links of these tombstones can be dropped. A tombstone marked `WAS_PENDING_KEY` is not returned, because another
    process may still link to it.
    """
    targets = {row["id"]: neighbours(row) for row in rows}
    target_ids = sorted({target for linked in targets.values() for target in linked})
    points = await agent.store.retrieve(agent.alias, target_ids, keys=ERASURE_ROW_KEYS) if target_ids else []
    by_id = {point["id"]: point["payload"] for point in points}

    def is_alone(row: Payload) -> bool:
        linked_rows = (by_id[target] for target in targets[row["id"]] if target in by_id)
        return not row.get(WAS_PENDING_KEY) and not any(_holds(linked_row, row["id"]) for linked_row in linked_rows)

    return [row for row in rows if is_alone(row)]


def _holds(row: Row, memory_id: str) -> bool:
    """Return whether a neighbour is a memory, or a completed tombstone that still links to `memory_id`."""
    return TOMBSTONE_KEY not in row or (not row.get("pending") and memory_id in neighbours(row))
