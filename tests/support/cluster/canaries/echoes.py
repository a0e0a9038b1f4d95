"""An embedding service and a Qdrant that fail, and repeat the request in their responses."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.web.services import embedding_of

METHODS = ["GET", "PUT", "POST", "PATCH", "DELETE"]
ResponseBuilder = Callable[[str, Mapping[str, str]], Response]
"""Builds the response to a request from its body and headers."""


def _echo_of(body: str, headers: Mapping[str, str]) -> str:
    """Return the most sensitive parts of a request in few characters: its key, then its texts, longest first."""
    key = headers.get("authorization", headers.get("api-key", ""))
    try:
        said = sorted(_texts_in(json.loads(body)), key=len, reverse=True)
    except ValueError:
        said = [body]
    return f"not taken from {key}: {' '.join(said)}"


def _texts_in(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for name, inner in value.items():
                yield from (name, *_texts_in(inner))
        case list():
            for inner in value:
                yield from _texts_in(inner)


def openai_error(status: int) -> ResponseBuilder:
    """Return a builder of errors in OpenAI's format that repeat the request."""
    return lambda body, headers: JSONResponse(
        {"error": {"message": _echo_of(body, headers), "type": "t", "param": body, "code": body}}, status
    )


def qdrant_error(status: int) -> ResponseBuilder:
    """Return a builder of errors in Qdrant's format that repeat the request."""
    return lambda body, headers: JSONResponse({"status": {"error": _echo_of(body, headers)}, "time": 0.0}, status)


def page(status: int) -> ResponseBuilder:
    """Return a builder of HTML pages that repeat the request, as a gateway may do."""
    return lambda body, headers: Response(f"<pre>{_echo_of(body, headers)}</pre>", status, media_type="text/html")


def key_first(status: int) -> ResponseBuilder:
    """Return a builder of errors that repeat only the key, as OpenAI does for an invalid one."""

    def answer(_: str, headers: Mapping[str, str]) -> Response:
        key = headers.get("authorization", headers.get("api-key", ""))
        message = f"refused: {key.removeprefix('Bearer ')}"
        return JSONResponse({"error": {"message": message}, "status": {"error": message}}, status)

    return answer


# The API retries the first one until its timeout.
EMBEDDER_FAULTS = (openai_error(500), openai_error(400), page(400), key_first(400), key_first(401))
QDRANT_FAULTS = (qdrant_error(400), qdrant_error(500), page(403), page(200), key_first(401))


@dataclass(slots=True)
class EchoingEmbedder:
    """An embedding service. If `failure` is set it fails, and repeats the request.

    Attributes:
        failure: Builds the failure responses; None for normal operation.
        failure_count: Number of failure responses.
    """

    size: int
    failure: ResponseBuilder | None = None
    failure_count: int = 0

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/embeddings", self._embed, methods=["POST"])])

    async def _embed(self, request: Request) -> Response:
        body = (await request.body()).decode()
        if self.failure is not None:
            self.failure_count += 1
            return self.failure(body, request.headers)
        asked = json.loads(body)
        rows = [
            {"object": "embedding", "index": place, "embedding": embedding_of(text, self.size)}
            for place, text in enumerate(asked["input"])
        ]
        return JSONResponse({"object": "list", "data": rows, "model": asked["model"], "usage": {"total_tokens": 1}})


@dataclass(slots=True)
class EchoingProxy:
    """A proxy in front of Qdrant. It fails selected calls, and repeats the request in the response.

    Attributes:
        faults: Pattern of method and path -> builder of the failure response.
        answered: Pattern -> number of failure responses.
    """

    target: str
    faults: dict[str, ResponseBuilder] = field(default_factory=dict)
    answered: Counter[str] = field(default_factory=Counter)
    url: str = ""

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self._pass, methods=METHODS)])

    async def _pass(self, request: Request) -> Response:
        body = await request.body()
        path = quote(request.url.path)
        for pattern, answering in [*self.faults.items()]:
            if re.search(pattern, f"{request.method} {path}"):
                self.answered[pattern] += 1
                return answering(body.decode(errors="replace"), request.headers)
        async with httpx.AsyncClient(base_url=self.target, timeout=30, verify=False) as client:
            kept = {name: value for name, value in request.headers.items() if name in ("content-type", "api-key")}
            answer = await client.request(
                request.method, f"{path}?{request.url.query}".rstrip("?"), content=body, headers=kept
            )
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))
