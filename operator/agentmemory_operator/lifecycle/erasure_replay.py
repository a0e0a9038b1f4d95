"""Carry erasures to copies of a collection: what a restore brings back must not hold what was forgotten since.

A copy gets the receipts and tombstones of the collection that was served, and loses what they name: memories by id, and
of erased users everything that was stored until then, also what the served collection no longer had when it was told to
forget them. What was stored in the copy afterwards stays. All of it may be repeated: what is done is found done.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from agentmemory_operator.agents.copies import open_copy
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.lifecycle.erase import KEYS, Erasing, Erasure, Spares, earlier_versions
from agentmemory_operator.lifecycle.rules.erasure import (
    TOMBSTONES,
    ErasureReceipt,
    Row,
    Tombstone,
    Trace,
    hash_user,
    receipt_from_payload,
    receipt_to_payload,
    receipts_since,
    tombstones_since,
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
from agentmemory_operator.memories.tombstone_writes import empty_all
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory

PAGE = 500
USERS_PAGE = 5_000
# An erasure that ran while a snapshot was made belongs to those after it; so do those of clocks that differ.
MARGIN_MS = 3_600_000

_HAS_USER: Condition = {"must_not": [{"is_empty": {"key": "userId"}}]}


class Erasures:
    """Makes erasures again, in copies."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._erasing = Erasing(clock)

    async def reapply(
        self, store: PointStore, source: str, target: str, memory: AgentMemory, *, since_ms: int = 0
    ) -> int:
        """Erase in one collection what was erased in another; return how many memories that were.

        Args:
            source, target: the collections' own names.
            since_ms: when the target was copied, Unix milliseconds; what was erased an hour before is looked at too.

        Raises:
            NotFound: one of them does not exist.
            TransientError: the same again erases the rest.
        """
        agent, there = [await self._open(store, name, memory) for name in (target, source)]
        since_ms -= MARGIN_MS
        return await self._take_in(agent, _traces(there, since_ms), since_ms, partial(_living, there))

    async def erase_late(
        self, store: PointStore, source: str, target: str, memory: AgentMemory, *, since_ms: int
    ) -> int:
        """Erase what came late from a rebuild's source of what was erased in its target; return how many that were.

        What the source does not hold came to the target itself, after the erasure where it lives.

        Args:
            source, target: the collections' own names.
            since_ms: when the alias moved, Unix milliseconds.

        Raises:
            NotFound: one of them does not exist.
            TransientError: the same again erases the rest.
        """
        agent, there = [await self._open(store, name, memory) for name in (target, source)]
        since_ms -= MARGIN_MS
        return await self._take_in(agent, _traces(agent, since_ms), since_ms, partial(_not_living, there))

    async def export_receipts(
        self, store: PointStore, physical: str, memory: AgentMemory, *, since_ms: int = 0
    ) -> AsyncIterator[bytes]:
        """Yield what erasures have left in a collection, as lines of JSON: nothing of what was erased."""
        agent = await self._open(store, physical, memory)
        async for traces in _traces(agent, since_ms):
            yield b"".join(map(trace_to_line, traces))

    async def import_receipts(
        self, store: PointStore, physical: str, memory: AgentMemory, content: AsyncIterator[bytes]
    ) -> int:
        """Erase in a collection what an export tells of; return how many memories that were.

        Raises:
            RequestInvalid: a line is none of an export.
        """
        agent = await self._open(store, physical, memory)
        return await self._take_in(agent, _traces_of_lines(content), 0)

    async def empty(self, store: PointStore, physical: str, memory: AgentMemory) -> None:
        """Take the vectors from what a collection holds of deleted memories."""
        await empty_all(await self._open(store, physical, memory))

    async def _open(self, store: PointStore, physical: str, memory: AgentMemory) -> Agent:
        return await open_copy(store, effective_settings(memory), physical, self._clock)

    async def _take_in(
        self, agent: Agent, traces: AsyncIterator[Sequence[Trace]], since_ms: int, spares: Spares | None = None
    ) -> int:
        count = 0
        async for page in traces:
            await _keep_receipts(agent, [trace for trace in page if isinstance(trace, ErasureReceipt)])
            count += await self._bury(agent, [trace for trace in page if isinstance(trace, Tombstone)], spares)
        count += await self._erase_users(agent, since_ms, spares)
        whole = {receipt.id async for receipt in _receipts(agent, since_ms) if receipt.is_whole}
        await self._erasing.finish(agent, TOMBSTONES, whole.__contains__)
        # A snapshot holds vectors of what was being emptied while it was made.
        await empty_all(agent)
        return count

    async def _bury(self, agent: Agent, tombstones: Sequence[Tombstone], spares: Spares | None) -> int:
        """Erase what tombstones name, with a head its earlier versions; return how many memories that were."""
        if not tombstones:
            return 0
        points = await agent.store.retrieve(agent.alias, [tombstone.id for tombstone in tombstones], keys=KEYS)
        rows: dict[str, Row] = {point["id"]: point["payload"] | {"id": point["id"]} for point in points}
        if missing := [_point(trace.payload) for trace in _beside(tombstones, rows)]:
            await agent.store.upsert(agent.alias, missing, insert_only=True, strong=True)
        spared = await spares(list(rows.values())) if spares else set()
        rows = {id_: row for id_, row in rows.items() if id_ not in spared}
        count = 0
        for tombstone_id, named in _named(tombstones, rows).items():
            count += await self._bury_named(agent, named, erasure_id=tombstone_id)
        return count

    async def _bury_named(self, agent: Agent, named: Sequence[tuple[Row, int]], *, erasure_id: str) -> int:
        living = [row for row, _ in named if TOMBSTONE_KEY not in row]
        times = {row["id"]: at for row, at in named}
        latest_ms = max(times.values())
        earlier = await earlier_versions(agent, living)
        rows = [row for id_, row in earlier.items() if id_ not in times]
        rows += sorted((row for row, _ in named), key=lambda row: not row.get("supersededById"))
        await self._erasing.bury(agent, rows, erasure_id=erasure_id, at_ms=lambda row: times.get(row["id"], latest_ms))
        return sum(TOMBSTONE_KEY not in row for row in rows)

    async def _erase_users(self, agent: Agent, since_ms: int, spares: Spares | None) -> int:
        """Erase what is there of users, by the receipts; return how many memories and tombstones that were."""
        by_user: defaultdict[tuple[str, str], list[ErasureReceipt]] = defaultdict(list)
        async for receipt in _receipts(agent, since_ms):
            if receipt.is_filter_known:
                by_user[receipt.agent_id, receipt.user_hash].append(receipt)
        count = 0
        for user_id, receipts in (await _users(agent, by_user)).items() if by_user else ():
            for receipt in receipts:
                if scope := receipt.scope_of(user_id):
                    until_ms = receipt.until_ms
                    erasure = Erasure(id=receipt.id, scope=scope, until_ms=until_ms, at_ms=until_ms, spares=spares)
                    count += await self._erasing.erase(agent, erasure)
        return count


