"""Sessions that nobody ends: over a time after their last use, hidden at once, removed by a cleanup."""

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
from tests.support.engine.agents import EVERYTHING, World, open_world, search_request, vector_of
from tests.support.engine.interleaved_store import Event, InterleavedStore, writes

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
async def mind(qdrant_url: str) -> AsyncIterator[World]:
    async with open_world(qdrant_url, ranking=RANKING) as world:
        yield world


async def keep(world: World, content: str, session: Session = SESSION) -> StoredWorkingMemory:
    memory = IncomingMemory(
        user_id=session.user_id, session_id=session.session_id, content=content, vector=vector_of(content)
    )
    return await world.working.store(world.agent, memory)


async def in_mind(world: World, session: Session = SESSION) -> list[str]:
    return [record.content for record in await world.working.read(world.agent, session)]


async def found(world: World, **more: Any) -> list[str]:
    request = search_request(user_id="u", vector=vector_of("query"), top_k=100, **more)
    return sorted(result.record.content for result in (await world.recall.search(world.agent, request)).results)


async def clean(world: World, **figures: Any) -> dict[RemovalReason, int]:
    cleanup = Cleanup(world.clock, min_rest_s=0)
    rules = build_rules(Lifecycle(**figures), world.agent.settings.ranking, world.clock.now_ms())
    outcome = await cleanup.run(world.agent, rules)
    assert outcome.approval_digest is None
    return dict(outcome.counts)


def wait(world: World, hours: float) -> None:
    world.clock.move(ms=round(hours * HOUR_MS))


async def test_a_session_that_nobody_ends_is_over_for_every_call(mind: World) -> None:
    kept = (await keep(mind, "kept")).record
    stored = await mind.add("stored", type="working", session_id="s")
    await mind.add("lasting", type="fact", session_id="s")
    wait(mind, 24)

    assert await in_mind(mind) == []
    assert await found(mind) == await mind.heads() == ["lasting"]
    assert await found(mind, session_id="s", include_superseded=True) == ["lasting"]
    for memory_id in (kept.id, stored):
        with pytest.raises(NotFound):
            await read_memory(mind.agent, memory_id, user_id="u")
        with pytest.raises(NotFound):
            await change_head(mind.agent, memory_id, {"importance": 1}, user_id="u")
    assert isinstance(await mind.try_add("next", type="fact", supersedes=stored), NotFound)
    assert (await mind.working.end_session(mind.agent, SESSION)).counts == {}


async def test_where_any_type_is_taken_a_session_is_over_too(mind: World) -> None:
    mind.set_ranking(replace(RANKING, types=(), unlisted=(MemoryType("working", None, ttl=IDLE),)))
    await keep(mind, "kept")
    await mind.add("stored", type="working", session_id="s")
    await mind.add("lasting", type="note", session_id="s")
    refused = await mind.try_add("of no session", type="working")
    wait(mind, 25)

    assert isinstance(refused, RequestInvalid)
    assert await in_mind(mind) == []
    assert await found(mind) == await mind.heads() == ["lasting"]
    assert await clean(mind) == {RemovalReason.SESSION: 2}
    assert await mind.heads() == ["lasting"]


async def test_a_cleanup_removes_what_is_over_and_nothing_else(mind: World) -> None:
    for session in (SESSION, Session("u", "t"), Session("v", "s")):
        await keep(mind, f"{session.user_id}{session.session_id}", session)
    wait(mind, 23)
    await in_mind(mind, Session("u", "t"))
    wait(mind, 1)
    assert await clean(mind) == {}, "a clock may be ahead"

    mind.clock.move(ms=SESSION_GRACE_MS)

    assert await clean(mind) == {RemovalReason.SESSION: 2}
    assert await mind.heads() == ["ut"]
    assert await clean(mind) == {}


async def test_more_sessions_than_one_run_may_remove_do_not_stop_it(mind: World) -> None:
    for number in range(40):
        await mind.add(f"m{number}", type="working", session_id=f"s{number}")
    wait(mind, 25)

    assert await clean(mind, max_removal_percent=1) == {RemovalReason.SESSION: 40}


@pytest.mark.parametrize("use", ["read", "searched", "read by id", "kept", "stored"])
async def test_a_use_keeps_the_whole_session(mind: World, use: str) -> None:
    first = (await keep(mind, "first")).record
    other = await mind.add("other", type="working", session_id="s")
    wait(mind, 23)

    match use:
        case "read":
            await in_mind(mind)
        case "searched":
            request = search_request(user_id="u", vector=vector_of("first"), top_k=1)
            assert len((await mind.recall.search(mind.agent, request)).results) == 1
            await mind.counts.flush()
        case "read by id":
            await mind.working.mark_used(mind.agent, await read_memory(mind.agent, other, user_id="u"))
        case "kept":
            await keep(mind, "second")
        case _:
            await mind.add("second", type="working", session_id="s")
    wait(mind, 23)

    ids = {row.id for row in await mind.rows(types=("working",))}
    assert ids >= {first.id, other}
    wait(mind, 1)
    assert await mind.heads() == []


