"""Timing of the leader lease, on a fake clock."""

import asyncio
from dataclasses import dataclass, replace

import pytest

from agentmemory_operator.errors import AgentMemoryError, Conflict, LeadershipLost, TransientError
from agentmemory_operator.ports.kubernetes import Lease
from agentmemory_operator.runtime.leadership import MAX_UNAVAILABLE_S, Leadership, LeaseTiming

TIMING = LeaseTiming()


class Time:
    """Monotonic clock that jumps to the end of each sleep. Sleeps beyond `end_s` never end."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.end_s = float("inf")

    def read(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        if self.now_s + seconds > self.end_s:
            self.now_s = self.end_s
            await asyncio.Event().wait()
        self.now_s += seconds
        await asyncio.sleep(0)


@dataclass
class FakeLeases:
    """Implements ports.LeaseStore in memory.

    Attributes:
        error: Raised by every call while set.
        loses_responses: True if writes take effect and then fail.
        writes: Number of accepted writes.
    """

    lease: Lease | None = None
    error: AgentMemoryError | None = None
    loses_responses: bool = False
    writes: int = 0

    async def read(self) -> Lease | None:
        self._check()
        return self.lease

    async def write(self, lease: Lease) -> Lease:
        self._check()
        if lease.version != (self.lease.version if self.lease else ""):
            raise Conflict("the object has been modified")
        self.writes += 1
        self.lease = replace(lease, version=str(self.writes))
        if self.loses_responses:
            raise TransientError("the answer was lost")
        return self.lease

    def _check(self) -> None:
        if self.error:
            raise self.error


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def leases() -> FakeLeases:
    return FakeLeases()


def candidate(leases: FakeLeases, clock: Time, name: str = "a") -> Leadership:
    return Leadership(leases, name, now_s=clock.read, sleep=clock.sleep)


async def keep_until(leader: Leadership, clock: Time, end_s: float) -> BaseException | None:
    """Keep the lease until the clock reaches `end_s`; return the error if it ended earlier."""
    clock.end_s = end_s
    keeping = asyncio.create_task(leader.keep())
    while clock.now_s < end_s and not keeping.done():
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    if not keeping.done():
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        clock.end_s = float("inf")
        return None
    return keeping.exception()


async def test_first_candidate_creates_lease_and_leads(leases: FakeLeases, clock: Time) -> None:
    leader = candidate(leases, clock)
    with pytest.raises(LeadershipLost, match="does not hold"):
        leader.check()

    await leader.acquire()

    leader.check()
    assert leases.lease is not None
    assert (leases.lease.holder, leases.lease.duration_s, leases.lease.transitions) == ("a", TIMING.duration_s, 0)


async def test_leader_keeps_renewing(leases: FakeLeases, clock: Time) -> None:
    leader = candidate(leases, clock)
    await leader.acquire()

    assert await keep_until(leader, clock, clock.now_s + 600) is None

    leader.check()
    assert leases.writes == pytest.approx(600 / TIMING.renew_s, abs=3)


async def test_leader_past_deadline_may_not_write(leases: FakeLeases, clock: Time) -> None:
    leader = candidate(leases, clock)
    await leader.acquire()

    clock.now_s += TIMING.deadline_s - 0.01
    leader.check()
    clock.now_s += 0.01

    with pytest.raises(LeadershipLost, match="not renewed in time"):
        leader.check()
    assert not leader.is_leading


async def test_leader_past_deadline_does_not_renew(leases: FakeLeases, clock: Time) -> None:
    leader = candidate(leases, clock)
    await leader.acquire()
    clock.now_s += 60

    error = await keep_until(leader, clock, clock.now_s + 60)

    assert isinstance(error, LeadershipLost)
    assert leases.writes == 1


async def test_deadline_counts_from_renewal_request(leases: FakeLeases, clock: Time) -> None:
    class SlowLeases(FakeLeases):
        async def write(self, lease: Lease) -> Lease:
            written = await super().write(lease)
            clock.now_s += 2.5
            return written

    leader = candidate(SlowLeases(), clock)
    await leader.acquire()

    clock.now_s += TIMING.deadline_s - 2.5

    assert not leader.is_leading


async def test_standby_takes_over_after_expiry(leases: FakeLeases, clock: Time) -> None:
    leader, standby = candidate(leases, clock), candidate(leases, clock, "b")
    await leader.acquire()
    killed_s = clock.now_s

    await standby.acquire()

    assert not leader.is_leading
    assert TIMING.duration_s <= clock.now_s - killed_s <= TIMING.duration_s + TIMING.try_s
    assert leases.lease is not None
    assert (leases.lease.holder, leases.lease.transitions) == ("b", 1)


async def test_standby_waits_while_leader_renews(leases: FakeLeases, clock: Time) -> None:
    leader, standby = candidate(leases, clock), candidate(leases, clock, "b")
    await leader.acquire()
    waiting = asyncio.create_task(standby.acquire())

    assert await keep_until(leader, clock, clock.now_s + 120) is None

    assert not waiting.done()
    waiting.cancel()


async def test_released_lease_is_acquired_at_once(leases: FakeLeases, clock: Time) -> None:
    leader, standby = candidate(leases, clock), candidate(leases, clock, "b")
    await leader.acquire()
    started_s = clock.now_s

    await leader.release()
    await standby.acquire()

    assert clock.now_s == started_s
    assert not leader.is_leading
    standby.check()


async def test_lost_lease_is_not_released(leases: FakeLeases, clock: Time) -> None:
    leader, standby = candidate(leases, clock), candidate(leases, clock, "b")
    await leader.acquire()
    await standby.acquire()

    await leader.release()

    assert leases.lease is not None
    assert leases.lease.holder == "b"


async def test_foreign_holder_ends_leadership_at_renewal(leases: FakeLeases, clock: Time) -> None:
    leader = candidate(leases, clock)
    await leader.acquire()
    assert leases.lease is not None
    leases.lease = replace(leases.lease, holder="b", version="x")

    error = await keep_until(leader, clock, clock.now_s + 60)

    assert isinstance(error, LeadershipLost)
    assert "b took the lease" in str(error)


async def test_long_outage_ends_leadership_at_deadline(leases: FakeLeases, clock: Time) -> None:
    leader = candidate(leases, clock)
    await leader.acquire()
    started_s = clock.now_s
    leases.error = TransientError("away")

    error = await keep_until(leader, clock, clock.now_s + 60)

    assert isinstance(error, LeadershipLost)
    assert clock.now_s - started_s == pytest.approx(TIMING.deadline_s, abs=0.01)


async def test_short_outage_keeps_leadership(leases: FakeLeases, clock: Time) -> None:
    leader = candidate(leases, clock)
    await leader.acquire()
    leases.error = TransientError("away")
    assert await keep_until(leader, clock, clock.now_s + TIMING.deadline_s - 3) is None

    leases.error = None
    assert await keep_until(leader, clock, clock.now_s + 60) is None

    leader.check()


async def test_renewal_with_lost_response_is_recognised(leases: FakeLeases, clock: Time) -> None:
    leader = candidate(leases, clock)
    await leader.acquire()
    leases.loses_responses = True
    assert await keep_until(leader, clock, clock.now_s + TIMING.renew_s) is None

    leases.loses_responses = False

    assert await keep_until(leader, clock, clock.now_s + 60) is None
    leader.check()


async def test_concurrent_creators_get_one_leader(leases: FakeLeases, clock: Time) -> None:
    class LateLeases(FakeLeases):
        async def read(self) -> Lease | None:
            return None if self.writes < 2 else self.lease

    both = LateLeases()
    first, second = candidate(both, clock), candidate(both, clock, "b")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    for _ in range(10):
        await asyncio.sleep(0)

    assert first.is_leading
    assert not second.is_leading
    waiting.cancel()


async def test_running_call_ends_with_the_lease(leases: FakeLeases) -> None:
    timing = LeaseTiming(duration_s=1, deadline_s=0.2, renew_s=0.05, try_s=0.02, call_s=0.05)
    leader = Leadership(leases, "a", timing=timing)
    await leader.acquire()
    keeping = asyncio.create_task(leader.keep())

    async with leader.limit_write():
        await asyncio.sleep(0.6)
    leases.error = TransientError("the API server is away")
    with pytest.raises(LeadershipLost, match="expired during a call"):
        async with leader.limit_write():
            await asyncio.Event().wait()

    await asyncio.gather(keeping, return_exceptions=True)
    with pytest.raises(LeadershipLost):
        async with leader.limit_write():
            raise AssertionError("it is not made")


async def test_errors_of_a_call_pass_through(leases: FakeLeases, clock: Time) -> None:
    leader = candidate(leases, clock)
    await leader.acquire()

    with pytest.raises(TimeoutError, match="of its own"):
        async with leader.limit_write():
            raise TimeoutError("of its own")


async def test_unchanged_lease_is_confirmed(leases: FakeLeases, clock: Time) -> None:
    leader = candidate(leases, clock)
    await leader.acquire()

    await leader.confirm()

    assert leader.is_leading


async def test_confirm_detects_foreign_holder(leases: FakeLeases, clock: Time) -> None:
    """The leader's own deadline has not passed: the lease was edited manually, or another clock differs."""
    leader = candidate(leases, clock)
    await leader.acquire()
    assert leases.lease
    leases.lease = replace(leases.lease, holder="b")

    with pytest.raises(LeadershipLost, match="b took the lease"):
        await leader.confirm()

    with pytest.raises(LeadershipLost, match="b took the lease"):
        leader.check()
    assert isinstance(await keep_until(leader, clock, clock.now_s + 10), LeadershipLost)
    await leader.release()
    assert leases.writes == 1, "a foreign lease is not released"


