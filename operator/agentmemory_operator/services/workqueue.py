"""A keyed work queue: one pass per key at a time, requests while it runs are folded into one more pass.

Keys run in lanes, a bounded number of passes in each: what a slow server holds up, holds up its own objects only.

Failures are retried with jittered exponential backoff, so that a thousand objects do not return in step.
"""

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import Generic, TypeVar

from agentmemory_operator.errors import TransientError

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

# What the pass under way is about; the logs tell it with each line.
CURRENT: ContextVar[Hashable | None] = ContextVar("CURRENT", default=None)

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
LANE_WIDTH = 8


class WorkQueue(Generic[K]):
    """Runs `handle` for requested keys.

    Args:
        handle: does one pass; returns after how many seconds the next one is due, None for never. A TransientError
            asks for a retry.
        workers: passes at a time.
        lane_of: the lane of a key; without it there is one.
        width: passes at a time in each lane.
    """

    def __init__(
        self,
        handle: Callable[[K], Awaitable[float | None]],
        *,
        workers: int = 64,
        lane_of: Callable[[K], Hashable] = lambda key: None,
        width: int = LANE_WIDTH,
    ) -> None:
        self._handle = handle
        self._workers = workers
        self._lane_of = lane_of
        self._width = width
        self._ready: dict[Hashable, deque[K]] = {}
        # A turn lets one worker take one key of a lane; no lane has more turns than its width, taken ones included.
        self._turns: asyncio.Queue[Hashable] = asyncio.Queue()
        self._turns_of: Counter[Hashable] = Counter()
        self._queued: set[K] = set()
        self._running: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._moved_s: float | None = None

    @property
    def length(self) -> int:
        """How many keys wait for a worker."""
        return len(self._queued)

    @property
    def stuck_s(self) -> float:
        """For how many seconds there has been work without any pass beginning or ending; 0 before `run`."""
        has_work = bool(self._queued or self._running)
        if self._moved_s is None or not has_work:
            return 0.0
        return asyncio.get_running_loop().time() - self._moved_s

    def request(self, key: K, *, after_s: float = 0.0) -> None:
        """Ask for a pass, now or later; the earlier of two requests stands."""
        if after_s > 0:
            self._schedule(key, after_s)
        elif key in self._running:
            self._again.add(key)
        elif key not in self._queued:
            self._cancel(key)
            if not self._queued and not self._running and self._moved_s is not None:
                self._move()
            self._queued.add(key)
            self._enqueue(key)

    def forget(self, key: K) -> None:
        """Drop what is scheduled for a key that is gone."""
        self._cancel(key)
        self._again.discard(key)
        self._failures.pop(key, None)

    async def run(self) -> None:
        """Work until cancelled."""
        self._move()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    def _enqueue(self, key: K) -> None:
        lane = self._lane_of(key)
        self._ready.setdefault(lane, deque()).append(key)
        if self._turns_of[lane] < self._width:
            self._turns_of[lane] += 1
            self._turns.put_nowait(lane)

    async def _work(self) -> None:
        while True:
            lane = await self._turns.get()
            if waiting := self._ready.get(lane):
                await self._run(waiting.popleft())
            self._give_back(lane)

    def _give_back(self, lane: Hashable) -> None:
        """Hand a turn on to the lane's next key, behind the other lanes' turns; else drop it."""
        if self._ready.get(lane):
            self._turns.put_nowait(lane)
            return
        self._ready.pop(lane, None)
        self._turns_of[lane] -= 1
        if not self._turns_of[lane]:
            del self._turns_of[lane]

    async def _run(self, key: K) -> None:
        self._queued.discard(key)
        self._running.add(key)
        self._move()
        subject = CURRENT.set(key)
        try:
            due_s = await self._pass(key)
        finally:
            CURRENT.reset(subject)
            self._running.discard(key)
            self._move()
        if key in self._again:
            self._again.discard(key)
            due_s = 0.0
        if due_s is not None:
            self.request(key, after_s=due_s)

    def _move(self) -> None:
        self._moved_s = asyncio.get_running_loop().time()

    async def _pass(self, key: K) -> float | None:
        try:
            due_s = await self._handle(key)
        except TransientError as exc:
            return self._backoff(key, exc)
        except Exception as exc:
            # The edge of a pass: one object must not stop the others.
            log.exception("%s: the pass failed", key)
            return self._backoff(key, exc)
        self._failures.pop(key, None)
        return due_s

    def _backoff(self, key: K, exc: Exception) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay: float = min(FIRST_RETRY_S * 2.0 ** min(failures - 1, 10), LAST_RETRY_S) * random.uniform(0.5, 1.0)
        if isinstance(exc, TransientError):
            delay = max(delay, min(exc.retry_after_s, LAST_RETRY_S))
        log.warning("%s: %s; try %d in %.1f s", key, exc, failures + 1, delay)
        return delay

    def _schedule(self, key: K, after_s: float) -> None:
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + after_s:
            return
        self._cancel(key)
        self._timers[key] = loop.call_later(after_s, self._due, key)

    def _due(self, key: K) -> None:
        # A timer that has fired must not count as one that is still to come.
        del self._timers[key]
        self.request(key)

    def _cancel(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
