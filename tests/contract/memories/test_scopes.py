"""Memories of scopes, in addition to those of a user."""

from typing import Any

import pytest

from agentmemory_operator.errors import NotFound
from agentmemory_operator.memories.stored_memories import list_page, read_memory
from tests.support.engine.agents import World, list_request, search_request, vector_of


async def search(world: World, **more: Any) -> dict[str, str]:
    """Return the user id of each found content."""
    answer = await world.recall.search(world.agent, search_request(vector=vector_of("q"), **more))
    return {found.record.content: found.record.user_id for found in answer.results}


@pytest.fixture
async def shared(world: World) -> World:
    """World with one memory each of two users, a group and the global scope."""
    for user_id in ("u", "other", "group:team", "global"):
        await world.add(f"of {user_id}", user_id=user_id)
    return world


async def test_search_includes_requested_scopes(shared: World) -> None:
    assert await search(shared) == {"of u": "u"}
    assert await search(shared, scopes=("global",)) == {"of u": "u", "of global": "global"}
    both = await search(shared, scopes=("group:team", "global"))
    assert both == {"of u": "u", "of group:team": "group:team", "of global": "global"}


async def test_scope_as_user_finds_only_its_memories(shared: World) -> None:
    assert await search(shared, user_id="group:team") == {"of group:team": "group:team"}
    assert await search(shared, user_id="global", scopes=("global",)) == {"of global": "global"}


async def test_list_includes_requested_scopes(shared: World) -> None:
    page = await list_page(shared.agent, list_request(scopes=("global",)))

    # Memories of equal time have no defined order.
    assert sorted(record.content for record in page.records) == ["of global", "of u"]


async def test_search_with_scopes_is_exact(shared: World) -> None:
    for number in range(50):
        await shared.add(f"{number}", user_id="global" if number % 2 else "u")
    request = search_request(vector=vector_of("q"), scopes=("global",), top_k=5, explain=True)

    answer = await shared.recall.search(shared.agent, request)

    assert answer.total_candidates == 52
    assert answer.candidates is not None
    assert answer.candidates.is_exact


async def test_new_memory_of_scope_is_counted_at_once(shared: World) -> None:
    request = search_request(vector=vector_of("q"), scopes=("global",))
    before = await shared.recall.search(shared.agent, request)

    await shared.add("new", user_id="global")

    after = await shared.recall.search(shared.agent, request)
    assert after.total_candidates == before.total_candidates + 1


async def test_memory_of_scope_is_not_the_users(shared: World) -> None:
    memory_id = await shared.add("rule", user_id="global")

    with pytest.raises(NotFound):
        await read_memory(shared.agent, memory_id, user_id="u")
    assert (await read_memory(shared.agent, memory_id, user_id="global")).content == "rule"


async def test_supersession_stays_within_scope(shared: World) -> None:
    old = await shared.add("old rule", user_id="global")

    with pytest.raises(NotFound):
        await shared.add("new rule", supersedes=old)
    await shared.add("new rule", user_id="global", supersedes=old)

    assert await search(shared, scopes=("global",)) == {"of u": "u", "of global": "global", "new rule": "global"}
