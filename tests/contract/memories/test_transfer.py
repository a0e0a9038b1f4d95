"""Export and import over a real engine: what comes back is what there was, once, and nobody else's is touched."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.entrypoints.api.transfer.transfer_requests import read_line, render_line
from agentmemory_operator.errors import AgentMemoryError, Conflict, TransientError
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.chains import SWEEP_AFTER_MS
from agentmemory_operator.memories.history import read_history
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.rules.secret_patterns import OWN_RULES
from agentmemory_operator.memories.stored_memories import change_head, delete_head, read_memory
from agentmemory_operator.memories.transfer.exports import export_memories
from agentmemory_operator.memories.transfer.import_batch import ImportLine, Outcome
from agentmemory_operator.memories.transfer.imports import import_lines
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import (
    EVERYTHING,
    FakeEmbedder,
    World,
    every_right,
    open_world,
    search_request,
    vector_of,
)
from tests.support.engine.interleaved_store import CrashingStore, Event, InterleavedStore, writes
from tests.support.engine.merges import merge_memories

pytestmark = pytest.mark.usefixtures("keeps_vectors")

SOURCE = KeywordSource(language="english", window=2)
TYPES = (MemoryType("fact", 30), MemoryType("status", 30, supersede_by="subject"), MemoryType("working", None))


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with open_world(qdrant_url, keyword=SOURCE, ranking=replace(EVERYTHING, types=TYPES)) as world:
        yield world


async def exported(world: World, user_id: str = "u") -> list[bytes]:
    """Return a user's memories as lines."""
    pages = export_memories(world.agent, user_id, has_vectors=True)
    return [render_line(each, embedding="none/8") async for page in pages for each in page]


async def imported(world: World, lines: Sequence[bytes], *, size: int = 100, **more: Any) -> list[Outcome]:
    """Take lines in, so many at a time."""
    outcomes: list[Outcome] = []
    for start in range(0, len(lines), size):
        outcomes += await import_lines(
            world.agent, [read(world, text, **more) for text in lines[start : start + size]], brings_back_erased=False
        )
    return outcomes


def read(world: World, text: bytes, user_id: str = "u") -> ImportLine:
    line = read_line(text, user_id=user_id, default_type="fact", rights=every_right(world.agent.settings))
    assert isinstance(line, ImportLine)
    return line


async def clear(world: World) -> None:
    await world.agent.store.delete(world.agent.alias, {"must": []})


async def rows(world: World) -> dict[str, dict[str, Any]]:
    body = {"filter": {"must": []}, "limit": 5_000, "with_payload": True}
    points, _ = await world.agent.store.scroll(world.agent.alias, body)
    return {point["id"]: point["payload"] for point in points}


async def fill(world: World) -> list[str]:
    """Store memories of all kinds; return the ids of a chain, oldest first."""
    chain: list[str] = []
    for number in range(3):
        before = chain[-1] if chain else None
        chain.append(await world.add(f"v{number}", type="fact", supersedes=before, session_id="s", valid_to=10**13))
        world.clock.move(ms=1_000)
    for state in ("open", "closed"):
        await world.add(state, type="status", subject="ticket", author="ann", tags=("t",), metadata={"n": [1, 2]})
    await world.add("child", type="fact", parent_id=chain[-1], session_id="s", pinned=True, namespace=("a", "b"))
    await world.items.put(
        world.agent, ADDRESS, ItemContent(content="item", metadata={"m": 1}, vector=vector_of("item"))
    )
    return chain


ADDRESS = Address(user_id="u", namespace=("memories", "u"), key="k")


async def test_what_is_imported_is_what_was_exported(world: World) -> None:
    chain = await fill(world)
    world.counts.note(world.agent.settings.slug, [chain[-1]])
    await world.counts.flush()
    before, lines = await rows(world), await exported(world)
    await clear(world)

    assert set(await imported(world, lines)) == {"imported"}

    after = await rows(world)
    # The last: by time, and within a millisecond by the place in the request.
    changing = {"rev", "updatedAt", "storedAt", "requestId", "accessMarks", "writeMarks", "requestMarks", "windowDue"}
    # When it was changed last is told apart from when it was stored here.
    changing |= {"sessionOrder", "changedAt", "loggedAt"}
    # Updates are counted where they are made.
    changing |= {"updateCount"}
    told = [{id_: _without(row, changing) for id_, row in each.items()} for each in (before, after)]
    assert told[0] == told[1]
    assert await exported(world) == lines


