"""Leader election by a lease in the API server: at most one operator writes.

Each process measures time with its own monotonic clock; clocks of different machines are never compared.

1. A standby reads the lease every `try_s`. It takes the lease if none exists, if the lease was released, or if it was
   not renewed for its duration. That time counts from when the standby first read the last renewal.
2. The leader renews every `renew_s`. Each accepted renewal allows writes until `deadline_s` after it was sent.
3. Transports call `check` before each write, and run the write inside `limit_write`, which aborts it at the deadline.

Invariant: unless the Lease object is deleted, an expired leader stops writing before a new leader starts. It stops
`deadline_s` after it sent its last renewal. A standby read the renewal later, and waits from then for the longer
`duration_s`. A process that was suspended finds its deadline passed.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NoReturn

from agentmemory_operator.errors import AgentMemoryError, Conflict, LeadershipLost, TransientError
from agentmemory_operator.ports.kubernetes import Lease, LeaseStore

log = logging.getLogger(__name__)

# Seconds without a usable response of the API server after which `acquire` fails.
MAX_UNAVAILABLE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """Durations in seconds.

    A standby takes the lease of a failed leader at most `duration_s + 2 * try_s` after the last renewal, if the API
    server responds without delay.

    Attributes:
        duration_s: Time after which other processes may take a lease that is not renewed.
        deadline_s: Time during which a leader may write, from when it sent its last accepted renewal. The rest of
            `duration_s` is a margin for calls in progress.
        renew_s: Pause between renewals.
        try_s: Pause between the reads of a standby, and between retries.
        call_s: Timeout of one call to the API server.
    """

    duration_s: int = 10
    deadline_s: float = 8.0
    renew_s: float = 2.0
    try_s: float = 0.5
    call_s: float = 3.0


def monotonic_s() -> float:
    """Return seconds of a monotonic clock. On Linux the clock also counts while the machine is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Leadership:
    """Acquires, renews and releases the lease.

    Args:
        identity: Globally unique name of this process, which no other process ever uses.
        timing: Durations. None for the default ones.
        now_s: Monotonic clock.
        sleep: Waits for seconds of that clock.
    """

    def __init__(
        self,
        store: LeaseStore,
        identity: str,
        *,
        timing: LeaseTiming | None = None,
        now_s: Callable[[], float] = monotonic_s,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._identity = identity
        self._timing = timing or LeaseTiming()
        self._now_s = now_s
        self._sleep = sleep
        # The lease as last written by this process; None while it does not lead.
        self._held: Lease | None = None
        self._deadline_s = 0.0
        self._observed: Lease | None = None
        self._observed_s = 0.0
        self._problem = ""
        # Reason that `give_up` was called with; '' before.
        self._give_up_reason = ""
        self._calls_in_progress: set[asyncio.Timeout] = set()

    @property
    def is_leading(self) -> bool:
        """True if this process may write now."""
        # Check the reason too: a renewal that was in flight when this process gave up may still be accepted.
        return self._held is not None and not self._give_up_reason and self._now_s() < self._deadline_s

    def check(self) -> None:
        """Raise unless this process may write now.

        Raises:
            LeadershipLost: If it does not hold the lease, or could not renew it in time.
        """
        if self.is_leading:
            return
        if self._give_up_reason:
            raise LeadershipLost(self._give_up_reason)
        late_s = self._now_s() - self._deadline_s
        raise LeadershipLost(
            f"the lease was not renewed in time ({late_s:.1f} s late): another operator may be the leader"
            if self._held
            else "this operator does not hold the lease"
        )

    @asynccontextmanager
    async def limit_write(self) -> AsyncIterator[None]:
        """Run a call that changes something, and abort it at the deadline of the lease.

        Each renewal extends the deadline.

        Raises:
            LeadershipLost: If this process may not write, or the lease expired or was given up during the call, which
                may still take effect.
        """
        self.check()
        limit = asyncio.timeout(self._deadline_s - self._now_s())
        self._calls_in_progress.add(limit)
        try:
            async with limit:
                yield
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise LeadershipLost("the lease expired during a call: another operator may be the leader") from exc
        finally:
            self._calls_in_progress.discard(limit)

    async def confirm(self) -> None:
        """Raise unless the stored lease names this process. Retry until it can be read, or until the deadline.

        If it names another process, or is absent, this process stops writing permanently (`give_up`).

        Raises:
            LeadershipLost: If another process has the lease, it is absent, or it could not be read before the deadline.
        """
        while True:
            self.check()
            try:
                found = await self._bounded(self._store.read())
            except TransientError as exc:
                self._log_once(f"cannot read the lease: {exc}")
                await self._sleep(self._timing.try_s)
                continue
            if found is None or found.holder != self._identity:
                self.give_up(f"{found.holder if found and found.holder else 'another operator'} took the lease")
            self.check()
            return

    def give_up(self, message: str) -> NoReturn:
        """Stop writing permanently, because an observed state contradicts the leadership of this process.

        Calls in progress are aborted.

        Args:
            message: The observation, for the error message.

        Raises:
            LeadershipLost: Always, with `message` as its message.
        """
        self._held, self._give_up_reason = None, message
        self._limit_calls(0.0)
        raise LeadershipLost(message)

    async def acquire(self) -> None:
        """Wait until this process has taken the lease and may write.

        Raises:
            AgentMemoryError: If no attempt got a usable response for `MAX_UNAVAILABLE_S`. The message gives the cause.
        """
        since_s = self._now_s()
        while not await self._attempt():
            if not self._problem:
                since_s = self._now_s()
            elif (waited_s := self._now_s() - since_s) >= MAX_UNAVAILABLE_S:
                raise AgentMemoryError(f"gave up after {waited_s:.0f} s: {self._problem}")
            await self._sleep(self._timing.try_s)

    async def keep(self) -> None:
        """Renew until the lease is lost; never return.

        Raises:
            LeadershipLost: If another process took the lease, it could not be renewed in time, or was given up.
        """
        pause_s = self._timing.renew_s
        while True:
            await self._sleep(min(pause_s, max(self._deadline_s - self._now_s(), 0.0)))
            self.check()
            try:
                await self._renew()
                pause_s, self._problem = self._timing.renew_s, ""
            except LeadershipLost:
                raise
            except TransientError as exc:
                self._log_once(f"cannot renew the lease: {exc}")
                pause_s = self._timing.try_s

    async def release(self) -> None:
        """Release the lease, so that a standby can take it immediately. A failure is only logged.

        Do nothing if this process does not hold the lease, or it has expired.
        """
        lease, self._held = self._held, None
        if lease is None or self._now_s() >= self._deadline_s:
            return
        try:
            await self._bounded(self._store.write(replace(lease, holder="", duration_s=1, renewed_at=_now())))
        except (Conflict, TransientError) as exc:
            log.warning("could not release the lease: %s", exc)

    async def _attempt(self) -> bool:
        """Take the lease if it is free; return whether this process leads."""
        try:
            found = await self._bounded(self._store.read())
            if found is None or self._is_free(found):
                await self._take(found)
        except Conflict:
            return False
        except TransientError as exc:
            self._log_once(f"cannot acquire the lease: {exc}")
            return False
        self._problem = ""
        return self.is_leading

    def _is_free(self, found: Lease) -> bool:
        """Return whether the lease was released, or has not been renewed for its duration."""
        if not found.holder:
            return True
        if self._observed is None or self._observed.version != found.version:
            self._observed, self._observed_s = found, self._now_s()
        return self._now_s() - self._observed_s >= found.duration_s

    async def _take(self, found: Lease | None) -> None:
        base = found or Lease()
        acquired = replace(base, acquired_at=_now(), transitions=base.transitions + (found is not None))
        await self._write(acquired)

    async def _renew(self) -> None:
        lease = self._held
        assert lease is not None
        try:
            await self._write(lease)
        except Conflict:
            # Read the lease: an own earlier renewal whose response was lost can cause the conflict.
            found = await self._bounded(self._store.read())
            if found is None or found.holder != self._identity:
                self._held = None
                raise LeadershipLost(f"{found.holder if found else 'another operator'} took the lease") from None
            self._held = found
            raise TransientError("no answer to a lease renewal") from None

    async def _write(self, lease: Lease) -> None:
        sent_s = self._now_s()
        renewed = replace(lease, holder=self._identity, duration_s=self._timing.duration_s, renewed_at=_now())
        self._held = await self._bounded(self._store.write(renewed))
        self._deadline_s = sent_s + self._timing.deadline_s
        self._limit_calls(self._deadline_s - self._now_s())

    def _limit_calls(self, remaining_s: float) -> None:
        """Set the remaining time of all calls in progress."""
        ends_s = asyncio.get_running_loop().time() + remaining_s
        for limit in self._calls_in_progress:
            if not limit.expired():
                limit.reschedule(ends_s)

    async def _bounded(self, call: Awaitable[Lease | None]) -> Lease | None:
        try:
            async with asyncio.timeout(self._timing.call_s):
                return await call
        except TimeoutError as exc:
            raise TransientError("the API server did not answer in time") from exc

    def _log_once(self, problem: str) -> None:
        """Log a problem, unless it is the same as at the last attempt."""
        if problem != self._problem:
            log.warning("%s", problem)
        self._problem = problem


def _now() -> str:
    """Return the wall-clock time for the fields of a Lease, which no decision reads."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
