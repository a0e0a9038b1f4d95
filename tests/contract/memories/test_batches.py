"""Batches on a real engine: duplicates, repetition, partial refusal, size limits."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant import points as qdrant_points
from agentmemory_operator.agents.count_cache import CountCache
from agentmemory_operator.errors import (
    Conflict,
    FieldError,
    KeysUnavailable,
    OutcomeUnknown,
    RequestInvalid,
    StoreRejected,
    StoreUnavailable,
)
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.insert import Outcome, StoredMemory
from agentmemory_operator.memories.stored_memories import count_stored
from agentmemory_operator.ports.base import Json, Vector
from tests.support.engine.agents import World, search_request, vector_of
from tests.support.engine.interleaved_store import CrashingStore, Event, InterleavedStore, Moment


def batch(*contents: str, key: str | None = None, **more: Any) -> list[IncomingMemory]:
    """Build a batch as the API does; with a key, each item gets its own idempotency key."""
    return [
        IncomingMemory(
            user_id="u",
            content=content,
            vector=vector_of(content),
            idempotency_key=None if key is None else f"{key}\x1f{place}",
            **more,
        )
        for place, content in enumerate(contents)
    ]


def ids(outcomes: Sequence[Outcome]) -> list[str]:
    assert all(isinstance(outcome, StoredMemory) for outcome in outcomes), outcomes
    return [outcome.id for outcome in outcomes if isinstance(outcome, StoredMemory)]


class PickyStore:
    """Refuses every upsert of more than `max_points` points, or with "poison" in a content."""

    def __init__(self, store: Any, *, max_points: int = 1000, is_partial: bool = False) -> None:
        self._store = store
        self._max_points = max_points
        self._is_partial = is_partial
        self.upserts: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def upsert(self, collection: str, points: Sequence[Json], **how: Any) -> None:
        self.upserts.append(len(points))
        if len(points) > self._max_points or any("poison" in point["payload"]["content"] for point in points):
            error = StoreRejected(400, "not this")
            error.is_partial = self._is_partial
            raise error
        await self._store.upsert(collection, points, **how)


@pytest.mark.parametrize("key", [None, "k"])
async def test_identical_items_are_one_memory(world: World, key: str | None) -> None:
    outcomes = await world.remember.store(world.agent, batch("a", "b", "a", key=key))

    first, _, repeated = outcomes
    assert repeated == replace(first, event="NONE", is_recorded=False)  # type: ignore[type-var]
    assert sorted(await world.heads()) == ["a", "b"]


@pytest.mark.parametrize("other", [{"type": "person"}, {"metadata": {"n": 1}}, {"tags": ("t",)}, {"created_at": 5}])
async def test_items_differing_in_one_field_are_two(world: World, other: dict[str, Any]) -> None:
    outcomes = await world.remember.store(world.agent, [*batch("a"), *batch("a", **other)])

    assert len(set(ids(outcomes))) == 2


async def test_second_equal_successor_is_a_conflict(world: World) -> None:
    old = await world.add("old")

    first, second = await world.remember.store(world.agent, batch("new", "new", supersedes=old))

    assert isinstance(first, StoredMemory)
    assert isinstance(second, Conflict)


async def test_repeated_invalid_item_is_refused_twice(world: World) -> None:
    first, second = await world.remember.store(world.agent, batch("a", "a", type="nope"))

    assert isinstance(first, RequestInvalid)
    assert second is first


async def test_repeated_batch_returns_same_memories(world: World) -> None:
    old = await world.add("old")
    memories = [*batch("a", "b", "a", key="k"), *batch("new", key="k2", supersedes=old)]

    first = await world.remember.store(world.agent, memories)
    second = await world.remember.store(world.agent, memories)

    assert ids(second) == ids(first)
    assert sorted(await world.heads()) == ["a", "b", "new"]


@pytest.mark.parametrize("at", range(7))
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_batch_can_be_repeated_after_a_crash(world: World, at: int, moment: Moment) -> None:
    healthy, old = world.agent, await world.add("old")
    memories = [*batch("a", "b", key="k"), *batch("new", key="k2", supersedes=old)]
    world.agent = replace(healthy, store=CrashingStore(healthy.store, at, moment))
    with contextlib.suppress(OutcomeUnknown, StoreUnavailable):
        await world.remember.store(world.agent, memories)

    world.agent = healthy
    outcomes = await world.remember.store(world.agent, memories)

    assert len(set(ids(outcomes))) == 3
    assert sorted(await world.heads()) == ["a", "b", "new"]
    assert await count_stored(world.agent) == 4


async def test_changed_item_of_same_key_is_a_conflict(world: World) -> None:
    await world.remember.store(world.agent, batch("a", "b", key="k"))

    same, other = await world.remember.store(world.agent, batch("a", "c", key="k"))

    assert isinstance(same, StoredMemory)
    assert isinstance(other, Conflict)
    assert sorted(await world.heads()) == ["a", "b"]


@pytest.mark.parametrize("key", [None, "k"])
async def test_item_refused_by_engine_spares_others(world: World, key: str | None) -> None:
    world.agent = replace(world.agent, store=PickyStore(world.agent.store))

    outcomes = await world.remember.store(world.agent, batch("a", "b", "poison", "c", "d", key=key))

    assert [type(outcome) for outcome in outcomes] == [
        StoredMemory,
        StoredMemory,
        StoreRejected,
        StoredMemory,
        StoredMemory,
    ]
    assert sorted(await world.heads()) == ["a", "b", "c", "d"]


async def test_refused_batch_is_split(world: World) -> None:
    picky = PickyStore(world.agent.store, max_points=3)
    world.agent = replace(world.agent, store=picky)

    outcomes = await world.remember.store(world.agent, batch(*map(str, range(8))))

    assert len(set(ids(outcomes))) == 8
    assert picky.upserts == [8, 4, 2, 2, 4, 2, 2]


@pytest.mark.parametrize("is_partial", [False, True])
async def test_forbidden_write_is_not_split(world: World, is_partial: bool) -> None:
    error = StoreRejected(403, "forbidden")
    error.is_partial = is_partial

    class Refusing(PickyStore):
        async def upsert(self, collection: str, points: Sequence[Json], **how: Any) -> None:
            self.upserts.append(len(points))
            raise error

    refusing = Refusing(world.agent.store)
    world.agent = replace(world.agent, store=refusing)

    with pytest.raises(OutcomeUnknown if is_partial else StoreRejected):
        await world.remember.store(world.agent, batch("a", "b"))
    assert refusing.upserts == [2]


@pytest.mark.parametrize("error", [KeysUnavailable("gone"), StoreRejected(403, "gone")], ids=["key", "token"])
@pytest.mark.parametrize(
    ("failing", "is_partial", "keys"),
    [("b", False, (None, None)), ("a", True, (None, None)), ("b", False, (None, "k"))],
    ids=["second half", "half of a partly written request", "second request"],
)
async def test_failure_after_a_written_part_has_unknown_outcome(
    world: World, error: Exception, failing: str, is_partial: bool, keys: tuple[str | None, str | None]
) -> None:
    async def fail() -> None:
        raise error

    single = Event(
        lambda name, call: name == "upsert" and [failing] == [p["payload"]["content"] for p in call[1]], fail
    )
    store: Any = InterleavedStore(PickyStore(world.agent.store, max_points=1, is_partial=is_partial), single)

    memories = [memory for content, key in zip("ab", keys, strict=True) for memory in batch(content, key=key)]
    with pytest.raises(OutcomeUnknown, match="gone"):
        await world.remember.store(replace(world.agent, store=store), memories)


async def test_large_batch_uses_several_requests(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qdrant_points, "MAX_UPSERT_BYTES", 2000)

    outcomes = await world.remember.store(world.agent, batch(*map(str, range(20))))

    assert len(set(ids(outcomes))) == 20
    assert await count_stored(world.agent) == 20


async def test_refused_text_is_found_by_bisection(world: World) -> None:
    class Embedder:
        dimensions = 8
        calls: list[int] = []  # noqa: RUF012

        async def embed(self, texts: Sequence[str]) -> list[Vector]:
            self.calls.append(len(texts))
            if "refuse" in texts:
                raise RequestInvalid([FieldError("content", "too long for the model")])
            return [vector_of(text) for text in texts]

    world.set_embedder(Embedder())
    memories = [IncomingMemory(user_id="u", content=text) for text in [*map(str, range(63)), "refuse"]]

    outcomes = await world.remember.store(world.agent, memories)

    assert sum(isinstance(outcome, StoredMemory) for outcome in outcomes) == 63
    assert Embedder.calls == [64, 32, 32, 16, 16, 8, 8, 4, 4, 2, 2, 1, 1]


async def test_stored_batch_is_searchable_at_once(world: World) -> None:
    request = search_request(user_id="u", vector=vector_of("b"), top_k=5)
    assert (await world.recall.search(world.agent, request)).results == ()

    await world.remember.store(world.agent, batch("a", "b"))

    answer = await world.recall.search(world.agent, request)
    assert [found.record.content for found in answer.results] == ["b", "a"]
    assert answer.total_candidates == 2


async def test_stored_batch_is_found_by_other_replica(world: World) -> None:
    other, request = (
        replace(world.agent, sizes=CountCache()),
        search_request(user_id="u", vector=vector_of("b"), top_k=5),
    )
    assert (await world.recall.search(other, request)).results == ()

    await world.remember.store(world.agent, batch("a", "b"))

    answer = await world.recall.search(other, request)
    assert [found.record.content for found in answer.results] == ["b", "a"]
