"""Admission of requests: how many run at once, and limits per caller."""

import asyncio
import contextlib
from collections.abc import Awaitable, Hashable, Iterator
from dataclasses import replace

import pytest

from agentmemory_operator.entrypoints.api.load import request_slots as module
from agentmemory_operator.entrypoints.api.load.body_receiver import BodyReceiver, run_timed
from agentmemory_operator.entrypoints.api.load.overload import AdmissionControl, caller_key
from agentmemory_operator.entrypoints.api.load.request_slots import MAX_RUNNING, SMALL_BYTES, Limits, RequestSlot
from agentmemory_operator.entrypoints.api.problems import ProblemRaised
from agentmemory_operator.runtime.rules.fair_shares import LoopTimeShares, MinimumRate
from agentmemory_operator.spec.caller_rights import UNBOUNDED_CALLER, Caller, Delegation, Verb

LARGE = 100 * SMALL_BYTES


class Sender:
    """ASGI receive callable with messages of the test."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()

    async def __call__(self) -> dict[str, object]:
        body, more = await self.pieces.get()
        return {"type": "http.request", "body": body, "more_body": more}

    def send(self, size: int, *, more: bool = True) -> None:
        self.pieces.put_nowait((b"x" * size, more))


class Upload:
    """A request whose body arrives in pieces."""

    def __init__(self, pressure: AdmissionControl, key: str) -> None:
        self._context = pressure.admit(key)
        self.hold: RequestSlot = self._context.__enter__()
        self.sender = Sender()
        self.hold.start_receiving()
        self.receiving = BodyReceiver(self.sender, self.hold, pressure.limits.min_rate)

    async def take(self, size: int, *, more: bool = True) -> None:
        self.sender.send(size, more=more)
        await self.receiving()

    def wait(self) -> "asyncio.Task[object]":
        """Start waiting for the next piece."""
        return asyncio.create_task(self.receiving())  # type: ignore[arg-type]

    def end(self) -> None:
        self._context.__exit__(None, None, None)


class AlwaysTooMuch(LoopTimeShares):
    """Reports excessive use for every caller."""

    def has_exceeded_share(self, key: Hashable, now_s: float) -> bool:
        return True


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@contextlib.contextmanager
def all_released(pressure: AdmissionControl) -> Iterator[None]:
    """Assert that all resources are released at the end."""
    yield
    counts = (pressure.requests, pressure.receiving, pressure.body_bytes, pressure.large_bytes, pressure.exports)
    assert counts == (0, 0, 0, 0, 0)
    assert pressure.shares == {}


async def test_idle_uploads_use_no_body_bytes() -> None:
    pressure = AdmissionControl(Limits(body_bytes=LARGE))
    with all_released(pressure):
        idle = [Upload(pressure, "greedy") for _ in range(100)]
        other = Upload(pressure, "other")
        await other.take(2 * LARGE, more=False)

        assert pressure.body_bytes == 2 * LARGE
        for upload in [*idle, other]:
            upload.end()


async def test_request_runs_once_its_body_is_complete() -> None:
    pressure = AdmissionControl(Limits(requests=1))
    with all_released(pressure):
        first, second = Upload(pressure, "a"), Upload(pressure, "b")
        await first.take(10)
        assert (pressure.receiving, pressure.requests) == (2, 0)

        await second.take(10, more=False)
        assert (pressure.receiving, pressure.requests) == (1, 1)
        with pytest.raises(ProblemRaised, match=r"\(1 in total\) are in progress"):
            await first.take(10, more=False)
        first.end()
        second.end()


async def test_caller_gets_half_of_the_free_requests() -> None:
    pressure = AdmissionControl(Limits(requests=10))
    with contextlib.ExitStack() as stack, all_released(pressure):
        for _ in range(5):
            await stack.enter_context(pressure.admit("greedy")).start()
        with pytest.raises(ProblemRaised, match="5 requests of this caller") as refused:
            await stack.enter_context(pressure.admit("greedy")).start()
        assert refused.value.problem.headers == {"Retry-After": "1"}

        await stack.enter_context(pressure.admit("other")).start()
        stack.close()


async def test_slowest_body_of_a_caller_is_dropped() -> None:
    pressure = AdmissionControl(Limits(receiving=5))
    with all_released(pressure):
        slow, fast, other = Upload(pressure, "greedy"), Upload(pressure, "greedy"), Upload(pressure, "other")
        waiting = [slow.wait(), other.wait()]
        await asyncio.sleep(0.01)
        waiting.append(fast.wait())
        await turns()

        third = Upload(pressure, "greedy")
        await turns()

        with pytest.raises(ProblemRaised, match="and this is the slowest"):
            await waiting[0]
        assert not waiting[1].done()
        assert not waiting[2].done()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for upload in (slow, fast, other, third):
            upload.end()


async def test_new_caller_displaces_the_slowest_body() -> None:
    pressure = AdmissionControl(Limits(receiving=4))
    with all_released(pressure):
        uploads = [Upload(pressure, key) for key in ("a", "b", "b", "c")]
        waiting = [upload.wait() for upload in uploads]
        await turns()

        uploads.append(Upload(pressure, "new"))
        await turns()

        assert [task.done() for task in waiting].count(True) == 1
        assert not waiting[0].done()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for upload in uploads:
            upload.end()


async def test_full_memory_drops_the_slowest_body() -> None:
    pressure = AdmissionControl(Limits(body_bytes=LARGE))
    with all_released(pressure):
        small, large, other = Upload(pressure, "greedy"), Upload(pressure, "greedy"), Upload(pressure, "other")
        await small.take(2 * SMALL_BYTES)
        await large.take(LARGE - 10 * SMALL_BYTES)
        waiting = [small.wait(), large.wait()]
        await turns()

        await other.take(30 * SMALL_BYTES)
        await turns()

        with pytest.raises(ProblemRaised, match="the slowest of the caller with the most"):
            await waiting[0]
        with pytest.raises(ProblemRaised, match="the slowest of the caller with the most"):
            await waiting[1]
        assert pressure.body_bytes == 30 * SMALL_BYTES
        for upload in (small, large, other):
            upload.end()


async def test_largest_caller_is_rejected_not_small_bodies() -> None:
    pressure = AdmissionControl(Limits(body_bytes=LARGE))
    with all_released(pressure):
        first, second, third = Upload(pressure, "a"), Upload(pressure, "greedy"), Upload(pressure, "c")
        await first.take(LARGE // 4)
        await second.take(LARGE // 2)
        with pytest.raises(ProblemRaised, match="being received or processed"):
            await second.take(LARGE)
        await third.take(SMALL_BYTES, more=False)
        for upload in (first, second, third):
            upload.end()


async def test_second_large_body_waits_and_may_be_dropped() -> None:
    pressure = AdmissionControl(Limits(body_bytes=LARGE))
    with all_released(pressure):
        first, second, other = Upload(pressure, "greedy"), Upload(pressure, "greedy"), Upload(pressure, "other")
        await first.take(LARGE // 2, more=False)
        second.sender.send(LARGE // 2, more=False)
        waiting = second.wait()
        await turns()
        assert not waiting.done()

        await other.take(LARGE // 2, more=False)
        with pytest.raises(ProblemRaised, match="the slowest of the caller with the most"):
            await waiting
        for upload in (first, second, other):
            upload.end()


async def test_large_body_continues_after_the_previous_one() -> None:
    pressure = AdmissionControl(Limits(body_bytes=LARGE))
    with all_released(pressure):
        first, second = Upload(pressure, "a"), Upload(pressure, "a")
        await first.take(LARGE // 2, more=False)
        second.sender.send(LARGE // 2, more=False)
        waiting = second.wait()
        await turns()

        first.end()
        await waiting
        assert pressure.requests == 1
        second.end()


async def test_wait_for_memory_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SLOT_WAIT_S", 0.01)
    pressure = AdmissionControl(Limits(body_bytes=LARGE))
    with all_released(pressure):
        first, second = Upload(pressure, "a"), Upload(pressure, "a")
        await first.take(LARGE // 2, more=False)
        with pytest.raises(ProblemRaised, match="other requests of this caller took"):
            await second.take(LARGE // 2, more=False)
        first.end()
        second.end()


async def test_only_slow_bodies_are_rejected() -> None:
    pressure = AdmissionControl(Limits(min_rate=MinimumRate(bytes_s=1000, window_s=0.1)))
    with all_released(pressure):
        slow, steady = Upload(pressure, "a"), Upload(pressure, "a")
        await slow.take(99)
        for _ in range(4):
            waiting = steady.wait()
            await asyncio.sleep(0.08)
            steady.sender.send(1000)
            await waiting
        with pytest.raises(ProblemRaised, match="99 bytes of the body arrived") as refused:
            await slow.receiving()

        assert refused.value.problem.type.status == 408
        slow.end()
        steady.end()


async def test_pause_of_the_reader_does_not_count() -> None:
    pressure = AdmissionControl(Limits(min_rate=MinimumRate(bytes_s=1000, window_s=0.05)))
    with all_released(pressure):
        upload = Upload(pressure, "a")
        for _ in range(3):
            await asyncio.sleep(0.06)
            await upload.take(1)
        upload.end()


async def test_import_runs_only_during_a_piece() -> None:
    pressure = AdmissionControl(Limits())
    with all_released(pressure):
        upload = Upload(pressure, "a")
        upload.hold.is_in_pieces = True
        await upload.take(1000)
        async with upload.hold.run_piece():
            assert (pressure.requests, pressure.receiving) == (1, 1)
        upload.hold.release_body_bytes(1000)
        assert (pressure.requests, pressure.receiving, pressure.body_bytes) == (0, 1, 0)

        await upload.take(0, more=False)
        assert pressure.requests == 0
        upload.end()


async def test_piece_blames_no_caller_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SLOT_WAIT_S", 0.01)
    pressure = AdmissionControl(Limits(requests=1))
    with all_released(pressure), pressure.admit("other") as other:
        upload = Upload(pressure, "a")
        await other.start()
        with pytest.raises(ProblemRaised, match=r"^other requests took"):
            async with upload.hold.run_piece():
                pass
        upload.end()


async def test_exports_have_their_own_limit() -> None:
    pressure = AdmissionControl(Limits(exports=4))
    with contextlib.ExitStack() as stack, all_released(pressure):
        holds = [stack.enter_context(pressure.admit("greedy")) for _ in range(3)]
        for hold in holds[:2]:
            await hold.start()
            hold.start_export()
            hold.start_export()
        with pytest.raises(ProblemRaised, match="2 exports of this caller"):
            holds[2].start_export()
        stack.enter_context(pressure.admit("other")).start_export()
        stack.close()


async def test_busy_caller_runs_a_few_requests_at_a_time() -> None:
    pressure = AdmissionControl(Limits())

    async def search(key: str, busy: list[int]) -> None:
        with pressure.admit(key) as hold:
            await hold.start()
            busy.append(pressure.shares["greedy"].running)
            await asyncio.sleep(0.01)

    with all_released(pressure):
        pressure.times = AlwaysTooMuch()
        running: list[int] = []
        await asyncio.gather(*(search("greedy", running) for _ in range(40)))

        assert max(running) == MAX_RUNNING
        assert len(running) == 40


async def test_work_time_excludes_waiting() -> None:
    pressure = AdmissionControl(Limits())
    times = pressure.times

    async def work() -> None:
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(10)

    await run_timed(work(), times, "a")
    assert 0 < sum(times._now.values()) + times._sum_before < 0.05

    waiting = asyncio.ensure_future(_awaiting(run_timed(asyncio.sleep(10), times, "a")))
    await turns()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def _awaiting(work: Awaitable[None]) -> None:
    await work


def test_unauthenticated_callers_share_a_limit() -> None:
    pressure = AdmissionControl(Limits(unauthenticated=1))
    with (
        pressure.admit_unauthenticated(),
        pytest.raises(ProblemRaised, match="unauthenticated callers"),
        pressure.admit_unauthenticated(),
    ):
        raise AssertionError
    with pressure.admit_unauthenticated():
        assert pressure.unauthenticated == 1


@pytest.mark.parametrize(
    ("caller", "one", "other", "is_same"),
    [
        (UNBOUNDED_CALLER, "10.0.0.1", "10.0.0.2", False),
        (UNBOUNDED_CALLER, "10.0.0.1", "10.0.0.1", True),
        (UNBOUNDED_CALLER, "2001:db8::1", "2001:db8::2", True),
        (UNBOUNDED_CALLER, "2001:db8::1", "2001:db8:0:1::1", False),
        (UNBOUNDED_CALLER, "fe80::1%eth0", "fe80::2%eth0", True),
        (UNBOUNDED_CALLER, "no:address", None, False),
        (Caller("agents", "bot"), "10.0.0.1", "10.0.0.2", True),
    ],
)
def test_caller_key_separates_callers(caller: Caller, one: str, other: str | None, is_same: bool) -> None:
    assert (caller_key(caller, one) == caller_key(caller, other)) is is_same


@pytest.mark.parametrize("caller", [UNBOUNDED_CALLER, Caller("agents", "bot")])
def test_user_tokens_share_the_limit_of_their_issuer(caller: Caller) -> None:
    tokens = [
        replace(caller, delegation=Delegation("bot", "agents", "uid", user, frozenset({Verb.READ}))) for user in "abc"
    ]

    assert {caller_key(token, "10.0.0.1") for token in tokens} == {caller_key(caller, "10.0.0.1")}
