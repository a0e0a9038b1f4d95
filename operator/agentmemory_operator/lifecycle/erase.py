"""Erase memories of a user from one collection, so that nothing of them is left there.

Everything that it knows lies in the engine: killed at any step and run again, it ends the same. First memories become
tombstones that name the erasure, earlier versions before the head that replaced them; then chains are closed over those
tombstones, and the keyword texts that held words of them are written anew. Each step finds what it has to do behind a
filter, page by page: memory is bounded, whatever the number of memories.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from dataclasses import dataclass

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.consolidation.rules.proposals import proposed_of
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.lifecycle.removals import walk
from agentmemory_operator.lifecycle.rules.erasure import (
    JOINING_KEY,
    UNFINISHED,
    Counts,
    Row,
    Scope,
    bare,
    erased,
    erased_by,
)
from agentmemory_operator.memories import chains, session_keywords
from agentmemory_operator.memories.point_pages import read_pages
from agentmemory_operator.memories.rules.filters import Condition, Filter, both
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.memories.rules.keywords import IS_DUE
from agentmemory_operator.memories.rules.links import LINK_KEYS, neighbours
from agentmemory_operator.memories.rules.record import (
    DUE_KEY,
    ERASURE_KEY,
    ORDER_KEY,
    STORED_KEY,
    TOMBSTONE_KEY,
    Payload,
)
from agentmemory_operator.memories.tombstone_writes import BATCH, bury, empty_all
from agentmemory_operator.ports.base import Clock

PAGE = 500
# Each round but the first means that somebody wrote meanwhile.
MAX_ROUNDS = 200
ROUND_S = 0.02
SHOWN = 100
ANY_TIME = 1 << 53

KEYS = (
    "id",
    "rev",
    "type",
    "pending",
    "identityId",
    *LINK_KEYS,
    ORDER_KEY,
    DUE_KEY,
    STORED_KEY,
    TOMBSTONE_KEY,
    ERASURE_KEY,
)
"""What of a payload an erasure reads, beside `Scope.keys`; no text."""


Spares = Callable[[Sequence[Row]], Awaitable[Set[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """One erasure in one collection.

    Attributes:
        id: of its receipt; its tombstones bear it.
        until_ms: what was stored until then is erased, Unix milliseconds.
        at_ms: when, Unix milliseconds, where it is made again; None is now.
        takes_what_it_sees: what bears a later time is erased too if it is there at the beginning: it was stored by a
            process whose clock is ahead.
        spares: returns the ids of those memories that stay all the same.
    """

    id: str
    scope: Scope
    until_ms: int
    at_ms: int | None = None
    takes_what_it_sees: bool = False
    spares: Spares | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasurePreview:
    """What an erasure would take.

    Attributes:
        ids: of at most 100 of them, sorted.
    """

    counts: Counts
    ids: tuple[str, ...]

    @property
    def more(self) -> int:
        """How many are not named."""
        return self.counts.total - len(self.ids)


@dataclass(frozen=True, slots=True)
class _Found:
    """A page of what is to be erased.

    Attributes:
        rows: what the scope names; tombstones of the user too, where all is to go.
        earlier: earlier versions of the heads among them, which the scope does not name.
    """

    rows: Sequence[Row]
    earlier: Sequence[Row] = ()

    @property
    def memories(self) -> list[Row]:
        """Those that are no tombstones yet."""
        return [row for row in (*self.rows, *self.earlier) if TOMBSTONE_KEY not in row]


class Erasing:
    """Erases; several may run at once, on the same memories too.

    Args:
        note_gone: told of an agent's memories that are no more.
    """

    def __init__(
        self,
        clock: Clock,
        note_gone: Callable[[str, Sequence[str]], None] = lambda slug, ids: None,
    ) -> None:
        self._clock = clock
        self._note_gone = note_gone

    async def would_erase(self, agent: Agent, scope: Scope) -> ErasurePreview:
        """What an erasure would take now; nothing is changed."""
        types: Counter[str] = Counter()
        ids: list[str] = []
        async for found in _find(agent, scope, ANY_TIME):
            types.update(str(row.get("type", "")) for row in found.memories)
            ids = sorted([*ids, *(row["id"] for row in found.memories)])[:SHOWN]
        return ErasurePreview(counts=Counts(types=dict(sorted(types.items()))), ids=tuple(ids))

    async def erase(self, agent: Agent, erasure: Erasure) -> int:
        """Erase until nothing of the scope is left that was stored in time; return how many points were changed.

        Raises:
            StoreUnavailable, OutcomeUnknown: some may have been erased; the same again erases the rest.
        """
        count, until_ms = 0, erasure.until_ms
        for number in range(MAX_ROUNDS):
            is_first_look = erasure.takes_what_it_sees and not number
            changed, newest_ms = await self._round(agent, erasure, ANY_TIME if is_first_look else until_ms)
            # What changed since it was seen is met again: it bears no later time than then.
            until_ms = max(until_ms, newest_ms) if is_first_look else until_ms
            count += changed
            if not changed:
                await self.finish(agent, erased_by(erasure.id), lambda _: erasure.scope.is_whole)
                await empty_all(agent, erased_by(erasure.id))
                return count
            await asyncio.sleep(ROUND_S if number else 0)
        raise StoreUnavailable("this user's memories are being written concurrently: retry")

    async def _round(self, agent: Agent, erasure: Erasure, until_ms: int) -> tuple[int, int]:
        """Erase what is found; return how many points were changed, and when the newest of them was stored."""
        count = newest_ms = 0
        async for found in _find(agent, erasure.scope, until_ms):
            rows = [*found.earlier, *sorted(found.rows, key=lambda row: not row.get("supersededById"))]
            if erasure.spares:
                spared = await erasure.spares(rows)
                rows = [row for row in rows if row["id"] not in spared]
            await self.bury(agent, rows, erasure_id=erasure.id, at_ms=lambda _: erasure.at_ms)
            self._note_gone(agent.settings.slug, [row["id"] for row in rows])
            count += len(rows)
            newest_ms = max([newest_ms, *(row.get(STORED_KEY) or 0 for row in found.rows)])
        return count, newest_ms

    async def bury(
        self, agent: Agent, rows: Sequence[Row], *, erasure_id: str, at_ms: Callable[[Row], int | None]
    ) -> None:
        """Turn rows into tombstones of an erasure, in order, each unless it changed since it was read.

        Args:
            at_ms: when a row was erased, Unix milliseconds; None is now.
        """
        await bury(agent, rows, lambda row: erased(row, erasure_id, self._clock.now_ms(), at_ms=at_ms(row)))
        if rows:
            # What waits for an approval says what they said.
            await agent.store.delete(agent.alias, proposed_of(row["id"] for row in rows))

    async def finish(self, agent: Agent, tombstones: Filter, is_whole: Callable[[str], bool]) -> None:
        """Close the chains over tombstones of erasures, and take their words out of the texts of others.

        Args:
            is_whole: tells whether the erasure of an id erased a user.

        Raises:
            StoreUnavailable: others change the same chains or sessions all the time.
        """
        await self._close(agent, both(tombstones, *UNFINISHED["must"]), is_whole)
        if agent.keyword is not None:
            await self._settle(agent, both(tombstones, IS_DUE))

    async def _close(self, agent: Agent, pending: Filter, is_whole: Callable[[str], bool]) -> None:
        body = {"filter": pending, "limit": BATCH, "with_payload": True, "with_vector": False}
        for _ in range(MAX_ROUNDS):
            count = 0
            async for points in read_pages(agent, body):
                rows = [point["payload"] for point in points]
                count += len(rows)
                alone = await _alone(agent, [row for row in rows if is_whole(row[ERASURE_KEY])])
                await bury(agent, alone, bare)
                done = {row["id"] for row in alone}
                for row in rows:
                    if row["id"] not in done:
                        await chains.complete(agent, row)
            if not count:
                return
        raise StoreUnavailable("chains of erased memories are being changed concurrently: retry")

    async def _settle(self, agent: Agent, due: Filter) -> None:
        body = {"filter": due, "limit": BATCH, "with_payload": ["id"], "with_vector": False}
        for _ in range(MAX_ROUNDS):
            count = 0
            async for points in read_pages(agent, body):
                count += len(points)
                await session_keywords.settle(agent, [point["id"] for point in points])
            if not count:
                return
        raise StoreUnavailable("keyword texts still contain words of erased memories: retry")


async def _find(agent: Agent, scope: Scope, until_ms: int) -> AsyncIterator[_Found]:
    """Yield what is to be erased; where a head goes, its earlier versions go with it: none may answer again.

    The engine finds candidates; `Scope.covers` decides.
    """
    async for rows in _covered(agent, scope, until_ms):
        if rows:
            yield _Found(rows) if scope.is_whole else _Found(rows, await _earlier(agent, rows, scope, until_ms))


async def _covered(agent: Agent, scope: Scope, until_ms: int, *conditions: Condition) -> AsyncIterator[list[Row]]:
    filter_ = both(scope.filter_at(until_ms, agent.settings.indexes), *conditions)
    keys = list(dict.fromkeys([*KEYS, *scope.keys]))
    body = {"filter": filter_, "limit": PAGE, "with_payload": keys, "with_vector": False}
    async for points in read_pages(agent, body):
        rows = [point["payload"] | {"id": point["id"]} for point in points]
        yield [row for row in rows if scope.covers(row, until_ms)]


async def earlier_versions(agent: Agent, rows: Sequence[Row]) -> dict[str, Row]:
    """The earlier versions of the heads among rows, by id."""
    heads = [
        row for row in rows if row.get("supersedesId") and not row.get("supersededById") and not row.get("pending")
    ]
    walked = await walk(agent, heads)
    return {row["id"]: row for chain in walked.values() for row in chain[:-1]}


async def _earlier(agent: Agent, rows: Sequence[Row], scope: Scope, until_ms: int) -> list[Row]:
    """The earlier versions of the heads among rows, without those that the scope covers itself."""
    earlier = await earlier_versions(agent, rows)
    named: set[str] = set()
    for ids in chunks_of(sorted(earlier), PAGE):
        async for found in _covered(agent, scope, until_ms, {"has_id": list(ids)}):
            named.update(row["id"] for row in found)
    return [row for memory_id, row in earlier.items() if memory_id not in named]


async def _alone(agent: Agent, rows: Sequence[Payload]) -> list[Payload]:
    """The tombstones whose links lead to no living memory, so that nothing outside the erasure needs them.

    What was erased while it was joined to its chain is none of them, nor what another erasure's tombstone links to.
    """
    targets = {row["id"]: neighbours(row) for row in rows}
    wanted = sorted({target for linked in targets.values() for target in linked})
    points = await agent.store.retrieve(agent.alias, wanted, keys=KEYS) if wanted else []
    near = {point["id"]: point["payload"] for point in points}

    def is_alone(row: Payload) -> bool:
        around = (near[target] for target in targets[row["id"]] if target in near)
        return not row.get(JOINING_KEY) and not any(_holds(other, row["id"]) for other in around)

    return [row for row in rows if is_alone(row)]


def _holds(other: Row, memory_id: str) -> bool:
    """Whether a neighbour lives, or is a tombstone that goes on linking to a memory."""
    return TOMBSTONE_KEY not in other or (not other.get("pending") and memory_id in neighbours(other))
