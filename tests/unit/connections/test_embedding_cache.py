import asyncio
import gc
import tracemalloc
from collections.abc import Sequence

import pytest

from agentmemory_operator.connections.embedding_cache import ENTRY_BYTES, CachedEmbedder, CachePartition, EmbeddingCache
from agentmemory_operator.errors import EmbedderUnavailable, RequestInvalid
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.ports.models import Embedder


class LengthEmbedder:
    """Embeds a text as its length; rejects `bad`; waits for `gate` if it is set."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.gate: asyncio.Event | None = None

    @property
    def dimensions(self) -> int:
        return 2

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        self.calls.append(list(texts))
        if self.gate:
            await self.gate.wait()
        if "bad" in texts:
            raise RequestInvalid(())
        return [[float(len(text)), 0.1] for text in texts]


MIB = 1 << 20
# Bytes of a cached vector of `LengthEmbedder`.
ENTRY = ENTRY_BYTES + 2 * 4


def cached_by(inner: Embedder, entries: int | None = None, *, cache: EmbeddingCache | None = None) -> CachedEmbedder:
    return CachedEmbedder(inner, cache=cache or EmbeddingCache(MIB), entries=entries)


@pytest.fixture
def inner() -> LengthEmbedder:
    return LengthEmbedder()


async def test_text_is_embedded_once(inner: LengthEmbedder) -> None:
    cached = cached_by(inner, 10)

    first, second = await cached.embed(["a", "bb"]), await cached.embed(["bb", "a"])

    assert inner.calls == [["a", "bb"]]
    assert [vector[0] for vector in first] == [1, 2]
    assert second == first[::-1]


async def test_cached_vector_equals_the_original(inner: LengthEmbedder) -> None:
    cached = cached_by(inner, 10)

    assert await cached.embed(["a"]) == await cached.embed(["a"])


async def test_equal_texts_of_a_call_are_embedded_once(inner: LengthEmbedder) -> None:
    vectors = await cached_by(inner, 10).embed(["a", "b", "a"])

    assert inner.calls == [["a", "b"]]
    assert len(vectors) == 3


async def test_least_recently_used_entry_is_evicted(inner: LengthEmbedder) -> None:
    cached = cached_by(inner, 2)
    for text in ("a", "b", "a", "c", "a", "b"):
        await cached.embed([text])

    assert inner.calls == [["a"], ["b"], ["c"], ["b"]]


async def test_more_texts_than_entries_are_all_embedded(inner: LengthEmbedder) -> None:
    vectors = await cached_by(inner, 1).embed(["a", "bb", "ccc"])

    assert [vector[0] for vector in vectors] == [1, 2, 3]


async def test_zero_entries_disable_the_cache(inner: LengthEmbedder) -> None:
    cached = cached_by(inner, 0)
    await cached.embed(["a"])
    await cached.embed(["a"])

    assert inner.calls == [["a"], ["a"]]


async def test_concurrent_calls_embed_a_text_once(inner: LengthEmbedder) -> None:
    cached, inner.gate = cached_by(inner, 10), asyncio.Event()
    calls = [asyncio.create_task(cached.embed(texts)) for texts in (["a"], ["a", "b"], ["b", "a"])]
    await asyncio.sleep(0)
    inner.gate.set()
    await asyncio.gather(*calls)

    assert inner.calls == [["a"], ["b"]]


async def test_cancelled_caller_does_not_affect_others(inner: LengthEmbedder) -> None:
    cached, inner.gate = cached_by(inner, 10), asyncio.Event()
    cancelled, remaining = asyncio.create_task(cached.embed(["a"])), asyncio.create_task(cached.embed(["a"]))
    await asyncio.sleep(0)
    cancelled.cancel()
    inner.gate.set()

    assert (await remaining)[0][0] == 1
    assert inner.calls == [["a"]]


async def test_failure_of_a_foreign_text_is_not_shared(inner: LengthEmbedder) -> None:
    cached, inner.gate = cached_by(inner, 10), asyncio.Event()
    failing, good = asyncio.create_task(cached.embed(["a", "bad"])), asyncio.create_task(cached.embed(["a"]))
    await asyncio.sleep(0)
    inner.gate.set()

    assert (await good)[0][0] == 1
    with pytest.raises(RequestInvalid):
        await failing


async def test_failures_are_not_cached() -> None:
    class Recovering(LengthEmbedder):
        async def embed(self, texts: Sequence[str]) -> list[Vector]:
            if not self.calls:
                self.calls.append([])
                raise EmbedderUnavailable("away")
            return await super().embed(texts)

    cached = cached_by(Recovering(), 10)
    with pytest.raises(EmbedderUnavailable):
        await cached.embed(["a"])

    assert (await cached.embed(["a"]))[0][0] == 1


def test_dimensions_are_those_of_the_inner_embedder(inner: LengthEmbedder) -> None:
    assert cached_by(inner, 1).dimensions == 2


class ConstantEmbedder:
    """Embeds every text as the same numbers, and counts texts."""

    def __init__(self, dimensions: int, *, value: float = 0.5) -> None:
        self.texts = 0
        self._vector = [value] * dimensions

    @property
    def dimensions(self) -> int:
        return len(self._vector)

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        self.texts += len(texts)
        return [self._vector] * len(texts)


async def embed_each(embedder: CachedEmbedder, prefix: str, number: int, *, batch_size: int = 500) -> None:
    for start in range(0, number, batch_size):
        await embedder.embed([f"{prefix} {i}" for i in range(start, min(start + batch_size, number))])


def fill(cache: EmbeddingCache, partition: CachePartition, number: int, *, dimensions: int) -> None:
    for i in range(number):
        cache.put(partition, {i.to_bytes(16): bytes(4 * dimensions)}, entries=10_000)


class TestSharedCache:
    """Limits shared by all embedders of a process."""

    def test_partitions_share_one_size_limit(self) -> None:
        cache = EmbeddingCache(4 * MIB)
        partitions = [cache.add_partition() for _ in range(12)]
        tracemalloc.start()
        for partition in partitions:
            fill(cache, partition, 650, dimensions=1536)
        used_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert 3.75 * MIB < used_bytes <= 4 * MIB
        assert 3.9375 * MIB < cache.size_bytes <= 4 * MIB

    @pytest.mark.parametrize("dimensions", [1, 384])
    def test_size_counts_all_bytes(self, dimensions: int) -> None:
        size_bytes = MIB // 4
        cache = EmbeddingCache(size_bytes)
        partitions = [cache.add_partition() for _ in range(8)]
        tracemalloc.start()
        for partition in partitions:
            # Each partition fills the whole cache in turn, and evicts entries of the others.
            fill(cache, partition, size_bytes // (ENTRY_BYTES + 4 * dimensions), dimensions=dimensions)
        used_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert used_bytes <= size_bytes

    async def test_largest_partition_loses_its_oldest_entry(self) -> None:
        cache = EmbeddingCache(12 * ENTRY)
        modest, greedy = LengthEmbedder(), LengthEmbedder()
        first, second = cached_by(modest, cache=cache), cached_by(greedy, cache=cache)
        await first.embed(["a", "b", "c"])
        for round_ in range(5):
            await embed_each(second, f"round {round_}", 20, batch_size=3)

        await first.embed(["a", "b", "c"])
        await second.embed([f"round 4 {i}" for i in range(11, 20)])

        assert modest.calls == [["a", "b", "c"]]
        assert greedy.calls[-1] == ["round 4 18", "round 4 19"]

    async def test_agent_without_a_cache_evicts_nothing(self) -> None:
        cache = EmbeddingCache(2 * ENTRY)
        cached, uncached = LengthEmbedder(), LengthEmbedder()
        first, second = cached_by(cached, cache=cache), cached_by(uncached, 0, cache=cache)
        await first.embed(["a", "b"])
        await second.embed(["c"])

        await first.embed(["a", "b"])

        assert cached.calls == [["a", "b"]]

    async def test_late_agent_gets_its_share(self) -> None:
        cache = EmbeddingCache(12 * ENTRY)
        early, late = LengthEmbedder(), LengthEmbedder()
        first, second = cached_by(early, cache=cache), cached_by(late, cache=cache)
        await embed_each(first, "early", 12)
        await embed_each(second, "late", 6, batch_size=1)

        await embed_each(second, "late", 6)
        await first.embed([f"early {i}" for i in range(6, 12)])

        assert len(late.calls) == 6
        assert len(early.calls) == 1

    async def test_agents_do_not_share_vectors(self) -> None:
        cache = EmbeddingCache(MIB)
        own, other = ConstantEmbedder(2, value=1.0), ConstantEmbedder(2, value=2.0)

        assert await cached_by(own, cache=cache).embed(["the same"]) == [[1.0, 1.0]]
        assert await cached_by(other, cache=cache).embed(["the same"]) == [[2.0, 2.0]]

    async def test_entries_are_dropped_with_their_embedder(self, inner: LengthEmbedder) -> None:
        cache = EmbeddingCache(MIB)
        embedder = cached_by(inner, cache=cache)
        await embedder.embed(["a"])
        await asyncio.sleep(0)
        assert cache.size_bytes == ENTRY

        del embedder
        gc.collect()

        assert cache.size_bytes == 0

    async def test_vector_larger_than_the_cache_is_not_kept(self) -> None:
        cache = EmbeddingCache(ENTRY)
        large, small = ConstantEmbedder(1000), LengthEmbedder()
        first, second = cached_by(small, cache=cache), cached_by(large, cache=cache)
        await first.embed(["a"])

        assert len((await second.embed(["b"]))[0]) == 1000
        await first.embed(["a"])

        assert small.calls == [["a"]]

    async def test_zero_bytes_disable_the_cache(self, inner: LengthEmbedder) -> None:
        embedder = cached_by(inner, cache=EmbeddingCache(0))
        await embedder.embed(["a"])
        await embedder.embed(["a"])

        assert inner.calls == [["a"], ["a"]]
