"""Memories with an identity, and duplicates, on a real engine."""

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
# One more call than the longest protocol makes; `crash` fails if it is reached.
CALLS = 13
crash = partial(outcome_of_crash, calls=CALLS)
# A crash before a call equals a crash after the previous call.
CRASHES = [(0, "before"), *((at, "after") for at in range(CALLS))]


def brain_of(world: World, *, deduplicate: bool = True) -> World:
    """Build a world with the types of `TYPES`."""
    ranking = replace(EVERYTHING, types=TYPES)
    changed = replace(world.agent.settings, ranking=ranking, deduplicate=deduplicate)
    return World(replace(world.agent, settings=changed), clock=world.clock)


@pytest.fixture
def brain(world: World) -> World:
    return brain_of(world)


@pytest.fixture
def keyed(world: World) -> World:
    """World with identities but without deduplication."""
    return brain_of(world, deduplicate=False)


async def must_store(world: World, content: str, **more: Any) -> StoredMemory:
    outcome = await world.try_add(content, **more)
    assert isinstance(outcome, StoredMemory), outcome
    return outcome


async def store_keyed(world: World, content: str, key: str = "k", **more: Any) -> StoredMemory:
    return await must_store(world, content, **{"type": "fact", "key": key} | more)


async def chain(world: World, user_id: str = "u") -> list[MemoryRecord]:
    """Return the only chain of a user, oldest first; check every link in both directions."""
    rows = {record.id: record for record in await world.rows(user_id, include_superseded=True)}
    (head,) = [record for record in rows.values() if record.superseded_by_id is None]
    found = [head]
    while (before := found[0].supersedes_id) in rows:
        assert rows[before].superseded_by_id == found[0].id
        found.insert(0, rows[before])
    assert len(found) == len(rows)
    return found


async def test_same_key_supersedes_any_author(brain: World) -> None:
    first = await store_keyed(brain, "pays by card", author="a")
    brain.clock.move(ms=5)
    second = await store_keyed(brain, "pays by invoice", author="b")

    assert (first.event, second.event, second.supersedes) == ("ADD", "SUPERSEDE", first.id)
    assert await brain.heads() == ["pays by invoice"]
    old, new = await chain(brain)
    assert old.superseded_at == old.valid_to == new.valid_from == brain.clock.now_ms()


async def test_first_memory_has_the_derived_id(brain: World) -> None:
    slug = brain.agent.settings.slug

    assert (await store_keyed(brain, "v")).id == identity_id(slug, "u", "fact", field="key", value="k")


@pytest.mark.parametrize(
    "other",
    [{"key": "other"}, {"user_id": "v"}, {"type": "status", "subject": "k"}, {"type": "event"}],
    ids=["key", "user", "type", "type without identity"],
)
async def test_other_identity_is_unaffected(brain: World, other: dict[str, Any]) -> None:
    await store_keyed(brain, "v")

    assert (await store_keyed(brain, "w", **other)).event == "ADD"
    assert "v" in await brain.heads()


async def test_status_is_identified_by_subject(brain: World) -> None:
    await must_store(brain, "build is red", type="status", subject="build")

    assert (await must_store(brain, "build is green", type="status", subject="build")).event == "SUPERSEDE"


@pytest.mark.parametrize(("type_", "field"), [("fact", "key"), ("status", "subject")])
async def test_missing_identity_field_causes_warning(brain: World, type_: str, field: str) -> None:
    outcomes = [await must_store(brain, text, type=type_) for text in ("v", "w")]

    assert [outcome.event for outcome in outcomes] == ["ADD", "ADD"]
    assert outcomes[0].warnings[0].startswith(f"{field}: not given")


async def test_past_time_finds_the_version_valid_then(brain: World) -> None:
    times = []
    for text in ("v1", "v2", "v3"):
        times.append(brain.clock.now_ms())
        await store_keyed(brain, text)
        brain.clock.move(ms=10)

    for time_ms, text in zip(times, ("v1", "v2", "v3"), strict=True):
        assert await brain.heads_at(time_ms + 5) == [text]


async def test_immutable_memory_cannot_be_superseded(brain: World) -> None:
    old = await brain.add("we use Python", type="decision")

    outcome = await brain.try_add("we use Rust", type="decision", supersedes=old)

    assert isinstance(outcome, Conflict)
    assert "immutable" in str(outcome)


