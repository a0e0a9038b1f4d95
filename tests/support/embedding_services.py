"""Services that speak OpenAI's embeddings API in their own way: the shapes of their requests and answers."""

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.fake_openai import vector_of


class Mistral:
    """`https://api.mistral.ai/v1`: mistral-embed has 1,024 numbers; a field that it does not know is refused."""

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
            {"object": "embedding", "embedding": vector_of(text, self.size), "index": place}
            for place, text in enumerate(body["input"])
        ]
        usage = {"prompt_tokens": 4, "total_tokens": 4, "completion_tokens": 0, "prompt_audio_seconds": None}
        answer = {"id": "0a1b", "object": "list", "data": data, "model": body["model"], "usage": usage}
        return JSONResponse(answer)


class Gemini:
    """`https://generativelanguage.googleapis.com/v1beta/openai`: leaves out what is 0, answers lists of errors."""

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
            {"object": "embedding", "embedding": vector_of(text, body.get("dimensions") or self.native), "index": place}
            for place, text in enumerate(body["input"])
        ]
        data = [{name: value for name, value in row.items() if value != 0} for row in rows]
        return JSONResponse({"object": "list", "data": data, "model": body["model"]})

    def _error(self, status: int, message: str) -> Response:
        return JSONResponse([{"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}}], status)
