"""Crashes at every step of the chain protocol: no version is lost and one head remains."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from agentmemory_operator.errors import Conflict, OutcomeUnknown, TransientError
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.chains import SWEEP_AFTER_MS
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.memories.stored_memories import delete_head, read_memory
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import EVERYTHING, World, outcome_of_crash
from tests.support.engine.interleaved_store import Event, InterleavedStore, Moment, TornReadStore, writes

pytestmark = pytest.mark.usefixtures("keeps_vectors")

# One more call than the longest protocol makes; `crash` fails if it is reached.
CALLS = 11
crash = partial(outcome_of_crash, calls=CALLS)
# A crash before a call equals a crash after the previous call.
CRASHES = [(0, "before"), *((at, "after") for at in range(CALLS))]


async def sweep(world: World) -> int:
    world.clock.move(ms=SWEEP_AFTER_MS + 1)
    return await chains.sweep(world.agent)


async def versions(world: World) -> list[str]:
    return sorted(record.content for record in await world.rows(include_superseded=True))


@pytest.mark.parametrize(("at", "moment"), CRASHES)
async def test_crash_while_superseding_loses_nothing(world: World, at: int, moment: Moment) -> None:
    old = await world.add("old")

    outcome = await crash(world, at, moment, lambda doomed: doomed.try_add("new", supersedes=old))
    await sweep(world)

    (head,) = await world.heads()
    assert "old" in await versions(world)
    assert head == "new" or not isinstance(outcome, StoredMemory)
    assert await sweep(world) == 0
    assert at < CALLS - 1 or isinstance(outcome, StoredMemory)


@pytest.mark.parametrize("at", range(CALLS))
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_definite_failure_writes_nothing(world: World, at: int, moment: Moment) -> None:
    old = await world.add("old")

    outcome = await crash(world, at, moment, lambda doomed: doomed.try_add("new", supersedes=old))
    await sweep(world)

    is_away = isinstance(outcome, TransientError) and not isinstance(outcome, OutcomeUnknown)
    assert not is_away or await world.heads() == ["old"]


@pytest.mark.parametrize(("at", "moment"), CRASHES)
async def test_repeated_request_stores_one_memory(world: World, at: int, moment: Moment) -> None:
    old = await world.add("old")

    await crash(
        world, at, moment, lambda doomed: doomed.try_add("new", supersedes=old, idempotency_key="k"), calls=CALLS
    )
    outcomes = [await world.try_add("new", supersedes=old, idempotency_key="k") for _ in range(2)]

    assert isinstance(outcomes[0], StoredMemory)
    assert outcomes[0] == outcomes[1]
    assert await world.heads() == ["new"]
    assert await versions(world) == ["new", "old"]


@pytest.mark.parametrize(("at", "moment"), CRASHES)
async def test_crash_while_deleting_keeps_predecessor(world: World, at: int, moment: Moment) -> None:
    head = await world.add("new", supersedes=await world.add("old"))

    outcome = await crash(world, at, moment, lambda doomed: delete_head(doomed.agent, head, user_id="u"), calls=CALLS)
    await sweep(world)

    assert await world.heads() == ["old"] or (isinstance(outcome, TransientError) and await world.heads() == ["new"])
    assert "old" in await versions(world)
    assert await sweep(world) == 0
    assert at < CALLS - 1 or outcome is None


@pytest.mark.parametrize(("at", "moment"), CRASHES)
async def test_sweep_can_be_repeated_after_a_crash(world: World, at: int, moment: Moment) -> None:
    old = await world.add("old")
    await crash(world, 2, "after", lambda doomed: doomed.try_add("new", supersedes=old))
    world.clock.move(ms=SWEEP_AFTER_MS + 1)

    await crash(world, at, moment, lambda doomed: chains.sweep(doomed.agent))
    await sweep(world)

    assert await world.heads() == ["new"]


async def test_read_by_id_completes_a_pending_write(world: World) -> None:
    old = await world.add("old")
    # Call 1 inserts the new version, call 3 reads the old one, call 4 links it.
    await crash(world, 4, "before", lambda doomed: doomed.try_add("new", supersedes=old))
    (pending,), _ = await world.agent.store.scroll(
        world.agent.alias, {"filter": {"must": [{"key": "pending", "match": {"value": True}}]}}
    )

    record = await read_memory(world.agent, pending["id"], user_id="u")

    assert (record.content, record.pending, record.supersedes_id) == ("new", False, old)
    assert await world.heads() == ["new"]


async def test_sweep_removes_the_loser(world: World) -> None:
    old = await world.add("old")
    await crash(world, 1, "after", lambda doomed: doomed.try_add("late", supersedes=old))
    await world.add("winner", supersedes=old)

    assert await sweep(world) == 1

    assert await versions(world) == ["old", "winner"]
    assert await sweep(world) == 0


async def test_sweep_ignores_recent_writes(world: World) -> None:
    old = await world.add("old")
    await crash(world, 1, "after", lambda doomed: doomed.try_add("new", supersedes=old))

    world.clock.move(ms=SWEEP_AFTER_MS - 1)

    assert await chains.sweep(world.agent) == 0
    assert await world.heads() == ["old"]


async def test_sweep_completes_more_than_one_page(world: World) -> None:
    for number in range(130):
        old = await world.add(f"old {number}")
        await crash(world, 1, "after", lambda doomed, old=old: doomed.try_add("new", supersedes=old))

    assert await sweep(world) == 130

    assert await world.heads() == ["new"] * 130


async def test_concurrent_sweeps_leave_one_head(world: World) -> None:
    for round_ in range(5):
        old = await world.add(f"old {round_}", user_id=f"u{round_}")
        world.clock.move(ms=SWEEP_AFTER_MS + 1)
        writers = [world.try_add(f"new {number}", supersedes=old, user_id=f"u{round_}") for number in range(5)]

        async def sweep_often() -> None:
            for _ in range(10):
                world.clock.move(ms=SWEEP_AFTER_MS + 1)
                await chains.sweep(world.agent)

        *outcomes, _, _ = await asyncio.gather(*writers, sweep_often(), sweep_often())

        assert sum(isinstance(outcome, StoredMemory) for outcome in outcomes) == 1
        assert len(await world.heads(f"u{round_}")) == 1


def other_process(world: World, store: Any) -> World:
    """Return another process that works through this store."""
    return World(replace(world.agent, store=store), clock=world.clock)


async def row_of(world: World, memory_id: str) -> dict[str, Any]:
    (point,) = await world.agent.store.retrieve(world.agent.alias, [memory_id])
    found: dict[str, Any] = point["payload"]
    return found


async def test_tombstone_uses_the_replaced_revision(world: World) -> None:
    """A writer that has read an earlier revision must not be able to change the tombstone by compare-and-set."""
    memory_id = await world.add("old")
    read: list[dict[str, Any]] = []

    async def edit() -> None:
        slug = world.agent.settings.slug
        world.counts.note(slug, [memory_id])
        await world.counts.flush()
        read.append(await row_of(world, memory_id))

    store = InterleavedStore(world.agent.store, Event(writes, edit))
    process = other_process(world, store)
    await delete_head(process.agent, memory_id, user_id="u")

    assert store.is_over
    tombstone = await row_of(world, memory_id)
    assert TOMBSTONE_KEY in tombstone
    assert tombstone["rev"] > read[0]["rev"]


def reads_two(name: str, arguments: tuple[Any, ...]) -> bool:
    """Match the read of a version and its predecessor."""
    return name == "retrieve" and len(arguments[1]) == 2


async def test_late_writer_ignores_row_abandoned_midway(world: World) -> None:
    """The engine reads the points of one call one by one."""
    old = await world.add("old")

    async def abandon() -> None:
        winner = await world.add("winner", supersedes=old)
        assert await sweep(world) == 1
        await delete_head(world.agent, winner, user_id="u")

    store = TornReadStore(world.agent.store, Event(reads_two, abandon))
    outcome = await other_process(world, store).try_add("late", supersedes=old)

    assert store.is_over
    assert isinstance(outcome, Conflict)
    assert await world.heads() == ["old"]
    assert await sweep(world) == 0


async def test_sweep_blocks_late_link_to_abandoned_row(world: World) -> None:
    old = await world.add("old")
    is_abandoning, may_abandon = asyncio.Event(), asyncio.Event()
    sweeping: list[asyncio.Task[int]] = []

    async def wait() -> None:
        is_abandoning.set()
        await may_abandon.wait()

    async def lose_and_sweep() -> None:
        winner = await world.add("winner", supersedes=old)
        world.clock.move(ms=SWEEP_AFTER_MS + 1)
        sweeper = other_process(world, InterleavedStore(world.agent.store, Event(writes, wait)))
        sweeping.append(asyncio.create_task(chains.sweep(sweeper.agent)))
        await is_abandoning.wait()
        await delete_head(world.agent, winner, user_id="u")

    async def abandon() -> None:
        may_abandon.set()
        await sweeping[0]

    store = InterleavedStore(world.agent.store, Event(reads_two, lose_and_sweep), Event(writes, abandon))
    outcome = await other_process(world, store).try_add("late", supersedes=old)

    assert store.is_over
    assert isinstance(outcome, Conflict)
    assert await world.heads() == ["old"]
    assert await sweep(world) == 0


async def test_concurrent_writers_over_tombstone_both_store(world: World) -> None:
    """The later write supersedes the earlier: it must not overwrite the point of the identity."""
    world.set_ranking(replace(EVERYTHING, types=(MemoryType("status", 30, supersede_by="subject"),)))
    fields: dict[str, Any] = {"type": "status", "subject": "ticket"}
    first = await world.add("deleted", **fields)
    await delete_head(world.agent, first, user_id="u")

    def writes_over(name: str, arguments: tuple[Any, ...]) -> bool:
        return name == "retrieve" and list(arguments[1]) == [first]

    store = InterleavedStore(world.agent.store, Event(writes_over, lambda: world.add("b", **fields), after=True))
    outcome = await other_process(world, store).try_add("a", **fields)

    assert store.is_over
    assert isinstance(outcome, StoredMemory)
    assert await versions(world) == ["a", "b"]
    assert await world.heads() == ["a"]
