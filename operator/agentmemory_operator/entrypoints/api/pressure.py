"""How much is served at once, and how often to one caller: beyond that callers are sent away with 429."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agentmemory_operator.domain.access import Caller
from agentmemory_operator.domain.allowance import Allowances
from agentmemory_operator.entrypoints.api.problems import OVERLOADED, RATE_LIMITED, Problem, ProblemRaised

HOLD = "hold"
RETRY_AFTER_S = 1
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one process.

    Attributes:
        requests: under way at once.
        body_bytes: of the bodies of all requests under way.
        caller_rate: requests of one caller in a second, and as many at once; 0 is any number.
    """

    requests: int = 512
    body_bytes: int = 32 * MIB
    caller_rate: int = 0


class Hold:
    """What one request takes up, until it is answered."""

    def __init__(self, pressure: "Pressure") -> None:
        self._pressure = pressure
        self.body_bytes = 0

    def take(self, body_bytes: int) -> None:
        """Take up room for so many more bytes of the body.

        Raises:
            ProblemRaised: there is no room; alone, a body always has.
        """
        others = self._pressure.body_bytes - self.body_bytes
        if others and others + self.body_bytes + body_bytes > self._pressure.limits.body_bytes:
            raise _overloaded(f"bodies of {others // MIB} MiB are being worked on")
        self.body_bytes += body_bytes
        self._pressure.body_bytes += body_bytes


class Pressure:
    """Requests and bytes under way."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests = 0
        self.body_bytes = 0
        rate = limits.caller_rate
        self._allowances = Allowances(rate, 1 / rate) if rate else None

    def check_rate(self, caller: Caller) -> None:
        """Count a request of a caller; the table of callers is bounded.

        Raises:
            ProblemRaised: there were too many in the last second.
        """
        if self._allowances is None or self._allowances.take(caller, time.monotonic()):
            return
        detail = f"more than {self.limits.caller_rate} requests in a second: try again in {RETRY_AFTER_S} s"
        raise ProblemRaised(Problem(type=RATE_LIMITED, detail=detail, headers={"Retry-After": str(RETRY_AFTER_S)}))

    @contextmanager
    def admit(self) -> Iterator[Hold]:
        """Count a request while the context is open.

        Raises:
            ProblemRaised: there are too many.
        """
        if self.requests >= self.limits.requests:
            raise _overloaded(f"{self.requests} requests are under way")
        hold = Hold(self)
        self.requests += 1
        try:
            yield hold
        finally:
            self.requests -= 1
            self.body_bytes -= hold.body_bytes


def _overloaded(why: str) -> ProblemRaised:
    detail = f"{why}: try again in {RETRY_AFTER_S} s"
    return ProblemRaised(Problem(type=OVERLOADED, detail=detail, headers={"Retry-After": str(RETRY_AFTER_S)}))
