"""Admission control: limits on concurrent requests in total and per caller, and on the rate per caller.

A request with a body first needs a receiving slot, and its bytes are counted as they arrive. After the last byte it
needs a processing slot. A request without a body needs a processing slot from its start. A caller may have as many
slots as are free, except for a reserve. Rejected and dropped requests get 429. `request_slots.py` has the rules.
"""

import ipaddress
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from agentmemory_operator.entrypoints.api.load.request_slots import (
    RETRY_AFTER_S,
    CallerUsage,
    Limits,
    RequestSlot,
    RequestTotals,
    overload_problem,
)
from agentmemory_operator.entrypoints.api.problems import RATE_LIMITED, Problem, ProblemRaised
from agentmemory_operator.runtime.rules.fair_shares import TokenBuckets
from agentmemory_operator.spec.caller_rights import Caller


class AdmissionControl(RequestTotals):
    """Admits requests within the limits and rejects all further ones.

    Attributes:
        unauthenticated: Number of unauthenticated requests in progress.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.unauthenticated = 0
        rate = limits.caller_rate
        self._allowances = TokenBuckets(rate, 1 / rate) if rate else None

    @contextmanager
    def admit_unauthenticated(self) -> Iterator[None]:
        """Count an unauthenticated request while the context is open.

        Raises:
            ProblemRaised: If `Limits.unauthenticated` of these requests are in progress.
        """
        if self.unauthenticated >= self.limits.unauthenticated:
            raise overload_problem(f"{self.unauthenticated} requests of unauthenticated callers are in progress")
        self.unauthenticated += 1
        try:
            yield
        finally:
            self.unauthenticated -= 1

    def admit(self, key: Hashable) -> RequestSlot:
        """Return the slot of a new request. Use it as a context manager, which releases its resources.

        Args:
            key: Key of the caller's share; see `caller_key`.

        Raises:
            ProblemRaised: If the caller has exceeded its rate.
        """
        if self._allowances and not self._allowances.take(key, time.monotonic()):
            detail = f"more than {self.limits.caller_rate} requests per second: retry in {RETRY_AFTER_S} s"
            raise ProblemRaised(Problem(type=RATE_LIMITED, detail=detail, headers={"Retry-After": str(RETRY_AFTER_S)}))
        share = self.shares.get(key)
        if share is None:
            share = self.shares[key] = CallerUsage(key)
        return RequestSlot(self, share)


def caller_key(caller: Caller, address: str | None) -> Hashable:
    """Return the key of a caller's share: its ServiceAccount, or its client address (IPv6: the /64 network).

    Args:
        address: Client address; None if the server reports none. All such callers without an identity share one key.
    """
    if not caller.is_unbounded:
        # Use one key for all user tokens of a ServiceAccount, so that creating many tokens gains no capacity.
        return caller if caller.delegation is None else replace(caller, delegation=None)
    if address is None or ":" not in address:
        return address
    try:
        return ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False)
    except ValueError:
        return address
