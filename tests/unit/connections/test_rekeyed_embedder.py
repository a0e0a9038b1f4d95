"""Embedder that reads a rotated key once the provider rejects the old one."""

import asyncio
from collections.abc import Sequence

import pytest

from agentmemory_operator.connections.embedders import RekeyedEmbedder
from agentmemory_operator.errors import EmbedderUnavailable, SpecInvalid, TransientError
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.ports.models import Embedder


class Provider:
    """Accepts one key and records the keys of all calls."""

    def __init__(self) -> None:
        self.accepted_key, self.stored = "old", "old"
        self.received_keys: list[str] = []
        self.reads = 0
        self.error: Exception | None = None

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
        self._provider.received_keys.append(self._key)
        if self._provider.error:
            raise self._provider.error
        if self._key != self._provider.accepted_key:
            raise SpecInvalid("InvalidSpec", "401: correct the key")
        return [[1.0] for _ in texts]


async def test_rotated_key_is_read_and_the_call_repeated() -> None:
    provider = Provider()
    embedder = provider.embedder()
    provider.accepted_key = provider.stored = "new"

    assert await embedder.embed(["text"]) == [[1.0]]
    assert provider.received_keys == ["old", "new"]

    await embedder.embed(["text"])
    assert provider.received_keys == ["old", "new", "new"]
    assert (provider.reads, embedder.dimensions) == (1, 1)


async def test_concurrent_rejections_read_the_key_once() -> None:
    provider = Provider()
    embedder = provider.embedder()
    provider.accepted_key = provider.stored = "new"

    assert await asyncio.gather(*(embedder.embed(["text"]) for _ in range(5))) == [[[1.0]]] * 5
    assert provider.reads == 1


@pytest.mark.parametrize("stored", ["old", ""], ids=["the same key", "no key"])
async def test_unchanged_key_keeps_the_error(stored: str) -> None:
    """The key is not read again on every call."""
    provider = Provider()
    embedder = provider.embedder()
    provider.accepted_key, provider.stored = "new", stored

    for _ in range(3):
        with pytest.raises(SpecInvalid, match="401"):
            await embedder.embed(["text"])

    assert provider.reads == 1


async def test_transient_error_reads_no_key() -> None:
    provider = Provider()
    provider.error = EmbedderUnavailable("away")

    with pytest.raises(EmbedderUnavailable):
        await provider.embedder().embed(["text"])

    assert provider.reads == 0
