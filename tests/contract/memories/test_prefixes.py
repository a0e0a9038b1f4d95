"""Text prefixes of an embedding model: one for queries, another for stored texts."""

from dataclasses import replace

import pytest

from agentmemory_operator.connections.embedders import with_prefixes
from agentmemory_operator.connections.embedding_cache import CachedEmbedder, EmbeddingCache
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.transfer.import_batch import ImportLine
from agentmemory_operator.memories.transfer.imports import embedding_name, import_lines
from agentmemory_operator.spec.effective.embedding import EmbeddingSource, Prefixes
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import EVERYTHING, FakeEmbedder, World, search_request

PREFIXES = Prefixes(query="query: ", passage="passage: ")


@pytest.fixture
def embedder(world: World) -> FakeEmbedder:
    """Innermost embedder: prefixes are added first, then the cache is read."""
    embedder = FakeEmbedder()
    cached = CachedEmbedder(embedder, cache=EmbeddingCache(1 << 20))
    world.set_embedder(with_prefixes(cached, PREFIXES))
    world.agent = replace(world.agent, source=replace(world.agent.source, prefixes=PREFIXES))
    return embedder


async def test_stored_texts_get_the_passage_prefix(world: World, embedder: FakeEmbedder) -> None:
    world.set_ranking(replace(EVERYTHING, types=(MemoryType("fact", 30), MemoryType("working", 30))))
    await world.add("a memory", vector=None)
    address = Address(user_id="u", namespace=("memories", "u"), key="k")
    await world.items.put(world.agent, address, ItemContent(content="an item"))
    await world.working.store(world.agent, IncomingMemory(user_id="u", content="a thought", session_id="s"))
    line = ImportLine(memory=IncomingMemory(user_id="u", content="an import"))
    await import_lines(world.agent, [line], can_restore_erased=False)

    assert embedder.texts == [f"passage: {text}" for text in ("a memory", "an item", "a thought", "an import")]
    assert sorted(await world.heads()) == ["a memory", "a thought", "an import", "an item"]


async def test_queries_get_the_query_prefix(world: World, embedder: FakeEmbedder) -> None:
    """The cache does not confuse a query with a memory of the same text."""
    await world.add("the same words", vector=None)
    for _ in range(2):
        await world.recall.search(world.agent, search_request(query="the same words"))

    assert embedder.texts == ["passage: the same words", "query: the same words"]


async def test_texts_are_unchanged_without_prefixes(world: World) -> None:
    embedder = FakeEmbedder()
    world.set_embedder(with_prefixes(embedder, None))
    await world.add("words", vector=None)
    await world.recall.search(world.agent, search_request(query="words"))

    assert embedder.texts == ["words", "words"]


async def test_import_recomputes_vectors_of_other_prefixes(world: World, embedder: FakeEmbedder) -> None:
    plain = EmbeddingSource(provider="fake", model=None, dimensions=8)
    named = [embedding_name(replace(plain, prefixes=prefixes)) for prefixes in (None, Prefixes(query="q"), PREFIXES)]
    assert named[0] == "fake/8"
    for number, name in enumerate(named):
        memory = IncomingMemory(user_id="u", content=f"m{number}", vector=[1.0] * 8)
        await import_lines(world.agent, [ImportLine(memory=memory, vector_of=name)], can_restore_erased=False)

    assert embedder.texts == ["passage: m0", "passage: m1"]