async def test_supersession_by_id_checks_identity(brain: World) -> None:
    first = await store_keyed(brain, "v1")
    unkeyed = await brain.add("w", type="fact")

    second = await store_keyed(brain, "v2", supersedes=first.id)
    refused = [
        await brain.try_add("v3", type="fact", key="k", supersedes=first.id),
        await brain.try_add("v3", type="fact", key="k", supersedes=unkeyed),
        await brain.try_add("v3", type="fact", supersedes=second.id),
        await brain.try_add("v3", type="fact", key="k", supersedes=second.id, user_id="v"),
    ]

    assert second.supersedes == first.id
    assert [type(outcome) for outcome in refused] == [Conflict, Conflict, Conflict, NotFound]
    assert "supersedeBy" in str(refused[1])


async def test_deleting_head_restores_predecessor(brain: World) -> None:
    first, second = await store_keyed(brain, "v1"), await store_keyed(brain, "v2")
    await delete_head(brain.agent, second.id, user_id="u")

    record = await read_memory(brain.agent, first.id, user_id="u")

    assert await brain.heads() == ["v1"]
    assert (record.superseded_by_id, record.valid_to) == (None, None)
    assert (await store_keyed(brain, "v3")).supersedes == first.id


async def test_deleted_identity_can_be_stored_again(brain: World) -> None:
    first = await store_keyed(brain, "v1")
    await delete_head(brain.agent, first.id, user_id="u")

    again = await store_keyed(brain, "v2")

    assert (again.id, again.event) == (first.id, "ADD")
    row = await read_row(brain.agent, first.id)
    assert row is not None
    assert row["rev"] > 2
    assert await brain.heads() == ["v2"]


async def test_batch_supersedes_in_order(keyed: World) -> None:
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


async def test_repeated_request_gives_same_outcome(brain: World) -> None:
    first = await store_keyed(brain, "v1", idempotency_key="1")
    second = await store_keyed(brain, "v2", idempotency_key="2")

    assert await store_keyed(brain, "v1", idempotency_key="1") == first
    assert await store_keyed(brain, "v2", idempotency_key="2") == second
    assert isinstance(await brain.try_add("v3", type="fact", key="k", idempotency_key="2"), Conflict)
    assert await brain.heads() == ["v2"]


async def test_request_of_deleted_memory_is_a_conflict(brain: World) -> None:
    for memory in ({"type": "fact", "key": "k"}, {"type": "event"}):
        first = await must_store(brain, "v", idempotency_key="1", **memory)
        await delete_head(brain.agent, first.id, user_id="u")

        assert isinstance(await brain.try_add("v", idempotency_key="1", **memory), Conflict)


async def test_duplicate_by_same_author_is_ignored(brain: World) -> None:
    first = await must_store(brain, "v", author="a", type="event")

    for author in ("a", None):
        again = await must_store(brain, "v", author=author, type="event")
        assert (again.id, again.event, again.is_recorded) == (first.id, "NONE", False)
    assert await brain.heads() == ["v"]


@pytest.mark.parametrize("memory", [{"type": "event"}, {"type": "fact", "key": "k"}, {"type": "fact"}])
async def test_other_author_corroborates(brain: World, memory: dict[str, Any]) -> None:
    first = await must_store(brain, "v", author="a", **memory)

    outcomes = [await must_store(brain, "v", author=author, **memory) for author in ("b", "c", "b")]

    assert [(outcome.id, outcome.event, outcome.is_recorded) for outcome in outcomes] == [
        (first.id, "CORROBORATE", True),
        (first.id, "CORROBORATE", True),
        (first.id, "NONE", False),
    ]
    record = await read_memory(brain.agent, first.id, user_id="u")
    assert (record.observed_by, record.observation_count) == (("a", "b", "c"), 3)


