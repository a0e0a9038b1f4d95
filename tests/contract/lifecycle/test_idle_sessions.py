"""Sessions that are never ended: hidden once idle for too long, then removed by a cleanup."""

import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.errors import NotFound, RequestInvalid, TransientError
from agentmemory_operator.lifecycle.cleanup import Cleanup
from agentmemory_operator.lifecycle.rules.cleanup_rules import SESSION_GRACE_MS, RemovalReason, build_rules
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.chains import SWEEP_AFTER_MS
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.rules.expiry import HOUR_MS, is_expired_by_type
from agentmemory_operator.memories.stored_memories import change_head, read_memory
from agentmemory_operator.memories.transfer.import_batch import ImportLine
from agentmemory_operator.memories.transfer.imports import import_lines
from agentmemory_operator.memories.working_memory import Session, StoredWorkingMemory
from agentmemory_operator.spec.expression.variables import DAY_MS
from agentmemory_operator.spec.memory_types import MemoryType, Ttl
from agentmemory_operator.spec.presets import Lifecycle
from tests.support.engine.agents import EVERYTHING, World, search_request, vector_of
from tests.support.engine.interleaved_store import Event, InterleavedStore, writes
from tests.support.engine.reused_agents import reuse_world

pytestmark = pytest.mark.usefixtures("keeps_vectors")

IDLE = Ttl("Session", idle_hours=24)
RANKING = replace(
    EVERYTHING,
    types=(
        MemoryType("fact", None),
        MemoryType("working", None, ttl=IDLE),
        MemoryType("event", None, ttl=Ttl("SoftUnlessUsed", 90)),
    ),
)
SESSION = Session("u", "s")


@pytest.fixture
async def agent_world(qdrant_url: str) -> AsyncIterator[World]:
    async with reuse_world(qdrant_url, ranking=RANKING) as world:
        yield world


async def keep(world: World, content: str, session: Session = SESSION) -> StoredWorkingMemory:
    memory = IncomingMemory(
        user_id=session.user_id, session_id=session.session_id, content=content, vector=vector_of(content)
    )
    return await world.working.store(world.agent, memory)


async def read_session(world: World, session: Session = SESSION) -> list[str]:
    return [record.content for record in await world.working.read(world.agent, session)]


async def found(world: World, **more: Any) -> list[str]:
    request = search_request(user_id="u", vector=vector_of("query"), top_k=100, **more)
    return sorted(result.record.content for result in (await world.recall.search(world.agent, request)).results)


async def clean(world: World, **limits: Any) -> dict[RemovalReason, int]:
    cleanup = Cleanup(world.clock, min_pause_s=0)
    rules = build_rules(Lifecycle(**limits), world.agent.settings.ranking, world.clock.now_ms())
    outcome = await cleanup.run(world.agent, rules)
    assert outcome.approval_digest is None
    return dict(outcome.counts)


def wait(world: World, hours: float) -> None:
    world.clock.move(ms=round(hours * HOUR_MS))


async def test_idle_session_is_over_for_every_call(agent_world: World) -> None:
    kept = (await keep(agent_world, "kept")).record
    stored = await agent_world.add("stored", type="working", session_id="s")
    await agent_world.add("lasting", type="fact", session_id="s")
    wait(agent_world, 24)

    assert await read_session(agent_world) == []
    assert await found(agent_world) == await agent_world.heads() == ["lasting"]
    assert await found(agent_world, session_id="s", include_superseded=True) == ["lasting"]
    for memory_id in (kept.id, stored):
        with pytest.raises(NotFound):
            await read_memory(agent_world.agent, memory_id, user_id="u")
        with pytest.raises(NotFound):
            await change_head(agent_world.agent, memory_id, {"importance": 1}, user_id="u")
    assert isinstance(await agent_world.try_add("next", type="fact", supersedes=stored), NotFound)
    assert (await agent_world.working.end_session(agent_world.agent, SESSION)).counts == {}


