"""Memories of scopes beside a user's own, over a real engine."""

from typing import Any

import pytest

from agentmemory_operator.errors import NotFound
from agentmemory_operator.memories.stored_memories import list_page, read_memory
from tests.support.engine.agents import World, list_request, search_request, vector_of


async def found(world: World, **more: Any) -> dict[str, str]:
    """Return whose each found content is."""
    answer = await world.recall.search(world.agent, search_request(vector=vector_of("q"), **more))
    return {found.record.content: found.record.user_id for found in answer.results}


@pytest.fixture
async def shared(world: World) -> World:
    """Return a world where a user, another one, a group and everybody have a memory each."""
    for user_id in ("u", "other", "group:team", "global"):
        await world.add(f"of {user_id}", user_id=user_id)
    return world


async def test_a_search_finds_the_users_own_and_those_of_the_scopes_it_includes(shared: World) -> None:
    assert await found(shared) == {"of u": "u"}
    assert await found(shared, scopes=("global",)) == {"of u": "u", "of global": "global"}
    both = await found(shared, scopes=("group:team", "global"))
    assert both == {"of u": "u", "of group:team": "group:team", "of global": "global"}


async def test_a_scope_in_the_users_place_finds_its_own(shared: World) -> None:
    assert await found(shared, user_id="group:team") == {"of group:team": "group:team"}
    assert await found(shared, user_id="global", scopes=("global",)) == {"of global": "global"}


async def test_a_list_has_the_scopes_that_it_includes(shared: World) -> None:
    page = await list_page(shared.agent, list_request(scopes=("global",)))

    # All of one time, so in no order that the test could know.
    assert sorted(record.content for record in page.records) == ["of global", "of u"]


async def test_with_scopes_the_answer_is_proven_and_counts_all(shared: World) -> None:
    for number in range(50):
        await shared.add(f"{number}", user_id="global" if number % 2 else "u")
    request = search_request(vector=vector_of("q"), scopes=("global",), top_k=5, explain=True)

    answer = await shared.recall.search(shared.agent, request)

    assert answer.total_candidates == 52
    assert answer.candidates is not None
    assert answer.candidates.is_exact


async def test_a_memory_stored_in_a_scope_counts_at_once_for_whoever_includes_it(shared: World) -> None:
    request = search_request(vector=vector_of("q"), scopes=("global",))
    before = await shared.recall.search(shared.agent, request)

    await shared.add("new", user_id="global")

    after = await shared.recall.search(shared.agent, request)
    assert after.total_candidates == before.total_candidates + 1


async def test_a_memory_of_a_scope_is_not_the_users(shared: World) -> None:
    memory_id = await shared.add("rule", user_id="global")

    with pytest.raises(NotFound):
        await read_memory(shared.agent, memory_id, user_id="u")
    assert (await read_memory(shared.agent, memory_id, user_id="global")).content == "rule"


async def test_a_memory_of_a_scope_is_superseded_within_it(shared: World) -> None:
    old = await shared.add("old rule", user_id="global")

    with pytest.raises(NotFound):
        await shared.add("new rule", supersedes=old)
    await shared.add("new rule", user_id="global", supersedes=old)

    assert await found(shared, scopes=("global",)) == {"of u": "u", "of global": "global", "new rule": "global"}
