"""The outermost layer of every request: its id, who may pass, the log line, and the answer when all else failed.

Plain ASGI: a `BaseHTTPMiddleware` would cost a task and a queue a request.
"""

import logging
import re
import time
from uuid import uuid4

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentmemory_operator.entrypoints.api.auth import Guard
from agentmemory_operator.entrypoints.api.problems import INTERNAL_ERROR, Problem, problem_of
from agentmemory_operator.entrypoints.api.rights import CALLER
from agentmemory_operator.errors import AgentMemoryError

logger = logging.getLogger(__name__)

GUARDED_PREFIX = "/v1/"
REQUEST_ID = "request_id"
# What is echoed into headers and logs: visible, short.
_GOOD_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


class Edge:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of the server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        scope[REQUEST_ID] = request_id = _request_id(headers.get(b"x-request-id", b""))
        exchange = _Exchange(send, request_id.encode())
        started = time.perf_counter()
        await self._answer(scope, receive, exchange, headers.get(b"authorization", b""))
        _log(scope, status=exchange.status, took_ms=(time.perf_counter() - started) * 1000)

    async def _answer(self, scope: Scope, receive: Receive, exchange: "_Exchange", authorization: bytes) -> None:
        try:
            if scope["path"].startswith(GUARDED_PREFIX):
                scope[CALLER] = await self._guard.admit(authorization)
            await self._app(scope, receive, exchange)
        except AgentMemoryError as refusal:
            # Those of the application itself are answered inside.
            await problem_of(refusal).response(scope[REQUEST_ID])(scope, receive, exchange)
        except ClientDisconnect:
            return
        except Exception:  # the last edge: whatever it is, the caller gets an answer and the log the trace
            logger.exception("unexpected error in %s %s, request %s", scope["method"], scope["path"], scope[REQUEST_ID])
            if exchange.status == 0:
                problem = Problem(
                    type=INTERNAL_ERROR, detail="unexpected error: the log has more under this request_id"
                )
                await problem.response(scope[REQUEST_ID])(scope, receive, exchange)


class _Exchange:
    """The sending side of one request: adds the id, remembers the status."""

    __slots__ = ("_request_id", "_send", "status")

    def __init__(self, send: Send, request_id: bytes) -> None:
        self._send = send
        self._request_id = request_id
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self._request_id)]
        await self._send(message)


def _request_id(sent: bytes) -> str:
    return sent.decode() if _GOOD_ID.fullmatch(sent) else uuid4().hex


def _log(scope: Scope, *, status: int, took_ms: float) -> None:
    """Log without the query string, which names users."""
    level = logging.DEBUG if status < 400 else logging.INFO if status < 500 else logging.WARNING
    if logger.isEnabledFor(level):
        logger.log(
            level, "%s %s %d %.1f ms, request %s", scope["method"], scope["path"], status, took_ms, scope[REQUEST_ID]
        )
