"""Point store for one use of an agent. It rejects the result of a call that a move of the alias may have made wrong.

A call that completes within a lease of the fence (`agents/fence.py`) is accepted. Any other call is followed by a read
of the collection's metadata, whose result decides:

| result of the read | search | other lookup | write |
|---|---|---|---|
| same collection, no move or an announced move | accepted | accepted | accepted |
| same collection, the move is final | accepted | accepted | accepted if it was copied, or the move is withdrawn |
| another collection with the same contents (copied) | CollectionMoved | accepted | OutcomeUnknown |
| another collection with other contents (restored) | CollectionMoved | CollectionMoved | OutcomeUnknown |

A *search* depends on vectors: it is a query by more than a filter and an order, or a scroll that returns vectors. After
the first write through the store, every rejection is OutcomeUnknown instead, because the store may have written a
memory that the new contents lack.

Before a write is sent, the store checks the lease too. While a move is final, the write waits. If the collection was
replaced, nothing is written. A store raises `CollectionMoved` only before its first write, so the caller can open the
agent again and repeat the use; see `retry_if_moved`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from agentmemory_operator.agents.collection_facts import CollectionFacts, Space
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

COVERED_WRITES = frozenset({"upsert", "set_payload", "batch", "delete"})
"""Write methods that the store permits, because `write` can decide whether a failed call of them has written."""


class FencedStore(ForwardingPoints):
    """Implements ports.PointStore for one use of an agent.

    Args:
        store: Store of the agent's connection.
        fence: Fence of the agent, which its uses share.
        facts: Facts for which the agent was opened.
        clock: Source of the time at which a write is sent.
        write_s: Seconds that a write may take, including its wait for a move.
    """

    def __init__(
        self, store: PointStore, fence: Fence, facts: CollectionFacts, *, clock: Clock, write_s: float
    ) -> None:
        self._store = store
        self._clock = clock
        self._write_s = write_s
        self._fence = fence
        self._space: Space = facts.space
        self._contents = facts.contents_number
        self._allows_exact = facts.allows_exact
        self._has_written = False

    async def close(self) -> None:
        """Close the connections of the underlying store, which other uses share."""
        await self._store.close()

    async def read(self, call: PointCall[T]) -> T:
        """Make a call, and raise if its result may come from the wrong collection. `describe` is not checked.

        Raises:
            CollectionMoved: If the collection was replaced, or Qdrant rejected a search after the strict mode changed,
                and this store has written nothing.
            OutcomeUnknown: If it was replaced, or its metadata cannot be read, after this store has written.
            TransientError: If Qdrant is unavailable for the call. Also if the metadata cannot be read, and this store
                has written nothing.
            StoreRejected: If Qdrant rejected the call.
            NotFound: If `describe` finds no collection behind the alias.
            NotImplementedError: If the store has no rule for the method.
        """
        match call.name:
            case "describe":
                return await call.make(self._store)
            case "query":
                return await self._search(call)
            case "query_batch":
                return await (self._search(call) if any(map(_uses_vectors, call.request)) else self._look_up(call))
            case "scroll":
                # The meaning of a vector depends on the collection, even if the contents are the same.
                return await (self._search(call) if call.request.get("with_vector") else self._look_up(call))
            case "retrieve" | "count" | "facet":
                return await self._look_up(call)
        raise call.not_covered_error(self)

    async def write(self, call: PointCall[None]) -> None:
        """Write if the collection that was opened is still behind the alias, and verify that again afterwards.

        An `updatedAt` in the written payload is raised to the time at which the write is sent, because a rebuild finds
        changed points by it (`rebuilds/catch_up.py`). A write that exceeds `write_s` is not acknowledged, because
        readers of the change log may have passed its time.

        Raises:
            CollectionMoved: If the collection was replaced, or Qdrant rejected the write after the strict mode changed,
                and this store has written nothing.
            TransientError: If Qdrant is unavailable, the collection is deleted, closed or has another owner, or a move
                stays final during the wait; this call wrote nothing.
            StoreRejected: If Qdrant rejected the write. Earlier operations of a batch may have been executed. Earlier
                parts of a large upsert are written if `is_partial` is True.
            OutcomeUnknown: If this write, or an earlier one of this store, may have taken effect: read before retrying.
            NotImplementedError: If the store has no rule for the method.
        """
        if call.name not in COVERED_WRITES:
            raise call.not_covered_error(self)
        deadline_s = self._fence.timing.now_s() + self._write_s
        if not self._fence.has_space_lease(self._space):
            with self._unknown_after_write():
                await self._wait_for_move()
        try:
            await _timed(call, self._clock.now_ms()).make(self._store)
        except StoreRejected as error:
            self._has_written = self._has_written or error.is_partial or not _is_all_or_nothing(call)
            await self._check_for_move(error)
            raise
        except OutcomeUnknown:
            self._has_written = True
            raise
        self._has_written = True
        if self._fence.timing.now_s() > deadline_s:
            raise OutcomeUnknown(f"the write took longer than {self._write_s:g} s: read before retrying")
        if not self._fence.has_space_lease(self._space):
            await self._confirm(call)

    async def _look_up(self, read: PointCall[T]) -> T:
        """Return the result of a lookup if it has the agent's contents, even if it comes from a copied collection."""
        found = await read.make(self._store)
        with self._unknown_after_write():
            is_current = await self._fence.has_contents(self._contents)
        if not is_current:
            raise self._moved()
        return found

    async def _search(self, search: PointCall[T]) -> T:
        """Return the result of a search if it comes from the collection that the query was made for."""
        try:
            found = await search.make(self._store)
        except StoreRejected as error:
            await self._check_for_move(error)
            raise
        if not self._fence.has_space_lease(self._space):
            with self._unknown_after_write():
                facts = await self._fence.read()
            self._check_space(facts)
        return found

    async def _wait_for_move(self) -> None:
        """Wait until a write may be sent.

        Raises:
            CollectionMoved: If the collection was replaced.
            StoreUnavailable: If the move is still final after `FenceTiming.hold_s`.
        """
        facts = await self._wait_until_not_final(await self._fence.read())
        if self._is_held(facts):
            raise StoreUnavailable(
                f"the collection of agent {self._fence.slug!r} is being replaced: nothing was written; retry",
                retry_after_s=1,
            )
        self._check_space(facts)

    async def _confirm(self, write: PointCall[None]) -> None:
        """Raise OutcomeUnknown unless the write is in the collection behind the alias, or will be copied to it."""
        with self._unknown_after_write():
            facts = await self._fence.read()
            if self._is_held(facts):
                # The write ended before the alias moved: wait until the move ends and, if it copies data, has copied
                # the write.
                points = _points_with_rev(write) if facts.copies_writes else None
                facts = await self._wait_until_not_final(facts)
                if (
                    facts.space != self._space
                    and points is not None
                    and await self._are_copied(write.collection, points)
                ):
                    return
        if facts.space != self._space or self._is_held(facts):
            raise OutcomeUnknown(
                f"the collection of agent {self._fence.slug!r} was replaced during the write: read before repeating",
                retry_after_s=1,
            )

    def _is_held(self, facts: CollectionFacts) -> bool:
        return facts.space == self._space and facts.phase is Phase.FINAL

    async def _wait_until_not_final(self, facts: CollectionFacts) -> CollectionFacts:
        """Poll the metadata until the move is no longer final, at most `FenceTiming.hold_s`; return the last result."""
        timing = self._fence.timing
        deadline_s = timing.now_s() + timing.hold_s
        while self._is_held(facts) and timing.now_s() < deadline_s:
            await asyncio.sleep(timing.poll_s)
            facts = await self._fence.read()
        return facts

    async def _are_copied(self, collection: str, points: Sequence[Json]) -> bool:
        """Return whether all points appear behind the alias with at least their `rev`, within `FenceTiming.hold_s`."""
        timing, required_revs = self._fence.timing, {point["id"]: point["payload"].get("rev", 0) for point in points}
        deadline_s = timing.now_s() + timing.hold_s
        while True:
            stored = await self._store.retrieve(collection, list(required_revs), keys=("rev",))
            revs = {point["id"]: point["payload"].get("rev", 0) for point in stored}
            if all(revs.get(id_, -1) >= rev for id_, rev in required_revs.items()):
                return True
            if timing.now_s() >= deadline_s:
                return False
            await asyncio.sleep(timing.poll_s)

    async def _check_for_move(self, error: StoreRejected) -> None:
        """Replace the error of a rejected call if a move or restore of the collection is its cause.

        Return if it is not; the caller then raises `error`.

        Raises:
            AgentClosed: If a restore has closed the collection.
            CollectionMoved: If the collection was replaced, or its strict mode changed before the first write.
            OutcomeUnknown: Instead of these two, if this store has already written.
            StoreRejected: `error`, if the metadata cannot be read.
        """
        try:
            facts = await self._fence.read()
        except AgentClosed as closed:
            with self._unknown_after_write():
                raise closed from error
        except AgentMemoryError:
            raise error from None
        self._check_space(facts)
        if facts.allows_exact != self._allows_exact and not self._has_written:
            # The strict mode has changed since the agent was opened. Raise CollectionMoved, so that the caller opens
            # the agent again: it then sends a request that the new strict mode allows.
            raise self._moved()

    def _check_space(self, facts: CollectionFacts) -> None:
        if facts.space != self._space:
            raise self._moved()

    def _moved(self) -> AgentMemoryError:
        event = f"the collection of agent {self._fence.slug!r} was replaced"
        if self._has_written:
            return OutcomeUnknown(f"{event} during the write: read before retrying", retry_after_s=1)
        return CollectionMoved(f"{event} in the meantime: nothing was written; retry", retry_after_s=1)

    @contextmanager
    def _unknown_after_write(self) -> Iterator[None]:
        """Turn an error into OutcomeUnknown if this store has already written."""
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
    """Return the write with `updatedAt` raised to `now_ms` in each point that has one."""
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


