"""One use of an agent's points, of which only that counts which is on the right side of a move of the alias.

What ended within the lease of a reading without any announcement (`agents/fence.py`) counts. Whatever else ended is
followed by another reading:

| the reading after it says | a search | another look | a write |
|---|---|---|---|
| the same collection, no move or an announced one | counts | counts | counts |
| the same collection, the move is final | counts | counts | counts once it is seen to be carried over |
| another collection with the same contents, carried over | CollectionMoved | counts | may lie in either |
| another collection with other contents, of a snapshot | CollectionMoved | CollectionMoved | may lie in either |

A write that does not count is OutcomeUnknown, and so is whatever comes after a write: that a memory was not found in
other contents is no reason to say that somebody else was faster. Within the lease of a reading that announces no other
contents, a look counts without another reading.

A write also asks before it is sent: while the move is final it waits, and where the collection is another one nothing
is written. `CollectionMoved` leaves a store only as long as nothing was written through it, so that whoever opened the
agent may open it again and begin anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from agentmemory_operator.agents.collection_facts import Facts, Space
from agentmemory_operator.agents.fence import Fence
from agentmemory_operator.collections.rules.announcement import Phase
from agentmemory_operator.errors import (
    AgentClosed,
    AgentMemoryError,
    CollectionMoved,
    OutcomeUnknown,
    StoreRejected,
    StoreUnavailable,
)
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.points import ForwardingPoints, PointCall, PointStore

T = TypeVar("T")

WRITES = frozenset({"upsert", "set_payload", "batch", "delete"})
"""Methods of which it is known how much was written when one fails."""


class FencedStore(ForwardingPoints):
    """Implements ports.PointStore for one use of an agent.

    Args:
        facts: what the agent was opened for.
        clock: gives a write the time at which it is sent.
        write_s: how long a write may take from its beginning to its end.
    """

    def __init__(self, store: PointStore, fence: Fence, facts: Facts, *, clock: Clock, write_s: float) -> None:
        self._store = store
        self._clock = clock
        self._write_s = write_s
        self._fence = fence
        self._space: Space = facts.space
        self._contents = facts.contents
        self._allows_exact = facts.allows_exact
        self._has_written = False

    async def close(self) -> None:
        """Close the connections, which others use too."""
        await self._store.close()

    async def read(self, call: PointCall[T]) -> T:
        """Make a call, of which only that counts which was read where it was meant to be.

        Raises:
            NotImplementedError: it is not known what the result depends on.
        """
        match call.name:
            case "describe":
                return await call.on(self._store)
            case "query" | "query_batch":
                return await self._found(call)
            case "scroll":
                # What is found depends on what vectors mean, which is something else in another collection.
                return await (self._found(call) if call.request.get("with_vector") else self._owned(call))
            case "retrieve" | "count" | "facet":
                return await self._owned(call)
        raise call.not_covered(self)

    async def write(self, call: PointCall[None]) -> None:
        """Write, if the collection is still the one that was meant, and make sure that it still was afterwards.

        Each point that is written gets the time at which the write is sent, by which a rebuild finds it
        (`rebuilds/catch_up.py`), however long the write was prepared or waited for a move. A write that takes longer
        than it may is not acknowledged: readers of the change log may have passed its time.
        """
        if call.name not in WRITES:
            raise call.not_covered(self)
        until_s = self._fence.times.now_s() + self._write_s
        if not self._fence.vouches_for(self._space):
            with self._after_a_write():
                await self._wait_for_move()
        try:
            await _timed(call, self._clock.now_ms()).on(self._store)
        except StoreRejected as error:
            self._has_written = self._has_written or not _is_whole(call)
            await self._blame_move(error)
            raise
        except OutcomeUnknown:
            self._has_written = True
            raise
        self._has_written = True
        if self._fence.times.now_s() > until_s:
            raise OutcomeUnknown(f"the write took longer than {self._write_s:g} s: read before retrying")
        if not self._fence.vouches_for(self._space):
            await self._confirm(call)

    async def _owned(self, look: PointCall[T]) -> T:
        """What was read, if it was read of the contents that were meant: in which collection does not matter."""
        found = await look.on(self._store)
        with self._after_a_write():
            is_meant = await self._fence.has_contents(self._contents)
        if not is_meant:
            raise self._moved()
        return found

    async def _found(self, search: PointCall[T]) -> T:
        """What was found, if it was found in the collection that the question was made for."""
        try:
            found = await search.on(self._store)
        except StoreRejected as error:
            await self._blame_move(error)
            raise
        if not self._fence.vouches_for(self._space):
            with self._after_a_write():
                facts = await self._fence.read()
            self._check_space(facts)
        return found

    async def _wait_for_move(self) -> None:
        """Pass once writes may be sent.

        Raises:
            CollectionMoved: it has moved.
            StoreUnavailable: the move takes too long.
        """
        facts = await self._settled(await self._fence.read())
        if self._is_held(facts):
            raise StoreUnavailable(
                f"the collection of agent {self._fence.slug!r} is being replaced: nothing was written; retry",
                retry_after_s=1,
            )
        self._check_space(facts)

    async def _confirm(self, write: PointCall[None]) -> None:
        """Pass where what was written is in the collection that the alias leads to, or will be carried there."""
        with self._after_a_write():
            facts = await self._fence.read()
            if self._is_held(facts):
                # The write ended before the alias moved: where anything is carried over, that is.
                points = _told_points(write) if facts.carries else None
                facts = await self._settled(facts)
                if (
                    facts.space != self._space
                    and points is not None
                    and await self._are_carried(write.collection, points)
                ):
                    return
        if facts.space != self._space or self._is_held(facts):
            raise OutcomeUnknown(
                f"the collection of agent {self._fence.slug!r} was replaced during the write: read before repeating",
                retry_after_s=1,
            )

    def _is_held(self, facts: Facts) -> bool:
        return facts.space == self._space and facts.phase is Phase.FINAL

    async def _settled(self, facts: Facts) -> Facts:
        """What the collection says once the move has ended, one way or the other, or takes too long."""
        times = self._fence.times
        until_s = times.now_s() + times.hold_s
        while self._is_held(facts) and times.now_s() < until_s:
            await asyncio.sleep(times.poll_s)
            facts = await self._fence.read()
        return facts

    async def _are_carried(self, collection: str, points: Sequence[Json]) -> bool:
        """Whether points come to lie behind the alias as they were written, or as others changed them since."""
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
        """Raise CollectionMoved where the engine refused because the collection is another one, or allows less now."""
        try:
            facts = await self._fence.read()
        except AgentClosed as closed:
            with self._after_a_write():
                raise closed from error
        except AgentMemoryError:
            raise error from None
        self._check_space(facts)
        if facts.allows_exact != self._allows_exact and not self._has_written:
            # Refused for being exact, by a strict mode that is newer than what was read of it: it is asked otherwise.
            raise self._moved()

    def _check_space(self, facts: Facts) -> None:
        if facts.space != self._space:
            raise self._moved()

    def _moved(self) -> AgentMemoryError:
        what = f"the collection of agent {self._fence.slug!r} was replaced"
        if self._has_written:
            return OutcomeUnknown(f"{what} during the write: read before retrying", retry_after_s=1)
        return CollectionMoved(f"{what} in the meantime: nothing was written; retry", retry_after_s=1)

    @contextmanager
    def _after_a_write(self) -> Iterator[None]:
        """Raise OutcomeUnknown where something was written, and nobody knows what became of it."""
        try:
            yield
        except OutcomeUnknown:
            raise
        except AgentMemoryError as error:
            if not self._has_written:
                raise
            message = f"the write succeeded, but the collection of agent {self._fence.slug!r} cannot be read: {error}"
            raise OutcomeUnknown(message, retry_after_s=getattr(error, "retry_after_s", 0.0)) from error


def _timed(write: PointCall[None], now_ms: int) -> PointCall[None]:
    """Return the write with `now_ms` as the time of each point that it writes, unless that has a later one."""
    match write.name:
        case "upsert":
            return write.with_request(_timed_points(write.request, now_ms))
        case "set_payload":
            return write.with_request(_timed_payload(write.request, now_ms))
        case "batch":
            return write.with_request([_timed_operation(operation, now_ms) for operation in write.request])
    return write


def _timed_operation(operation: Json, now_ms: int) -> Json:
    match operation:
        case {"upsert": upsert}:
            return {"upsert": upsert | {"points": _timed_points(upsert["points"], now_ms)}}
        case {"set_payload": change}:
            return {"set_payload": change | {"payload": _timed_payload(change["payload"], now_ms)}}
    return operation


def _timed_points(points: Sequence[Json], now_ms: int) -> list[Json]:
    return [point | {"payload": _timed_payload(point["payload"], now_ms)} for point in points]


def _timed_payload(payload: Json, now_ms: int) -> Json:
    return payload | {"updatedAt": max(payload["updatedAt"], now_ms)} if "updatedAt" in payload else payload


def _is_whole(write: PointCall[None]) -> bool:
    """Whether nothing was written of what the engine refuses."""
    return write.name != "batch" or len(write.request) == 1


def _told_points(write: PointCall[None]) -> Sequence[Json] | None:
    """The points by which can be told whether a write was carried over, None where it cannot be told."""
    if write.name == "upsert":
        points: Sequence[Json] = write.request
        return points
    parts: Sequence[Json] = write.request if write.name == "batch" else ()
    if any(part.keys() - {"upsert", "delete_vectors"} for part in parts):
        return None
    return [point for part in parts for point in part.get("upsert", {}).get("points", ())] or None


async def again_if_moved(work: Callable[[], Awaitable[T]]) -> T:
    """Do something with an agent that it opens itself, and once more where the collection was replaced meanwhile."""
    try:
        return await work()
    except CollectionMoved:
        return await work()
