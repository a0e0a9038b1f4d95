"""Account for the resources that each request uses until it is answered, and share them fairly among callers.

A request with a body has a *receiving slot* until its body is complete. It then takes a *processing slot*, may have to
wait for other requests of its caller, and gives up the receiving slot when it *runs*. A request without a body takes a
processing slot at its start. A request that is processed in pieces takes one for each piece, and keeps its receiving
slot. `RequestTotals` has the totals, `CallerUsage` those of one caller, `RequestSlot` those of one request.

- Processing slots: a caller may have as many as are free, except for a reserve (`may_take_slot`).
- Receiving slots: the rule is the same. If a caller may have no more, the slowest request is dropped: of the caller
  with the most receiving slots, if it has at least two more than this caller, otherwise of this caller.
- Body bytes: beyond the limit, the slowest large request of the caller with the most bytes is dropped.
- Large bodies of one caller wait for each other if they would exceed half of the byte limit together.
- Event loop time: if the process was busy in the last measured second, a caller that used more than the average caller
  has at most 8 requests running.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from agentmemory_operator.entrypoints.api.problems import OVERLOADED, Problem, ProblemRaised
from agentmemory_operator.runtime.rules.fair_shares import LoopTimeShares, MinimumRate, RecentThroughput, may_take_slot

RETRY_AFTER_S = 1
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one process.

    Attributes:
        requests: Number of processing slots.
        receiving: Number of receiving slots.
        body_bytes: Maximum size of all bodies in memory, without the first 32 KiB of each. A single body may exceed it.
        exports: Maximum number of concurrent exports and change streams.
        unauthenticated: Maximum number of unauthenticated requests: before a remote authentication, or to public paths
            other than probes.
        caller_rate: Requests per second and caller, which is also the burst; 0 is unlimited.
        min_rate: Minimum rate at which bodies must arrive.
    """

    requests: int = 512
    receiving: int = 256
    body_bytes: int = 32 * MIB
    exports: int = 32
    unauthenticated: int = 64
    caller_rate: int = 0
    min_rate: MinimumRate = field(default_factory=MinimumRate)


def overload_problem(reason: str) -> ProblemRaised:
    """Build the 429 error of a request that exceeds a limit. The caller may retry after `RETRY_AFTER_S`."""
    detail = f"{reason}: retry in {RETRY_AFTER_S} s"
    return ProblemRaised(Problem(type=OVERLOADED, detail=detail, headers={"Retry-After": str(RETRY_AFTER_S)}))


T = TypeVar("T")

REQUEST_SLOT = "hold"
# Bytes of each body that are not counted, so that large bodies cannot displace small ones.
SMALL_BYTES = 1 << 15
# Maximum running requests of a caller that uses more than an equal share of a busy process.
MAX_RUNNING = 8
# Maximum wait for other requests of the same caller, in seconds.
MAX_SLOT_WAIT_S = 10.0
# Poll interval of a request that waits between pieces, in seconds.
POLL_S = 0.05


@dataclass(slots=True, eq=False)
class CallerUsage:
    """Resources that one caller uses.

    Attributes:
        in_progress: Number of requests with a processing slot, including those that wait for other requests.
        running: Number of requests that are being processed; exports and change streams are not counted.
        exports: Number of exports and change streams in progress.
        large_bytes: Bytes of all bodies, without the first `SMALL_BYTES` of each.
        running_large_bytes: The part of `large_bytes` that belongs to running requests.
        receiving: Requests with a receiving slot.
        waiters: Events of waiting requests, set when a running request of the caller ends.
    """

    key: Hashable
    in_progress: int = 0
    running: int = 0
    exports: int = 0
    large_bytes: int = 0
    running_large_bytes: int = 0
    receiving: "set[RequestSlot]" = field(default_factory=set)
    waiters: "deque[asyncio.Event]" = field(default_factory=deque)


