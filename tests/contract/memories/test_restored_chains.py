"""Contents that were replaced: what was pending in them is undone, and no link is left with one end."""

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
    """Write keys of a row, as a late write does; None takes one away."""
    row = await read_row(world.agent, memory_id)
    assert row is not None
    changed = {key: value for key, value in (row | changes).items() if value is not None}
    filter_ = {"must": [{"has_id": [memory_id]}]}
    await world.agent.store.batch(
        world.agent.alias, [{"overwrite_payload": {"payload": changed, "filter": filter_}}], strong=True
    )


@pytest.mark.parametrize("is_linked", [True, False])
async def test_what_was_pending_is_undone(world: World, is_linked: bool) -> None:
    old = await world.add("old")
    new = await world.add("new", supersedes=old)
    await change(world, new, pending=True)
    if not is_linked:
        await change(world, old, supersededById=None, supersededAt=None)

    await repair_chains(world.agent)

    assert await world.heads() == ["old"]
    assert TOMBSTONE_KEY in (await read_row(world.agent, new) or {})
    assert not await chains.join(world.agent, await read_row(world.agent, new) or {})


async def test_a_deletion_that_had_begun_is_completed(world: World) -> None:
    old = await world.add("old")
    new = await world.add("new", supersedes=old)
    assert await chains.tombstone_head(world.agent, await read_row(world.agent, new) or {})

    await repair_chains(world.agent)

    assert await world.heads() == ["old"]


@pytest.mark.parametrize("repair", [repair_chains, repair_links])
async def test_a_version_hidden_by_one_that_is_missing_is_the_head_again(world: World, repair: Any) -> None:
    old = await world.add("old")
    await change(world, old, supersededById=MISSING)
    assert await world.heads() == []

    await repair(world.agent)

    assert await world.heads() == ["old"]


async def test_a_link_to_what_was_deleted_leads_to_the_next_version(world: World) -> None:
    old = await world.add("old")
    gone = await world.add("gone", supersedes=old)
    await delete_head(world.agent, gone, user_id="u")
    new = await world.add("new", supersedes=old)
    await change(world, old, supersededById=gone)
    await change(world, gone, supersededById=new)

    await repair_links(world.agent)

    assert await world.heads() == ["new"]
    assert (await read_row(world.agent, old) or {})["supersededById"] == new


@pytest.mark.parametrize("repair", [repair_chains, repair_links])
async def test_of_two_heads_of_a_chain_the_later_one_stays(world: World, repair: Any) -> None:
    old = await world.add("old")
    await world.add("new", supersedes=old)
    await change(world, old, supersededById=None, supersededAt=None)
    assert sorted(await world.heads()) == ["new", "old"]

    await repair(world.agent)

    assert await world.heads() == ["new"]


async def test_whole_chains_and_points_of_others_stay_as_they_are(world: World) -> None:
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


async def test_what_was_seen_and_deleted_before_its_writer_looked_was_stored(world: World) -> None:
    old = await world.add("old")
    new = await world.add("new", supersedes=old)
    pending = await read_row(world.agent, new) or {}
    await delete_head(world.agent, new, user_id="u")

    assert await chains.join(world.agent, pending | {"pending": True})