async def test_idle_session_is_over_with_unlisted_types(agent_world: World) -> None:
    agent_world.set_ranking(replace(RANKING, types=(), unlisted=(MemoryType("working", None, ttl=IDLE),)))
    await keep(agent_world, "kept")
    await agent_world.add("stored", type="working", session_id="s")
    await agent_world.add("lasting", type="note", session_id="s")
    refused = await agent_world.try_add("of no session", type="working")
    wait(agent_world, 25)

    assert isinstance(refused, RequestInvalid)
    assert await read_session(agent_world) == []
    assert await found(agent_world) == await agent_world.heads() == ["lasting"]
    assert await clean(agent_world) == {RemovalReason.SESSION: 2}
    assert await agent_world.heads() == ["lasting"]


async def test_cleanup_removes_only_idle_sessions(agent_world: World) -> None:
    for session in (SESSION, Session("u", "t"), Session("v", "s")):
        await keep(agent_world, f"{session.user_id}{session.session_id}", session)
    wait(agent_world, 23)
    await read_session(agent_world, Session("u", "t"))
    wait(agent_world, 1)
    assert await clean(agent_world) == {}, "a clock may be ahead"

    agent_world.clock.move(ms=SESSION_GRACE_MS)

    assert await clean(agent_world) == {RemovalReason.SESSION: 2}
    assert await agent_world.heads() == ["ut"]
    assert await clean(agent_world) == {}


async def test_removal_limit_does_not_apply(agent_world: World) -> None:
    for number in range(40):
        await agent_world.add(f"m{number}", type="working", session_id=f"s{number}")
    wait(agent_world, 25)

    assert await clean(agent_world, max_removal_percent=1) == {RemovalReason.SESSION: 40}


@pytest.mark.parametrize("use", ["read", "searched", "read by id", "kept", "stored"])
async def test_any_use_keeps_the_session(agent_world: World, use: str) -> None:
    first = (await keep(agent_world, "first")).record
    other = await agent_world.add("other", type="working", session_id="s")
    wait(agent_world, 23)

    match use:
        case "read":
            await read_session(agent_world)
        case "searched":
            request = search_request(user_id="u", vector=vector_of("first"), top_k=1)
            assert len((await agent_world.recall.search(agent_world.agent, request)).results) == 1
            await agent_world.counts.flush()
        case "read by id":
            await agent_world.working.mark_used(
                agent_world.agent, await read_memory(agent_world.agent, other, user_id="u")
            )
        case "kept":
            await keep(agent_world, "second")
        case _:
            await agent_world.add("second", type="working", session_id="s")
    wait(agent_world, 23)

    ids = {row.id for row in await agent_world.rows(types=("working",))}
    assert ids >= {first.id, other}
    wait(agent_world, 1)
    assert await agent_world.heads() == []


async def test_read_just_before_the_end_keeps_the_session(agent_world: World) -> None:
    """A read extends the session for other processes too."""
    await keep(agent_world, "a")
    agent_world.clock.move(ms=24 * HOUR_MS - 1)

    assert await read_session(agent_world) == ["a"]
    agent_world.clock.move(ms=1)

    assert await read_session(World(agent_world.agent, clock=agent_world.clock)) == ["a"]


async def test_use_is_not_recorded_on_memory_hidden_by_age(agent_world: World) -> None:
    """`working` may have a time to live of its own, which depends on importance and accesses."""
    working = MemoryType("working", None, ttl=Ttl("SoftUnlessUsed", 10, 0.75))
    agent_world.set_ranking(replace(RANKING, types=(working,)))
    old = (await keep(agent_world, "old")).record.id
    wait(agent_world, 11 * 24)

    new = (await keep(agent_world, "new")).record.id
    wait(agent_world, 1)
    await read_session(agent_world)

    points = await agent_world.agent.store.retrieve(agent_world.agent.alias, [old, new], keys=["rev"])
    assert {point["id"]: point["payload"]["rev"] for point in points} == {old: 1, new: 2}


async def test_search_before_the_end_counts_if_noted_later(agent_world: World) -> None:
    await agent_world.add("a", type="working", session_id="s")
    agent_world.clock.move(ms=24 * HOUR_MS - 1)
    assert await found(agent_world) == ["a"]
    agent_world.clock.move(ms=30_000)
    assert await clean(agent_world) == {}

    await agent_world.counts.flush()

    assert await found(agent_world) == ["a"]


