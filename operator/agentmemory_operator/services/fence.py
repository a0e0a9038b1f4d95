"""Keeps what one process reads and writes on the right side of a move of an agent's alias to another collection.

The operator announces a move in the metadata of the collection that the alias leads to, waits longer than a lease, says
that it is final, carries over what was written last, and moves the alias (`domain/rebuilding.py`). Nothing tells an API
process of that. So it reads the metadata itself, and relies on a reading for no longer than a lease from when that
began. What ended within the lease of a reading without any announcement ended before the move was final: nothing else
is asked. Whatever else ended is followed by another reading:

| the reading after it says | a search | a write |
|---|---|---|
| the same collection, no move or an announced one | counts | counts |
| the same collection, the move is final | counts | counts once it is seen to be carried over, else OutcomeUnknown |
| another collection | CollectionMoved | may lie in either: OutcomeUnknown |

A write also asks before it is sent: while the move is final it waits, and where the collection is another one nothing
is written. `CollectionMoved` leaves a store only as long as nothing was written through it, so that whoever opened the
agent may open it again and begin anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from agentmemory_operator.domain.rebuilding import LEASE_S, Phase
from agentmemory_operator.errors import (
    AgentMemoryError,
    CollectionMoved,
    OutcomeUnknown,
    StoreRejected,
    StoreUnavailable,
)
from agentmemory_operator.ports import Json, PointStore
from agentmemory_operator.services.collection_facts import Facts, Space
from agentmemory_operator.services.leadership import monotonic_s

T = TypeVar("T")
_Look = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds, and the clock that they are told by.

    Attributes:
        lease_s: for how long a reading is relied on; it is renewed beside requests after half of that.
        hold_s: for how long a write waits for a move that is final.
        poll_s: between two looks meanwhile.
        now_s: a clock that goes on while the machine sleeps.
    """

    lease_s: float = LEASE_S
    hold_s: float = 5.0
    poll_s: float = 0.03
    now_s: Callable[[], float] = monotonic_s


TIMES = Times()


class Fence:
    """What is known of the collection behind one agent's alias.

    Args:
        read: reads what it says of itself.
    """

    def __init__(self, slug: str, read: Callable[[], Awaitable[Facts]], times: Times) -> None:
        self.slug = slug
        self.times = times
        self.facts: Facts | None = None
        self._read_facts = read
        self._begun_s = self._relied_on_until_s = float("-inf")
        # Readings are numbered as they begin; one runs at a time.
        self._begun = self._ended = 0
        self._reading: asyncio.Task[None] | None = None
        self._told: Facts | AgentMemoryError

    def vouches_for(self, space: Space) -> bool:
        """Tell whether what has ended now ended in this space, before any move was final."""
        if self.times.now_s() > self._relied_on_until_s or self.facts is None:
            return False
        return self.facts.space == space

    def read_ahead(self) -> None:
        """Read anew in the background where that will soon be needed."""
        if self._reading is None and self.times.now_s() - self._begun_s >= self.times.lease_s / 2:
            self._begin()

    async def read(self) -> Facts:
        """Return what the collection says now: the reading begins no earlier than the call. Calls share readings.

        Raises:
            StoreUnavailable: it cannot be read, or is not to be used now.
        """
        wanted = self._begun + 1
        while self._ended < wanted:
            await asyncio.shield(self._reading or self._begin())
        if isinstance(self._told, AgentMemoryError):
            raise self._told
        return self._told

    def _begin(self) -> asyncio.Task[None]:
        self._reading = asyncio.create_task(self._read())
        return self._reading

    async def _read(self) -> None:
        """Read once; an error is for those who wait, if anybody does."""
        self._begun += 1
        begun_s = self.times.now_s()
        try:
            self._told = self.facts = facts = await self._read_facts()
        except AgentMemoryError as error:
            self._told = error
        else:
            self._begun_s = begun_s
            self._relied_on_until_s = begun_s + self.times.lease_s if facts.phase is None else float("-inf")
        finally:
            self._ended, self._reading = self._begun, None


