"""Context over a real engine: what its sections read, and what counts as an access."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.adapters.embedding.wordllama_tokenizer import WORDLLAMA_MEASURE
from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.memories.rules.filters import Selection
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.search.context import ContextAnswer, ContextRequest, ContextService
from tests.support.engine.agents import World, open_world, vector_of

NEAR = vector_of("question")


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with open_world(qdrant_url) as world:
        yield world


async def build(world: World, **more: Any) -> ContextAnswer:
    selection = Selection(**{"user_id": "u"} | more.pop("selection", {}))
    request = ContextRequest(**{"selection": selection, "vector": NEAR, "budget": 1000} | more)
    service = ContextService(world.clock, world.counts, world.recall, WORDLLAMA_MEASURE)
    return await service.build(world.agent, request)


def contents(answer: ContextAnswer, section: Any) -> list[str]:
    return [line.record.content for line in answer.context.sections[section]]


async def test_facts_are_heads_of_lasting_types(world: World) -> None:
    old = await world.add("pays by card", type="preference")
    await world.add("pays by invoice", type="preference", supersedes=old)
    await world.add("was at the lake", type="episodic")
    await world.add("said in a conversation", type="fact", role="user")
    await world.add("another user's", type="fact", user_id="v")
    gone = await world.add("deleted", type="fact")
    await delete_head(world.agent, gone, user_id="u")

    answer = await build(world, sections=("facts",), vector=None)

    assert contents(answer, "facts") == ["pays by invoice"]
    assert contents(answer, "relevant") == []


async def test_pinned_and_important_facts_come_first(world: World) -> None:
    now = world.clock.now_ms()
    for place, (content, more) in enumerate(
        [("old", {}), ("important", {"importance": 1.0}), ("pinned", {"pinned": True}), ("new", {})]
    ):
        await world.add(content, type="fact", created_at=now - 1000 + place, **more)

    assert contents(await build(world, sections=("facts",)), "facts") == ["pinned", "important", "new", "old"]


async def test_recent_are_the_last_turns_of_the_session(world: World) -> None:
    now = world.clock.now_ms()
    for place in range(80):
        await world.add(f"turn {place}", type="episodic", role="user", session_id="s", created_at=now - 1000 + place)
    await world.add("distilled", type="fact", session_id="s")
    await world.add("other session", type="episodic", role="user", session_id="t")
    await world.add("other user", type="episodic", role="user", session_id="s", user_id="v")

    recent = contents(await build(world, sections=("recent",), session_id="s", budget=200), "recent")

    assert 5 <= len(recent) < 80
    assert recent == [f"turn {place}" for place in range(80 - len(recent), 80)]
    assert contents(await build(world, sections=("recent",)), "recent") == []


async def test_relevant_are_the_results_of_a_search(world: World) -> None:
    for place in range(5):
        await world.add(
            f"fact {place}", type="fact", vector=vector_of(place), tags=["even" if place % 2 == 0 else "odd"]
        )

    answer = await build(world, sections=("relevant",), selection={"tags": ("even",)})

    assert sorted(contents(answer, "relevant")) == ["fact 0", "fact 2", "fact 4"]
    assert answer.scores.keys() == {line.record.id for line in answer.context.sections["relevant"]}


async def test_only_relevant_lines_count_as_accessed(world: World) -> None:
    fact = await world.add("pays by invoice", type="fact")
    turn = await world.add("hello", type="episodic", role="user", session_id="s")
    hits = [await world.add(f"episode {place} " + "word " * 60, type="episodic") for place in range(9)]

    answer = await build(world, session_id="s", budget=200)
    await world.counts.flush()

    used = {line.record.id for line in answer.context.sections["relevant"]}
    rows = {row.id: row.access_count for row in await world.rows()}
    assert {turn, fact}.isdisjoint(used)
    assert 0 < len(used) < len(hits)
    assert {id for id, count in rows.items() if count} == used


async def test_equal_state_gives_an_equal_text(world: World) -> None:
    for place in range(30):
        await world.add(f"memory {place}", type="fact" if place % 2 else "episodic", created_at=1_700_000_000_000)

    assert (await build(world)).context.text == (await build(world)).context.text


async def test_question_is_the_last_message_of_the_user(world: World) -> None:
    await world.add("pays by invoice", type="episodic")
    asked = [("user", "how do I pay?"), ("assistant", "pays by  INVOICE")]

    answer = await build(world, messages=asked)

    assert [(one.reason, one.section) for one in answer.context.left_out] == [("sent", "relevant")]


async def test_request_without_a_question_is_refused(world: World) -> None:
    with pytest.raises(RequestInvalid, match="query"):
        await build(world, vector=None)


async def test_strict_mode_limits_what_is_read(world: World) -> None:
    ranking = replace(world.agent.settings.ranking, max_query_limit=3)
    world.set_ranking(ranking)
    for place in range(9):
        await world.add(f"memory {place}", type="episodic")

    assert len(contents(await build(world), "relevant")) == 3
