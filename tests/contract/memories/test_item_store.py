"""Items on a real engine: one point for each key, and the last write wins."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.errors import Conflict, EmbedderUnavailable, FieldError, NotFound, RequestInvalid
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.item_store import Items, StoredItem
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.filters import Selection
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.rules.secret_patterns import OWN_RULES
from agentmemory_operator.memories.stored_memories import change_head, delete_head
from agentmemory_operator.ports.base import Json, Vector
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.search.requests import SearchRequest
from tests.support.engine.agents import FakeEmbedder, World, vector_of
from tests.support.engine.reused_agents import reuse_world

pytestmark = pytest.mark.usefixtures("keeps_vectors")

HOME = ("memories", "u")
ADDRESS = Address(user_id="u", namespace=HOME, key="k")


class InterruptedStore:
    """Runs `happens` once: before a write, or between a write and its read."""

    def __init__(self, store: PointStore, *, before: str, happens: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._before = before
        self._happens: Callable[[], Awaitable[object]] | None = happens
        self._has_written = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def upsert(self, *arguments: Any, **options: Any) -> None:
        await self._interrupt(self._before == "write")
        await self._store.upsert(*arguments, **options)
        self._has_written = True

    async def batch(self, *arguments: Any, **options: Any) -> None:
        await self._interrupt(self._before == "write")
        await self._store.batch(*arguments, **options)
        self._has_written = True

    async def retrieve(self, *arguments: Any, **options: Any) -> list[Json]:
        await self._interrupt(self._before == "read" and self._has_written)
        return await self._store.retrieve(*arguments, **options)

    async def _interrupt(self, is_due: bool) -> None:
        happens = self._happens
        if is_due and happens:
            self._happens = None
            await happens()


async def put(world: World, content: str, address: Address = ADDRESS, **more: Any) -> StoredItem:
    item = ItemContent(content=content, vector=vector_of(content), **more)
    return await world.items.put(world.agent, address, item)


async def row_of(world: World, memory_id: str) -> Json:
    [point] = await world.agent.store.retrieve(world.agent.alias, [memory_id])
    return cast(Json, point["payload"])


async def test_item_is_read_as_it_was_put(world: World) -> None:
    stored = await put(world, "c", metadata={"n": 1})

    record = await world.items.get(world.agent, ADDRESS)

    assert (stored.memory_id, stored.key, stored.outcome) == (record.id, "k", "created")
    assert (record.content, record.metadata, record.key, record.namespace) == ("c", {"n": 1}, "k", HOME)
    assert (record.type, record.rev, record.valid_from) == ("fact", 1, world.clock.now_ms())


async def test_second_put_keeps_only_access_history(world: World) -> None:
    first = await put(world, "c", metadata={"n": 1})
    created_at = world.clock.now_ms()
    world.counts.note(world.agent.settings.slug, [first.memory_id])
    await world.counts.flush()
    world.clock.move(ms=5)

    second = await put(world, "d")

    record = await world.items.get(world.agent, ADDRESS)
    assert (second.memory_id, second.outcome) == (first.memory_id, "replaced")
    assert (record.content, record.metadata, record.access_count, record.rev) == ("d", {}, 1, 3)
    assert (record.created_at, record.valid_from) == (created_at, created_at + 5)
    assert await world.heads() == ["d"]


async def test_only_new_content_is_embedded(world: World) -> None:
    embedder = FakeEmbedder()
    world.set_embedder(embedder)
    for content, metadata in [("c", {"n": 1}), ("c", {"m": 2}), ("c", {}), ("d", {})]:
        await world.items.put(world.agent, ADDRESS, ItemContent(content=content, metadata=metadata))

    record = await world.items.get(world.agent, ADDRESS)
    assert embedder.texts == ["c", "d"]
    assert (record.content, record.metadata, record.rev) == ("d", {}, 4)


async def test_metadata_is_replaced_for_same_content(world: World) -> None:
    world.set_embedder(FakeEmbedder())
    await world.items.put(world.agent, ADDRESS, ItemContent(content="c", metadata={"a": {"b": 1}, "c": 2}))

    await world.items.put(world.agent, ADDRESS, ItemContent(content="c", metadata={"a": {"d": 1}}))

    assert (await world.items.get(world.agent, ADDRESS)).metadata == {"a": {"d": 1}}


async def test_users_share_no_keys(world: World) -> None:
    ours, theirs = (Address(user_id=user, namespace=("docs", "api"), key="k") for user in ("u", "v"))
    await put(world, "ours", ours)

    with pytest.raises(NotFound, match="no item 'k' in the namespace docs/api"):
        await world.items.get(world.agent, theirs)
    with pytest.raises(NotFound):
        await world.items.delete(world.agent, theirs)
    await put(world, "theirs", theirs)

    assert (await world.items.get(world.agent, ours)).content == "ours"


async def test_deleted_item_is_not_found_until_put_again(world: World) -> None:
    first = await put(world, "c", metadata={"n": 1})
    await world.items.delete(world.agent, ADDRESS)

    for call in (world.items.get, world.items.delete):
        with pytest.raises(NotFound):
            await call(world.agent, ADDRESS)
    assert "content" not in await row_of(world, first.memory_id)
    assert (await world.items.keys(world.agent, "u", namespace=HOME, limit=9)).keys == ()

    world.clock.move(ms=7)
    again = await put(world, "d")
    record = await world.items.get(world.agent, ADDRESS)
    assert (again.memory_id, again.outcome, record.rev) == (first.memory_id, "created", 3)
    assert (record.content, record.metadata, record.created_at) == ("d", {}, world.clock.now_ms())


async def test_item_deleted_by_id_can_be_put_again(world: World) -> None:
    first = await put(world, "c")

    await delete_head(world.agent, first.memory_id, user_id="u")

    assert (await put(world, "d")).outcome == "created"
    assert await world.heads() == ["d"]


async def test_expired_item_is_not_found(world: World) -> None:
    first = await put(world, "c")
    expiry = {"expiresAt": world.clock.now_ms() + 5}
    await world.agent.store.set_payload(world.agent.alias, expiry, {"must": [{"has_id": [first.memory_id]}]})
    world.clock.move(ms=5)

    with pytest.raises(NotFound):
        await world.items.get(world.agent, ADDRESS)
    assert (await put(world, "d")).outcome == "created"
    assert (await world.items.get(world.agent, ADDRESS)).expires_at is None


async def test_write_with_stale_read_applies_last(world: World) -> None:
    await put(world, "first")
    await put(interrupted(world, before="write", content="between"), "last")

    record = await world.items.get(world.agent, ADDRESS)
    assert (record.content, record.rev) == ("last", 3)


async def test_write_replaced_at_once_is_not_repeated(world: World) -> None:
    await put(world, "first")
    await put(interrupted(world, before="read", content="last"), "between")

    record = await world.items.get(world.agent, ADDRESS)
    assert (record.content, record.rev) == ("last", 3)


async def test_deletion_followed_by_put_is_not_repeated(world: World) -> None:
    await put(world, "first")
    other = interrupted(world, before="read", content="last")
    await other.items.delete(other.agent, ADDRESS)

    assert (await world.items.get(world.agent, ADDRESS)).content == "last"


def interrupted(world: World, *, before: str, content: str) -> World:
    """Return another process; while it writes, `world` puts an item."""
    store = InterruptedStore(world.agent.store, before=before, happens=lambda: put(world, content))
    return World(replace(world.agent, store=cast(PointStore, store)), world.clock)


async def test_each_concurrent_write_applies_once(world: World) -> None:
    processes = [Items(world.clock) for _ in range(4)]

    async def write(number: int) -> None:
        item = ItemContent(content=str(number), vector=vector_of(number))
        await processes[number % 4].put(world.agent, ADDRESS, item)

    await asyncio.gather(*map(write, range(60)))
    await write(60)

    record = await world.items.get(world.agent, ADDRESS)
    assert (record.content, record.rev) == ("60", 61)
    assert len(await world.rows()) == 1


async def test_idempotency_key_writes_once(world: World) -> None:
    """A repeated put writes nothing, even after other puts."""
    await put(world, "mine", idempotency_key="once")
    await put(world, "another's")

    again = await put(world, "mine", idempotency_key="once")

    assert again.outcome == "repeated"
    assert await world.heads() == ["another's"]
    with pytest.raises(Conflict, match="Idempotency-Key: already used with another body"):
        await put(world, "changed", idempotency_key="once")


async def test_repeated_write_restores_no_deleted_item(world: World) -> None:
    for delete in (
        lambda: world.items.delete(world.agent, ADDRESS),
        lambda: delete_head(world.agent, ADDRESS.id_in(world.agent.settings.slug), user_id="u"),
    ):
        await put(world, "mine", idempotency_key=f"once {delete}")
        await delete()
        again = await put(world, "mine", idempotency_key=f"once {delete}")

        assert again.outcome == "repeated"
        with pytest.raises(NotFound):
            await world.items.get(world.agent, ADDRESS)


async def test_waiting_writes_are_combined(world: World) -> None:
    written: list[Json] = []
    store = world.agent.store

    class CountingStore:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def upsert(self, alias: str, points: Sequence[Json], **options: Any) -> None:
            written.extend(points)
            await store.upsert(alias, points, **options)

    world.agent = replace(world.agent, store=cast(PointStore, CountingStore()))
    contents = [*map(str, range(50)), "once", "once"]
    keys = [None] * 50 + ["key"] * 2

    stored = await asyncio.gather(
        *(put(world, content, idempotency_key=key) for content, key in zip(contents, keys, strict=True))
    )

    record = await world.items.get(world.agent, ADDRESS)
    assert (record.content, record.rev) == ("once", 51)
    assert [item.outcome for item in stored].count("created") == 1
    assert [item.outcome for item in stored].count("repeated") == 1
    assert len(written) < 10


async def test_refused_content_spares_waiting_writes(world: World) -> None:
    class Refusing(FakeEmbedder):
        async def embed(self, texts: Sequence[str]) -> list[Vector]:
            if "refused" in texts:
                raise RequestInvalid([FieldError("content", "too long for the model")])
            return await super().embed(texts)

    world.set_embedder(Refusing())
    contents = ["first", "second", "third", "refused"]
    items = [ItemContent(content=content) for content in contents]

    stored = await asyncio.gather(
        *(world.items.put(world.agent, ADDRESS, item) for item in items), return_exceptions=True
    )

    assert [type(outcome).__name__ for outcome in stored] == [
        "StoredItem",
        "StoredItem",
        "StoredItem",
        "RequestInvalid",
    ]
    assert await world.heads() == ["third"]


def batch_of(contents: Sequence[str]) -> list[tuple[Address, ItemContent]]:
    return [
        (Address(user_id="u", namespace=HOME, key=f"k{place}"), ItemContent(content=content))
        for place, content in enumerate(contents)
    ]


async def test_batch_is_embedded_in_few_calls(world: World) -> None:
    class Slow(FakeEmbedder):
        async def embed(self, texts: Sequence[str]) -> list[Vector]:
            await asyncio.sleep(0.05)
            return await super().embed(texts)

    embedder = Slow()
    world.set_embedder(embedder)

    stored = await world.items.put_many(world.agent, batch_of([f"item {number}" for number in range(100)]))

    assert [item.key for item in stored if isinstance(item, StoredItem)] == [f"k{place}" for place in range(100)]
    assert sorted(embedder.texts) == sorted(f"item {number}" for number in range(100))
    assert embedder.calls < 50


async def test_refused_content_spares_rest_of_batch(world: World) -> None:
    world.set_embedder(FakeEmbedder(refused="refused"))

    stored = await world.items.put_many(world.agent, batch_of(["a", "refused", "b", "refused", "c"]))

    assert [type(outcome).__name__ for outcome in stored] == [
        "StoredItem",
        "RequestInvalid",
        "StoredItem",
        "RequestInvalid",
        "StoredItem",
    ]
    assert sorted(await world.heads()) == ["a", "b", "c"]


async def test_batch_fails_only_if_nothing_was_written(world: World) -> None:
    embedder = FakeEmbedder()
    world.set_embedder(embedder)
    await world.items.put_many(world.agent, batch_of(["kept"]))
    embedder.is_away, calls = True, embedder.calls

    # Existing contents are not embedded.
    stored = await world.items.put_many(world.agent, batch_of(["kept", "new", "newer"]))
    with pytest.raises(EmbedderUnavailable):
        await world.items.put_many(world.agent, batch_of([f"none {number}" for number in range(100)]))

    assert [type(outcome).__name__ for outcome in stored] == [
        "StoredItem",
        "EmbedderUnavailable",
        "EmbedderUnavailable",
    ]
    assert embedder.calls == calls + 2, "an unavailable service is called once per batch"
    assert await world.heads() == ["kept"]


async def test_oversized_item_is_refused_with_token_count(world: World) -> None:
    await put(world, "x" * 8192)

    with pytest.raises(
        RequestInvalid, match=r"content: has 2049 tokens \(4 characters each\), more than the limit of 2048"
    ):
        await put(world, "x" * 8193)


async def test_keys_of_a_namespace_are_paged(world: World) -> None:
    for number in range(5):
        await put(world, "c", Address(user_id="u", namespace=HOME, key=f"k{number}"))
    await put(world, "c", Address(user_id="u", namespace=(*HOME, "deeper"), key="elsewhere"))
    await world.add("no item", namespace=HOME, key="a key of another kind")

    first = await world.items.keys(world.agent, "u", namespace=HOME, limit=3)
    rest = await world.items.keys(world.agent, "u", namespace=HOME, limit=3, cursor=first.next_cursor)

    assert (len(first.keys), rest.next_cursor) == (3, None)
    assert sorted((*first.keys, *rest.keys)) == [f"k{number}" for number in range(5)]
    with pytest.raises(RequestInvalid, match="cursor: 'mine' is not a next_cursor"):
        await world.items.keys(world.agent, "u", namespace=HOME, limit=3, cursor="mine")


async def test_namespaces_are_counted_below_a_prefix(world: World) -> None:
    places = [HOME, HOME, (*HOME, "a"), ("docs", "api")]
    for number, place in enumerate(places):
        await put(world, "c", Address(user_id="u", namespace=place, key=str(number)))
    await put(world, "c", Address(user_id="v", namespace=("memories", "v"), key="k"))

    found = {
        prefix: [(size.namespace, size.items) for size in await world.items.namespaces(world.agent, "u", prefix=prefix)]
        for prefix in [(), ("memories",), HOME]
    }

    assert found[HOME] == found["memories",] == [(HOME, 2), ((*HOME, "a"), 1)]
    assert found[()] == [(("docs", "api"), 1), *found[HOME]]


async def test_search_by_namespace_prefix_finds_items(world: World) -> None:
    await put(world, "c", Address(user_id="u", namespace=(*HOME, "work"), key="k"))
    await world.add("elsewhere")

    selection = Selection(user_id="u", namespace=HOME)
    answer = await world.recall.search(world.agent, SearchRequest(selection=selection, vector=vector_of("c")))

    assert [(found.record.content, found.record.key) for found in answer.results] == [("c", "k")]


async def test_item_cannot_be_superseded(world: World) -> None:
    stored = await put(world, "c")

    memory = IncomingMemory(user_id="u", content="d", vector=vector_of("d"), supersedes=stored.memory_id)
    [refused] = await world.remember.store(world.agent, [memory])

    assert isinstance(refused, Conflict)
    assert "is an item" in str(refused)


async def test_keyword_search_uses_current_content(qdrant_url: str) -> None:
    async with reuse_world(qdrant_url, keyword=KeywordSource(language="english", window=2)) as world:
        world.set_embedder(FakeEmbedder())
        for content in ("apples", "pears"):
            await world.items.put(world.agent, ADDRESS, ItemContent(content=content))

        async def words(query: str) -> list[float | None]:
            request = SearchRequest(selection=Selection(user_id="u"), query=query, explain=True)
            answer = await world.recall.search(world.agent, request)
            return [found.match.keyword for found in answer.results if found.match]

        assert await words("apples") == [0.0]
        assert (await words("pears"))[0] != 0.0


async def test_secrets_are_redacted_before_embedding(world: World) -> None:
    embedder = FakeEmbedder()
    world.set_embedder(embedder)
    world.agent = replace(world.agent, secret_rules=OWN_RULES)
    item = ItemContent(content="The password: hunter2", metadata={"note": "password: hunter2"})
    stored = await world.items.put(world.agent, ADDRESS, item)

    record = await world.items.get(world.agent, ADDRESS)
    assert "hunter2" not in repr((record, embedder.texts))
    assert [warning.partition(":")[0] for warning in stored.warnings] == ["content", "metadata"]


async def test_token_limit_applies_to_every_memory(world: World) -> None:
    world.agent = replace(world.agent, settings=replace(world.agent.settings, max_content_tokens=10))

    assert isinstance(await world.try_add("x" * 40), StoredMemory)
    refused = await world.try_add("x" * 41)

    assert isinstance(refused, RequestInvalid)
    assert [error.field for error in refused.errors] == ["content"]


async def test_cloned_agent_finds_items_of_its_origin(world: World) -> None:
    before = await put(world, "first")

    world.agent = replace(world.agent, origin=world.agent.settings.slug)
    assert (await put(world, "second")).memory_id == before.memory_id

    world.agent = replace(world.agent, origin="elsewhere")
    with pytest.raises(NotFound):
        await world.items.get(world.agent, ADDRESS)
    assert (await put(world, "third")).memory_id == ADDRESS.id_in("elsewhere")


FIELDS: dict[str, Any] = {"importance": 0.9, "tags": ("a", "b"), "category": "semantic"}


async def test_put_resets_fields_that_it_omits(world: World) -> None:
    await put(world, "c", **FIELDS, expires_at=world.clock.now_ms() + 10)
    first = await world.items.get(world.agent, ADDRESS)

    await put(world, "c")

    second = await world.items.get(world.agent, ADDRESS)
    assert {name: getattr(first, name) for name in FIELDS} == FIELDS
    assert first.expires_at == world.clock.now_ms() + 10
    assert (second.importance, second.tags, second.category, second.expires_at) == (0.5, (), None, None)


@pytest.mark.parametrize("embeds", [True, False])
async def test_fields_change_for_same_content(world: World, embeds: bool) -> None:
    world.set_embedder(FakeEmbedder()) if embeds else None
    vector = None if embeds else vector_of("c")
    for fields in (FIELDS, {}, FIELDS):
        await world.items.put(world.agent, ADDRESS, ItemContent(content="c", vector=vector, **fields))
        record = await world.items.get(world.agent, ADDRESS)
        assert record.tags == fields.get("tags", ())


async def test_idempotency_key_covers_all_fields(world: World) -> None:
    await put(world, "c", idempotency_key="i")

    assert (await put(world, "c", idempotency_key="i")).outcome == "repeated"
    with pytest.raises(Conflict, match="another body"):
        await put(world, "c", idempotency_key="i", importance=0.9)


def test_request_hash_is_stable_across_releases() -> None:
    item = ItemContent(content="c", metadata={"n": 1}, idempotency_key="i")

    # Version 0.1.0 stored this mark.
    assert item.mark("") == "de7d1b721a1e0632:ac30e6d83a9136d3"


async def test_parent_must_belong_to_the_user(world: World) -> None:
    theirs = await world.add("theirs", user_id="v")

    with pytest.raises(NotFound, match="parent_id: this user has no memory"):
        await put(world, "c", parent_id=theirs)


async def test_cycle_of_parents_is_refused(world: World) -> None:
    stored = await put(world, "above")
    below = await world.add("below", parent_id=stored.memory_id)

    with pytest.raises(RequestInvalid, match="a memory cannot be its own parent"):
        await put(world, "above", parent_id=stored.memory_id)
    with pytest.raises(RequestInvalid, match="have a cycle"):
        await put(world, "above", parent_id=below)
    await world.items.delete(world.agent, ADDRESS)
    with pytest.raises(RequestInvalid, match="have a cycle"):
        await put(world, "above", parent_id=below)


async def test_parent_cannot_be_changed(world: World) -> None:
    parents = [await world.add(name) for name in ("one", "other")]
    await put(world, "c", parent_id=parents[0])

    with pytest.raises(Conflict, match=r"parent_id: .* delete the item first"):
        await put(world, "d", parent_id=parents[1])
    await put(world, "d")

    record = await world.items.get(world.agent, ADDRESS)
    assert (record.content, record.parent_id) == ("d", parents[0])


async def test_change_time_ignores_accesses(world: World) -> None:
    """Only puts and changes in place set the change time."""
    stored = await put(world, "a")
    put_at = world.clock.now_ms()
    world.clock.move(ms=10)
    world.counts.note(world.agent.settings.slug, [stored.memory_id])
    await world.counts.flush()
    found = await world.items.get(world.agent, ADDRESS)
    assert (found.access_count, found.last_changed_at) == (1, put_at)

    await change_head(world.agent, stored.memory_id, {"importance": 0.9}, user_id="u")
    assert (await world.items.get(world.agent, ADDRESS)).last_changed_at == put_at + 10
    world.clock.move(ms=10)
    await put(world, "a")
    assert (await world.items.get(world.agent, ADDRESS)).last_changed_at == put_at + 20
