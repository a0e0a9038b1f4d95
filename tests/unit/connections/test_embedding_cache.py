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
    """Embeds a text as its length; refuses `bad`; waits where a gate is set."""

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
# A vector of LengthEmbedder.
ENTRY = ENTRY_BYTES + 2 * 4


def cached_by(inner: Embedder, entries: int | None = None, *, cache: EmbeddingCache | None = None) -> CachedEmbedder:
    return CachedEmbedder(inner, cache=cache or EmbeddingCache(MIB), entries=entries)


@pytest.fixture
def inner() -> LengthEmbedder:
    return LengthEmbedder()


async def test_a_text_is_embedded_once(inner: LengthEmbedder) -> None:
    cached = cached_by(inner, 10)

    first, second = await cached.embed(["a", "bb"]), await cached.embed(["bb", "a"])

    assert inner.calls == [["a", "bb"]]
    assert [vector[0] for vector in first] == [1, 2]
    assert second == first[::-1]


async def test_a_remembered_vector_equals_the_first_answer(inner: LengthEmbedder) -> None:
    cached = cached_by(inner, 10)

    assert await cached.embed(["a"]) == await cached.embed(["a"])


async def test_equal_texts_of_one_call_are_embedded_once(inner: LengthEmbedder) -> None:
    vectors = await cached_by(inner, 10).embed(["a", "b", "a"])

    assert inner.calls == [["a", "b"]]
    assert len(vectors) == 3


async def test_the_least_recently_used_goes_first(inner: LengthEmbedder) -> None:
    cached = cached_by(inner, 2)
    for text in ("a", "b", "a", "c", "a", "b"):
        await cached.embed([text])

    assert inner.calls == [["a"], ["b"], ["c"], ["b"]]


async def test_more_texts_than_entries_are_all_answered(inner: LengthEmbedder) -> None:
    vectors = await cached_by(inner, 1).embed(["a", "bb", "ccc"])

    assert [vector[0] for vector in vectors] == [1, 2, 3]


async def test_no_entries_switch_remembering_off(inner: LengthEmbedder) -> None:
    cached = cached_by(inner, 0)
    await cached.embed(["a"])
    await cached.embed(["a"])

    assert inner.calls == [["a"], ["a"]]


async def test_calls_at_the_same_time_embed_a_text_once(inner: LengthEmbedder) -> None:
    cached, inner.gate = cached_by(inner, 10), asyncio.Event()
    calls = [asyncio.create_task(cached.embed(texts)) for texts in (["a"], ["a", "b"], ["b", "a"])]
    await asyncio.sleep(0)
    inner.gate.set()
    await asyncio.gather(*calls)

    assert inner.calls == [["a"], ["b"]]


async def test_a_caller_that_goes_away_does_not_spoil_it_for_others(inner: LengthEmbedder) -> None:
    cached, inner.gate = cached_by(inner, 10), asyncio.Event()
    gone, stays = asyncio.create_task(cached.embed(["a"])), asyncio.create_task(cached.embed(["a"]))
    await asyncio.sleep(0)
    gone.cancel()
    inner.gate.set()

    assert (await stays)[0][0] == 1
    assert inner.calls == [["a"]]


async def test_a_failure_of_another_calls_texts_is_not_shared(inner: LengthEmbedder) -> None:
    cached, inner.gate = cached_by(inner, 10), asyncio.Event()
    failing, good = asyncio.create_task(cached.embed(["a", "bad"])), asyncio.create_task(cached.embed(["a"]))
    await asyncio.sleep(0)
    inner.gate.set()

    assert (await good)[0][0] == 1
    with pytest.raises(RequestInvalid):
        await failing


async def test_failures_are_not_remembered() -> None:
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


def test_the_size_is_the_inner_embedders(inner: LengthEmbedder) -> None:
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


async def embed_each(embedder: CachedEmbedder, prefix: str, number: int, *, at_once: int = 500) -> None:
    for start in range(0, number, at_once):
        await embedder.embed([f"{prefix} {i}" for i in range(start, min(start + at_once, number))])


