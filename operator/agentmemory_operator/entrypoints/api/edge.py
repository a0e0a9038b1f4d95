"""Outermost ASGI layer of the API: request id, authentication, limits, error responses and access log.

For each request it does the following:
1. Assign a request id; open the metrics and the trace of the request.
2. Reject malformed text, and cross-origin requests to `/mcp` or to an API without authentication.
3. Under `/v1/`, `/mcp`, `/mem0/` and `/ui`, respond with 503 until the agents are loaded. Then authenticate the
   caller, and admit the request within the caller's limits. The route of a hook authenticates by the signature
   instead. On other paths, only limit the number of concurrent requests; probes are exempt.
4. Run the application and convert every error to a problem response.
5. Write the access log.

It is plain ASGI, because Starlette's `BaseHTTPMiddleware` would cost a task and a queue per request.
"""

import logging
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentmemory_operator import __version__
from agentmemory_operator.entrypoints.api.identity.auth import Address, Guard
from agentmemory_operator.entrypoints.api.identity.rights import CALLER
from agentmemory_operator.entrypoints.api.load.body_receiver import BodyReceiver, has_body, run_timed
from agentmemory_operator.entrypoints.api.load.overload import AdmissionControl, caller_key
from agentmemory_operator.entrypoints.api.load.request_slots import REQUEST_SLOT, RequestSlot
from agentmemory_operator.entrypoints.api.mem0.dialect import (
    MEM0_PREFIX,
    is_batch_deletion,
    problem_response,
    read_authorization,
)
from agentmemory_operator.entrypoints.api.problems import (
    BAD_REQUEST,
    CROSS_ORIGIN,
    INTERNAL_ERROR,
    Problem,
    ProblemRaised,
    not_ready_problem,
    problem_of,
)
from agentmemory_operator.errors import AgentMemoryError, FieldError
from agentmemory_operator.runtime.metrics_api import ApiMeter, ServedRequest
from agentmemory_operator.runtime.rules.web_origin import foreign_reason
from agentmemory_operator.spec.caller_rights import UNBOUNDED_CALLER, UNKNOWN_CALLER, Caller

log = logging.getLogger(__name__)

MCP_PATH = "/mcp"
GUARDED_PREFIXES = ("/v1/", MCP_PATH, MEM0_PREFIX)
# Paths without authentication, which are exempt from the limits because their responses are small.
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
# Methods whose bodies are read.
WITH_BODY = frozenset({"PATCH", "POST", "PUT"})
# Size of the server's write buffer for a connection. A larger response waits until the client has read a part.
LARGE_BYTES = 1 << 16
REQUEST_ID = "request_id"
STALE_HEADER = "X-AgentMemory-Stale"
# Seconds without contact to the source of objects after which responses get the header `STALE_HEADER`. A healthy watch
# has contact at least every 50 s.
STALE_S = 60.0
# Accepted request ids: short visible ASCII, because ids are echoed into headers and logs.
_GOOD_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_TRACE_HEADERS = (b"traceparent", b"tracestate")
_HOOK = re.compile(r"/v1/agents/[^/]+/hooks/[^/]+")
MAX_LOGGED_PATH_CHARS = 256


class SourceState(Protocol):
    """State of the source of objects, for the readiness probe, early requests and the staleness header."""

    def find_obstacle(self) -> str | None:
        """Return the reason why no agent can be served, or None."""
        ...

    def find_unread(self) -> str | None:
        """Return a message until every object was read once, then None. Called for each request."""
        ...

    def age_s(self) -> float:
        """Return the seconds since the last contact with the source; 0 if there was none, as with a folder."""
        ...


class PageSite(Protocol):
    """Pages for browsers: they send a cookie instead of a token, and show errors as HTML."""

    def has_page(self, path: str) -> bool:
        """Return whether a path is one of the site's, with or without authentication."""
        ...

    def needs_caller(self, path: str) -> bool:
        """Return whether a path of the site needs an authenticated caller."""
        ...

    async def open_session(self, scope: Scope) -> bytes:
        """Read the cookie of a request; return the value for the header `Authorization`, empty if there is none.

        Raises:
            TransientError: If the key of the cookies cannot be read now.
        """
        ...

    def render_problem(self, problem: Problem, scope: Scope) -> Response:
        """Render an error as a page."""
        ...


