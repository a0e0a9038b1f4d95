"""Conditional writes on a real engine: of several writers that name one version, exactly one wins.

The clock of a `World` stands still, so no test depends on times that differ.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from agentmemory_operator.errors import AgentMemoryError, Conflict, NotFound, OutcomeUnknown
from agentmemory_operator.memories import zone_changes
from agentmemory_operator.memories.item_store import Items, StoredItem
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.rules.preconditions import ANY, Precondition, PreconditionFailed
from agentmemory_operator.memories.rules.record import MemoryRecord
from agentmemory_operator.memories.stored_memories import change_head, delete_head, read_memory
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.spec.zones import Zone, ZoneSettings
from agentmemory_operator.zones.keyring import AgentKeys, Keyring
from agentmemory_operator.zones.sealed_store import ZoneKeys
from tests.support.engine.agents import FakeEmbedder, World, create_copy, delete_collection, move_alias, vector_of
from tests.support.engine.interleaved_store import Event, InterleavedStore, writes
from tests.support.zones import RING, FakeKeyShards, FakeWrapping

pytestmark = pytest.mark.usefixtures("keeps_vectors")

HOME = ("memories", "u")
ADDRESS = Address(user_id="u", namespace=HOME, key="k")
ABSENT = Precondition(None)


async def put(world: World, content: str, address: Address = ADDRESS, **more: Any) -> StoredItem:
    vector = None if world.agent.source.provider != "none" else vector_of(content)
    return await world.items.put(world.agent, address, ItemContent(content=content, vector=vector, **more))


async def etag_of_item(world: World, address: Address = ADDRESS) -> str:
    etag = (await world.items.get(world.agent, address)).etag
    assert etag
    return etag


async def change(world: World, memory_id: str, changes: dict[str, Any] | None = None, **more: Any) -> MemoryRecord:
    return await change_head(world.agent, memory_id, changes or {"importance": 0.9}, user_id="u", **more)


async def etag_of_memory(world: World, memory_id: str) -> str:
    etag = (await read_memory(world.agent, memory_id, user_id="u")).etag
    assert etag
    return etag


def interrupted(world: World, act: Callable[[], Awaitable[object]], *, after: bool = False) -> World:
    """Return another process, in which `act` happens at its first write."""
    store = InterleavedStore(world.agent.store, Event(writes, act, after=after))
    return World(replace(world.agent, store=cast(PointStore, store)), world.clock)


def zoned(world: World) -> World:
    """Return the agent with zones."""
    keys = ZoneKeys(Keyring(FakeKeyShards(), world.clock), AgentKeys(RING, FakeWrapping()), "bot", "acme")
    zones = ZoneSettings(allowed=frozenset(Zone), vectors=frozenset(Zone), secret_name="k")
    return World(replace(world.agent, zone_keys=keys, settings=replace(world.agent.settings, zones=zones)), world.clock)


class TestItem:
    async def test_is_created_only_once(self, world: World) -> None:
        first = await put(world, "first", precondition=ABSENT)

        with pytest.raises(PreconditionFailed, match="If-None-Match: it is stored already") as failure:
            await put(world, "second", precondition=ABSENT)

        assert failure.value.etag == first.etag == await etag_of_item(world)
        assert await world.heads() == ["first"]

    async def test_named_version_is_replaced(self, world: World) -> None:
        first = await put(world, "first")

        second = await put(world, "second", precondition=Precondition(first.etag))

        assert second.outcome == "replaced"
        assert second.etag != first.etag
        assert await world.heads() == ["second"]

    async def test_other_version_is_kept(self, world: World) -> None:
        first = await put(world, "first")
        second = await put(world, "second")

        with pytest.raises(PreconditionFailed, match="If-Match: the stored version has another ETag") as failure:
            await put(world, "third", precondition=Precondition(first.etag))

        assert failure.value.etag == second.etag
        assert await world.heads() == ["second"]

    async def test_absent_item_has_no_version(self, world: World) -> None:
        for precondition in (Precondition("0"), Precondition(ANY)):
            with pytest.raises(PreconditionFailed, match="If-Match: nothing is stored here") as failure:
                await put(world, "first", precondition=precondition)
            assert failure.value.etag is None

        await put(world, "first")
        assert (await put(world, "second", precondition=Precondition(ANY))).outcome == "replaced"

    async def test_deleted_item_is_absent(self, world: World) -> None:
        first = await put(world, "first")
        await world.items.delete(world.agent, ADDRESS)

        with pytest.raises(PreconditionFailed):
            await put(world, "second", precondition=Precondition(first.etag))
        again = await put(world, "first", precondition=ABSENT)

        assert again.outcome == "created"
        assert again.etag != first.etag

    async def test_expired_item_is_absent(self, world: World) -> None:
        await put(world, "first", expires_at=world.clock.now_ms() + 5)
        world.clock.move(ms=5)

        with pytest.raises(PreconditionFailed) as failure:
            await put(world, "second", precondition=Precondition(ANY))
        assert failure.value.etag is None
        assert (await put(world, "second", precondition=ABSENT)).outcome == "created"

    async def test_answered_etag_is_that_of_the_next_read(self, world: World) -> None:
        world.set_embedder(FakeEmbedder())
        tags = []
        for more in (
            {"content": "c", "author": "a"},
            {"content": "c", "metadata": {"n": 1}},
            {"content": "c", "metadata": {"n": 1}},
            {"content": "d", "importance": 0.1, "category": "x"},
            {"content": "d", "expires_at": world.clock.now_ms() + 5},
        ):
            stored = await put(world, **more)
            assert stored.etag == await etag_of_item(world), more
            tags.append(stored.etag)
            changed = await change(world, stored.memory_id)
            assert changed.etag == await etag_of_item(world)
            tags.append(changed.etag)
        world.clock.move(ms=5)
        tags.append((await put(world, "d")).etag)
        assert tags[-1] == await etag_of_item(world)
        assert len(set(tags)) == 11

    @pytest.mark.parametrize("zone", Zone)
    async def test_in_a_zone_has_the_answered_etag(self, world: World, zone: Zone) -> None:
        world = zoned(world)
        address = replace(ADDRESS, zone=zone)
        tags = [(await put(world, content, address, category="x", tags=("t",))).etag for content in ("c", "c", "d")]

        assert tags[-1] == await etag_of_item(world, address)
        assert len(set(tags)) == 3

    async def test_access_count_keeps_the_version(self, world: World) -> None:
        stored = await put(world, "first")

        async def count() -> None:
            world.counts.note(world.agent.settings.slug, [stored.memory_id])
            await world.counts.flush()

        await count()
        assert await etag_of_item(world) == stored.etag
        await put(interrupted(world, count), "second", precondition=Precondition(stored.etag))

        record = await world.items.get(world.agent, ADDRESS)
        assert (record.content, record.access_count, record.rev) == ("second", 2, 4)

    async def test_writer_between_read_and_write_wins(self, world: World) -> None:
        stored = await put(world, "first")
        other = interrupted(world, lambda: put(world, "between"))

        with pytest.raises(PreconditionFailed) as failure:
            await put(other, "last", precondition=Precondition(stored.etag))

        assert failure.value.etag == await etag_of_item(world)
        assert await world.heads() == ["between"]

    async def test_creator_between_read_and_write_wins(self, world: World) -> None:
        other = interrupted(world, lambda: put(world, "between"))

        with pytest.raises(PreconditionFailed):
            await put(other, "last", precondition=ABSENT)

        assert await world.heads() == ["between"]

    async def test_write_replaced_at_once_has_succeeded(self, world: World) -> None:
        stored = await put(world, "first")
        other = interrupted(world, lambda: put(world, "last"), after=True)

        mine = await put(other, "mine", precondition=Precondition(stored.etag))

        assert mine.outcome == "replaced"
        assert mine.etag != await etag_of_item(world)
        assert await world.heads() == ["last"]

    async def test_condition_precedes_other_conflicts(self, world: World) -> None:
        first = await put(world, "first")
        parent = await world.add("parent")

        with pytest.raises(PreconditionFailed):
            await put(world, "second", parent_id=parent, precondition=ABSENT)
        with pytest.raises(Conflict, match="parent_id"):
            await put(world, "second", parent_id=parent, precondition=Precondition(first.etag))


async def outcomes_of(calls: Sequence[Awaitable[StoredItem]]) -> tuple[list[StoredItem], list[PreconditionFailed]]:
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    stored = [outcome for outcome in outcomes if isinstance(outcome, StoredItem)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, PreconditionFailed)]
    assert len(stored) + len(failures) == len(outcomes), outcomes
    return stored, failures


class TestConcurrentPuts:
    @pytest.mark.parametrize("processes", [1, 4])
    async def test_exactly_one_wins(self, world: World, processes: int) -> None:
        """Equal contents too: a writer must not take the version of another one for its own."""
        items = [Items(world.clock) for _ in range(processes)]
        etag: str | None = None
        for round_ in range(4):
            precondition = Precondition(etag)
            content = ItemContent(content=f"{round_}", vector=vector_of(round_), precondition=precondition)
            calls = [items[number % processes].put(world.agent, ADDRESS, content) for number in range(12)]
            [winner], failures = await outcomes_of(calls)

            etag = await etag_of_item(world)
            assert winner.etag == etag
            assert {failure.etag for failure in failures} == {etag}
        assert (await world.items.get(world.agent, ADDRESS)).rev == 4

    async def test_no_increment_is_lost(self, world: World) -> None:
        await put(world, "0", metadata={"n": 0})

        async def increment(items: Items) -> None:
            for _ in range(5):
                while True:
                    record = await items.get(world.agent, ADDRESS)
                    content = ItemContent(
                        content="c",
                        vector=vector_of("c"),
                        metadata={"n": record.metadata["n"] + 1},
                        precondition=Precondition(record.etag),
                    )
                    try:
                        await items.put(world.agent, ADDRESS, content)
                        break
                    except PreconditionFailed:
                        continue

        await asyncio.gather(*(increment(Items(world.clock)) for _ in range(4)))

        assert (await world.items.get(world.agent, ADDRESS)).metadata == {"n": 20}

    async def test_unconditional_put_before_it_fails_the_condition(self, world: World) -> None:
        first = await put(world, "first")
        holder = asyncio.create_task(put(world, "holder"))
        await asyncio.sleep(0)

        waiting = [put(world, "plain"), put(world, "conditional", precondition=Precondition(first.etag))]
        [plain], [failure] = await outcomes_of(waiting)

        await holder
        assert failure.etag == plain.etag == await etag_of_item(world)
        assert await world.heads() == ["plain"]

    async def test_cancelled_caller_leaves_the_outcome_of_others(self, world: World) -> None:
        """The put of a cancelled caller also stored the puts that waited for it."""
        first = await put(world, "first")
        reached, forever = asyncio.Event(), asyncio.Event()

        async def hang() -> None:
            reached.set()
            await forever.wait()

        # The first put holds the lock until the others wait; the second stores the third too, and is cancelled.
        events = [Event(writes, lambda: asyncio.sleep(0.05)), Event(writes, hang, after=True)]
        store = InterleavedStore(world.agent.store, *events)
        other = World(replace(world.agent, store=cast(PointStore, store)), world.clock)
        holder = asyncio.create_task(put(other, "holder", precondition=Precondition(first.etag)))
        await asyncio.sleep(0.01)
        cancelled = asyncio.create_task(put(other, "cancelled"))
        conditional = asyncio.create_task(put(other, "conditional", precondition=Precondition(ANY)))
        await reached.wait()
        cancelled.cancel()

        stored = await conditional

        await holder
        assert stored.etag == await etag_of_item(world)
        assert (await world.items.get(world.agent, ADDRESS)).rev == 4, "each put took effect once"


class TestRepeatedPut:
    async def test_has_the_first_answer(self, world: World) -> None:
        """Also after later writes. The tag is no longer that of the item, so it cannot overwrite them."""
        first = await put(world, "mine", idempotency_key="once", precondition=ABSENT)
        await put(world, "another's")

        again = await put(world, "mine", idempotency_key="once", precondition=ABSENT)

        assert (again.outcome, again.etag) == ("repeated", first.etag)
        assert again.etag != await etag_of_item(world)
        with pytest.raises(Conflict, match="Idempotency-Key: already used with another body"):
            await put(world, "changed", idempotency_key="once", precondition=ABSENT)

    async def test_after_deletion_has_no_etag(self, world: World) -> None:
        await put(world, "mine", idempotency_key="once")
        await world.items.delete(world.agent, ADDRESS)

        again = await put(world, "mine", idempotency_key="once")

        assert (again.outcome, again.etag) == ("repeated", None)

    async def test_after_a_failure_is_carried_out(self, world: World) -> None:
        first = await put(world, "first")
        with pytest.raises(PreconditionFailed) as failure:
            await put(world, "mine", idempotency_key="once", precondition=ABSENT)

        mine = await put(world, "mine", idempotency_key="once", precondition=Precondition(failure.value.etag))

        assert (mine.outcome, failure.value.etag) == ("replaced", first.etag)
        assert await world.heads() == ["mine"]

    async def test_after_an_unknown_outcome_succeeds(self, world: World) -> None:
        """A read, the write, and then no answer any more."""
        first = await put(world, "first")
        with pytest.raises(OutcomeUnknown):
            await put(world.crash_at(2), "mine", idempotency_key="once", precondition=Precondition(first.etag))

        again = await put(world, "mine", idempotency_key="once", precondition=Precondition(first.etag))

        assert (again.outcome, again.etag) == ("repeated", await etag_of_item(world))

    async def test_waiting_beside_the_first_has_its_etag(self, world: World) -> None:
        stored = await asyncio.gather(*(put(world, "mine", idempotency_key="once") for _ in range(3)))

        assert sorted(item.outcome for item in stored) == ["created", "repeated", "repeated"]
        assert {item.etag for item in stored} == {await etag_of_item(world)}


class TestItemDeletion:
    async def test_deletes_only_the_named_version(self, world: World) -> None:
        first = await put(world, "first")
        second = await put(world, "second")

        with pytest.raises(PreconditionFailed) as failure:
            await world.items.delete(world.agent, ADDRESS, precondition=Precondition(first.etag))
        assert failure.value.etag == second.etag
        await world.items.delete(world.agent, ADDRESS, precondition=Precondition(second.etag))

        with pytest.raises(NotFound):
            await world.items.delete(world.agent, ADDRESS, precondition=Precondition(second.etag))

    async def test_writer_between_read_and_write_wins(self, world: World) -> None:
        stored = await put(world, "first")
        other = interrupted(world, lambda: put(world, "between"))

        with pytest.raises(PreconditionFailed):
            await other.items.delete(other.agent, ADDRESS, precondition=Precondition(stored.etag))

        assert await world.heads() == ["between"]

    async def test_repeated_by_its_key_deletes_nothing_more(self, world: World) -> None:
        first = await put(world, "first", idempotency_key="put")
        options: dict[str, Any] = {"precondition": Precondition(first.etag), "idempotency_key": "once"}
        await world.items.delete(world.agent, ADDRESS, **options)
        await world.items.delete(world.agent, ADDRESS, **options)
        await put(world, "later")

        await world.items.delete(world.agent, ADDRESS, **options)

        assert await world.heads() == ["later"]
        await put(world, "fresh", idempotency_key="fresh")
        with pytest.raises(Conflict, match="Idempotency-Key"):
            await world.items.delete(world.agent, ADDRESS, idempotency_key="fresh")


class TestMemory:
    async def test_changes_only_in_the_named_version(self, world: World) -> None:
        memory_id = await world.add("a")
        etag = await etag_of_memory(world, memory_id)

        changed = await change(world, memory_id, precondition=Precondition(etag))

        with pytest.raises(PreconditionFailed) as failure:
            await change(world, memory_id, {"pinned": True}, precondition=Precondition(etag))
        assert failure.value.etag == changed.etag == await etag_of_memory(world, memory_id)
        assert not (await read_memory(world.agent, memory_id, user_id="u")).pinned

    async def test_exactly_one_of_equal_changes_wins(self, world: World) -> None:
        memory_id = await world.add("a")
        for _ in range(3):
            precondition = Precondition(await etag_of_memory(world, memory_id))
            calls = [change(world, memory_id, precondition=precondition) for _ in range(6)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)

            assert sorted(type(outcome).__name__ for outcome in outcomes) == [
                "MemoryRecord",
                *["PreconditionFailed"] * 5,
            ]

    async def test_change_followed_by_another_has_succeeded(self, world: World) -> None:
        memory_id = await world.add("a")
        precondition = Precondition(await etag_of_memory(world, memory_id))
        other = interrupted(world, lambda: change(world, memory_id, {"pinned": True}), after=True)

        changed = await change(other, memory_id, precondition=precondition)

        assert (changed.importance, changed.pinned) == (0.9, True)
        assert changed.etag == await etag_of_memory(world, memory_id)

    async def test_access_count_keeps_the_version(self, world: World) -> None:
        memory_id = await world.add("a")
        etag = await etag_of_memory(world, memory_id)

        async def count() -> None:
            world.counts.note(world.agent.settings.slug, [memory_id])
            await world.counts.flush()

        await count()
        assert await etag_of_memory(world, memory_id) == etag
        changed = await change(interrupted(world, count), memory_id, precondition=Precondition(etag))

        assert (changed.importance, changed.access_count) == (0.9, 2)

    async def test_superseded_version_has_another_etag(self, world: World) -> None:
        """Until its successor is deleted: it is then as it was read."""
        memory_id = await world.add("a")
        etag = await etag_of_memory(world, memory_id)
        successor = await world.add("b", supersedes=memory_id)

        with pytest.raises(PreconditionFailed):
            await change(world, memory_id, precondition=Precondition(etag))
        with pytest.raises(Conflict, match=successor):
            await change(world, memory_id, precondition=Precondition(await etag_of_memory(world, memory_id)))
        await delete_head(world.agent, successor, user_id="u")

        assert await etag_of_memory(world, memory_id) == etag

    async def test_repeated_change_changes_nothing_more(self, world: World) -> None:
        memory_id = await world.add("a")
        options = {
            "precondition": Precondition(await etag_of_memory(world, memory_id)),
            "idempotency_key": "once",
        }
        with pytest.raises(OutcomeUnknown):
            await change(world.crash_at(2), memory_id, **options)
        await change(world, memory_id, {"importance": 0.1})

        again = await change(world, memory_id, **options)

        assert again.importance == 0.1
        assert again.etag == await etag_of_memory(world, memory_id)
        with pytest.raises(Conflict, match="Idempotency-Key: already used with another body"):
            await change(world, memory_id, {"pinned": True}, idempotency_key="once")

    async def test_is_deleted_only_in_the_named_version(self, world: World) -> None:
        memory_id = await world.add("a")
        etag = await etag_of_memory(world, memory_id)
        other = interrupted(world, lambda: change(world, memory_id))

        with pytest.raises(PreconditionFailed):
            await delete_head(other.agent, memory_id, user_id="u", precondition=Precondition(etag))
        current = await etag_of_memory(world, memory_id)
        await delete_head(world.agent, memory_id, user_id="u", precondition=Precondition(current))

        assert await world.heads() == []

    async def test_zone_moves_only_in_the_named_version(self, world: World) -> None:
        world = zoned(world)
        old = await world.add("a")
        head = await world.add("b", supersedes=old)
        etag = await etag_of_memory(world, head)
        changed = await change(world, head)

        with pytest.raises(PreconditionFailed):
            await zone_changes.change_zone(world.agent, head, "PERSONAL", user_id="u", precondition=Precondition(etag))
        assert (await read_memory(world.agent, old, user_id="u")).zone is None
        for _ in range(2):
            moved = await zone_changes.change_zone(
                world.agent, head, "PERSONAL", user_id="u", precondition=Precondition(changed.etag)
            )
            assert (moved.zone, moved.etag) == ("PERSONAL", await etag_of_memory(world, head))
        assert moved.etag != changed.etag

    async def test_in_a_zone_stores_no_hash_of_a_change(self, world: World) -> None:
        world = zoned(world)
        memory_id = await world.add("a", zone="SENSITIVE")

        await change(world, memory_id, {"metadata": {"pin": 1234}}, idempotency_key="once")

        [point] = await world.agent.store.retrieve(world.agent.alias, [memory_id])
        [mark] = point["payload"]["requestMarks"]
        assert mark.endswith(":")
        assert (await change(world, memory_id, {"metadata": {"pin": 1234}}, idempotency_key="once")).rev == 2


async def test_failed_item_spares_rest_of_batch(world: World) -> None:
    await put(world, "first")
    items = [
        (replace(ADDRESS, key=key), ItemContent(content=key, vector=vector_of(key), precondition=ABSENT))
        for key in ("k", "new", "new")
    ]

    stored: list[StoredItem | AgentMemoryError] = await world.items.put_many(world.agent, items)

    assert [type(outcome).__name__ for outcome in stored] == ["PreconditionFailed", "StoredItem", "PreconditionFailed"]
    assert sorted(await world.heads()) == ["first", "new"]


class TestCopiedCollection:
    async def test_has_the_tags_of_its_source(self, world: World, qdrant_url: str) -> None:
        """As after a rebuild: a writer that has read before the alias moved writes after it."""
        item, memory_id = await put(world, "first"), await world.add("a")
        etag = await etag_of_memory(world, memory_id)
        async with copied(world, qdrant_url):
            assert await etag_of_item(world) == item.etag
            assert (await put(world, "second", precondition=Precondition(item.etag))).outcome == "replaced"
            assert (await change(world, memory_id, precondition=Precondition(etag))).importance == 0.9

    async def test_restored_version_has_its_former_tag(self, world: World, qdrant_url: str) -> None:
        """A restore loses the versions after the snapshot, and a writer of one of them must not overwrite."""
        first = await put(world, "first")
        async with copied(world, qdrant_url) as restore:
            second = await put(world, "second")
            await restore()

            with pytest.raises(PreconditionFailed) as failure:
                await put(world, "third", precondition=Precondition(second.etag))
            assert failure.value.etag == first.etag
            again = await put(world, "second", precondition=Precondition(first.etag))
            assert again.etag != second.etag


@contextlib.asynccontextmanager
async def copied(world: World, url: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Copy the points as they are to another collection behind the alias; yield a function that restores them there."""
    settings, store = world.agent.settings, world.agent.store
    points, _ = await store.scroll(settings.alias, {"with_payload": True, "with_vector": True, "limit": 100})
    copy = await create_copy(url, settings, keyword=None)

    async def restore() -> None:
        await store.delete(copy, {"must": []})
        await store.upsert(copy, points)

    await restore()
    await move_alias(url, settings, copy)
    try:
        yield restore
    finally:
        await move_alias(url, settings, f"{settings.alias}__1")
        await delete_collection(url, settings, number=2)