def keeping(world: World, count: int) -> None:
    world.agent = replace(world.agent, settings=replace(world.agent.settings, keep_versions=count))


async def test_versions_of_an_item_come_along_as_many_as_are_kept_and_without_secrets(world: World) -> None:
    keeping(world, 3)
    secret = "password: hunter2hunter2"
    for content in ("a", f"b {secret}", "c", "d"):
        item = ItemContent(content=content, metadata={"of": content}, tags=("t",), vector=vector_of(content))
        await world.items.put(world.agent, ADDRESS, item)
        world.clock.move(ms=10)
    told = [(one.content, one.valid_from, one.valid_to) for one in await world.items.versions(world.agent, ADDRESS)]
    lines = await exported(world)
    await clear(world)
    keeping(world, 2)
    world.agent = replace(world.agent, secret_rules=OWN_RULES)

    assert await imported(world, lines) == ["imported"]

    first, second = await world.items.versions(world.agent, ADDRESS)
    assert (first.content, first.valid_from, first.valid_to) == told[0]
    assert (first.metadata, first.tags) == ({"of": "c"}, ("t",))
    assert "hunter2" not in str((await rows(world)).values())
    assert second.content.startswith("b ")


async def test_an_item_comes_without_versions_where_none_are_kept(world: World) -> None:
    keeping(world, 3)
    for content in "ab":
        await world.items.put(world.agent, ADDRESS, ItemContent(content=content, vector=vector_of(content)))
    lines = await exported(world)
    await clear(world)
    keeping(world, 0)

    await imported(world, lines)

    assert all("itemVersions" not in row for row in (await rows(world)).values())


async def test_when_a_memory_was_changed_comes_along(world: World) -> None:
    memory_id = await world.add("fact", type="fact")
    world.clock.move(ms=500)
    await change_head(world.agent, memory_id, {"importance": 0.9}, user_id="u")
    changed_at, lines = world.clock.now_ms(), await exported(world)
    await clear(world)
    world.clock.move(ms=10_000)

    await imported(world, lines)

    assert (await read_memory(world.agent, memory_id, user_id="u")).last_changed_at == changed_at


def _without(row: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


@pytest.mark.parametrize("size", [1, 2, 100])
async def test_chains_are_joined_however_their_lines_come_together(world: World, size: int) -> None:
    chain = await fill(world)
    lines = await exported(world)
    await clear(world)

    await imported(world, lines, size=size)

    assert sorted(await exported(world)) == sorted(lines)
    history = await read_history(world.agent, chain[0], user_id="u")
    assert [record.id for record in history.records] == chain
    assert sorted(await world.heads()) == ["child", "closed", "item", "v2"]
    await delete_head(world.agent, chain[-1], user_id="u")
    [record] = [record for record in await world.rows() if record.id == chain[1]]
    assert record.valid_to == 10**13
    assert not [row for row in (await rows(world)).values() if row.get("windowDue")]


async def test_the_same_lines_again_change_nothing(world: World) -> None:
    await fill(world)
    lines = await exported(world)
    await clear(world)
    await imported(world, lines)
    before = await rows(world)

    assert set(await imported(world, lines)) == {"present"}
    assert await rows(world) == before


async def test_what_is_there_stays_as_it_is(world: World) -> None:
    memory_id = await world.add("a", tags=("old",))
    lines = await exported(world)
    await change_head(world.agent, memory_id, {"tags": ["new"]}, user_id="u")

    assert await imported(world, lines) == ["present"]
    assert (await read_memory(world.agent, memory_id, user_id="u")).tags == ("new",)


async def test_another_users_point_is_never_written(world: World) -> None:
    theirs = await world.add("theirs", user_id="other")
    line = {"id": theirs, "content": "mine", "vector": vector_of("x")}
    good = {"content": "good", "vector": vector_of("y")}

    outcomes = await imported(world, [json.dumps(one).encode() for one in (line, good)])

    assert isinstance(outcomes[0], Conflict)
    assert outcomes[1] == "imported"
    assert (await read_memory(world.agent, theirs, user_id="other")).content == "theirs"


async def test_what_was_erased_comes_back_only_where_that_is_asked_for(world: World) -> None:
    chain = await fill(world)
    lines = await exported(world)
    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))

    refused = await imported(world, lines)
    told = [read(world, text) for text in lines]
    taken = await import_lines(world.agent, told, brings_back_erased=True)

    assert all(isinstance(outcome, Conflict) and "erased" in str(outcome) for outcome in refused)
    assert set(taken) == {"imported"}
    history = await read_history(world.agent, chain[0], user_id="u")
    assert [record.id for record in history.records] == chain
    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    assert not [row for row in (await rows(world)).values() if "content" in row]


