"""A rebuild and its rollback with the real steps on a real engine; the operator is killed at some calls."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.rules.rebuild_record import RebuildStep
from agentmemory_operator.errors import AgentMemoryError, RebuildAwaitsApproval, RebuildPaused, StoreUnavailable
from agentmemory_operator.rebuilds.copy import CopyStep
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.kinds.conditions import Reason
from tests.support.job.rebuild_world import FullWorld


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[FullWorld]:
    world = FullWorld(qdrant_url)
    await world.begin()
    yield world
    await world.close()


async def test_rollback_keeps_writes_since_the_move(world: FullWorld) -> None:
    await world.rebuild()
    first, second = world.physical, f"{world.alias}__2"
    assert world.aliases() == {world.alias: second}
    assert world.metadata(first)["agentmemoryPrevious"]["rebuild"] == second
    async with contextlib.AsyncExitStack() as stack:
        server = QdrantCollections(world.url)
        stack.push_async_callback(server.close)
        kept = {summary.physical: summary.is_kept for summary in await server.list_agent_collections()}
    assert (kept[first], kept[second]) == (True, False)
    world.put(1, content="changed", rev=2)
    world.put(2, rev=2, deletedAt=world.clock.now_ms())
    world.put(100, content="new", rev=1)
    world.http.post(f"/collections/{world.alias}/points/delete?wait=true", json={"points": [3]}).raise_for_status()

    world.roll_back()
    await world.rebuild()

    assert world.aliases() == {world.alias: first}
    assert world.rows() == world.rows(second)
    assert (world.rows()[1]["content"], sorted({2, 3, 100} & world.rows().keys())) == ("changed", [2, 100])
    assert sorted(world.metadata(first)) == ["agentmemory", "agentmemoryEpoch", "agentmemoryRebuild"]
    assert world.metadata(second)["agentmemoryPrevious"]["rebuild"] == first
    assert "agentmemoryMoving" not in world.metadata(second)
    described = world.http.get(f"/collections/{first}").json()["result"]["payload_schema"]
    assert "updatedAt" not in described
    assert world.events()[-1] == Reason.ROLLED_BACK


async def test_graph_is_built_after_the_copy(qdrant_url: str) -> None:
    def threshold() -> int:
        found: Any = world.http.get(f"/collections/{world.alias}__2").json()["result"]["config"]
        value: int = found["optimizer_config"]["indexing_threshold"]
        return value

    thresholds = list[int]()

    async def verify(task: RebuildRun) -> str:
        thresholds.append(threshold())
        return "verified"

    async def copy(task: RebuildRun) -> str:
        thresholds.append(threshold())
        return await CopyStep()(task)

    world = FullWorld(qdrant_url, verify=verify)
    world.rebuilds.steps = dict(world.steps) | {RebuildStep.COPY: copy}
    await world.begin()

    await world.rebuild()

    assert thresholds == [0, 20_000]
    await world.close()


@pytest.mark.parametrize(
    "error", [RebuildAwaitsApproval("look at it"), RebuildPaused("paused"), StoreUnavailable("away")]
)
async def test_announcement_of_failed_move_is_removed(qdrant_url: str, error: AgentMemoryError) -> None:
    announced = list[bool]()

    async def verify(task: RebuildRun) -> str:
        announced.append("agentmemoryMoving" in world.metadata(world.physical))
        raise error

    world = FullWorld(qdrant_url, verify=verify)
    await world.begin()

    with contextlib.suppress(StoreUnavailable):
        await world.rebuild()

    assert announced[0]
    assert "agentmemoryMoving" not in world.metadata(world.physical)
    await world.close()


async def test_rollback_resumes_after_kill_anywhere(qdrant_url: str) -> None:
    moment = -1
    while True:
        # tests/faults tries every call and every response.
        moment += 16
        world = FullWorld(qdrant_url)
        await world.begin()
        await world.rebuild()
        world.put(1, content="changed", rev=2)
        world.roll_back()
        was_killed = await world.rebuild_killed_at(moment)

        assert world.aliases() == {world.alias: world.physical}
        assert world.rows()[1]["content"] == "changed"
        assert world.rows() == world.rows(f"{world.alias}__2")
        assert "agentmemoryMoving" not in world.metadata(f"{world.alias}__2")
        assert world.rebuild_status["state"] == "Done"
        await world.close()
        if not was_killed:
            break
    assert moment > 20


async def test_cancelled_rollback_keeps_previous(world: FullWorld) -> None:
    """The previous collection stays marked as the previous one."""
    await world.rebuild()

    async def change_mind(task: RebuildRun) -> str:
        world.annotate(world.memory, {})
        return "changed"

    world.rebuilds.steps = dict(world.steps) | {RebuildStep.VERIFY: change_mind}
    world.roll_back()
    await world.rebuild()

    assert world.aliases() == {world.alias: f"{world.alias}__2"}
    assert world.collections() == [world.physical, f"{world.alias}__2"]
    assert "agentmemoryPrevious" in world.metadata(world.physical)
    kept = f"{world.physical}, the target of a cancelled rebuild, is kept"
    assert world.rebuild_status["message"] == kept
    # The operator may be killed between the end and its report.
    await world.rebuilds.reports.write(world.memory, world.rebuild_status | {"state": "Running"})
    await world.rebuild()
    assert (world.rebuild_status["state"], world.rebuild_status["message"]) == ("Stopped", kept)
    assert "updatedAt" not in world.http.get(f"/collections/{world.alias}").json()["result"]["payload_schema"]


async def test_rollback_needs_a_rebuilt_collection(world: FullWorld) -> None:
    world.change(index={"distance": "Cosine"})
    world.roll_back()

    await world.rebuild()
    await world.rebuild()

    assert world.aliases() == {world.alias: world.physical}
    assert (world.rebuild_status["state"], world.rebuild_status["kind"]) == ("Failed", "Rollback")
    assert "was not created by a rebuild" in world.rebuild_status["message"]
    assert world.events() == [Reason.PREVIOUS_GONE]


async def test_leftover_pause_of_writers_is_removed(
    world: FullWorld,
) -> None:
    """A killed operator left the pause, and no rebuild is required any more."""
    moving = {"agentmemoryMoving": {"from": world.physical, "to": f"{world.alias}__2", "phase": "Final"}}
    await world.with_server(lambda server: server.snapshots.write_metadata(world.physical, moving))
    world.change(index={"distance": "Cosine"})

    await world.rebuild()

    assert "agentmemoryMoving" not in world.metadata(world.alias)


async def test_rollback_fails_without_previous_collection(world: FullWorld) -> None:
    await world.rebuild()
    world.http.delete(f"/collections/{world.physical}").raise_for_status()

    world.roll_back()
    await world.rebuild()

    assert world.aliases() == {world.alias: f"{world.alias}__2"}
    assert (world.rebuild_status["state"], world.rebuild_status["kind"]) == ("Failed", "Rollback")
    assert world.rebuild_status["message"] == f"{world.physical}, which {world.alias}__2 replaced, is no longer kept"
    assert world.events().count(Reason.PREVIOUS_GONE) == 1
