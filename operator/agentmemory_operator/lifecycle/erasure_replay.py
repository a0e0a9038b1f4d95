"""Repeat erasures in a copy of a collection, so that the copy contains nothing that was erased.

An erasure leaves traces: a receipt, and a tombstone for each erased memory. They are read from another collection
(`reapply`), from the copy itself (`erase_late`) or from exported lines (`import_receipts`).

1. Insert the receipts into the copy, and the tombstones that the copy has no point for.
2. Erase the memories that the tombstones identify, with their earlier versions.
3. For each receipt whose scope is known, erase the user's memories in that scope. This also covers memories that have
   no tombstone, because the collection had lost them before the erasure.
4. Complete the version chains, and remove vectors from tombstones.

Memories that were stored after the erasure stay. Every step may be repeated.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from agentmemory_operator.agents.direct_agents import open_by_name
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import FieldError, RequestInvalid, StoreUnavailable
from agentmemory_operator.lifecycle.erase import ERASURE_ROW_KEYS, Eraser, Erasure, FindSpared, read_earlier_versions
from agentmemory_operator.lifecycle.rules.erasure import (
    TOMBSTONES,
    ErasureReceipt,
    ErasureTrace,
    Row,
    TombstoneTrace,
    hash_user,
    receipt_from_payload,
    receipt_to_payload,
    receipts_since_filter,
    tombstones_since_filter,
    trace_from_line,
    trace_from_payload,
    trace_to_line,
)
from agentmemory_operator.memories.point_pages import read_pages
from agentmemory_operator.memories.rules.filters import Condition, Filter
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.memories.rules.record import (
    ERASED_ID_KEY,
    ERASURE_KEY,
    RECEIPT_KEY,
    STORED_KEY,
    TOMBSTONE_KEY,
    Payload,
)
from agentmemory_operator.memories.tombstone_writes import delete_remaining_vectors
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory

PAGE = 500
USERS_PAGE = 5_000
# Replay also covers erasures up to one hour before the copy was made, because they may have run during the copy, and
# clocks differ.
CLOCK_MARGIN_MS = 3_600_000

_HAS_USER: Condition = {"must_not": [{"is_empty": {"key": "userId"}}]}


class ErasureReplay:
    """Repeats erasures in copies of a collection, in the steps of the module. Each call may be repeated."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._erasing = Eraser(clock)

    async def reapply(
        self, store: PointStore, source: str, target: str, memory: AgentMemory, *, since_ms: int = 0
    ) -> int:
        """Repeat the erasures of one collection in a copy of it; return the number of points erased.

        Memories that `source` still contains with the same `storedAt` stay in the copy: no erasure in `source` covered
        them, or they were stored after it.

        Args:
            source, target: Physical collection names.
            since_ms: When the target was copied, Unix milliseconds. Erasures up to one hour earlier are included.

        Raises:
            NotFound: If one of the collections does not exist.
            StoreRejected: If Qdrant rejects a call.
            TransientError: If Qdrant is unavailable, or a memory was changed. Repeating the call erases the rest.
        """
        agent, source_agent = [await self._open(store, name, memory) for name in (target, source)]
        since_ms -= CLOCK_MARGIN_MS
        return await self._take_in(agent, _traces(source_agent, since_ms), since_ms, partial(_living, source_agent))

    async def erase_late(
        self, store: PointStore, source: str, target: str, memory: AgentMemory, *, since_ms: int
    ) -> int:
        """Repeat a rebuild target's erasures on points copied late from its source; return the number of points erased.

        Memories that the source does not contain with the same `storedAt` stay: they were written to the target itself,
        after the erasure.

        Args:
            source, target: Physical collection names.
            since_ms: When the alias moved, Unix milliseconds. Erasures up to one hour earlier are included.

        Raises:
            NotFound: If one of the collections does not exist.
            StoreRejected: If Qdrant rejects a call.
            TransientError: If Qdrant is unavailable, or a memory was changed. Repeating the call erases the rest.
        """
        agent, source_agent = [await self._open(store, name, memory) for name in (target, source)]
        since_ms -= CLOCK_MARGIN_MS
        return await self._take_in(agent, _traces(agent, since_ms), since_ms, partial(_not_living, source_agent))

    async def export_receipts(
        self, store: PointStore, physical: str, memory: AgentMemory, *, since_ms: int = 0
    ) -> AsyncIterator[bytes]:
        """Yield the traces of erasures in a collection as lines of JSON, without any erased content.

        Args:
            physical: Name or alias of the collection.
            since_ms: Only traces of this time or later, Unix milliseconds.

        Raises:
            NotFound: If the collection does not exist.
            StoreRejected: If Qdrant rejects a call.
            TransientError: If Qdrant is unavailable.
        """
        agent = await self._open(store, physical, memory)
        async for traces in _traces(agent, since_ms):
            yield b"".join(map(trace_to_line, traces))

    async def import_receipts(
        self, store: PointStore, physical: str, memory: AgentMemory, content: AsyncIterator[bytes]
    ) -> int:
        """Repeat exported erasures in a collection; return the number of points erased.

        Args:
            physical: Physical name of the collection.
            content: Output of `export_receipts`, in blocks of any size.

        Raises:
            RequestInvalid: If a line contains no trace. The lines before it may have been applied.
            NotFound: If the collection does not exist.
            StoreRejected: If Qdrant rejects a call.
            TransientError: If Qdrant is unavailable, or a memory was changed. Repeating the call erases the rest.
        """
        agent = await self._open(store, physical, memory)
        return await self._take_in(agent, _traces_of_lines(content), 0)

    async def empty_tombstones(self, store: PointStore, physical: str, memory: AgentMemory) -> None:
        """Remove the vectors that tombstones of a collection still have, for example after a snapshot recovery.

        Errors are those of `reapply`.
        """
        await delete_remaining_vectors(await self._open(store, physical, memory))

    async def _open(self, store: PointStore, physical: str, memory: AgentMemory) -> Agent:
        return await open_by_name(store, effective_settings(memory), physical, self._clock)

    async def _take_in(
        self,
        agent: Agent,
        traces: AsyncIterator[Sequence[ErasureTrace]],
        since_ms: int,
        spares: FindSpared | None = None,
    ) -> int:
        count = 0
        async for page in traces:
            await _keep_receipts(agent, [trace for trace in page if isinstance(trace, ErasureReceipt)])
            count += await self._bury(agent, [trace for trace in page if isinstance(trace, TombstoneTrace)], spares)
        count += await self._erase_users(agent, since_ms, spares)
        whole_ids = {receipt.id async for receipt in _receipts(agent, since_ms) if receipt.is_whole}
        await self._erasing.complete_chains(agent, TOMBSTONES, whole_ids.__contains__)
        # Delete the vectors of tombstones that were written while a snapshot was made, which it may contain.
        await delete_remaining_vectors(agent)
        return count

    async def _bury(self, agent: Agent, tombstones: Sequence[TombstoneTrace], spares: FindSpared | None) -> int:
        """Erase the memories that tombstones identify, and earlier versions of heads; return their number."""
        if not tombstones:
            return 0
        points = await agent.store.retrieve(
            agent.alias, [tombstone.id for tombstone in tombstones], keys=ERASURE_ROW_KEYS
        )
        rows: dict[str, Row] = {point["id"]: point["payload"] | {"id": point["id"]} for point in points}
        if missing := [_point(trace.payload) for trace in _beside(tombstones, rows)]:
            await agent.store.upsert(agent.alias, missing, insert_only=True, strong=True)
        spared_ids = await spares(list(rows.values())) if spares else set()
        rows = {id_: row for id_, row in rows.items() if id_ not in spared_ids}
        count = 0
        for tombstone_id, entries in _named(tombstones, rows).items():
            count += await self._bury_named(agent, entries, erasure_id=tombstone_id)
        return count

    async def _bury_named(self, agent: Agent, entries: Sequence[tuple[Row, int]], *, erasure_id: str) -> int:
        memories = [row for row, _ in entries if TOMBSTONE_KEY not in row]
        times_ms = {row["id"]: time_ms for row, time_ms in entries}
        latest_ms = max(times_ms.values())
        earlier = await read_earlier_versions(agent, memories)
        rows = [row for id_, row in earlier.items() if id_ not in times_ms]
        rows += sorted((row for row, _ in entries), key=lambda row: not row.get("supersededById"))
        erased_ids = await self._erasing.write_tombstones(
            agent, rows, erasure_id=erasure_id, at_ms=lambda row: times_ms.get(row["id"], latest_ms)
        )
        if {row["id"] for row in rows} - erased_ids:
            raise StoreUnavailable("memories to erase again are being changed concurrently: retry")
        return sum(TOMBSTONE_KEY not in row for row in rows)

    async def _erase_users(self, agent: Agent, since_ms: int, spares: FindSpared | None) -> int:
        """Erase the memories in the scopes of the repeatable receipts; return the number of points found."""
        receipts_by_user: defaultdict[tuple[str, str], list[ErasureReceipt]] = defaultdict(list)
        async for receipt in _receipts(agent, since_ms):
            if receipt.is_repeatable:
                receipts_by_user[receipt.agent_id, receipt.user_hash].append(receipt)
        count = 0
        for user_id, receipts in (await _users(agent, receipts_by_user)).items() if receipts_by_user else ():
            for receipt in receipts:
                if scope := receipt.rebuild_scope(user_id):
                    until_ms = receipt.until_ms
                    erasure = Erasure(id=receipt.id, scope=scope, until_ms=until_ms, at_ms=until_ms, find_spared=spares)
                    count += await self._erasing.erase(agent, erasure)
        return count