class Edge:
    """The outermost ASGI application.

    Args:
        site: Pages of the explorer; None if they are not served.
        sources: State of the source of objects.
    """

    def __init__(
        self,
        app: ASGIApp,
        guard: Guard,
        meter: ApiMeter,
        pressure: AdmissionControl,
        sources: SourceState,
        *,
        site: PageSite | None = None,
    ) -> None:
        self._app = app
        self._site = site
        self._guard = guard
        self._meter = meter
        self._pressure = pressure
        self._sources = sources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection. Scopes other than HTTP pass through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, is_head = scope["method"], scope["method"] == "HEAD"
        # Change a copy, because the server uses the original method to omit the body of a response to HEAD.
        # Whitespace around header values is not part of them (RFC 9110, 5.5).
        header_pairs = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        scope = {**scope, "headers": header_pairs, "method": "GET" if is_head else method}
        headers = dict(header_pairs)
        raw_id = headers.get(b"x-request-id", b"")
        scope[REQUEST_ID] = request_id = raw_id.decode() if _GOOD_ID.fullmatch(raw_id) else secrets.token_hex(16)
        added = [(b"x-request-id", request_id.encode()), (b"x-agentmemory-version", __version__.encode())]
        if scope["path"].startswith(GUARDED_PREFIXES) and (age_s := self._sources.age_s()) > STALE_S:
            added.append((STALE_HEADER.lower().encode(), str(int(age_s)).encode()))
        exchange = _Exchange(send, added, is_head=is_head)
        started = time.perf_counter()
        trace_headers = {name.decode(): headers[name].decode("latin-1") for name in _TRACE_HEADERS if name in headers}
        with self._meter.measure_request(method, trace_headers) as served:
            await self._respond(scope, receive, exchange, headers)
            served.status, served.route = exchange.status, getattr(scope.get("route"), "path_format", "")
            served.agent = (
                str(scope.get("path_params", {}).get("agent", ""))[:MAX_LOGGED_PATH_CHARS] if served.route else ""
            )
        is_page = self._site is not None and self._site.has_page(scope["path"])
        is_public = not (is_page or scope["path"].startswith(GUARDED_PREFIXES))
        took_ms = (time.perf_counter() - started) * 1000
        _log(scope, served, method=method, took_ms=took_ms, is_public=is_public)

    async def _respond(
        self, scope: Scope, receive: Receive, exchange: "_Exchange", headers: Mapping[bytes, bytes]
    ) -> None:
        try:
            check_text(scope)
            site = self._site if self._site and self._site.has_page(scope["path"]) else None
            is_api = scope["path"].startswith(GUARDED_PREFIXES)
            is_guarded = is_api or (site is not None and site.needs_caller(scope["path"]))
            is_page = not is_api and scope["method"] == "GET"
            # Check every client of MCP, as its specification requires, and of pages, which use cookies.
            required: Address | None = "network" if site or scope["path"] == MCP_PATH else None
            if address := self._guard.open_address or required:
                is_local = address == "loopback"
                if reason := foreign_reason(headers, scheme=scope["scheme"], is_local=is_local, is_page=is_page):
                    raise ProblemRaised(Problem(type=CROSS_ORIGIN, detail=reason))
            serve = self._respond_authenticated if is_guarded else self._respond_public
            await serve(scope, receive, exchange, headers)
        except ProblemRaised as refusal:
            await self._response_of(refusal.problem, scope)(scope, receive, exchange)
        except AgentMemoryError as refusal:
            # Respond to refusals here. Errors of the application itself are handled inside it.
            await self._response_of(problem_of(refusal), scope)(scope, receive, exchange)
        except ClientDisconnect:
            return
        except Exception:  # the outermost handler: the caller gets a response, the log gets the traceback
            log.exception("unexpected error in %s %s, request %s", scope["method"], scope["path"], scope[REQUEST_ID])
            if exchange.status == 0:
                problem = Problem(type=INTERNAL_ERROR, detail="unexpected error: see the log for this request_id")
                await self._response_of(problem, scope)(scope, receive, exchange)

    async def _respond_public(
        self, scope: Scope, receive: Receive, exchange: "_Exchange", headers: Mapping[bytes, bytes]
    ) -> None:
        """Serve a path without authentication. Probes are exempt from the limit of such requests.

        The form of a sign-in uses the share of the client's address, because its body may arrive slowly.
        """
        if scope["method"] in WITH_BODY and has_body(headers):
            await self._respond_admitted(scope, receive, exchange, headers, UNBOUNDED_CALLER)
            return
        with nullcontext() if scope["path"] in PROBES else self._pressure.admit_unauthenticated():
            await self._app(scope, receive, exchange)

    async def _respond_authenticated(
        self, scope: Scope, receive: Receive, exchange: "_Exchange", headers: Mapping[bytes, bytes]
    ) -> None:
        """Authenticate before the body is read, then serve the request within the caller's share of the capacity.

        A request to a hook is authenticated by its route instead.
        """
        # Check this first: until the objects are loaded, the rights of a valid caller are not known.
        if unread := self._sources.find_unread():
            raise ProblemRaised(not_ready_problem(unread))
        # A hook's signature can only be checked with the body, so the request uses the share of the client's address.
        is_signed = scope["method"] == "POST" and _HOOK.fullmatch(scope["path"])
        is_mem0 = scope["path"].startswith(MEM0_PREFIX)
        authorization = read_authorization(headers) if is_mem0 else headers.get(b"authorization", b"")
        if self._site and self._site.has_page(scope["path"]):
            authorization = await self._site.open_session(scope)
        caller = UNBOUNDED_CALLER if is_signed else self._guard.authenticate_cached(authorization)
        if caller is None:
            with self._pressure.admit_unauthenticated():
                caller = await self._guard.authenticate(authorization)
        scope[CALLER] = UNKNOWN_CALLER if is_signed else caller
        await self._respond_admitted(scope, receive, exchange, headers, caller)

    async def _respond_admitted(
        self,
        scope: Scope,
        receive: Receive,
        exchange: "_Exchange",
        headers: Mapping[bytes, bytes],
        caller: Caller,
    ) -> None:
        """Serve a request within a caller's share of the capacity."""
        client = scope.get("client")
        key = caller_key(caller, client[0] if client else None)
        with self._pressure.admit(key) as scope[REQUEST_SLOT]:
            slot: RequestSlot = scope[REQUEST_SLOT]
            reads_body = scope["method"] in WITH_BODY or (
                scope["path"].startswith(MEM0_PREFIX) and is_batch_deletion(scope["method"], scope["path"])
            )
            if reads_body and has_body(headers):
                slot.start_receiving()
                receive = BodyReceiver(receive, slot, self._pressure.limits.min_rate)
            else:
                await slot.start()
            await run_timed(self._app(scope, receive, exchange), self._pressure.times, key)

    def _response_of(self, problem: Problem, scope: Scope) -> Response:
        if scope["path"].startswith(MEM0_PREFIX):
            return problem_response(problem, scope[REQUEST_ID])
        if self._site and self._site.has_page(scope["path"]):
            return self._site.render_problem(problem, scope)
        return problem.response(scope[REQUEST_ID])


