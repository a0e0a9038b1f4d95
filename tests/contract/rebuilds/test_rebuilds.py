"""A rebuild on a real engine: approval, resuming after a kill, cancellation, cleanup."""

import pathlib
from collections.abc import AsyncIterator

import pytest

from agentmemory_operator.collections.rules.announcement import MOVING_KEY
from agentmemory_operator.collections.rules.epochs import closed_to_json, read_epoch, read_reopening_epoch
from agentmemory_operator.collections.rules.rebuild_record import REBUILD_KEY, RebuildStep
from agentmemory_operator.errors import RebuildAwaitsApproval, SpecInvalid, StoreUnavailable, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.kinds.agent_memory import (
    CANCEL_REBUILD,
    PAUSE_REBUILD,
    RECONCILE_REQUESTED_AT,
)
from agentmemory_operator.spec.kinds.conditions import Reason
from tests.support.fault_injection import with_faults
from tests.support.job.rebuild_world import BARE_STEPS, RebuildWorld
from tests.support.web.dev_qdrant import dev_qdrant

POINTS = 10


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[RebuildWorld]:
    world = RebuildWorld(qdrant_url)
    await world.create_agent(POINTS, changePolicy="Apply")
    world.change(index={"distance": "Dot"})
    yield world
    await world.close()


async def test_alias_points_to_rebuilt_collection(world: RebuildWorld) -> None:
    await world.rebuild()

    target = f"{world.alias}__2"
    assert world.aliases() == {world.alias: target}
    assert world.count() == POINTS
    assert world.rebuild_status["state"] == "Done"
    assert (world.rebuild_status["source"], world.rebuild_status["target"]) == (world.physical, target)
    assert world.metadata(target)[REBUILD_KEY]["step"] == "Done"
    assert world.events() == ["RebuildBegun", "Rebuilt"]
    assert world.memory in world.requested


async def test_completed_rebuild_is_not_repeated(world: RebuildWorld) -> None:
    await world.rebuild()
    world.requested.clear()

    await world.rebuild()

    assert world.collections() == [world.physical, f"{world.alias}__2"]
    assert world.requested == []


async def test_needs_approval(world: RebuildWorld) -> None:
    world.change(changePolicy="RequireApproval")

    await world.rebuild()

    assert world.collections() == [world.physical]
    assert world.rebuild_status == {}


async def test_resumes_after_kill_anywhere(qdrant_url: str) -> None:
    moment = -2
    while True:
        # tests/faults tries every call and every response.
        moment += 7
        world = RebuildWorld(qdrant_url)
        await world.create_agent(POINTS, changePolicy="Apply")
        world.change(index={"distance": "Dot"})
        was_killed = await world.rebuild_killed_at(moment)

        target = world.aliases()[world.alias]
        assert target != world.physical
        assert world.collections() == [world.physical, target]
        assert world.count() == POINTS
        assert world.rebuild_status["state"] == "Done"
        await world.close()
        if not was_killed:
            break
    assert moment > 20


async def test_reverted_spec_removes_target(world: RebuildWorld) -> None:
    async def change_back(task: RebuildRun) -> str:
        world.change(index={"distance": "Cosine"})
        return "changed"

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.COPY: change_back}

    await world.rebuild()

    assert world.collections() == [world.physical]
    assert world.aliases() == {world.alias: world.physical}
    assert world.rebuild_status["state"] == "Stopped"
    assert world.rebuild_status["message"] == f"{world.alias}__2, the target of a cancelled rebuild, is removed"


async def test_changed_spec_starts_new_target(world: RebuildWorld) -> None:
    async def change(task: RebuildRun) -> str:
        world.rebuilds.steps = BARE_STEPS
        world.change(index={"distance": "Euclid"})
        return "changed"

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.COPY: change}

    await world.rebuild()

    assert world.aliases() == {world.alias: f"{world.alias}__3"}
    assert world.collections() == [world.physical, f"{world.alias}__3"]


async def test_deletion_midway_removes_target(world: RebuildWorld) -> None:
    async def delete(task: RebuildRun) -> str:
        world.table.remove(world.memory)
        return "deleted"

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.COPY: delete}

    await world.rebuild()

    assert world.collections() == [world.physical]


async def test_resumes_after_pause(world: RebuildWorld) -> None:
    async def pause(task: RebuildRun) -> str:
        world.annotate(world.memory, {PAUSE_REBUILD: "lunch"})
        return await BARE_STEPS[RebuildStep.COPY](task)

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.COPY: pause}
    await world.rebuild()
    assert (world.rebuild_status["state"], world.rebuild_status["copied"]) == ("Paused", POINTS)
    assert world.aliases() == {world.alias: world.physical}

    world.rebuilds.steps = BARE_STEPS
    world.annotate(world.memory, {})
    await world.rebuild()

    assert world.aliases() == {world.alias: f"{world.alias}__2"}


