"""The routes to update a memory, and to read its versions and descendants."""

from typing import Annotated, Any

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api import response_views
from agentmemory_operator.entrypoints.api.bodies import read_model
from agentmemory_operator.entrypoints.api.fields import HeaderName
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, rights_of
from agentmemory_operator.entrypoints.api.memory_requests import (
    ChangeIn,
    ChildrenParameters,
    TreeParameters,
    UserParameters,
)
from agentmemory_operator.entrypoints.api.memory_schemas import HistoryOut, MemoryOut, PageOut, TreeOut
from agentmemory_operator.entrypoints.api.memory_spans import record_result
from agentmemory_operator.entrypoints.api.openapi import (
    READ_PROBLEMS,
    WRITE_PROBLEMS,
    build_router,
    describe,
    with_preconditions,
)
from agentmemory_operator.entrypoints.api.preconditions import etag_header, read_precondition
from agentmemory_operator.entrypoints.api.use_cases import open_agent, parse_id
from agentmemory_operator.memories.hierarchy import list_children, read_tree
from agentmemory_operator.memories.history import read_history
from agentmemory_operator.memories.stored_memories import change_head
from agentmemory_operator.memories.zone_changes import change_zone
from agentmemory_operator.spec.caller_rights import Verb

router = build_router("Memories", GuardedRoute)


@router.patch(
    "/{agent}/memories/{id}",
    summary="Update a memory",
    **with_preconditions(describe(MemoryOut, problems=(*WRITE_PROBLEMS, 412), body=ChangeIn)),
)
async def update_memory(
    agent: str,
    id: str,
    request: Request,
    parameters: Annotated[UserParameters, Query()],
    idempotency_key: Annotated[HeaderName | None, Header()] = None,
) -> Response:
    """Change fields of the newest version of a memory. To change its content, store a new memory with `supersedes`.

    With `If-Match` it changes only this version, otherwise the response is a 412. A repeated request with the same
    Idempotency-Key and body changes nothing more.
    """
    options: dict[str, Any] = {"user_id": parameters.user_id, "precondition": read_precondition(request)}
    body = await read_model(request, ChangeIn)
    memory_id = parse_id(id)
    opened = await open_agent(request, agent)
    if "zone" in body.model_fields_set:
        is_admin = rights_of(request).has_verb(Verb.ADMIN)
        record = await change_zone(opened, memory_id, body.zone, is_admin=is_admin, **options)
    else:
        record = await change_head(opened, memory_id, body.changes(), idempotency_key=idempotency_key, **options)
    record_result(request, 1, id=memory_id)
    return response_views.json_response(response_views.render_memory(record, opened), headers=etag_header(record.etag))


@router.get(
    "/{agent}/memories/{id}/history",
    summary="List the versions of a memory",
    **describe(HistoryOut, problems=READ_PROBLEMS),
)
async def get_memory_history(
    agent: str, id: str, request: Request, parameters: Annotated[UserParameters, Query()]
) -> Response:
    """List all versions of a memory, oldest first. Any version's ID names the chain."""
    memory_id = parse_id(id)
    opened = await open_agent(request, agent)
    found = await read_history(opened, memory_id, user_id=parameters.user_id)
    return response_views.json_response(response_views.render_history(found, opened))


@router.get(
    "/{agent}/memories/{id}/children",
    summary="List the children of a memory",
    **describe(PageOut, problems=READ_PROBLEMS),
)
async def list_memory_children(
    agent: str, id: str, request: Request, parameters: Annotated[ChildrenParameters, Query()]
) -> Response:
    """List the direct children of a memory, newest first, page by page."""
    memory_id = parse_id(id)
    opened = await open_agent(request, agent)
    found = await list_children(opened, memory_id, **dict(parameters))
    return response_views.json_response(response_views.render_page(found, opened))


@router.get(
    "/{agent}/memories/{id}/tree", summary="Read a tree of memories", **describe(TreeOut, problems=READ_PROBLEMS)
)
async def get_memory_tree(
    agent: str, id: str, request: Request, parameters: Annotated[TreeParameters, Query()]
) -> Response:
    """Read a memory with its descendants, up to `depth` levels and `limit` memories."""
    memory_id = parse_id(id)
    opened = await open_agent(request, agent)
    found = await read_tree(opened, memory_id, parameters.tree_request())
    return response_views.json_response(response_views.render_tree(found, opened))
