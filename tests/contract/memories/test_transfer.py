"""Export and import of the memories of a user on a real engine."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.entrypoints.api.transfer.transfer_requests import read_line, render_line
from agentmemory_operator.errors import AgentMemoryError, Conflict, TransientError
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.chains import SWEEP_AFTER_MS
from agentmemory_operator.memories.change_log import ChangesRequest, read_changes
from agentmemory_operator.memories.history import read_history
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.rules.log_times import MAX_CLOCK_DIFFERENCE_MS
from agentmemory_operator.memories.rules.secret_patterns import OWN_RULES
from agentmemory_operator.memories.stored_memories import change_head, delete_head, read_memory
from agentmemory_operator.memories.transfer import exports
from agentmemory_operator.memories.transfer.exports import export_memories
from agentmemory_operator.memories.transfer.import_batch import ImportLine, Outcome
from agentmemory_operator.memories.transfer.imports import import_lines
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import (
    EVERYTHING,
    FakeEmbedder,
    World,
    every_right,
    search_request,
    vector_of,
)
from tests.support.engine.interleaved_store import CrashingStore, Event, InterleavedStore, writes
from tests.support.engine.merges import merge_memories
from tests.support.engine.reused_agents import reuse_world

pytestmark = pytest.mark.usefixtures("keeps_vectors")

SOURCE = KeywordSource(language="english", window=2)
TYPES = (MemoryType("fact", 30), MemoryType("status", 30, supersede_by="subject"), MemoryType("working", None))


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with reuse_world(qdrant_url, keyword=SOURCE, ranking=replace(EVERYTHING, types=TYPES)) as world:
        yield world


async def export(world: World, user_id: str = "u") -> list[bytes]:
    """Export a user's memories as lines."""
    pages = export_memories(world.agent, user_id, has_vectors=True)
    return [render_line(each, embedding="none/8") async for page in pages for each in page]


