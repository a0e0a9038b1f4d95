"""The routes of entities: names that a user's memories mention, and relations between them."""

from typing import Annotated

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entities import browse, sheets
from agentmemory_operator.entrypoints.api.bodies import read_model
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute
from agentmemory_operator.entrypoints.api.memories import entity_requests
from agentmemory_operator.entrypoints.api.memories.entity_requests import (
    EntitiesOut,
    EntitiesParameters,
    EntityChangeIn,
    EntityViewOut,
    KnownName,
    RelationIn,
    RelationOut,
)
from agentmemory_operator.entrypoints.api.memory_requests import UserParameters
from agentmemory_operator.entrypoints.api.openapi import READ_PROBLEMS, WRITE_PROBLEMS, build_router, describe
from agentmemory_operator.entrypoints.api.response_views import json_response
from agentmemory_operator.entrypoints.api.use_cases import open_agent, services_of

router = build_router("Entities", GuardedRoute)

Name = Annotated[KnownName, Path()]
User = Annotated[UserParameters, Query()]


@router.put(
    "/{agent}/relations", summary="Relate two names", **describe(RelationOut, problems=WRITE_PROBLEMS, body=RelationIn)
)
async def put_relation(agent: str, request: Request) -> Response:
    """Store a relation between two names. Each repetition makes it stronger."""
    body = await read_model(request, RelationIn)
    opened = await open_agent(request, agent)
    relation = await sheets.put_relation(opened, body.user_id, body.source, body.relation, body.target)
    return json_response(entity_requests.render_relation(relation))


@router.get("/{agent}/entities", summary="List names", **describe(EntitiesOut, problems=READ_PROBLEMS))
async def list_entities(agent: str, request: Request, parameters: Annotated[EntitiesParameters, Query()]) -> Response:
    """List the names in a user's newest memories and in the stored relations."""
    services = services_of(request)
    opened = await services.directory.open(agent)
    limit, cursor, has_views = parameters.limit, parameters.cursor, parameters.details
    page = await browse.list_entities(
        services.graphs, opened, parameters.user_id, limit=limit, cursor=cursor, has_views=has_views
    )
    return json_response(entity_requests.render_entities(page))


@router.get("/{agent}/entities/{name:path}", summary="Read a name", **describe(EntityViewOut, problems=READ_PROBLEMS))
async def get_entity(agent: str, name: Name, request: Request, parameters: User) -> Response:
    """Read a name from a user's memories, by any of its spellings, with its neighbours."""
    services = services_of(request)
    opened = await services.directory.open(agent)
    view = await browse.read_entity(services.graphs, opened, parameters.user_id, name)
    return json_response(entity_requests.render_entity(view))


@router.patch(
    "/{agent}/entities/{name:path}",
    summary="Rename or merge a name",
    **describe(EntityViewOut, problems=WRITE_PROBLEMS, body=EntityChangeIn),
)
async def update_entity(agent: str, name: Name, request: Request, parameters: User) -> Response:
    """Rename a name, or merge it into another. Memories stay unchanged."""
    services = services_of(request)
    body = await read_model(request, EntityChangeIn)
    opened = await services.directory.open(agent)
    if body.merge_into is not None:
        view = await browse.merge_entity(services.graphs, opened, parameters.user_id, name, body.merge_into)
    else:
        view = await browse.rename_entity(services.graphs, opened, parameters.user_id, name, body.name or name)
    return json_response(entity_requests.render_entity(view))