def fill(cache: EmbeddingCache, shelf: CachePartition, number: int, *, dimensions: int) -> None:
    for i in range(number):
        cache.put(shelf, {i.to_bytes(16): bytes(4 * dimensions)}, entries=10_000)


class TestTogether:
    """Of all embedders of a process."""

    def test_twelve_agents_with_all_their_texts_stay_within_the_bound(self) -> None:
        cache = EmbeddingCache(4 * MIB)
        shelves = [cache.add_partition() for _ in range(12)]
        tracemalloc.start()
        for shelf in shelves:
            fill(cache, shelf, 650, dimensions=1536)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert 3.75 * MIB < taken <= 4 * MIB
        assert 3.9375 * MIB < cache.size_bytes <= 4 * MIB

    @pytest.mark.parametrize("dimensions", [1, 64, 384])
    def test_a_vector_takes_no_more_than_is_counted_whoever_loses_what(self, dimensions: int) -> None:
        cache = EmbeddingCache(MIB)
        shelves = [cache.add_partition() for _ in range(8)]
        tracemalloc.start()
        for shelf in shelves:
            # Each fills all of it in its turn, and is left with less and less.
            fill(cache, shelf, MIB // (ENTRY_BYTES + 4 * dimensions), dimensions=dimensions)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert taken <= MIB

    async def test_whoever_has_most_loses_its_oldest_and_nobody_else_anything(self) -> None:
        cache = EmbeddingCache(12 * ENTRY)
        modest, greedy = LengthEmbedder(), LengthEmbedder()
        first, second = cached_by(modest, cache=cache), cached_by(greedy, cache=cache)
        await first.embed(["a", "b", "c"])
        for round_ in range(5):
            await embed_each(second, f"round {round_}", 20, at_once=3)

        await first.embed(["a", "b", "c"])
        await second.embed([f"round 4 {i}" for i in range(11, 20)])

        assert modest.calls == [["a", "b", "c"]]
        assert greedy.calls[-1] == ["round 4 18", "round 4 19"]

    async def test_an_agent_gets_its_share_of_what_another_one_filled_first(self) -> None:
        cache = EmbeddingCache(12 * ENTRY)
        early, late = LengthEmbedder(), LengthEmbedder()
        first, second = cached_by(early, cache=cache), cached_by(late, cache=cache)
        await embed_each(first, "early", 12)
        await embed_each(second, "late", 6, at_once=1)

        await embed_each(second, "late", 6)
        await first.embed([f"early {i}" for i in range(6, 12)])

        assert len(late.calls) == 6
        assert len(early.calls) == 1

    async def test_no_agent_reads_what_another_s_provider_answered(self) -> None:
        cache = EmbeddingCache(MIB)
        own, other = ConstantEmbedder(2, value=1.0), ConstantEmbedder(2, value=2.0)

        assert await cached_by(own, cache=cache).embed(["the same"]) == [[1.0, 1.0]]
        assert await cached_by(other, cache=cache).embed(["the same"]) == [[2.0, 2.0]]

    async def test_what_an_embedder_remembered_goes_with_it(self, inner: LengthEmbedder) -> None:
        cache = EmbeddingCache(MIB)
        embedder = cached_by(inner, cache=cache)
        await embedder.embed(["a"])
        await asyncio.sleep(0)
        assert cache.size_bytes == ENTRY

        del embedder
        gc.collect()

        assert cache.size_bytes == 0

    async def test_a_vector_larger_than_all_the_room_is_answered_and_not_remembered(self) -> None:
        cache = EmbeddingCache(ENTRY)
        large, small = ConstantEmbedder(1000), LengthEmbedder()
        first, second = cached_by(small, cache=cache), cached_by(large, cache=cache)
        await first.embed(["a"])

        assert len((await second.embed(["b"]))[0]) == 1000
        await first.embed(["a"])

        assert small.calls == [["a"]]

    async def test_no_room_at_all_switches_remembering_off(self, inner: LengthEmbedder) -> None:
        embedder = cached_by(inner, cache=EmbeddingCache(0))
        await embedder.embed(["a"])
        await embedder.embed(["a"])

        assert inner.calls == [["a"], ["a"]]