def _beside(tombstones: Sequence[TombstoneTrace], rows: Mapping[str, Row]) -> Iterator[TombstoneTrace]:
    """Yield the traces to insert into a copy.

    A trace gets a point of its own if a later memory has its id, in the exporting collection or in the copy.
    """
    for tombstone in tombstones:
        row = rows.get(tombstone.id)
        if tombstone.is_replaced or row is None:
            yield tombstone
        elif TOMBSTONE_KEY not in row and not tombstone.matches(row):
            yield replace(tombstone, is_replaced=True)


def _named(tombstones: Sequence[TombstoneTrace], rows: Mapping[str, Row]) -> dict[str, list[tuple[Row, int]]]:
    """Return the rows to erase by erasure id, each with the time of its erasure."""
    entries: defaultdict[str, list[tuple[Row, int]]] = defaultdict(list)
    for tombstone in tombstones:
        row = rows.get(tombstone.id)
        # Erase a tombstone of an ordinary deletion too, because it contains the user id.
        if row is not None and (tombstone.matches(row) or (TOMBSTONE_KEY in row and ERASURE_KEY not in row)):
            entries[tombstone.erasure_id].append((row, tombstone.at))
    return entries


async def _living(agent: Agent, rows: Sequence[Row]) -> set[str]:
    """Return the ids of the rows that the collection contains as memories with the same `storedAt`.

    No erasure in that collection covered such a memory, or it was stored afterwards. Comparing its time with that of a
    receipt would prove less, because the clocks of two processes may differ. A different `storedAt` means a different
    memory under the same id.
    """
    stored = {row["id"]: row[STORED_KEY] for row in rows if row.get(STORED_KEY)}
    points = await agent.store.retrieve(agent.alias, list(stored), keys=[TOMBSTONE_KEY, STORED_KEY]) if stored else []
    memories = [point for point in points if TOMBSTONE_KEY not in point["payload"]]
    return {point["id"] for point in memories if point["payload"].get(STORED_KEY) == stored[point["id"]]}


