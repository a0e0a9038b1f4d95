"""Work queue: one pass per key at a time, merged requests, bounded retries."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from agentmemory_operator.errors import LeadershipLost, TransientError
from agentmemory_operator.runtime import work_queue as workqueue
from agentmemory_operator.runtime.fair_queue import TenantLane
from agentmemory_operator.runtime.object_table import QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.runtime.work_queue import (
    FIRST_RETRY_S,
    MAX_RETRY_S,
    WorkQueue,
    gather_by_key,
    run_periodically,
)
from tests.support.spec.documents import connection_document

SHORT_S = 0.01


@contextlib.asynccontextmanager
async def running_queue(
    handle: Callable[[str], Awaitable[float | None]], *, share: int = 2, width: int = 8
) -> AsyncIterator[WorkQueue[str]]:
    """Run a queue. The lane of a key is its first letter; capitals are tenants of their own, the rest share one."""
    queue: WorkQueue[str] = WorkQueue(handle, share=share, tenant_lane_of=place_of, width=width)
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        assert not task.done(), "the workers stopped"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def place_of(key: str) -> TenantLane:
    return TenantLane(key[0] if key[0].isupper() else "tenant", key[0])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(2):
        while not condition():
            await asyncio.sleep(0.001)


async def run_ready_tasks() -> None:
    """Run all tasks that are ready."""
    for _ in range(10):
        await asyncio.sleep(0)


class Gate:
    """Pass that blocks until opened and records the running keys."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.running: set[str] = set()
        self.overlaps = 0
        self.open = asyncio.Event()

    async def handle(self, key: str) -> float | None:
        self.overlaps += key in self.running
        self.running.add(key)
        self.started.append(key)
        await self.open.wait()
        self.running.discard(key)
        return None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set retry delays to milliseconds."""
    monkeypatch.setattr(workqueue, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(workqueue, "MAX_RETRY_S", 0.004)


async def test_requested_key_gets_a_pass() -> None:
    gate = Gate()
    async with running_queue(gate.handle) as queue:
        queue.request("a")
        await run_ready_tasks()

    assert gate.started == ["a"]


async def test_requests_before_a_pass_are_merged() -> None:
    gate = Gate()
    gate.open.set()
    async with running_queue(gate.handle) as queue:
        for _ in range(5):
            queue.request("a")
        await run_ready_tasks()

    assert gate.started == ["a"]


async def test_requests_during_a_pass_add_one_more() -> None:
    gate = Gate()
    async with running_queue(gate.handle) as queue:
        queue.request("a")
        await run_ready_tasks()
        for _ in range(5):
            queue.request("a")
        await run_ready_tasks()
        assert gate.started == ["a"]
        gate.open.set()
        await run_ready_tasks()

    assert (gate.started, gate.overlaps) == (["a", "a"], 0)


async def test_keys_run_concurrently_up_to_share() -> None:
    gate = Gate()
    async with running_queue(gate.handle, share=2) as queue:
        for key in "abc":
            queue.request(key)
        await run_ready_tasks()
        assert gate.running == {"a", "b"}
        gate.open.set()
        await run_ready_tasks()

    assert gate.started == ["a", "b", "c"]


async def test_lane_concurrency_is_its_width() -> None:
    gate = Gate()
    async with running_queue(gate.handle, width=2, share=8) as queue:
        for number in range(6):
            queue.request(f"a{number}")
        await run_ready_tasks()
        assert gate.running == {"a0", "a1"}
        gate.open.set()
        await run_ready_tasks()

    assert gate.started == [f"a{number}" for number in range(6)]


async def test_blocked_lane_does_not_block_others() -> None:
    gate, passed = Gate(), []

    async def handle(key: str) -> float | None:
        if key.startswith("a"):
            return await gate.handle(key)
        passed.append(key)
        return None

    async with running_queue(handle, share=3, width=2) as queue:
        for key in ("a0", "a1", "a2", "b0", "b1", "c0"):
            queue.request(key)
        await run_ready_tasks()
        assert sorted(passed) == ["b0", "b1", "c0"]
        assert gate.running == {"a0", "a1"}


async def test_emptied_lane_accepts_keys_again() -> None:
    gate = Gate()
    gate.open.set()
    async with running_queue(gate.handle, width=1) as queue:
        for _ in range(3):
            for key in ("a0", "a1", "b0"):
                queue.request(key)
            await run_ready_tasks()
            await run_ready_tasks()

    assert sorted(gate.started) == sorted(["a0", "a1", "b0"] * 3)
    assert not queue._line._tenants
    assert not queue._line._in_lane


async def test_pass_schedules_the_next() -> None:
    started: list[str] = []

    async def handle(key: str) -> float | None:
        started.append(key)
        return SHORT_S if len(started) < 3 else None

    async with running_queue(handle) as queue:
        queue.request("a")
        await until(lambda: len(started) == 3)
        await asyncio.sleep(3 * SHORT_S)

    assert len(started) == 3


async def test_earliest_request_wins() -> None:
    gate = Gate()
    gate.open.set()
    async with running_queue(gate.handle) as queue:
        queue.request("a", after_s=100)
        queue.request("a", after_s=SHORT_S)
        queue.request("a", after_s=200)
        await until(lambda: gate.started == ["a"])


async def test_immediate_request_replaces_timer() -> None:
    gate = Gate()
    gate.open.set()
    async with running_queue(gate.handle) as queue:
        queue.request("a", after_s=2 * SHORT_S)
        queue.request("a")
        await run_ready_tasks()
        await asyncio.sleep(4 * SHORT_S)

    assert gate.started == ["a"]


async def test_timer_during_a_pass_adds_one_more() -> None:
    gate = Gate()
    async with running_queue(gate.handle) as queue:
        queue.request("a")
        await run_ready_tasks()
        queue.request("a", after_s=SHORT_S)
        await asyncio.sleep(3 * SHORT_S)
        gate.open.set()
        await run_ready_tasks()

    assert gate.started == ["a", "a"]


async def test_timer_of_waiting_key_does_not_block_next() -> None:
    gate = Gate()
    async with running_queue(gate.handle, share=1) as queue:
        queue.request("busy")
        await run_ready_tasks()
        queue.request("a")
        queue.request("a", after_s=SHORT_S)
        await asyncio.sleep(3 * SHORT_S)
        gate.open.set()
        await until(lambda: gate.started == ["busy", "a"])
        queue.request("a", after_s=SHORT_S)
        await until(lambda: gate.started == ["busy", "a", "a"])


async def test_forgotten_key_gets_no_further_pass() -> None:
    gate = Gate()
    async with running_queue(gate.handle) as queue:
        queue.request("timed", after_s=SHORT_S)
        queue.request("running")
        await run_ready_tasks()
        queue.request("running")
        queue.forget("timed")
        queue.forget("running")
        queue.forget("unknown")
        gate.open.set()
        await asyncio.sleep(3 * SHORT_S)

    assert gate.started == ["running"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("error", [TransientError("away"), ValueError("a defect")])
async def test_failed_pass_is_retried(error: Exception) -> None:
    passes = dict.fromkeys(("good", "bad"), 0)

    async def handle(key: str) -> float | None:
        passes[key] += 1
        if key == "bad" and passes[key] < 4:
            raise error
        return None

    async with running_queue(handle, share=1) as queue:
        queue.request("bad")
        queue.request("good")
        await until(lambda: passes == {"good": 1, "bad": 4})


@pytest.mark.usefixtures("quick")
async def test_only_unexpected_errors_log_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[Exception] = [TransientError("away"), ValueError("a defect")]

    async def handle(key: str) -> float | None:
        if errors:
            raise errors.pop(0)
        return None

    with caplog.at_level(logging.WARNING, logger=workqueue.__name__):
        async with running_queue(handle) as queue:
            queue.request("a")
            await until(lambda: not errors)
            await run_ready_tasks()

    assert [record.getMessage() for record in caplog.records if record.exc_info] == ["a: the pass failed"]


def test_backoff_grows_with_jitter_up_to_limit() -> None:
    async def handle(key: int) -> float | None:
        return None

    delays = []
    for key in range(200):
        queue: WorkQueue[int] = WorkQueue(handle)
        delays.append([queue._backoff(key, TransientError("away")) for _ in range(12)])

    first, seventh, last = ([row[number] for row in delays] for number in (0, 6, 11))
    assert all(FIRST_RETRY_S / 2 <= delay <= FIRST_RETRY_S for delay in first)
    assert all(MAX_RETRY_S / 2 <= delay <= MAX_RETRY_S for delay in seventh + last)
    assert len({round(delay, 3) for delay in last}) > 150


def test_retry_after_is_bounded() -> None:
    async def handle(key: str) -> float | None:
        return None

    queue: WorkQueue[str] = WorkQueue(handle)

    assert queue._backoff("a", TransientError("throttled", retry_after_s=30)) == 30
    assert queue._backoff("a", TransientError("throttled", retry_after_s=86_400)) == MAX_RETRY_S


@pytest.mark.usefixtures("quick")
async def test_success_resets_backoff() -> None:
    errors: list[Exception] = [TransientError("away")] * 3

    async def handle(key: str) -> float | None:
        if errors:
            raise errors.pop()
        return None

    async with running_queue(handle) as queue:
        queue.request("a")
        await until(lambda: not errors and not queue._failures)

        assert queue._backoff("a", TransientError("away")) <= 0.001


async def test_cancelling_stops_running_passes() -> None:
    gate = Gate()
    queue: WorkQueue[str] = WorkQueue(gate.handle)
    task = asyncio.create_task(queue.run())
    queue.request("a")
    await run_ready_tasks()

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_queue_is_stuck_while_work_waits() -> None:
    release = asyncio.Event()

    async def handle(key: str) -> None:
        await release.wait()

    queue: WorkQueue[str] = WorkQueue(handle, share=1)
    queue.request("before it runs")
    assert (queue.stuck_s, queue.length) == (0.0, 1)
    running = asyncio.create_task(queue.run())
    await asyncio.sleep(0.05)
    assert queue.stuck_s >= 0.04

    release.set()
    await asyncio.sleep(0.05)

    assert (queue.stuck_s, queue.length) == (0.0, 0)
    running.cancel()


async def test_endless_passes_do_not_block_other_tenants() -> None:
    gate, passed = Gate(), []

    async def handle(key: str) -> float | None:
        if key.islower():
            return await gate.handle(key)
        passed.append(key)
        return None

    async with running_queue(handle, share=4) as queue:
        for number in range(100):
            queue.request(f"{'abcdefgh'[number % 8]}{number}")
        await run_ready_tasks()
        assert len(gate.running) == 4
        for key in ("A", "B", "C"):
            queue.request(key)
        await run_ready_tasks()

    assert passed == ["A", "B", "C"]


async def test_forgotten_key_leaves_the_queue() -> None:
    gate = Gate()
    async with running_queue(gate.handle, share=1) as queue:
        queue.request("busy")
        await run_ready_tasks()
        queue.request("gone")
        queue.forget("gone")
        assert queue.length == 0
        gate.open.set()
        await run_ready_tasks()

    assert gate.started == ["busy"]


GREEDY, OTHER = "greedy", "other"


def table_of_both() -> ObjectTable:
    """Return a table with 40 connections of one namespace and, last, one of another."""
    table = ObjectTable()
    for namespace, count in ((GREEDY, 40), (OTHER, 1)):
        for number in range(count):
            document = connection_document(f"c{number}")
            document["metadata"]["namespace"] = namespace
            table.put(document)
    return table


async def test_endless_call_does_not_block_periodic_round() -> None:
    seen: list[Key] = []
    other = asyncio.Event()

    async def look(key: Key) -> None:
        seen.append(key)
        if key.namespace == OTHER:
            other.set()
            return
        await asyncio.Event().wait()

    running = asyncio.create_task(run_periodically(table_of_both(), QDRANT_CONNECTION, look, period_s=1000, share=2))
    try:
        async with asyncio.timeout(5):
            await other.wait()
    finally:
        running.cancel()

    assert len(seen) == 3, "two of the one, one of the other"


async def test_blocked_tenant_does_not_block_gather() -> None:
    table, asked, all_asked = table_of_both(), list[Key](), asyncio.Event()

    async def ask(key: Key) -> str:
        asked.append(key)
        if key.namespace == OTHER:
            all_asked.set()
        await all_asked.wait()
        return key.name

    answers = await gather_by_key(table.keys(QDRANT_CONNECTION), ask, tenant_lane_of=table.tenant_lane_of, share=2)

    assert answers == {key: key.name for key in table.keys(QDRANT_CONNECTION)}
    assert sorted(key.namespace for key in asked[:3]) == [GREEDY, GREEDY, OTHER]


async def test_error_ends_gather() -> None:
    async def ask(key: Key) -> None:
        raise LeadershipLost("somebody leads")

    table = table_of_both()

    with pytest.raises(LeadershipLost):
        await gather_by_key(table.keys(QDRANT_CONNECTION), ask, tenant_lane_of=table.tenant_lane_of, share=2)


async def test_cancellation_beside_a_failure_is_not_lost() -> None:
    """The caller is cancelled while the other calls end after the first failure."""
    is_ending = asyncio.Event()

    async def ask(key: str) -> str:
        if key == "fails":
            raise ConnectionError("down")
        try:
            await asyncio.sleep(60)
        finally:
            is_ending.set()
            await asyncio.sleep(0)
        return key

    task = asyncio.create_task(
        gather_by_key(["waits", "fails"], ask, tenant_lane_of=lambda key: TenantLane("team", key), share=2)
    )
    async with asyncio.timeout(5):
        await is_ending.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
