"""The routes about who speaks: user tokens, and the users of an agent."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.agents.user_tokens import UserTokens
from agentmemory_operator.entrypoints.api.answers import json_response
from agentmemory_operator.entrypoints.api.bodies import read_model
from agentmemory_operator.entrypoints.api.identity import requests as identity_requests
from agentmemory_operator.entrypoints.api.identity.requests import TokenIn, TokenOut, UsersOut, UsersParameters
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, rights_of
from agentmemory_operator.entrypoints.api.openapi import READ_PROBLEMS, SEARCH_PROBLEMS, describe
from agentmemory_operator.entrypoints.api.use_cases import open_agent
from agentmemory_operator.search.users import list_users
from agentmemory_operator.spec.access import Verb

router = APIRouter(prefix="/v1/agents", redirect_slashes=False, route_class=GuardedRoute)


@router.post(
    "/{agent}/tokens", summary="Mint a user token", **describe(TokenOut, problems=SEARCH_PROBLEMS, body=TokenIn)
)
async def mint_token(agent: str, request: Request) -> Response:
    """A token for one user of the agent, for an hour at most; it may do no more than the caller may."""
    tokens: UserTokens = request.app.state.user_tokens
    sent, rights = await read_model(request, TokenIn), rights_of(request)
    verbs = [Verb(name) for name in sent.verbs]
    rights.check_verbs(verbs)
    minted = await tokens.mint(
        rights.caller, rights.settings, user_id=sent.user_id, verbs=verbs, ttl_s=sent.ttl_seconds
    )
    return json_response(identity_requests.token(minted), headers={"Cache-Control": "no-store"})


@router.get("/{agent}/users", summary="List users", **describe(UsersOut, problems=READ_PROBLEMS))
async def get_users(agent: str, request: Request, parameters: Annotated[UsersParameters, Query()]) -> Response:
    """The users and scopes that have memories, by name, with how many and of when."""
    opened = await open_agent(request, agent)
    page = await list_users(opened, limit=parameters.limit, cursor=parameters.cursor)
    return json_response(identity_requests.users(page))
