"""What is known of an object that is done once: its last status, whatever the watch has brought by then."""

from typing import Any

from agentmemory_operator.services.jobs import JobBook
from agentmemory_operator.services.objects import Key, ObjectTable
from tests.support.clocks import FakeClock
from tests.support.fakes import FakeCluster

KEY = Key("MemorySnapshot", "agents", "one")


def document(uid: str = "u", **more: Any) -> dict[str, Any]:
    return {"kind": KEY.kind, "metadata": {"name": "one", "namespace": "agents", "uid": uid}} | more


def book() -> JobBook:
    return JobBook(ObjectTable(), FakeCluster(), FakeClock())


async def test_a_status_that_the_watch_has_not_brought_yet_is_known() -> None:
    jobs = book()
    await jobs.open(KEY, document()).write({"step": "Create"})

    assert jobs.open(KEY, document()).status == {"step": "Create"}


async def test_another_object_of_the_name_begins_anew() -> None:
    jobs = book()
    await jobs.open(KEY, document()).write({"step": "Create"})

    assert jobs.open(KEY, document(uid="another")).status == {}


async def test_once_it_has_come_what_comes_later_counts() -> None:
    jobs = book()
    await jobs.open(KEY, document()).write({"step": "Create"})
    jobs.open(KEY, document(status={"step": "Create"}))

    assert jobs.open(KEY, document(status={"step": "Verify"})).status == {"step": "Verify"}


async def test_a_status_that_says_the_same_is_not_written() -> None:
    cluster = FakeCluster()
    jobs = JobBook(ObjectTable(), cluster, FakeClock())

    await jobs.open(KEY, document(status={"a": 1})).write({"a": 1})

    assert cluster.writes == 0


def test_an_object_that_is_gone_being_deleted_or_another_one_is_not_wanted() -> None:
    jobs = book()
    job = jobs.open(KEY, document())
    assert not job.is_wanted()

    jobs.table.put(document())
    assert job.is_wanted()

    jobs.table.put(document(uid="another"))
    assert not job.is_wanted()


def test_its_age_is_counted_from_its_beginning() -> None:
    jobs = book()
    job = jobs.open(KEY, document(status={"startTime": jobs.open(KEY, document()).now}))
    jobs.clock.move(ms=5000)  # type: ignore[attr-defined]

    assert 4 <= job.age_s <= 6
    assert jobs.open(KEY, document(uid="new")).age_s == 0
