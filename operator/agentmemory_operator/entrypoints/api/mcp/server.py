"""The endpoint `/mcp`, implemented with the official SDK.

It is stateless, so any replica can serve any request. A tool call becomes a request to the application inside `Edge`,
with the same caller: authentication, rights, limits and errors are those of the API. The SDK is imported at the first
request.
"""

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from pydantic_core import from_json
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from agentmemory_operator import __version__
from agentmemory_operator.agents.authorisation import AgentRights, check_rights
from agentmemory_operator.entrypoints.api.bodies import MAX_BODY_BYTES, check_keys, read_body, reserve_parsed_body
from agentmemory_operator.entrypoints.api.fields import TIME_ZONE_HEADER
from agentmemory_operator.entrypoints.api.identity.rights import caller_of
from agentmemory_operator.entrypoints.api.inner_requests import ApiRequest, replay_body, send_inner_request
from agentmemory_operator.entrypoints.api.mcp.context_prompt import CONTEXT_TOOL, PROMPT, prompt_arguments
from agentmemory_operator.entrypoints.api.mcp.request_target import (
    RequestTarget,
    agent_missing,
    read_target,
    user_missing,
)
from agentmemory_operator.entrypoints.api.mcp.resources import (
    build_read,
    list_resources,
    list_templates,
    parse_uri,
    render_resource,
)
from agentmemory_operator.entrypoints.api.mcp.tool_calls import (
    MCP_NAMES,
    build_request,
    list_tools,
    render_problem,
    render_result,
)
from agentmemory_operator.entrypoints.api.use_cases import services_of
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories.rules.model_tools import Tool, render_mcp_tools
from agentmemory_operator.spec.caller_rights import Verb


class McpEndpoint:
    """The endpoint as an ASGI application. `close` stops the SDK, which the first request starts."""

    def __init__(self) -> None:
        self._started: asyncio.Future[Any] | None = None
        self._running: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body and enforce the JSON limits, then let the SDK handle the request.

        Raises:
            ProblemRaised, RequestInvalid: Errors of `read_body`, `reserve_parsed_body` and `check_keys`.
            ClientDisconnect: If the client disconnects before the body is complete.
            Exception: If the SDK could not be started. Every later request raises the same error.
        """
        request = Request(scope, receive)
        body = await read_body(request, max_bytes=MAX_BODY_BYTES)
        await reserve_parsed_body(request, body)
        # Ignore invalid JSON here: the SDK responds to it.
        with contextlib.suppress(ValueError):
            check_keys(body, from_json(body))
        if self._started is None:
            self._started = asyncio.get_running_loop().create_future()
            self._running = asyncio.create_task(self._run(self._started))
        manager = await asyncio.shield(self._started)
        await manager.handle_request(scope, replay_body(body, receive), send)

    async def close(self) -> None:
        """Stop the SDK if it was started, and wait until it has ended."""
        self._ending.set()
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self, ready: "asyncio.Future[Any]") -> None:
        """Run the SDK's session manager. Its task group must be opened and closed by the same task."""
        try:
            sdk = import_module("mcp.server.streamable_http_manager")
            manager = sdk.StreamableHTTPSessionManager(_server(), json_response=True, stateless=True)
        except Exception as error:  # noqa: BLE001  # every request raises it
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
        on_list_resources=_list_resources,
        on_list_resource_templates=_list_resource_templates,
        on_read_resource=_read_resource,
        on_list_prompts=_list_prompts,
        on_get_prompt=_get_prompt,
    )


async def _list_tools(context: Any, _: Any) -> Any:
    types = import_module("mcp_types")
    tools = [replace(tool, name=MCP_NAMES.get(tool.name, tool.name)) for tool in list_tools(*_offer(context.request))]
    return types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in render_mcp_tools(tools)])


async def _list_resources(context: Any, _: Any) -> Any:
    types = import_module("mcp_types")
    resources = [types.Resource.model_validate(resource) for resource in list_resources(*_offer(context.request))]
    return types.ListResourcesResult(resources=resources)


async def _list_resource_templates(context: Any, _: Any) -> Any:
    types = import_module("mcp_types")
    templates = [
        types.ResourceTemplate.model_validate(template) for template in list_templates(*_offer(context.request))
    ]
    return types.ListResourceTemplatesResult(resource_templates=templates)


async def _read_resource(context: Any, read: Any) -> Any:
    types = import_module("mcp_types")
    with _as_protocol_error({"uri": read.uri}):
        address = parse_uri(str(read.uri))
        rights, target = _named_target(context.request)
        status, document = await _send_request(context.request, build_read(address, rights, target))
        if status >= 400:
            raise McpRequestRejected(render_problem(document))
    mime_type, text = render_resource(address, document)
    content = types.TextResourceContents(uri=read.uri, mime_type=mime_type, text=text)
    return types.ReadResourceResult(contents=[content])