async def test_what_was_deleted_one_by_one_comes_back(world: World) -> None:
    chain = await fill(world)
    lines = await exported(world)
    await delete_head(world.agent, chain[-1], user_id="u")

    outcomes = await imported(world, lines)

    assert sorted(map(str, outcomes)) == ["imported", *["present"] * (len(lines) - 1)]
    history = await read_history(world.agent, chain[0], user_id="u")
    assert [record.id for record in history.records] == chain


async def test_a_version_that_was_replaced_otherwise_is_refused(world: World) -> None:
    first = await world.add("first", type="fact")
    second = await world.add("second", type="fact", supersedes=first)
    lines = await exported(world)
    await delete_head(world.agent, second, user_id="u")
    other = await world.add("other", type="fact", supersedes=first)

    outcomes = await imported(world, lines)

    assert outcomes[0] == "present"
    assert isinstance(outcomes[1], Conflict)
    assert [record.id for record in await world.rows()] == [other]


async def test_a_version_may_come_without_the_one_before_which_is_refused_afterwards(world: World) -> None:
    chain = await fill(world)
    lines = {json.loads(line)["id"]: line for line in await exported(world)}
    await clear(world)

    assert await imported(world, [lines[chain[2]]]) == ["imported"]
    [refusal] = await imported(world, [lines[chain[1]]])

    assert isinstance(refusal, Conflict)
    assert "send the oldest version first" in str(refusal)
    assert await world.heads() == ["v2"]


async def test_a_successor_that_is_stored_instead_of_the_imported_one_replaces_when_it_comes(world: World) -> None:
    chain = await fill(world)
    lines = await exported(world)
    await clear(world)
    await imported(world, [line for line in lines if json.loads(line)["id"] == chain[0]])
    world.clock.move(ms=60_000)

    other = await world.add("other", type="fact", supersedes=chain[0])

    history = await read_history(world.agent, other, user_id="u")
    assert [record.superseded_at for record in history.records] == [world.clock.now_ms(), None]


async def test_under_a_subject_an_old_value_does_not_come_beside_the_newer_one(world: World) -> None:
    await world.add("open", type="status", subject="ticket")
    lines = await exported(world)
    await clear(world)
    await world.add("closed", type="status", subject="ticket")
    text = lines[0].replace(json.loads(lines[0])["id"].encode(), b"00000000-0000-4000-8000-000000000001")

    [outcome] = await imported(world, [text])

    assert isinstance(outcome, Conflict)
    assert await world.heads() == ["closed"]


async def test_what_follows_under_a_subject_that_came_by_import_replaces_it(world: World) -> None:
    await fill(world)
    lines = await exported(world)
    await clear(world)
    await imported(world, lines)

    await world.add("reopened", type="status", subject="ticket")

    assert {"reopened"} == {head for head in await world.heads() if head in ("open", "closed", "reopened")}


async def test_a_line_without_id_gets_the_same_one_each_time(world: World) -> None:
    text = json.dumps({"content": "from elsewhere", "vector": vector_of("x"), "created_at": "2020-01-01T00:00:00Z"})

    assert await imported(world, [text.encode()]) == ["imported"]
    assert await imported(world, [text.encode()] * 2) == ["present", "present"]
    assert [record.created_at for record in await world.rows()] == [1_577_836_800_000]


async def test_lines_of_one_batch_with_one_id_are_one_memory(world: World) -> None:
    text = json.dumps({"content": "twice", "vector": vector_of("x")}).encode()

    assert await imported(world, [text, text]) == ["imported", "present"]
    assert await world.heads() == ["twice"]


async def test_an_item_is_found_by_its_key_in_another_agent_too(world: World, qdrant_url: str) -> None:
    await fill(world)
    lines = await exported(world)
    async with open_world(qdrant_url, keyword=SOURCE, ranking=world.agent.settings.ranking) as other:
        await imported(other, lines)

        assert (await other.items.get(other.agent, ADDRESS)).content == "item"
        assert set(await imported(other, lines)) == {"present"}
        await other.add("reopened", type="status", subject="ticket")
        assert sorted(await other.heads()) == ["child", "item", "reopened", "v2"]


async def test_working_memories_are_left_out(world: World) -> None:
    memory = IncomingMemory(user_id="u", content="in mind", session_id="s", vector=vector_of("w"))
    await world.working.store(world.agent, memory)

    assert await exported(world) == []


