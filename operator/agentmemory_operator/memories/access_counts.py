"""Count how often searches return each memory. Accesses are noted in RAM and written in batches, after the response.

Several replicas count the same memories, and Qdrant can neither increment nor report whether a conditional write
took effect. A flush therefore
1. writes the new counts by compare-and-set on `rev`, with a mark `writer:flush`,
2. reads the points: an increment was applied if and only if its mark is there,
3. retries the rest, now or in the next flush.

So an increment whose response was lost is neither lost nor counted twice, as long as its mark is kept. A point keeps
the last mark of each of the 16 writers that wrote last.

Searches wait while Qdrant writes. Therefore memories with equal new counts share one operation, and a request
changes few memories. After each write Qdrant gets a pause of up to nine times the write's duration, as far as the
interval allows.
"""

import asyncio
import itertools
import json
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import Counter
from prometheus_client.registry import Collector

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.memories.rules.filters import equals
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.memories.rules.record import ACCESS_MARKS_KEY, TOMBSTONE_KEY
from agentmemory_operator.memories.session_use import is_due, note_use
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.runtime.metrics import LiveGauge
from agentmemory_operator.spec.memory_types import SESSION_USED_KEY

log = logging.getLogger(__name__)

OpenAgent = Callable[[str], Awaitable[Agent]]
"""Function that opens the agent of a slug: `AgentDirectory.open`."""

FLUSH_PERIOD_S = 30.0
# Maximum duration of the last flush before the process stops.
LAST_FLUSH_TIMEOUT_S = 10.0
# Maximum number of noted memories, about 20 MB of RAM during a long outage of Qdrant. Beyond it, new increments replace
# the oldest of the agent that has the most.
MAX_WAITING = 100_000
PAGE = 1_000
# Memories per write. Searches wait until a write ends, but half of its cost is independent of the number of memories.
MEMORIES_PER_WRITE = 200
MAX_REST_FACTOR = 9.0
# Maximum number of attempts. An attempt fails only if another writer changed the same memory. Memories that are not
# confirmed after the last attempt wait for the next flush.
MAX_ATTEMPTS = 10
MAX_ACCESS_MARKS = 16
# A flush writes access times within one interval of this length as the latest of them, so more payloads are equal.
SAME_TIME_MS = 30_000

_READ_KEYS = (
    *("rev", "accessCount", "lastAccessedAt", ACCESS_MARKS_KEY, TOMBSTONE_KEY),
    *("userId", "type", "sessionId", SESSION_USED_KEY),
)


@dataclass(frozen=True, slots=True)
class Increment:
    """Accesses of one memory that are not written yet."""

    count: int
    last_ms: int


@dataclass(slots=True)
class _Noted:
    """Increments of one agent by memory id, and the time of the first one."""

    since_ms: int
    increments: dict[str, Increment] = field(default_factory=dict)


@dataclass(slots=True)
class _Sent(_Noted):
    """Increments sent under one mark and not confirmed on the points yet."""

    mark: str = ""


class _WritePacer:
    """Pauses that spread writes over a duration.

    Args:
        over_s: Duration; 0 makes no pauses.
        memories: Number of memories to write in it.
    """

    def __init__(self, over_s: float, memories: int) -> None:
        self._until_s = time.monotonic() + over_s
        self._remaining = memories

    async def pause(self, duration_s: float, *, memories: int) -> None:
        """Pause after a write: for its share of the remaining time, at most nine times the duration of the write.

        Args:
            duration_s: Duration of the write. It is part of the share.
            memories: Number of memories that the write changed. The share is their part of those not written before.
        """
        share_s = (self._until_s - time.monotonic()) * memories / max(self._remaining, memories)
        self._remaining -= memories
        await asyncio.sleep(min(max(share_s - duration_s, 0), duration_s * MAX_REST_FACTOR))


