import math
import pathlib
import socket

import pytest
import wordllama  # type: ignore[import-untyped]
from wordllama import WordLlama

from agentmemory_operator.adapters.embedding.wordllama_embedder import MODEL, NATIVE_DIMENSIONS, WordLlamaEmbedder
from agentmemory_operator.errors import SpecInvalid


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("the offline embedder asked the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dimensions", [64, 128, 256])
async def test_vectors_have_declared_size_and_unit_length(dimensions: int) -> None:
    [vector] = await WordLlamaEmbedder(dimensions=dimensions).embed(["the customer pays by invoice"])

    assert len(vector) == dimensions
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-6)


async def test_related_texts_are_closer() -> None:
    invoice, bill, cat = await WordLlamaEmbedder().embed(
        ["the customer pays by invoice", "the client settles bills", "a cat sleeps"]
    )

    assert cosine(invoice, bill) > cosine(invoice, cat) + 0.1


async def test_vector_does_not_depend_on_its_batch() -> None:
    embedder = WordLlamaEmbedder()

    together = await embedder.embed(["short", "a much longer text " * 200])
    alone = await embedder.embed(["short"])

    assert together[0] == alone[0]


@pytest.mark.parametrize("dimensions", [64, 128, 256])
async def test_vectors_equal_those_of_the_package(dimensions: int) -> None:
    """Earlier versions stored vectors of the package itself."""
    texts = ["one text", "Ünïcode, 漢字 and \x00", "a much longer text " * 2000, "x" * 5000, "Where does it lie?"]
    package = WordLlama.load(
        MODEL,
        cache_dir=pathlib.Path(wordllama.__file__).parent,
        trunc_dim=None if dimensions == NATIVE_DIMENSIONS else dimensions,
        disable_download=True,
    )

    assert (
        await WordLlamaEmbedder(dimensions=dimensions).embed(texts)
        == package.embed(texts, norm=True, batch_size=1).tolist()
    )


async def test_empty_text_gives_zeros() -> None:
    assert await WordLlamaEmbedder(dimensions=64).embed([""]) == [[0.0] * 64]


async def test_no_text_gives_no_vector() -> None:
    assert await WordLlamaEmbedder().embed([]) == []


@pytest.mark.parametrize("dimensions", [0, 100, 512])
def test_other_sizes_are_rejected(dimensions: int) -> None:
    with pytest.raises(SpecInvalid, match=f"64, 128 or 256 numbers, not {dimensions}"):
        WordLlamaEmbedder(dimensions=dimensions)


def test_other_models_are_rejected() -> None:
    with pytest.raises(SpecInvalid, match="not 'l3_supercat'"):
        WordLlamaEmbedder(model="l3_supercat")