async def _list_prompts(context: Any, _: Any) -> Any:
    types = import_module("mcp_types")
    rights, target = _offer(context.request)
    can_read = rights is None or (rights.has_verb(Verb.READ) and target.user_id is not None)
    return types.ListPromptsResult(prompts=[types.Prompt.model_validate(PROMPT)] if can_read else [])


async def _get_prompt(context: Any, prompt: Any) -> Any:
    types = import_module("mcp_types")
    with _as_protocol_error():
        _, target = _named_target(context.request)
        if target.user_id is None:
            raise user_missing()
        arguments = prompt_arguments(prompt.name, prompt.arguments or {})
        result = await _run_tool(context.request, CONTEXT_TOOL, arguments)
    content = types.TextContent(type="text", text=result["text"])
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])


@contextlib.contextmanager
def _as_protocol_error(data: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Convert AgentMemoryError to an error of the protocol, for methods other than `tools/call`."""
    try:
        yield
    except AgentMemoryError as error:
        invalid_params = import_module("mcp_types").INVALID_PARAMS
        raise import_module("mcp.shared.exceptions").MCPError(invalid_params, str(error), data) from error


def _offer(request: Request) -> tuple[AgentRights | None, RequestTarget]:
    """Return rights (None if no agent is named) and target, which decide what a list contains."""
    with _as_protocol_error():
        target = read_target(request)
        return None if target.agent is None else _rights(request, target.agent), target


def _named_target(request: Request) -> tuple[AgentRights, RequestTarget]:
    """Return the caller's rights, and the target, which names an agent.

    Raises:
        TargetUnresolved: If nothing names the agent, or nothing names the user and the caller may not.
    """
    target = read_target(request)
    if target.agent is None:
        raise agent_missing()
    rights = _rights(request, target.agent)
    if target.user_id is None and not target.can_model_name_user(rights):
        raise user_missing()
    return rights, target


async def _call_tool(context: Any, call: Any) -> Any:
    types = import_module("mcp_types")
    try:
        result = await _run_tool(context.request, call.name, call.arguments or {})
    except AgentMemoryError as error:
        return types.CallToolResult(content=[types.TextContent(type="text", text=str(error))], is_error=True)
    text = json.dumps(result, ensure_ascii=False)
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=result)


class McpRequestRejected(AgentMemoryError):
    """A tool call or read of a resource that is invalid or that the API rejects. The message is for the model."""


async def _run_tool(request: Request, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    rights, target = _named_target(request)
    tool = _tool(name, list_tools(rights, target))
    _check_arguments(tool, arguments)
    status, document = await _send_request(request, build_request(tool, arguments, target, rights.settings.slug))
    if status >= 400:
        raise McpRequestRejected(render_problem(document))
    return render_result(tool, document)


def _rights(request: Request, slug: str) -> AgentRights:
    return check_rights(services_of(request).directory, slug, caller=caller_of(request), verb=None)


def _tool(name: str, tools: list[Tool]) -> Tool:
    for tool in tools:
        if name in (tool.name, MCP_NAMES.get(tool.name)):
            return tool
    names = ", ".join(MCP_NAMES.get(tool.name, tool.name) for tool in tools) or "none"
    raise McpRequestRejected(f"this caller has no tool {name[:64]!r}: use one of {names}")


def _check_arguments(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Raise unless the arguments match the tool's schema, which is stricter than the API."""
    validator = import_module("jsonschema").Draft202012Validator(tool.parameters)
    for error in validator.iter_errors(arguments):
        location = f"{error.json_path.removeprefix('$.')}: " if error.json_path != "$" else ""
        raise McpRequestRejected(f"{MCP_NAMES.get(tool.name, tool.name)}: {location}{_message_of(error)}")


def _message_of(error: Any) -> str:
    if error.validator != "pattern":
        return str(error.message)[:200]
    if error.schema.get("format") == "date-time":
        return "must be a time with offset, for example 2026-11-21T08:00:00Z"
    return "must not be blank, and must have no control characters in a name"


async def _send_request(request: Request, api_request: ApiRequest) -> tuple[int, dict[str, Any]]:
    """Send a request to the API, as the caller of the MCP request and in its time zone; return status and body."""
    zone = request.headers.get(TIME_ZONE_HEADER)
    headers = ((TIME_ZONE_HEADER.lower(), zone),) if zone is not None else ()
    response = await send_inner_request(request, replace(api_request, headers=headers))
    return response.status, json.loads(response.body)
