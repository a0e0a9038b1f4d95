"""The body of a request while it comes: counted, held to a pace, and only then under way."""

import time
from collections.abc import Awaitable, Generator, Hashable, Mapping
from dataclasses import dataclass
from types import coroutine
from typing import Any

from starlette.types import Message, Receive

from agentmemory_operator.entrypoints.api.load.in_flight import Hold
from agentmemory_operator.entrypoints.api.problems import TOO_SLOW, Problem, ProblemRaised
from agentmemory_operator.runtime.rules.fair_shares import Pace, TimeShares

KIB = 1 << 10
# Work that goes on is counted in parts of about so much.
TOLD_S = 0.01


def has_body(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request says that a body comes with it."""
    return headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers


@dataclass(slots=True)
class Receiving:
    """Wraps what a request is received from; has a place among those whose bodies come until the body is complete.

    Only the time counts in which the application waits for the caller, not that in which the caller waits for it.

    Attributes:
        hold: has begun to receive.
        pace: at which the body has to come.
    """

    receive: Receive
    hold: Hold
    pace: Pace
    _is_complete: bool = False
    # Of the window in which the pace is judged.
    _began_waited_s: float = 0.0
    _came: int = 0

    async def __call__(self) -> Message:
        """The next message.

        Raises:
            ProblemRaised: the body comes too slowly, was dropped, or the caller has too much under way.
        """
        if self._is_complete:
            return await self.receive()
        hold, pace = self.hold, self.pace
        message: Message | None = None
        while message is None:
            left_s = pace.window_s - (hold.waited_s - self._began_waited_s)
            if left_s <= 0:
                self._judge()
                continue
            try:
                message = await hold.waiting(self.receive(), left_s)
            except TimeoutError:
                hold.check()
        if message["type"] != "http.request":
            return message
        size = len(message.get("body", b""))
        self._came += size
        hold.take(size)
        if not message.get("more_body", False):
            self._is_complete = True
            # What is worked on in pieces takes a turn for each.
            if not hold.is_in_pieces:
                await hold.enter()
        return message

    def _judge(self) -> None:
        """Begin another window.

        Raises:
            ProblemRaised: too little came in the last one.
        """
        if self._came < self.pace.least_bytes:
            detail = (
                f"{self._came} bytes of the body arrived in {self.pace.window_s:.0f} s: send at least"
                f" {self.pace.least_bytes / KIB:.0f} KiB, or all of it"
            )
            # What else comes on this connection is not waited for.
            raise ProblemRaised(Problem(type=TOO_SLOW, detail=detail, headers={"Connection": "close"}))
        self._came, self._began_waited_s = 0, self.hold.waited_s


@coroutine
def timed(work: Awaitable[None], times: TimeShares, key: Hashable) -> Generator[Any, Any, None]:
    """Await something step by step, and count the time that the process spends on it, but not the time in between."""
    steps, clock, took_s = work.__await__(), time.perf_counter, 0.0
    began_s = clock()
    try:
        awaited = steps.send(None)
        while True:
            took_s += clock() - began_s
            if took_s > TOLD_S:
                times.add(key, took_s, clock())
                took_s = 0.0
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001  # handed on to the work, which knows what to do
                began_s = clock()
                awaited = steps.throw(error)
            else:
                began_s = clock()
                awaited = steps.send(None)
    except StopIteration:
        return
    finally:
        now_s = clock()
        times.add(key, took_s + now_s - began_s, now_s)
