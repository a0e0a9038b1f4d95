"""IDF over the memories that a search may find, on servers that support it (Qdrant 1.19)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities, derive_capabilities
from agentmemory_operator.spec.presets import Weights
from agentmemory_operator.spec.presets.table import Fusion
from qdrant_devserver.server import create_app
from tests.support.engine.agents import EVERYTHING, World, open_world, search_request, vector_of
from tests.support.web.http_server import serve

SOURCE = KeywordSource(language="english", window=2)
BY_WORDS = replace(EVERYTHING, weights=Weights(1, 0, 0), fusion=Fusion(keyword_weight=1.0))


@pytest.fixture(scope="module", params=["1.18.3", "1.19.0"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with serve(create_app(tmp_path_factory.mktemp("qdrant"), qdrant_version=request.param)) as url:
        yield url, request.param


async def keywords(world: World, version: str, **more: Any) -> dict[str, float]:
    """Return the keyword term of each result by content."""
    capabilities = frozenset(derive_capabilities(ServerCapabilities(version)))
    request = search_request(**({"user_id": "u", "query": "apples"} | more), vector=vector_of("q"), explain=True)
    answer = await world.recall.search(replace(world.agent, capabilities=capabilities), request)
    for found in answer.results:
        assert found.terms is not None
        assert found.terms.score == pytest.approx(found.score, abs=1e-5)
    return {found.record.content: found.match.keyword or 0.0 for found in answer.results if found.match}


@pytest.mark.parametrize("candidates", [None, 3])
async def test_other_users_do_not_change_idf(served: tuple[str, str], candidates: int | None) -> None:
    """Qdrant 1.19 counts the words of the memories that the search may find, 1.18 those of all memories."""
    url, version = served
    async with open_world(url, keyword=SOURCE, ranking=replace(BY_WORDS, candidates=candidates)) as world:
        for content in ("apple pie", "pear tart", "plum cake", "bread", "soup"):
            await world.add(content)
        before = await keywords(world, version)
        for number in range(20):
            await world.add(f"apple {number}", user_id="another")
        after = await keywords(world, version)

    assert before["apple pie"] > before["pear tart"] == 0.0
    if version == "1.18.3":
        assert after["apple pie"] < before["apple pie"]
    else:
        assert after == before


async def test_searched_scopes_count(served: tuple[str, str]) -> None:
    url, version = served
    async with open_world(url, keyword=SOURCE, ranking=BY_WORDS) as world:
        for content in ("apple pie", "pear tart", "plum cake"):
            await world.add(content)
        await world.add("apple tree", user_id="team")
        await world.add("cherry tree", user_id="team")
        for number in range(20):
            await world.add(f"apple {number}", user_id="another")
        found = await keywords(world, version, scopes=("team",))

    assert {content for content, keyword in found.items() if keyword} == {"apple pie", "apple tree"}
    assert "apple 3" not in found


@pytest.mark.parametrize("query", ["apples", "the and of", "zebra"])
async def test_no_memories_or_no_keywords_still_answer(served: tuple[str, str], query: str) -> None:
    url, version = served
    async with open_world(url, keyword=SOURCE, ranking=BY_WORDS) as world:
        await world.add("apple pie")
        nothing = await keywords(world, version, query=query, user_id="nobody")
        found = await keywords(world, version, query=query)

    assert nothing == {}
    assert set(found) == {"apple pie"}
    assert (found["apple pie"] > 0.0) is (query == "apples")
