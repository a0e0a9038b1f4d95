"""Keyword texts on a real engine: each contains the two previous memories of its session."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories import chains, session_keywords
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.rules.record import ORDER_KEY, WINDOW_DUE_KEY, WINDOW_KEY
from agentmemory_operator.memories.session_keywords import PAGE
from agentmemory_operator.memories.stored_memories import delete_head, read_memory
from tests.support.engine.agents import World, add_keyword, set_strict_mode, vector_of
from tests.support.engine.interleaved_store import CrashingStore, Moment
from tests.support.engine.reused_agents import reuse_world

pytestmark = pytest.mark.usefixtures("keeps_vectors")

DAY_MS = 86_400_000
SOURCE = KeywordSource(language="english", window=2)


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with reuse_world(qdrant_url, keyword=SOURCE) as world:
        yield world


async def find_by(world: World, word: str) -> set[str]:
    """Return the contents of the memories whose keyword text contains the word, hidden ones included."""
    query = {"text": word, "model": "qdrant/bm25", "options": {"language": "english"}}
    body = {"query": query, "using": KEYWORD_VECTOR, "limit": 100, "with_payload": True}
    return {point["payload"].get("content", "") for point in await world.agent.store.query(world.agent.alias, body)}


async def count_stale(world: World) -> int:
    return await world.agent.store.count(
        world.agent.alias, {"must": [{"key": WINDOW_DUE_KEY, "match": {"value": True}}]}
    )


async def add_in_session(world: World, *contents: str, session_id: str | None = "s", **more: Any) -> list[str]:
    """Store memories one second apart; return their ids."""
    ids = []
    for content in contents:
        ids.append(await world.add(content, session_id=session_id, **more))
        world.clock.move(ms=1000)
    return ids


async def test_text_includes_two_previous_memories(world: World) -> None:
    await add_in_session(world, "apple", "pear", "plum", "cherry")

    assert await find_by(world, "apple") == {"apple", "pear", "plum"}
    assert await count_stale(world) == 0


async def test_other_sessions_and_users_are_excluded(world: World) -> None:
    await add_in_session(world, "apple")
    await add_in_session(world, "pear", session_id="other")
    await add_in_session(world, "plum", user_id="v")
    await add_in_session(world, "cherry", session_id=None)

    assert await find_by(world, "apple") == {"apple"}


async def test_memory_is_found_by_its_date(world: World) -> None:
    await world.add("apple", created_at=19_485 * DAY_MS)

    assert await find_by(world, "8 May 2023") == {"apple"}


async def test_request_order_is_kept(world: World) -> None:
    contents = [f"word{number}" for number in range(9)]
    memories = [IncomingMemory(user_id="u", content=c, vector=vector_of(c), session_id="s") for c in contents]

    await world.remember.store(world.agent, memories)
    world.clock.move(ms=1)
    await add_in_session(world, "last")

    assert await find_by(world, "word4") == {"word4", "word5", "word6"}
    assert await find_by(world, "word7") == {"word7", "word8", "last"}
    assert await count_stale(world) == 0


async def test_order_of_equal_times_is_stable(world: World) -> None:
    """The engine orders memories by time only, so a limit cuts at an arbitrary one of equal times."""
    for number in range(8):
        await world.add(f"word{number}", session_id="s", created_at=1000)
        world.clock.move(ms=1)

    points, _ = await world.agent.store.scroll(world.agent.alias, {"limit": 100, "with_payload": True})

    ordered = sorted((point["payload"] for point in points), key=lambda row: (row[ORDER_KEY], row["id"]))
    ids = [row["id"] for row in ordered]
    assert [row.get(WINDOW_KEY, []) for row in ordered] == [ids[max(0, n - 2) : n] for n in range(8)]


async def test_equal_times_keep_earlier_texts(world: World) -> None:
    """A memory of the same time, with a lower id, precedes the new one and keeps its two neighbours."""
    for number in range(8):
        created_at = min(1000 + number, 1002)
        await world.add(f"word{number}", session_id="s", created_at=created_at, idempotency_key=f"key{number}")
        world.clock.move(ms=1)

    await expect_windows(world)


async def test_late_memory_updates_the_next_two(world: World) -> None:
    await add_in_session(world, "apple", "pear", "plum", "cherry", "grape")
    created = world.clock.now_ms() - 4_500

    await world.add("quince", session_id="s", created_at=created)

    assert await find_by(world, "quince") == {"quince", "pear", "plum"}
    assert await find_by(world, "apple") == {"apple", "quince", "pear"}
    assert await find_by(world, "pear") == {"pear", "plum", "cherry"}
    assert await count_stale(world) == 0


async def test_late_memories_of_several_rules_rewrite_once(world: World) -> None:
    """A turn with an idempotency key is written and checked before a memory that is compared by its content."""
    await add_in_session(world, "apple", "pear", "plum", "cherry")
    world.agent = replace(world.agent, settings=replace(world.agent.settings, deduplicate=True))
    late = IncomingMemory(
        user_id="u",
        content="quince",
        vector=vector_of("quince"),
        session_id="s",
        created_at=world.clock.now_ms() - 3_500,
        idempotency_key="key",
        is_turn=True,
    )
    other = IncomingMemory(user_id="u", content="melon", vector=vector_of("melon"), session_id="other")

    await world.remember.store(world.agent, [late, other])

    assert await find_by(world, "quince") == {"quince", "pear", "plum"}
    await expect_windows(world)


async def test_superseded_memory_leaves_later_texts(world: World) -> None:
    _, second, *_ = await add_in_session(world, "apple", "pear", "plum", "cherry")

    await add_in_session(world, "melon", supersedes=second)

    assert await find_by(world, "pear") == {"pear"}
    assert await find_by(world, "apple") == {"apple", "pear", "plum", "cherry"}
    assert await find_by(world, "plum") == {"plum", "cherry", "melon"}
    assert await count_stale(world) == 0


async def test_deleted_memory_leaves_later_texts(world: World) -> None:
    _, second, *_ = await add_in_session(world, "apple", "pear", "plum", "cherry")

    await delete_head(world.agent, second, user_id="u")

    assert await find_by(world, "pear") == set()
    assert await find_by(world, "apple") == {"apple", "plum", "cherry"}
    assert await count_stale(world) == 0


async def test_deleted_memory_leaves_superseded_texts(world: World) -> None:
    first, second = await add_in_session(world, "apple", "pear")
    await add_in_session(world, "plum", supersedes=second)

    await delete_head(world.agent, first, user_id="u")

    assert await find_by(world, "apple") == set()


async def test_deleted_successor_restores_old_text(world: World) -> None:
    first, *_ = await add_in_session(world, "apple", "pear", "plum")
    (third,) = await add_in_session(world, "quince", supersedes=first)

    await delete_head(world.agent, third, user_id="u")

    assert await find_by(world, "apple") == {"apple", "pear", "plum"}
    assert await find_by(world, "quince") == set()


async def test_update_keeps_other_fields_and_vectors(world: World) -> None:
    first, second = await add_in_session(
        world, "apple", "pear", importance=0.9, tags=("fruit",), metadata={"ticket": 7}
    )
    before = await read_memory(world.agent, second, user_id="u")

    await delete_head(world.agent, first, user_id="u")

    after = await read_memory(world.agent, second, user_id="u")
    assert replace(after, rev=before.rev, updated_at=before.updated_at) == before
    near = {"query": vector_of("pear"), "limit": 1, "with_payload": True}
    [nearest] = await world.agent.store.query(world.agent.alias, near)
    assert (nearest["payload"]["content"], nearest["score"]) == ("pear", pytest.approx(1, abs=1e-5))


def crashes() -> Iterator[tuple[int, Moment]]:
    """Yield every point at which a process can die in a write or a deletion, which makes at most 16 calls.

    A crash before a call equals a crash after the previous call.
    """
    yield 0, "before"
    for call in range(16):
        yield call, "after"


@pytest.mark.parametrize("action", ["late", "several late", "correct", "delete"])
async def test_sweep_repairs_texts_after_any_crash(world: World, action: str) -> None:
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
    """Supersede or delete the second memory of a session, or insert an earlier one, in a process that dies."""
    dying = replace(world.agent, store=store)
    try:
        if action == "delete":
            await delete_head(dying, ids[1], user_id="u")
            return
        first = await read_memory(world.agent, ids[0], user_id="u")
        more: dict[str, Any] = {"supersedes": ids[1]} if action == "correct" else {"created_at": first.created_at - 500}
        new = [IncomingMemory(user_id="u", content="quince", vector=vector_of("quince"), session_id=session, **more)]
        if action == "several late":
            new.append(replace(new[0], content="melon", created_at=first.created_at + 500))
        await world.remember.store(dying, new)
    except AgentMemoryError:
        return


async def expect_windows(world: World) -> None:
    """Assert that each memory refers to exactly the two before it and that none is marked as stale."""
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
    assert await count_stale(world) == 0


async def test_enabling_keywords_fills_existing_memories(qdrant_url: str) -> None:
    async with reuse_world(qdrant_url) as world:
        await add_in_session(world, "apple", "pear", "plum")
        await add_in_session(world, "cherry", session_id=None)
        memories = [IncomingMemory(user_id="v", content=f"w{n}", vector=vector_of(n)) for n in range(PAGE + 5)]
        await world.remember.store(world.agent, memories)
        await add_keyword(qdrant_url, world.agent.settings, SOURCE)
        world.agent = replace(world.agent, keyword=SOURCE)

        filled = [await session_keywords.sweep(world.agent) for _ in range(2)]

        assert filled == [PAGE + 9, 0]
        assert await find_by(world, "apple") == {"apple", "pear", "plum"}
        assert await find_by(world, "cherry") == {"cherry"}
        assert await find_by(world, "w104") == {"w104"}
        assert await count_stale(world) == 0


async def test_agent_without_keywords_makes_one_call(qdrant_url: str) -> None:
    async with reuse_world(qdrant_url) as world:
        store = CrashingStore(world.agent.store, 1000)
        world.agent = replace(world.agent, store=store)  # type: ignore[arg-type]

        await add_in_session(world, "apple")

        assert store.calls == 1


async def test_memory_without_session_makes_one_call(world: World) -> None:
    store = CrashingStore(world.agent.store, 1000)
    world.agent = replace(world.agent, store=store)  # type: ignore[arg-type]

    await add_in_session(world, "apple", session_id=None)

    assert store.calls == 1


@pytest.mark.parametrize("deduplicates", [False, True])
async def test_calls_do_not_grow_with_sessions(world: World, *, deduplicates: bool) -> None:
    """A batch reads all sessions at once, and rewrites the texts of all later memories at once.

    What shows if a content was stored before, and by whom, is read with them.
    """
    settings = replace(world.agent.settings, deduplicate=deduplicates)
    world.agent = replace(world.agent, settings=settings)
    numbers = []
    for sessions in (2, 20):
        for moment in (5_000, 2_000):
            store = CrashingStore(world.agent.store, 1000)
            agent = replace(world.agent, store=store)  # type: ignore[arg-type]
            memories = [
                IncomingMemory(
                    user_id="u",
                    content=f"word{session} at{moment + more} of{sessions}",
                    vector=vector_of(session),
                    session_id=f"s{session}-of-{sessions}",
                    created_at=world.clock.now_ms() - moment - more,
                )
                for session in range(sessions)
                for more in (0, 9_000)
            ]
            await world.remember.store(agent, memories)
            numbers.append(store.calls)

    assert numbers == [4, 6, 4, 6]
    await expect_windows(world)


async def test_many_sessions_respect_strict_mode(world: World) -> None:
    world.set_ranking(replace(world.agent.settings.ranking, max_batched_searches=16))
    # Other tests share the collection.
    await set_strict_mode(world, enabled=True, search_max_batchsize=16)
    try:
        memories = [
            IncomingMemory(user_id="u", content=f"word{number}", vector=vector_of(number), session_id=f"s{number % 20}")
            for number in range(40)
        ]
        outcomes = await world.remember.store(world.agent, memories)
    finally:
        await set_strict_mode(world, enabled=False)

    assert not [outcome for outcome in outcomes if isinstance(outcome, AgentMemoryError)]
    await expect_windows(world)


async def test_concurrent_writers_leave_no_stale_text(world: World) -> None:
    """Stores at equal times, a deletion and a supersession run concurrently; then the sweep runs."""
    first = await add_in_session(world, "apple", "pear", "plum", "cherry")

    await asyncio.gather(
        *(world.try_add(f"word{number}", session_id="s") for number in range(10)),
        delete_head(world.agent, first[1], user_id="u"),
        world.try_add("quince", session_id="s", supersedes=first[2]),
        world.try_add("late", session_id="s", created_at=world.clock.now_ms() - 3_500),
    )
    world.clock.move(ms=60_000)
    await session_keywords.sweep(world.agent)

    assert await find_by(world, "pear") == set()
    await expect_windows(world)


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.parametrize(
    ("words", "metadata"), [pytest.param(370, 0, id="content"), pytest.param(1, 25_000, id="metadata")]
)
async def test_long_followers_are_rewritten_in_parts(
    world: World, words: int, metadata: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request for all would exceed the limit: a memory contains its own words three times.

    Everything is a 16th of its usual size: Qdrant accepts 32 MiB.
    """
    assert session_keywords.MAX_REQUEST_BYTES < 32 << 20
    monkeypatch.setattr(session_keywords, "MAX_REQUEST_BYTES", session_keywords.MAX_REQUEST_BYTES // 16)
    sizes, send = [], QdrantPoints.batch

    async def measure(store: QdrantPoints, name: str, operations: list[Any], **more: Any) -> Any:
        sizes.append(len(orjson.dumps(operations)))
        return await send(store, name, operations, **more)

    sessions, content, more_data = 70, "apple pear " * words, {"note": "x" * metadata}
    await world.remember.store(
        world.agent,
        [
            IncomingMemory(
                user_id="u",
                content=f"{content}{number} {more}",
                vector=vector_of(number),
                session_id=f"s{number}",
                metadata=more_data,
            )
            for number in range(sessions)
            for more in range(2)
        ],
    )
    store = CrashingStore(world.agent.store, 1000)
    dying = replace(world.agent, store=store)  # type: ignore[arg-type]
    early = world.clock.now_ms() - 5_000

    memories = [
        IncomingMemory(
            user_id="u", content=f"late {number}", vector=vector_of(number), session_id=f"s{number}", created_at=early
        )
        for number in range(sessions)
    ]
    monkeypatch.setattr(QdrantPoints, "batch", measure)
    await world.remember.store(dying, memories)

    assert len(await find_by(world, "late")) == 100
    assert await count_stale(world) == 0
    assert store.calls > 6
    assert max(sizes) < 2 << 20 < sum(sizes)
    await expect_windows(world)
