"""Removal of snapshots: bytes before the object, repeatable after a kill, none that is still in use."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentmemory_operator.errors import LeadershipLost, NotOwned, SpecInvalid, StoreUnavailable
from agentmemory_operator.snapshots.retention import MAX_REMOVALS_PER_RUN, PERIOD_S, RETRY_S
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from tests.support.engine.fakes import FakeCluster
from tests.support.engine.interleaved_store import ProcessKilled
from tests.support.job.schedule_world import AGENT, NAMESPACE, ScheduleWorld, scheduled_agent, snapshot_document
from tests.support.metrics import collect_samples

Document = dict[str, Any]
KEEP_LAST_ONLY = {"keepLast": 1, "daily": 0, "weekly": 0, "monthly": 0}
PARTS = ("copy", "file")


@dataclass
class Outside(FakeCluster):
    """State outside the operator: the objects of the API server, and the bytes of each snapshot by part.

    Also implements BytesRemoval.

    Attributes:
        lives: Number of changing calls that succeed before the process is killed.
        refusal: Error that a removal of bytes raises, if set.
    """

    objects: dict[str, Document] = field(default_factory=dict)
    bytes_left: dict[str, set[str]] = field(default_factory=dict)
    lives: int = 1000
    refusal: Exception | None = None

    def put(self, name: str, day: int, **snapshot: Any) -> None:
        document = snapshot_document(name, begun=f"2026-10-{day:02}T03:00:00Z", **snapshot)
        document["status"]["name"] = name
        self.objects[name] = document
        self.bytes_left[name] = set(PARTS)

    async def write_status(self, kind: str, metadata: Metadata, status: Document) -> str:
        self.step()
        version = await super().write_status(kind, metadata, status)
        self.objects[metadata.name]["status"] = copy.deepcopy(status)
        return version

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        self.step()
        # Bytes without an object would never be found again.
        assert not self.bytes_left[metadata.name]
        self.objects.pop(metadata.name, None)

    async def remove(self, status: Mapping[str, Any], *, snapshot: Document) -> None:
        assert snapshot["metadata"]["namespace"] == NAMESPACE
        if self.refusal:
            raise self.refusal
        for part in PARTS:
            self.step()
            self.bytes_left[status["name"]].discard(part)

    def step(self) -> None:
        if not self.lives:
            raise ProcessKilled
        self.lives -= 1

    def operator(self, *others: Document) -> ScheduleWorld:
        """Return an operator that has just read every object. Snapshots are manual; the newest is kept."""
        world = ScheduleWorld(cluster=self, removal=self)
        agent = scheduled_agent(schedule="Never", retention=KEEP_LAST_ONLY)
        world.put(agent, *others, *copy.deepcopy(list(self.objects.values())))
        return world


async def run(world: ScheduleWorld) -> float | None:
    """Run once, then apply the deletions to the watched objects."""
    due_s = await world.schedule.retention.run(AGENT)
    assert isinstance(world.cluster, Outside)
    for key in [key for key in world.table.keys("MemorySnapshot") if key.name not in world.cluster.objects]:
        world.table.remove(key)
    return due_s


async def settle(world: ScheduleWorld) -> None:
    """Run until nothing remains to be done."""
    for _ in range(100):
        if await run(world) == PERIOD_S:
            return
    raise AssertionError("it never settles")


def outside(days: int = 3) -> Outside:
    """Return `days` snapshots, one a day; retention keeps the newest."""
    found = Outside()
    for day in range(1, days + 1):
        found.put(f"s{day}", day)
    return found


async def test_unkept_snapshots_lose_bytes_then_object() -> None:
    found = outside(12)
    world = found.operator()

    await settle(world)

    assert list(found.objects) == ["s12"]
    assert {name for name, left in found.bytes_left.items() if left} == {"s12"}
    assert collect_samples(*world.schedule.retention.metrics) == {"agentmemory_snapshots_removed_total": 11}
    assert [event.message for event in found.events][:1] == ["s1 is removed: no rule keeps it"]


async def test_run_removes_a_limited_number() -> None:
    found = outside(12)
    world = found.operator()

    assert await run(world) == 0.0
    assert len(found.statuses) == MAX_REMOVALS_PER_RUN


async def test_status_announces_removal_before_any_byte() -> None:
    found = outside(2)

    await run(found.operator())

    (condition,) = [item for item in found.objects["s1"]["status"]["conditions"] if item["type"] == "Succeeded"]
    assert (condition["status"], condition["reason"]) == ("False", "BeingRemoved")
    assert condition["message"] == "retention removes it: no rule keeps it"
    assert found.bytes_left["s1"] == set(PARTS)


@pytest.mark.parametrize("lives", range(9))
async def test_kill_at_any_call_is_recovered(lives: int) -> None:
    """Two snapshots are removed with four calls each; a ninth call does not exist."""
    found = outside()
    found.lives = lives
    try:
        await settle(found.operator())
    except ProcessKilled:
        assert lives < 8
    assert not [name for name, left in found.bytes_left.items() if left and name not in found.objects]
    found.lives = 1000

    await settle(found.operator())

    assert list(found.objects) == ["s3"]
    assert {name for name, left in found.bytes_left.items() if left} == {"s3"}


async def test_started_removal_completes_despite_new_rules() -> None:
    found = outside(2)
    found.lives = 2
    with pytest.raises(ProcessKilled):
        await settle(found.operator())
    found.lives = 1000
    world = found.operator()
    world.put(scheduled_agent(schedule="Never", retention={"keepLast": 100}))

    await settle(world)

    assert list(found.objects) == ["s2"]


def restore(name: str, *, succeeded: str = "Unknown") -> Document:
    return {
        "apiVersion": "agentmemory.dev/v1alpha1",
        "kind": "MemoryRestore",
        "metadata": {"name": "undo", "namespace": NAMESPACE, "uid": "uid-undo"},
        "spec": {"target": {"name": "another"}, "source": {"snapshotRef": {"name": name}}},
        "status": {"conditions": [{"type": "Succeeded", "status": succeeded}]},
    }


async def test_snapshot_of_running_restore_is_kept() -> None:
    found = outside()
    world = found.operator(restore("s1"))
    await settle(world)
    during = list(found.objects)
    world.put(restore("s1", succeeded="True"))

    await settle(world)

    assert (during, list(found.objects)) == (["s1", "s3"], ["s3"])


async def test_announced_removal_waits_for_new_restore() -> None:
    found = outside(2)
    world = found.operator()
    await run(world)
    world.put(restore("s1"))

    await settle(world)

    assert found.bytes_left["s1"] == set(PARTS)


async def test_bootstrap_snapshot_of_new_agent_is_kept() -> None:
    found = outside()
    heir = scheduled_agent("heir") | {"status": {}}
    heir["spec"]["bootstrap"] = {"fromSnapshot": {"name": "s2"}}

    await settle(found.operator(heir))

    assert list(found.objects) == ["s2", "s3"]


async def test_foreign_bytes_are_not_removed() -> None:
    """The object is deleted without them, and does not block the others."""

    found = outside()
    # The snapshots own no bytes, whatever files their statuses name.
    found.bytes_left = {name: set() for name in found.objects}
    world = found.operator()
    found.refusal = NotOwned("CollectionNotOwned", "it is another's")

    await settle(world)

    assert list(found.objects) == ["s3"]


@pytest.mark.parametrize("refusal", [StoreUnavailable("away"), SpecInvalid("SecretNotFound", "no Secret")])
async def test_object_is_kept_until_bytes_are_removed(refusal: Exception) -> None:
    found = outside(2)
    found.refusal = refusal
    world = found.operator()
    await run(world)

    assert await run(world) == RETRY_S
    assert list(found.objects) == ["s1", "s2"]

    found.refusal = None
    await settle(world)
    assert list(found.objects) == ["s2"]


async def test_lost_leadership_stops_removal() -> None:
    found = outside(3)
    found.refusal = LeadershipLost("slept")
    world = found.operator()
    await run(world)

    with pytest.raises(LeadershipLost):
        await run(world)


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"snapshots": None}},
        {"spec": {"snapshots": {"schedule": "0 3 30 2 *"}}},
        {"spec": {"suspend": True}},
        {"metadata": {"deletionTimestamp": "2026-11-22T11:00:00Z"}},
    ],
)
async def test_unmanaged_agent_keeps_its_snapshots(change: Document) -> None:
    found = outside()
    world, document = found.operator(), scheduled_agent()
    world.put(
        {name: part | change.get(name, {}) if isinstance(part, dict) else part for name, part in document.items()}
    )

    assert await run(world) is None


async def test_deleted_agent_keeps_its_snapshots() -> None:
    found = outside()
    world = found.operator()
    world.table.remove(AGENT)

    assert await run(world) is None
    assert len(found.objects) == 3


async def test_only_labelled_snapshots_are_removed() -> None:
    found = outside(2)
    found.put("by-hand", 1, is_scheduled=False)
    found.put("given", 1, is_scheduled=False, labels={"agentmemory.dev/retention": "Scheduled"})

    await settle(found.operator())

    assert list(found.objects) == ["s2", "by-hand"]


async def test_terminating_snapshot_is_retried_slowly() -> None:
    """A finalizer may block the deletion for long; an immediate retry would find the same state each time."""
    found = outside(2)
    found.objects["s1"]["metadata"]["deletionTimestamp"] = "2026-10-05T00:00:00Z"

    assert await run(found.operator()) == PERIOD_S
    assert found.bytes_left["s1"] == set(PARTS)
