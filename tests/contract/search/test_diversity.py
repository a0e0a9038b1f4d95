"""Searches with a maximum number of results for each session."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.search import search as search_module
from agentmemory_operator.search.answers import SearchAnswer
from agentmemory_operator.search.rules.candidates import CandidatePlan, plan_candidates
from tests.support.engine.agents import EVERYTHING, SIZE, World, open_world, search_request

# Memories in order of similarity: ten of one session, two of another, one without a session.
SESSIONS = (*["s"] * 10, "t", "t", None)


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with open_world(qdrant_url) as world:
        for number, session in enumerate(SESSIONS):
            await world.add(str(number), vector=[1.0, number / 10] + [0.0] * (SIZE - 2), session_id=session)
        yield world


async def search(world: World, **more: Any) -> SearchAnswer:
    vector = [1.0] + [0.0] * (SIZE - 1)
    return await world.recall.search(world.agent, search_request(user_id="u", vector=vector, **more))


def contents(answer: SearchAnswer) -> list[str]:
    return [found.record.content for found in answer.results]


async def test_sessions_are_not_limited_by_default(world: World) -> None:
    answer = await search(world, top_k=4, explain=True)

    assert contents(answer) == ["0", "1", "2", "3"]
    assert not answer.left_out


async def test_next_best_results_fill_up(world: World) -> None:
    answer = await search(world, top_k=4, per_session=2)

    assert contents(answer) == ["0", "1", "10", "11"]
    assert (answer.left_out, answer.warnings, answer.removed_by_threshold) == (None, (), 0)


async def test_explain_shows_what_was_left_out(world: World) -> None:
    answer = await search(world, top_k=3, per_session=1, explain=True)

    assert contents(answer) == ["0", "10", "12"]
    assert answer.left_out is not None
    left_out = [point["payload"]["content"] for point in answer.left_out]
    assert left_out == ["1", "2", "3", "4", "5", "6", "7", "8", "9", "11"]
    assert answer.candidates is not None
    assert answer.candidates.is_exact


async def test_only_returned_results_count_as_accessed(world: World) -> None:
    await search(world, top_k=2, per_session=1)
    await world.counts.flush()

    assert {row.content for row in await world.rows() if row.access_count} == {"0", "10"}


async def test_strict_mode_bounds_what_is_fetched(world: World) -> None:
    world.set_ranking(replace(EVERYTHING, max_query_limit=4))

    answer = await search(world, top_k=2, per_session=1)

    assert contents(answer) == ["0"]
    assert [warning.partition(":")[0] for warning in answer.warnings] == ["diversity"]


async def test_results_fetched_for_a_cap_keep_all_lists(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[CandidatePlan] = []

    def plan(*arguments: Any, **options: Any) -> CandidatePlan:
        plans.append(plan_candidates(*arguments, **options))
        return plans[-1]

    monkeypatch.setattr(search_module, "plan_candidates", plan)
    world.set_ranking(replace(EVERYTHING, max_query_limit=10))

    await search(world, top_k=2)
    await search(world, top_k=2, per_session=1)

    assert plans[0].classes == plans[1].classes
    assert len(plans[0].classes) == 5
