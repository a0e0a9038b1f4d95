"""A reverse proxy in front of Qdrant that writes down what passes, swallows a method, plays dead or old."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.http_server import serve

METHODS = ["GET", "PUT", "POST", "PATCH", "DELETE"]
# POST requests that only read.
READS = ("/count", "/scroll", "/query", "/points")


@dataclass(slots=True)
class Proxy:
    """What passed, and how to behave.

    Attributes:
        calls: (method, path) in order.
        swallowed: methods that are answered 200 and not passed on.
        is_down: every call is answered 503.
        version: what the server is said to be; None asks it.
    """

    target: str
    url: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    swallowed: frozenset[str] = frozenset()
    is_down: bool = False
    version: str | None = None

    def mutations(self) -> list[tuple[str, str]]:
        """Return the calls that may have changed something."""
        return [
            (method, path)
            for method, path in self.calls
            if method != "GET" and not (method == "POST" and path.endswith(READS))
        ]

    async def handle(self, request: Request) -> Response:
        """Answer one request."""
        self.calls.append((request.method, request.url.path))
        if self.is_down:
            return JSONResponse({"status": {"error": "away"}}, status_code=503)
        if self.version and request.url.path == "/":
            return JSONResponse({"title": "qdrant - vector search engine", "version": self.version})
        if request.method in self.swallowed:
            return JSONResponse({"result": True, "status": "ok", "time": 0.0})
        # To load the system's authorities takes longer than the call.
        async with httpx.AsyncClient(base_url=self.target, timeout=30, verify=False) as client:
            answer = await client.request(
                request.method,
                request.url.path,
                params=dict(request.query_params),
                content=await request.body(),
                headers={"content-type": request.headers.get("content-type", "application/json")},
            )
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))


@contextmanager
def proxying(target: str) -> Iterator[Proxy]:
    """Serve a proxy in front of `target` while the context is open."""
    proxy = Proxy(target)
    app = Starlette(routes=[Route("/{path:path}", proxy.handle, methods=METHODS)])
    with serve(app) as url:
        proxy.url = url
        yield proxy
