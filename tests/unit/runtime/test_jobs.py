"""Jobs: current objects, release of deleted objects, order of steps, schedules of runs."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any

import pytest

from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.jobs import REBUILD_RECHECK_S, Job, JobBook, RunSchedule, run_steps
from agentmemory_operator.runtime.object_table import Key, ObjectTable, key_of
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from tests.support.engine.fakes import FakeClock, FakeCluster
from tests.support.spec.documents import memory_document

FINALIZER = "example.org/held"
KEY = Key("MemorySnapshot", "agents", "one")


def document(uid: str = "u", **more: Any) -> dict[str, Any]:
    return {"kind": KEY.kind, "metadata": {"name": "one", "namespace": "agents", "uid": uid}} | more


def book(cluster: FakeCluster | None = None) -> JobBook:
    return JobBook(ObjectTable(), cluster or FakeCluster(), FakeClock(), FINALIZER)


def open_job(jobs: JobBook, **fields: Any) -> Job:
    """Put an object into the table and return its job."""
    jobs.table.put(document(**fields))
    job = jobs.open(KEY)
    assert job is not None
    return job


async def test_unchanged_status_is_not_written() -> None:
    cluster = FakeCluster()
    jobs = book(cluster)

    await open_job(jobs, status={"a": 1}).write({"a": 1})

    assert cluster.writes == 0


def test_deleted_or_recreated_object_is_not_current() -> None:
    jobs = book()
    job = open_job(jobs)
    assert job.is_current()

    jobs.table.put(document(uid="another"))
    assert not job.is_current()

    jobs.table.remove(KEY)
    assert not job.is_current()
    assert jobs.open(KEY) is None


def test_age_counts_from_start_time() -> None:
    jobs = book()
    job = open_job(jobs, status={"startTime": open_job(jobs).now})
    jobs.clock.move(ms=5000)  # type: ignore[attr-defined]

    assert 4 <= job.age_s <= 6
    assert open_job(jobs, uid="new").age_s == 0


async def release(
    cluster: FakeCluster,
    failure: AgentMemoryError | None = None,
    *,
    finalizers: Sequence[str] = (FINALIZER,),
    waits_s: int = 0,
) -> list[str]:
    """Delete an object and run its cleanup; return the names cleaned up."""
    jobs, cleaned = book(cluster), []
    deleted_document = document()
    deleted_document["metadata"] |= {"deletionTimestamp": open_job(jobs).now, "finalizers": ["other/one", *finalizers]}
    jobs.table.put(deleted_document)
    jobs.clock.move(ms=waits_s * 1000)  # type: ignore[attr-defined]
    job = jobs.open(KEY)
    assert job is not None

    async def clean() -> None:
        cleaned.append(KEY.name)
        if failure is not None:
            raise failure

    await job.release(clean, max_delay_s=60, describe_leftovers=lambda exc: ("Kept", f"left: {exc}"))
    return cleaned


async def test_deletion_without_finalizer_is_ignored() -> None:
    cluster = FakeCluster()

    assert await release(cluster, finalizers=()) == []
    assert cluster.writes == 0


async def test_cleanup_removes_own_finalizer_only() -> None:
    cluster = FakeCluster()

    assert await release(cluster) == ["one"]
    assert cluster.finalizers == [("one", ["other/one"])]
    assert cluster.events == []


@pytest.mark.parametrize("lost", [StoreUnavailable("away"), LeadershipLost("another leads")])
async def test_deletion_waits_for_unavailable_server(lost: AgentMemoryError) -> None:
    cluster = FakeCluster()

    with pytest.raises(type(lost)):
        await release(cluster, lost, waits_s=59)
    assert cluster.writes == 0


async def test_lost_leader_never_releases() -> None:
    cluster = FakeCluster()

    with pytest.raises(LeadershipLost):
        await release(cluster, LeadershipLost("another leads"), waits_s=3600)
    assert cluster.writes == 0


@pytest.mark.parametrize(("failure", "waits_s"), [(StoreUnavailable("away"), 62), (StoreRejected(403, "no"), 0)])
async def test_leftovers_are_reported_and_object_released(failure: AgentMemoryError, waits_s: int) -> None:
    cluster = FakeCluster()

    await release(cluster, failure, waits_s=waits_s)

    assert [event.message for event in cluster.events] == [f"left: {failure}"]
    assert cluster.finalizers == [("one", ["other/one"])]


class Errand(StrEnum):
    FETCH = "Fetch"
    CARRY = "Carry"
    REST = "Rest"
    HAND_OVER = "HandOver"


class Course:
    """Runs the steps of an errand and records the started ones."""

    def __init__(self, **did: str | Exception | None) -> None:
        self.did = {Errand.FETCH: "one", Errand.CARRY: "two", Errand.HAND_OVER: "three"} | {
            Errand[name]: result for name, result in did.items()
        }
        self.log: list[str] = []

    async def begin(self, step: Errand, came_to: str) -> None:
        self.log.append(f"{step} after {came_to!r}")

    async def take(self, step: Errand) -> str | None:
        result = self.did[step]
        if isinstance(result, Exception):
            raise result
        return result

    async def run(self, first: Errand = Errand.FETCH, *, without: tuple[Errand, ...] = (Errand.REST,)) -> str | None:
        steps: Mapping[Errand, Any] = {step: partial(_take, step) for step in reversed(Errand) if step not in without}
        return await run_steps(steps, self, first=first, begin=Course.begin)


async def _take(step: Errand, course: Course) -> str | None:
    return await course.take(step)


async def test_steps_run_in_enum_order_with_last_result() -> None:
    course = Course()

    assert await course.run() == "three"
    assert course.log == ["Fetch after ''", "Carry after 'one'", "HandOver after 'two'"]


async def test_run_continues_at_first_step() -> None:
    course = Course()

    assert await course.run(Errand.CARRY) == "three"
    assert course.log == ["Carry after ''", "HandOver after 'two'"]


async def test_removed_first_step_is_skipped() -> None:
    course = Course()

    assert await course.run(Errand.REST) == "three"
    assert course.log == ["HandOver after ''"]


async def test_waiting_step_ends_the_run() -> None:
    course = Course(CARRY=None)

    assert await course.run() is None
    assert course.log == ["Fetch after ''", "Carry after 'one'"]


async def test_failed_step_is_recorded_as_started() -> None:
    course = Course(CARRY=ValueError("torn"))

    with pytest.raises(ValueError, match="torn"):
        await course.run()
    assert course.log[-1] == "Carry after 'one'"


class Schedule:
    """Schedule of runs that are due at `due_ms`."""

    def __init__(self, *, due_ms: int | None = 0, status: Json | None = None) -> None:
        self.table, self.clock = ObjectTable(), FakeClock()
        self.rebuilding: set[Key] = set()
        self.passes: list[Key] = []
        self.runs: list[Json] = []
        self.due_ms = due_ms
        self.object = memory_document() | {"status": {"collection": {"physical": "p"}} if status is None else status}
        self.table.put(self.object)
        self.key, self.memory = key_of(self.object), self.table.parse(self.object)
        parts = self.table, self.clock, self.rebuilding.__contains__, self.passes.append
        self.runs_of = RunSchedule(*parts, "lastRun", due_ms=lambda *_: self.due_ms, run=self._run, share=1)

    async def _run(self, key: Key, memory: AgentMemory, last: Json) -> None:
        self.runs.append(last)
        self.runs_of.record_result(key, memory, {"time": "2026-11-25T10:00:00Z", "removed": 3})


async def test_result_is_visible_before_status() -> None:
    schedule = Schedule()
    runs = schedule.runs_of
    later = schedule.object | {"status": {"lastRun": {"time": "2026-11-25T11:00:00Z"}}}
    successor = memory_document(metadata={"uid": "another"})

    assert await runs.run_if_due(schedule.key) is None
    assert (schedule.runs, schedule.passes) == ([{}], [schedule.key])
    assert runs.last_result(schedule.key, schedule.memory)["removed"] == 3
    assert runs.last_result(schedule.key, schedule.table.parse(later)) == later["status"]["lastRun"]
    assert runs.last_result(schedule.key, schedule.table.parse(successor)) == {}


async def test_deleted_object_has_no_result() -> None:
    schedule = Schedule()
    await schedule.runs_of.run_if_due(schedule.key)

    schedule.table.remove(schedule.key)

    assert await schedule.runs_of.run_if_due(schedule.key) is None
    assert schedule.runs_of.last_result(schedule.key, schedule.memory) == {}


async def test_only_due_runs_start() -> None:
    never, later, without_collection = Schedule(due_ms=None), Schedule(), Schedule(status={})
    later.due_ms = later.clock.now_ms() + 5_000

    found = [await each.runs_of.run_if_due(each.key) for each in (never, later, without_collection)]

    assert found == [None, 5.0, None]
    assert never.runs + later.runs + without_collection.runs == []


async def test_run_waits_for_rebuild() -> None:
    schedule = Schedule()
    with schedule.runs_of.block_rebuild(schedule.key):
        assert schedule.runs_of.is_changing(schedule.key)
    assert not schedule.runs_of.is_changing(schedule.key)
    schedule.rebuilding.add(schedule.key)

    assert await schedule.runs_of.run_if_due(schedule.key) == REBUILD_RECHECK_S
    assert schedule.runs == []
    with pytest.raises(StoreUnavailable, match="rebuilt"), schedule.runs_of.block_rebuild(schedule.key):
        pass
    assert not schedule.runs_of.is_changing(schedule.key)
