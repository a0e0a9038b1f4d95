"""A rebuild over a real engine: begun where it is allowed, gone on with where it was killed, removed where unwanted."""

import pathlib
from collections.abc import AsyncIterator

import pytest

from agentmemory_operator.collections.rules.announcement import MOVING_KEY
from agentmemory_operator.collections.rules.epochs import closed_to_json, read_closed_until, read_epoch
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
from tests.support.web.api_stack import dev_qdrant

POINTS = 10


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[RebuildWorld]:
    made = RebuildWorld(qdrant_url)
    await made.create_agent(POINTS, changePolicy="Apply")
    made.change(index={"distance": "Dot"})
    yield made
    await made.close()


async def test_the_alias_leads_to_a_collection_as_the_object_asks(world: RebuildWorld) -> None:
    await world.rebuild()

    target = f"{world.alias}__2"
    assert world.aliases() == {world.alias: target}
    assert world.count() == POINTS
    assert world.rebuild_status["state"] == "Done"
    assert (world.rebuild_status["source"], world.rebuild_status["target"]) == (world.physical, target)
    assert world.metadata(target)[REBUILD_KEY]["step"] == "Done"
    assert world.events() == ["RebuildBegun", "Rebuilt"]
    assert world.memory in world.requested


async def test_one_that_has_ended_is_not_begun_again(world: RebuildWorld) -> None:
    await world.rebuild()
    world.requested.clear()

    await world.rebuild()

    assert world.collections() == [world.physical, f"{world.alias}__2"]
    assert world.requested == []


async def test_without_approval_nothing_is_begun(world: RebuildWorld) -> None:
    world.change(changePolicy="RequireApproval")

    await world.rebuild()

    assert world.collections() == [world.physical]
    assert world.rebuild_status == {}


async def test_killed_at_every_call_it_is_gone_on_with_by_the_next_operator(qdrant_url: str) -> None:
    moment = -2
    while True:
        # Every call and every answer are tried in tests/faults.
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


async def test_what_an_object_does_not_ask_for_any_more_is_removed(world: RebuildWorld) -> None:
    async def change_back(task: RebuildRun) -> str:
        world.change(index={"distance": "Cosine"})
        return "changed"

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.COPY: change_back}

    await world.rebuild()

    assert world.collections() == [world.physical]
    assert world.aliases() == {world.alias: world.physical}
    assert world.rebuild_status["state"] == "Stopped"


async def test_another_spec_midway_begins_anew_under_another_name(world: RebuildWorld) -> None:
    async def change(task: RebuildRun) -> str:
        world.rebuilds.steps = BARE_STEPS
        world.change(index={"distance": "Euclid"})
        return "changed"

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.COPY: change}

    await world.rebuild()

    assert world.aliases() == {world.alias: f"{world.alias}__3"}
    assert world.collections() == [world.physical, f"{world.alias}__3"]


async def test_an_object_that_is_deleted_midway_leaves_no_target(world: RebuildWorld) -> None:
    async def delete(task: RebuildRun) -> str:
        world.table.remove(world.memory)
        return "deleted"

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.COPY: delete}

    await world.rebuild()

    assert world.collections() == [world.physical]


async def test_a_paused_one_stands_and_goes_on_where_it_was(world: RebuildWorld) -> None:
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


async def test_a_cancelled_one_leaves_no_trace(world: RebuildWorld) -> None:
    async def cancel(task: RebuildRun) -> str:
        world.annotate(world.memory, {CANCEL_REBUILD: task.record.digest})
        return "cancelled"

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.COPY: cancel}

    await world.rebuild()

    assert world.collections() == [world.physical]
    assert set(world.metadata(world.physical)) == {"agentmemory"}


async def test_one_that_fails_for_good_removes_its_target_and_waits_to_be_asked_again(world: RebuildWorld) -> None:
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


async def test_one_that_fills_the_disk_is_given_up_so_that_others_can_write(tmp_path: pathlib.Path) -> None:
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


