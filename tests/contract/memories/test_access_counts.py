"""Access counts of several processes on a real engine."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from agentmemory_operator.memories import access_counts
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.points import PointStore
from tests.support.engine.agents import World, search_request, vector_of
from tests.support.engine.interleaved_store import CrashingStore, Event, InterleavedStore, Moment, writes


async def read_counts(world: World) -> dict[str, int]:
    return {record.content: record.access_count for record in await world.rows(include_superseded=True)}


async def test_accesses_are_written_at_the_flush(world: World) -> None:
    await world.add("a")
    world.clock.move(days=1)
    for _ in range(3):
        await world.recall.search(world.agent, search_request(user_id="u", vector=vector_of("a")))
    assert await read_counts(world) == {"a": 0}

    await world.counts.flush()

    (record,) = await world.rows()
    assert (record.access_count, record.last_accessed_at) == (3, world.clock.now_ms())
    assert world.counts.pending_count == 0


async def test_results_below_threshold_are_not_counted(world: World) -> None:
    await world.add("a")
    await world.recall.search(world.agent, search_request(user_id="u", vector=vector_of("a"), threshold=5))

    await world.counts.flush()

    assert await read_counts(world) == {"a": 0}


async def test_concurrent_flushes_count_exactly(world: World) -> None:
    ids = [await world.add(str(number)) for number in range(20)]
    processes = [world.new_counts(f"w{number}") for number in range(4)]

    async def work(counts: access_counts.AccessCounts) -> None:
        for _ in range(25):
            counts.note(world.agent.settings.slug, ids)
            await counts.flush()
        while counts.pending_count:
            await counts.flush()

    await asyncio.gather(*map(work, processes))

    assert set((await read_counts(world)).values()) == {100}


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_lost_response_is_counted_once(world: World, at: int, moment: Moment) -> None:
    slug, ids = world.agent.settings.slug, [await world.add("a"), await world.add("b")]
    healthy = world.agent
    world.counts.note(slug, ids)
    world.agent = replace(healthy, store=CrashingStore(healthy.store, at, moment))
    await world.counts.flush()

    world.agent = healthy
    other = world.new_counts("other")
    other.note(slug, ids)
    await other.flush()
    world.counts.note(slug, ids)
    await world.counts.flush()

    assert await read_counts(world) == {"a": 3, "b": 3}


async def test_flush_keeps_deleted_memories_deleted(world: World) -> None:
    memory_id = await world.add("a")
    world.counts.note(world.agent.settings.slug, [memory_id, "018f0000-0000-7000-8000-000000000000"])
    await delete_head(world.agent, memory_id, user_id="u")

    await world.counts.flush()

    (point,) = await world.agent.store.retrieve(world.agent.alias, [memory_id])
    assert "accessCount" not in point["payload"]
    assert world.counts.pending_count == 0


async def test_flush_is_safe_during_supersession(world: World) -> None:
    old = await world.add("old")

    async def flush_often() -> None:
        for _ in range(30):
            world.counts.note(world.agent.settings.slug, [old])
            await world.counts.flush()

    await asyncio.gather(flush_often(), world.add("new", supersedes=old))
    await world.counts.flush()

    assert await world.heads() == ["new"]
    assert await read_counts(world) == {"old": 30, "new": 0}


async def test_every_write_raises_the_revision(world: World) -> None:
    old = await world.add("old")
    world.counts.note(world.agent.settings.slug, [old])
    await world.counts.flush()
    head = await world.add("new", supersedes=old)
    await delete_head(world.agent, head, user_id="u")

    revisions = {record.content: record.rev for record in await world.rows()}

    assert revisions == {"old": 4}


async def test_marks_of_dead_writers_are_evicted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_counts, "MAX_ACCESS_MARKS", 3)
    memory_id = await world.add("a")
    for number in range(5):
        counts = world.new_counts(f"w{number}")
        for _ in range(2):
            counts.note(world.agent.settings.slug, [memory_id])
            await counts.flush()

    (point,) = await world.agent.store.retrieve(world.agent.alias, [memory_id])
    payload: dict[str, Any] = point["payload"]
    assert payload["accessMarks"] == ["w2:2", "w3:2", "w4:2"]
    assert payload["accessCount"] == 10


async def test_graceful_stop_flushes(world: World) -> None:
    memory_id = await world.add("a")
    running = asyncio.create_task(world.counts.run(interval_s=3600))
    await asyncio.sleep(0)
    world.counts.note(world.agent.settings.slug, [memory_id])

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert await read_counts(world) == {"a": 1}


async def test_counts_exceeding_one_write_are_split(world: World) -> None:
    ids = [await world.add(str(number)) for number in range(access_counts.MEMORIES_PER_WRITE + 5)]
    world.counts.note(world.agent.settings.slug, ids)

    await world.counts.flush()

    assert set((await read_counts(world)).values()) == {1}


class SpiedStore:
    """Records start and end of each write, and its number of operations."""

    def __init__(self, store: PointStore) -> None:
        self._store = store
        self.operations: list[int] = []
        self.times_s: list[tuple[float, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def batch(self, collection: str, operations: Sequence[Json], **how: Any) -> None:
        start_s = time.monotonic()
        await self._store.batch(collection, operations, **how)
        self.operations.append(len(operations))
        self.times_s.append((start_s, time.monotonic()))


async def test_equal_counts_share_an_operation(world: World) -> None:
    ids = [await world.add(str(number)) for number in range(12)]
    spy = SpiedStore(world.agent.store)
    world.agent = replace(world.agent, store=cast(PointStore, spy))
    slug = world.agent.settings.slug
    world.counts.note(slug, ids)
    world.counts.note(slug, ids[:3])

    await world.counts.flush()

    assert spy.operations == [2]
    assert sorted((await read_counts(world)).values()) == [1] * 9 + [2] * 3


async def test_access_times_are_rounded_to_half_minutes(world: World) -> None:
    slug, ids = world.agent.settings.slug, [await world.add(name) for name in "abc"]
    start_ms = access_counts.SAME_TIME_MS * 1_000_000
    for memory_id, later_ms in zip(ids, (0, 10_000, 31_000), strict=True):
        world.clock.value_ms = start_ms + later_ms
        world.counts.note(slug, [memory_id])

    await world.counts.flush()

    times = {record.content: record.last_accessed_at - start_ms for record in await world.rows()}
    assert times == {"a": 10_000, "b": 10_000, "c": 31_000}


async def test_flush_pauses_between_writes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_counts, "MEMORIES_PER_WRITE", 4)
    ids = [await world.add(str(number)) for number in range(12)]
    spy = SpiedStore(world.agent.store)
    world.agent = replace(world.agent, store=cast(PointStore, spy))
    world.counts.note(world.agent.settings.slug, ids)

    await world.counts.flush(over_s=60)

    times_s = spy.times_s
    assert len(times_s) == 3
    for (start_s, end_s), (next_s, _) in itertools.pairwise(times_s):
        assert next_s - end_s >= 8 * (end_s - start_s)


async def test_stop_does_not_wait_for_silent_engine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_counts, "LAST_FLUSH_TIMEOUT_S", 0.05)

    class Silent:
        async def retrieve(self, *_: Any, **__: Any) -> None:
            await asyncio.Event().wait()

    slug = world.agent.settings.slug
    world.agent = replace(world.agent, store=cast(PointStore, Silent()))
    running = asyncio.create_task(world.counts.run(interval_s=3600))
    await asyncio.sleep(0)
    world.counts.note(slug, ["018f0000-0000-7000-8000-000000000000"])

    running.cancel()
    await asyncio.wait([running], timeout=30)

    assert running.cancelled()


async def test_concurrent_count_is_not_overwritten(world: World) -> None:
    memory_id, slug = await world.add("a"), world.agent.settings.slug
    other = world.new_counts("w1")
    other.note(slug, [memory_id] * 2)
    world.counts.note(slug, [memory_id])
    real = world.agent

    async def count() -> None:
        current, world.agent = world.agent, real
        await other.flush()
        world.agent = current

    store = InterleavedStore(real.store, Event(writes, count))
    world.agent = replace(real, store=cast(PointStore, store))
    await world.counts.flush()
    world.agent = real

    assert store.is_over
    assert await read_counts(world) == {"a": 3}
