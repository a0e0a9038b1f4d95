"""What stands around a result in its session, read in one request."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.search.search import SearchAnswer
from tests.support.engine.agents import World, open_world, search_request, vector_of

SOURCE = KeywordSource(language="english", window=2)
SAID = ("one", "two", "three", "apples", "five", "six", "seven")


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with open_world(qdrant_url, keyword=SOURCE) as world:
        for number, content in enumerate(SAID):
            await world.add(content, created_at=world.clock.now_ms() - 10_000 + number * 1000, session_id="s")
        yield world


async def search(world: World, **more: Any) -> SearchAnswer:
    request = search_request(user_id="u", query="apples", vector=vector_of("apples"), **{"top_k": 1} | more)
    return await world.recall.search(world.agent, request)


def around(answer: SearchAnswer) -> list[str]:
    assert answer.results[0].record.content == "apples"
    assert answer.neighbours is not None
    return [record.content for record in answer.neighbours.get(answer.results[0].record.id, ())]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, ["three", "five"]), (2, ["two", "three", "five", "six"]), (3, [*SAID[:3], *SAID[4:]])],
)
async def test_so_many_before_and_after_come_in_order(world: World, count: int, expected: list[str]) -> None:
    assert around(await search(world, neighbours=count)) == expected


async def test_unless_they_are_asked_for_there_are_none(world: World) -> None:
    assert (await search(world)).neighbours is None


async def test_what_another_user_or_session_holds_and_what_was_deleted_is_no_neighbour(world: World) -> None:
    at = world.clock.now_ms() - 6_500
    await world.add("another user's", user_id="v", session_id="s", created_at=at)
    await world.add("another session's", session_id="t", created_at=at)
    gone = await world.add("gone", session_id="s", created_at=at)
    await delete_head(world.agent, gone, user_id="u")

    assert around(await search(world, neighbours=1)) == ["three", "five"]


async def test_what_has_no_session_has_no_neighbours(world: World) -> None:
    await world.add("apples apples apples", user_id="w")

    answer = await search(world, neighbours=2, top_k=1)
    alone = await world.recall.search(
        world.agent, search_request(user_id="w", query="apples", vector=vector_of("apples"), neighbours=2)
    )

    assert len(around(answer)) == 4
    assert alone.neighbours == {}


async def test_every_result_has_its_own(world: World) -> None:
    answer = await search(world, neighbours=1, top_k=7)

    assert answer.neighbours is not None
    for found in answer.results:
        place = SAID.index(found.record.content)
        expected = [*SAID[max(0, place - 1) : place], *SAID[place + 1 : place + 2]]
        assert [record.content for record in answer.neighbours[found.record.id]] == expected


async def test_without_places_in_sessions_and_for_too_many_results_they_are_refused(
    world: World, qdrant_url: str
) -> None:
    with pytest.raises(RequestInvalid) as too_many:
        await search(world, neighbours=1, top_k=101)
    async with open_world(qdrant_url) as plain:
        with pytest.raises(RequestInvalid) as no_places:
            await plain.recall.search(plain.agent, search_request(user_id="u", vector=vector_of("q"), neighbours=1))

    assert [error.field for error in too_many.value.errors] == ["top_k"]
    assert [error.field for error in no_places.value.errors] == ["include.neighbours"]