async def test_a_session_read_just_as_it_ends_goes_on(mind: World) -> None:
    """The reader has it in hand: what another process asks a moment later has it too."""
    await keep(mind, "a")
    mind.clock.move(ms=24 * HOUR_MS - 1)

    assert await in_mind(mind) == ["a"]
    mind.clock.move(ms=1)

    assert await in_mind(World(mind.agent, clock=mind.clock)) == ["a"]


async def test_a_search_just_before_the_end_counts_though_it_is_noted_after_it(mind: World) -> None:
    await mind.add("a", type="working", session_id="s")
    mind.clock.move(ms=24 * HOUR_MS - 1)
    assert await found(mind) == ["a"]
    mind.clock.move(ms=30_000)
    assert await clean(mind) == {}

    await mind.counts.flush()

    assert await found(mind) == ["a"]


async def test_what_is_over_stays_over_when_its_session_goes_on(mind: World) -> None:
    for content in "abcd":
        await keep(mind, content)
    await mind.add("stored", type="working", session_id="s")
    wait(mind, 24)

    kept = await keep(mind, "e")

    assert (kept.event, kept.evicted) == ("ADD", None)
    assert await in_mind(mind) == await found(mind) == ["e"]
    wait(mind, 1)
    assert await clean(mind) == {RemovalReason.SESSION: 4}
    assert await in_mind(mind) == ["e"]


async def test_what_is_dated_ahead_ends_like_all_else(mind: World) -> None:
    ahead = mind.clock.now_ms() + 3_000 * DAY_MS
    await mind.add("ahead", type="working", session_id="s", created_at=ahead)
    await mind.add("beside", type="working", session_id="s")
    assert await found(mind) == ["ahead", "beside"]

    wait(mind, 24)

    assert await found(mind) == []
    mind.clock.move(ms=SESSION_GRACE_MS)
    assert await clean(mind) == {RemovalReason.SESSION: 2}


async def test_what_is_dated_back_belongs_to_a_session_that_goes_on(mind: World) -> None:
    await keep(mind, "now")
    back = mind.clock.now_ms() - 900 * DAY_MS

    await mind.add("back", type="working", session_id="s", created_at=back)
    await mind.add("alone", type="working", session_id="t", created_at=back)

    assert await found(mind) == ["back", "now"]


async def test_a_memory_from_before_sessions_were_stamped_ends_by_its_date(mind: World) -> None:
    now = mind.clock.now_ms()
    dates = {"old": now - 25 * HOUR_MS, "new": now - 23 * HOUR_MS, "ahead": now + HOUR_MS, "never": now + 900 * DAY_MS}
    ids = {name: await mind.add(name, type="working", session_id=name) for name in dates}
    for name, created_at in dates.items():
        row = {"createdAt": created_at, "sessionUsedAt": None}
        await mind.agent.store.set_payload(mind.agent.alias, row, {"must": [{"has_id": [ids[name]]}]})

    assert await found(mind) == ["ahead", "new"]
    await mind.working.mark_used(mind.agent, await read_memory(mind.agent, ids["new"], user_id="u"))
    wait(mind, 23)

    assert await found(mind) == ["ahead", "new"]
    wait(mind, 2)
    assert await found(mind) == []


async def test_the_filter_of_the_engine_and_the_test_of_one_memory_agree(mind: World) -> None:
    now = mind.clock.now_ms()
    hours = (-30, -24, -23.99, 0, 1, 24, 25)
    cases = list(itertools.product(hours, (None, *hours[:4])))
    ids = [await mind.add(f"{case}", type="working", session_id="s") for case in cases]
    for memory_id, (created, used) in zip(ids, cases, strict=True):
        row = {
            "createdAt": now + round(created * HOUR_MS),
            "sessionUsedAt": None if used is None else now + round(used * HOUR_MS),
        }
        await mind.agent.store.set_payload(mind.agent.alias, row, {"must": [{"has_id": [memory_id]}]})
    points = await mind.agent.store.retrieve(mind.agent.alias, ids)

    alive = {point["payload"]["content"] for point in points if not is_expired_by_type(point["payload"], IDLE, now)}

    assert set(await mind.heads()) == alive
    assert 0 < len(alive) < len(cases)