async def import_all(world: World, lines: Sequence[bytes], *, size: int = 100, **more: Any) -> list[Outcome]:
    """Import lines in batches of `size`."""
    outcomes: list[Outcome] = []
    for start in range(0, len(lines), size):
        outcomes += await import_lines(
            world.agent, [read(world, text, **more) for text in lines[start : start + size]], can_restore_erased=False
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


async def test_import_restores_the_export(world: World) -> None:
    chain = await fill(world)
    world.counts.note(world.agent.settings.slug, [chain[-1]])
    await world.counts.flush()
    before, lines = await rows(world), await export(world)
    await clear(world)

    assert set(await import_all(world, lines)) == {"imported"}

    after = await rows(world)
    changing = {"rev", "updatedAt", "storedAt", "requestId", "accessMarks", "writeMarks", "requestMarks", "windowDue"}
    # The import assigns its own order in the session, change time and log time.
    changing |= {"sessionOrder", "changedAt", "loggedAt"}
    # Updates are counted by the agent that makes them.
    changing |= {"updateCount"}
    compared = [{id_: _without(row, changing) for id_, row in each.items()} for each in (before, after)]
    assert compared[0] == compared[1]
    assert await export(world) == lines


async def test_slow_join_in_a_batch_loses_no_entry_of_the_log(world: World) -> None:
    """A version whose links are complete is shown after the others of its batch were joined to stored versions."""
    for name in ("a", "b"):
        await world.add(f"{name}1", type="fact", supersedes=await world.add(f"{name}0", type="fact"))
    lines = {json.loads(line)["content"]: line for line in await export(world)}
    await clear(world)
    await import_all(world, [lines["b0"]])
    read_ids: list[str] = []
    request = ChangesRequest(limit=100)

    async def read_log() -> None:
        nonlocal request
        world.clock.move(ms=2 * MAX_CLOCK_DIFFERENCE_MS)
        page = await read_changes(world.agent, request)
        request = replace(request, cursor=page.next_cursor)
        read_ids.extend(change.id for change in page.changes)

    store = InterleavedStore(world.agent.store, Event(lambda name, _: name == "set_payload", read_log))
    slow = World(replace(world.agent, store=cast("PointStore", store)), world.clock)
    assert set(await import_all(slow, [lines["a0"], lines["a1"], lines["b1"]])) == {"imported"}
    assert store.is_over
    await read_log()

    assert set(read_ids) == (await rows(world)).keys()


def with_versions(world: World, count: int) -> None:
    world.agent = replace(world.agent, settings=replace(world.agent.settings, keep_versions=count))


async def test_item_versions_are_imported(world: World) -> None:
    """The import keeps as many versions as the target allows, and redacts secrets."""
    with_versions(world, 3)
    secret = "password: hunter2hunter2"
    for content in ("a", f"b {secret}", "c", "d"):
        item = ItemContent(content=content, metadata={"of": content}, tags=("t",), vector=vector_of(content))
        await world.items.put(world.agent, ADDRESS, item)
        world.clock.move(ms=10)
    versions = [
        (version.content, version.valid_from, version.valid_to)
        for version in await world.items.versions(world.agent, ADDRESS)
    ]
    lines = await export(world)
    await clear(world)
    with_versions(world, 2)
    world.agent = replace(world.agent, secret_rules=OWN_RULES)

    assert await import_all(world, lines) == ["imported"]

    first, second = await world.items.versions(world.agent, ADDRESS)
    assert (first.content, first.valid_from, first.valid_to) == versions[0]
    assert (first.metadata, first.tags) == ({"of": "c"}, ("t",))
    assert "hunter2" not in str((await rows(world)).values())
    assert second.content.startswith("b ")


async def test_item_versions_are_dropped_if_disabled(world: World) -> None:
    with_versions(world, 3)
    for content in "ab":
        await world.items.put(world.agent, ADDRESS, ItemContent(content=content, vector=vector_of(content)))
    lines = await export(world)
    await clear(world)
    with_versions(world, 0)

    await import_all(world, lines)

    assert all("itemVersions" not in row for row in (await rows(world)).values())


async def test_change_time_is_imported(world: World) -> None:
    memory_id = await world.add("fact", type="fact")
    world.clock.move(ms=500)
    await change_head(world.agent, memory_id, {"importance": 0.9}, user_id="u")
    changed_at, lines = world.clock.now_ms(), await export(world)
    await clear(world)
    world.clock.move(ms=10_000)

    await import_all(world, lines)

    assert (await read_memory(world.agent, memory_id, user_id="u")).last_changed_at == changed_at


def _without(row: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


@pytest.mark.parametrize("size", [1, 2, 100])
async def test_chains_are_joined_for_any_batch_size(world: World, size: int) -> None:
    chain = await fill(world)
    lines = await export(world)
    await clear(world)

    await import_all(world, lines, size=size)

    assert sorted(await export(world)) == sorted(lines)
    history = await read_history(world.agent, chain[0], user_id="u")
    assert [record.id for record in history.records] == chain
    assert sorted(await world.heads()) == ["child", "closed", "item", "v2"]
    await delete_head(world.agent, chain[-1], user_id="u")
    [record] = [record for record in await world.rows() if record.id == chain[1]]
    assert record.valid_to == 10**13
    assert not [row for row in (await rows(world)).values() if row.get("windowDue")]


async def test_repeated_import_changes_nothing(world: World) -> None:
    await fill(world)
    lines = await export(world)
    await clear(world)
    await import_all(world, lines)
    before = await rows(world)

    assert set(await import_all(world, lines)) == {"present"}
    assert await rows(world) == before


async def test_existing_memory_is_kept(world: World) -> None:
    memory_id = await world.add("a", tags=("old",))
    lines = await export(world)
    await change_head(world.agent, memory_id, {"tags": ["new"]}, user_id="u")

    assert await import_all(world, lines) == ["present"]
    assert (await read_memory(world.agent, memory_id, user_id="u")).tags == ("new",)


async def test_other_users_point_is_never_written(world: World) -> None:
    theirs = await world.add("theirs", user_id="other")
    line = {"id": theirs, "content": "mine", "vector": vector_of("x")}
    good = {"content": "good", "vector": vector_of("y")}

    outcomes = await import_all(world, [json.dumps(fields).encode() for fields in (line, good)])

    assert isinstance(outcomes[0], Conflict)
    assert outcomes[1] == "imported"
    assert (await read_memory(world.agent, theirs, user_id="other")).content == "theirs"


async def test_erased_memories_need_explicit_request(world: World) -> None:
    chain = await fill(world)
    lines = await export(world)
    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))

    refused = await import_all(world, lines)
    parsed = [read(world, text) for text in lines]
    accepted = await import_lines(world.agent, parsed, can_restore_erased=True)

    assert all(isinstance(outcome, Conflict) and "erased" in str(outcome) for outcome in refused)
    assert set(accepted) == {"imported"}
    history = await read_history(world.agent, chain[0], user_id="u")
    assert [record.id for record in history.records] == chain
    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    assert not [row for row in (await rows(world)).values() if "content" in row]


