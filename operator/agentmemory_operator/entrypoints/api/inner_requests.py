"""Requests that an endpoint sends to the API itself, inside `Edge`: tool calls of `/mcp`, and the pages of `/ui`.

An inner request has the caller and the request slot of the outer one. So rights, limits and errors are those of the
API.
"""

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

Json = dict[str, Any]

# Entries of the ASGI scope that an inner request sets itself. It inherits the rest, such as caller and request slot.
_INNER_SCOPE_KEYS = ("body", "parts", "route", "path_params", "endpoint", "rights")
LOOKS = "looks"
"""Entry of the ASGI scope that is True in requests of people who look at memories. These count no access."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request to the API, with a percent-encoded path and query string. A body of None sends none.

    Attributes:
        headers: Further headers, names in lower case.
    """

    method: str
    path: str
    body: Json | None = None
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()


class ApiResponse:
    """Status, headers and body of a response, as an ASGI `send` collects them."""

    def __init__(self) -> None:
        self.status, self.body = 0, b""
        self.headers: dict[bytes, bytes] = {}

    async def __call__(self, message: Message) -> None:
        """Take one ASGI message."""
        self.status = message.get("status", self.status)
        self.headers |= dict(message.get("headers", ()))
        self.body += message.get("body", b"")


async def send_inner_request(request: Request, api_request: ApiRequest, *, looks: bool = False) -> ApiResponse:
    """Send a request to the application inside `Edge`, as the caller of the outer request; return the response.

    Args:
        looks: True if the request must not count as an access to the memories that it returns.
    """
    response = ApiResponse()
    await pass_inner_request(request, api_request, response, looks=looks)
    return response


async def pass_inner_request(request: Request, api_request: ApiRequest, send: Send, *, looks: bool) -> None:
    """As `send_inner_request`, but pass each message of the response to `send`, for responses without an end."""
    body = b"" if api_request.body is None else json.dumps(api_request.body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode("latin-1", "replace")) for name, value in api_request.headers]
    path = api_request.path
    scope: Scope = {
        **{name: value for name, value in request.scope.items() if name not in _INNER_SCOPE_KEYS},
        "method": api_request.method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": api_request.query.encode(),
        "headers": headers,
        LOOKS: looks,
    }
    inner = AsyncExitStackMiddleware(request.app.router)
    application = ExceptionMiddleware(inner, handlers=request.app.exception_handlers)
    await application(scope, replay_body(body, request.receive if api_request.body is None else None), send)


def replay_body(body: bytes, receive: Receive | None = None) -> Receive:
    """Return an ASGI `receive` that replays a body, then continues with `receive` (None: with a disconnect)."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        if messages:
            return messages.pop()
        return {"type": "http.disconnect"} if receive is None else await receive()

    return replay
