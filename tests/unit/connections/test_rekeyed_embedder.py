"""A key that is rotated is read when the provider refuses the old one, and the text is embedded after all."""

import asyncio
from collections.abc import Sequence

import pytest

from agentmemory_operator.connections.embedders import RekeyedEmbedder
from agentmemory_operator.errors import EmbedderUnavailable, SpecInvalid, TransientError
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.ports.models import Embedder


class Provider:
    """Takes one key; notes which it was shown."""

    def __init__(self) -> None:
        self.takes, self.stored = "old", "old"
        self.shown: list[str] = []
        self.reads = 0
        self.trouble: Exception | None = None

    async def read_key(self) -> str:
        self.reads += 1
        if self.stored == "":
            raise TransientError("not handed over")
        return self.stored

    def make(self, key: str) -> Embedder:
        return Client(self, key)

    def embedder(self) -> RekeyedEmbedder:
        return RekeyedEmbedder("old", self.read_key, self.make)


class Client:
    def __init__(self, provider: Provider, key: str) -> None:
        self._provider = provider
        self._key = key

    @property
    def dimensions(self) -> int:
        return 1

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        await asyncio.sleep(0)
        self._provider.shown.append(self._key)
        if self._provider.trouble:
            raise self._provider.trouble
        if self._key != self._provider.takes:
            raise SpecInvalid("InvalidSpec", "401: correct the key")
        return [[1.0] for _ in texts]


async def test_a_rotated_key_is_read_and_the_call_made_once_more() -> None:
    provider = Provider()
    embedder = provider.embedder()
    provider.takes = provider.stored = "new"

    assert await embedder.embed(["text"]) == [[1.0]]
    assert provider.shown == ["old", "new"]

    await embedder.embed(["text"])
    assert provider.shown == ["old", "new", "new"]
    assert (provider.reads, embedder.dimensions) == (1, 1)


async def test_calls_that_are_refused_together_read_the_key_once() -> None:
    provider = Provider()
    embedder = provider.embedder()
    provider.takes = provider.stored = "new"

    assert await asyncio.gather(*(embedder.embed(["text"]) for _ in range(5))) == [[[1.0]]] * 5
    assert provider.reads == 1


@pytest.mark.parametrize("stored", ["old", ""], ids=["the same key", "no key"])
async def test_without_another_key_the_refusal_stands_and_the_key_is_not_read_all_the_time(stored: str) -> None:
    provider = Provider()
    embedder = provider.embedder()
    provider.takes, provider.stored = "new", stored

    for _ in range(3):
        with pytest.raises(SpecInvalid, match="401"):
            await embedder.embed(["text"])

    assert provider.reads == 1


async def test_what_passes_by_itself_reads_no_key() -> None:
    provider = Provider()
    provider.trouble = EmbedderUnavailable("away")

    with pytest.raises(EmbedderUnavailable):
        await provider.embedder().embed(["text"])

    assert provider.reads == 0