async def test_deleted_memory_is_restored(world: World) -> None:
    chain = await fill(world)
    lines = await export(world)
    await delete_head(world.agent, chain[-1], user_id="u")

    outcomes = await import_all(world, lines)

    assert sorted(map(str, outcomes)) == ["imported", *["present"] * (len(lines) - 1)]
    history = await read_history(world.agent, chain[0], user_id="u")
    assert [record.id for record in history.records] == chain


async def test_version_with_other_successor_is_refused(world: World) -> None:
    first = await world.add("first", type="fact")
    second = await world.add("second", type="fact", supersedes=first)
    lines = await export(world)
    await delete_head(world.agent, second, user_id="u")
    other = await world.add("other", type="fact", supersedes=first)

    outcomes = await import_all(world, lines)

    assert outcomes[0] == "present"
    assert isinstance(outcomes[1], Conflict)
    assert [record.id for record in await world.rows()] == [other]


async def test_versions_must_be_sent_oldest_first(world: World) -> None:
    """A version is accepted without its predecessor, which is refused afterwards."""
    chain = await fill(world)
    lines = {json.loads(line)["id"]: line for line in await export(world)}
    await clear(world)

    assert await import_all(world, [lines[chain[2]]]) == ["imported"]
    [refusal] = await import_all(world, [lines[chain[1]]])

    assert isinstance(refusal, Conflict)
    assert "send the oldest version first" in str(refusal)
    assert await world.heads() == ["v2"]


async def test_stored_successor_replaces_imported_version(world: World) -> None:
    """The old version is superseded at the time at which the new one is stored."""
    chain = await fill(world)
    lines = await export(world)
    await clear(world)
    await import_all(world, [line for line in lines if json.loads(line)["id"] == chain[0]])
    world.clock.move(ms=60_000)

    other = await world.add("other", type="fact", supersedes=chain[0])

    history = await read_history(world.agent, other, user_id="u")
    assert [record.superseded_at for record in history.records] == [world.clock.now_ms(), None]


async def test_old_value_of_a_subject_is_refused(world: World) -> None:
    await world.add("open", type="status", subject="ticket")
    lines = await export(world)
    await clear(world)
    await world.add("closed", type="status", subject="ticket")
    text = lines[0].replace(json.loads(lines[0])["id"].encode(), b"00000000-0000-4000-8000-000000000001")

    [outcome] = await import_all(world, [text])

    assert isinstance(outcome, Conflict)
    assert await world.heads() == ["closed"]


async def test_imported_subject_can_be_superseded(world: World) -> None:
    await fill(world)
    lines = await export(world)
    await clear(world)
    await import_all(world, lines)

    await world.add("reopened", type="status", subject="ticket")

    assert {"reopened"} == {head for head in await world.heads() if head in ("open", "closed", "reopened")}


