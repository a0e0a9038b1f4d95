"""A reverse proxy in front of an S3 server that records calls. It can refuse, delay, truncate or alter them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.support.engine.interleaved_store import Moment
from tests.support.fault_injection import Plantable, record_effect
from tests.support.web.http_server import serve
from tests.support.web.s3_server import S3Server

METHODS = ["GET", "PUT", "POST", "DELETE", "HEAD"]

Step = Literal["begin", "part", "complete", "abort", "put", "get", "head", "delete", "list", "uploads"]


def step_of(method: str, query: str, *, is_bucket: bool) -> Step:
    """Return the kind of a call."""
    if is_bucket:
        return "uploads" if "uploads" in query else "list"
    if "uploadId=" in query:
        return {"PUT": "part", "POST": "complete", "DELETE": "abort"}[method]  # type: ignore[return-value]
    return "begin" if method == "POST" else method.lower()  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFault:
    """A failure of some calls.

    Attributes:
        of: Kind of call that fails.
        status, code: Response instead of forwarding the call; status 0 forwards it.
        loses_answer: True to carry out the call and then close the connection.
        half: True to close the connection after half of the response's body.
        flips: True to flip a bit of the response's body.
        delay_s: Delay before each chunk of the response, in seconds.
        times: Maximum number of failures; None for no limit.
    """

    of: Step
    status: int = 0
    code: str = ""
    loses_answer: bool = False
    half: bool = False
    flips: bool = False
    delay_s: float = 0.0
    times: int | None = None


@dataclass(slots=True)
class StorageProxy(Plantable):
    """A proxy with recorded calls and planted faults.

    Attributes:
        steps: Kinds of the calls, in order.
        headers: Headers of the calls, in order.
        at: Called with the number of each call (from 0), before and after it is carried out; the response follows
            later. A call before which it raises is not carried out.
    """

    PLANTABLE = ("fault",)

    target: str
    url: str = ""
    fault: StorageFault | None = None
    steps: list[Step] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    at: Callable[[int, Moment], None] = lambda number, moment: None
    _faulty: int = 0

    def fail_with(self, fault: StorageFault | None) -> None:
        """Set the fault, and clear the recorded calls."""
        self.fault, self._faulty = fault, 0
        self.steps.clear()
        self.headers.clear()

    async def handle(self, request: Request) -> Response:
        path = request.scope["raw_path"].decode().partition("?")[0]
        step = step_of(request.method, request.url.query, is_bucket=path.count("/") < 3 and path.endswith("/"))
        self.steps.append(step)
        self.headers.append(dict(request.headers))
        fault = self._fault_of(step)
        if fault is not None and fault.status:
            await request.body()
            text = f"<Error><Code>{fault.code}</Code><Message>as the test asks</Message></Error>" if fault.code else ""
            return Response(text, fault.status)
        number, body = len(self.steps) - 1, await request.body()
        self.at(number, "before")
        client = httpx.AsyncClient(timeout=60, trust_env=False)
        call = client.build_request(
            request.method,
            httpx.URL(f"{self.target}{path}?{request.url.query}".rstrip("?")),
            content=body,
            headers=request.headers.raw,
        )
        answer = await client.send(call, stream=True)
        self.at(number, "after")
        headers = {name: value for name, value in answer.headers.items() if name != "transfer-encoding"}
        return StreamingResponse(_spoiled(client, answer, fault), answer.status_code, headers=headers)

    def _fault_of(self, step: Step) -> StorageFault | None:
        fault = self.fault
        if fault is None or fault.of != step:
            return None
        self._faulty += 1
        record_effect(self, "fault")
        return fault if fault.times is None or self._faulty <= fault.times else None


async def _spoiled(
    client: httpx.AsyncClient, answer: httpx.Response, fault: StorageFault | None
) -> AsyncIterator[bytes]:
    """Yield the response's body with the fault applied."""
    fault = fault or StorageFault(of="get")
    left = int(answer.headers.get("content-length", 0)) // 2 if fault.half else None
    try:
        async for chunk in answer.aiter_raw(64 << 10):
            if fault.loses_answer or left == 0:
                raise ConnectionAbortedError("as the test asks")
            await asyncio.sleep(fault.delay_s)
            sent = chunk if left is None else chunk[:left]
            left = None if left is None else left - len(sent)
            yield bytes([sent[0] ^ 1]) + sent[1:] if fault.flips and sent else sent
        if fault.loses_answer:
            raise ConnectionAbortedError("as the test asks")
    finally:
        await answer.aclose()
        await client.aclose()


@contextmanager
def serve_storage_proxy(target: str) -> Iterator[StorageProxy]:
    """Serve a proxy in front of `target` inside the context."""
    proxy = StorageProxy(target)
    app = Starlette(routes=[Route("/{path:path}", proxy.handle, methods=METHODS)])
    with serve(app) as url:
        proxy.url = url
        yield proxy


@pytest.fixture(scope="module")
def shared_storage_proxy(storage: S3Server) -> Iterator[StorageProxy]:
    """A proxy in front of the storage, shared by a module's tests."""
    with serve_storage_proxy(storage.url) as proxy:
        yield proxy


@pytest.fixture
def storage_proxy(shared_storage_proxy: StorageProxy) -> StorageProxy:
    """The shared proxy without the records and faults of the previous test."""
    shared_storage_proxy.fail_with(None)
    return shared_storage_proxy