async def test_cancellation_removes_target(world: RebuildWorld) -> None:
    async def cancel(task: RebuildRun) -> str:
        world.annotate(world.memory, {CANCEL_REBUILD: task.record.digest})
        return "cancelled"

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.COPY: cancel}

    await world.rebuild()

    assert world.collections() == [world.physical]
    assert set(world.metadata(world.physical)) == {"agentmemory"}


async def test_failure_removes_target(world: RebuildWorld) -> None:
    """The next attempt needs the reconcile annotation."""

    async def fail(task: RebuildRun) -> str:
        raise SpecInvalid(Reason.COPY_DIFFERS, "it is another one")

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.VERIFY: fail}
    await world.rebuild()
    assert world.collections() == [world.physical]
    assert (world.rebuild_status["state"], world.rebuild_status["message"]) == ("Failed", "it is another one")

    world.rebuilds.steps = BARE_STEPS
    await world.rebuild()
    assert world.collections() == [world.physical]

    world.annotate(world.memory, {RECONCILE_REQUESTED_AT: "now"})
    await world.rebuild()
    assert world.rebuild_status["state"] == "Done"


async def test_failure_after_the_move_is_retried(world: RebuildWorld) -> None:
    """The target serves already, so the rebuild has not failed."""

    async def fail(task: RebuildRun) -> str:
        raise SpecInvalid(Reason.PREVIOUS_GONE, "the old one cannot be marked")

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.SETTLE: fail}
    with pytest.raises(TransientError, match="the old one cannot be marked"):
        await world.rebuild()
    status = world.rebuild_status
    assert (status["state"], status["step"], status["message"]) == ("Waiting", "Settle", "the old one cannot be marked")
    assert world.aliases() == {world.alias: f"{world.alias}__2"}
    assert world.events() == ["RebuildBegun"]

    world.rebuilds.steps = BARE_STEPS
    await world.rebuild()
    assert world.rebuild_status["state"] == "Done"
    assert world.events() == ["RebuildBegun", "Rebuilt"]


async def test_full_disk_fails_rebuild(tmp_path: pathlib.Path) -> None:
    """The target is removed, so that other writers have disk space again."""
    with dev_qdrant(tmp_path) as url:
        world = RebuildWorld(url)
        await world.create_agent(POINTS, changePolicy="Apply")
        world.change(index={"distance": "Dot"})
        with with_faults(tmp_path, update="disk-full"):
            await world.rebuild()

        assert world.collections() == [world.physical]
        assert world.rebuild_status["state"] == "Failed"
        assert "Qdrant's disk is full: add disk space" in world.rebuild_status["message"]
        assert world.count() == POINTS
        await world.close()


async def test_transient_error_is_reported(world: RebuildWorld) -> None:
    async def wait(task: RebuildRun) -> str:
        raise StoreUnavailable("Qdrant is away")

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.COPY: wait}

    with pytest.raises(TransientError):
        await world.rebuild()

    assert (world.rebuild_status["state"], world.rebuild_status["message"]) == ("Waiting", "Qdrant is away")
    assert world.collections() == [world.physical, f"{world.alias}__2"]


async def test_waits_for_restore(world: RebuildWorld) -> None:
    key = world.restore()
    world.table.put(world.must_get(key) | {"status": {"physical": f"{world.alias}__2"}})

    await world.rebuild(passes=1)

    assert world.rebuild_status["state"] == "Waiting"
    assert world.collections() == [world.physical]


async def test_target_replaced_by_restore_is_kept(world: RebuildWorld) -> None:
    """Only a killed operator leaves this state: a restore waits for a rebuild that moves."""

    async def lose_its_operator(task: RebuildRun) -> str:
        raise StoreUnavailable("away for a while")

    await world.snapshot()
    world.rebuilds.steps = BARE_STEPS | {RebuildStep.DRAIN: lose_its_operator}
    with pytest.raises(TransientError):
        await world.rebuild()
    # Hide the step of the rebuild from the restore.
    world.set_rebuild_status()
    world.change(index={"distance": "Cosine"})
    restore = world.restore()
    await world.run(restore)
    assert world.condition(restore, "Succeeded") == "True/Restored"

    await world.rebuild()

    target = f"{world.alias}__2"
    assert world.status(restore)["previousCollection"]["physical"] == target
    assert world.count(target) == POINTS
    assert world.metadata(target)[REBUILD_KEY]["step"] == "Done"