async def test_line_without_id_gets_a_stable_id(world: World) -> None:
    text = json.dumps({"content": "from elsewhere", "vector": vector_of("x"), "created_at": "2020-01-01T00:00:00Z"})

    assert await import_all(world, [text.encode()]) == ["imported"]
    assert await import_all(world, [text.encode()] * 2) == ["present", "present"]
    assert [record.created_at for record in await world.rows()] == [1_577_836_800_000]


async def test_equal_ids_in_one_batch_are_one_memory(world: World) -> None:
    text = json.dumps({"content": "twice", "vector": vector_of("x")}).encode()

    assert await import_all(world, [text, text]) == ["imported", "present"]
    assert await world.heads() == ["twice"]


async def test_other_agent_finds_item_by_key(world: World, qdrant_url: str) -> None:
    await fill(world)
    lines = await export(world)
    async with reuse_world(qdrant_url, keyword=SOURCE, ranking=world.agent.settings.ranking) as other:
        await import_all(other, lines)

        assert (await other.items.get(other.agent, ADDRESS)).content == "item"
        assert set(await import_all(other, lines)) == {"present"}
        await other.add("reopened", type="status", subject="ticket")
        assert sorted(await other.heads()) == ["child", "item", "reopened", "v2"]


@pytest.mark.parametrize("is_superseded", [True, False], ids=["superseded", "head again"])
async def test_export_has_memories_that_change_heads(
    world: World, monkeypatch: pytest.MonkeyPatch, is_superseded: bool
) -> None:
    """The export reads heads by id: when the middle one is read, the head moves from behind it to before it."""
    monkeypatch.setattr(exports, "PAGE", 1)
    low, middle, high = (f"{digit}0000000-0000-0000-0000-000000000000" for digit in "18f")
    old, new = (high, low) if is_superseded else (low, high)
    stated = {old: {}, middle: {}, new: {"supersedes": old}}
    *lines, newer = (
        json.dumps({"id": id_, "content": id_, "vector": vector_of(id_)} | links).encode()
        for id_, links in stated.items()
    )
    assert set(await import_all(world, lines if is_superseded else [*lines, newer])) == {"imported"}
    world.clock.move(ms=60_000)

    async def change() -> None:
        await (import_all(world, [newer]) if is_superseded else delete_head(world.agent, new, user_id="u"))

    event = Event(lambda name, call: name == "scroll" and middle in str(call[1]["filter"]), change, after=True)
    world.agent = replace(world.agent, store=InterleavedStore(world.agent.store, event))  # type: ignore[arg-type]

    exported = [json.loads(line)["id"] for line in await export(world)]
    assert exported == ([middle, old, new] if is_superseded else [middle, old])


async def test_working_memories_are_not_exported(world: World) -> None:
    memory = IncomingMemory(user_id="u", content="in mind", session_id="s", vector=vector_of("w"))
    await world.working.store(world.agent, memory)

    assert await export(world) == []


async def test_import_supersedes_no_item_or_working_memory(world: World) -> None:
    await world.items.put(world.agent, ADDRESS, ItemContent(content="item", vector=vector_of("item")))
    kept = IncomingMemory(user_id="u", content="in mind", session_id="s", vector=vector_of("w"))
    await world.working.store(world.agent, kept)
    before = await rows(world)

    lines = [{"content": f"after {id_}", "supersedes": id_, "vector": vector_of(id_)} for id_ in before]
    outcomes = await import_all(world, [json.dumps(line).encode() for line in lines])

    assert (len(outcomes), set(outcomes)) == (2, {"imported"})
    after = await rows(world)
    assert {id_: after[id_] for id_ in before} == before
    assert all(row.get("supersedesId") is None for row in after.values())


