"""Changes of a rebuild's source during the copy, on a real engine."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agentmemory_operator.collections.replaced_collection import drop_rebuild_index
from agentmemory_operator.collections.rules.changes import CreateIndexes
from agentmemory_operator.collections.rules.rebuild_record import RebuildKind
from agentmemory_operator.errors import RebuildPaused
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.stored_memories import change_head, delete_head
from agentmemory_operator.rebuilds.catch_up import MAX_CLOCK_SKEW_MS, catch_up, copy_changed, copy_differences
from tests.support.engine.agents import FakeEmbedder, vector_of
from tests.support.job.rebuild_task import RebuildTask, open_rebuild

HOUR_MS = 3_600_000


@pytest.fixture
async def rebuild(qdrant_url: str) -> AsyncIterator[RebuildTask]:
    async with open_rebuild(qdrant_url) as rebuild:
        yield rebuild


async def test_copies_changes_deletions_and_new_points(rebuild: RebuildTask) -> None:
    world = rebuild.world
    edited, deleted = await world.add("draft"), await world.add("gone soon")
    await world.add("forget me", user_id="v")
    task = await rebuild.begin()
    assert await copy_differences(task) == 3
    world.clock.move(ms=1)
    successor = await world.add("final", supersedes=edited)
    await delete_head(world.agent, deleted, user_id="u")
    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="v", is_whole=True)))

    await catch_up(task)

    assert await rebuild.points(rebuild.target) == await rebuild.points(rebuild.source)
    vectors = await rebuild.vectors(rebuild.target)
    assert successor in vectors
    assert vectors == await rebuild.vectors(rebuild.source)


async def test_pass_copies_points_changed_since_last(rebuild: RebuildTask) -> None:
    await rebuild.world.add("before")
    rebuild.world.clock.move(ms=HOUR_MS)
    task = await rebuild.begin()
    await rebuild.world.add("since")

    assert await copy_changed(task) == 1
    assert await copy_changed(task) == 0
    assert task.record.since_ms == rebuild.world.clock.now_ms()


@pytest.mark.parametrize("timeout_s", [10, 300])
async def test_write_of_slow_clock_is_copied(rebuild: RebuildTask, timeout_s: int) -> None:
    """A write may take as long as a call to the server."""
    task = await rebuild.begin()
    task.server = replace(task.server, endpoint=replace(task.server.endpoint, timeout_s=timeout_s))
    rebuild.world.clock.move(ms=-MAX_CLOCK_SKEW_MS - timeout_s * 1000 + 1000)
    await rebuild.world.add("from the past")

    assert await copy_changed(task) == 1


async def test_few_changes_end_the_passes(rebuild: RebuildTask) -> None:
    task = await rebuild.begin()

    assert await catch_up(task) == "0 points in 2 passes"


async def test_purged_point_is_deleted_from_target(rebuild: RebuildTask) -> None:
    kept, purged = await rebuild.world.add("kept"), await rebuild.world.add("purged")
    task = await rebuild.begin()
    await copy_differences(task)
    await rebuild.server.points.delete(rebuild.source, {"must": [{"has_id": [purged]}]})

    assert await copy_differences(task) == 1

    assert list(await rebuild.points(rebuild.target)) == [kept]


async def test_recreated_point_with_lower_rev_is_copied(
    rebuild: RebuildTask,
) -> None:
    world = rebuild.world
    memory_id = await world.add("first")
    await change_head(world.agent, memory_id, {"importance": 0.9}, user_id="u")
    task = await rebuild.begin()
    await copy_differences(task)
    recreated = {"id": memory_id, "vector": vector_of("anew"), "payload": {"content": "anew", "rev": 1, "updatedAt": 7}}
    await rebuild.server.points.upsert(rebuild.source, [recreated])

    assert await copy_differences(task) == 1

    assert (await rebuild.points(rebuild.target))[memory_id] == recreated["payload"]


async def test_only_new_contents_are_embedded(qdrant_url: str) -> None:
    embedder = FakeEmbedder()
    async with open_rebuild(qdrant_url, embedder=embedder) as rebuild:
        world = rebuild.world
        await world.add("old")
        found, edited = await world.add("found"), await world.add("draft")
        task = await rebuild.begin()
        await catch_up(task)
        assert sorted(embedder.texts) == ["draft", "found", "old"]
        embedder.texts.clear()
        await change_head(world.agent, found, {"importance": 0.9}, user_id="u")
        await world.add("final", supersedes=edited)

        await catch_up(task)

        assert embedder.texts == ["final"]
        assert task.record.calls == 2
        assert await rebuild.points(rebuild.target) == await rebuild.points(rebuild.source)
        assert len(await rebuild.vectors(rebuild.target)) == 4


async def test_next_run_after_pause_copies_the_rest(rebuild: RebuildTask) -> None:
    await rebuild.world.add("a")
    task = await rebuild.begin()

    def paused() -> None:
        raise RebuildPaused("for now")

    rebuild.checks = paused
    with pytest.raises(RebuildPaused):
        await catch_up(task)
    assert await rebuild.points(rebuild.target) == {}
    rebuild.checks = lambda: None

    await catch_up(await rebuild.begin())

    assert len(await rebuild.points(rebuild.target)) == 1


async def test_temporary_index_of_source_is_dropped(rebuild: RebuildTask) -> None:
    before = (await rebuild.observe(rebuild.source)).collection
    metadata = await rebuild.metadata(rebuild.source)
    await catch_up(await rebuild.begin())
    assert ("updatedAt", "integer") in (await rebuild.observe(rebuild.source)).collection.indexes

    await catch_up(await rebuild.begin())
    await drop_rebuild_index(rebuild.server, rebuild.source)
    await drop_rebuild_index(rebuild.server, rebuild.source)

    assert (await rebuild.observe(rebuild.source)).collection == before
    assert await rebuild.metadata(rebuild.source) == metadata


async def test_existing_index_is_kept(rebuild: RebuildTask) -> None:
    await rebuild.server.collections.apply(rebuild.source, CreateIndexes((("updatedAt", "integer"),)))

    await catch_up(await rebuild.begin())
    await drop_rebuild_index(rebuild.server, rebuild.source)

    assert ("updatedAt", "integer") in (await rebuild.observe(rebuild.source)).collection.indexes


async def test_rollback_overwrites_conflicting_payloads(
    rebuild: RebuildTask,
) -> None:
    """The previous collection may contain unacknowledged late writes of the same revision. Its vectors are kept."""
    same, differs = await rebuild.world.add("same"), await rebuild.world.add("differs")
    task = await rebuild.begin()
    await copy_differences(task)
    old = rebuild.writing_to(rebuild.target)
    await delete_head(old.agent, differs, user_id="u")
    row = (await rebuild.points(rebuild.target))[same]
    await rebuild.server.points.upsert(rebuild.target, [{"id": same, "vector": vector_of("x"), "payload": row}])
    rebuild.world.clock.move(ms=5)
    await change_head(rebuild.world.agent, differs, {"importance": 0.9}, user_id="u")

    assert await copy_differences(await rebuild.begin(kind=RebuildKind.ROLLBACK)) == 1

    assert await rebuild.points(rebuild.target) == await rebuild.points(rebuild.source)
    target, source = await rebuild.vectors(rebuild.target), await rebuild.vectors(rebuild.source)
    assert target[differs] == source[differs]
    assert target[same] != source[same]