async def test_no_line_takes_the_place_of_an_item_or_a_working_memory(world: World) -> None:
    await world.items.put(world.agent, ADDRESS, ItemContent(content="item", vector=vector_of("item")))
    kept = IncomingMemory(user_id="u", content="in mind", session_id="s", vector=vector_of("w"))
    await world.working.store(world.agent, kept)
    before = await rows(world)

    lines = [{"content": f"after {id_}", "supersedes": id_, "vector": vector_of(id_)} for id_ in before]
    outcomes = await imported(world, [json.dumps(line).encode() for line in lines])

    assert (len(outcomes), set(outcomes)) == (2, {"imported"})
    after = await rows(world)
    assert {id_: after[id_] for id_ in before} == before
    assert all(row.get("supersedesId") is None for row in after.values())


async def test_lines_with_and_without_their_vectors_keep_what_is_theirs(world: World) -> None:
    """An item and a chain with the agent's own vectors, among lines that are embedded."""
    await world.items.put(world.agent, ADDRESS, ItemContent(content="item", vector=vector_of("item")))
    first = await world.add("v0", type="fact")
    await world.add("v1", type="fact", supersedes=first)
    lines = [json.loads(line) for line in await exported(world)]
    before = await rows(world)
    await clear(world)
    world.set_embedder(FakeEmbedder())
    new = [json.dumps({"content": f"new {number}"}).encode() for number in range(3)]
    told = [json.dumps(line | {"embedding": "fake/8"}).encode() for line in lines]

    outcomes = await imported(world, [new[0], told[0], new[1], *told[1:], new[2]])

    assert outcomes == ["imported"] * 6
    after = await rows(world)
    keys = ("content", "itemNamespace", "supersedesId", "supersededById", "key")
    assert {id_: [after[id_].get(key) for key in keys] for id_ in before} == {
        id_: [row.get(key) for key in keys] for id_, row in before.items()
    }
    assert [[row.get(key) for key in keys[1:]] for id_, row in after.items() if id_ not in before] == [[None] * 4] * 3


async def test_a_line_may_leave_out_all_but_its_content(world: World) -> None:
    memory = IncomingMemory(user_id="u", content="by a use case", vector=vector_of("u"))
    text = json.dumps({"content": "by the API", "vector": vector_of("a")}).encode()

    outcomes = await import_lines(world.agent, [ImportLine(memory=memory), read(world, text)], brings_back_erased=False)

    assert outcomes == ["imported", "imported"]
    for record in await world.rows():
        assert (record.consolidated, record.access_count, record.last_accessed_at) == (False, 0, None)
        assert (record.observed_by, record.connections, record.superseded_by_id) == ((), (), None)


async def test_imported_memories_are_found_by_meaning_and_by_the_words_around_them(world: World) -> None:
    await fill(world)
    lines = await exported(world)
    await clear(world)
    await imported(world, lines)

    answer = await world.recall.search(world.agent, search_request(vector=vector_of("v2"), top_k=1))

    assert [found.record.content for found in answer.results] == ["v2"]


async def test_killed_at_any_call_and_sent_again_it_ends_the_same(world: World) -> None:
    chain = await fill(world)
    lines = await exported(world)
    at, is_killed = 0, True
    while is_killed:
        await clear(world)
        crashing = replace(world.agent, store=CrashingStore(world.agent.store, at, "after"))
        whole, world.agent = world.agent, crashing
        try:
            await imported(world, lines, size=3)
            is_killed = False
        except TransientError:
            world.agent = whole
            outcomes = await imported(world, lines, size=3)
            assert not [outcome for outcome in outcomes if isinstance(outcome, AgentMemoryError)]
        world.agent = whole
        assert await exported(world) == lines
        history = await read_history(world.agent, chain[0], user_id="u")
        assert [record.id for record in history.records] == chain
        at += 2
    assert at > 15


async def take_in_while(world: World, lines: Sequence[bytes], act: Callable[[], Awaitable[object]]) -> list[Outcome]:
    """Take lines in; something happens between what was read of the collection and what is written."""
    store: Any = InterleavedStore(world.agent.store, Event(writes, act))
    outcomes = await imported(World(replace(world.agent, store=store), clock=world.clock), lines)
    assert store.is_over
    return outcomes


