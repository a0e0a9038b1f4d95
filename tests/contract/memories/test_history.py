"""The version history of a memory on a real engine."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.errors import NotFound, TransientError
from agentmemory_operator.memories import chains
from agentmemory_operator.memories import history as histories
from agentmemory_operator.memories.history import History, read_history, read_version_ids
from agentmemory_operator.memories.point_pages import read_row
from agentmemory_operator.memories.rules.record import tombstone_of
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.memories.tombstone_writes import tombstone_rows
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import EVERYTHING, World
from tests.support.engine.merges import merge_memories


async def chain(world: World, *contents: str, user_id: str = "u", **more: Any) -> list[str]:
    """Store a chain of versions; return their ids."""
    ids: list[str] = []
    for content in contents:
        ids.append(await world.add(content, user_id=user_id, supersedes=ids[-1] if ids else None, **more))
    return ids


async def read(world: World, memory_id: str, user_id: str = "u") -> History:
    return await read_history(world.agent, memory_id, user_id=user_id)


def contents_of(history: History) -> list[str]:
    return [record.content for record in history.records]


@pytest.mark.parametrize("named", range(4))
async def test_any_version_yields_the_chain_oldest_first(world: World, named: int) -> None:
    ids = await chain(world, "first", "second", "third", "fourth")

    history = await read(world, ids[named])

    assert contents_of(history) == ["first", "second", "third", "fourth"]
    assert [record.superseded_by_id for record in history.records] == [*ids[1:], None]
    assert not history.is_truncated


async def test_memory_without_versions_is_its_history(world: World) -> None:
    assert contents_of(await read(world, await world.add("alone"))) == ["alone"]


async def test_other_users_history_is_not_found(world: World) -> None:
    ids = await chain(world, "first", "second")

    for memory_id in ids:
        with pytest.raises(NotFound):
            await read(world, memory_id, "v")


async def test_deleted_head_is_left_out(world: World) -> None:
    ids = await chain(world, "first", "second", "third")
    await delete_head(world.agent, ids[2], user_id="u")

    assert contents_of(await read(world, ids[0])) == ["first", "second"]
    with pytest.raises(NotFound):
        await read(world, ids[2])


async def test_expired_version_is_left_out(world: World) -> None:
    first = await world.add("first")
    second = await world.add("second", supersedes=first, expires_at=world.clock.now_ms() + 10)
    await world.add("third", supersedes=second)

    world.clock.move(ms=10)

    assert contents_of(await read(world, first)) == ["first", "third"]


async def test_long_chain_is_truncated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await chain(world, *"abcdefg")
    monkeypatch.setattr(histories, "MAX_VERSIONS", 3)

    windows = {named: await read(world, ids[named]) for named in (0, 3, 6)}

    assert {named: "".join(contents_of(window)) for named, window in windows.items()} == {0: "abc", 3: "bcd", 6: "efg"}
    assert all(window.is_truncated for window in windows.values())


async def test_chain_of_maximum_length_is_complete(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await chain(world, *"abc")
    monkeypatch.setattr(histories, "MAX_VERSIONS", 3)

    assert [(await read(world, each)).is_truncated for each in ids] == [False] * 3


async def test_read_completes_a_pending_version(world: World) -> None:
    read_after_crashes = []
    for at in range(3, 9):
        old = await world.add("old", user_id=f"u{at}")
        doomed = world.crash_at(at, "before")
        await asyncio.gather(doomed.try_add("new", user_id=f"u{at}", supersedes=old), return_exceptions=True)

        found = contents_of(await read(world, old, f"u{at}"))

        assert found[-1:] == await world.heads(f"u{at}")
        read_after_crashes.append(found)

    assert ["old", "new"] in read_after_crashes
    assert ["old"] in read_after_crashes


async def test_concurrent_changes_leave_links_intact(world: World) -> None:
    ids = await chain(world, "0", "1", "2")

    async def change() -> None:
        for number in range(3, 9):
            ids.append(await world.add(str(number), supersedes=ids[-1]))
            if number % 3 == 0:
                await delete_head(world.agent, ids.pop(), user_id="u")

    changing = asyncio.create_task(change())
    read_meanwhile: list[History] = []
    while not changing.done():
        read_meanwhile.append(await read(world, ids[1]))
    await changing

    for history in read_meanwhile:
        links: list[Mapping[str, Any]] = [{"id": r.id, "before": r.supersedes_id} for r in history.records]
        assert [link["before"] for link in links] == [None, *(link["id"] for link in links[:-1])]
    assert len(read_meanwhile) > 1


async def test_key_has_one_chain_after_deletion(world: World) -> None:
    """The first version of the key was deleted."""
    keyed = MemoryType("plan", half_life_days=9, supersede_by="key")
    world.set_ranking(replace(EVERYTHING, types=(*EVERYTHING.types, keyed)))
    await delete_head(world.agent, await world.add("gone", type="plan", key="k"), user_id="u")
    ids = [await world.add(content, type="plan", key="k") for content in ("first", "second")]

    histories = [contents_of(await read(world, memory_id)) for memory_id in ids]

    assert histories == [["first", "second"]] * 2


@pytest.mark.parametrize(("start", "removed"), [(0, 1), (2, 1), (1, 2)], ids=["after", "before", "head"])
async def test_version_ids_survive_a_removal_during_the_reading(world: World, start: int, removed: int) -> None:
    ids = await chain(world, "first", "second", "third")
    stale = await read_row(world.agent, ids[start])
    assert stale is not None

    await tombstone_rows(
        world.agent, [await read_row(world.agent, ids[removed]) or {}], lambda row: tombstone_of({**row}, 1)
    )
    await chains.read_completed(world.agent, ids[removed])
    if removed == 2:
        ids.append(await world.add("fourth", supersedes=ids[1]))

    assert await read_version_ids(world.agent, stale) == [each for each in ids if each != ids[removed]]


async def test_lasting_contention_is_reported(world: World) -> None:
    ids = await chain(world, "first", "second", "third")
    await world.agent.store.set_payload(
        world.agent.alias, {"supersedesId": "another"}, {"must": [{"has_id": [ids[1]]}]}
    )
    row = await read_row(world.agent, ids[0])
    assert row is not None

    assert await read_version_ids(world.agent, row) == ids[:1]
    with pytest.raises(TransientError, match="busy"):
        await read_version_ids(world.agent, row, busy=TransientError("busy"))


async def test_missing_predecessor_hides_no_other(world: World) -> None:
    facts = [await world.add(content) for content in ("first", "second", "third")]
    merged_id = await merge_memories(world, "merged", *facts)
    assert merged_id is not None
    merged = await read_row(world.agent, merged_id)
    assert merged is not None
    await world.agent.store.delete(world.agent.alias, {"must": [{"has_id": [facts[-1]]}]})

    found = await read_version_ids(world.agent, merged, busy=TransientError("busy"))

    assert set(found) == {*facts[:-1], merged_id}