async def _not_living(agent: Agent, rows: Sequence[Row]) -> set[str]:
    """Return the ids of those rows that do not exist as memories with the same `storedAt` in a collection."""
    return {row["id"] for row in rows} - await _living(agent, rows)


async def _users(
    agent: Agent, by_user: Mapping[tuple[str, str], list[ErasureReceipt]]
) -> dict[str, list[ErasureReceipt]]:
    """Return the receipts of each user of a collection, by user id; users without receipts are absent.

    A receipt contains only a hash of its user, so the hashes of all users are compared.
    """
    agents = {agent_id for agent_id, _ in by_user}
    receipts_by_id: dict[str, list[ErasureReceipt]] = {}
    body = {"filter": {"must": [_HAS_USER]}, "limit": USERS_PAGE, "with_payload": ["userId"], "with_vector": False}
    async for points in read_pages(agent, body):
        for user_id in {point["payload"]["userId"] for point in points} - receipts_by_id.keys():
            hashes = ((agent_id, hash_user(agent_id, user_id)) for agent_id in agents)
            if receipts := [receipt for key in hashes for receipt in by_user.get(key, ())]:
                receipts_by_id[user_id] = receipts
    return receipts_by_id


async def _keep_receipts(agent: Agent, receipts: Sequence[ErasureReceipt]) -> None:
    if receipts:
        points = [_point(receipt_to_payload(receipt)) for receipt in receipts]
        await agent.store.upsert(agent.alias, points, insert_only=True, strong=True)


async def _receipts(agent: Agent, since_ms: int) -> AsyncIterator[ErasureReceipt]:
    async for payloads in _pages(agent, receipts_since_filter(since_ms)):
        for payload in payloads:
            yield receipt_from_payload(payload)


async def _traces(agent: Agent, since_ms: int) -> AsyncIterator[list[ErasureTrace]]:
    """Yield the traces since a time, receipts first, so that an interrupted replay still has the complete receipts."""
    for filter_ in (receipts_since_filter(since_ms), tombstones_since_filter(since_ms)):
        async for payloads in _pages(agent, filter_):
            yield [trace_from_payload(payload) for payload in payloads]


async def _pages(agent: Agent, filter_: Filter) -> AsyncIterator[list[Payload]]:
    keys = ["id", TOMBSTONE_KEY, ERASURE_KEY, RECEIPT_KEY, ERASED_ID_KEY]
    async for points in read_pages(agent, {"filter": filter_, "limit": PAGE, "with_payload": keys}):
        yield [point["payload"] for point in points]


async def _traces_of_lines(content: AsyncIterator[bytes]) -> AsyncIterator[list[ErasureTrace]]:
    number, remaining = 0, b""
    async for chunk in content:
        *lines, remaining = (remaining + chunk).split(b"\n")
        for page in chunks_of(lines, PAGE):
            yield [_trace(line, line_number) for line_number, line in enumerate(page, number + 1) if line.strip()]
            number += len(page)
    if remaining.strip():
        yield [_trace(remaining, number + 1)]


def _trace(line: bytes, number: int) -> ErasureTrace:
    try:
        return trace_from_line(line)
    except ValueError as error:
        raise RequestInvalid([FieldError(f"line {number}", str(error))]) from error


def _point(payload: Payload) -> Json:
    return {"id": payload["id"], "vector": {}, "payload": payload}
