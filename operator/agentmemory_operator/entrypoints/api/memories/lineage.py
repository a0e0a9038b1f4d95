"""The routes of one memory and what belongs to it: changing it in place, and its versions, what is below it."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api import answers
from agentmemory_operator.entrypoints.api.bodies import read_model
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, rights_of
from agentmemory_operator.entrypoints.api.openapi import READ_PROBLEMS, WRITE_PROBLEMS, describe
from agentmemory_operator.entrypoints.api.requests import ChangeIn, ChildrenParameters, TreeParameters, UserParameters
from agentmemory_operator.entrypoints.api.schemas import HistoryOut, MemoryOut, PageOut, TreeOut
from agentmemory_operator.entrypoints.api.use_cases import known_id, open_agent
from agentmemory_operator.memories.hierarchy import list_children, tree_below
from agentmemory_operator.memories.history import read_history
from agentmemory_operator.memories.stored import change_head
from agentmemory_operator.memories.zone_changes import change_zone
from agentmemory_operator.spec.access import Verb

router = APIRouter(prefix="/v1/agents", redirect_slashes=False, route_class=GuardedRoute)


@router.patch(
    "/{agent}/memories/{id}",
    summary="Change a memory in place",
    **describe(MemoryOut, problems=WRITE_PROBLEMS, body=ChangeIn),
)
async def change_memory(
    agent: str, id: str, request: Request, parameters: Annotated[UserParameters, Query()]
) -> Response:
    """Change the newest version of a memory; its content never changes in place."""
    sent = await read_model(request, ChangeIn)
    memory_id = known_id(id)
    opened = await open_agent(request, agent)
    if "zone" in sent.model_fields_set:
        is_admin = rights_of(request).may(Verb.ADMIN)
        record = await change_zone(opened, memory_id, sent.zone, user_id=parameters.user_id, is_admin=is_admin)
    else:
        record = await change_head(opened, memory_id, sent.changes(), user_id=parameters.user_id)
    return answers.json_response(answers.memory(record, opened))


@router.get(
    "/{agent}/memories/{id}/history",
    summary="Read the versions of a memory",
    **describe(HistoryOut, problems=READ_PROBLEMS),
)
async def get_history(
    agent: str, id: str, request: Request, parameters: Annotated[UserParameters, Query()]
) -> Response:
    """The chain that a memory belongs to, oldest first, whichever of its versions is named."""
    memory_id = known_id(id)
    opened = await open_agent(request, agent)
    found = await read_history(opened, memory_id, user_id=parameters.user_id)
    return answers.json_response(answers.history(found, opened))


@router.get(
    "/{agent}/memories/{id}/children",
    summary="List the memories below one",
    **describe(PageOut, problems=READ_PROBLEMS),
)
async def get_children(
    agent: str, id: str, request: Request, parameters: Annotated[ChildrenParameters, Query()]
) -> Response:
    """The memories right below one, newest first, page by page."""
    memory_id = known_id(id)
    opened = await open_agent(request, agent)
    found = await list_children(opened, memory_id, **dict(parameters))
    return answers.json_response(answers.page(found, opened))


@router.get(
    "/{agent}/memories/{id}/tree",
    summary="Read a memory with all that is below it",
    **describe(TreeOut, problems=READ_PROBLEMS),
)
async def get_tree(agent: str, id: str, request: Request, parameters: Annotated[TreeParameters, Query()]) -> Response:
    """A memory with what is below it, as many levels and memories as asked for."""
    memory_id = known_id(id)
    opened = await open_agent(request, agent)
    found = await tree_below(opened, memory_id, parameters.tree_request())
    return answers.json_response(answers.tree(found, opened))