async def test_confirm_retries_until_deadline(leases: FakeLeases, clock: Time) -> None:
    leader = candidate(leases, clock)
    await leader.acquire()
    leases.error = TransientError("the API server is away")

    with pytest.raises(LeadershipLost, match="not renewed in time"):
        await leader.confirm()


async def test_giving_up_cancels_running_calls(leases: FakeLeases, clock: Time) -> None:
    leader = candidate(leases, clock)
    await leader.acquire()

    async def call() -> None:
        async with leader.limit_write():
            await asyncio.Event().wait()

    calling = asyncio.create_task(call())
    await asyncio.sleep(0)
    with pytest.raises(LeadershipLost, match="the alias leads elsewhere"):
        leader.give_up("the alias leads elsewhere")

    async with asyncio.timeout(5):
        with pytest.raises(LeadershipLost):
            await calling


async def test_renewal_in_flight_restores_no_leadership_given_up(clock: Time) -> None:
    leases = FakeLeases()
    leader = Leadership(leases, "me", now_s=clock.read, sleep=clock.sleep)
    await leader.acquire()
    store = leases.write

    async def write(lease: Lease) -> Lease:
        with pytest.raises(LeadershipLost):
            leader.give_up("the alias leads elsewhere")
        return await store(lease)

    leases.write = write  # type: ignore[method-assign]
    with pytest.raises(LeadershipLost, match="the alias leads elsewhere"):
        await leader.keep()


async def test_forbidden_lease_ends_process_after_limit(clock: Time) -> None:
    leases = FakeLeases(error=TransientError("Kubernetes answered 403: leases is forbidden"))
    start_s = clock.now_s

    with pytest.raises(AgentMemoryError, match=r"gave up after 120 s: cannot acquire the lease: .*403"):
        await Leadership(leases, "me", now_s=clock.read, sleep=clock.sleep).acquire()

    assert clock.now_s - start_s == pytest.approx(MAX_UNAVAILABLE_S, abs=TIMING.try_s)


async def test_standby_waits_without_limit(clock: Time) -> None:
    lease = Lease(holder="another", duration_s=10_000, version="1")
    clock.end_s = clock.now_s + 1000

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await Leadership(FakeLeases(lease=lease), "me", now_s=clock.read, sleep=clock.sleep).acquire()

    assert clock.now_s == clock.end_s