@pytest.mark.parametrize("memory", [{"type": "event"}, {"type": "fact", "key": "k"}])
async def test_anonymous_memory_counts_later_authors(brain: World, memory: dict[str, Any]) -> None:
    first = await must_store(brain, "v", **memory)
    records = [await read_memory(brain.agent, first.id, user_id="u")]
    for author in ("a", "b"):
        await must_store(brain, "v", author=author, **memory)
        records.append(await read_memory(brain.agent, first.id, user_id="u"))

    assert [(record.observed_by, record.observation_count) for record in records] == [
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
async def test_old_payloads_of_observers_are_read(brain: World, before: dict[str, Any], after: tuple[str, ...]) -> None:
    first = await must_store(brain, "v", type="event")
    await brain.agent.store.set_payload(brain.agent.alias, before, point_filter(first.id), strong=True)

    record = await read_memory(brain.agent, first.id, user_id="u")
    assert record.observation_count == max(1, len(record.observed_by))
    await must_store(brain, "v", author="b", type="event")
    record = await read_memory(brain.agent, first.id, user_id="u")
    assert (record.observed_by, record.observation_count) == (after, len(after))


async def test_authors_beyond_limit_are_acknowledged(brain: World) -> None:
    outcomes = [await must_store(brain, "v", author=f"a{number}", type="event") for number in range(MAX_OBSERVERS + 2)]

    assert [outcome.is_recorded for outcome in outcomes] == [True] * MAX_OBSERVERS + [False] * 2
    assert {outcome.event for outcome in outcomes[1:]} == {"CORROBORATE"}
    (record,) = await brain.rows()
    assert (len(record.observed_by), record.observation_count) == (MAX_OBSERVERS, MAX_OBSERVERS)


async def test_concurrent_authors_are_all_counted(brain: World) -> None:
    outcomes = await asyncio.gather(
        *(must_store(brain, "v", author=f"a{number}", type="event") for number in range(12))
    )

    assert sorted(outcome.event for outcome in outcomes) == ["ADD", *["CORROBORATE"] * 11]
    (record,) = await brain.rows()
    assert sorted(record.observed_by) == sorted(f"a{number}" for number in range(12))
    assert record.observation_count == 12


@pytest.mark.parametrize("other", [{"user_id": "v"}, {"type": "decision"}])
async def test_other_users_and_types_are_no_duplicates(brain: World, other: dict[str, Any]) -> None:
    await must_store(brain, "v", type="event")

    assert (await must_store(brain, "v", **{"type": "event"} | other)).event == "ADD"


async def test_removed_content_can_be_stored_again(brain: World) -> None:
    first = await must_store(brain, "v", type="event")
    second = await must_store(brain, "w", type="event", supersedes=first.id)
    again = await must_store(brain, "v", type="event")
    await delete_head(brain.agent, again.id, user_id="u")
    third = await must_store(brain, "v", type="event")

    assert [again.event, third.event] == ["ADD", "ADD"]
    assert first.id not in (again.id, third.id, second.id)
    assert sorted(await brain.heads()) == ["v", "w"]


async def test_batch_stores_duplicates_once(brain: World) -> None:
    await must_store(brain, "old", type="event", author="a")
    texts = [("old", "a"), ("new", "a"), ("new", "b"), ("new", "a"), ("other", None)]
    memories = [
        IncomingMemory(user_id="u", content=text, author=author, type="event", vector=vector_of(text))
        for text, author in texts
    ]

    outcomes = await brain.remember.store(brain.agent, memories)

    events = [outcome.event for outcome in outcomes if isinstance(outcome, StoredMemory)]
    assert events == ["NONE", "ADD", "CORROBORATE", "NONE", "ADD"]
    assert sorted(await brain.heads()) == ["new", "old", "other"]


@pytest.mark.parametrize("memory", [{"type": "event"}, {"type": "fact", "key": "k"}])
async def test_concurrent_first_writers_store_one_memory(brain: World, memory: dict[str, Any]) -> None:
    processes = [World(brain.agent, clock=brain.clock) for _ in range(8)]

    outcomes = await asyncio.gather(*(must_store(process, "v", **memory) for process in processes))

    assert sorted(outcome.event for outcome in outcomes) == ["ADD", *["NONE"] * 7]
    assert len({outcome.id for outcome in outcomes}) == 1


async def test_concurrent_writers_of_a_key_form_one_chain(keyed: World) -> None:
    processes = [World(keyed.agent, clock=keyed.clock) for _ in range(4)]

    outcomes = await asyncio.gather(
        *(store_keyed(process, f"{number} {turn}") for turn in range(6) for number, process in enumerate(processes))
    )

    versions = await chain(keyed)
    assert sorted(record.id for record in versions) == sorted(outcome.id for outcome in outcomes)
    assert len(versions) == 24
    assert {outcome.id: outcome.supersedes for outcome in outcomes} == {
        record.id: record.supersedes_id for record in versions
    }


@pytest.mark.parametrize(("at", "moment"), CRASHES)
@pytest.mark.parametrize("before", ["nothing", "a version", "a deleted one"])
async def test_crash_while_writing_a_key_loses_nothing(keyed: World, at: int, moment: Moment, before: str) -> None:
    if before != "nothing":
        old = await store_keyed(keyed, "old")
    if before == "a deleted one":
        await delete_head(keyed.agent, old.id, user_id="u")

    outcome = await crash(
        keyed, at, moment, lambda doomed: doomed.try_add("new", type="fact", key="k", idempotency_key="i")
    )
    keyed.clock.move(ms=SWEEP_AFTER_MS + 1)
    await chains.sweep(keyed.agent)
    heads = await keyed.heads()
    again = await store_keyed(keyed, "new", idempotency_key="i")

    assert heads in (["new"], ["old"] if before == "a version" else [])
    assert heads == ["new"] or not isinstance(outcome, StoredMemory)
    assert await keyed.heads() == ["new"]
    assert [record.content for record in await chain(keyed)] == (["old", "new"] if before == "a version" else ["new"])
    assert not isinstance(outcome, StoredMemory) or again == outcome
    assert at < CALLS - 1 or isinstance(outcome, StoredMemory)


async def test_chain_continues_after_its_head_was_purged(keyed: World) -> None:
    await store_keyed(keyed, "v1")
    second = await store_keyed(keyed, "v2")
    await keyed.agent.store.delete(keyed.agent.alias, {"must": [{"has_id": [second.id]}]})

    await store_keyed(keyed, "v3")

    assert [record.content for record in await chain(keyed)] == ["v1", "v3"]


async def test_deleted_pending_head_is_not_superseded(keyed: World) -> None:
    """A crash left the head pending."""
    for text in ("v1", "v2"):
        await store_keyed(keyed, text)
    # Call 5 links the previous version to the new one, which is not visible yet.
    await crash(keyed, 5, "after", lambda doomed: doomed.try_add("v3", type="fact", key="k"))

    async def delete_the_head() -> None:
        (record,) = await keyed.rows()
        assert record.content == "v3"
        await delete_head(keyed.agent, record.id, user_id="u")

    store = InterleavedStore(keyed.agent.store, Event(writes, delete_the_head, after=True))
    outcome = await store_keyed(World(replace(keyed.agent, store=store), clock=keyed.clock), "v4")

    assert store.is_over
    assert [record.content for record in await chain(keyed)] == ["v1", "v2", "v4"]
    assert outcome.update_count == 2


async def test_concurrent_deletes_and_writes_leave_one_head(keyed: World) -> None:
    processes = [World(keyed.agent, clock=keyed.clock) for _ in range(4)]

    async def delete_heads(world: World) -> None:
        for _ in range(6):
            for record in await world.rows():
                try:
                    await delete_head(world.agent, record.id, user_id="u")
                except (Conflict, NotFound):
                    continue

    writes = [store_keyed(process, f"{number} {turn}") for turn in range(4) for number, process in enumerate(processes)]
    await asyncio.gather(*writes, *map(delete_heads, processes))
    keyed.clock.move(ms=SWEEP_AFTER_MS + 1)
    await chains.sweep(keyed.agent)
    last = await store_keyed(keyed, "last")

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
@given(batch=st.lists(requests, min_size=1, max_size=4))
def test_repeating_last_request_changes_nothing(
    qdrant_url: str, shared_settings: Any, batch: list[dict[str, Any]]
) -> None:
    from agentmemory_operator.adapters.qdrant.points import QdrantPoints
    from tests.support.engine.agents import agent_of

    async def run() -> None:
        async with QdrantPoints(qdrant_url) as store:
            await store.delete(shared_settings.alias, {"must": []})
            brain = brain_of(World(agent_of(shared_settings, store)))
            for request in batch:
                last = await must_store(brain, **request)
            before = await brain.rows(include_superseded=True)
            again = [await must_store(brain, **batch[-1]) for _ in range(2)]
            after = await brain.rows(include_superseded=True)
            await store.delete(shared_settings.alias, {"must": []})
        assert [(outcome.id, outcome.event) for outcome in again] == [(last.id, "NONE")] * 2
        assert after == before

    asyncio.run(run())