def _beside(tombstones: Sequence[Tombstone], rows: Mapping[str, Row]) -> Iterator[Tombstone]:
    """Yield what a copy is to keep in a point of its own: what is erased there bears the trace itself."""
    for tombstone in tombstones:
        row = rows.get(tombstone.id)
        if tombstone.is_replaced or row is None:
            yield tombstone
        elif TOMBSTONE_KEY not in row and not tombstone.names(row):
            yield replace(tombstone, is_replaced=True)


def _named(tombstones: Sequence[Tombstone], rows: Mapping[str, Row]) -> dict[str, list[tuple[Row, int]]]:
    """The rows to remove, by erasure, each with the time of its erasure."""
    named: defaultdict[str, list[tuple[Row, int]]] = defaultdict(list)
    for tombstone in tombstones:
        row = rows.get(tombstone.id)
        # What was deleted before it was erased still says whose it was.
        if row is not None and (tombstone.names(row) or (TOMBSTONE_KEY in row and ERASURE_KEY not in row)):
            named[tombstone.erasure_id].append((row, tombstone.at))
    return named


async def _living(agent: Agent, rows: Sequence[Row]) -> set[str]:
    """The memories that live in a collection, so were stored after every erasure carried out there.

    The times of a memory and of a receipt say less: they are of two processes, whose clocks may differ. One that was
    stored again under the same id is another.
    """
    stored = {row["id"]: row[STORED_KEY] for row in rows if row.get(STORED_KEY)}
    points = await agent.store.retrieve(agent.alias, list(stored), keys=[TOMBSTONE_KEY, STORED_KEY]) if stored else []
    living = [point for point in points if TOMBSTONE_KEY not in point["payload"]]
    return {point["id"] for point in living if point["payload"].get(STORED_KEY) == stored[point["id"]]}


