"""Memories with an identity, and what is said twice, over a real engine."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentmemory_operator.errors import Conflict, NotFound
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.chains import SWEEP_AFTER_MS
from agentmemory_operator.memories.duplicates import MAX_OBSERVERS
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.point_pages import read_row
from agentmemory_operator.memories.rules.filters import point_filter
from agentmemory_operator.memories.rules.ids import identity_id
from agentmemory_operator.memories.rules.record import MemoryRecord
from agentmemory_operator.memories.stored_memories import delete_head, read_memory
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import EVERYTHING, World, outcome_of_crash, vector_of
from tests.support.engine.interleaved_store import Event, InterleavedStore, Moment, writes

TYPES = (
    MemoryType("event", None),
    MemoryType("fact", 34, supersede_by="key"),
    MemoryType("decision", None, immutable=True),
    MemoryType("status", 34, supersede_by="subject"),
)
# One more than the longest protocol has: `crash` checks that none reaches the last.
CALLS = 13
crash = partial(outcome_of_crash, calls=CALLS)
# What is stored before a call is what is stored after the one before it.
CRASHES = [(0, "before"), *((at, "after") for at in range(CALLS))]


def brain_of(world: World, *, deduplicate: bool = True) -> World:
    """Return the world with the rules of a shared brain."""
    ranking = replace(EVERYTHING, types=TYPES)
    changed = replace(world.agent.settings, ranking=ranking, deduplicate=deduplicate)
    return World(replace(world.agent, settings=changed), clock=world.clock)


@pytest.fixture
def brain(world: World) -> World:
    return brain_of(world)


@pytest.fixture
def keyed(world: World) -> World:
    """Identities without a look at what is said twice."""
    return brain_of(world, deduplicate=False)


async def stored(world: World, content: str, **more: Any) -> StoredMemory:
    outcome = await world.try_add(content, **more)
    assert isinstance(outcome, StoredMemory), outcome
    return outcome


async def say(world: World, content: str, key: str = "k", **more: Any) -> StoredMemory:
    return await stored(world, content, **{"type": "fact", "key": key} | more)


async def chain(world: World, user_id: str = "u") -> list[MemoryRecord]:
    """Return the one chain of a user, oldest first; every link is checked in both directions."""
    rows = {record.id: record for record in await world.rows(user_id, include_superseded=True)}
    (head,) = [record for record in rows.values() if record.superseded_by_id is None]
    found = [head]
    while (before := found[0].supersedes_id) in rows:
        assert rows[before].superseded_by_id == found[0].id
        found.insert(0, rows[before])
    assert len(found) == len(rows)
    return found


async def test_a_key_said_anew_supersedes_whoever_said_it(brain: World) -> None:
    first = await say(brain, "pays by card", author="a")
    brain.clock.move(ms=5)
    second = await say(brain, "pays by invoice", author="b")

    assert (first.event, second.event, second.supersedes) == ("ADD", "SUPERSEDE", first.id)
    assert await brain.heads() == ["pays by invoice"]
    old, new = await chain(brain)
    assert old.superseded_at == old.valid_to == new.valid_from == brain.clock.now_ms()


async def test_the_first_memory_of_an_identity_has_the_id_made_of_it(brain: World) -> None:
    slug = brain.agent.settings.slug

    assert (await say(brain, "v")).id == identity_id(slug, "u", "fact", field="key", value="k")


@pytest.mark.parametrize(
    "other",
    [{"key": "other"}, {"user_id": "v"}, {"type": "status", "subject": "k"}, {"type": "event"}],
    ids=["key", "user", "type", "type without identity"],
)
async def test_another_identity_is_left_alone(brain: World, other: dict[str, Any]) -> None:
    await say(brain, "v")

    assert (await say(brain, "w", **other)).event == "ADD"
    assert "v" in await brain.heads()


async def test_a_status_goes_by_its_subject(brain: World) -> None:
    await stored(brain, "build is red", type="status", subject="build")

    assert (await stored(brain, "build is green", type="status", subject="build")).event == "SUPERSEDE"


@pytest.mark.parametrize(("type_", "field"), [("fact", "key"), ("status", "subject")])
async def test_without_its_field_a_memory_is_stored_with_a_warning(brain: World, type_: str, field: str) -> None:
    outcomes = [await stored(brain, text, type=type_) for text in ("v", "w")]

    assert [outcome.event for outcome in outcomes] == ["ADD", "ADD"]
    assert outcomes[0].warnings[0].startswith(f"{field}: not given")


async def test_true_at_a_time_is_the_version_of_then(brain: World) -> None:
    times = []
    for text in ("v1", "v2", "v3"):
        times.append(brain.clock.now_ms())
        await say(brain, text)
        brain.clock.move(ms=10)

    for time_ms, text in zip(times, ("v1", "v2", "v3"), strict=True):
        assert await brain.heads_at(time_ms + 5) == [text]


async def test_an_immutable_memory_cannot_be_superseded(brain: World) -> None:
    old = await brain.add("we use Python", type="decision")

    outcome = await brain.try_add("we use Rust", type="decision", supersedes=old)

    assert isinstance(outcome, Conflict)
    assert "immutable" in str(outcome)


async def test_what_may_be_superseded_by_its_id(brain: World) -> None:
    first = await say(brain, "v1")
    unkeyed = await brain.add("w", type="fact")

    second = await say(brain, "v2", supersedes=first.id)
    refused = [
        await brain.try_add("v3", type="fact", key="k", supersedes=first.id),
        await brain.try_add("v3", type="fact", key="k", supersedes=unkeyed),
        await brain.try_add("v3", type="fact", supersedes=second.id),
        await brain.try_add("v3", type="fact", key="k", supersedes=second.id, user_id="v"),
    ]

    assert second.supersedes == first.id
    assert [type(outcome) for outcome in refused] == [Conflict, Conflict, Conflict, NotFound]
    assert "supersedeBy" in str(refused[1])


async def test_deleting_the_head_lets_the_one_before_answer_as_it_did(brain: World) -> None:
    first, second = await say(brain, "v1"), await say(brain, "v2")
    await delete_head(brain.agent, second.id, user_id="u")

    record = await read_memory(brain.agent, first.id, user_id="u")

    assert await brain.heads() == ["v1"]
    assert (record.superseded_by_id, record.valid_to) == (None, None)
    assert (await say(brain, "v3")).supersedes == first.id


async def test_the_first_memory_of_an_identity_can_come_back_after_it_was_deleted(brain: World) -> None:
    first = await say(brain, "v1")
    await delete_head(brain.agent, first.id, user_id="u")

    again = await say(brain, "v2")

    assert (again.id, again.event) == (first.id, "ADD")
    row = await read_row(brain.agent, first.id)
    assert row is not None
    assert row["rev"] > 2
    assert await brain.heads() == ["v2"]


async def test_a_batch_supersedes_in_its_order(keyed: World) -> None:
    texts = ["v1", "v2", "v1", "w1"]
    keys = ["k", "k", "k", "l"]
    memories = [
        IncomingMemory(user_id="u", content=text, type="fact", key=key, vector=vector_of(text))
        for text, key in zip(texts, keys, strict=True)
    ]

    outcomes = await keyed.remember.store(keyed.agent, memories)

    assert [outcome.event for outcome in outcomes if isinstance(outcome, StoredMemory)] == [
        "ADD",
        "SUPERSEDE",
        "SUPERSEDE",
        "ADD",
    ]
    assert sorted(await keyed.heads()) == ["v1", "w1"]


async def test_a_request_repeated_with_its_key_is_answered_as_the_first(brain: World) -> None:
    first = await say(brain, "v1", idempotency_key="1")
    second = await say(brain, "v2", idempotency_key="2")

    assert await say(brain, "v1", idempotency_key="1") == first
    assert await say(brain, "v2", idempotency_key="2") == second
    assert isinstance(await brain.try_add("v3", type="fact", key="k", idempotency_key="2"), Conflict)
    assert await brain.heads() == ["v2"]


async def test_a_request_whose_memory_was_deleted_is_a_conflict(brain: World) -> None:
    for memory in ({"type": "fact", "key": "k"}, {"type": "event"}):
        first = await stored(brain, "v", idempotency_key="1", **memory)
        await delete_head(brain.agent, first.id, user_id="u")

        assert isinstance(await brain.try_add("v", idempotency_key="1", **memory), Conflict)


async def test_what_an_author_says_again_is_known(brain: World) -> None:
    first = await stored(brain, "v", author="a", type="event")

    for author in ("a", None):
        again = await stored(brain, "v", author=author, type="event")
        assert (again.id, again.event, again.is_recorded) == (first.id, "NONE", False)
    assert await brain.heads() == ["v"]


@pytest.mark.parametrize("memory", [{"type": "event"}, {"type": "fact", "key": "k"}, {"type": "fact"}])
async def test_another_author_corroborates(brain: World, memory: dict[str, Any]) -> None:
    first = await stored(brain, "v", author="a", **memory)

    outcomes = [await stored(brain, "v", author=author, **memory) for author in ("b", "c", "b")]

    assert [(outcome.id, outcome.event, outcome.is_recorded) for outcome in outcomes] == [
        (first.id, "CORROBORATE", True),
        (first.id, "CORROBORATE", True),
        (first.id, "NONE", False),
    ]
    record = await read_memory(brain.agent, first.id, user_id="u")
    assert (record.observed_by, record.observation_count) == (("a", "b", "c"), 3)


@pytest.mark.parametrize("memory", [{"type": "event"}, {"type": "fact", "key": "k"}])
async def test_what_nobody_said_first_counts_those_who_say_it(brain: World, memory: dict[str, Any]) -> None:
    first = await stored(brain, "v", **memory)
    told = [await read_memory(brain.agent, first.id, user_id="u")]
    for author in ("a", "b"):
        await stored(brain, "v", author=author, **memory)
        told.append(await read_memory(brain.agent, first.id, user_id="u"))

    assert [(record.observed_by, record.observation_count) for record in told] == [
        *(((), 1), (("a",), 1), (("a", "b"), 2))
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"observedBy": ["a"], "observationCount": 2}, ("a", "b")),
        ({"author": "a", "observedBy": None, "observationCount": 1}, ("a", "b")),
        ({"observedBy": None, "observationCount": 1}, ("b",)),
    ],
)
async def test_what_earlier_versions_stored_agrees_too(
    brain: World, before: dict[str, Any], after: tuple[str, ...]
) -> None:
    first = await stored(brain, "v", type="event")
    await brain.agent.store.set_payload(brain.agent.alias, before, point_filter(first.id), strong=True)

    record = await read_memory(brain.agent, first.id, user_id="u")
    assert record.observation_count == max(1, len(record.observed_by))
    await stored(brain, "v", author="b", type="event")
    record = await read_memory(brain.agent, first.id, user_id="u")
    assert (record.observed_by, record.observation_count) == (after, len(after))


async def test_more_authors_than_are_kept_are_acknowledged(brain: World) -> None:
    outcomes = [await stored(brain, "v", author=f"a{number}", type="event") for number in range(MAX_OBSERVERS + 2)]

    assert [outcome.is_recorded for outcome in outcomes] == [True] * MAX_OBSERVERS + [False] * 2
    assert {outcome.event for outcome in outcomes[1:]} == {"CORROBORATE"}
    (record,) = await brain.rows()
    assert (len(record.observed_by), record.observation_count) == (MAX_OBSERVERS, MAX_OBSERVERS)


async def test_authors_at_once_are_all_counted(brain: World) -> None:
    outcomes = await asyncio.gather(*(stored(brain, "v", author=f"a{number}", type="event") for number in range(12)))

    assert sorted(outcome.event for outcome in outcomes) == ["ADD", *["CORROBORATE"] * 11]
    (record,) = await brain.rows()
    assert sorted(record.observed_by) == sorted(f"a{number}" for number in range(12))
    assert record.observation_count == 12


@pytest.mark.parametrize("other", [{"user_id": "v"}, {"type": "decision"}])
async def test_what_others_or_other_types_say_is_no_duplicate(brain: World, other: dict[str, Any]) -> None:
    await stored(brain, "v", type="event")

    assert (await stored(brain, "v", **{"type": "event"} | other)).event == "ADD"


async def test_what_was_superseded_or_deleted_can_be_said_anew(brain: World) -> None:
    first = await stored(brain, "v", type="event")
    second = await stored(brain, "w", type="event", supersedes=first.id)
    again = await stored(brain, "v", type="event")
    await delete_head(brain.agent, again.id, user_id="u")
    once_more = await stored(brain, "v", type="event")

    assert [again.event, once_more.event] == ["ADD", "ADD"]
    assert first.id not in (again.id, once_more.id, second.id)
    assert sorted(await brain.heads()) == ["v", "w"]


async def test_a_batch_stores_once_what_it_says_often(brain: World) -> None:
    await stored(brain, "old", type="event", author="a")
    said = [("old", "a"), ("new", "a"), ("new", "b"), ("new", "a"), ("other", None)]
    memories = [
        IncomingMemory(user_id="u", content=text, author=author, type="event", vector=vector_of(text))
        for text, author in said
    ]

    outcomes = await brain.remember.store(brain.agent, memories)

    events = [outcome.event for outcome in outcomes if isinstance(outcome, StoredMemory)]
    assert events == ["NONE", "ADD", "CORROBORATE", "NONE", "ADD"]
    assert sorted(await brain.heads()) == ["new", "old", "other"]


@pytest.mark.parametrize("memory", [{"type": "event"}, {"type": "fact", "key": "k"}])
async def test_first_writers_at_once_end_in_one(brain: World, memory: dict[str, Any]) -> None:
    processes = [World(brain.agent, clock=brain.clock) for _ in range(8)]

    outcomes = await asyncio.gather(*(stored(process, "v", **memory) for process in processes))

    assert sorted(outcome.event for outcome in outcomes) == ["ADD", *["NONE"] * 7]
    assert len({outcome.id for outcome in outcomes}) == 1


async def test_writers_of_one_key_at_once_leave_one_chain_of_all(keyed: World) -> None:
    processes = [World(keyed.agent, clock=keyed.clock) for _ in range(4)]

    outcomes = await asyncio.gather(
        *(say(process, f"{number} {turn}") for turn in range(6) for number, process in enumerate(processes))
    )

    versions = await chain(keyed)
    assert sorted(record.id for record in versions) == sorted(outcome.id for outcome in outcomes)
    assert len(versions) == 24
    assert {outcome.id: outcome.supersedes for outcome in outcomes} == {
        record.id: record.supersedes_id for record in versions
    }


@pytest.mark.parametrize(("at", "moment"), CRASHES)
@pytest.mark.parametrize("before", ["nothing", "a version", "a deleted one"])
async def test_a_crash_while_a_key_is_written_loses_nothing(keyed: World, at: int, moment: Moment, before: str) -> None:
    if before != "nothing":
        old = await say(keyed, "old")
    if before == "a deleted one":
        await delete_head(keyed.agent, old.id, user_id="u")

    outcome = await crash(
        keyed, at, moment, lambda doomed: doomed.try_add("new", type="fact", key="k", idempotency_key="i")
    )
    keyed.clock.move(ms=SWEEP_AFTER_MS + 1)
    await chains.sweep(keyed.agent)
    heads = await keyed.heads()
    again = await say(keyed, "new", idempotency_key="i")

    assert heads in (["new"], ["old"] if before == "a version" else [])
    assert heads == ["new"] or not isinstance(outcome, StoredMemory)
    assert await keyed.heads() == ["new"]
    assert [record.content for record in await chain(keyed)] == (["old", "new"] if before == "a version" else ["new"])
    assert not isinstance(outcome, StoredMemory) or again == outcome
    assert at < CALLS - 1 or isinstance(outcome, StoredMemory)


async def test_a_chain_whose_newest_version_was_removed_outright_goes_on(keyed: World) -> None:
    await say(keyed, "v1")
    second = await say(keyed, "v2")
    await keyed.agent.store.delete(keyed.agent.alias, {"must": [{"has_id": [second.id]}]})

    await say(keyed, "v3")

    assert [record.content for record in await chain(keyed)] == ["v1", "v3"]


async def test_a_head_that_a_crash_left_half_done_and_somebody_deletes_is_not_followed(keyed: World) -> None:
    for text in ("v1", "v2"):
        await say(keyed, text)
    # Call 5 links the version before to the new one, which nobody sees yet.
    await crash(keyed, 5, "after", lambda doomed: doomed.try_add("v3", type="fact", key="k"))

    async def delete_the_head() -> None:
        (record,) = await keyed.rows()
        assert record.content == "v3"
        await delete_head(keyed.agent, record.id, user_id="u")

    store = InterleavedStore(keyed.agent.store, Event(writes, delete_the_head, after=True))
    outcome = await say(World(replace(keyed.agent, store=store), clock=keyed.clock), "v4")

    assert store.is_over
    assert [record.content for record in await chain(keyed)] == ["v1", "v2", "v4"]
    assert outcome.update_count == 2


async def test_deletes_and_writes_of_a_key_at_once_leave_one_head_at_most(keyed: World) -> None:
    processes = [World(keyed.agent, clock=keyed.clock) for _ in range(4)]

    async def delete_heads(world: World) -> None:
        for _ in range(6):
            for record in await world.rows():
                try:
                    await delete_head(world.agent, record.id, user_id="u")
                except (Conflict, NotFound):
                    continue

    writes = [say(process, f"{number} {turn}") for turn in range(4) for number, process in enumerate(processes)]
    await asyncio.gather(*writes, *map(delete_heads, processes))
    keyed.clock.move(ms=SWEEP_AFTER_MS + 1)
    await chains.sweep(keyed.agent)
    last = await say(keyed, "last")

    assert await keyed.heads() == ["last"]
    assert (await chain(keyed))[-1].id == last.id


requests = st.fixed_dictionaries(
    {
        "content": st.sampled_from(["v", "w"]),
        "author": st.sampled_from([None, "a", "b"]),
        "type": st.sampled_from(["event", "fact"]),
        "key": st.sampled_from([None, "k"]),
    }
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.lists(requests, min_size=1, max_size=4))
def test_saying_the_last_again_changes_nothing(
    qdrant_url: str, shared_settings: Any, said: list[dict[str, Any]]
) -> None:
    from agentmemory_operator.adapters.qdrant.points import QdrantPoints
    from tests.support.engine.agents import agent_of

    async def run() -> None:
        async with QdrantPoints(qdrant_url) as store:
            await store.delete(shared_settings.alias, {"must": []})
            brain = brain_of(World(agent_of(shared_settings, store)))
            for request in said:
                last = await stored(brain, **request)
            before = await brain.rows(include_superseded=True)
            again = [await stored(brain, **said[-1]) for _ in range(2)]
            after = await brain.rows(include_superseded=True)
            await store.delete(shared_settings.alias, {"must": []})
        assert [(outcome.id, outcome.event) for outcome in again] == [(last.id, "NONE")] * 2
        assert after == before

    asyncio.run(run())
