"""What one request takes up of what all may, from its first byte to its answer, and what it waits for meanwhile."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from agentmemory_operator.entrypoints.api.problems import OVERLOADED, Problem, ProblemRaised
from agentmemory_operator.runtime.rules.fair_shares import Flow, Pace, TimeShares, has_place

RETRY_AFTER_S = 1
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one process.

    Attributes:
        requests: under way at once.
        receiving: requests whose bodies are not complete.
        body_bytes: of all bodies, but for the beginning of each.
        exports: under way at once.
        strangers: requests of whom nobody knows yet whose they are, or that nobody asks for.
        caller_rate: requests of one caller in a second, and as many at once; 0 is any number.
        pace: of bodies.
    """

    requests: int = 512
    receiving: int = 256
    body_bytes: int = 32 * MIB
    exports: int = 32
    strangers: int = 64
    caller_rate: int = 0
    pace: Pace = field(default_factory=Pace)


def overloaded(why: str) -> ProblemRaised:
    """The refusal of a request."""
    detail = f"{why}: retry in {RETRY_AFTER_S} s"
    return ProblemRaised(Problem(type=OVERLOADED, detail=detail, headers={"Retry-After": str(RETRY_AFTER_S)}))


T = TypeVar("T")

HOLD = "hold"
# So much of each body counts for nothing: large bodies keep no small one out.
SMALL_BYTES = 1 << 15
# Of a caller that takes too much of the process's time.
MOST_RUNNING = 8
# How long a request waits for others of its caller to end.
TURN_S = 10.0
# How often one looks again that waits for its turn between pieces.
LOOK_S = 0.05


@dataclass(slots=True, eq=False)
class Share:
    """What one caller takes up."""

    key: Hashable
    under_way: int = 0
    running: int = 0
    exports: int = 0
    large_bytes: int = 0
    large_under_way: int = 0
    receiving: "set[Hold]" = field(default_factory=set)
    turns: "deque[asyncio.Event]" = field(default_factory=deque)


