"""Schedule of snapshots, and their part of an agent's status."""

from typing import Any

import pytest

from agentmemory_operator.errors import TransientError
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, MEMORY_SNAPSHOT, Key
from agentmemory_operator.spec.cron import MAX_SPREAD_MS
from tests.support.job.schedule_world import AGENT, ScheduleWorld, conditions_of, ms, scheduled_agent, snapshot_document
from tests.support.metrics import collect_samples

SLOT, BEFORE = "probe-20261122t0300z", "probe-20261121t0300z"


def world(*documents: dict[str, Any], now: str = "2026-11-22T12:00:00Z", **snapshots: Any) -> ScheduleWorld:
    found = ScheduleWorld(now)
    found.put(scheduled_agent(**snapshots), *documents)
    return found


async def test_due_slot_creates_a_named_snapshot() -> None:
    found = world(verify="Checksum")

    await found.run_schedule()

    document = found.cluster.created[MEMORY_SNAPSHOT, SLOT]
    assert document["spec"] == {"agentMemoryRef": {"name": "probe"}, "verify": "Checksum"}
    assert document["metadata"] == {
        "name": SLOT,
        "namespace": "agents",
        "labels": {"agentmemory.dev/agent-memory": "probe", "agentmemory.dev/retention": "Scheduled"},
        "annotations": {"agentmemory.dev/slot": "2026-11-22T03:00:00Z"},
    }


async def test_only_the_newest_missed_slot_is_used() -> None:
    found = world(schedule="*/10 * * * *", now="2026-11-22T12:05:00Z")

    for _ in range(5):
        await found.run_schedule()

    assert found.created == ["probe-20261122t1200z"]


async def test_slot_before_creation_is_ignored() -> None:
    found = world(now="2026-11-20T13:00:00Z")

    due_s = await found.run_schedule()

    assert found.created == []
    assert due_s is not None
    assert 14 * 3600 <= due_s <= 14 * 3600 + MAX_SPREAD_MS / 1000


async def test_two_operators_create_one_snapshot() -> None:
    found = world()
    await found.run_schedule()
    found.table.remove(Key(MEMORY_SNAPSHOT, "agents", SLOT))  # the other one's watch has not brought it yet
    found.restart()

    await found.run_schedule()

    assert found.created == [SLOT]


async def test_restart_does_not_repeat_a_deleted_snapshot() -> None:
    found = world()
    await found.run_schedule()
    status = found.write_status()
    found.cluster.created.clear()
    found.table.remove(Key(MEMORY_SNAPSHOT, "agents", SLOT))
    found.restart()

    await found.run_schedule()

    assert status["lastSnapshotSlot"] == "2026-11-22T03:00:00Z"
    assert found.created == []


async def test_restart_reads_the_slot_from_the_object() -> None:
    """The previous process may stop before it writes the status."""

    found = world()
    await found.run_schedule()
    found.restart()

    assert found.write_status()["lastSnapshotSlot"] == "2026-11-22T03:00:00Z"


async def test_failed_creation_is_retried() -> None:
    found = world()
    found.cluster.error = TransientError("away")
    with pytest.raises(TransientError):
        await found.run_schedule()
    found.cluster.error = None

    await found.run_schedule()

    assert found.created == [SLOT]


async def test_next_snapshot_waits_for_the_previous() -> None:
    found = world(snapshot_document(BEFORE, slot="2026-11-21T03:00:00Z", succeeded="Unknown", verified="Unknown"))
    await found.run_schedule()
    before = list(found.created)
    found.put(snapshot_document(BEFORE, slot="2026-11-21T03:00:00Z"))

    await found.run_schedule()

    assert (before, found.created) == ([], [SLOT])


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"suspend": True}},
        {"metadata": {"deletionTimestamp": "2026-11-22T11:00:00Z"}},
        {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "QdrantUnavailable"}]}},
        {"status": {"collection": {}}},
        {"spec": {"snapshots": {"schedule": "Never"}}},
        {"spec": {"snapshots": {"schedule": "0 3 30 2 *"}}},
    ],
)
async def test_ineligible_agent_gets_no_snapshot(change: dict[str, Any]) -> None:
    found, document = ScheduleWorld(), scheduled_agent()
    found.put(
        {name: part | change.get(name, {}) if isinstance(part, dict) else part for name, part in document.items()}
    )

    await found.run_schedule()

    assert found.created == []


