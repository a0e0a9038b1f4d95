"""The routes of entities: the names that a user's memories speak of, and how they relate."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entities import sheets
from agentmemory_operator.entities.browse import list_entities, merge_entity, read_entity, rename_entity
from agentmemory_operator.entrypoints.api.answers import json_response
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
from agentmemory_operator.entrypoints.api.openapi import READ_PROBLEMS, WRITE_PROBLEMS, describe
from agentmemory_operator.entrypoints.api.requests import UserParameters
from agentmemory_operator.entrypoints.api.use_cases import services_of

router = APIRouter(prefix="/v1/agents", redirect_slashes=False, route_class=GuardedRoute)

Name = Annotated[KnownName, Path()]
User = Annotated[UserParameters, Query()]


@router.put(
    "/{agent}/relations", summary="Relate two names", **describe(RelationOut, problems=WRITE_PROBLEMS, body=RelationIn)
)
async def put_relation(agent: str, request: Request) -> Response:
    """Say that one name relates to another; each time that it is said makes it stronger."""
    services = services_of(request)
    sent = await read_model(request, RelationIn)
    opened = await services.directory.open(agent)
    said = await sheets.put_relation(opened, sent.user_id, sent.source, sent.relation, sent.target)
    return json_response(entity_requests.relation(said))


@router.get("/{agent}/entities", summary="List names", **describe(EntitiesOut, problems=READ_PROBLEMS))
async def get_entities(agent: str, request: Request, parameters: Annotated[EntitiesParameters, Query()]) -> Response:
    """The names that a user's newest memories speak of, and those that relations know."""
    services = services_of(request)
    opened = await services.directory.open(agent)
    user_id, limit, cursor = parameters.user_id, parameters.limit, parameters.cursor
    page = await list_entities(services.graphs, opened, user_id, limit=limit, cursor=cursor)
    return json_response(entity_requests.entities(page))


@router.get("/{agent}/entities/{name:path}", summary="Read a name", **describe(EntityViewOut, problems=READ_PROBLEMS))
async def get_entity(agent: str, name: Name, request: Request, parameters: User) -> Response:
    """A name of a user's memories, by any of its spellings, with what is linked to it."""
    services = services_of(request)
    opened = await services.directory.open(agent)
    return json_response(entity_requests.entity(await read_entity(services.graphs, opened, parameters.user_id, name)))


@router.patch(
    "/{agent}/entities/{name:path}",
    summary="Rename or merge a name",
    **describe(EntityViewOut, problems=WRITE_PROBLEMS, body=EntityChangeIn),
)
async def change_entity(agent: str, name: Name, request: Request, parameters: User) -> Response:
    """Call a name by another, or take it for a spelling of another; memories stay as they are."""
    services = services_of(request)
    sent = await read_model(request, EntityChangeIn)
    opened = await services.directory.open(agent)
    if sent.merge_into is not None:
        view = await merge_entity(services.graphs, opened, parameters.user_id, name, sent.merge_into)
    else:
        view = await rename_entity(services.graphs, opened, parameters.user_id, name, sent.name or name)
    return json_response(entity_requests.entity(view))
