"""The route of the tool schemas."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.domain.access import Verb
from agentmemory_operator.domain.tools import in_mcp_form, in_openai_form, tools_for
from agentmemory_operator.entrypoints.api import answers
from agentmemory_operator.entrypoints.api.fields import Id
from agentmemory_operator.entrypoints.api.openapi import describe
from agentmemory_operator.entrypoints.api.requests import Parameters
from agentmemory_operator.entrypoints.api.rights import GuardedRoute, caller_of
from agentmemory_operator.entrypoints.api.schemas import ToolsOut
from agentmemory_operator.entrypoints.api.use_cases import services_of
from agentmemory_operator.services.authorisation import check_allowed

router = APIRouter(prefix="/v1", redirect_slashes=False, route_class=GuardedRoute)


class ToolsParameters(Parameters):
    """Which form, and for which agent."""

    format: Literal["openai", "mcp"] = Field(
        default="openai", description="openai: `tools` of a chat completion. mcp: the answer of `tools/list`."
    )
    agent: Id | None = Field(default=None, description="With this agent's types; without, with those of every preset.")


@router.get("/tools", summary="Describe the tools for models", **describe(ToolsOut, problems=(401, 403, 404, 422, 429)))
async def list_tools(request: Request, parameters: Annotated[ToolsParameters, Query()]) -> Response:
    """Return the schemas of remember, search and upsertMemory, with how to recognise each type of memory."""
    directory, types = services_of(request).directory, None
    if parameters.agent is not None:
        check_allowed(directory, parameters.agent, caller=caller_of(request), verb=Verb.READ)
        types = directory.settings(parameters.agent).ranking.types
    render = in_openai_form if parameters.format == "openai" else in_mcp_form
    return answers.json_response({"tools": render(tools_for(types))})