class AccessCounts:
    """Access counts that this process has noted and not written yet, for all agents.

    Args:
        open_agent: Returns the agent of a slug at the time of the flush.
        writer: Unique name of this process, never used by another, earlier or later one.

    Attributes:
        drops: Counter of dropped accesses. They are dropped if too many are waiting, or after an error of their flush
            that is not temporary.
    """

    def __init__(self, open_agent: OpenAgent, clock: Clock, *, writer: str) -> None:
        self._open_agent = open_agent
        self._clock = clock
        self._writer = writer
        self._flushes = itertools.count(1)
        self._noted: dict[str, _Noted] = {}
        self._sent: dict[str, _Sent] = {}
        self._noted_count = 0
        self._lock = asyncio.Lock()
        self.drops = Counter("agentmemory_api_access_dropped_total", "Access counts that were dropped.", registry=None)

    def metrics(self) -> list[Collector]:
        """Return the metrics of accesses that are waiting or were dropped."""
        return [
            LiveGauge(
                "agentmemory_api_access_flush_lag_seconds",
                "Age of the oldest access count that is not written yet, in seconds.",
                (),
                lambda: {(): self.lag_s},
            ),
            LiveGauge(
                "agentmemory_api_access_waiting",
                "Memories whose access counts are not written yet.",
                (),
                lambda: {(): float(self.pending_count)},
            ),
            self.drops,
        ]

    @property
    def pending_count(self) -> int:
        """Number of memories with unconfirmed accesses. A memory with further accesses during a flush counts twice."""
        return sum(len(part.increments) for part in (*self._noted.values(), *self._sent.values()))

    @property
    def lag_s(self) -> float:
        """Age of the oldest access that is not written yet, in seconds; 0 if all are written."""
        oldest_ms = min((part.since_ms for part in (*self._noted.values(), *self._sent.values())), default=None)
        return 0.0 if oldest_ms is None else max(self._clock.now_ms() - oldest_ms, 0) / 1000

    def note(self, slug: str, ids: Sequence[str]) -> None:
        """Count one access of each memory in RAM, without waiting.

        Above `MAX_WAITING` noted memories, the oldest counts of the agent that has the most are dropped.
        """
        if not ids:
            return
        now_ms = self._clock.now_ms()
        increments = self._noted.setdefault(slug, _Noted(now_ms)).increments
        self._noted_count -= len(increments)
        for memory_id in ids:
            before = increments.pop(memory_id, None)
            increments[memory_id] = Increment(before.count + 1 if before else 1, now_ms)
        self._noted_count += len(increments)
        while self._noted_count > MAX_WAITING:
            most = max((noted.increments for noted in self._noted.values()), key=len)
            self.drops.inc(most.pop(next(iter(most))).count)
            self._noted_count -= 1

    def forget(self, slug: str, ids: Sequence[str]) -> None:
        """Drop the noted accesses of deleted memories. Writes of a flush in progress no longer match their points."""
        noted = self._noted.get(slug)
        if noted is None:
            return
        for memory_id in ids:
            if noted.increments.pop(memory_id, None):
                self._noted_count -= 1

    def last_ms(self, slug: str, memory_id: str) -> int:
        """Return the time of a memory's last access that is not written yet, Unix milliseconds; 0 if there is none."""
        parts = (self._noted.get(slug), self._sent.get(slug))
        increments = (part.increments[memory_id] for part in parts if part and memory_id in part.increments)
        return max((increment.last_ms for increment in increments), default=0)

    async def flush(self, *, over_s: float = 0) -> None:
        """Write the noted accesses. Temporary errors postpone them to the next flush; other errors drop them.

        Args:
            over_s: Duration to spread the writes over, with pauses for Qdrant. It is rarely exceeded by much.
        """
        async with self._lock:
            pacer = _WritePacer(over_s, self.pending_count)
            for slug in dict.fromkeys([*self._sent, *self._noted]):
                try:
                    await self._flush_agent(slug, pacer)
                except TransientError as error:
                    log.warning("access counts of agent %s are postponed to the next flush: %s", slug, error)
                except AgentMemoryError as error:
                    sent = self._sent.pop(slug, None)
                    dropped = [*self._take(slug).increments.values(), *(sent.increments.values() if sent else ())]
                    self.drops.inc(sum(increment.count for increment in dropped))
                    log.warning("access counts of agent %s are dropped: %s", slug, error)

    async def run(self, interval_s: float = FLUSH_PERIOD_S) -> None:
        """Flush periodically until cancelled; then flush a last time, for at most 10 s."""
        pause_s = interval_s
        try:
            while True:
                await asyncio.sleep(pause_s)
                started_s = time.monotonic()
                await self.flush(over_s=interval_s * 0.8)
                pause_s = max(interval_s - (time.monotonic() - started_s), 0)
        finally:
            try:
                async with asyncio.timeout(LAST_FLUSH_TIMEOUT_S):
                    await self.flush()
            except TimeoutError:
                log.warning(
                    "access counts of %d memories are lost: Qdrant did not accept them in time", self.pending_count
                )

    async def _flush_agent(self, slug: str, pacer: _WritePacer) -> None:
        agent = await self._open_agent(slug)
        if slug in self._sent:
            await self._settle(agent, self._sent[slug], pacer)
        if slug not in self._sent or not self._sent[slug].increments:
            noted = self._take(slug)
            mark = f"{self._writer}:{next(self._flushes)}"
            self._sent[slug] = _Sent(noted.since_ms, noted.increments, mark)
            await self._settle(agent, self._sent[slug], pacer)
        if not self._sent[slug].increments:
            del self._sent[slug]

    def _take(self, slug: str) -> _Noted:
        noted = self._noted.pop(slug, None) or _Noted(self._clock.now_ms())
        self._noted_count -= len(noted.increments)
        return noted

    async def _settle(self, agent: Agent, sent: _Sent, pacer: _WritePacer) -> None:
        """Write increments until each is confirmed on its point or its memory is deleted.

        After 10 attempts for a page of 1,000 memories, its unconfirmed increments stay in `sent`.
        """
        for page in chunks_of(list(sent.increments), PAGE):
            await self._settle_page(agent, sent, page, pacer)

    async def _settle_page(self, agent: Agent, sent: _Sent, ids: Sequence[str], pacer: _WritePacer) -> None:
        for _ in range(MAX_ATTEMPTS):
            rows = await _read(agent, ids)
            if await self._note_sessions(agent, sent, rows):
                rows = await _read(agent, ids)
            unconfirmed = {id_: row for id_, row in rows.items() if sent.mark not in row.get(ACCESS_MARKS_KEY, ())}
            for memory_id in set(ids) - unconfirmed.keys():
                sent.increments.pop(memory_id, None)
            if not unconfirmed:
                return
            for operations, count in _requests(self._changes(sent, unconfirmed)):
                started_s = time.monotonic()
                await agent.store.batch(agent.alias, operations, strong=True)
                await pacer.pause(time.monotonic() - started_s, memories=count)
            ids = list(unconfirmed)

    async def _note_sessions(self, agent: Agent, sent: _Sent, rows: Mapping[str, Json]) -> bool:
        """Stamp the sessions of returned memories; return whether there were any to stamp."""
        used_ms: dict[tuple[str, str], int] = {}
        for memory_id, row in rows.items():
            last_ms = sent.increments[memory_id].last_ms if memory_id in sent.increments else 0
            if is_due(agent, row, last_ms):
                session = row["userId"], row["sessionId"]
                used_ms[session] = max(used_ms.get(session, 0), last_ms)
        for (user_id, session_id), at_ms in used_ms.items():
            await note_use(agent, user_id, session_id, at_ms=at_ms, now_ms=self._clock.now_ms())
        return bool(used_ms)

    def _changes(self, sent: _Sent, rows: Mapping[str, Json]) -> Iterator[tuple[Json, list[str]]]:
        """Yield each distinct new payload with the ids of the memories that get it.

        These memories have the same revision, so one filter on `rev` protects the write of all.
        """
        payloads: dict[str, Json] = {}
        ids: defaultdict[str, list[str]] = defaultdict(list)
        latest_ms = _latest_of_each(sent.increments.values())
        for memory_id, row in rows.items():
            increment = sent.increments[memory_id]
            last_ms = latest_ms[increment.last_ms // SAME_TIME_MS]
            payload = self._counted(row, Increment(increment.count, last_ms), mark=sent.mark)
            state = json.dumps([*payload.values()])
            payloads[state] = payload
            ids[state].append(memory_id)
        now_ms = self._clock.now_ms()
        for state, payload in payloads.items():
            yield payload | {"updatedAt": now_ms}, ids[state]

    def _counted(self, row: Json, increment: Increment, *, mark: str) -> Json:
        foreign_marks = [entry for entry in row.get(ACCESS_MARKS_KEY, ()) if entry.rpartition(":")[0] != self._writer]
        return {
            "accessCount": row.get("accessCount", 0) + increment.count,
            "lastAccessedAt": max(row.get("lastAccessedAt", 0), increment.last_ms),
            ACCESS_MARKS_KEY: [*foreign_marks, mark][-MAX_ACCESS_MARKS:],
            "rev": row["rev"] + 1,
        }


def _latest_of_each(increments: Iterable[Increment]) -> dict[int, int]:
    """Return the latest time in each interval of `SAME_TIME_MS`, by the number of the interval."""
    latest_ms: dict[int, int] = {}
    for increment in increments:
        interval = increment.last_ms // SAME_TIME_MS
        latest_ms[interval] = max(latest_ms.get(interval, 0), increment.last_ms)
    return latest_ms


def _requests(changes: Iterable[tuple[Json, list[str]]]) -> Iterator[tuple[list[Json], int]]:
    """Yield the operations of each request, and how many memories they change."""
    operations: list[Json] = []
    count = 0
    for payload, ids in changes:
        for part in chunks_of(ids, MEMORIES_PER_WRITE):
            if count + len(part) > MEMORIES_PER_WRITE:
                yield operations, count
                operations, count = [], 0
            # Equal payloads imply equal previous revisions, because they contain the next one.
            unchanged = {"must": [{"has_id": list(part)}, equals("rev", payload["rev"] - 1)]}
            operations.append({"set_payload": {"payload": payload, "filter": unchanged}})
            count += len(part)
    if operations:
        yield operations, count


async def _read(agent: Agent, ids: Sequence[str]) -> dict[str, Json]:
    """Read the fields that counts depend on, of the memories that still exist."""
    points = await agent.store.retrieve(agent.alias, ids, keys=_READ_KEYS)
    return {point["id"]: point["payload"] for point in points if TOMBSTONE_KEY not in point["payload"]}