async def test_one_that_cannot_go_on_for_now_says_why(world: RebuildWorld) -> None:
    async def wait(task: RebuildRun) -> str:
        raise StoreUnavailable("Qdrant is away")

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.COPY: wait}

    with pytest.raises(TransientError):
        await world.rebuild()

    assert (world.rebuild_status["state"], world.rebuild_status["message"]) == ("Waiting", "Qdrant is away")
    assert world.collections() == [world.physical, f"{world.alias}__2"]


async def test_a_restore_goes_first(world: RebuildWorld) -> None:
    key = world.restore()
    world.table.put(world.must_get(key) | {"status": {"physical": f"{world.alias}__2"}})

    await world.rebuild(passes=1)

    assert world.rebuild_status["state"] == "Waiting"
    assert world.collections() == [world.physical]


async def test_a_target_that_a_restore_has_replaced_is_kept_as_the_restore_s_way_back(world: RebuildWorld) -> None:
    """Only a killed operator leaves that: a restore waits for a rebuild that moves."""

    async def lose_its_operator(task: RebuildRun) -> str:
        raise StoreUnavailable("away for a while")

    await world.snapshot()
    world.rebuilds.steps = BARE_STEPS | {RebuildStep.DRAIN: lose_its_operator}
    with pytest.raises(TransientError):
        await world.rebuild()
    # What it was at is not known to the restore.
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


async def test_nothing_is_removed_while_a_restore_is_under_way(world: RebuildWorld) -> None:
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


async def test_one_that_waits_for_an_approval_is_held_and_told_with_what_to_approve(world: RebuildWorld) -> None:
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


async def test_a_target_that_says_it_is_another_clusters_is_never_removed(world: RebuildWorld) -> None:
    target = f"{world.alias}__2"

    async def pass_to_another(task: RebuildRun) -> str:
        mark(world, target, clusterId="another")
        world.change(index={"distance": "Cosine"})
        return "changed"

    world.rebuilds.steps = dict(BARE_STEPS) | {RebuildStep.COPY: pass_to_another}

    await world.rebuild()

    assert world.collections() == [world.physical, target]


@pytest.mark.parametrize("is_own", [False, True])
async def test_writers_are_let_go_on_in_ones_own_collection_alone(world: RebuildWorld, is_own: bool) -> None:
    """What another cluster has announced is its own to take back, whatever a suspended object here says."""
    moving = {MOVING_KEY: {"from": world.physical, "to": "elsewhere", "phase": "Final"}}
    world.http.patch(f"/collections/{world.physical}", json={"metadata": moving}).raise_for_status()
    mark(world, world.physical, clusterId=world.cluster.identity if is_own else "another")
    world.change(suspend=True)

    await world.rebuild()

    assert (MOVING_KEY in world.metadata(world.physical)) == (not is_own)


def mark(world: RebuildWorld, physical: str, **owner: str) -> None:
    """Change what a marker says."""
    marker = world.metadata(physical)["agentmemory"] | owner
    world.http.patch(f"/collections/{physical}", json={"metadata": {"agentmemory": marker}}).raise_for_status()


@pytest.mark.parametrize("status", [None, {}, {"closedSince": "2026-01-01T00:00:00Z"}])
async def test_an_agent_that_is_closed_for_a_restore_that_is_gone_is_opened(
    world: RebuildWorld, status: Json | None
) -> None:
    """The server was away for longer than the restore's deletion waits."""
    key = world.restore("undo", mode="InPlace")
    if status is None:
        world.table.remove(key)
    else:
        world.table.put(world.must_get(key) | {"status": status})
    told = closed_to_json(str(key), None, 7) | {MOVING_KEY: {"phase": "Announced"}}
    await world.with_server(lambda server: server.snapshots.write_metadata(world.physical, told))
    observed = await world.with_server(lambda server: server.collections.observe(world.alias, world.alias))
    assert observed is not None
    assert observed.must_clients_wait

    await world.rebuild()

    found, stays = world.metadata(world.physical), bool(status)
    assert (read_closed_until(found) == 7) == stays
    assert read_epoch(found).number == (0 if stays else 7)
    assert MOVING_KEY not in found