async def test_ended_memories_stay_hidden_in_new_session(agent_world: World) -> None:
    for content in "abcd":
        await keep(agent_world, content)
    await agent_world.add("stored", type="working", session_id="s")
    wait(agent_world, 24)

    kept = await keep(agent_world, "e")

    assert (kept.event, kept.evicted) == ("ADD", None)
    assert await read_session(agent_world) == await found(agent_world) == ["e"]
    wait(agent_world, 1)
    assert await clean(agent_world) == {RemovalReason.SESSION: 4}
    assert await read_session(agent_world) == ["e"]


async def test_future_created_at_does_not_extend_session(agent_world: World) -> None:
    ahead = agent_world.clock.now_ms() + 3_000 * DAY_MS
    await agent_world.add("ahead", type="working", session_id="s", created_at=ahead)
    await agent_world.add("beside", type="working", session_id="s")
    assert await found(agent_world) == ["ahead", "beside"]

    wait(agent_world, 24)

    assert await found(agent_world) == []
    agent_world.clock.move(ms=SESSION_GRACE_MS)
    assert await clean(agent_world) == {RemovalReason.SESSION: 2}


async def test_past_created_at_does_not_end_session(agent_world: World) -> None:
    await keep(agent_world, "now")
    back = agent_world.clock.now_ms() - 900 * DAY_MS

    await agent_world.add("back", type="working", session_id="s", created_at=back)
    await agent_world.add("alone", type="working", session_id="t", created_at=back)

    assert await found(agent_world) == ["back", "now"]


async def test_unstamped_memory_ends_by_its_date(agent_world: World) -> None:
    """Earlier versions wrote no `sessionUsedAt`."""
    now = agent_world.clock.now_ms()
    dates = {"old": now - 25 * HOUR_MS, "new": now - 23 * HOUR_MS, "ahead": now + HOUR_MS, "never": now + 900 * DAY_MS}
    ids = {name: await agent_world.add(name, type="working", session_id=name) for name in dates}
    for name, created_at in dates.items():
        row = {"createdAt": created_at, "sessionUsedAt": None}
        await agent_world.agent.store.set_payload(agent_world.agent.alias, row, {"must": [{"has_id": [ids[name]]}]})

    assert await found(agent_world) == ["ahead", "new"]
    await agent_world.working.mark_used(
        agent_world.agent, await read_memory(agent_world.agent, ids["new"], user_id="u")
    )
    wait(agent_world, 23)

    assert await found(agent_world) == ["ahead", "new"]
    wait(agent_world, 2)
    assert await found(agent_world) == []


async def test_engine_filter_matches_is_expired_by_type(agent_world: World) -> None:
    now = agent_world.clock.now_ms()
    hours = (-30, -24, -23.99, 0, 1, 24, 25)
    cases = list(itertools.product(hours, (None, *hours[:4])))
    ids = [await agent_world.add(f"{case}", type="working", session_id="s") for case in cases]
    for memory_id, (created, used) in zip(ids, cases, strict=True):
        row = {
            "createdAt": now + round(created * HOUR_MS),
            "sessionUsedAt": None if used is None else now + round(used * HOUR_MS),
        }
        await agent_world.agent.store.set_payload(agent_world.agent.alias, row, {"must": [{"has_id": [memory_id]}]})
    points = await agent_world.agent.store.retrieve(agent_world.agent.alias, ids)

    alive = {point["payload"]["content"] for point in points if not is_expired_by_type(point["payload"], IDLE, now)}

    assert set(await agent_world.heads()) == alive
    assert 0 < len(alive) < len(cases)


async def test_imported_memories_end_with_their_session(agent_world: World) -> None:
    def line(content: str, hours: float, session: str | None, **more: Any) -> ImportLine:
        created_at = agent_world.clock.now_ms() - round(hours * HOUR_MS)
        memory = IncomingMemory(
            user_id="u",
            content=content,
            type="working",
            session_id=session,
            vector=vector_of(content),
            created_at=created_at,
        )
        return ImportLine(memory=memory, **more)

    lines = [
        line("of 900 days ago", 900 * 24, "old"),
        line("two days", 48, "live"),
        line("an hour", 1, "live"),
        line("read since", 48, "read", last_accessed_at=agent_world.clock.now_ms() - HOUR_MS),
        line("of no session", 1, None),
    ]

    outcomes = await import_lines(agent_world.agent, lines, can_restore_erased=False)

    assert set(outcomes) == {"imported"}
    assert await found(agent_world) == ["an hour", "of no session", "read since", "two days"]
    wait(agent_world, 25)
    assert await clean(agent_world) == {RemovalReason.SESSION: 5}


