"""Collections that tests use one after the other: to create one costs more than most tests."""

import contextlib
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.spec.effective.settings import AgentSettings, Ranking
from tests.support.engine.agents import (
    EVERYTHING,
    World,
    add_keyword,
    agent_of,
    create_collection,
    create_copy,
    delete_collection,
    move_alias,
    settings_of,
    tombstones_with_vectors,
)

_Kind = tuple[str, str, KeywordSource | None, int]
# For each kind: the slug, and the description of each collection as it was created.
_idle: defaultdict[_Kind, list[tuple[str, list[Any]]]] = defaultdict(list)


@contextlib.asynccontextmanager
async def reuse_world(
    url: str,
    *,
    ranking: Ranking = EVERYTHING,
    distance: str = "Cosine",
    keyword: KeywordSource | None = None,
    copies: int = 0,
) -> AsyncIterator[World]:
    """Open the empty collections of an agent that an earlier test used, or new ones.

    Collections are used again only if nothing but points was changed. Tests of keyword scores need `open_world`: the
    engine's word statistics include deleted points.

    Args:
        copies: Number of further collections, as of `create_copy`.
    """
    kind = url, distance, keyword, copies
    slug, descriptions = await _take(kind) or await _create(kind)
    settings = settings_of(slug, ranking=ranking)
    names = _names(settings, copies)
    async with QdrantPoints(url) as store:
        try:
            yield World(agent_of(settings, store, distance=distance, keyword=keyword))
            for name in names:
                # The test may have deleted the collection.
                with contextlib.suppress(StoreUnavailable):
                    assert await tombstones_with_vectors(store, name) == [], "tombstones have vectors"
        finally:
            for name in names:
                with contextlib.suppress(StoreUnavailable):
                    await store.delete(name, {"must": []})
            _idle[kind].append((slug, descriptions))


async def delete_idle(url: str) -> None:
    """Delete the collections on a server that no test uses any more."""
    for kind in [kind for kind in _idle if kind[0] == url]:
        for slug, _ in _idle.pop(kind):
            await _delete(url, slug, kind[-1])


async def _take(kind: _Kind) -> tuple[str, list[Any]] | None:
    url, _, _, copies = kind
    while _idle[kind]:
        slug, descriptions = _idle[kind].pop()
        settings = settings_of(slug)
        if [await _describe(url, name) for name in _names(settings, copies)] == descriptions:
            await move_alias(url, settings, f"{settings.alias}__1")
            return slug, descriptions
        await _delete(url, slug, copies)
    return None


async def _create(kind: _Kind) -> tuple[str, list[Any]]:
    url, distance, keyword, copies = kind
    settings = settings_of(f"t-{uuid.uuid4().hex[:12]}")
    await create_collection(url, settings, distance=distance)
    if keyword:
        await add_keyword(url, settings, keyword)
    for number in range(2, copies + 2):
        await create_copy(url, settings, keyword=keyword, number=number)
    return settings.slug, [await _describe(url, name) for name in _names(settings, copies)]


def _names(settings: AgentSettings, copies: int) -> list[str]:
    return [f"{settings.alias}__{number}" for number in range(1, copies + 2)]


async def _describe(url: str, name: str) -> Any:
    """Return a server's description of a collection, without its state; None if there is no such collection."""
    async with aiohttp.request("GET", f"{url}/collections/{name}") as answer:
        if answer.status == 404:
            return None
        assert answer.status == 200, await answer.text()
        described = (await answer.json())["result"]
    types = {field: schema["data_type"] for field, schema in described["payload_schema"].items()}
    return described["config"], types, described["points_count"]


async def _delete(url: str, slug: str, copies: int) -> None:
    for number in range(1, copies + 2):
        await delete_collection(url, settings_of(slug), number=number)
