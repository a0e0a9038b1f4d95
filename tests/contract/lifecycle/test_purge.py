"""Removal of tombstones that nothing needs any more, over a real engine."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.lifecycle.cleanup import Cleanup, purge_tombstones, read_first_rebuild_ms
from agentmemory_operator.lifecycle.cleanup_schedule import CleanupSchedule
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.lifecycle.rules.tombstone_retention import MIN_KEPT_MS
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.runtime.object_table import Key, ObjectTable
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import EVERYTHING, World, move_alias
from tests.support.engine.fakes import FakeCluster
from tests.support.engine.interleaved_store import Event, InterleavedStore
from tests.support.job.rebuild_task import open_rebuild
from tests.support.spec.documents import memory_document

pytestmark = pytest.mark.usefixtures("keeps_and_empties")

TYPES = (MemoryType("fact", 30), MemoryType("status", 30, supersede_by="subject"))


@pytest.fixture(autouse=True)
def types(world: World) -> None:
    world.set_ranking(replace(EVERYTHING, types=TYPES))


async def purge(world: World) -> int:
    return await purge_tombstones(world.agent, world.clock.now_ms(), pause_s=0)


async def rows(world: World) -> AsyncIterator[dict[str, Any]]:
    points, _ = await world.agent.store.scroll(
        world.agent.alias, {"filter": {"must": []}, "limit": 1_000, "with_payload": True}
    )
    for point in points:
        yield point["payload"]


async def test_purge_removes_tombstones_only(world: World) -> None:
    await world.add("stays", user_id="other")
    await world.add("goes")
    receipt = await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    world.clock.move(ms=1)

    assert await purge(world) == 1

    remaining = [row async for row in rows(world)]
    assert sorted(row["id"] for row in remaining if "content" not in row) == [receipt.id]
    assert await world.heads("other") == ["stays"]
    assert await purge(world) == 0


async def test_new_tombstone_stays(world: World) -> None:
    memory_id = await world.add("deleted")
    await delete_head(world.agent, memory_id, user_id="u")

    assert await purge_tombstones(world.agent, world.clock.now_ms(), pause_s=0) == 0


async def test_first_point_of_a_live_chain_stays(world: World) -> None:
    for state in ("open", "closed"):
        await world.add(state, type="status", subject="ticket")
    [first] = [record for record in await world.rows(include_superseded=True) if record.content == "open"]
    await world.erasing.write_tombstones(
        world.agent, [row async for row in rows(world) if row["id"] == first.id], erasure_id="e", at_ms=lambda _: None
    )
    await chains.sweep(world.agent)
    world.clock.move(ms=60_000)
    await chains.sweep(world.agent)

    assert await purge(world) == 0
    await world.add("reopened", type="status", subject="ticket")
    assert await world.heads() == ["reopened"]


async def test_first_rebuild_is_found_along_the_sources(
    qdrant_url: str,
) -> None:
    async with open_rebuild(qdrant_url) as rebuild:
        world = rebuild.world
        assert await read_first_rebuild_ms(world.agent) is None
        await rebuild.begin(started_ms=20)
        await move_alias(qdrant_url, world.agent.settings, rebuild.target)
        assert await read_first_rebuild_ms(world.agent) == 20
        # The first collection was also a rebuild's target, after a rollback.
        await rebuild.begin(source=2, target=1, started_ms=10)
        assert await read_first_rebuild_ms(world.agent) == 10

        await rebuild.server.collections.delete(rebuild.source)
        assert await read_first_rebuild_ms(world.agent) is None


async def test_purged_identity_can_be_stored_again(world: World) -> None:
    await world.add("open", type="status", subject="ticket")
    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    world.clock.move(ms=60_000)
    await purge(world)

    await world.add("again", type="status", subject="ticket")

    assert await world.heads() == ["again"]


async def test_cleanup_purges_once_no_snapshot_needs_it(world: World) -> None:
    async def open_agent(settings: Any) -> Any:
        return world.agent

    slug, table = world.agent.settings.slug, ObjectTable()
    memory = parse_agent_memory(memory_document(slug))
    key = Key("AgentMemory", "agents", slug)
    cleanup = Cleanup(world.clock)
    schedule = CleanupSchedule(table, open_agent, FakeCluster(), world.clock, cleanup=cleanup, request=lambda _: None)
    snapshot = {
        "kind": "MemorySnapshot",
        "metadata": {"name": "s", "namespace": "agents", "creationTimestamp": "2020-01-01T00:00:00Z"},
        "spec": {"agentMemoryRef": {"name": slug}},
    }

    async def count_tombstones() -> int:
        await schedule.purge(key, memory, world.agent)
        return len([row async for row in rows(world) if "erasureId" in row])

    await world.add("old")
    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    assert await count_tombstones() == 1
    world.clock.move(ms=MIN_KEPT_MS + 1)
    table.put(snapshot)
    assert await count_tombstones() == 1
    table.remove(Key("MemorySnapshot", "agents", "s"))
    assert await count_tombstones() == 0

    async def fail() -> None:
        raise StoreUnavailable("away")

    await world.add("expired", expires_at=world.clock.now_ms() + 1)
    world.clock.move(ms=2)
    # Let the purge fail. It precedes all removals, so the failed run removes nothing that it could not report.
    store, purging = world.agent.store, Event(lambda name, _: name == "describe", fail)
    world.agent = replace(world.agent, store=InterleavedStore(store, purging))  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable, match="away"):
        await schedule._run(key, memory, {})
    assert [row["content"] async for row in rows(world) if "content" in row] == ["expired"]
    await schedule._run(key, memory, {})
    assert schedule.schedule.last_result(key, memory)["removed"] == 1
