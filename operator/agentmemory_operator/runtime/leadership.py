"""One writer among several operators: a lease in the API server, judged by this process's own monotonic clock.

The leader may write until `deadline_s` after it sent the last renewal that was accepted, and what it has under way by
then is given up. A standby takes the lease when
it has seen no renewal for the lease's whole duration, counted from when it first saw the last one. So the one has
stopped before the other begins, however their clocks differ; a process that slept finds its deadline past.
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

# For how long an API server that gives no lease is asked, before a process ends and says so.
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """Seconds; a hand-over after a kill takes at most duration + two tries.

    Attributes:
        duration_s: how long a lease that is not renewed binds the others.
        deadline_s: how long after its last renewal a leader may write; the rest is for calls under way.
        renew_s: between renewals.
        try_s: between a standby's looks.
        call_s: how long one call to the API server may take.
    """

    duration_s: int = 10
    deadline_s: float = 8.0
    renew_s: float = 2.0
    try_s: float = 0.5
    call_s: float = 3.0


def monotonic_s() -> float:
    """Seconds of a clock that nobody sets and that goes on while the machine sleeps, where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Leadership:
    """Takes, keeps and gives back the lease.

    Args:
        store: where the lease lies.
        identity: names this process, and no other, ever.
        now_s: a monotonic clock.
        sleep: waits seconds of that clock.
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
        self._held: Lease | None = None
        self._deadline_s = 0.0
        self._seen: Lease | None = None
        self._seen_s = 0.0
        self._trouble = ""
        # Why this process gave the lease up by itself.
        self._doubt = ""
        self._under_way: set[asyncio.Timeout] = set()

    @property
    def is_leading(self) -> bool:
        """Whether this process may write now."""
        return self._held is not None and self._now_s() < self._deadline_s

    def check(self) -> None:
        """Pass while this process may write.

        Raises:
            LeadershipLost: it may not; says for how long it could not renew.
        """
        if self.is_leading:
            return
        if self._doubt:
            raise LeadershipLost(self._doubt)
        late_s = self._now_s() - self._deadline_s
        raise LeadershipLost(
            f"the lease was not renewed in time ({late_s:.1f} s late): another operator may be the leader"
            if self._held
            else "this operator does not hold the lease"
        )

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Let a call that changes something go on for no longer than this process may write; each renewal prolongs it.

        Raises:
            LeadershipLost: it may not be made, or the lease ended amid it: it may take effect all the same.
        """
        self.check()
        limit = asyncio.timeout(self._deadline_s - self._now_s())
        self._under_way.add(limit)
        try:
            async with limit:
                yield
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise LeadershipLost("the lease expired during a call: another operator may be the leader") from exc
        finally:
            self._under_way.discard(limit)

    async def confirm(self) -> None:
        """Pass if this process still leads, by the lease itself; one that cannot be read is asked for until its end.

        Raises:
            LeadershipLost: it does not; from now on it writes nothing.
        """
        while True:
            self.check()
            try:
                found = await self._bounded(self._store.read())
            except TransientError as exc:
                self._tell(f"cannot read the lease: {exc}")
                await self._sleep(self._timing.try_s)
                continue
            if found is None or found.holder != self._identity:
                self.give_up(f"{found.holder if found and found.holder else 'another operator'} took the lease")
            self.check()
            return

    def give_up(self, doubt: str) -> NoReturn:
        """Write nothing from now on, and end: what this process believes and what it sees are not the same.

        Raises:
            LeadershipLost: tells the doubt.
        """
        self._held, self._doubt = None, doubt
        self._limit_calls(0.0)
        raise LeadershipLost(doubt)

    async def acquire(self) -> None:
        """Wait until this process leads.

        Raises:
            AgentMemoryError: the lease could not be asked for during `PATIENCE_S`; says why.
        """
        since_s = self._now_s()
        while not await self._attempt():
            if not self._trouble:
                since_s = self._now_s()
            elif (waited_s := self._now_s() - since_s) >= PATIENCE_S:
                raise AgentMemoryError(f"gave up after {waited_s:.0f} s: {self._trouble}")
            await self._sleep(self._timing.try_s)

    async def keep(self) -> None:
        """Renew until the lease is lost.

        Raises:
            LeadershipLost: somebody else took it, or it could not be renewed in time.
        """
        pause_s = self._timing.renew_s
        while True:
            await self._sleep(min(pause_s, max(self._deadline_s - self._now_s(), 0.0)))
            self.check()
            try:
                await self._renew()
                pause_s, self._trouble = self._timing.renew_s, ""
            except LeadershipLost:
                raise
            except TransientError as exc:
                self._tell(f"cannot renew the lease: {exc}")
                pause_s = self._timing.try_s

    async def release(self) -> None:
        """Give the lease back, so that a standby need not wait for its end; one that is lost is no error."""
        held, self._held = self._held, None
        if held is None or self._now_s() >= self._deadline_s:
            return
        try:
            await self._bounded(self._store.write(replace(held, holder="", duration_s=1, renewed_at=_now())))
        except (Conflict, TransientError) as exc:
            log.warning("could not release the lease: %s", exc)

    async def _attempt(self) -> bool:
        """Take the lease if it is free; tell whether this process leads."""
        try:
            found = await self._bounded(self._store.read())
            if found is None or self._is_free(found):
                await self._take(found)
        except Conflict:
            return False
        except TransientError as exc:
            self._tell(f"cannot acquire the lease: {exc}")
            return False
        self._trouble = ""
        return self.is_leading

    def _is_free(self, found: Lease) -> bool:
        """Whether nobody holds the lease: given back, or not renewed for as long as it binds."""
        if not found.holder:
            return True
        if self._seen is None or self._seen.version != found.version:
            self._seen, self._seen_s = found, self._now_s()
        return self._now_s() - self._seen_s >= found.duration_s

    async def _take(self, found: Lease | None) -> None:
        base = found or Lease()
        taken = replace(base, acquired_at=_now(), transitions=base.transitions + (found is not None))
        await self._write(taken)

    async def _renew(self) -> None:
        held = self._held
        assert held is not None
        try:
            await self._write(held)
        except Conflict:
            # Ours as well, if no answer to a lease renewal.
            found = await self._bounded(self._store.read())
            if found is None or found.holder != self._identity:
                self._held = None
                raise LeadershipLost(f"{found.holder if found else 'another operator'} took the lease") from None
            self._held = found
            raise TransientError("no answer to a lease renewal") from None

    async def _write(self, lease: Lease) -> None:
        sent_s = self._now_s()
        wanted = replace(lease, holder=self._identity, duration_s=self._timing.duration_s, renewed_at=_now())
        self._held = await self._bounded(self._store.write(wanted))
        self._deadline_s = sent_s + self._timing.deadline_s
        self._limit_calls(self._deadline_s - self._now_s())

    def _limit_calls(self, left_s: float) -> None:
        """Let calls under way go on for so long from now."""
        ends_s = asyncio.get_running_loop().time() + left_s
        for limit in self._under_way:
            if not limit.expired():
                limit.reschedule(ends_s)

    async def _bounded(self, call: Awaitable[Lease | None]) -> Lease | None:
        try:
            async with asyncio.timeout(self._timing.call_s):
                return await call
        except TimeoutError as exc:
            raise TransientError("the API server did not answer in time") from exc

    def _tell(self, trouble: str) -> None:
        """Log what is wrong once, not at each try."""
        if trouble != self._trouble:
            log.warning("%s", trouble)
        self._trouble = trouble


def _now() -> str:
    """The time as it stands in a Lease; nobody decides by it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