async def test_agent_without_its_slug_gets_no_snapshot() -> None:
    found, usurper = world(), scheduled_agent("usurper")
    usurper["spec"]["agent"] = "probe"
    usurper["metadata"]["creationTimestamp"] = "2026-11-21T12:00:00Z"
    found.put(usurper)

    await found.run_schedule(Key(AGENT_MEMORY, "agents", "usurper"))

    assert found.created == []


async def test_outage_is_followed_by_one_snapshot() -> None:
    found = ScheduleWorld("2026-11-25T12:00:00Z")
    found.put(scheduled_agent(is_ready=False))
    await found.run_schedule()
    found.put(scheduled_agent())

    await found.run_schedule()
    await found.run_schedule()

    assert found.created == ["probe-20261125t0300z"]


async def test_equal_schedules_are_spread_over_time() -> None:
    found = ScheduleWorld("2026-11-22T03:00:00Z")
    names = [f"a{number}" for number in range(200)]
    found.put(*(scheduled_agent(name) for name in names))
    dues = [await found.schedule.check(Key(AGENT_MEMORY, "agents", name)) or 0.0 for name in names]
    found.at("2026-11-22T03:05:01Z")
    for name in names:
        await found.schedule.check(Key(AGENT_MEMORY, "agents", name))

    assert len({int(due_s) for due_s in dues}) > 100
    assert max(dues) <= MAX_SPREAD_MS / 1000
    assert sorted(found.created) == sorted(f"{name}-20261122t0300z" for name in names)


async def test_new_server_version_requests_one_snapshot() -> None:
    found = world(snapshot_document(SLOT, begun="2026-11-22T03:01:00Z", slot="2026-11-22T03:00:00Z"))
    found.connect("1.19.2")
    before = found.write_status()
    await found.run_schedule()
    found.clock.move(ms=MAX_SPREAD_MS)
    await found.run_schedule()
    found.restart()
    await found.run_schedule()

    assert conditions_of(before)["SnapshotFresh"] == "False/ServerVersionChanged"
    assert found.created == ["probe-qdrant-1-19-2"]
    assert [event.reason for event in found.cluster.events] == ["SnapshotDue"]


async def test_verified_snapshot_of_new_version_is_fresh() -> None:
    found = world(
        snapshot_document(SLOT, begun="2026-11-22T03:01:00Z", slot="2026-11-22T03:00:00Z"),
        snapshot_document("probe-qdrant-1-19-2", begun="2026-11-22T11:00:00Z", version="1.19.2"),
    )
    found.connect("1.19.2")

    assert conditions_of(found.write_status())["SnapshotFresh"] == "True/SnapshotRecent"


async def test_server_patch_requests_no_snapshot() -> None:
    found = world(snapshot_document(SLOT, begun="2026-11-22T03:01:00Z", slot="2026-11-22T03:00:00Z"))
    found.connect("1.18.9")
    found.clock.move(ms=MAX_SPREAD_MS)

    await found.run_schedule()

    assert found.created == []
    assert conditions_of(found.write_status())["SnapshotFresh"] == "True/SnapshotRecent"


def record_rebuild(
    found: ScheduleWorld, *, time: str = "2026-11-22T11:00:00Z", number: int = 2, **rebuild: str
) -> None:
    """Record a rebuild that has moved the agent's alias."""
    document = scheduled_agent()
    document["status"]["collection"] = {"physical": f"agent_memory_probe__{number}", "rebuiltTime": time}
    document["status"]["rebuild"] = {"state": "Done", "step": "Done"} | rebuild
    found.put(document)


async def test_rebuild_requests_one_snapshot() -> None:
    found = world(snapshot_document(SLOT, begun="2026-11-22T03:01:00Z", slot="2026-11-22T03:00:00Z"))
    record_rebuild(found)
    found.connect("1.18.3")
    before = found.write_status()
    await found.run_schedule()
    found.restart()
    await found.run_schedule()

    assert conditions_of(before)["SnapshotFresh"] == "False/CollectionRebuilt"
    assert found.created == ["probe-rebuilt-20261122t110000z"]
    assert [(event.reason, "was rebuilt" in event.message) for event in found.cluster.events] == [("SnapshotDue", True)]


