"""Keyword texts over a real engine: each holds the two memories before it in its session, come what may."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories import chains, session_keywords
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.rules.record import ORDER_KEY, WINDOW_DUE_KEY, WINDOW_KEY
from agentmemory_operator.memories.session_keywords import PAGE
from agentmemory_operator.memories.stored_memories import delete_head, read_memory
from tests.support.engine.agents import World, add_keyword, open_world, vector_of
from tests.support.engine.interleaved_store import CrashingStore, Moment

pytestmark = pytest.mark.usefixtures("keeps_vectors")

DAY_MS = 86_400_000
SOURCE = KeywordSource(language="english", window=2)


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with open_world(qdrant_url, keyword=SOURCE) as world:
        yield world


async def found_by(world: World, word: str) -> set[str]:
    """Return the contents of the memories whose keyword text has the word, those that do not answer included."""
    query = {"text": word, "model": "qdrant/bm25", "options": {"language": "english"}}
    body = {"query": query, "using": KEYWORD_VECTOR, "limit": 100, "with_payload": True}
    return {point["payload"].get("content", "") for point in await world.agent.store.query(world.agent.alias, body)}


async def marked(world: World) -> int:
    return await world.agent.store.count(
        world.agent.alias, {"must": [{"key": WINDOW_DUE_KEY, "match": {"value": True}}]}
    )


async def say(world: World, *contents: str, session_id: str | None = "s", **more: Any) -> list[str]:
    """Store memories one after the other, a second apart; return their ids."""
    ids = []
    for content in contents:
        ids.append(await world.add(content, session_id=session_id, **more))
        world.clock.move(ms=1000)
    return ids


async def test_a_memory_is_found_by_the_words_of_the_two_before_it_in_its_session(world: World) -> None:
    await say(world, "apple", "pear", "plum", "cherry")

    assert await found_by(world, "apple") == {"apple", "pear", "plum"}
    assert await marked(world) == 0


async def test_another_session_and_another_user_are_no_neighbours(world: World) -> None:
    await say(world, "apple")
    await say(world, "pear", session_id="other")
    await say(world, "plum", user_id="v")
    await say(world, "cherry", session_id=None)

    assert await found_by(world, "apple") == {"apple"}


async def test_a_memory_is_found_by_its_day(world: World) -> None:
    await world.add("apple", created_at=19_485 * DAY_MS)

    assert await found_by(world, "8 May 2023") == {"apple"}


async def test_memories_of_one_request_stand_in_its_order(world: World) -> None:
    contents = [f"word{number}" for number in range(9)]
    memories = [IncomingMemory(user_id="u", content=c, vector=vector_of(c), session_id="s") for c in contents]

    await world.remember.store(world.agent, memories)
    world.clock.move(ms=1)
    await say(world, "last")

    assert await found_by(world, "word4") == {"word4", "word5", "word6"}
    assert await found_by(world, "word7") == {"word7", "word8", "last"}
    assert await marked(world) == 0


async def test_memories_of_one_time_that_came_one_by_one_stand_in_one_order(world: World) -> None:
    """The engine orders them by time alone and cuts where it likes."""
    for number in range(8):
        await world.add(f"word{number}", session_id="s", created_at=1000)
        world.clock.move(ms=1)

    points, _ = await world.agent.store.scroll(world.agent.alias, {"limit": 100, "with_payload": True})

    ordered = sorted((point["payload"] for point in points), key=lambda row: (row[ORDER_KEY], row["id"]))
    ids = [row["id"] for row in ordered]
    assert [row.get(WINDOW_KEY, []) for row in ordered] == [ids[max(0, n - 2) : n] for n in range(8)]


async def test_a_late_memory_changes_the_texts_of_the_two_after_it(world: World) -> None:
    await say(world, "apple", "pear", "plum", "cherry", "grape")
    created = world.clock.now_ms() - 4_500

    await world.add("quince", session_id="s", created_at=created)

    assert await found_by(world, "quince") == {"quince", "pear", "plum"}
    assert await found_by(world, "apple") == {"apple", "quince", "pear"}
    assert await found_by(world, "pear") == {"pear", "plum", "cherry"}
    assert await marked(world) == 0


async def test_a_corrected_memory_is_no_more_in_the_texts_after_it(world: World) -> None:
    _, second, *_ = await say(world, "apple", "pear", "plum", "cherry")

    await say(world, "melon", supersedes=second)

    assert await found_by(world, "pear") == {"pear"}
    assert await found_by(world, "apple") == {"apple", "pear", "plum", "cherry"}
    assert await found_by(world, "plum") == {"plum", "cherry", "melon"}
    assert await marked(world) == 0


async def test_a_deleted_memory_leaves_nothing_in_its_neighbours(world: World) -> None:
    _, second, *_ = await say(world, "apple", "pear", "plum", "cherry")

    await delete_head(world.agent, second, user_id="u")

    assert await found_by(world, "pear") == set()
    assert await found_by(world, "apple") == {"apple", "plum", "cherry"}
    assert await marked(world) == 0


async def test_a_deleted_memory_leaves_nothing_in_superseded_neighbours_either(world: World) -> None:
    first, second = await say(world, "apple", "pear")
    await say(world, "plum", supersedes=second)

    await delete_head(world.agent, first, user_id="u")

    assert await found_by(world, "apple") == set()


async def test_a_correction_that_is_deleted_brings_the_first_version_back_into_the_texts(world: World) -> None:
    first, *_ = await say(world, "apple", "pear", "plum")
    (third,) = await say(world, "quince", supersedes=first)

    await delete_head(world.agent, third, user_id="u")

    assert await found_by(world, "apple") == {"apple", "pear", "plum"}
    assert await found_by(world, "quince") == set()


async def test_the_rest_of_a_rewritten_memory_stays(world: World) -> None:
    first, second = await say(world, "apple", "pear", importance=0.9, tags=("fruit",), metadata={"ticket": 7})
    before = await read_memory(world.agent, second, user_id="u")

    await delete_head(world.agent, first, user_id="u")

    after = await read_memory(world.agent, second, user_id="u")
    assert replace(after, rev=before.rev, updated_at=before.updated_at) == before
    near = {"query": vector_of("pear"), "limit": 1, "with_payload": True}
    [nearest] = await world.agent.store.query(world.agent.alias, near)
    assert (nearest["payload"]["content"], nearest["score"]) == ("pear", pytest.approx(1, abs=1e-5))


def crashes() -> Iterator[tuple[int, Moment]]:
    """Every point of a write or a deletion at which a process may die; there are no more than 16 calls in one.

    To die before a call and to die after the one before it leaves the same points.
    """
    yield 0, "before"
    for call in range(16):
        yield call, "after"


@pytest.mark.parametrize("action", ["late", "correct", "delete"])
async def test_the_sweep_finishes_what_a_crash_at_any_call_left(world: World, action: str) -> None:
    for number, (call, moment) in enumerate(crashes()):
        session = f"s{number}"
        ids = [
            await world.add(f"{word}{number}", session_id=session, user_id="u") for word in ("apple", "pear", "plum")
        ]
        world.clock.move(ms=1000)
        await crash_in(world, action, ids, CrashingStore(world.agent.store, call, moment), session=session)
    world.clock.move(ms=60_000)

    await chains.sweep(world.agent)
    world.clock.move(ms=60_000)
    await session_keywords.sweep(world.agent)

    await expect_windows(world)


async def crash_in(world: World, action: str, ids: list[str], store: CrashingStore, *, session: str) -> None:
    """Correct, delete or precede the second of a session's memories in a process that dies."""
    dying = replace(world.agent, store=store)
    try:
        if action == "delete":
            await delete_head(dying, ids[1], user_id="u")
            return
        first = await read_memory(world.agent, ids[0], user_id="u")
        more: dict[str, Any] = {"created_at": first.created_at - 500} if action == "late" else {"supersedes": ids[1]}
        new = IncomingMemory(user_id="u", content="quince", vector=vector_of("quince"), session_id=session, **more)
        await world.remember.store(dying, [new])
    except AgentMemoryError:
        return


