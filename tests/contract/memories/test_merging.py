"""Merging several memories into one: all of them are superseded or none, after any crash."""

from functools import partial
from typing import Any

import pytest

from agentmemory_operator.errors import OutcomeUnknown, TransientError
from agentmemory_operator.lifecycle.cleanup import Cleanup
from agentmemory_operator.lifecycle.removals import RemovalBatch
from agentmemory_operator.lifecycle.rules.cleanup_rules import RemovalReason
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.chains import SWEEP_AFTER_MS
from agentmemory_operator.memories.history import read_history
from agentmemory_operator.memories.stored_memories import delete_head
from tests.support.engine.agents import World, outcome_of_crash
from tests.support.engine.merges import merge_memories

pytestmark = pytest.mark.usefixtures("keeps_vectors")

CALLS = 26
crash = partial(outcome_of_crash, calls=CALLS)
# A crash before a call equals a crash after the previous call.
CRASHES = range(CALLS)


async def sweep(world: World) -> int:
    world.clock.move(ms=SWEEP_AFTER_MS + 1)
    return await chains.sweep(world.agent)


async def add_three(world: World) -> list[str]:
    return [await world.add(content) for content in ("a", "b", "c")]


async def heads(world: World) -> list[str]:
    return sorted(await world.heads())


async def test_merged_memory_replaces_its_sources(world: World) -> None:
    ids = await add_three(world)

    memory_id = await merge_memories(world, "abc", *ids)

    assert memory_id is not None
    assert await heads(world) == ["abc"]
    history = await read_history(world.agent, memory_id, user_id="u")
    assert sorted(record.content for record in history.records[:-1]) == ["a", "b", "c"]
    assert history.records[-1].supersedes_ids == tuple(sorted(ids))
    assert {record.superseded_by_id for record in history.records[:-1]} == {memory_id}


async def test_history_of_source_ends_with_merge(world: World) -> None:
    first = await world.add("a0")
    second = await world.add("a1", supersedes=first)
    other = await world.add("b")
    await merge_memories(world, "ab", second, other)

    history = await read_history(world.agent, first, user_id="u")

    assert [record.content for record in history.records] == ["a0", "a1", "ab"]


async def test_history_of_second_merge_is_complete(world: World) -> None:
    a, b, c = await add_three(world)
    ab = await merge_memories(world, "ab", a, b)
    assert ab is not None
    abc = await merge_memories(world, "abc", ab, c)
    assert abc is not None

    contents = [record.content for record in (await read_history(world.agent, abc, user_id="u")).records]

    assert sorted(contents) == ["a", "ab", "abc", "b", "c"]
    assert contents.index("ab") > max(contents.index("a"), contents.index("b"))


async def test_deleting_merge_restores_sources(world: World) -> None:
    memory_id = await merge_memories(world, "abc", *await add_three(world))
    assert memory_id is not None

    await delete_head(world.agent, memory_id, user_id="u")

    assert await heads(world) == ["a", "b", "c"]
    assert all(record.superseded_at is None and record.valid_to is None for record in await world.rows())


@pytest.mark.parametrize("at", CRASHES)
async def test_crash_leaves_sources_or_merge(world: World, at: int) -> None:
    ids = await add_three(world)

    outcome = await crash(world, at, "after", lambda doomed: merge_memories(doomed, "abc", *ids))
    await sweep(world)

    is_away = isinstance(outcome, TransientError) and not isinstance(outcome, OutcomeUnknown)
    assert await heads(world) == ["a", "b", "c"] or (await heads(world) == ["abc"] and not is_away)
    assert await sweep(world) == 0


@pytest.mark.parametrize("at", CRASHES)
async def test_repeated_merge_completes_after_crash(world: World, at: int) -> None:
    ids = await add_three(world)
    await crash(world, at, "after", lambda doomed: merge_memories(doomed, "abc", *ids))

    assert await merge_memories(world, "abc", *ids) is not None

    assert await heads(world) == ["abc"]
    assert await sweep(world) == 0


@pytest.mark.parametrize("at", CRASHES)
async def test_crash_while_deleting_leaves_merge_or_sources(world: World, at: int) -> None:
    memory_id = await merge_memories(world, "abc", *await add_three(world))
    assert memory_id is not None

    await crash(world, at, "after", lambda doomed: delete_head(doomed.agent, memory_id, user_id="u"))
    await sweep(world)

    assert await heads(world) in (["abc"], ["a", "b", "c"])
    assert await sweep(world) == 0


async def test_superseded_source_aborts_merge(world: World) -> None:
    a, b, c = await add_three(world)
    await world.add("b2", supersedes=b)

    assert await merge_memories(world, "abc", a, b, c) is None

    assert await heads(world) == ["a", "b2", "c"]
    assert await sweep(world) == 0


def removal_of(row: dict[str, Any]) -> RemovalBatch:
    return RemovalBatch(((row, RemovalReason.CHAIN),))


async def row_of(world: World, memory_id: str) -> dict[str, Any]:
    (point,) = await world.agent.store.retrieve(world.agent.alias, [memory_id])
    found: dict[str, Any] = point["payload"]
    return found


@pytest.mark.parametrize("at", CRASHES)
async def test_crash_while_removing_merge_keeps_sources(world: World, at: int) -> None:
    """The removed version is in the middle of a chain."""
    a, b, c = await add_three(world)
    ab = await merge_memories(world, "ab", a, b)
    assert ab is not None
    abc = await merge_memories(world, "abc", ab, c)
    assert abc is not None
    row = await row_of(world, ab)

    await crash(
        world,
        at,
        "after",
        lambda doomed: Cleanup(doomed.clock, min_pause_s=0).remove_units(doomed.agent, [removal_of(row)]),
    )
    await sweep(world)

    contents = {record.content for record in (await read_history(world.agent, abc, user_id="u")).records}
    assert contents in ({"a", "b", "c", "abc"}, {"a", "b", "c", "ab", "abc"})
    assert await heads(world) == ["abc"]
    assert await sweep(world) == 0
    await delete_head(world.agent, abc, user_id="u")
    assert await heads(world) in (["a", "b", "c"], ["ab", "c"])


async def test_removed_source_is_replaced_by_predecessor(world: World) -> None:
    first = await world.add("a0")
    second = await world.add("a1", supersedes=first)
    other = await world.add("b")
    memory_id = await merge_memories(world, "ab", second, other)
    assert memory_id is not None

    await Cleanup(world.clock, min_pause_s=0).remove_units(world.agent, [removal_of(await row_of(world, second))])

    assert set((await row_of(world, memory_id))["supersedesIds"]) == {first, other}
    await delete_head(world.agent, memory_id, user_id="u")
    assert await heads(world) == ["a0", "b"]


async def test_merge_with_one_source_left_is_a_chain(world: World) -> None:
    a, b = await world.add("a"), await world.add("b")
    memory_id = await merge_memories(world, "ab", a, b)
    assert memory_id is not None

    await Cleanup(world.clock, min_pause_s=0).remove_units(world.agent, [removal_of(await row_of(world, a))])

    row = await row_of(world, memory_id)
    assert (row["supersedesId"], row.get("supersedesIds")) == (b, None)
    await delete_head(world.agent, memory_id, user_id="u")
    assert await heads(world) == ["b"]
