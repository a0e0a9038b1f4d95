"""Third-party services with faults on demand over real HTTP: embedders, a trace collector, a web server with files."""

import base64
import contextlib
import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.fault_injection import Plantable, record_effect
from tests.support.web.http_server import ServerFiles, serve


class Collector:
    """A trace collector that stores all requests."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/traces", self._take, methods=["POST"])])

    async def _take(self, request: Request) -> Response:
        self.bodies.append(await request.body())
        return Response(status_code=200, media_type="application/x-protobuf")

    def spans(self) -> list[tuple[str, Span]]:
        """Return every span with the name of its service."""
        return [
            (attributes_of(resource.resource)["service.name"], span)
            for body in list(self.bodies)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def attributes_of(holder: Any) -> dict[str, Any]:
    values = ((entry.key, entry.value) for entry in holder.attributes)
    return {key: value.int_value if value.HasField("int_value") else value.string_value for key, value in values}


@dataclass
class FakeOpenAI(Plantable):
    """A fake of OpenAI's embeddings service. It records the requests.

    Attributes:
        faults: Responses for the next requests, one each, before normal operation.
        dimensions: Length of the vectors if the request does not set it.
        usage: Token usage in the responses.
        fails_on: Text that makes every request with it fail with status 500.
    """

    PLANTABLE = ("faults",)

    dimensions: int = 8
    faults: list[Response] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    knows_base64: bool = True
    is_reversed: bool = False
    fails_on: str | None = None
    usage: Any = field(default_factory=lambda: {"prompt_tokens": 1, "total_tokens": 1})

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/embeddings", self._embed, methods=["POST"])])

    async def _embed(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization", ""))
        if self.faults:
            record_effect(self, "faults")
            return self.faults.pop(0)
        is_base64 = body.get("encoding_format") == "base64"
        if is_base64 and not self.knows_base64:
            return failure(400, "unknown value for encoding_format")
        if self.fails_on in body["input"]:
            return failure(500)
        size = body.get("dimensions") or self.dimensions
        rows = [
            {"object": "embedding", "index": index, "embedding": _encoded(embedding_of(text, size), is_base64)}
            for index, text in enumerate(body["input"])
        ]
        usage = self.usage
        data = rows[::-1] if self.is_reversed else rows
        return JSONResponse({"object": "list", "data": data, "model": body["model"], "usage": usage})


def embedding_of(text: str, size: int) -> list[float]:
    """Return the service's vector for a text."""
    digest = hashlib.sha256(text.encode()).digest()
    return [digest[place % 32] / 256 for place in range(size)]


def failure(status: int, message: str = "injected", **headers: str) -> Response:
    """Build an error response in OpenAI's format. Header names have underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse({"error": {"message": message, "type": "test"}}, status, headers=named)


def _encoded(vector: list[float], is_base64: bool) -> Any:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if is_base64 else vector


@dataclass(slots=True)
class WebServer:
    """An ASGI application that serves files.

    Attributes:
        url: Base URL.
        files: Content by path.
        moved: Targets of redirects by path.
        cuts: Number of responses to break off in the middle.
        requested_paths: Requested paths, in order.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    cuts: int = 0
    requested_paths: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        """Host and port, in the form of a connection's spec."""
        return self.url.removeprefix("https://")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        self.requested_paths.append(path)
        if path in self.moved:
            await _answer(send, 302, b"", headers=[(b"location", self.moved[path].encode())])
        elif path not in self.files:
            await _answer(send, 404, b"")
        elif self.cuts:
            self.cuts -= 1
            content = self.files[path]
            await _answer(send, 200, content[: len(content) // 2], size=len(content))
        else:
            await _answer(send, 200, self.files[path])


async def _answer(
    send: Any, status: int, body: bytes, *, size: int | None = None, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    length = str(len(body) if size is None else size).encode()
    told = [(b"content-length", length), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body, "more_body": size is not None})
    # The server closes the connection if an application returns before the body is complete.


@contextlib.contextmanager
def serve_files(tls: ServerFiles) -> Iterator[WebServer]:
    """Serve a `WebServer` over TLS inside the context."""
    server = WebServer()
    with serve(server, tls=tls) as server.url:
        yield server
