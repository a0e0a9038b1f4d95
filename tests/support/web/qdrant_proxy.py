"""A reverse proxy in front of Qdrant that records calls. It can swallow them, fail, and report another version."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tests.support.fault_injection import Plantable, record_effect
from tests.support.web.http_server import ServerFiles, serve

METHODS = ["GET", "PUT", "POST", "PATCH", "DELETE"]
ALIASES = "/collections/aliases"
# POST requests that change nothing.
READ_ONLY_POSTS = ("/count", "/scroll", "/query", "/points")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A failure of some calls.

    Attributes:
        status: Status to respond with instead of forwarding the call; None forwards it.
        headers: Headers of that response.
        delay_s: Delay of the response after the call was carried out, in seconds.
        cut: Truncation of the response after the call was carried out: the connection closes after its head or half of
            its body, or half of the body is sent as a complete one.
        of: Calls that fail.
        times: Maximum number of failures; None for no limit.
    """

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    cut: Literal["head", "half", "half as whole"] | None = None
    of: Literal["all", "writes"] = "all"
    times: int | None = None


class CutResponse(Response):
    """A response that closes the connection before its body is complete."""

    def __init__(self, whole: bytes, *, sent: int) -> None:
        super().__init__(whole, media_type="application/json")
        self._sent = sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if self._sent:
            await send({"type": "http.response.body", "body": self.body[: self._sent], "more_body": True})


@dataclass(slots=True)
class Proxy(Plantable):
    """A proxy with recorded calls and planted faults.

    Attributes:
        calls: (method, path) in order.
        times: Arrival times in monotonic seconds.
        swallowed_methods: Methods that get 200 without being forwarded.
        is_down: True to respond 503 to every call.
        fault: Failure of the next calls; None for none.
        version: Version to report; None for the server's own.
        on_alias_change: Called before the response to a change of aliases.
        stolen_by: Collection to which another client moves each alias right after a change; empty for none.
    """

    PLANTABLE = ("fault", "swallowed_methods", "is_down", "version", "stolen_by")

    target: str
    url: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    swallowed_methods: frozenset[str] = frozenset()
    is_down: bool = False
    fault: Fault | None = None
    version: str | None = None
    stolen_by: str = ""
    on_alias_change: Callable[[], object] = lambda: None
    _faulty: int = 0

    def mutations(self) -> list[tuple[str, str]]:
        """Return the calls that may have changed something."""
        return [(method, path) for method, path in self.calls if is_write(method, path)]

    def fail_with(self, fault: Fault) -> None:
        """Set the fault, and clear the recorded calls."""
        self.fault, self._faulty = fault, 0
        self.forget()

    def forget(self) -> None:
        """Clear the recorded calls."""
        self.calls.clear()
        self.times.clear()

    async def handle(self, request: Request) -> Response:
        self.calls.append((request.method, request.url.path))
        self.times.append(time.monotonic())
        if self.is_down:
            record_effect(self, "is_down")
            return JSONResponse({"status": {"error": "away"}}, status_code=503)
        if self.version and request.url.path == "/":
            record_effect(self, "version")
            return JSONResponse({"title": "qdrant - vector search engine", "version": self.version})
        if request.method in self.swallowed_methods:
            record_effect(self, "swallowed_methods")
            return JSONResponse({"result": True, "status": "ok", "time": 0.0})
        fault = self._fault_of(request)
        if fault is not None and fault.status is not None:
            error = {"status": {"error": "as the test asks"}}
            return JSONResponse(error, status_code=fault.status, headers=fault.headers)
        answer = await self._pass_on(request)
        if request.url.path == ALIASES:
            await asyncio.to_thread(self.on_alias_change)
            await self._steal(await request.json())
        return answer if fault is None else await _spoil(answer, fault)

    def _fault_of(self, request: Request) -> Fault | None:
        """Return the fault of this call, or None."""
        fault = self.fault
        if fault is None or (fault.of == "writes" and not is_write(request.method, request.url.path)):
            return None
        self._faulty += 1
        record_effect(self, "fault")
        return fault if fault.times is None or self._faulty <= fault.times else None

    async def _steal(self, body: Any) -> None:
        if not self.stolen_by:
            return
        record_effect(self, "stolen_by")
        for action in body["actions"]:
            action["create_alias"]["collection_name"] = self.stolen_by
        async with httpx.AsyncClient(base_url=self.target, verify=False) as client:
            (await client.post(ALIASES, json=body)).raise_for_status()

    async def _pass_on(self, request: Request) -> Response:
        # Without TLS verification, because loading the system's certificates takes longer than the call.
        async with httpx.AsyncClient(base_url=self.target, timeout=30, verify=False) as client:
            answer = await client.request(
                request.method,
                request.url.path,
                params=dict(request.query_params),
                content=await request.body(),
                headers={"content-type": request.headers.get("content-type", "application/json")},
            )
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))


async def _spoil(answer: Response, fault: Fault) -> Response:
    """Delay or truncate the response to a call that was carried out."""
    await asyncio.sleep(fault.delay_s)
    body = bytes(answer.body)
    match fault.cut:
        case "head":
            return CutResponse(body, sent=0)
        case "half":
            return CutResponse(body, sent=len(body) // 2)
        case "half as whole":
            return Response(body[: len(body) // 2], media_type="application/json")
        case None:
            return answer


def is_write(method: str, path: str) -> bool:
    """Return whether a call may change something."""
    return method != "GET" and not (method == "POST" and path.endswith(READ_ONLY_POSTS))


@contextmanager
def serve_proxy(target: str, *, tls: ServerFiles | None = None) -> Iterator[Proxy]:
    """Serve a proxy in front of `target` inside the context; https with `tls`."""
    proxy = Proxy(target)
    app = Starlette(routes=[Route("/{path:path}", proxy.handle, methods=METHODS)])
    with serve(app, tls=tls) as url:
        proxy.url = url
        yield proxy