async def test_imported_lines_end_with_their_session(mind: World) -> None:
    def line(content: str, hours: float, session: str | None, **more: Any) -> ImportLine:
        created_at = mind.clock.now_ms() - round(hours * HOUR_MS)
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
        line("read since", 48, "read", last_accessed_at=mind.clock.now_ms() - HOUR_MS),
        line("of no session", 1, None),
    ]

    outcomes = await import_lines(mind.agent, lines, brings_back_erased=False)

    assert set(outcomes) == {"imported"}
    assert await found(mind) == ["an hour", "of no session", "read since", "two days"]
    wait(mind, 25)
    assert await clean(mind) == {RemovalReason.SESSION: 5}


async def test_a_memory_that_ends_with_its_session_names_one(mind: World) -> None:
    refused = await mind.try_add("a", type="working")

    assert isinstance(refused, RequestInvalid)
    assert [error.field for error in refused.errors] == ["session_id"]
    assert "set session_id" in str(refused)
    mind.set_ranking(replace(RANKING, types=(MemoryType("working", None, ttl=Ttl("Session")),)))
    await mind.add("of an object whose sessions do not end by themselves", type="working")


async def test_what_a_session_superseded_answers_again_as_when_somebody_ends_it(mind: World) -> None:
    old = await mind.add("old", type="fact")
    lasting = await mind.add("lasting", type="fact", supersedes=old)
    draft = await mind.add("draft", type="working", session_id="s", supersedes=lasting)
    await mind.add("second draft", type="working", session_id="s", supersedes=draft)
    wait(mind, 25)
    assert await mind.heads() == []

    assert await clean(mind) == {RemovalReason.SESSION: 2}

    assert await mind.heads() == ["lasting"]
    assert await clean(mind) == {}


@pytest.mark.parametrize("at", range(0, 10, 2))
async def test_a_cleanup_of_sessions_that_was_killed_is_finished_by_the_next(mind: World, at: int) -> None:
    lasting = await mind.add("lasting", type="fact")
    await mind.add("draft", type="working", session_id="s", supersedes=lasting)
    await keep(mind, "kept")
    wait(mind, 25)
    doomed = mind.crash_at(at)

    with pytest.raises(TransientError):
        await clean(doomed)
    await clean(mind)
    mind.clock.move(ms=SWEEP_AFTER_MS + 1)
    await chains.sweep(mind.agent)

    assert await mind.heads() == ["lasting"]
    assert await mind.rows(types=("working",)) == []


async def test_a_stamp_takes_nothing_from_who_writes_meanwhile(mind: World) -> None:
    for content in "abc":
        await keep(mind, content)
    wait(mind, 2)
    store: Any = InterleavedStore(mind.agent.store, Event(writes, lambda: keep(mind, "d")))

    await in_mind(World(replace(mind.agent, store=store), clock=mind.clock))

    assert store.is_over
    assert sorted(await in_mind(mind)) == ["a", "b", "c", "d"]


async def test_what_has_been_hidden_long_enough_is_removed_with_the_brake(mind: World) -> None:
    for number in range(12):
        await mind.add(f"old{number}", type="event", created_at=mind.clock.now_ms() - 89 * DAY_MS)
    used = await mind.add("used", type="event", created_at=mind.clock.now_ms() - 89 * DAY_MS)
    await mind.agent.store.set_payload(mind.agent.alias, {"accessCount": 1}, {"must": [{"has_id": [used]}]})
    wait(mind, 24 * 2)
    assert await mind.heads() == ["used"]
    wait(mind, 24 * 88)
    assert await clean(mind, remove_hidden_days=90) == {}
    wait(mind, 24)
    assert await clean(mind) == {}

    cleanup = Cleanup(mind.clock, min_rest_s=0)
    rules = build_rules(Lifecycle(remove_hidden_days=90), mind.agent.settings.ranking, mind.clock.now_ms())
    outcome = await cleanup.run(mind.agent, rules)

    assert outcome.approval_digest is not None
    assert outcome.counts == {RemovalReason.HIDDEN: 12}
    assert await clean(mind, remove_hidden_days=90, max_removal_percent=100) == {RemovalReason.HIDDEN: 12}
    assert await mind.heads() == ["used"]


async def test_what_comes_in_hidden_is_kept_as_long(mind: World) -> None:
    await mind.add("of years ago", type="event", created_at=mind.clock.now_ms() - 900 * DAY_MS)

    assert await clean(mind, remove_hidden_days=90) == {}
    wait(mind, 24 * 90)
    assert await clean(mind, remove_hidden_days=90) == {RemovalReason.HIDDEN: 1}