@dataclass(slots=True)
class _Exchange:
    """Sending side of one request: adds headers and records the status.

    A large response gets an empty last message, so the request ends only after the client has received most of the
    response.

    Attributes:
        is_head: True if no body is sent. A streamed response then ends after its headers.
        status: Status code of the response; 0 until its headers are sent.
    """

    _send: Send
    _headers: list[tuple[bytes, bytes]]
    is_head: bool
    status: int = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], *self._headers]
        elif self.is_head and message["type"] == "http.response.body":
            await self._send({"type": message["type"], "body": b"", "more_body": False})
            if message.get("more_body", False):
                raise ClientDisconnect
            return
        elif len(message.get("body", b"")) > LARGE_BYTES and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            message = {"type": message["type"], "body": b"", "more_body": False}
        await self._send(message)


def _log(scope: Scope, served: ServedRequest, *, method: str, took_ms: float, is_public: bool) -> None:
    """Log a request without its query string, which may contain user ids.

    The level is warning for statuses from 500. It is debug for other statuses of public paths, else info.
    """
    level = logging.WARNING if served.status >= 500 else logging.DEBUG if is_public else logging.INFO
    if not log.isEnabledFor(level):
        return
    request = {
        "method": method,
        "path": scope["path"][:MAX_LOGGED_PATH_CHARS],
        "status": served.status,
        "took_ms": round(took_ms, 1),
        "request_id": scope[REQUEST_ID],
    }
    message = "%(method)s %(path)s %(status)d %(took_ms).1f ms, request %(request_id)s"
    log.log(level, message, request, extra={"request": request})


NAME_HEADERS = {
    name.lower().encode(): name
    for name in ("X-AgentMemory-User", "X-AgentMemory-Agent", "Idempotency-Key", "Last-Event-ID")
}
"""Usual spelling of each header whose value callers choose freely, by its lower-case name."""

MAX_QUOTED_CHARS = 64


def check_text(scope: Scope) -> None:
    """Raise unless path, query and the headers of `NAME_HEADERS` are UTF-8. Runs before any of them is compared.

    Servers pass headers and queries as bytes. The framework decodes headers as Latin-1, and replaces invalid UTF-8 in a
    path or query by U+FFFD. Without the check, the names of different users could become equal.

    Raises:
        ProblemRaised: If one of them is not UTF-8.
    """
    for name, value in scope["headers"]:
        if name in NAME_HEADERS and not _is_utf8(value):
            raise _not_utf8(NAME_HEADERS[name], f"the header {NAME_HEADERS[name]}")
    if b"%" in (path := scope.get("raw_path") or b"") and not _is_utf8(unquote_to_bytes(path)):
        raise _not_utf8("path", "the path")
    # Check only escaped characters, because the server rejects raw non-ASCII bytes in a URL.
    if b"%" in scope["query_string"]:
        _check_query(scope["query_string"])


def _check_query(query: bytes) -> None:
    for pair in query.split(b"&"):
        if not _is_utf8(unquote_to_bytes(pair)):
            name = unquote_to_bytes(pair.partition(b"=")[0]).decode(errors="backslashreplace")[:MAX_QUOTED_CHARS]
            raise _not_utf8(name, f"the query parameter {name}")


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _not_utf8(field: str, source: str) -> ProblemRaised:
    error = FieldError(field, "must be valid UTF-8")
    return ProblemRaised(Problem(type=BAD_REQUEST, detail=f"{source} is not valid UTF-8: encode it", errors=(error,)))