async def test_removes_nothing_during_restore(world: RebuildWorld) -> None:
    async def pause(task: RebuildRun) -> str:
        raise StoreUnavailable("away for a while")

    await world.snapshot()
    world.rebuilds.steps = BARE_STEPS | {RebuildStep.VERIFY: pause}
    with pytest.raises(TransientError):
        await world.rebuild()
    world.fails["apply"] = StoreUnavailable("away for a moment")
    restore = world.restore()
    with pytest.raises(TransientError):
        await world.restores.run(restore)
    world.fails.clear()
    world.change(index={"distance": "Cosine"})

    await world.rebuild()
    assert f"{world.alias}__2" in world.collections()
    assert world.rebuild_status["message"] == "waiting for MemoryRestore undo"
    await world.run(restore)
    await world.rebuild()

    assert world.aliases() == {world.alias: f"{world.alias}__3"}
    assert world.collections() == [world.physical, f"{world.alias}__3"]


async def test_waits_until_restore_in_place_is_undone(world: RebuildWorld) -> None:
    await world.snapshot()
    restore = world.restore(mode="InPlace")
    failed = {"type": "Succeeded", "status": "False", "reason": "NotUndone", "message": "m"}
    status = {"conditions": [failed], "physical": world.physical, "closedSince": "2026-01-01T00:00:00Z"}
    world.table.put(world.must_get(restore) | {"status": status})
    world.change(index={"distance": "Euclid"})

    await world.rebuild()
    assert "waiting for MemoryRestore undo to be undone" in world.rebuild_status["message"]
    assert world.collections() == [world.physical]
    world.delete(restore)
    await world.rebuild()

    assert world.aliases() == {world.alias: f"{world.alias}__2"}


async def test_is_held_until_approved(world: RebuildWorld) -> None:
    async def hold(task: RebuildRun) -> str:
        await task.report("a drop")
        raise RebuildAwaitsApproval("a drop")

    world.rebuilds.steps = BARE_STEPS | {RebuildStep.VERIFY: hold}

    due_s = await world.rebuilds.run(world.memory)

    assert due_s == world.rebuilds.periods.hold_s
    assert (world.rebuild_status["state"], world.rebuild_status["message"]) == ("Held", "a drop")
    assert world.aliases() == {world.alias: world.physical}
    world.rebuilds.steps = BARE_STEPS
    await world.rebuild()
    assert world.rebuild_status["state"] == "Done"


async def test_foreign_target_is_not_removed(world: RebuildWorld) -> None:
    target = f"{world.alias}__2"

    async def pass_to_another(task: RebuildRun) -> str:
        mark(world, target, clusterId="another")
        world.change(index={"distance": "Cosine"})
        return "changed"

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.COPY: pass_to_another}

    await world.rebuild()

    assert world.collections() == [world.physical, target]


@pytest.mark.parametrize("is_own", [False, True])
async def test_releases_writers_of_own_collection_only(world: RebuildWorld, is_own: bool) -> None:
    """Another cluster's announcement is kept, even if the object here is suspended."""
    moving = {MOVING_KEY: {"from": world.physical, "to": "elsewhere", "phase": "Final"}}
    world.http.patch(f"/collections/{world.physical}", json={"metadata": moving}).raise_for_status()
    mark(world, world.physical, clusterId=world.cluster.identity if is_own else "another")
    world.change(suspend=True)

    await world.rebuild()

    assert (MOVING_KEY in world.metadata(world.physical)) == (not is_own)


def mark(world: RebuildWorld, physical: str, **owner: str) -> None:
    """Change the owner in the marker of a collection."""
    marker = world.metadata(physical)["agentmemory"] | owner
    world.http.patch(f"/collections/{physical}", json={"metadata": {"agentmemory": marker}}).raise_for_status()


@pytest.mark.parametrize("status", [None, {}, {"closedSince": "2026-01-01T00:00:00Z"}])
async def test_closure_by_deleted_restore_is_removed(world: RebuildWorld, status: Json | None) -> None:
    """The server was unavailable for longer than the restore's deletion waits."""
    key = world.restore("undo", mode="InPlace")
    if status is None:
        world.table.remove(key)
    else:
        world.table.put(world.must_get(key) | {"status": status})
    metadata = closed_to_json(str(key), None, 7) | {MOVING_KEY: {"phase": "Announced"}}
    await world.with_server(lambda server: server.snapshots.write_metadata(world.physical, metadata))
    observed = await world.with_server(lambda server: server.collections.observe(world.alias, world.alias))
    assert observed is not None
    assert observed.must_clients_wait

    await world.rebuild()

    found, stays_closed = world.metadata(world.physical), bool(status)
    assert (read_reopening_epoch(found) == 7) == stays_closed
    assert read_epoch(found).number == (0 if stays_closed else 7)
    assert MOVING_KEY not in found