async def test_what_is_erased_while_it_is_imported_over_a_tombstone_stays_erased(world: World) -> None:
    memory_id = await world.add("secret")
    lines = await exported(world)
    await delete_head(world.agent, memory_id, user_id="u")
    request = ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True), filters={})

    (outcome,) = await take_in_while(world, lines, lambda: world.forgetting.forget(world.agent, request))

    assert isinstance(outcome, Conflict)
    assert not [row for row in (await rows(world)).values() if "content" in row]


async def test_what_another_import_brought_back_and_somebody_edited_is_not_overwritten(world: World) -> None:
    memory_id = await world.add("a")
    lines = await exported(world)
    await delete_head(world.agent, memory_id, user_id="u")

    async def bring_back_and_edit() -> None:
        assert await imported(world, lines) == ["imported"]
        await change_head(world.agent, memory_id, {"tags": ["new"]}, user_id="u")

    await take_in_while(world, lines, bring_back_and_edit)

    assert (await rows(world))[memory_id]["tags"] == ["new"]


async def test_a_version_that_another_finished_and_edited_meanwhile_keeps_its_revision(world: World) -> None:
    """Else who has read the edit's revision would find it again, on another state."""
    first = await world.add("v0", type="fact")
    second = await world.add("v1", type="fact", supersedes=first)
    lines = await exported(world)
    await clear(world)
    edited: list[int] = []

    async def finish_and_edit() -> None:
        world.clock.move(ms=SWEEP_AFTER_MS + 1)
        assert await chains.sweep(world.agent) == 1
        await change_head(world.agent, second, {"tags": ["new"]}, user_id="u")
        edited.append((await rows(world))[second]["rev"])

    def shows(name: str, arguments: tuple[Any, ...]) -> bool:
        return name == "batch" and any("set_payload" in operation for operation in arguments[1])

    store: Any = InterleavedStore(world.agent.store, Event(shows, finish_and_edit))
    await imported(World(replace(world.agent, store=store), clock=world.clock), lines)

    assert store.is_over
    now = (await rows(world))[second]
    assert (now["tags"], now["pending"]) == (["new"], False)
    assert now["rev"] >= edited[0]


async def fill_merged(world: World) -> str:
    """Store a memory that was merged twice, and connected; return its id."""
    a, b, c = [await world.add(content, type="fact") for content in ("a", "b", "c")]
    ab = await merge_memories(world, "ab", await world.add("a2", type="fact", supersedes=a), b)
    assert ab is not None
    abc = await merge_memories(world, "abc", ab, c, source_ids=(ab, c))
    assert abc is not None
    noted = {"connections": [{"id": a, "description": "why"}], "consolidated": True}
    await world.agent.store.set_payload(world.agent.alias, noted, {"must": [{"has_id": [abc]}]})
    return abc


@pytest.mark.parametrize("size", [1, 2, 100])
async def test_a_merged_memory_comes_with_all_that_it_was_made_of(world: World, size: int) -> None:
    memory_id = await fill_merged(world)
    before, lines = await read_history(world.agent, memory_id, user_id="u"), await exported(world)
    await clear(world)

    assert set(await imported(world, lines, size=size)) == {"imported"}

    after = await read_history(world.agent, memory_id, user_id="u")
    for one, other in zip(before.records, after.records, strict=True):
        assert (one.id, one.content, one.source_ids) == (other.id, other.content, other.source_ids)
        assert set(one.supersedes_ids) == set(other.supersedes_ids)
        assert (one.superseded_by_id, one.consolidated) == (other.superseded_by_id, other.consolidated)
    assert after.records[-1].connections == before.records[-1].connections
    assert await world.heads() == ["abc"]
    assert set(await imported(world, lines, size=size)) == {"present"}
    await delete_head(world.agent, memory_id, user_id="u")
    assert sorted(await world.heads()) == ["ab", "c"]


async def test_a_merged_memory_whose_source_has_another_successor_is_refused(world: World) -> None:
    await fill_merged(world)
    lines = await exported(world)
    await clear(world)
    await imported(world, lines[:1])
    (first,) = await world.rows()
    await world.add("another", type="fact", supersedes=first.id)

    outcomes = await imported(world, lines[1:])

    assert any(isinstance(outcome, Conflict) for outcome in outcomes)
    assert "another" in await world.heads()


async def test_who_is_forgotten_leaves_nothing_of_what_was_merged(world: World) -> None:
    await fill_merged(world)

    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))

    assert await world.heads() == []
    assert all("content" not in row and "connections" not in row for row in (await rows(world)).values())
    assert not any(row.get("pending") for row in (await rows(world)).values())
