"""A crash at any step of a chain's protocol: no version is lost, one head is left, and it stays so."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from agentmemory_operator.errors import OutcomeUnknown, TransientError
from agentmemory_operator.services.chains import SWEEP_AFTER_MS
from agentmemory_operator.services.stored import Stored
from tests.support.agents import World
from tests.support.crashes import CrashingStore, Moment

# More than any protocol has; the tests check that the last ones are reached by none.
CALLS = 12
CRASHES = [pytest.param(at, moment, id=f"{moment} call {at}") for at in range(CALLS) for moment in ("before", "after")]


async def crash(world: World, at: int, moment: Moment, action: Callable[[World], Awaitable[object]]) -> object:
    """Carry out `action` in a process that dies at a call; return its outcome, or the error it ended in."""
    doomed = World(replace(world.agent, store=CrashingStore(world.agent.store, at, moment)), clock=world.clock)
    try:
        return await action(doomed)
    except TransientError as error:
        return error


async def sweep(world: World) -> int:
    world.clock.move(ms=SWEEP_AFTER_MS + 1)
    return await world.chains.sweep(world.agent)


async def versions(world: World) -> list[str]:
    return sorted(record.content for record in await world.rows(include_superseded=True))


@pytest.mark.parametrize(("at", "moment"), CRASHES)
async def test_a_crash_while_superseding_leaves_one_head_and_loses_no_version(
    world: World, at: int, moment: Moment
) -> None:
    old = await world.add("old")

    outcome = await crash(world, at, moment, lambda doomed: doomed.try_add("new", supersedes=old))
    await sweep(world)

    (head,) = await world.heads()
    assert "old" in await versions(world)
    assert head == "new" or not isinstance(outcome, Stored)
    assert await sweep(world) == 0
    assert at < CALLS - 1 or isinstance(outcome, Stored)


@pytest.mark.parametrize(("at", "moment"), CRASHES)
async def test_a_store_that_ends_in_503_wrote_nothing_that_is_read_later(world: World, at: int, moment: Moment) -> None:
    old = await world.add("old")

    outcome = await crash(world, at, moment, lambda doomed: doomed.try_add("new", supersedes=old))
    await sweep(world)

    is_away = isinstance(outcome, TransientError) and not isinstance(outcome, OutcomeUnknown)
    assert not is_away or await world.heads() == ["old"]


@pytest.mark.parametrize(("at", "moment"), CRASHES)
async def test_a_request_repeated_with_its_key_ends_in_one_memory(world: World, at: int, moment: Moment) -> None:
    old = await world.add("old")

    await crash(world, at, moment, lambda doomed: doomed.try_add("new", supersedes=old, idempotency_key="k"))
    outcomes = [await world.try_add("new", supersedes=old, idempotency_key="k") for _ in range(2)]

    assert isinstance(outcomes[0], Stored)
    assert outcomes[0] == outcomes[1]
    assert await world.heads() == ["new"]
    assert await versions(world) == ["new", "old"]


@pytest.mark.parametrize(("at", "moment"), CRASHES)
async def test_a_crash_while_deleting_leaves_the_head_or_its_predecessor(world: World, at: int, moment: Moment) -> None:
    head = await world.add("new", supersedes=await world.add("old"))

    outcome = await crash(world, at, moment, lambda doomed: doomed.memories.delete(doomed.agent, head, user_id="u"))
    await sweep(world)

    assert await world.heads() == ["old"] or (isinstance(outcome, TransientError) and await world.heads() == ["new"])
    assert "old" in await versions(world)
    assert await sweep(world) == 0
    assert at < CALLS - 1 or outcome is None


@pytest.mark.parametrize(("at", "moment"), CRASHES)
async def test_the_sweep_itself_may_crash(world: World, at: int, moment: Moment) -> None:
    old = await world.add("old")
    await crash(world, 2, "after", lambda doomed: doomed.try_add("new", supersedes=old))
    world.clock.move(ms=SWEEP_AFTER_MS + 1)

    await crash(world, at, moment, lambda doomed: doomed.chains.sweep(doomed.agent))
    await sweep(world)

    assert await world.heads() == ["new"]


async def test_a_read_by_id_finishes_what_a_crash_left(world: World) -> None:
    old = await world.add("old")
    # Call 1 inserts the new version, call 3 reads the old one, call 4 links it.
    await crash(world, 4, "before", lambda doomed: doomed.try_add("new", supersedes=old))
    (pending,), _ = await world.agent.store.scroll(
        world.agent.alias, {"filter": {"must": [{"key": "pending", "match": {"value": True}}]}}
    )

    record = await world.memories.get(world.agent, pending["id"], user_id="u")

    assert (record.content, record.pending, record.supersedes_id) == ("new", False, old)
    assert await world.heads() == ["new"]


async def test_what_another_won_meanwhile_is_removed_by_the_sweep(world: World) -> None:
    old = await world.add("old")
    await crash(world, 1, "after", lambda doomed: doomed.try_add("late", supersedes=old))
    await world.add("winner", supersedes=old)

    assert await sweep(world) == 1

    assert await versions(world) == ["old", "winner"]
    assert await sweep(world) == 0


async def test_fresh_steps_are_left_to_their_writer(world: World) -> None:
    old = await world.add("old")
    await crash(world, 1, "after", lambda doomed: doomed.try_add("new", supersedes=old))

    world.clock.move(ms=SWEEP_AFTER_MS - 1)

    assert await world.chains.sweep(world.agent) == 0
    assert await world.heads() == ["old"]


async def test_more_unfinished_steps_than_a_page_are_all_finished(world: World) -> None:
    for number in range(130):
        old = await world.add(f"old {number}")
        await crash(world, 1, "after", lambda doomed, old=old: doomed.try_add("new", supersedes=old))

    assert await sweep(world) == 130

    assert await world.heads() == ["new"] * 130


async def test_sweeps_and_writers_at_once_leave_one_head(world: World) -> None:
    for round_ in range(5):
        old = await world.add(f"old {round_}", user_id=f"u{round_}")
        world.clock.move(ms=SWEEP_AFTER_MS + 1)
        writers = [world.try_add(f"new {number}", supersedes=old, user_id=f"u{round_}") for number in range(5)]

        async def sweep_often() -> None:
            for _ in range(10):
                world.clock.move(ms=SWEEP_AFTER_MS + 1)
                await world.chains.sweep(world.agent)

        *outcomes, _, _ = await asyncio.gather(*writers, sweep_often(), sweep_often())

        assert sum(isinstance(outcome, Stored) for outcome in outcomes) == 1
        assert len(await world.heads(f"u{round_}")) == 1