async def expect_windows(world: World) -> None:
    """Each memory that is there holds exactly the two members before it, and nothing is left marked."""
    points, _ = await world.agent.store.scroll(world.agent.alias, {"limit": 1000, "with_payload": True})
    rows = [point["payload"] for point in points if "content" in point["payload"]]
    assert rows
    for row in rows:
        members = [
            other
            for other in rows
            if other["sessionId"] == row["sessionId"] and not other.get("supersededById") and not other.get("pending")
        ]
        before = sorted((other[ORDER_KEY], other["id"]) for other in members)
        expected = [id_ for place, id_ in before if (place, id_) < (row[ORDER_KEY], row["id"])][-2:]
        assert row.get(WINDOW_KEY, []) == expected
    assert await marked(world) == 0


async def test_memories_from_before_there_were_keywords_get_theirs(qdrant_url: str) -> None:
    async with open_world(qdrant_url) as world:
        await say(world, "apple", "pear", "plum")
        await say(world, "cherry", session_id=None)
        memories = [IncomingMemory(user_id="v", content=f"w{n}", vector=vector_of(n)) for n in range(PAGE + 5)]
        await world.remember.store(world.agent, memories)
        await add_keyword(qdrant_url, world.agent.settings, SOURCE)
        world.agent = replace(world.agent, keyword=SOURCE)

        filled = [await session_keywords.sweep(world.agent) for _ in range(2)]

        assert filled == [PAGE + 9, 0]
        assert await found_by(world, "apple") == {"apple", "pear", "plum"}
        assert await found_by(world, "cherry") == {"cherry"}
        assert await found_by(world, "w104") == {"w104"}
        assert await marked(world) == 0


async def test_an_agent_without_keywords_does_nothing_for_them(qdrant_url: str) -> None:
    async with open_world(qdrant_url) as world:
        store = CrashingStore(world.agent.store, 1000)
        world.agent = replace(world.agent, store=store)  # type: ignore[arg-type]

        await say(world, "apple")

        assert store.calls == 1


async def test_a_memory_without_a_session_is_stored_in_one_call(world: World) -> None:
    store = CrashingStore(world.agent.store, 1000)
    world.agent = replace(world.agent, store=store)  # type: ignore[arg-type]

    await say(world, "apple", session_id=None)

    assert store.calls == 1


async def test_many_writers_in_one_session_leave_no_stale_text(world: World) -> None:
    """All of one time, others deleted and corrected meanwhile; the sweep may find some left."""
    first = await say(world, "apple", "pear", "plum", "cherry")

    await asyncio.gather(
        *(world.try_add(f"word{number}", session_id="s") for number in range(10)),
        delete_head(world.agent, first[1], user_id="u"),
        world.try_add("quince", session_id="s", supersedes=first[2]),
        world.try_add("late", session_id="s", created_at=world.clock.now_ms() - 3_500),
    )
    world.clock.move(ms=60_000)
    await session_keywords.sweep(world.agent)

    assert await found_by(world, "pear") == set()
    await expect_windows(world)
