"""The replaced collection of a rebuild, which is kept for a rollback."""

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
    """Rebuild whose alias has been moved."""
    async with open_rebuild(qdrant_url) as rebuild:
        await move_alias(rebuild.url, rebuild.world.agent.settings, rebuild.target)
        await rebuild.begin(step=RebuildStep.SETTLE, moved_ms=rebuild.world.clock.now_ms())
        yield rebuild


async def is_removed(rebuild: RebuildTask, physical: str) -> bool:
    alias, now_ms = rebuild.world.agent.alias, rebuild.world.clock.now_ms()
    return await remove_if_due(rebuild.server, physical, alias=alias, now_ms=now_ms)


async def test_is_kept_unchanged_until_retention_ends(rebuild: RebuildTask) -> None:
    rebuild.spec = {"keepPreviousHours": 2}
    before = (await rebuild.observe(rebuild.source)).collection
    await create_time_index(rebuild.server, await rebuild.observe(rebuild.source))

    await mark_source_replaced(await rebuild.begin())

    assert (await rebuild.observe(rebuild.source)).collection == before
    assert not await is_removed(rebuild, rebuild.source)
    rebuild.world.clock.move(ms=2 * HOUR_MS)
    assert await is_removed(rebuild, rebuild.source)


async def test_placeholder_keeps_snapshots_available(rebuild: RebuildTask) -> None:
    rebuild.spec = {"keepPreviousHours": 0}
    file = await rebuild.server.snapshots.create(rebuild.source)

    task = await rebuild.begin()
    await mark_source_replaced(task)
    await mark_source_replaced(task)

    assert is_placeholder(await rebuild.metadata(rebuild.source))
    assert [found.name for found in await rebuild.server.snapshots.files(rebuild.source)] == [file.name]
    await rebuild.server.snapshots.delete_file(rebuild.source, file.name)


async def test_live_collection_loses_previous_marker(rebuild: RebuildTask) -> None:
    times = {"since": "2026-01-01T00:00:00Z", "removal_time": "2026-01-02T00:00:00Z"}
    await mark_previous(rebuild.server, rebuild.target, **times, reference={"rebuild": rebuild.source})

    await mark_source_replaced(await rebuild.begin())

    assert PREVIOUS_KEY not in await rebuild.metadata(rebuild.target)
    assert (await rebuild.metadata(rebuild.source))[PREVIOUS_KEY]["rebuild"] == rebuild.target


async def test_rollback_target_is_not_removed(rebuild: RebuildTask) -> None:
    await mark_source_replaced(await rebuild.begin())
    rebuild.world.clock.move(days=2)
    names = {"source": rebuild.target, "target": rebuild.source}
    back = RebuildRecord(
        **names, kind=RebuildKind.ROLLBACK, step=RebuildStep.VERIFY, digest="d", started_ms=1, since_ms=1
    )
    await rebuild.server.snapshots.write_metadata(rebuild.source, {REBUILD_KEY: record_to_json(back)})

    assert not await is_removed(rebuild, rebuild.source)
