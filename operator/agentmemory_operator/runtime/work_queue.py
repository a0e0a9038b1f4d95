"""Keyed work queue with retries: at most one pass per key at a time.

1. `WorkQueue.request` adds a key now or after a delay. Requests for a waiting key are merged. Requests for a running
   key together cause one more pass afterwards.
2. `FairQueue` (`runtime/fair_queue.py`) chooses the next key. Each tenant has a share of the workers, and each server
   has a share of that. So a server that does not respond delays only its own objects.
3. A worker calls the handler, which returns the delay until the next pass, or None.
4. A failed pass is retried with exponential backoff. The jitter keeps a thousand objects from retrying in step.

`run_periodically` runs a periodic check of every object of a kind in a queue of its own, with smaller shares.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextvars import ContextVar
from typing import Generic, Protocol, TypeVar

from agentmemory_operator.errors import TransientError
from agentmemory_operator.runtime.fair_queue import DEFAULT_LANE, FairQueue, TenantLane
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.runtime.tasks import cancel

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# Key that the current pass works on, or the object of `attribute_reads_to`. JSON log records contain it, and events
# about Secrets that may not be sent are posted to its object.
CURRENT: ContextVar[Hashable | None] = ContextVar("CURRENT", default=None)

FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0
TENANT_SHARE = 32
# Default maximum of concurrent calls by `run_periodically` for the objects of one namespace.
PERIODIC_SHARE = 4
LANE_WIDTH = 8


class Request(Protocol):
    """Requests a pass over an object."""

    def __call__(self, key: Key, *, after_s: float = 0.0) -> None:
        """Request a pass over the object of a key, now or after `after_s` seconds."""
        ...


def jittered(seconds: float) -> float:
    """Return the duration times a random factor of 0.8 to 1.2, which keeps a thousand objects from running in step."""
    return seconds * random.uniform(0.8, 1.2)


class WorkQueue(Generic[K]):
    """Runs `handle` for requested keys.

    Args:
        handle: Runs one pass; returns the seconds until the next one is due, or None. Any exception causes a retry with
            backoff; a TransientError can ask for a longer delay, up to `MAX_RETRY_S`.
        share: Maximum number of concurrent passes of a tenant that is alone; twice as many for all tenants together.
        tenant_lane_of: Returns tenant and lane of a key. By default all keys share one lane.
        width: Maximum number of concurrent passes of one tenant in a lane; twice as many for all tenants together.
    """

    def __init__(
        self,
        handle: Callable[[K], Awaitable[float | None]],
        *,
        share: int = TENANT_SHARE,
        tenant_lane_of: Callable[[K], TenantLane] = lambda key: DEFAULT_LANE,
        width: int = LANE_WIDTH,
    ) -> None:
        self._handle = handle
        self._workers = 2 * share
        self._tenant_lane_of = tenant_lane_of
        self._line: FairQueue[K] = FairQueue(share, width)
        # Keys that `FairQueue` has released. There are never more than workers.
        self._released: asyncio.Queue[tuple[K, TenantLane]] = asyncio.Queue()
        self._running: set[K] = set()
        self._repeat: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._last_progress_s: float | None = None

    @property
    def length(self) -> int:
        """Number of keys that wait for a worker."""
        return len(self._line)

    @property
    def stuck_s(self) -> float:
        """Seconds without the start or end of a pass while there is work; 0 if idle, or before `run`."""
        has_work = bool(self._line or self._running)
        if self._last_progress_s is None or not has_work:
            return 0.0
        return asyncio.get_running_loop().time() - self._last_progress_s

    def request(self, key: K, *, after_s: float = 0.0) -> None:
        """Request a pass, now or after `after_s` seconds. Of two requests for a key, the earlier due time applies."""
        if after_s > 0:
            self._schedule(key, after_s)
        elif key in self._running:
            self._repeat.add(key)
        elif key not in self._line:
            self._cancel(key)
            if not self._line and not self._running and self._last_progress_s is not None:
                self._record_progress()
            self._line.put(key, self._tenant_lane_of(key))
            self._release_keys()

    def forget(self, key: K) -> None:
        """Cancel pending requests of a deleted key, and reset its backoff.

        A running pass continues, and is retried if it fails.
        """
        self._cancel(key)
        self._line.drop(key)
        self._repeat.discard(key)
        self._failures.pop(key, None)

    async def run(self) -> None:
        """Process keys until cancelled. Keys that were requested earlier start now."""
        self._record_progress()
        self._release_keys()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    def _release_keys(self) -> None:
        while self._last_progress_s is not None and (entry := self._line.take()):
            self._running.add(entry[0])
            self._released.put_nowait(entry)

    async def _work(self) -> None:
        while True:
            key, tenant_lane = await self._released.get()
            delay_s = await self._run(key)
            self._line.release(tenant_lane)
            if key in self._repeat:
                self._repeat.discard(key)
                delay_s = 0.0
            if delay_s is not None:
                self.request(key, after_s=delay_s)
            self._release_keys()

    async def _run(self, key: K) -> float | None:
        self._record_progress()
        subject = CURRENT.set(key)
        try:
            return await self._pass(key)
        finally:
            CURRENT.reset(subject)
            self._running.discard(key)
            self._record_progress()

    def _record_progress(self) -> None:
        self._last_progress_s = asyncio.get_running_loop().time()

    async def _pass(self, key: K) -> float | None:
        try:
            delay_s = await self._handle(key)
        except TransientError as exc:
            return self._backoff(key, exc)
        except Exception as exc:
            # Catch every error here, because an error of one object must not stop the queue.
            log.exception("%s: the pass failed", key)
            return self._backoff(key, exc)
        self._failures.pop(key, None)
        return delay_s

    def _backoff(self, key: K, exc: Exception) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay_s: float = min(FIRST_RETRY_S * 2.0 ** min(failures - 1, 10), MAX_RETRY_S) * random.uniform(0.5, 1.0)
        if isinstance(exc, TransientError):
            delay_s = max(delay_s, min(exc.retry_after_s, MAX_RETRY_S))
        log.warning("%s: %s; try %d in %.1f s", key, exc, failures + 1, delay_s)
        return delay_s

    def _schedule(self, key: K, after_s: float) -> None:
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + after_s:
            return
        self._cancel(key)
        self._timers[key] = loop.call_later(after_s, self._due, key)

    def _due(self, key: K) -> None:
        # Remove the timer first, so that `request` does not treat it as pending.
        del self._timers[key]
        self.request(key)

    def _cancel(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()


class Queues:
    """Routes each request to the queue of its kind, so that slow work of one kind does not delay other kinds.

    Args:
        agents: Queue of AgentMemories.
        probes: Queue of QdrantConnections. It is separate, so that slow agents do not delay the probe of a server.
    """

    def __init__(self, agents: WorkQueue[Key], probes: WorkQueue[Key]) -> None:
        self._by_kind = {AGENT_MEMORY: agents, QDRANT_CONNECTION: probes}

    def add(self, kind: str, queue: WorkQueue[Key]) -> None:
        """Register the queue of another kind. Requests for kinds without a queue are ignored."""
        self._by_kind[kind] = queue

    def request(self, key: Key, *, after_s: float = 0.0) -> None:
        """Request a pass, now or after a delay in seconds. Ignored for a kind without a queue."""
        if queue := self._by_kind.get(key.kind):
            queue.request(key, after_s=after_s)

    def forget(self, key: Key) -> None:
        """Cancel the pending requests of a deleted key, and reset its backoff. Ignored for a kind without a queue."""
        if queue := self._by_kind.get(key.kind):
            queue.forget(key)

    async def run(self) -> None:
        """Run all queues until cancelled. A queue that is added later does not run."""
        async with asyncio.TaskGroup() as group:
            for queue in self._by_kind.values():
                group.create_task(queue.run())


async def run_periodically(
    table: ObjectTable,
    kind: str,
    check: Callable[[Key], Awaitable[None]],
    *,
    period_s: float,
    share: int = PERIODIC_SHARE,
) -> None:
    """Request a call of `check` for every object of a kind each period, until cancelled. Waiting requests are merged.

    Args:
        check: Checks one object. An exception causes a retry with backoff.
        period_s: Seconds between two rounds of requests.
        share: Maximum number of concurrent calls for one namespace; twice as many for all together.
    """
    queue: WorkQueue[Key] = WorkQueue(check, tenant_lane_of=table.tenant_lane_of, share=share, width=share)
    async with asyncio.TaskGroup() as group:
        group.create_task(queue.run())
        while True:
            for key in table.keys(kind):
                queue.request(key)
            await asyncio.sleep(period_s)


async def gather_by_key(
    keys: Iterable[Key], call: Callable[[Key], Awaitable[T]], *, tenant_lane_of: Callable[[Key], TenantLane], share: int
) -> dict[Key, T]:
    """Run `call` for each key concurrently; return the results by key.

    Args:
        tenant_lane_of: Returns tenant and lane of a key, as for `WorkQueue`.
        share: Maximum number of concurrent calls for one tenant; twice as many for all together.

    Raises:
        Exception: The first failure of a call. The other calls are cancelled.
    """
    queue: FairQueue[Key] = FairQueue(share, share)
    for key in keys:
        queue.put(key, tenant_lane_of(key))
    results: dict[Key, T] = {}
    tasks: set[asyncio.Task[None]] = set()

    async def answer(key: Key, tenant_lane: TenantLane) -> None:
        results[key] = await call(key)
        queue.release(tenant_lane)
        begin()

    def begin() -> None:
        while entry := queue.take():
            tasks.add(asyncio.create_task(answer(*entry)))

    begin()
    try:
        while running := {task for task in tasks if not task.done()}:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in filter(asyncio.Task.done, tasks):
                task.result()
    finally:
        # A task group would lose a cancellation that arrives while it handles a failure.
        await cancel(*tasks)
    return results