async def test_pass_with_rebuild_move_reports_it() -> None:
    found = world(snapshot_document(SLOT, begun="2026-11-22T03:01:00Z", slot="2026-11-22T03:00:00Z"))
    document = found.table.get(AGENT)
    assert document is not None
    moved = {"physical": "agent_memory_probe__2", "rebuiltTime": "2026-11-22T11:00:00Z"}

    status = found.schedule.update_status(AGENT, document, document["status"] | {"collection": moved})

    assert conditions_of(status)["SnapshotFresh"] == "False/CollectionRebuilt"
    # The schedule runs before the status is written.
    await found.run_schedule()
    assert found.created == ["probe-rebuilt-20261122t110000z"]


async def test_running_rebuild_requests_no_snapshot() -> None:
    found = world(snapshot_document(SLOT, begun="2026-11-22T03:01:00Z", slot="2026-11-22T03:00:00Z"))
    record_rebuild(found, state="Running", step="Drain")

    await found.run_schedule()

    assert found.created == []
    assert conditions_of(found.write_status())["SnapshotFresh"] == "False/CollectionRebuilt"


@pytest.mark.parametrize(
    ("begun", "physical", "number"),
    [
        ("2026-11-22T11:30:00Z", "agent_memory_probe__2", 2),
        ("2026-11-22T10:59:59Z", "agent_memory_probe__2", 2),
        ("2026-11-22T03:01:00Z", "agent_memory_probe__1", 1),
    ],
)
async def test_snapshot_of_live_collection_is_fresh(begun: str, physical: str, number: int) -> None:
    found = world(snapshot_document(SLOT, begun=begun, slot="2026-11-22T03:00:00Z", physical=physical))
    record_rebuild(found, number=number)

    await found.run_schedule()

    assert found.created == []
    assert conditions_of(found.write_status())["SnapshotFresh"] == "True/SnapshotRecent"


async def test_new_version_takes_precedence_over_rebuild() -> None:
    found = world(snapshot_document(SLOT, begun="2026-11-22T03:01:00Z", slot="2026-11-22T03:00:00Z"))
    record_rebuild(found)
    found.connect("1.19.2")

    assert conditions_of(found.write_status())["SnapshotFresh"] == "False/ServerVersionChanged"


async def test_running_snapshot_after_rebuild_suffices() -> None:
    found = world(
        snapshot_document(BEFORE, begun="2026-11-21T03:01:00Z", slot="2026-11-21T03:00:00Z"),
        snapshot_document(
            SLOT,
            begun="2026-11-22T11:30:00Z",
            slot="2026-11-22T03:00:00Z",
            succeeded="Unknown",
            verified="Unknown",
            physical="agent_memory_probe__2",
        ),
    )
    record_rebuild(found)

    await found.run_schedule()

    assert found.created == []


async def test_status_shows_last_and_next_snapshot() -> None:
    found = world(
        snapshot_document(BEFORE, begun="2026-11-21T03:01:00Z", slot="2026-11-21T03:00:00Z"),
        snapshot_document(SLOT, begun="2026-11-22T03:01:00Z", slot="2026-11-22T03:00:00Z"),
    )

    status = found.write_status()

    due_ms = ms(status["nextSnapshotTime"]) - ms("2026-11-23T03:00:00Z")
    assert status["lastSnapshot"] == {
        "name": SLOT,
        "time": "2026-11-22T03:01:00Z",
        "verified": True,
        "qdrantVersion": "1.18.3",
    }
    assert 0 <= due_ms <= MAX_SPREAD_MS
    assert conditions_of(status) == {
        "Ready": "True/Told",
        "SnapshotFresh": "True/SnapshotRecent",
        "SnapshotVerified": "True/SnapshotProven",
    }


@pytest.mark.parametrize(
    ("succeeded", "verified", "fresh", "is_proven"),
    [
        ("True", "False", "False/SnapshotOverdue", "False/SnapshotBad"),
        ("False", "Unknown", "False/SnapshotOverdue", "False/SnapshotFailed"),
        ("True", "Unknown", "False/SnapshotOverdue", "Unknown/NotVerified"),
        ("Unknown", "Unknown", "Unknown/NoSnapshotYet", None),
    ],
)
async def test_only_verified_snapshot_is_fresh(
    succeeded: str, verified: str, fresh: str, is_proven: str | None
) -> None:
    found = world(snapshot_document(SLOT, slot="2026-11-22T03:00:00Z", succeeded=succeeded, verified=verified))

    has = conditions_of(found.write_status())

    assert (has["SnapshotFresh"], has.get("SnapshotVerified")) == (fresh, is_proven)