async def test_session_memory_requires_session_id(agent_world: World) -> None:
    refused = await agent_world.try_add("a", type="working")

    assert isinstance(refused, RequestInvalid)
    assert [error.field for error in refused.errors] == ["session_id"]
    assert "set session_id" in str(refused)
    agent_world.set_ranking(replace(RANKING, types=(MemoryType("working", None, ttl=Ttl("Session")),)))
    await agent_world.add("of an object whose sessions do not end by themselves", type="working")


async def test_superseded_memory_answers_after_cleanup(agent_world: World) -> None:
    old = await agent_world.add("old", type="fact")
    lasting = await agent_world.add("lasting", type="fact", supersedes=old)
    draft = await agent_world.add("draft", type="working", session_id="s", supersedes=lasting)
    await agent_world.add("second draft", type="working", session_id="s", supersedes=draft)
    wait(agent_world, 25)
    assert await agent_world.heads() == []

    assert await clean(agent_world) == {RemovalReason.SESSION: 2}

    assert await agent_world.heads() == ["lasting"]
    assert await clean(agent_world) == {}


@pytest.mark.parametrize("at", range(0, 10, 2))
async def test_next_cleanup_completes_a_killed_one(agent_world: World, at: int) -> None:
    lasting = await agent_world.add("lasting", type="fact")
    await agent_world.add("draft", type="working", session_id="s", supersedes=lasting)
    await keep(agent_world, "kept")
    wait(agent_world, 25)
    doomed = agent_world.crash_at(at)

    with pytest.raises(TransientError):
        await clean(doomed)
    await clean(agent_world)
    agent_world.clock.move(ms=SWEEP_AFTER_MS + 1)
    await chains.sweep(agent_world.agent)

    assert await agent_world.heads() == ["lasting"]
    assert await agent_world.rows(types=("working",)) == []


async def test_use_stamp_keeps_concurrent_writes(agent_world: World) -> None:
    for content in "abc":
        await keep(agent_world, content)
    wait(agent_world, 2)
    store: Any = InterleavedStore(agent_world.agent.store, Event(writes, lambda: keep(agent_world, "d")))

    await read_session(World(replace(agent_world.agent, store=store), clock=agent_world.clock))

    assert store.is_over
    assert sorted(await read_session(agent_world)) == ["a", "b", "c", "d"]


async def test_hidden_memories_are_removed_after_approval(agent_world: World) -> None:
    for number in range(12):
        await agent_world.add(f"old{number}", type="event", created_at=agent_world.clock.now_ms() - 89 * DAY_MS)
    used = await agent_world.add("used", type="event", created_at=agent_world.clock.now_ms() - 89 * DAY_MS)
    await agent_world.agent.store.set_payload(
        agent_world.agent.alias, {"accessCount": 1}, {"must": [{"has_id": [used]}]}
    )
    wait(agent_world, 24 * 2)
    assert await agent_world.heads() == ["used"]
    wait(agent_world, 24 * 88)
    assert await clean(agent_world, remove_hidden_days=90) == {}
    wait(agent_world, 24)
    assert await clean(agent_world) == {}

    cleanup = Cleanup(agent_world.clock, min_pause_s=0)
    rules = build_rules(
        Lifecycle(remove_hidden_days=90), agent_world.agent.settings.ranking, agent_world.clock.now_ms()
    )
    outcome = await cleanup.run(agent_world.agent, rules)

    assert outcome.approval_digest is not None
    assert outcome.counts == {RemovalReason.HIDDEN: 12}
    assert await clean(agent_world, remove_hidden_days=90, max_removal_percent=100) == {RemovalReason.HIDDEN: 12}
    assert await agent_world.heads() == ["used"]


async def test_memory_stored_hidden_is_kept_as_long(agent_world: World) -> None:
    await agent_world.add("of years ago", type="event", created_at=agent_world.clock.now_ms() - 900 * DAY_MS)

    assert await clean(agent_world, remove_hidden_days=90) == {}
    wait(agent_world, 24 * 90)
    assert await clean(agent_world, remove_hidden_days=90) == {RemovalReason.HIDDEN: 1}