class FencedStore:
    """Implements ports.PointStore for one use of an agent.

    Args:
        space: what the agent was opened for.
    """

    def __init__(self, store: PointStore, fence: Fence, space: Space) -> None:
        self._store = store
        self._fence = fence
        self._space = space
        self._has_written = False

    async def close(self) -> None:
        """Close the connections, which others use too."""
        await self._store.close()

    async def describe(self, collection: str) -> Json:
        """Return `result` of `GET /collections/{collection}`."""
        return await self._store.describe(collection)

    async def query(self, collection: str, body: Json) -> list[Json]:
        """Return the scored points of `POST /points/query`, best first."""
        return await self._found(self._store.query(collection, body))

    async def query_batch(self, collection: str, bodies: Sequence[Json]) -> list[list[Json]]:
        """Return the scored points of each query of `POST /points/query/batch`, in order."""
        return await self._found(self._store.query_batch(collection, bodies))

    async def retrieve(self, collection: str, ids: Sequence[str], *, keys: Sequence[str] | None = None) -> list[Json]:
        """Return the existing points among `ids` with payload (of it only `keys`), without vector, in any order."""
        return await self._store.retrieve(collection, ids, keys=keys)

    async def scroll(self, collection: str, body: Json) -> tuple[list[Json], Any]:
        """Return points of `POST /points/scroll` and the next page's offset, None at the end."""
        scrolled = self._store.scroll(collection, body)
        # Only a vector means something else in another collection.
        return await self._found(scrolled) if body.get("with_vector") else await scrolled

    async def count(self, collection: str, filter_: Json | None, *, exact: bool = True) -> int:
        """Return how many points match."""
        return await self._store.count(collection, filter_, exact=exact)

    async def facet(self, collection: str, key: str, filter_: Json, *, limit: int) -> dict[str, int]:
        """Return how many matching points have each value."""
        return await self._store.facet(collection, key, filter_, limit=limit)

    async def upsert(
        self,
        collection: str,
        points: Sequence[Json],
        *,
        insert_only: bool = False,
        update_filter: Json | None = None,
        inserts: bool = False,
        strong: bool = False,
    ) -> None:
        """Write points durably."""
        await self._write(
            lambda: self._store.upsert(
                *(collection, points),
                insert_only=insert_only,
                update_filter=update_filter,
                inserts=inserts,
                strong=strong,
            ),
            are_carried=partial(self._are_carried, collection, points),
        )

    async def set_payload(self, collection: str, payload: Json, filter_: Json, *, strong: bool = False) -> None:
        """Merge `payload` into every point that matches, durably; atomic per point."""
        await self._write(lambda: self._store.set_payload(collection, payload, filter_, strong=strong))

    async def batch(
        self, collection: str, operations: Sequence[Json], *, wait: bool = True, strong: bool = False
    ) -> None:
        """Run operations of `POST /points/batch` in order; not atomic."""
        await self._write(
            lambda: self._store.batch(collection, operations, wait=wait, strong=strong), is_whole=len(operations) == 1
        )

    async def delete(self, collection: str, filter_: Json) -> None:
        """Delete every point that matches, durably."""
        await self._write(lambda: self._store.delete(collection, filter_))

    async def _found(self, search: Awaitable[T]) -> T:
        """Return what was found, if it was found in the collection that the question was made for."""
        try:
            found = await search
        except StoreRejected as error:
            await self._blame_move(error)
            raise
        if not self._fence.vouches_for(self._space):
            self._check_space(await self._fence.read())
        return found

    async def _write(
        self, send: Callable[[], Awaitable[None]], *, is_whole: bool = True, are_carried: _Look | None = None
    ) -> None:
        """Write, if the collection is still the one that was meant, and make sure that it still was afterwards.

        Args:
            is_whole: nothing was written of what the engine refuses.
            are_carried: looks whether what was written was carried over, where that can be told.
        """
        if not self._fence.vouches_for(self._space):
            await self._wait_for_move()
        try:
            await send()
        except StoreRejected as error:
            self._has_written = self._has_written or not is_whole
            await self._blame_move(error)
            raise
        except OutcomeUnknown:
            self._has_written = True
            raise
        self._has_written = True
        if not self._fence.vouches_for(self._space):
            await self._confirm(are_carried)

    async def _wait_for_move(self) -> None:
        """Pass once writes may be sent.

        Raises:
            CollectionMoved: it has moved.
            StoreUnavailable: the move takes too long.
        """
        facts = await self._settled(await self._fence.read())
        if self._is_held(facts):
            raise StoreUnavailable(
                f"the collection of agent {self._fence.slug!r} is about to be replaced: nothing was written; try again",
                retry_after_s=1,
            )
        self._check_space(facts)

    async def _confirm(self, are_carried: _Look | None) -> None:
        """Pass where what was written is in the collection that the alias leads to, or will be carried there."""
        try:
            facts = await self._fence.read()
            if self._is_held(facts):
                # The write ended before the alias moved: it is in the collection that is carried over.
                facts = await self._settled(facts)
                if facts.space != self._space and are_carried is not None and await are_carried():
                    return
        except AgentMemoryError as error:
            message = f"this was written, and what agent {self._fence.slug!r} is stored in cannot be read: {error}"
            raise OutcomeUnknown(message) from error
        if facts.space != self._space or self._is_held(facts):
            raise OutcomeUnknown(
                f"the collection of agent {self._fence.slug!r} was replaced while this was written: read before"
                " repeating",
                retry_after_s=1,
            )

    def _is_held(self, facts: Facts) -> bool:
        return facts.space == self._space and facts.phase is Phase.FINAL

    async def _settled(self, facts: Facts) -> Facts:
        """Return what the collection says once the move has ended, one way or the other, or takes too long."""
        times = self._fence.times
        until_s = times.now_s() + times.hold_s
        while self._is_held(facts) and times.now_s() < until_s:
            await asyncio.sleep(times.poll_s)
            facts = await self._fence.read()
        return facts

    async def _are_carried(self, collection: str, points: Sequence[Json]) -> bool:
        """Tell whether points come to lie behind the alias as they were written, or as others changed them since."""
        times, wanted = self._fence.times, {point["id"]: point["payload"].get("rev", 0) for point in points}
        until_s = times.now_s() + times.hold_s
        while True:
            there = await self._store.retrieve(collection, list(wanted), keys=("rev",))
            revs = {point["id"]: point["payload"].get("rev", 0) for point in there}
            if all(revs.get(id_, -1) >= rev for id_, rev in wanted.items()):
                return True
            if times.now_s() >= until_s:
                return False
            await asyncio.sleep(times.poll_s)

    async def _blame_move(self, error: StoreRejected) -> None:
        """Raise CollectionMoved where the engine refused because the collection is another one."""
        try:
            facts = await self._fence.read()
        except AgentMemoryError:
            raise error from None
        self._check_space(facts)

    def _check_space(self, facts: Facts) -> None:
        if facts.space == self._space:
            return
        what = f"the collection of agent {self._fence.slug!r} was replaced"
        if self._has_written:
            raise OutcomeUnknown(f"{what} midway: read before repeating", retry_after_s=1)
        raise CollectionMoved(f"{what} meanwhile: nothing was written; try again", retry_after_s=1)


async def again_if_moved(work: Callable[[], Awaitable[T]]) -> T:
    """Do something with an agent that it opens itself, and once more where the collection was replaced meanwhile."""
    try:
        return await work()
    except CollectionMoved:
        return await work()