async def test_unverified_is_fresh_if_verify_is_none() -> None:
    made = snapshot_document(SLOT, begun="2026-11-22T03:01:00Z", slot="2026-11-22T03:00:00Z", verified="Unknown")

    assert conditions_of(world(made, verify="None").write_status())["SnapshotFresh"] == "True/SnapshotRecent"


async def test_imported_snapshot_is_not_counted() -> None:
    taken_in = snapshot_document("taken-in", begun="2026-11-22T11:00:00Z", is_scheduled=False)
    taken_in["spec"]["import"] = {"s3": {"bucket": "b-1", "key": "a.snapshot"}}

    status = world(taken_in).write_status()

    assert conditions_of(status) == {"Ready": "True/Told", "SnapshotFresh": "False/SnapshotOverdue"}
    assert "lastSnapshot" not in status


@pytest.mark.parametrize(
    ("snapshots", "hours"),
    [({}, 48), ({"schedule": "0 3 * * 1-5"}, 144), ({"schedule": "*/5 * * * *"}, 1), ({"staleAfterHours": 5}, 5)],
)
async def test_snapshot_becomes_overdue_by_schedule(snapshots: dict[str, Any], hours: int) -> None:
    found = world(snapshot_document("by-hand", begun="2026-11-22T12:00:00Z", is_scheduled=False), **snapshots)
    found.clock.move(ms=hours * 3_600_000 - 1)
    before = conditions_of(found.write_status())["SnapshotFresh"]
    found.clock.move(ms=1)

    assert (before, conditions_of(found.write_status())["SnapshotFresh"]) == (
        "True/SnapshotRecent",
        "False/SnapshotOverdue",
    )


async def test_next_check_is_when_snapshot_is_overdue() -> None:
    found = world(
        snapshot_document(SLOT, begun="2026-11-22T03:01:00Z", slot="2026-11-22T03:00:00Z"), staleAfterHours=10
    )

    assert await found.run_schedule() == pytest.approx(61 * 60)


async def test_pass_is_requested_only_for_changes() -> None:
    found = world(snapshot_document(SLOT, begun="2026-11-22T03:01:00Z", slot="2026-11-22T03:00:00Z"))
    await found.run_schedule()
    first, found.requested[:] = list(found.requested), []
    found.write_status()

    await found.run_schedule()

    assert (first, found.requested) == ([AGENT], [])


async def test_impossible_schedule_is_reported() -> None:
    found = world(schedule="0 3 30 2 *")
    status = found.write_status()

    await found.run_schedule()

    assert conditions_of(status)["Stalled"] == "True/ScheduleRejected"
    assert found.requested == []


async def test_invalid_object_keeps_its_snapshot_status() -> None:
    found = world(snapshot_document(SLOT, begun="2026-11-22T03:01:00Z", slot="2026-11-22T03:00:00Z"))
    found.write_status()
    document = found.table.get(AGENT)
    assert document is not None
    document["spec"]["preset"] = "nonsense"

    assert conditions_of(found.write_status())["SnapshotFresh"] == "True/SnapshotRecent"


async def test_agent_without_snapshots_has_no_status() -> None:
    found = ScheduleWorld()
    document = scheduled_agent()
    del document["spec"]["snapshots"]
    found.put(document)

    assert found.write_status() == {
        "collection": document["status"]["collection"],
        "conditions": document["status"]["conditions"],
    }


async def test_metrics_show_last_verified_and_overdue() -> None:
    found = world(snapshot_document(BEFORE, begun="2026-11-19T03:01:00Z"))
    await found.run_schedule()

    samples = collect_samples(*found.schedule.meter.metrics)

    begun_s = ms("2026-11-19T03:01:00Z") // 1000
    name = "agentmemory_snapshot_last_verified_timestamp_seconds"
    assert samples[f'{name}{{name="probe",namespace="agents"}}'] == begun_s
    assert samples['agentmemory_snapshots_overdue{reason="SnapshotOverdue"}'] == 1


async def test_deleted_agent_leaves_the_metrics() -> None:
    found = world()
    await found.run_schedule()
    found.table.remove(AGENT)

    await found.run_schedule()

    assert "probe" not in str(collect_samples(*found.schedule.meter.metrics))
