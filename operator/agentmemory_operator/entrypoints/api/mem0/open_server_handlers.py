"""Handlers of the dialect of mem0's open server. Each takes the agent's name and the request."""

from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.identity.rights import rights_of
from agentmemory_operator.entrypoints.api.mem0 import erasing, platform_handlers
from agentmemory_operator.entrypoints.api.mem0.filter_reader import ANY_VALUE, read_filter
from agentmemory_operator.entrypoints.api.mem0.listing import list_memories
from agentmemory_operator.entrypoints.api.mem0.mem0_requests import DEFAULT_PAGE_SIZE, Mem0QueryParameters
from agentmemory_operator.entrypoints.api.mem0.memory_views import render_memory
from agentmemory_operator.entrypoints.api.memory_spans import record_result
from agentmemory_operator.entrypoints.api.response_views import json_response
from agentmemory_operator.entrypoints.api.use_cases import open_agent, services_of


async def add(agent: str, request: Request) -> Response:
    """Store messages; return the stored memories."""
    _, added, headers = await platform_handlers.store_messages(agent, request)
    return json_response({"results": added.results}, headers=headers)


async def search(agent: str, request: Request) -> Response:
    """Search memories. Unknown keys of filters are keys of the metadata."""
    body, results = await platform_handlers.search_results(agent, request, takes_any_key=True)
    return json_response({"results": results}, headers=platform_handlers.without_effect(body))


async def list_all(agent: str, request: Request) -> Response:
    """List memories, newest first."""
    parameters = platform_handlers.read_query(request, Mem0QueryParameters)
    size = parameters.top_k or parameters.limit or DEFAULT_PAGE_SIZE
    part = read_filter([parameters.entities])
    opened = await open_agent(request, agent)
    page = await list_memories(opened, rights_of(request), part, number=1, size=size)
    record_result(request, len(page.records))
    return json_response({"results": [render_memory(record, opened) for record in page.records]})


async def update(agent: str, request: Request) -> Response:
    """Change a memory."""
    await platform_handlers.change_memory(agent, request)
    return json_response({"message": "Memory updated successfully!"})


async def delete_all(agent: str, request: Request) -> Response:
    """Delete the memories of a user."""
    deleted = await platform_handlers.delete_selected(agent, request)
    return json_response({"message": deleted.describe("All relevant memories deleted")})


async def reset(agent: str, request: Request) -> Response:
    """Delete the memories of all users."""
    opened = await open_agent(request, agent)
    deleted = await erasing.delete_all(services_of(request), opened, rights_of(request), {"user_id": ANY_VALUE})
    record_result(request, deleted.memories)
    return json_response({"message": deleted.describe("All memories reset")})