async def _not_living(agent: Agent, rows: Sequence[Row]) -> set[str]:
    """The memories that are not alive in a collection in the state given."""
    return {row["id"] for row in rows} - await _living(agent, rows)


async def _users(
    agent: Agent, by_user: Mapping[tuple[str, str], list[ErasureReceipt]]
) -> dict[str, list[ErasureReceipt]]:
    """The users that receipts are about; a receipt holds only their hash, so all users of the collection are tried."""
    agents = {agent_id for agent_id, _ in by_user}
    meant: dict[str, list[ErasureReceipt]] = {}
    body = {"filter": {"must": [_HAS_USER]}, "limit": USERS_PAGE, "with_payload": ["userId"], "with_vector": False}
    async for points in read_pages(agent, body):
        for user_id in {point["payload"]["userId"] for point in points} - meant.keys():
            hashes = ((agent_id, hash_user(agent_id, user_id)) for agent_id in agents)
            if receipts := [receipt for key in hashes for receipt in by_user.get(key, ())]:
                meant[user_id] = receipts
    return meant


async def _keep_receipts(agent: Agent, receipts: Sequence[ErasureReceipt]) -> None:
    if receipts:
        points = [_point(receipt_to_payload(receipt)) for receipt in receipts]
        await agent.store.upsert(agent.alias, points, insert_only=True, strong=True)


async def _receipts(agent: Agent, since_ms: int) -> AsyncIterator[ErasureReceipt]:
    async for payloads in _pages(agent, receipts_since(since_ms)):
        for payload in payloads:
            yield receipt_from_payload(payload)


async def _traces(agent: Agent, since_ms: int) -> AsyncIterator[list[Trace]]:
    """Yield what erasures have left since, receipts first, so that what is half carried over is known as a whole."""
    for filter_ in (receipts_since(since_ms), tombstones_since(since_ms)):
        async for payloads in _pages(agent, filter_):
            yield [trace_from_payload(payload) for payload in payloads]


async def _pages(agent: Agent, filter_: Filter) -> AsyncIterator[list[Payload]]:
    keys = ["id", TOMBSTONE_KEY, ERASURE_KEY, RECEIPT_KEY, ERASED_ID_KEY]
    async for points in read_pages(agent, {"filter": filter_, "limit": PAGE, "with_payload": keys}):
        yield [point["payload"] for point in points]


async def _traces_of_lines(content: AsyncIterator[bytes]) -> AsyncIterator[list[Trace]]:
    number, rest = 0, b""
    async for chunk in content:
        *lines, rest = (rest + chunk).split(b"\n")
        for page in chunks_of(lines, PAGE):
            yield [_trace(line, place) for place, line in enumerate(page, number + 1) if line.strip()]
            number += len(page)
    if rest.strip():
        yield [_trace(rest, number + 1)]


def _trace(line: bytes, number: int) -> Trace:
    try:
        return trace_from_line(line)
    except ValueError as error:
        raise RequestInvalid([FieldError(f"line {number}", str(error))]) from error


def _point(payload: Payload) -> Json:
    return {"id": payload["id"], "vector": {}, "payload": payload}
