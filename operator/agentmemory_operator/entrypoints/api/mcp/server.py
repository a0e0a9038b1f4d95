"""The endpoint `/mcp`, on the official SDK: stateless, so that any replica answers any request.

A call of a tool becomes a request to the application behind `Edge`, by the same caller: identity, rights, bounds and
errors are those of the API. The SDK is imported with the first request.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from pydantic_core import from_json
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from agentmemory_operator import __version__
from agentmemory_operator.agents.authorisation import AgentRights, rights_to
from agentmemory_operator.entrypoints.api.bodies import BODY_MAX_BYTES, check_keys, hold_parts, read_body
from agentmemory_operator.entrypoints.api.identity.rights import caller_of
from agentmemory_operator.entrypoints.api.mcp.addressee import addressee_of, no_agent, no_user
from agentmemory_operator.entrypoints.api.mcp.calls import ApiRequest, answer_of, refusal_of, request_of, tools_of
from agentmemory_operator.entrypoints.api.use_cases import services_of
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories.rules.tools import Tool, in_mcp_form

# What an inner request has of its own; the rest, the caller and the hold among it, is the outer one's.
_OWN = ("body", "parts", "route", "path_params", "endpoint", "rights")


class McpEndpoint:
    """The endpoint as an ASGI application; `close` ends what its first request began."""

    def __init__(self) -> None:
        self._started: asyncio.Future[Any] | None = None
        self._running: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; the body is read, and held to the limits of JSON, before the SDK sees it."""
        request = Request(scope, receive)
        body = await read_body(request, max_bytes=BODY_MAX_BYTES)
        await hold_parts(request, body)
        # What is no JSON the SDK answers.
        with contextlib.suppress(ValueError):
            check_keys(body, from_json(body))
        if self._started is None:
            self._started = asyncio.get_running_loop().create_future()
            self._running = asyncio.create_task(self._run(self._started))
        manager = await asyncio.shield(self._started)
        await manager.handle_request(scope, _replaying(body, receive), send)

    async def close(self) -> None:
        """End."""
        self._ending.set()
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self, ready: "asyncio.Future[Any]") -> None:
        """Hold the SDK's tasks, which end in the task that began them."""
        try:
            sdk = import_module("mcp.server.streamable_http_manager")
            manager = sdk.StreamableHTTPSessionManager(_server(), json_response=True, stateless=True)
        except Exception as error:  # noqa: BLE001  # each request is answered with it
            ready.set_exception(error)
            return
        async with manager.run():
            ready.set_result(manager)
            await self._ending.wait()


def _server() -> Any:
    server = import_module("mcp.server.lowlevel").Server
    return server(
        "agentmemory",
        version=__version__,
        instructions="Long-term memory of one user. Search before you answer what may depend on earlier conversations.",
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
    )


async def _list_tools(context: Any, _: Any) -> Any:
    types = import_module("mcp_types")
    request = context.request
    try:
        addressee = addressee_of(request)
        rights = None if addressee.agent is None else _rights(request, addressee.agent)
    except AgentMemoryError as error:
        raise import_module("mcp.shared.exceptions").MCPError(types.INVALID_PARAMS, str(error)) from error
    tools = [types.Tool.model_validate(tool) for tool in in_mcp_form(tools_of(rights, addressee))]
    return types.ListToolsResult(tools=tools)


async def _call_tool(context: Any, sent: Any) -> Any:
    types = import_module("mcp_types")
    try:
        answer = await _called(context.request, sent.name, sent.arguments or {})
    except AgentMemoryError as error:
        return types.CallToolResult(content=[types.TextContent(type="text", text=str(error))], is_error=True)
    text = json.dumps(answer, ensure_ascii=False)
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=answer)


class ToolRefused(AgentMemoryError):
    """A call that cannot be made, for the model to read."""


async def _called(request: Request, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    addressee = addressee_of(request)
    if addressee.agent is None:
        raise no_agent()
    rights = _rights(request, addressee.agent)
    tool = _tool(name, tools_of(rights, addressee))
    if addressee.user_id is None and not addressee.lets_model_name_user(rights):
        raise no_user()
    _check_arguments(tool, arguments)
    status, document = await _ask(request, request_of(tool, arguments, addressee, addressee.agent))
    if status >= 400:
        raise ToolRefused(refusal_of(document))
    return answer_of(tool, document)


def _rights(request: Request, slug: str) -> AgentRights:
    return rights_to(services_of(request).directory, slug, caller=caller_of(request), verb=None)


def _tool(name: str, tools: list[Tool]) -> Tool:
    for tool in tools:
        if tool.name == name:
            return tool
    names = ", ".join(tool.name for tool in tools) or "none"
    raise ToolRefused(f"this caller has no tool {name[:64]!r}: use one of {names}")


def _check_arguments(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Pass where the arguments are as the schema says; the API takes more than a model may say."""
    validator = import_module("jsonschema").Draft202012Validator(tool.parameters)
    for error in validator.iter_errors(arguments):
        where = f"{error.json_path.removeprefix('$.')}: " if error.json_path != "$" else ""
        raise ToolRefused(f"{tool.name}: {where}{_message_of(error)}")


def _message_of(error: Any) -> str:
    if error.validator != "pattern":
        return str(error.message)[:200]
    if error.schema.get("format") == "date-time":
        return "must be a time with offset, for example 2026-11-21T08:00:00Z"
    return "must not be blank, and must have no control characters in a name"


async def _ask(request: Request, asked: ApiRequest) -> tuple[int, dict[str, Any]]:
    """Put a request to the application behind `Edge`, as the caller of this one."""
    body = json.dumps(asked.body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {name: value for name, value in request.scope.items() if name not in _OWN}
    scope |= {"method": asked.method, "path": asked.path, "raw_path": asked.path.encode(), "headers": headers}
    answer = _Answer()
    await ExceptionMiddleware(AsyncExitStackMiddleware(request.app.router), handlers=request.app.exception_handlers)(
        scope | {"query_string": asked.query.encode()}, _replaying(body), answer
    )
    return answer.status, json.loads(answer.body)


class _Answer:
    """Takes what is sent."""

    def __init__(self) -> None:
        self.status, self.body = 0, b""

    async def __call__(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


def _replaying(body: bytes, receive: Receive | None = None) -> Receive:
    """What gives a body that came already, and then what comes, or the end of the connection."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        if messages:
            return messages.pop()
        return {"type": "http.disconnect"} if receive is None else await receive()

    return replay