async def test_mixed_lines_keep_their_fields(world: World) -> None:
    """Lines with vectors of the agent and lines to embed are mixed."""
    await world.items.put(world.agent, ADDRESS, ItemContent(content="item", vector=vector_of("item")))
    first = await world.add("v0", type="fact")
    await world.add("v1", type="fact", supersedes=first)
    lines = [json.loads(line) for line in await export(world)]
    before = await rows(world)
    await clear(world)
    world.set_embedder(FakeEmbedder())
    new = [json.dumps({"content": f"new {number}"}).encode() for number in range(3)]
    embedded = [json.dumps(line | {"embedding": "fake/8"}).encode() for line in lines]

    outcomes = await import_all(world, [new[0], embedded[0], new[1], *embedded[1:], new[2]])

    assert outcomes == ["imported"] * 6
    after = await rows(world)
    keys = ("content", "itemNamespace", "supersedesId", "supersededById", "key")
    assert {id_: [after[id_].get(key) for key in keys] for id_ in before} == {
        id_: [row.get(key) for key in keys] for id_, row in before.items()
    }
    assert [[row.get(key) for key in keys[1:]] for id_, row in after.items() if id_ not in before] == [[None] * 4] * 3


async def test_content_alone_is_enough(world: World) -> None:
    memory = IncomingMemory(user_id="u", content="by a use case", vector=vector_of("u"))
    text = json.dumps({"content": "by the API", "vector": vector_of("a")}).encode()

    outcomes = await import_lines(world.agent, [ImportLine(memory=memory), read(world, text)], can_restore_erased=False)

    assert outcomes == ["imported", "imported"]
    for record in await world.rows():
        assert (record.consolidated, record.access_count, record.last_accessed_at) == (False, 0, None)
        assert (record.observed_by, record.connections, record.superseded_by_id) == ((), (), None)


async def test_imported_memories_are_searchable(world: World) -> None:
    await fill(world)
    lines = await export(world)
    await clear(world)
    await import_all(world, lines)

    answer = await world.recall.search(world.agent, search_request(vector=vector_of("v2"), top_k=1))

    assert [found.record.content for found in answer.results] == ["v2"]


async def test_import_can_be_repeated_after_any_crash(world: World) -> None:
    chain = await fill(world)
    lines = await export(world)
    at, is_killed = 0, True
    while is_killed:
        await clear(world)
        crashing = replace(world.agent, store=CrashingStore(world.agent.store, at, "after"))
        healthy, world.agent = world.agent, crashing
        try:
            await import_all(world, lines, size=3)
            is_killed = False
        except TransientError:
            world.agent = healthy
            outcomes = await import_all(world, lines, size=3)
            assert not [outcome for outcome in outcomes if isinstance(outcome, AgentMemoryError)]
        world.agent = healthy
        assert await export(world) == lines
        history = await read_history(world.agent, chain[0], user_id="u")
        assert [record.id for record in history.records] == chain
        at += 2
    assert at > 15


async def import_during(world: World, lines: Sequence[bytes], act: Callable[[], Awaitable[object]]) -> list[Outcome]:
    """Import lines; run `act` between the reads of the collection and the first write."""
    store: Any = InterleavedStore(world.agent.store, Event(writes, act))
    outcomes = await import_all(World(replace(world.agent, store=store), clock=world.clock), lines)
    assert store.is_over
    return outcomes


async def test_concurrent_erasure_wins_over_import(world: World) -> None:
    memory_id = await world.add("secret")
    lines = await export(world)
    await delete_head(world.agent, memory_id, user_id="u")
    request = ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True), filters={})

    (outcome,) = await import_during(world, lines, lambda: world.forgetting.forget(world.agent, request))

    assert isinstance(outcome, Conflict)
    assert not [row for row in (await rows(world)).values() if "content" in row]


