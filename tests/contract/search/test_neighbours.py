"""Neighbours of a result in its session, read in the same request."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.search.answers import SearchAnswer
from tests.support.engine.agents import EVERYTHING, World, open_world, search_request, set_strict_mode, vector_of

SOURCE = KeywordSource(language="english", window=2)
MESSAGES = ("one", "two", "three", "apples", "five", "six", "seven")


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with open_world(qdrant_url, keyword=SOURCE) as world:
        for number, content in enumerate(MESSAGES):
            await world.add(content, created_at=world.clock.now_ms() - 10_000 + number * 1000, session_id="s")
        yield world


async def search(world: World, **more: Any) -> SearchAnswer:
    request = search_request(user_id="u", query="apples", vector=vector_of("apples"), **{"top_k": 1} | more)
    return await world.recall.search(world.agent, request)


def neighbours_of(answer: SearchAnswer) -> list[str]:
    assert answer.results[0].record.content == "apples"
    assert answer.neighbours is not None
    return [record.content for record in answer.neighbours.get(answer.results[0].record.id, ())]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, ["three", "five"]), (2, ["two", "three", "five", "six"]), (3, [*MESSAGES[:3], *MESSAGES[4:]])],
)
async def test_neighbours_are_in_session_order(world: World, count: int, expected: list[str]) -> None:
    assert neighbours_of(await search(world, neighbours=count)) == expected


async def test_neighbours_are_none_by_default(world: World) -> None:
    assert (await search(world)).neighbours is None


async def test_other_users_sessions_and_deleted_are_excluded(world: World) -> None:
    at = world.clock.now_ms() - 6_500
    await world.add("another user's", user_id="v", session_id="s", created_at=at)
    await world.add("another session's", session_id="t", created_at=at)
    deleted = await world.add("gone", session_id="s", created_at=at)
    await delete_head(world.agent, deleted, user_id="u")

    assert neighbours_of(await search(world, neighbours=1)) == ["three", "five"]


async def test_memory_without_session_has_none(world: World) -> None:
    await world.add("apples apples apples", user_id="w")

    answer = await search(world, neighbours=2, top_k=1)
    alone = await world.recall.search(
        world.agent, search_request(user_id="w", query="apples", vector=vector_of("apples"), neighbours=2)
    )

    assert len(neighbours_of(answer)) == 4
    assert alone.neighbours == {}


async def test_every_result_has_its_neighbours(world: World) -> None:
    answer = await search(world, neighbours=1, top_k=7)

    assert answer.neighbours is not None
    for found in answer.results:
        position = MESSAGES.index(found.record.content)
        expected = [*MESSAGES[max(0, position - 1) : position], *MESSAGES[position + 1 : position + 2]]
        assert [record.content for record in answer.neighbours[found.record.id]] == expected


async def test_rejected_without_positions_or_above_top_k(world: World, qdrant_url: str) -> None:
    with pytest.raises(RequestInvalid) as too_many:
        await search(world, neighbours=1, top_k=101)
    async with open_world(qdrant_url) as plain:
        with pytest.raises(RequestInvalid) as no_places:
            await plain.recall.search(plain.agent, search_request(user_id="u", vector=vector_of("q"), neighbours=1))

    assert [error.field for error in too_many.value.errors] == ["top_k"]
    assert [error.field for error in no_places.value.errors] == ["include.neighbours"]


async def test_neighbours_of_many_results_respect_strict_mode(world: World) -> None:
    for number in range(8):
        await world.add(f"apples {number}", session_id=f"of {number}")
    world.set_ranking(replace(EVERYTHING, max_batched_searches=16))
    await set_strict_mode(world, enabled=True, search_max_batchsize=16)

    answer = await search(world, top_k=15, neighbours=1)

    assert answer.neighbours is not None
    assert len(answer.neighbours) == 15
    assert neighbours_of(answer) == ["three", "five"]
