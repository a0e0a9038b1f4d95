"""What is done once: what is known of its object, whatever the watch has brought by then, and how its steps go."""

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


def opened(jobs: JobBook, **told: Any) -> Job:
    """Return the job of an object as the watch has brought it."""
    jobs.table.put(document(**told))
    job = jobs.open(KEY)
    assert job is not None
    return job


async def test_a_status_that_says_the_same_is_not_written() -> None:
    cluster = FakeCluster()
    jobs = book(cluster)

    await opened(jobs, status={"a": 1}).write({"a": 1})

    assert cluster.writes == 0


def test_an_object_that_is_gone_being_deleted_or_another_one_is_not_wanted() -> None:
    jobs = book()
    job = opened(jobs)
    assert job.is_current()

    jobs.table.put(document(uid="another"))
    assert not job.is_current()

    jobs.table.remove(KEY)
    assert not job.is_current()
    assert jobs.open(KEY) is None


def test_its_age_is_counted_from_its_beginning() -> None:
    jobs = book()
    job = opened(jobs, status={"startTime": opened(jobs).now})
    jobs.clock.move(ms=5000)  # type: ignore[attr-defined]

    assert 4 <= job.age_s <= 6
    assert opened(jobs, uid="new").age_s == 0


async def release(
    cluster: FakeCluster,
    failure: AgentMemoryError | None = None,
    *,
    held_by: Sequence[str] = (FINALIZER,),
    waits_s: int = 0,
) -> list[str]:
    """Delete an object, and have what it made cleaned up; return what was cleaned up."""
    jobs, cleaned = book(cluster), []
    told = document()
    told["metadata"] |= {"deletionTimestamp": opened(jobs).now, "finalizers": ["other/one", *held_by]}
    jobs.table.put(told)
    jobs.clock.move(ms=waits_s * 1000)  # type: ignore[attr-defined]
    job = jobs.open(KEY)
    assert job is not None

    async def clean() -> None:
        cleaned.append(KEY.name)
        if failure is not None:
            raise failure

    await job.release(clean, max_delay_s=60, describe_leftovers=lambda exc: ("Kept", f"left: {exc}"))
    return cleaned


async def test_a_deletion_that_nobody_here_holds_up_is_left_alone() -> None:
    cluster = FakeCluster()

    assert await release(cluster, held_by=()) == []
    assert cluster.writes == 0


async def test_what_is_cleaned_up_is_let_go_and_others_go_on_holding_it() -> None:
    cluster = FakeCluster()

    assert await release(cluster) == ["one"]
    assert cluster.finalizers == [("one", ["other/one"])]
    assert cluster.events == []


@pytest.mark.parametrize("lost", [StoreUnavailable("away"), LeadershipLost("another leads")])
async def test_a_deletion_waits_for_a_server_that_is_away(lost: AgentMemoryError) -> None:
    cluster = FakeCluster()

    with pytest.raises(type(lost)):
        await release(cluster, lost, waits_s=59)
    assert cluster.writes == 0


async def test_one_who_leads_no_more_lets_nothing_go_however_long_it_took() -> None:
    cluster = FakeCluster()

    with pytest.raises(LeadershipLost):
        await release(cluster, LeadershipLost("another leads"), waits_s=3600)
    assert cluster.writes == 0


@pytest.mark.parametrize(("failure", "waits_s"), [(StoreUnavailable("away"), 62), (StoreRejected(403, "no"), 0)])
async def test_what_is_left_in_the_end_is_told_and_the_object_goes(failure: AgentMemoryError, waits_s: int) -> None:
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
    """Takes the steps of an errand; remembers what was begun and done."""

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


async def test_steps_are_taken_in_the_order_of_their_kind_and_each_is_told_what_the_one_before_came_to() -> None:
    course = Course()

    assert await course.run() == "three"
    assert course.log == ["Fetch after ''", "Carry after 'one'", "HandOver after 'two'"]


async def test_what_was_begun_is_gone_on_with() -> None:
    course = Course()

    assert await course.run(Errand.CARRY) == "three"
    assert course.log == ["Carry after ''", "HandOver after 'two'"]


async def test_one_that_is_left_out_since_is_passed_over() -> None:
    course = Course()

    assert await course.run(Errand.REST) == "three"
    assert course.log == ["HandOver after ''"]


async def test_nothing_comes_after_a_step_that_waits() -> None:
    course = Course(CARRY=None)

    assert await course.run() is None
    assert course.log == ["Fetch after ''", "Carry after 'one'"]


async def test_what_fails_in_a_step_has_begun_it() -> None:
    course = Course(CARRY=ValueError("torn"))

    with pytest.raises(ValueError, match="torn"):
        await course.run()
    assert course.log[-1] == "Carry after 'one'"


class Schedule:
    """A schedule of runs that are due at `due_ms`."""

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


async def test_a_result_is_known_before_the_status_has_it() -> None:
    schedule = Schedule()
    runs = schedule.runs_of
    later = schedule.object | {"status": {"lastRun": {"time": "2026-11-25T11:00:00Z"}}}
    successor = memory_document(metadata={"uid": "another"})

    assert await runs.run_if_due(schedule.key) is None
    assert (schedule.runs, schedule.passes) == ([{}], [schedule.key])
    assert runs.last_result(schedule.key, schedule.memory)["removed"] == 3
    assert runs.last_result(schedule.key, schedule.table.parse(later)) == later["status"]["lastRun"]
    assert runs.last_result(schedule.key, schedule.table.parse(successor)) == {}


async def test_nothing_is_kept_of_an_object_that_is_gone() -> None:
    schedule = Schedule()
    await schedule.runs_of.run_if_due(schedule.key)

    schedule.table.remove(schedule.key)

    assert await schedule.runs_of.run_if_due(schedule.key) is None
    assert schedule.runs_of.last_result(schedule.key, schedule.memory) == {}


async def test_only_a_run_that_is_due_begins() -> None:
    never, later, without_collection = Schedule(due_ms=None), Schedule(), Schedule(status={})
    later.due_ms = later.clock.now_ms() + 5_000

    found = [await each.runs_of.run_if_due(each.key) for each in (never, later, without_collection)]

    assert found == [None, 5.0, None]
    assert never.runs + later.runs + without_collection.runs == []


async def test_a_run_waits_for_a_rebuild() -> None:
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
