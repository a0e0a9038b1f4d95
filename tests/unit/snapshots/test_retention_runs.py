"""Removing snapshots: bytes before the object, again after a kill, and nothing that somebody needs."""

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
NONE_BUT_THE_NEWEST = {"keepLast": 1, "daily": 0, "weekly": 0, "monthly": 0}
PARTS = ("copy", "file")


@dataclass
class Outside(FakeCluster):
    """What outlives the operator: the objects as the API server has them, and each snapshot's bytes, part by part.

    Implements BytesRemoval too.

    Attributes:
        lives: how many more calls that change something are carried out before the process is killed.
        refusal: raised by a removal of bytes while it is set.
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
        # Bytes without an object: nobody would ever find them again.
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
        """Return an operator that has just read every object; snapshots are made by hand, the newest of them stays."""
        world = ScheduleWorld(cluster=self, removal=self)
        agent = scheduled_agent(schedule="Never", retention=NONE_BUT_THE_NEWEST)
        world.put(agent, *others, *copy.deepcopy(list(self.objects.values())))
        return world


async def run(world: ScheduleWorld) -> float | None:
    """Make one run, and see what the watch brings."""
    due_s = await world.schedule.retention.run(AGENT)
    assert isinstance(world.cluster, Outside)
    for key in [key for key in world.table.keys("MemorySnapshot") if key.name not in world.cluster.objects]:
        world.table.remove(key)
    return due_s


async def settle(world: ScheduleWorld) -> None:
    """Run until nothing is left to do."""
    for _ in range(100):
        if await run(world) == PERIOD_S:
            return
    raise AssertionError("it never settles")


def outside(days: int = 3) -> Outside:
    """Return so many snapshots, a day apart, of which retention keeps the newest."""
    found = Outside()
    for day in range(1, days + 1):
        found.put(f"s{day}", day)
    return found


async def test_what_no_rule_keeps_goes_bytes_first() -> None:
    found = outside(12)
    world = found.operator()

    await settle(world)

    assert list(found.objects) == ["s12"]
    assert {name for name, left in found.bytes_left.items() if left} == {"s12"}
    assert collect_samples(*world.schedule.retention.metrics) == {"agentmemory_snapshots_removed_total": 11}
    assert [event.message for event in found.events][:1] == ["s1 is removed: no rule keeps it"]


async def test_a_run_takes_a_step_with_a_few_and_comes_again_for_the_others() -> None:
    found = outside(12)
    world = found.operator()

    assert await run(world) == 0.0
    assert len(found.statuses) == MAX_REMOVALS_PER_RUN


async def test_it_is_said_before_any_byte_goes() -> None:
    found = outside(2)

    await run(found.operator())

    (condition,) = [item for item in found.objects["s1"]["status"]["conditions"] if item["type"] == "Succeeded"]
    assert (condition["status"], condition["reason"]) == ("False", "BeingRemoved")
    assert condition["message"] == "retention removes it: no rule keeps it"
    assert found.bytes_left["s1"] == set(PARTS)


@pytest.mark.parametrize("lives", range(9))
async def test_killed_at_any_call_and_started_again_it_ends_the_same(lives: int) -> None:
    """Two go, by four calls each; the ninth kill comes too late."""
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


async def test_once_begun_a_removal_ends_though_the_rules_have_changed_since() -> None:
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


async def test_what_a_restore_reads_stays_until_it_has_ended() -> None:
    found = outside()
    world = found.operator(restore("s1"))
    await settle(world)
    meanwhile = list(found.objects)
    world.put(restore("s1", succeeded="True"))

    await settle(world)

    assert (meanwhile, list(found.objects)) == (["s1", "s3"], ["s3"])


async def test_a_restore_that_began_while_the_removal_was_announced_is_waited_for() -> None:
    found = outside(2)
    world = found.operator()
    await run(world)
    world.put(restore("s1"))

    await settle(world)

    assert found.bytes_left["s1"] == set(PARTS)


async def test_what_an_agent_that_has_no_collection_yet_is_to_begin_with_stays() -> None:
    found = outside()
    heir = scheduled_agent("heir") | {"status": {}}
    heir["spec"]["bootstrap"] = {"fromSnapshot": {"name": "s2"}}

    await settle(found.operator(heir))

    assert list(found.objects) == ["s2", "s3"]


async def test_one_that_names_bytes_of_anothers_goes_without_them_and_holds_up_no_other() -> None:
    found = outside()
    # Whatever they name, they have none of their own.
    found.bytes_left = {name: set() for name in found.objects}
    world = found.operator()
    found.refusal = NotOwned("CollectionNotOwned", "it is another's")

    await settle(world)

    assert list(found.objects) == ["s3"]


@pytest.mark.parametrize("refusal", [StoreUnavailable("away"), SpecInvalid("SecretNotFound", "no Secret")])
async def test_while_the_bytes_cannot_be_removed_the_object_stands(refusal: Exception) -> None:
    found = outside(2)
    found.refusal = refusal
    world = found.operator()
    await run(world)

    assert await run(world) == RETRY_S
    assert list(found.objects) == ["s1", "s2"]

    found.refusal = None
    await settle(world)
    assert list(found.objects) == ["s2"]


async def test_one_that_lost_the_lease_removes_nothing_more() -> None:
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
async def test_of_an_agent_that_is_left_alone_nothing_goes(change: Document) -> None:
    found = outside()
    world, document = found.operator(), scheduled_agent()
    world.put(
        {name: part | change.get(name, {}) if isinstance(part, dict) else part for name, part in document.items()}
    )

    assert await run(world) is None


async def test_once_the_agent_is_gone_its_backups_stay() -> None:
    found = outside()
    world = found.operator()
    world.table.remove(AGENT)

    assert await run(world) is None
    assert len(found.objects) == 3


async def test_one_without_the_label_stays_and_one_that_was_given_it_goes() -> None:
    found = outside(2)
    found.put("by-hand", 1, is_scheduled=False)
    found.put("given", 1, is_scheduled=False, labels={"agentmemory.dev/retention": "Scheduled"})

    await settle(found.operator())

    assert list(found.objects) == ["s2", "by-hand"]


async def test_one_that_is_being_deleted_is_waited_for_without_haste() -> None:
    """A finalizer may hold it for long: the run that comes again at once would find the same for ever."""
    found = outside(2)
    found.objects["s1"]["metadata"]["deletionTimestamp"] = "2026-10-05T00:00:00Z"

    assert await run(found.operator()) == PERIOD_S
    assert found.bytes_left["s1"] == set(PARTS)
