"""How often memories were returned: noted in memory, flushed in batches, never on an answer's path.

Several replicas count the same memories, and the engine can neither add nor tell whether a conditional write took
effect. So a flush is a compare-and-set on the point's `rev`, which also leaves a mark `writer:flush` on the point, and
then a read: the increment was applied if and only if its mark is there. Without it the flush tries again, this time or
the next; so an increment whose answer was lost is neither lost nor counted twice. A point keeps the last mark of each
of the 16 writers that wrote last.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from agentmemory_operator.domain.filters import NOT_DELETED, equals, only
from agentmemory_operator.domain.records import ACCESS_MARKS_KEY
from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.ports import Clock, Json
from agentmemory_operator.services.directory import Agent

_log = logging.getLogger(__name__)

OpenAgent = Callable[[str], Awaitable[Agent]]
"""`AgentDirectory.open`."""

FLUSH_INTERVAL_S = 30.0
# Bounds memory when Qdrant is away for long: about 20 MB. Beyond, the increments noted first are dropped.
MAX_WAITING = 100_000
CHUNK = 200
# Only another writer to the same memory makes an attempt fail; what is left then waits for the next flush.
MAX_ATTEMPTS = 10
KEPT_MARKS = 16

_READ_KEYS = ["rev", "accessCount", "lastAccessedAt", ACCESS_MARKS_KEY]


@dataclass(frozen=True, slots=True)
class Increment:
    """Accesses of one memory, not written yet."""

    count: int
    last_ms: int

    def later(self, now_ms: int) -> "Increment":
        """Return the increment with one more access."""
        return Increment(self.count + 1, now_ms)


@dataclass(slots=True)
class _Sent:
    """Increments of one agent, by memory, sent under one mark and not seen on the points yet."""

    mark: str
    increments: dict[str, Increment]


class AccessCounts:
    """Notes and flushes access counts.

    Args:
        open_agent: gives the agent of a slug at the time of the flush.
        writer: names this process and never another, before or after it.

    Attributes:
        dropped: accesses given up, because too many were waiting or the engine refused them for good.
    """

    def __init__(self, open_agent: OpenAgent, clock: Clock, *, writer: str) -> None:
        self._open_agent = open_agent
        self._clock = clock
        self._writer = writer
        self._flushes = itertools.count(1)
        self._noted: dict[tuple[str, str], Increment] = {}
        self._sent: dict[str, _Sent] = {}
        self._lock = asyncio.Lock()
        self.dropped = 0

    @property
    def waiting(self) -> int:
        """Memories whose accesses are not written yet."""
        return len(self._noted) + sum(len(sent.increments) for sent in self._sent.values())

    def note(self, slug: str, ids: Sequence[str]) -> None:
        """Count one access of each memory."""
        now_ms = self._clock.now_ms()
        for memory_id in ids:
            key = slug, memory_id
            self._noted[key] = self._noted.pop(key, Increment(0, now_ms)).later(now_ms)
        for key in list(itertools.islice(self._noted, max(0, self.waiting - MAX_WAITING))):
            self.dropped += self._noted.pop(key).count

    async def flush(self) -> None:
        """Write what was noted; what could not be written waits for the next flush."""
        async with self._lock:
            for slug in dict.fromkeys([*self._sent, *(slug for slug, _ in self._noted)]):
                await self._try_flush_agent(slug)

    async def run(self, interval_s: float = FLUSH_INTERVAL_S) -> None:
        """Flush until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(interval_s)
                await self.flush()
        finally:
            await self.flush()

    async def _try_flush_agent(self, slug: str) -> None:
        try:
            await self._flush_agent(slug)
        except TransientError as error:
            _log.warning("access counts of agent %s wait for the next flush: %s", slug, error)
        except AgentMemoryError as error:
            given_up = [*self._take(slug).values(), *self._sent.pop(slug, _Sent("", {})).increments.values()]
            self.dropped += sum(increment.count for increment in given_up)
            _log.warning("access counts of agent %s are dropped: %s", slug, error)

    async def _flush_agent(self, slug: str) -> None:
        agent = await self._open_agent(slug)
        if slug in self._sent:
            await self._settle(agent, self._sent[slug])
        if slug not in self._sent or not self._sent[slug].increments:
            self._sent[slug] = _Sent(f"{self._writer}:{next(self._flushes)}", self._take(slug))
            await self._settle(agent, self._sent[slug])
        if not self._sent[slug].increments:
            del self._sent[slug]

    def _take(self, slug: str) -> dict[str, Increment]:
        keys = [key for key in self._noted if key[0] == slug]
        return {key[1]: self._noted.pop(key) for key in keys}

    async def _settle(self, agent: Agent, sent: _Sent) -> None:
        """Write increments until each is seen on its point, or the memory is gone."""
        ids = list(sent.increments)
        for start in range(0, len(ids), CHUNK):
            await self._settle_chunk(agent, sent, ids[start : start + CHUNK])

    async def _settle_chunk(self, agent: Agent, sent: _Sent, ids: Sequence[str]) -> None:
        for _ in range(MAX_ATTEMPTS):
            rows = await _read(agent, ids)
            waiting = {id_: row for id_, row in rows.items() if sent.mark not in row.get(ACCESS_MARKS_KEY, ())}
            for memory_id in set(ids) - waiting.keys():
                sent.increments.pop(memory_id, None)
            if not waiting:
                return
            await agent.store.batch(agent.alias, self._operations(sent, waiting), strong=True)
            ids = list(waiting)

    def _operations(self, sent: _Sent, rows: Mapping[str, Json]) -> list[Json]:
        def set_payload(memory_id: str, row: Json) -> Json:
            payload = self._counted(row, sent.increments[memory_id], mark=sent.mark)
            return {"set_payload": {"payload": payload, "filter": only(memory_id, equals("rev", row["rev"]))}}

        return [set_payload(memory_id, row) for memory_id, row in rows.items()]

    def _counted(self, row: Json, increment: Increment, *, mark: str) -> Json:
        others = [other for other in row.get(ACCESS_MARKS_KEY, ()) if other.rpartition(":")[0] != self._writer]
        return {
            "accessCount": row.get("accessCount", 0) + increment.count,
            "lastAccessedAt": max(row.get("lastAccessedAt", 0), increment.last_ms),
            ACCESS_MARKS_KEY: [*others, mark][-KEPT_MARKS:],
            "rev": row["rev"] + 1,
            "updatedAt": self._clock.now_ms(),
        }


async def _read(agent: Agent, ids: Sequence[str]) -> dict[str, Json]:
    """Return what the counts depend on, of the memories that are still there."""
    there = {"must": [{"has_id": list(ids)}, NOT_DELETED]}
    body = {"filter": there, "limit": CHUNK, "with_payload": _READ_KEYS, "with_vector": False}
    points, _ = await agent.store.scroll(agent.alias, body)
    return {point["id"]: point["payload"] for point in points}