class InFlight:
    """What all requests take up together, and each caller; who has nothing under way is not known."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests = 0
        self.receiving = 0
        self.body_bytes = 0
        self.large_bytes = 0
        self.exports = 0
        self.times = TimeShares()
        self.shares: dict[Hashable, Share] = {}


@dataclass(slots=True, eq=False)
class Hold:
    """What one request takes up, until it is answered.

    Attributes:
        body_bytes: that are kept of its body.
        waited_s: how long the caller kept it waiting for them.
        is_in_pieces: is worked on while its body comes.
    """

    _pressure: InFlight
    _share: Share
    body_bytes: int = 0
    waited_s: float = 0.0
    is_in_pieces: bool = False
    _flow: Flow = field(default_factory=Flow)
    _large: int = 0
    _is_under_way: bool = False
    _is_running: bool = False
    _is_export: bool = False
    # While it waits, and since when for its caller.
    _timeout: asyncio.Timeout | None = None
    _since_s: float | None = None
    _dropped: str | None = None

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, *_: object) -> None:
        """Take up nothing any more; a caller of whom nothing is left is forgotten."""
        self._stop()
        self._keep(0)
        self._leave_receiving()
        if self._is_export:
            self._is_export = False
            self._share.exports -= 1
            self._pressure.exports -= 1
        if not (self._share.under_way or self._share.receiving):
            self._pressure.shares.pop(self._share.key, None)

    def begin_receiving(self) -> None:
        """Take a place among those whose bodies come; without one, the slowest of who has most loses its own.

        Raises:
            ProblemRaised: there is none.
        """
        pressure, share = self._pressure, self._share
        if not has_place(len(share.receiving), pressure.receiving, pressure.limits.receiving):
            most = max(pressure.shares.values(), key=lambda other: len(other.receiving))
            loses = most if len(most.receiving) > len(share.receiving) + 1 else share
            slowest = _slowest(loses)
            if slowest is None:
                raise overloaded(f"{len(share.receiving)} request bodies of this caller are being received")
            slowest.drop(
                f"{len(loses.receiving)} request bodies of this caller are being received, and this is the slowest"
            )
        share.receiving.add(self)
        pressure.receiving += 1

    async def enter(self) -> None:
        """Be under way from now on, when it is this caller's turn.

        Raises:
            ProblemRaised: the caller has too much under way.
        """
        pressure, share = self._pressure, self._share
        if not self._takes_place():
            told = f"{share.under_way} requests of this caller ({pressure.requests} in total)"
            raise overloaded(f"{told} are in progress")
        if self._must_wait():
            turn = asyncio.Event()
            share.turns.append(turn)
            try:
                await self._wait_for(turn)
            finally:
                share.turns.remove(turn)
        self._leave_receiving()
        self._run()

    def _run(self) -> None:
        self._share.large_under_way += self._large
        self._share.running += 1
        self._is_running = True

    async def _wait_for(self, turn: asyncio.Event) -> None:
        async def come() -> None:
            while self._must_wait():
                turn.clear()
                await turn.wait()

        try:
            await self.waiting(come(), TURN_S, is_awaited=False)
        except TimeoutError:
            self.check()
            raise overloaded(f"other requests of this caller took {TURN_S:.0f} s") from None

    def _takes_place(self) -> bool:
        """Take a place among those under way; tell whether there was one."""
        pressure, share = self._pressure, self._share
        if not has_place(share.under_way, pressure.requests, pressure.limits.requests):
            return False
        self._is_under_way = True
        share.under_way += 1
        pressure.requests += 1
        return True

    def _must_wait(self) -> bool:
        """Whether others of the caller have to end before."""
        share, pressure = self._share, self._pressure
        if share.running >= MOST_RUNNING and pressure.times.takes_too_much(share.key, time.perf_counter()):
            return True
        held = share.large_under_way
        return bool(self._large and held) and held + self._large > pressure.limits.body_bytes // 2

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Be under way while the context is open, between pieces of a body; wait where the caller has too much."""
        until_s = time.monotonic() + TURN_S
        while self._must_wait() or not self._takes_place():
            if time.monotonic() >= until_s:
                raise overloaded(f"other requests of this caller took {TURN_S:.0f} s")
            await asyncio.sleep(LOOK_S)
        self._run()
        try:
            yield
        finally:
            self._stop()

    def begin_export(self) -> None:
        """Take a place among exports, which are under way for long and do little at a time.

        Raises:
            ProblemRaised: there is none.
        """
        if self._is_export:
            return
        pressure, share = self._pressure, self._share
        if not has_place(share.exports, pressure.exports, pressure.limits.exports):
            raise overloaded(f"{share.exports} exports of this caller ({pressure.exports} in total) are in progress")
        self._stop(gives_place=False)
        self._is_export = True
        share.exports += 1
        pressure.exports += 1

    def take(self, body_bytes: int) -> None:
        """Count so many more bytes of the body.

        Raises:
            ProblemRaised: there is no room, and the caller has most of it; alone, a body always has.
        """
        self.check()
        self._flow.add(body_bytes, self.waited_s)
        self._keep(self.body_bytes + body_bytes)
        pressure = self._pressure
        while self._large and pressure.large_bytes > max(pressure.limits.body_bytes, self._large):
            self._make_room()

    def give_back(self, body_bytes: int) -> None:
        """Count so many bytes of the body no more."""
        self._keep(self.body_bytes - body_bytes)

    def _make_room(self) -> None:
        pressure, mine = self._pressure, self._share
        victim = self
        for share in sorted(pressure.shares.values(), key=lambda share: share.large_bytes, reverse=True):
            if share is mine or share.large_bytes < mine.large_bytes:
                victim = _slowest(mine, large=True, beside=self) or self
                break
            if slowest := _slowest(share, large=True):
                victim = slowest
                break
        why = f"request bodies of {pressure.large_bytes // MIB} MiB are being received or processed"
        if victim is self:
            self._keep(0)
            raise overloaded(why)
        victim.drop(f"{why}, and this is the slowest of the caller with the most")

    def _keep(self, body_bytes: int) -> None:
        large = max(body_bytes - SMALL_BYTES, 0)
        more, self._large = large - self._large, large
        self._pressure.body_bytes += body_bytes - self.body_bytes
        self.body_bytes = body_bytes
        if more:
            self._share.large_bytes += more
            self._pressure.large_bytes += more
            if self._is_running:
                self._share.large_under_way += more

    async def waiting(self, work: Awaitable[T], seconds: float, *, is_awaited: bool = True) -> T:
        """What is waited for; meanwhile it may be dropped.

        Args:
            seconds: at most.
            is_awaited: it waits for its body, and not for its turn.

        Raises:
            TimeoutError: it took longer, or was dropped, which `check` tells.
        """
        self._since_s = time.monotonic() if is_awaited else None
        try:
            async with asyncio.timeout(seconds) as self._timeout:
                return await work
        finally:
            self._timeout = None
            if self._since_s is not None:
                self.waited_s += time.monotonic() - self._since_s
                self._since_s = None

    @property
    def liveliness(self) -> float:
        """How lively its body comes, in the time that it was waited for."""
        so_far_s = 0.0 if self._since_s is None else time.monotonic() - self._since_s
        return self._flow.level(self.waited_s + so_far_s)

    @property
    def may_be_dropped(self) -> bool:
        """Whether it waits for its caller."""
        return self._timeout is not None and self._dropped is None

    @property
    def is_large(self) -> bool:
        """Whether its bytes count."""
        return self._large > 0

    def drop(self, why: str) -> None:
        """Take everything from it; whoever waits for its body learns why."""
        self._dropped = why
        if self._timeout is not None:
            self._timeout.reschedule(0)
        self._keep(0)
        self._leave_receiving()

    def check(self) -> None:
        """Pass where it was not dropped.

        Raises:
            ProblemRaised: it was.
        """
        if self._dropped is not None:
            raise overloaded(self._dropped)

    def _stop(self, *, gives_place: bool = True) -> None:
        if self._is_running:
            self._is_running = False
            self._share.running -= 1
            self._share.large_under_way -= self._large
            for turn in self._share.turns:
                turn.set()
        if gives_place and self._is_under_way:
            self._is_under_way = False
            self._share.under_way -= 1
            self._pressure.requests -= 1

    def _leave_receiving(self) -> None:
        if self in self._share.receiving:
            self._share.receiving.remove(self)
            self._pressure.receiving -= 1


def _slowest(share: Share, *, large: bool = False, beside: Hold | None = None) -> Hold | None:
    """Who waits of a caller's requests and whose body comes slowest.

    Args:
        large: only of those whose bytes count.
        beside: may be it too, though it does not wait.
    """
    able = [hold for hold in share.receiving if hold.may_be_dropped and (hold.is_large or not large)]
    return min([*able, *([beside] if beside else [])], key=lambda hold: hold.liveliness, default=None)