def _uses_vectors(body: Json) -> bool:
    """Return whether a query is more than a filter and an order."""
    query = body.get("query")
    is_ordered = isinstance(query, dict) and query.keys() == {"order_by"}
    return not (query is None or is_ordered) or "prefetch" in body or bool(body.get("with_vector"))


def _is_all_or_nothing(write: PointCall[None]) -> bool:
    """Return whether a rejected write has certainly written nothing. A batch may have, because it is not atomic."""
    return write.name != "batch" or len(write.request) == 1


def _points_with_rev(write: PointCall[None]) -> Sequence[Json] | None:
    """Return the points whose `rev` shows if a write was copied. None if `rev` cannot show it for the whole write."""
    if write.name == "upsert":
        points: Sequence[Json] = write.request
        return points
    operations: Sequence[Json] = write.request if write.name == "batch" else ()
    if any(operation.keys() - {"upsert", "delete_vectors"} for operation in operations):
        return None
    return [point for operation in operations for point in operation.get("upsert", {}).get("points", ())] or None


async def retry_if_moved(operation: Callable[[], Awaitable[T]]) -> T:
    """Run an operation that opens an agent; run it once more if the collection was replaced before any write.

    Raises:
        CollectionMoved: If the collection was replaced during the second run too. Nothing was written.
    """
    try:
        return await operation()
    except CollectionMoved:
        return await operation()
