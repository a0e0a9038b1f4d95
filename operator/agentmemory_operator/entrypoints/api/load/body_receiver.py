"""Receive the body of a request: count its bytes, enforce a minimum rate, then start the request.

`run_timed` measures the event loop time of a request.
"""

import time
from collections.abc import Awaitable, Generator, Hashable, Mapping
from dataclasses import dataclass
from types import coroutine
from typing import Any

from starlette.types import Message, Receive

from agentmemory_operator.entrypoints.api.load.request_slots import RequestSlot
from agentmemory_operator.entrypoints.api.problems import TOO_SLOW, Problem, ProblemRaised
from agentmemory_operator.runtime.rules.fair_shares import LoopTimeShares, MinimumRate

KIB = 1 << 10
# Seconds of event loop time of a running request after which they are added to its caller's share.
MEASURE_PERIOD_S = 0.01


def has_body(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the headers announce a body."""
    return headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers


@dataclass(slots=True)
class BodyReceiver:
    """Wraps the ASGI `receive` of a request: measures the rate of its body, and starts the request after the body.

    A request that is processed in pieces is not started here: it takes a processing slot for each piece.
    Only time in which the application waits for the body counts for the rate.

    Attributes:
        receive: The server's `receive`.
        slot: Slot of the request, after `start_receiving`.
        min_rate: Minimum rate at which the body must arrive.
    """

    receive: Receive
    slot: RequestSlot
    min_rate: MinimumRate
    _is_complete: bool = False
    # State of the window over which the rate is measured.
    _began_waited_s: float = 0.0
    _received_bytes: int = 0

    async def __call__(self) -> Message:
        """Return the next message. Before the last part of the body is returned, the request is started.

        Raises:
            ProblemRaised: If the body arrives too slowly or there is no capacity for it, the request was dropped, or it
                may not start (`RequestSlot.start`).
        """
        if self._is_complete:
            return await self.receive()
        slot, min_rate = self.slot, self.min_rate
        message: Message | None = None
        while message is None:
            remaining_s = min_rate.window_s - (slot.receive_wait_s - self._began_waited_s)
            if remaining_s <= 0:
                self._judge()
                continue
            try:
                message = await slot.await_droppable(self.receive(), remaining_s)
            except TimeoutError:
                slot.check()
        if message["type"] != "http.request":
            return message
        size = len(message.get("body", b""))
        self._received_bytes += size
        slot.add_body_bytes(size)
        if not message.get("more_body", False):
            self._is_complete = True
            if not slot.is_in_pieces:
                await slot.start()
        return message

    def _judge(self) -> None:
        """Check the rate of the last window and start the next one.

        Raises:
            ProblemRaised: If too few bytes arrived.
        """
        if self._received_bytes < self.min_rate.min_bytes:
            detail = (
                f"{self._received_bytes} bytes of the body arrived in {self.min_rate.window_s:.0f} s: send at least"
                f" {self.min_rate.min_bytes / KIB:.0f} KiB, or all of it"
            )
            # Close the connection, so that the rest of the body need not be read.
            raise ProblemRaised(Problem(type=TOO_SLOW, detail=detail, headers={"Connection": "close"}))
        self._received_bytes, self._began_waited_s = 0, self.slot.receive_wait_s


@coroutine
def run_timed(operation: Awaitable[None], times: LoopTimeShares, key: Hashable) -> Generator[Any, Any, None]:
    """Await an operation step by step, and add the event loop time of its steps to the share of the caller `key`."""
    steps, clock, took_s = operation.__await__(), time.perf_counter, 0.0
    began_s = clock()
    try:
        awaited = steps.send(None)
        while True:
            took_s += clock() - began_s
            if took_s > MEASURE_PERIOD_S:
                times.add(key, took_s, clock())
                took_s = 0.0
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001  # passed on to the operation
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
