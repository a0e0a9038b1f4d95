"""Batches over a real engine: said twice, sent twice, refused in part, too large for one request."""

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
from tests.support.engine.interleaved_store import CrashingStore, Moment


def batch(*contents: str, key: str | None = None, **more: Any) -> list[IncomingMemory]:
    """Return a batch as the API makes it: with a key, each item has its own."""
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
    """Refuses every upsert that holds a point with "poison" in its content, or more points than it takes."""

    def __init__(self, store: Any, *, most: int = 1000) -> None:
        self._store = store
        self._most = most
        self.upserts: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def upsert(self, collection: str, points: Sequence[Json], **how: Any) -> None:
        self.upserts.append(len(points))
        if len(points) > self._most or any("poison" in point["payload"]["content"] for point in points):
            raise StoreRejected(400, "not this")
        await self._store.upsert(collection, points, **how)


@pytest.mark.parametrize("key", [None, "k"])
async def test_items_that_say_the_same_are_one_memory(world: World, key: str | None) -> None:
    outcomes = await world.remember.store(world.agent, batch("a", "b", "a", key=key))

    first, _, repeated = outcomes
    assert repeated == replace(first, event="NONE", is_recorded=False)  # type: ignore[type-var]
    assert sorted(await world.heads()) == ["a", "b"]


@pytest.mark.parametrize("other", [{"type": "person"}, {"metadata": {"n": 1}}, {"tags": ("t",)}, {"created_at": 5}])
async def test_items_that_differ_in_one_field_are_two_memories(world: World, other: dict[str, Any]) -> None:
    outcomes = await world.remember.store(world.agent, [*batch("a"), *batch("a", **other)])

    assert len(set(ids(outcomes))) == 2


async def test_the_second_of_two_equal_successors_is_a_conflict(world: World) -> None:
    old = await world.add("old")

    first, second = await world.remember.store(world.agent, batch("new", "new", supersedes=old))

    assert isinstance(first, StoredMemory)
    assert isinstance(second, Conflict)


async def test_a_bad_item_said_twice_is_refused_twice(world: World) -> None:
    first, second = await world.remember.store(world.agent, batch("a", "a", type="nope"))

    assert isinstance(first, RequestInvalid)
    assert second is first


async def test_a_batch_sent_again_with_its_key_gives_the_same_memories(world: World) -> None:
    old = await world.add("old")
    given = [*batch("a", "b", "a", key="k"), *batch("new", key="k2", supersedes=old)]

    first = await world.remember.store(world.agent, given)
    second = await world.remember.store(world.agent, given)

    assert ids(second) == ids(first)
    assert sorted(await world.heads()) == ["a", "b", "new"]


@pytest.mark.parametrize("at", range(7))
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_batch_whose_outcome_was_unknown_can_be_sent_again(world: World, at: int, moment: Moment) -> None:
    healthy, old = world.agent, await world.add("old")
    given = [*batch("a", "b", key="k"), *batch("new", key="k2", supersedes=old)]
    world.agent = replace(healthy, store=CrashingStore(healthy.store, at, moment))
    with contextlib.suppress(OutcomeUnknown, StoreUnavailable):
        await world.remember.store(world.agent, given)

    world.agent = healthy
    outcomes = await world.remember.store(world.agent, given)

    assert len(set(ids(outcomes))) == 3
    assert sorted(await world.heads()) == ["a", "b", "new"]
    assert await count_stored(world.agent) == 4


async def test_an_item_that_changed_under_its_key_is_a_conflict_for_itself(world: World) -> None:
    await world.remember.store(world.agent, batch("a", "b", key="k"))

    same, other = await world.remember.store(world.agent, batch("a", "c", key="k"))

    assert isinstance(same, StoredMemory)
    assert isinstance(other, Conflict)
    assert sorted(await world.heads()) == ["a", "b"]


@pytest.mark.parametrize("key", [None, "k"])
async def test_an_item_that_the_engine_refuses_does_not_lose_the_others(world: World, key: str | None) -> None:
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


async def test_a_batch_larger_than_the_engine_takes_is_written_in_parts(world: World) -> None:
    picky = PickyStore(world.agent.store, most=3)
    world.agent = replace(world.agent, store=picky)

    outcomes = await world.remember.store(world.agent, batch(*map(str, range(8))))

    assert len(set(ids(outcomes))) == 8
    assert picky.upserts == [8, 4, 2, 2, 4, 2, 2]


async def test_a_key_that_is_refused_is_no_reason_to_ask_once_an_item(world: World) -> None:
    class Refusing(PickyStore):
        async def upsert(self, collection: str, points: Sequence[Json], **how: Any) -> None:
            self.upserts.append(len(points))
            raise StoreRejected(403, "forbidden")

    refusing = Refusing(world.agent.store)
    world.agent = replace(world.agent, store=refusing)

    with pytest.raises(StoreRejected):
        await world.remember.store(world.agent, batch("a", "b"))
    assert refusing.upserts == [2]


async def test_what_does_not_fit_into_one_request_goes_in_several(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qdrant_points, "MAX_UPSERT_BYTES", 2000)

    outcomes = await world.remember.store(world.agent, batch(*map(str, range(20))))

    assert len(set(ids(outcomes))) == 20
    assert await count_stored(world.agent) == 20


async def test_of_many_texts_the_provider_is_asked_for_the_refused_one_alone_at_last(world: World) -> None:
    class Embedder:
        dimensions = 8
        calls: list[int] = []  # noqa: RUF012

        async def embed(self, texts: Sequence[str]) -> list[Vector]:
            self.calls.append(len(texts))
            if "refuse" in texts:
                raise RequestInvalid([FieldError("content", "too long for the model")])
            return [vector_of(text) for text in texts]

    world.set_embedder(Embedder())
    given = [IncomingMemory(user_id="u", content=text) for text in [*map(str, range(63)), "refuse"]]

    outcomes = await world.remember.store(world.agent, given)

    assert sum(isinstance(outcome, StoredMemory) for outcome in outcomes) == 63
    assert Embedder.calls == [64, 32, 32, 16, 16, 8, 8, 4, 4, 2, 2, 1, 1]


async def test_a_search_right_after_finds_what_was_stored(world: World) -> None:
    request = search_request(user_id="u", vector=vector_of("b"), top_k=5)
    assert (await world.recall.search(world.agent, request)).results == ()

    await world.remember.store(world.agent, batch("a", "b"))

    answer = await world.recall.search(world.agent, request)
    assert [found.record.content for found in answer.results] == ["b", "a"]
    assert answer.total_candidates == 2


async def test_another_replica_finds_it_too_though_it_counted_before(world: World) -> None:
    other, request = (
        replace(world.agent, sizes=CountCache()),
        search_request(user_id="u", vector=vector_of("b"), top_k=5),
    )
    assert (await world.recall.search(other, request)).results == ()

    await world.remember.store(world.agent, batch("a", "b"))

    answer = await world.recall.search(other, request)
    assert [found.record.content for found in answer.results] == ["b", "a"]
