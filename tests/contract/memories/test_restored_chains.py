"""Repair of the version chains in restored contents."""

from typing import Any

import pytest

from agentmemory_operator.memories import chains
from agentmemory_operator.memories.point_pages import read_row
from agentmemory_operator.memories.restored_chains import repair_chains, repair_links
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.memories.stored_memories import delete_head
from tests.support.engine.agents import World

MISSING = "00000000-0000-4000-8000-000000000001"


async def change(world: World, memory_id: str, **changes: Any) -> None:
    """Change keys of a row as a late write does; None removes a key."""
    row = await read_row(world.agent, memory_id)
    assert row is not None
    changed = {key: value for key, value in (row | changes).items() if value is not None}
    filter_ = {"must": [{"has_id": [memory_id]}]}
    await world.agent.store.batch(
        world.agent.alias, [{"overwrite_payload": {"payload": changed, "filter": filter_}}], strong=True
    )


@pytest.mark.parametrize("is_linked", [True, False])
async def test_pending_version_is_undone(world: World, is_linked: bool) -> None:
    old = await world.add("old")
    new = await world.add("new", supersedes=old)
    await change(world, new, pending=True)
    if not is_linked:
        await change(world, old, supersededById=None, supersededAt=None)

    await repair_chains(world.agent)

    assert await world.heads() == ["old"]
    assert TOMBSTONE_KEY in (await read_row(world.agent, new) or {})
    assert not await chains.join(world.agent, await read_row(world.agent, new) or {})


async def test_started_deletion_is_completed(world: World) -> None:
    old = await world.add("old")
    new = await world.add("new", supersedes=old)
    assert await chains.tombstone_head(world.agent, await read_row(world.agent, new) or {})

    await repair_chains(world.agent)

    assert await world.heads() == ["old"]


@pytest.mark.parametrize("repair", [repair_chains, repair_links])
async def test_link_to_missing_version_is_removed(world: World, repair: Any) -> None:
    old = await world.add("old")
    await change(world, old, supersededById=MISSING)
    assert await world.heads() == []

    await repair(world.agent)

    assert await world.heads() == ["old"]


async def test_link_to_deleted_version_skips_it(world: World) -> None:
    old = await world.add("old")
    deleted = await world.add("gone", supersedes=old)
    await delete_head(world.agent, deleted, user_id="u")
    new = await world.add("new", supersedes=old)
    await change(world, old, supersededById=deleted)
    await change(world, deleted, supersededById=new)

    await repair_links(world.agent)

    assert await world.heads() == ["new"]
    assert (await read_row(world.agent, old) or {})["supersededById"] == new


@pytest.mark.parametrize("repair", [repair_chains, repair_links])
async def test_later_of_two_heads_is_kept(world: World, repair: Any) -> None:
    old = await world.add("old")
    await world.add("new", supersedes=old)
    await change(world, old, supersededById=None, supersededAt=None)
    assert sorted(await world.heads()) == ["new", "old"]

    await repair(world.agent)

    assert await world.heads() == ["new"]


async def test_intact_chains_and_foreign_points_are_kept(world: World) -> None:
    first = await world.add("first")
    await world.add("last", supersedes=await world.add("second", supersedes=first))
    foreign = [
        {"id": MISSING, "vector": {}, "payload": {"pending": True, "supersededById": "elsewhere"}},
        {"id": MISSING[:-1] + "2", "vector": {}, "payload": {"supersedesIds": 5, "rev": "a"}},
    ]
    await world.agent.store.upsert(world.agent.alias, foreign)
    before = await world.agent.store.scroll(world.agent.alias, {"limit": 100, "with_payload": True})

    await repair_chains(world.agent)

    assert await world.agent.store.scroll(world.agent.alias, {"limit": 100, "with_payload": True}) == before


async def test_join_of_deleted_version_succeeds(world: World) -> None:
    """The version was visible, and was deleted before its writer read it."""
    old = await world.add("old")
    new = await world.add("new", supersedes=old)
    pending = await read_row(world.agent, new) or {}
    await delete_head(world.agent, new, user_id="u")

    assert await chains.join(world.agent, pending | {"pending": True})
