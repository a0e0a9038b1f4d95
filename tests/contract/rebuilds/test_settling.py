"""What a rebuild has replaced is kept for the way back, over a real engine."""

from collections.abc import AsyncIterator

import pytest

from agentmemory_operator.collections.replaced_collection import mark_previous, remove_if_due
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY, is_placeholder
from agentmemory_operator.collections.rules.rebuild_record import (
    REBUILD_KEY,
    RebuildKind,
    RebuildRecord,
    RebuildStep,
    record_to_json,
)
from agentmemory_operator.rebuilds.catch_up import create_time_index
from agentmemory_operator.rebuilds.drain import mark_source_replaced
from tests.support.engine.agents import move_alias
from tests.support.job.rebuild_task import RebuildTask, open_rebuild

HOUR_MS = 3_600_000


@pytest.fixture
async def rebuild(qdrant_url: str) -> AsyncIterator[RebuildTask]:
    """One whose alias was moved."""
    async with open_rebuild(qdrant_url) as rebuild:
        await move_alias(rebuild.url, rebuild.world.agent.settings, rebuild.target)
        await rebuild.begin(step=RebuildStep.SETTLE, moved_ms=rebuild.world.clock.now_ms())
        yield rebuild


async def is_removed(rebuild: RebuildTask, physical: str) -> bool:
    alias, now_ms = rebuild.world.agent.alias, rebuild.world.clock.now_ms()
    return await remove_if_due(rebuild.server, physical, alias=alias, now_ms=now_ms)


async def test_it_is_kept_as_it_was_until_its_time_is_over(rebuild: RebuildTask) -> None:
    rebuild.spec = {"keepPreviousHours": 2}
    before = (await rebuild.observe(rebuild.source)).collection
    await create_time_index(rebuild.server, await rebuild.observe(rebuild.source))

    await mark_source_replaced(await rebuild.begin())

    assert (await rebuild.observe(rebuild.source)).collection == before
    assert not await is_removed(rebuild, rebuild.source)
    rebuild.world.clock.move(ms=2 * HOUR_MS)
    assert await is_removed(rebuild, rebuild.source)


async def test_where_nothing_is_to_be_kept_its_snapshots_stay_in_reach(rebuild: RebuildTask) -> None:
    rebuild.spec = {"keepPreviousHours": 0}
    file = await rebuild.server.snapshots.create(rebuild.source)

    task = await rebuild.begin()
    await mark_source_replaced(task)
    await mark_source_replaced(task)

    assert is_placeholder(await rebuild.metadata(rebuild.source))
    assert [found.name for found in await rebuild.server.snapshots.files(rebuild.source)] == [file.name]
    await rebuild.server.snapshots.delete_file(rebuild.source, file.name)


async def test_what_is_live_again_is_not_kept_as_replaced(rebuild: RebuildTask) -> None:
    times = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"}
    await mark_previous(rebuild.server, rebuild.target, **times, by={"rebuild": rebuild.source})

    await mark_source_replaced(await rebuild.begin())

    assert PREVIOUS_KEY not in await rebuild.metadata(rebuild.target)
    assert (await rebuild.metadata(rebuild.source))[PREVIOUS_KEY]["rebuild"] == rebuild.target


async def test_what_a_rebuild_is_being_taken_back_to_is_not_removed_meanwhile(rebuild: RebuildTask) -> None:
    await mark_source_replaced(await rebuild.begin())
    rebuild.world.clock.move(days=2)
    names = {"source": rebuild.target, "target": rebuild.source}
    back = RebuildRecord(
        **names, kind=RebuildKind.ROLLBACK, step=RebuildStep.VERIFY, digest="d", begun_ms=1, since_ms=1
    )
    await rebuild.server.snapshots.write_metadata(rebuild.source, {REBUILD_KEY: record_to_json(back)})

    assert not await is_removed(rebuild, rebuild.source)