async def test_concurrently_restored_edit_is_kept(world: World) -> None:
    memory_id = await world.add("a")
    lines = await export(world)
    await delete_head(world.agent, memory_id, user_id="u")

    async def bring_back_and_edit() -> None:
        assert await import_all(world, lines) == ["imported"]
        await change_head(world.agent, memory_id, {"tags": ["new"]}, user_id="u")

    await import_during(world, lines, bring_back_and_edit)

    assert (await rows(world))[memory_id]["tags"] == ["new"]


async def test_concurrent_edit_keeps_its_revision(world: World) -> None:
    """If the import reused the revision of the edit, two states would have the same revision."""
    first = await world.add("v0", type="fact")
    second = await world.add("v1", type="fact", supersedes=first)
    lines = await export(world)
    await clear(world)
    edited: list[int] = []

    async def finish_and_edit() -> None:
        world.clock.move(ms=SWEEP_AFTER_MS + 1)
        assert await chains.sweep(world.agent) == 1
        await change_head(world.agent, second, {"tags": ["new"]}, user_id="u")
        edited.append((await rows(world))[second]["rev"])

    def is_publication(name: str, arguments: tuple[Any, ...]) -> bool:
        return name == "batch" and any("set_payload" in operation for operation in arguments[1])

    store: Any = InterleavedStore(world.agent.store, Event(is_publication, finish_and_edit))
    await import_all(World(replace(world.agent, store=store), clock=world.clock), lines)

    assert store.is_over
    now = (await rows(world))[second]
    assert (now["tags"], now["pending"]) == (["new"], False)
    assert now["rev"] >= edited[0]


async def fill_merged(world: World) -> str:
    """Store a memory that was merged twice and has a connection; return its id."""
    a, b, c = [await world.add(content, type="fact") for content in ("a", "b", "c")]
    ab = await merge_memories(world, "ab", await world.add("a2", type="fact", supersedes=a), b)
    assert ab is not None
    abc = await merge_memories(world, "abc", ab, c, source_ids=(ab, c))
    assert abc is not None
    noted = {"connections": [{"id": a, "description": "why"}], "consolidated": True}
    await world.agent.store.set_payload(world.agent.alias, noted, {"must": [{"has_id": [abc]}]})
    return abc


@pytest.mark.parametrize("size", [1, 2, 100])
async def test_merged_memory_is_imported_with_sources(world: World, size: int) -> None:
    memory_id = await fill_merged(world)
    before, lines = await read_history(world.agent, memory_id, user_id="u"), await export(world)
    await clear(world)

    assert set(await import_all(world, lines, size=size)) == {"imported"}

    after = await read_history(world.agent, memory_id, user_id="u")
    for old, new in zip(before.records, after.records, strict=True):
        assert (old.id, old.content, old.source_ids) == (new.id, new.content, new.source_ids)
        assert set(old.supersedes_ids) == set(new.supersedes_ids)
        assert (old.superseded_by_id, old.consolidated) == (new.superseded_by_id, new.consolidated)
    assert after.records[-1].connections == before.records[-1].connections
    assert await world.heads() == ["abc"]
    assert set(await import_all(world, lines, size=size)) == {"present"}
    await delete_head(world.agent, memory_id, user_id="u")
    assert sorted(await world.heads()) == ["ab", "c"]


async def test_merge_of_superseded_source_is_refused(world: World) -> None:
    """A source has another successor in the target."""
    await fill_merged(world)
    lines = await export(world)
    await clear(world)
    await import_all(world, lines[:1])
    (first,) = await world.rows()
    await world.add("another", type="fact", supersedes=first.id)

    outcomes = await import_all(world, lines[1:])

    assert any(isinstance(outcome, Conflict) for outcome in outcomes)
    assert "another" in await world.heads()


async def test_erasure_covers_merged_memories(world: World) -> None:
    await fill_merged(world)

    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))

    assert await world.heads() == []
    assert all("content" not in row and "connections" not in row for row in (await rows(world)).values())
    assert not any(row.get("pending") for row in (await rows(world)).values())