class RequestTotals:
    """Resources that all requests use, with the share of each caller that has requests in progress.

    Attributes:
        requests, receiving: Number of requests with a processing slot, and with a receiving slot.
        body_bytes: Bytes of all bodies in memory, and those reserved for their parsed parts.
        large_bytes: The same without the first `SMALL_BYTES` of each body. `Limits.body_bytes` limits this sum.
        exports: Number of exports and change streams in progress.
        shares: Usage by key of the caller.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests = 0
        self.receiving = 0
        self.body_bytes = 0
        self.large_bytes = 0
        self.exports = 0
        self.times = LoopTimeShares()
        self.shares: dict[Hashable, CallerUsage] = {}


@dataclass(slots=True, eq=False)
class RequestSlot:
    """Resources that one request uses, until it is answered.

    Attributes:
        body_bytes: Bytes of its body in memory, and those reserved for its parsed parts.
        receive_wait_s: Seconds that the process has waited for its body.
        is_in_pieces: True if the body is processed in pieces while it is received, as for an import.
    """

    _pressure: RequestTotals
    _share: CallerUsage
    body_bytes: int = 0
    receive_wait_s: float = 0.0
    is_in_pieces: bool = False
    _flow: RecentThroughput = field(default_factory=RecentThroughput)
    _large: int = 0
    _is_in_progress: bool = False
    _is_running: bool = False
    _is_export: bool = False
    # Set while the request waits. `_since_s` is only set while it waits for its body.
    _timeout: asyncio.Timeout | None = None
    _since_s: float | None = None
    _dropped: str | None = None

    def __enter__(self) -> "RequestSlot":
        return self

    def __exit__(self, *_: object) -> None:
        """Release all resources. A caller without other requests is removed from the table."""
        self._stop()
        self._keep(0)
        self._leave_receiving()
        if self._is_export:
            self._is_export = False
            self._share.exports -= 1
            self._pressure.exports -= 1
        if not (self._share.in_progress or self._share.receiving):
            self._pressure.shares.pop(self._share.key, None)

    def start_receiving(self) -> None:
        """Take a receiving slot for a request with an incomplete body, if necessary by dropping another request.

        Raises:
            ProblemRaised: If the caller may have no more receiving slots, and no request can be dropped for it.
        """
        pressure, share = self._pressure, self._share
        if not may_take_slot(len(share.receiving), pressure.receiving, pressure.limits.receiving):
            busiest = max(pressure.shares.values(), key=lambda candidate: len(candidate.receiving))
            owner = busiest if len(busiest.receiving) > len(share.receiving) + 1 else share
            slowest = _slowest(owner)
            if slowest is None:
                raise overload_problem(f"{len(share.receiving)} request bodies of this caller are being received")
            slowest.drop(
                f"{len(owner.receiving)} request bodies of this caller are being received, and this is the slowest"
            )
        share.receiving.add(self)
        pressure.receiving += 1

    async def start(self) -> None:
        """Start processing the request, after a wait for other requests of its caller if necessary.

        Raises:
            ProblemRaised: If the caller may have no more processing slots, the wait takes more than `MAX_SLOT_WAIT_S`,
                or the request is dropped during the wait.
        """
        pressure, share = self._pressure, self._share
        if not self._try_reserve():
            in_progress = f"{share.in_progress} requests of this caller ({pressure.requests} in total)"
            raise overload_problem(f"{in_progress} are in progress")
        if self._must_wait():
            wakeup = asyncio.Event()
            share.waiters.append(wakeup)
            try:
                await self._wait_for(wakeup)
            finally:
                share.waiters.remove(wakeup)
        self._leave_receiving()
        self._run()

    def _run(self) -> None:
        self._share.running_large_bytes += self._large
        self._share.running += 1
        self._is_running = True

    async def _wait_for(self, wakeup: asyncio.Event) -> None:
        async def come() -> None:
            while self._must_wait():
                wakeup.clear()
                await wakeup.wait()

        try:
            await self.await_droppable(come(), MAX_SLOT_WAIT_S, is_awaited=False)
        except TimeoutError:
            self.check()
            raise overload_problem(f"other requests of this caller took {MAX_SLOT_WAIT_S:.0f} s") from None

    def _try_reserve(self) -> bool:
        """Take a processing slot if `may_take_slot` allows it; return whether it was taken."""
        pressure, share = self._pressure, self._share
        if not may_take_slot(share.in_progress, pressure.requests, pressure.limits.requests):
            return False
        self._is_in_progress = True
        share.in_progress += 1
        pressure.requests += 1
        return True

    def _must_wait(self) -> bool:
        """Return whether other requests of the caller must end first."""
        share, pressure = self._share, self._pressure
        if share.running >= MAX_RUNNING and pressure.times.has_exceeded_share(share.key, time.perf_counter()):
            return True
        large_bytes = share.running_large_bytes
        return bool(self._large and large_bytes) and large_bytes + self._large > pressure.limits.body_bytes // 2

    @asynccontextmanager
    async def run_piece(self) -> AsyncIterator[None]:
        """Process one piece of a body inside the context, after a wait for other requests or a processing slot.

        Raises:
            ProblemRaised: If the wait takes more than `MAX_SLOT_WAIT_S`.
        """
        deadline_s = time.monotonic() + MAX_SLOT_WAIT_S
        while (must_wait := self._must_wait()) or not self._try_reserve():
            if time.monotonic() >= deadline_s:
                raise overload_problem(f"other requests{' of this caller' * must_wait} took {MAX_SLOT_WAIT_S:.0f} s")
            await asyncio.sleep(POLL_S)
        self._run()
        try:
            yield
        finally:
            self._stop()

    def start_export(self) -> None:
        """Count the request as an export or a change stream; repeated calls do nothing.

        It keeps its processing slot, but no longer counts as running, because an export is long and uses little event
        loop time.

        Raises:
            ProblemRaised: If the caller may have no more exports (`may_take_slot`).
        """
        if self._is_export:
            return
        pressure, share = self._pressure, self._share
        if not may_take_slot(share.exports, pressure.exports, pressure.limits.exports):
            raise overload_problem(
                f"{share.exports} exports of this caller ({pressure.exports} in total) are in progress"
            )
        self._stop(ends_request=False)
        self._is_export = True
        share.exports += 1
        pressure.exports += 1

    def add_body_bytes(self, body_bytes: int) -> None:
        """Count further bytes of the body in memory, if necessary by dropping other requests.

        A body is always accepted while no other large body is in memory.

        Raises:
            ProblemRaised: If there is no capacity and this request is chosen to be dropped, or was dropped before.
        """
        self.check()
        self._flow.add(body_bytes, self.receive_wait_s)
        self._keep(self.body_bytes + body_bytes)
        pressure = self._pressure
        while self._large and pressure.large_bytes > max(pressure.limits.body_bytes, self._large):
            self._drop_for_body()

    def release_body_bytes(self, body_bytes: int) -> None:
        """Stop counting bytes of the body that are no longer in memory."""
        self._keep(self.body_bytes - body_bytes)

    def _drop_for_body(self) -> None:
        pressure, caller_share = self._pressure, self._share
        victim = self
        for share in sorted(pressure.shares.values(), key=lambda share: share.large_bytes, reverse=True):
            if share is caller_share or share.large_bytes < caller_share.large_bytes:
                victim = _slowest(caller_share, large=True, candidate=self) or self
                break
            if slowest := _slowest(share, large=True):
                victim = slowest
                break
        reason = f"request bodies of {pressure.large_bytes // MIB} MiB are being received or processed"
        if victim is self:
            self._keep(0)
            raise overload_problem(reason)
        victim.drop(f"{reason}, and this is the slowest of the caller with the most")

    def _keep(self, body_bytes: int) -> None:
        large = max(body_bytes - SMALL_BYTES, 0)
        added, self._large = large - self._large, large
        self._pressure.body_bytes += body_bytes - self.body_bytes
        self.body_bytes = body_bytes
        if added:
            self._share.large_bytes += added
            self._pressure.large_bytes += added
            if self._is_running:
                self._share.running_large_bytes += added

    async def await_droppable(self, operation: Awaitable[T], seconds: float, *, is_awaited: bool = True) -> T:
        """Await an operation. The request may be dropped during the wait.

        Args:
            seconds: Timeout in seconds.
            is_awaited: True if the operation receives the body, False if it waits for other requests.

        Raises:
            TimeoutError: If the timeout ends, or the request is dropped. `check` distinguishes the two.
        """
        self._since_s = time.monotonic() if is_awaited else None
        try:
            async with asyncio.timeout(seconds) as self._timeout:
                return await operation
        finally:
            self._timeout = None
            if self._since_s is not None:
                self.receive_wait_s += time.monotonic() - self._since_s
                self._since_s = None

    @property
    def arrival_rate(self) -> float:
        """Decaying sum of the bytes received of its body. It decays only while the process waits for the body."""
        current_wait_s = 0.0 if self._since_s is None else time.monotonic() - self._since_s
        return self._flow.level(self.receive_wait_s + current_wait_s)

    @property
    def is_droppable(self) -> bool:
        """True if the request waits, and is not dropped yet."""
        return self._timeout is not None and self._dropped is None

    @property
    def is_large(self) -> bool:
        """True if its body is larger than `SMALL_BYTES`, so that some of its bytes count for the limit."""
        return self._large > 0

    def drop(self, reason: str) -> None:
        """Release the request's bytes and receiving slot, and end its wait. `check` then raises with the reason."""
        self._dropped = reason
        if self._timeout is not None:
            self._timeout.reschedule(0)
        self._keep(0)
        self._leave_receiving()

    def check(self) -> None:
        """Raise if the request was dropped.

        Raises:
            ProblemRaised: If it was dropped. The detail gives the reason.
        """
        if self._dropped is not None:
            raise overload_problem(self._dropped)

    def _stop(self, *, ends_request: bool = True) -> None:
        if self._is_running:
            self._is_running = False
            self._share.running -= 1
            self._share.running_large_bytes -= self._large
            for wakeup in self._share.waiters:
                wakeup.set()
        if ends_request and self._is_in_progress:
            self._is_in_progress = False
            self._share.in_progress -= 1
            self._pressure.requests -= 1

    def _leave_receiving(self) -> None:
        if self in self._share.receiving:
            self._share.receiving.remove(self)
            self._pressure.receiving -= 1


def _slowest(share: CallerUsage, *, large: bool = False, candidate: RequestSlot | None = None) -> RequestSlot | None:
    """Return the request of a caller with the slowest body, among those that may be dropped; None if there is none.

    Args:
        large: True to consider only requests with counted bytes.
        candidate: An additional candidate, though it does not wait.
    """
    droppable = [slot for slot in share.receiving if slot.is_droppable and (slot.is_large or not large)]
    return min([*droppable, *([candidate] if candidate else [])], key=lambda slot: slot.arrival_rate, default=None)
