"""Mistral and Gemini through their OpenAI-compatible URLs, set up as in docs/embeddings.md."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentmemory_operator.adapters.embedding.openai_embedder import OpenAIEmbedder, OpenAIOptions
from agentmemory_operator.errors import RequestInvalid, SpecInvalid
from tests.support.web.http_server import serve
from tests.support.web.services import embedding_of


class Mistral:
    """`https://api.mistral.ai/v1`: mistral-embed returns 1,024 numbers, and unknown fields are rejected."""

    path, model, size = "/v1", "mistral-embed", 1024
    known = frozenset({"model", "input", "encoding_format", "output_dimension", "output_dtype"})

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/embeddings", self._embed, methods=["POST"])])

    async def _embed(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        if request.headers.get("authorization") != "Bearer key":
            return JSONResponse({"detail": "Unauthorized"}, 401)
        wrong = [
            {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted", "input": value}
            for name, value in body.items()
            if name not in self.known
        ]
        if body.get("encoding_format") == "base64":
            msg = "Input should be 'float'"
            wrong.append({"type": "literal_error", "loc": ["body", "encoding_format"], "msg": msg, "input": "base64"})
        if wrong:
            error = {"object": "error", "message": {"detail": wrong}, "type": "invalid_request_error", "code": None}
            return JSONResponse(error, 422)
        data = [
            {"object": "embedding", "embedding": embedding_of(text, self.size), "index": place}
            for place, text in enumerate(body["input"])
        ]
        usage = {"prompt_tokens": 4, "total_tokens": 4, "completion_tokens": 0, "prompt_audio_seconds": None}
        answer = {"id": "0a1b", "object": "list", "data": data, "model": body["model"], "usage": usage}
        return JSONResponse(answer)


class Gemini:
    """`https://generativelanguage.googleapis.com/v1beta/openai`: omits fields that are 0, returns errors in a list."""

    path, model, size = "/v1beta/openai", "gemini-embedding-001", 768
    native = 3072
    texts_max = 100

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1beta/openai/embeddings", self._embed, methods=["POST"])])

    async def _embed(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        if request.headers.get("authorization") != "Bearer key":
            return self._error(400, "API key not valid. Please pass a valid API key.")
        if body.get("encoding_format") == "base64":
            return self._error(400, "Request contains an invalid argument.")
        if len(body["input"]) > self.texts_max:
            return self._error(400, "at most 100 requests can be in one batch")
        rows = [
            {
                "object": "embedding",
                "embedding": embedding_of(text, body.get("dimensions") or self.native),
                "index": place,
            }
            for place, text in enumerate(body["input"])
        ]
        data = [{name: value for name, value in row.items() if value != 0} for row in rows]
        return JSONResponse({"object": "list", "data": data, "model": body["model"]})

    def _error(self, status: int, message: str) -> Response:
        return JSONResponse([{"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}}], status)


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
