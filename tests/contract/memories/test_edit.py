"""Changing memories in place on a real engine."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.errors import Conflict, NotFound, OutcomeUnknown, StoreUnavailable
from agentmemory_operator.memories import zone_changes
from agentmemory_operator.memories.history import read_version_ids
from agentmemory_operator.memories.rules.filters import Selection, point_filter
from agentmemory_operator.memories.rules.record import MemoryRecord
from agentmemory_operator.memories.stored_memories import change_head, delete_head, read_memory
from agentmemory_operator.search.requests import SearchRequest
from agentmemory_operator.spec.zones import Zone, ZoneSettings
from agentmemory_operator.zones.keyring import AgentKeys, Keyring
from agentmemory_operator.zones.sealed_store import ZoneKeys
from tests.support.engine.agents import World, vector_of
from tests.support.engine.reused_agents import reuse_world
from tests.support.zones import RING, FakeKeyShards, FakeWrapping

pytestmark = pytest.mark.usefixtures("keeps_vectors")

UNKNOWN = "018f0000-0000-7000-8000-000000000000"


async def change(world: World, memory_id: str, user_id: str = "u", **changes: Any) -> MemoryRecord:
    return await change_head(world.agent, memory_id, changes, user_id=user_id)


async def test_only_given_fields_change(world: World) -> None:
    memory_id = await world.add("a", importance=0.2, tags=("x",), metadata={"k": 1}, session_id="s")
    before = await read_memory(world.agent, memory_id, user_id="u")

    changed = await change(world, memory_id, importance=0.9, tags=["y", "z"])

    now = await read_memory(world.agent, memory_id, user_id="u")
    expected = replace(before, importance=0.9, tags=("y", "z"), rev=2, updated_at=now.updated_at)
    assert now == changed == replace(expected, changed_at=world.clock.now_ms())


async def test_metadata_is_replaced_entirely(world: World) -> None:
    memory_id = await world.add("a", metadata={"kept": 1, "nested": {"a": 1}})

    changed = await change(world, memory_id, metadata={"nested": {"b": 2}})

    assert changed.metadata == {"nested": {"b": 2}}


async def test_search_uses_the_changed_fields(world: World) -> None:
    memory_id = await world.add("a", importance=0.0, tags=("old",))
    question = SearchRequest(selection=Selection(user_id="u", tags=("new",)), vector=vector_of("a"))
    before = await world.recall.search(world.agent, question)

    await change(world, memory_id, importance=1.0, tags=["new"])

    (found,) = (await world.recall.search(world.agent, question)).results
    assert before.results == ()
    assert (found.record.id, found.record.importance) == (memory_id, 1.0)


async def test_expiry_can_be_set_and_removed(world: World) -> None:
    memory_id = await world.add("a")
    await change(world, memory_id, expiresAt=world.clock.now_ms() + 1000)
    ending = await read_memory(world.agent, memory_id, user_id="u")

    await change(world, memory_id, expiresAt=None)
    world.clock.move(ms=2000)

    assert ending.expires_at is not None
    assert (await read_memory(world.agent, memory_id, user_id="u")).expires_at is None
    assert await world.heads() == ["a"]
    await world.add("newer", supersedes=memory_id)
    assert await world.heads() == ["newer"]


async def test_past_expiry_hides_the_memory(world: World) -> None:
    memory_id = await world.add("a")

    await change(world, memory_id, expiresAt=world.clock.now_ms())

    assert await world.heads() == []
    with pytest.raises(NotFound):
        await change(world, memory_id, importance=0.1)


async def test_inaccessible_memory_is_not_found(world: World) -> None:
    mine, deleted = await world.add("mine"), await world.add("deleted")
    await delete_head(world.agent, deleted, user_id="u")

    for memory_id, user_id in ((mine, "v"), (UNKNOWN, "u"), (deleted, "u")):
        with pytest.raises(NotFound):
            await change(world, memory_id, user_id, importance=0.1)


async def test_superseded_version_cannot_be_changed(world: World) -> None:
    old = await world.add("old", importance=0.2)
    head = await world.add("new", supersedes=old)

    with pytest.raises(Conflict, match=head):
        await change(world, old, importance=0.9)

    assert (await read_memory(world.agent, old, user_id="u")).importance == 0.2


async def test_concurrent_changes_and_counts_are_kept(world: World) -> None:
    memory_id = await world.add("a")
    world.counts.note(world.agent.settings.slug, [memory_id] * 3)

    await asyncio.gather(
        change(world, memory_id, importance=0.9),
        change(world, memory_id, tags=["x"]),
        change(world, memory_id, metadata={"k": 1}),
        world.counts.flush(),
    )

    now = await read_memory(world.agent, memory_id, user_id="u")
    assert (now.importance, now.tags, now.metadata, now.access_count) == (0.9, ("x",), {"k": 1}, 3)
    assert now.rev == 5


async def test_lost_response_is_outcome_unknown(world: World) -> None:
    memory_id = await world.add("a")
    doomed = world.crash_at(2, "before")

    with pytest.raises(OutcomeUnknown):
        await change(doomed, memory_id, importance=0.9)

    assert (await read_memory(world.agent, memory_id, user_id="u")).importance == 0.9


async def test_unsent_change_is_a_definite_failure(world: World) -> None:
    memory_id = await world.add("a", importance=0.5)
    doomed = world.crash_at(0, "before")

    with pytest.raises(StoreUnavailable):
        await change(doomed, memory_id, importance=0.9)

    assert (await read_memory(world.agent, memory_id, user_id="u")).importance == 0.5


async def test_dense_and_keyword_vectors_are_kept(qdrant_url: str) -> None:
    async with reuse_world(qdrant_url, keyword=KeywordSource(language="english", window=2)) as world:
        memory_id = await world.add("the ledger is green", session_id="s")
        body = {"filter": {"must": [{"has_id": [memory_id]}]}, "with_vector": True}
        before, _ = await world.agent.store.scroll(world.agent.alias, body)

        await change(world, memory_id, importance=0.9, tags=["x"])

        after, _ = await world.agent.store.scroll(world.agent.alias, body)
        assert after[0]["vector"] == before[0]["vector"]
        assert KEYWORD_VECTOR in after[0]["vector"]


async def test_zone_move_fails_if_notes_about_it_remain(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose(*_: Any, **__: Any) -> None:
        """Let another writer be faster."""

    moved, other = await world.add("a"), await world.add("b")
    for memory_id, connected_id in ((moved, other), (other, moved)):
        notes = {"connections": [{"id": connected_id}]}
        await world.agent.store.set_payload(world.agent.alias, notes, point_filter(memory_id))
    monkeypatch.setattr(zone_changes, "change_row", lose)
    keys = ZoneKeys(Keyring(FakeKeyShards(), world.clock), AgentKeys(RING, FakeWrapping()), "bot", "acme")
    settings = replace(
        world.agent.settings, zones=ZoneSettings(allowed=frozenset(Zone), vectors=frozenset(Zone), secret_name="k")
    )

    with pytest.raises(OutcomeUnknown, match=other):
        await zone_changes.change_zone(
            replace(world.agent, zone_keys=keys, settings=settings), moved, "SENSITIVE", user_id="u"
        )


async def test_zone_move_ends_while_versions_are_added(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [await world.add("v0")]

    async def read(*arguments: Any, **more: Any) -> list[str]:
        assert len(ids) < 9
        ids.append(await world.add(f"v{len(ids)}", supersedes=ids[-1]))
        return await read_version_ids(*arguments, **more)

    monkeypatch.setattr(zone_changes, "read_version_ids", read)
    monkeypatch.setattr(zone_changes, "MAX_ATTEMPTS", 3)

    with pytest.raises(StoreUnavailable, match=ids[0]):
        await zone_changes.change_zone(world.agent, ids[0], None, user_id="u")
