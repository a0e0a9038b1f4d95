"""How much is served at once, and how much and how often to one caller: beyond that callers are sent away with 429.

A request with a body is being received first: it has a place among those, and its bytes are counted as they come. Once
the body is complete it is under way: it has one of those places instead, as a request without a body has from its
beginning. Of both one caller has as many as are free. Where there is no room for more bytes, those who have most of it
lose the body that comes slowest.
"""

import ipaddress
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from agentmemory_operator.entrypoints.api.load.in_flight import RETRY_AFTER_S, Hold, InFlight, Limits, Share, overloaded
from agentmemory_operator.entrypoints.api.problems import RATE_LIMITED, Problem, ProblemRaised
from agentmemory_operator.runtime.rules.fair_shares import Allowances
from agentmemory_operator.spec.access import Caller


class Pressure(InFlight):
    """Lets requests in, and sends those away that are too many."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.strangers = 0
        rate = limits.caller_rate
        self._allowances = Allowances(rate, 1 / rate) if rate else None

    @contextmanager
    def stranger(self) -> Iterator[None]:
        """Count somebody while the context is open whom nobody knows yet.

        Raises:
            ProblemRaised: there are too many.
        """
        if self.strangers >= self.limits.strangers:
            raise overloaded(f"{self.strangers} requests of unauthenticated callers are in progress")
        self.strangers += 1
        try:
            yield
        finally:
            self.strangers -= 1

    def admit(self, key: Hashable) -> Hold:
        """What a request of a caller may take up, until its context is left; the table of callers is bounded.

        Raises:
            ProblemRaised: there were too many requests of the caller in the last second.
        """
        if self._allowances and not self._allowances.take(key, time.monotonic()):
            detail = f"more than {self.limits.caller_rate} requests per second: retry in {RETRY_AFTER_S} s"
            raise ProblemRaised(Problem(type=RATE_LIMITED, detail=detail, headers={"Retry-After": str(RETRY_AFTER_S)}))
        share = self.shares.get(key)
        if share is None:
            share = self.shares[key] = Share(key)
        return Hold(self, share)


def key_of(caller: Caller, address: str | None) -> Hashable:
    """What tells a caller from others: a ServiceAccount, also of its tokens; else an address, of IPv6 a network."""
    if not caller.is_unbounded:
        # Whoever mints many tokens has no larger share.
        return caller if caller.delegation is None else replace(caller, delegation=None)
    if address is None or ":" not in address:
        return address
    try:
        return ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False)
    except ValueError:
        return address
