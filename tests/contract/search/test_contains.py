"""The `contains` filter: the same results in a search and in a forget, with every kind of index and without one."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.rules.criteria_json import parse_filters
from agentmemory_operator.search import eligible
from tests.support.engine.agents import World, search_request, vector_of
from tests.support.engine.reused_agents import reuse_world

ANT = {"metadata.note": {"contains": "ANT big"}}
# Values that a substring, case-sensitive or phrase match would treat differently.
NOTES: dict[str, Any] = {
    "both": "Big Ant here",
    "order": "ant, BIG",
    "list": ["bee", "a big ant"],
    "part": "big elephant",
    "one": "ant",
    "apart": ["big", "ant"],
    "number": 5,
    "none": None,
}
MATCHING = {"both", "order", "list"}
CHINESE = {"coffee": "我喜欢喝咖啡", "tea": "我喜欢喝茶", "phone": "iPhone手机坏了"}


@pytest.fixture(params=[None, "text", "keyword", "integer"])
async def world(request: pytest.FixtureRequest, qdrant_url: str) -> AsyncIterator[World]:
    async with reuse_world(qdrant_url) as world:
        if index := request.param:
            url = f"{qdrant_url}/collections/{world.agent.alias}/index?wait=true"
            body = {"field_name": "metadata.note", "field_schema": index}
            async with aiohttp.request("PUT", url, json=body) as answer:
                assert answer.status == 200
            indexes = {**world.agent.settings.indexes, "metadata.note": index}
            world.agent = replace(world.agent, settings=replace(world.agent.settings, indexes=indexes))
        yield world


async def store(world: World, notes: dict[str, Any], *, user_id: str = "u") -> None:
    for content, note in notes.items():
        await world.add(content, user_id=user_id, metadata={} if note is None else {"note": note})


async def found(world: World, filters: dict[str, Any], **more: Any) -> set[str]:
    request = search_request(criterion=parse_filters(filters), vector=vector_of("q"), **more)
    return {hit.record.content for hit in (await world.recall.search(world.agent, request)).results}


def forget(filters: dict[str, Any]) -> ForgetRequest:
    return ForgetRequest(scope=ErasureScope(user_id="u", criterion=parse_filters(filters)), filters=filters)


async def test_search_ignores_order_and_case(world: World) -> None:
    await store(world, NOTES)

    assert await found(world, ANT) == MATCHING
    assert await found(world, {"NOT": [ANT]}) == NOTES.keys() - MATCHING
    assert await found(world, {"OR": [ANT, {"metadata.note": 5}]}) == MATCHING | {"number"}
    assert await found(world, {"NOT": [ANT, {"metadata.note": None}]}) == NOTES.keys() - MATCHING - {"none"}
    assert await found(world, {"metadata.note": {"contains": "zebra"}}) == set()


async def test_search_finds_words_without_spaces(world: World) -> None:
    await store(world, CHINESE)

    assert await found(world, {"metadata.note": {"contains": "咖啡"}}) == {"coffee"}
    assert await found(world, {"metadata.note": {"contains": "IPHONE 手机"}}) == {"phone"}


async def test_search_limits_and_counts_matches(world: World) -> None:
    await store(world, {f"{place}": "elephant" if place % 3 else "An ant" for place in range(30)})

    request = search_request(criterion=parse_filters({"metadata.note": {"contains": "ant"}}), vector=vector_of("q"))
    answer = await world.recall.search(world.agent, replace(request, top_k=7, explain=True))

    assert len(answer.results) == 7
    assert answer.total_candidates == 10
    assert answer.candidates is not None
    assert (answer.candidates.eligible, answer.candidates.is_exact) == (10, True)
    assert answer.warnings == ()


async def test_forget_erases_matches_only(world: World) -> None:
    await store(world, NOTES)
    await store(world, NOTES, user_id="other")

    preview = await world.forgetting.preview(world.agent, forget(ANT))
    receipt = await world.forgetting.forget(world.agent, forget(ANT))

    assert preview.counts.total == receipt.counts.total == len(MATCHING)
    assert set(await world.heads()) == NOTES.keys() - MATCHING
    assert set(await world.heads("other")) == NOTES.keys()


async def test_forget_by_negation_keeps_matches(world: World) -> None:
    await store(world, NOTES)

    await world.forgetting.forget(world.agent, forget({"NOT": [ANT]}))

    assert set(await world.heads()) == MATCHING


async def test_forget_erases_earlier_versions_with_head(world: World) -> None:
    first = await world.add("first", metadata={"note": "elephant"})
    await world.add("second", metadata={"note": "ant"}, supersedes=first)

    await world.forgetting.forget(world.agent, forget({"metadata.note": {"contains": "ant"}}))

    assert await world.heads() == []


async def test_too_many_candidates_are_rejected(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await store(world, NOTES)

    for bound in ("MAX_READ", "MAX_MATCHING"):
        with monkeypatch.context() as patched:
            patched.setattr(eligible, bound, 2)
            with pytest.raises(RequestInvalid) as raised:
                await found(world, ANT)
        assert [error.field for error in raised.value.errors] == ["filters"]
