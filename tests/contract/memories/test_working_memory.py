"""Working memory and the end of a session on a real engine."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.errors import Conflict, RequestInvalid, TransientError
from agentmemory_operator.memories import session_keywords
from agentmemory_operator.memories.change_log import ChangesRequest, read_changes
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.rules.filters import Selection
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.memories.working_memory import Session, StoredWorkingMemory
from agentmemory_operator.search.requests import SearchRequest
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.spec.memory_types import MemoryType, Ttl
from tests.support.engine.agents import EVERYTHING, World, vector_of
from tests.support.engine.interleaved_store import Event, InterleavedStore, writes
from tests.support.engine.reused_agents import reuse_world

pytestmark = pytest.mark.usefixtures("keeps_vectors")

RANKING = replace(EVERYTHING, types=(*EVERYTHING.types, MemoryType("working", half_life_days=1)))
SESSION = Session("u", "s")


@pytest.fixture
async def mind(world: World) -> World:
    """Agent with the memory type `working`."""
    world.set_ranking(RANKING)
    return world


async def keep(world: World, content: str, session: Session = SESSION, **more: Any) -> StoredWorkingMemory:
    memory = IncomingMemory(
        user_id=session.user_id, session_id=session.session_id, content=content, vector=vector_of(content), **more
    )
    return await world.working.store(world.agent, memory)


async def contents(world: World, session: Session = SESSION) -> list[str]:
    return [record.content for record in await world.working.read(world.agent, session)]


def with_slots(world: World, slots: int) -> World:
    settings: AgentSettings = replace(world.agent.settings, working_memory_slots=slots)
    return World(replace(world.agent, settings=settings), clock=world.clock)


async def test_eviction_at_the_same_time_is_a_change(mind: World) -> None:
    """The id is that of the slot, so only the time in the log tells the new memory from the evicted one."""
    for content in "abcd":
        await keep(mind, content)
    page = await read_changes(mind.agent, ChangesRequest(limit=100))

    evicting = await keep(mind, "e")

    later = await read_changes(mind.agent, ChangesRequest(limit=100, cursor=page.next_cursor))
    assert [(change.kind, change.id) for change in later.changes] == [("stored", evicting.record.id)]


async def test_new_importance_is_a_change(mind: World) -> None:
    kept = await keep(mind, "a")
    page = await read_changes(mind.agent, ChangesRequest(limit=100))

    await keep(mind, "a")
    used = await read_changes(mind.agent, ChangesRequest(limit=100, cursor=page.next_cursor))
    await keep(mind, "a", importance=0.9)
    changed = await read_changes(mind.agent, ChangesRequest(limit=100, cursor=used.next_cursor))

    assert used.changes == ()
    assert [(change.kind, change.id) for change in changed.changes] == [("stored", kept.record.id)]


async def test_least_recently_used_memory_is_evicted(mind: World) -> None:
    kept = [await keep(mind, content) for content in "abcdef"]

    assert await contents(mind) == ["f", "e", "d", "c"]
    assert [each.evicted and each.evicted.content for each in kept] == [None] * 4 + ["a", "b"]
    assert {each.event for each in kept} == {"ADD"}


async def test_read_by_id_counts_as_use(mind: World) -> None:
    first, *_ = [(await keep(mind, content)).record for content in "abcd"]

    await mind.working.mark_used(mind.agent, first)
    await keep(mind, "e")

    assert await contents(mind) == ["e", "a", "d", "c"]


async def test_search_result_counts_as_use(mind: World) -> None:
    for content in "abcd":
        await keep(mind, content)
    mind.clock.move(ms=5)
    question = SearchRequest(selection=Selection(user_id="u"), vector=vector_of("a"), top_k=1)
    (found,) = (await mind.recall.search(mind.agent, question)).results
    mind.clock.move(ms=5)

    await keep(mind, "e")
    noted = await contents(mind)
    await mind.counts.flush()

    assert found.record.content == "a"
    assert noted == await contents(mind) == ["e", "a", "d", "c"]


async def test_duplicate_counts_as_use(mind: World) -> None:
    first = await keep(mind, "a", importance=0.1)
    for content in "bcd":
        await keep(mind, content)

    again = await keep(mind, "a", importance=0.9)

    assert (again.event, again.record.id, again.evicted) == ("NONE", first.record.id, None)
    assert again.record.importance == 0.9
    assert await contents(mind) == ["a", "d", "c", "b"]


async def test_each_session_and_user_is_separate(mind: World) -> None:
    for session in (SESSION, Session("u", "t"), Session("v", "s")):
        for number in range(5):
            await keep(mind, f"{session.user_id}{session.session_id}{number}", session)

    assert await contents(mind, Session("u", "t")) == ["ut4", "ut3", "ut2", "ut1"]
    assert await contents(mind, Session("v", "s")) == ["vs4", "vs3", "vs2", "vs1"]
    assert await contents(mind) == ["us4", "us3", "us2", "us1"]
    assert await contents(mind, Session("v", "t")) == []


async def test_working_memories_are_listed_and_searched(mind: World) -> None:
    await mind.add("lasting")
    kept = await keep(mind, "passing")

    rows = await mind.rows(types=("working",))
    everything = SearchRequest(selection=Selection(user_id="u"), vector=vector_of("passing"))

    assert [(row.id, row.session_id, row.content) for row in rows] == [(kept.record.id, "s", "passing")]
    assert len((await mind.recall.search(mind.agent, everything)).results) == 2
    assert len(await mind.rows(types=("fact",))) == 1


async def test_new_process_reads_the_same_memories(mind: World) -> None:
    for content in "abcde":
        await keep(mind, content)
    started = World(mind.agent, clock=mind.clock)

    await keep(started, "f")

    assert await contents(started) == await contents(mind) == ["f", "e", "d", "c"]


async def test_concurrent_writers_respect_the_limit(mind: World) -> None:
    processes = [World(mind.agent, clock=mind.clock) for _ in range(3)]
    sizes: list[int] = []

    async def watch() -> None:
        while True:
            sizes.append(len(await mind.rows(types=("working",))))

    watching = asyncio.create_task(watch())
    kept = await asyncio.gather(*(keep(processes[n % 3], f"thought {n}") for n in range(30)))
    watching.cancel()

    assert len(await contents(mind)) == len(await mind.rows(types=("working",))) == 4
    assert max(sizes) <= 4
    assert len(sizes) > 1
    evicted = [each.evicted.content for each in kept if each.evicted]
    assert sorted([*evicted, *await contents(mind)]) == sorted(f"thought {n}" for n in range(30))


@pytest.mark.parametrize("at", range(3))
async def test_crash_leaves_old_or_new_memory(mind: World, at: int) -> None:
    for content in "abcd":
        await keep(mind, content)
    doomed = mind.crash_at(at, "after")

    with pytest.raises(TransientError):
        await keep(doomed, "e")

    assert await contents(mind) in (["d", "c", "b", "a"], ["e", "d", "c", "b"])
    await keep(mind, "e")
    assert await contents(mind) == ["e", "d", "c", "b"]


async def test_reduced_slots_evict_with_next_memory(mind: World) -> None:
    for content in "abcd":
        await keep(mind, content)
    smaller = with_slots(mind, 2)

    assert len(await contents(smaller)) == 2
    await keep(smaller, "e")

    assert len(await contents(smaller)) == 2
    assert "e" in await contents(smaller)
    assert len(await mind.rows(types=("working",))) == 2


async def test_added_slots_are_used(mind: World) -> None:
    larger = with_slots(mind, 6)
    for content in "abcdefg":
        await keep(larger, content)

    assert await contents(larger) == list("gfedcb")


async def test_needs_the_working_type(world: World) -> None:
    with pytest.raises(RequestInvalid, match=r"spec\.types") as refused:
        await keep(world, "a")

    assert [error.field for error in refused.value.errors] == ["type"]
    assert await contents(world) == []


async def test_open_type_list_allows_working_memory(world: World) -> None:
    world.set_ranking(replace(EVERYTHING, types=()))
    await keep(world, "a")
    await world.add("stored", type="working", session_id="s")
    await world.add("lasting", type="note", session_id="s")

    before = await contents(world)
    await world.working.end_session(world.agent, SESSION)

    assert before == ["a"]
    assert await world.heads() == ["lasting"]


async def test_cannot_be_superseded(mind: World) -> None:
    kept = await keep(mind, "a")

    outcome = await mind.try_add("b", supersedes=kept.record.id)

    assert isinstance(outcome, Conflict)
    assert await contents(mind) == ["a"]


async def test_deletion_frees_the_slot(mind: World) -> None:
    for content in "abcd":
        kept = await keep(mind, content)
    await delete_head(mind.agent, kept.record.id, user_id="u")

    again = await keep(mind, "e")

    assert again.evicted is None
    assert await contents(mind) == ["e", "c", "b", "a"]


async def test_session_end_removes_its_memories_only(mind: World) -> None:
    for content in "ab":
        await keep(mind, content)
    await keep(mind, "other session", Session("u", "t"))
    await keep(mind, "other user", Session("v", "s"))
    await mind.add("stored", type="working", session_id="s")
    await mind.add("newer", type="working", session_id="s", supersedes=await mind.add("older", session_id="s"))
    await mind.add("lasting", session_id="s")

    first = await mind.working.end_session(mind.agent, SESSION)
    again = await mind.working.end_session(mind.agent, SESSION)

    assert (dict(first.counts), dict(again.counts)) == ({"working": 4}, {})
    assert sorted(await mind.heads()) == ["lasting", "older", "other session"]
    assert await mind.heads("v") == ["other user"]


async def test_spec_defines_session_types(mind: World) -> None:
    lasting = MemoryType("note", half_life_days=1, ttl=Ttl("Session"))
    mind.set_ranking(replace(RANKING, types=(*RANKING.types, lasting)))
    await mind.add("note", type="note", session_id="s")
    await mind.add("elsewhere", type="note", session_id="t")

    ended = await mind.working.end_session(mind.agent, SESSION)

    assert dict(ended.counts) == {"note": 1}
    assert await mind.heads() == ["elsewhere"]


@pytest.mark.parametrize("at", range(0, 10, 3))
async def test_interrupted_session_end_is_completed(mind: World, at: int) -> None:
    for content in "ab":
        await keep(mind, content)
    await mind.add("stored", type="working", session_id="s")
    doomed = mind.crash_at(at, "after")

    with pytest.raises(TransientError):
        await doomed.working.end_session(doomed.agent, SESSION)
    await mind.working.end_session(mind.agent, SESSION)

    assert await mind.heads() == []


async def test_concurrent_session_ends_remove_all(mind: World) -> None:
    for content in "abcd":
        await keep(mind, content)
        await mind.add(f"stored {content}", type="working", session_id="s")

    await asyncio.gather(
        *(World(mind.agent, clock=mind.clock).working.end_session(mind.agent, SESSION) for _ in range(4))
    )

    assert await mind.heads() == []


async def test_is_no_duplicate_of_a_stored_memory(mind: World) -> None:
    settings = replace(mind.agent.settings, deduplicate=True)
    careful = World(replace(mind.agent, settings=settings), clock=mind.clock)
    await keep(careful, "a")

    stored = await careful.try_add("a", type="working", session_id="s")
    await keep(careful, "a")

    assert isinstance(stored, StoredMemory)
    assert stored.event == "ADD"
    assert len(await careful.rows(types=("working",))) == 2
    assert await contents(careful) == ["a"]


async def test_session_can_continue_after_its_end(mind: World) -> None:
    for content in "abcd":
        await keep(mind, content)
    await mind.working.end_session(mind.agent, SESSION)

    kept = await keep(mind, "a")

    assert (kept.event, kept.evicted) == ("ADD", None)
    assert await contents(mind) == ["a"]


async def test_removed_memory_leaves_no_content(mind: World) -> None:
    kept = await keep(mind, "secret words")
    await mind.working.end_session(mind.agent, SESSION)

    (point,) = await mind.agent.store.retrieve(mind.agent.alias, [kept.record.id])

    times = {"updatedAt", "deletedAt", "loggedAt"}
    assert set(point["payload"]) == {"id", "agentId", "userId", "type", "rev", "pending"} | times


async def test_keywords_are_not_shared_with_neighbours(qdrant_url: str) -> None:
    async with reuse_world(qdrant_url, ranking=RANKING, keyword=KeywordSource(language="english", window=2)) as world:
        await keep(world, "the heron waits")
        after = await world.add("plain talk", session_id="s")
        await world.working.end_session(world.agent, SESSION)
        kept = await keep(world, "an otter swims")
        await session_keywords.sweep(world.agent)

        points = await world.agent.store.retrieve(world.agent.alias, [after, kept.record.id])

        assert [key for point in points for key in ("windowIds", "windowDue") if point["payload"].get(key)] == []
        body = {"filter": {"must": [{"has_vector": "agentmemory_keyword"}]}, "limit": 10}
        found, _ = await world.agent.store.scroll(world.agent.alias, body)
        assert {point["id"] for point in found} == {after, kept.record.id}


async def test_slot_taken_midway_is_respected(mind: World) -> None:
    for content in "abcd":
        await keep(mind, content)
    await mind.working.end_session(mind.agent, SESSION)

    store: Any = InterleavedStore(mind.agent.store, Event(writes, lambda: keep(mind, "theirs")))
    await keep(World(replace(mind.agent, store=store), clock=mind.clock), "ours")

    assert store.is_over
    assert sorted(await contents(mind)) == ["ours", "theirs"]
