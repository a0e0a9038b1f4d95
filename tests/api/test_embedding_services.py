"""Mistral and Gemini through their OpenAI-compatible URLs, set up as in docs/embeddings.md."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentmemory_operator.adapters.embedding.openai_embedder import OpenAIEmbedder, OpenAIOptions
from agentmemory_operator.errors import RequestInvalid, SpecInvalid
from tests.support.web.http_server import serve
from tests.support.web.services import Gemini, Mistral, embedding_of

Service = Mistral | Gemini


@contextlib.asynccontextmanager
async def embedder_of(service: Service, **options: Any) -> AsyncIterator[OpenAIEmbedder]:
    with serve(service.app()) as url:
        given = {"model": service.model, "dimensions": service.size, "api_key": "key", "base_url": url + service.path}
        embedder = OpenAIEmbedder(OpenAIOptions(**given | options))
        try:
            yield embedder
        finally:
            await embedder.aclose()


@pytest.mark.parametrize("service", [Mistral(), Gemini()], ids=["mistral", "gemini"])
async def test_texts_are_embedded_in_order(service: Service) -> None:
    async with embedder_of(service, batch_size=3) as embedder:
        vectors = await embedder.embed(["a", "b", "c", "d"])

    assert vectors == [embedding_of(text, service.size) for text in "abcd"]


@pytest.mark.parametrize("service", [Mistral(), Gemini()], ids=["mistral", "gemini"])
async def test_float_encoding_is_remembered(service: Service) -> None:
    """After a refusal of base64, all requests ask for floats."""

    async with embedder_of(service) as embedder:
        await embedder.embed(["a"])
        await embedder.embed(["b"])

    assert [body["encoding_format"] for body in service.bodies] == ["base64", "float", "float"]


async def test_mistral_is_sent_no_dimensions() -> None:
    service = Mistral()
    async with embedder_of(service) as embedder:
        await embedder.embed(["a"])

    assert all("dimensions" not in body for body in service.bodies)


@pytest.mark.parametrize("model", ["gemini-embedding-001", "models/gemini-embedding-001"])
async def test_gemini_is_sent_the_dimensions(model: str) -> None:
    service = Gemini()
    async with embedder_of(service, model=model, dimensions=256) as embedder:
        [vector] = await embedder.embed(["a"])

    assert len(vector) == 256
    assert service.bodies[-1]["dimensions"] == 256


async def test_gemini_error_is_reported() -> None:
    async with embedder_of(Gemini(), batch_size=2048) as embedder:
        with pytest.raises(RequestInvalid, match=r"400 INVALID_ARGUMENT\): .*batchSize is larger"):
            await embedder.embed([str(number) for number in range(101)])


@pytest.mark.parametrize("service", [Mistral(), Gemini()], ids=["mistral", "gemini"])
async def test_wrong_key_is_a_spec_error(service: Service) -> None:
    async with embedder_of(service, api_key="wrong") as embedder:
        with pytest.raises(SpecInvalid, match=r"correct the key in spec\.embedding\.secretRef"):
            await embedder.embed(["a"])
