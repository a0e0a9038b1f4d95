import asyncio
from collections.abc import Sequence

import pytest

from agentmemory_operator.errors import EmbedderUnavailable, RequestInvalid
from agentmemory_operator.ports import Vector
from agentmemory_operator.services.embedding_cache import CachedEmbedder


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


@pytest.fixture
def inner() -> LengthEmbedder:
    return LengthEmbedder()


async def test_a_text_is_embedded_once(inner: LengthEmbedder) -> None:
    cached = CachedEmbedder(inner, entries=10)

    first, second = await cached.embed(["a", "bb"]), await cached.embed(["bb", "a"])

    assert inner.calls == [["a", "bb"]]
    assert [vector[0] for vector in first] == [1, 2]
    assert second == first[::-1]


async def test_a_remembered_vector_equals_the_first_answer(inner: LengthEmbedder) -> None:
    cached = CachedEmbedder(inner, entries=10)

    assert await cached.embed(["a"]) == await cached.embed(["a"])


async def test_equal_texts_of_one_call_are_embedded_once(inner: LengthEmbedder) -> None:
    vectors = await CachedEmbedder(inner, entries=10).embed(["a", "b", "a"])

    assert inner.calls == [["a", "b"]]
    assert len(vectors) == 3


async def test_the_least_recently_used_goes_first(inner: LengthEmbedder) -> None:
    cached = CachedEmbedder(inner, entries=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        await cached.embed([text])

    assert inner.calls == [["a"], ["b"], ["c"], ["b"]]


async def test_more_texts_than_entries_are_all_answered(inner: LengthEmbedder) -> None:
    vectors = await CachedEmbedder(inner, entries=1).embed(["a", "bb", "ccc"])

    assert [vector[0] for vector in vectors] == [1, 2, 3]


async def test_no_entries_switch_remembering_off(inner: LengthEmbedder) -> None:
    cached = CachedEmbedder(inner, entries=0)
    await cached.embed(["a"])
    await cached.embed(["a"])

    assert inner.calls == [["a"], ["a"]]


async def test_calls_at_the_same_time_embed_a_text_once(inner: LengthEmbedder) -> None:
    cached, inner.gate = CachedEmbedder(inner, entries=10), asyncio.Event()
    calls = [asyncio.create_task(cached.embed(texts)) for texts in (["a"], ["a", "b"], ["b", "a"])]
    await asyncio.sleep(0)
    inner.gate.set()
    await asyncio.gather(*calls)

    assert inner.calls == [["a"], ["b"]]


async def test_a_caller_that_goes_away_does_not_spoil_it_for_others(inner: LengthEmbedder) -> None:
    cached, inner.gate = CachedEmbedder(inner, entries=10), asyncio.Event()
    gone, stays = asyncio.create_task(cached.embed(["a"])), asyncio.create_task(cached.embed(["a"]))
    await asyncio.sleep(0)
    gone.cancel()
    inner.gate.set()

    assert (await stays)[0][0] == 1
    assert inner.calls == [["a"]]


async def test_a_failure_of_another_calls_texts_is_not_shared(inner: LengthEmbedder) -> None:
    cached, inner.gate = CachedEmbedder(inner, entries=10), asyncio.Event()
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

    cached = CachedEmbedder(Recovering(), entries=10)
    with pytest.raises(EmbedderUnavailable):
        await cached.embed(["a"])

    assert (await cached.embed(["a"]))[0][0] == 1


def test_the_size_is_the_inner_embedders(inner: LengthEmbedder) -> None:
    assert CachedEmbedder(inner, entries=1).dimensions == 2
