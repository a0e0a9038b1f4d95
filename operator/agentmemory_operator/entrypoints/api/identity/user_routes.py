"""The routes of user tokens and of the users of an agent."""

from typing import Annotated

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.agents.user_tokens import UserTokens
from agentmemory_operator.entrypoints.api.bodies import read_model
from agentmemory_operator.entrypoints.api.fields import UserId
from agentmemory_operator.entrypoints.api.identity import user_requests as identity_requests
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, rights_of
from agentmemory_operator.entrypoints.api.identity.user_requests import (
    TokenIn,
    TokenOut,
    UserDetailsOut,
    UserIn,
    UsersOut,
    UsersParameters,
)
from agentmemory_operator.entrypoints.api.openapi import (
    READ_PROBLEMS,
    SEARCH_PROBLEMS,
    WRITE_PROBLEMS,
    build_router,
    describe,
)
from agentmemory_operator.entrypoints.api.response_views import json_response
from agentmemory_operator.entrypoints.api.use_cases import open_agent
from agentmemory_operator.search import users
from agentmemory_operator.spec.caller_rights import Verb

router = build_router("Access", GuardedRoute)

PathUser = Annotated[UserId, Path()]


@router.post(
    "/{agent}/tokens", summary="Create a user token", **describe(TokenOut, problems=SEARCH_PROBLEMS, body=TokenIn)
)
async def create_user_token(agent: str, request: Request) -> Response:
    """Create a token for one user of the agent. It lasts at most an hour and grants no more than the caller has."""
    tokens: UserTokens = request.app.state.user_tokens
    body, rights = await read_model(request, TokenIn), rights_of(request)
    verbs = [Verb(name) for name in body.verbs]
    rights.check_has_verbs(verbs)
    token = await tokens.mint(rights.caller, rights.settings, user_id=body.user_id, verbs=verbs, ttl_s=body.ttl_seconds)
    return json_response(identity_requests.render_token(token), headers={"Cache-Control": "no-store"})


@router.get("/{agent}/users", summary="List users", **describe(UsersOut, problems=READ_PROBLEMS))
async def list_users(agent: str, request: Request, parameters: Annotated[UsersParameters, Query()]) -> Response:
    """List the users and scopes that have memories, by name, with counts and the oldest and newest time."""
    opened = await open_agent(request, agent)
    page = await users.list_users(opened, **dict(parameters))
    return json_response(identity_requests.render_users(page))


@router.get("/{agent}/users/{user_id:path}", summary="Read a user", **describe(UserDetailsOut, problems=READ_PROBLEMS))
async def get_user(agent: str, user_id: PathUser, request: Request) -> Response:
    """Read a user or scope: its name, number of memories, and times."""
    opened = await open_agent(request, agent)
    return json_response(identity_requests.render_user(await users.read_user(opened, user_id)))


@router.put(
    "/{agent}/users/{user_id:path}",
    summary="Name a user",
    **describe(UserDetailsOut, problems=WRITE_PROBLEMS, body=UserIn),
)
async def put_user(agent: str, user_id: PathUser, request: Request) -> Response:
    """Set the display name of a user or scope; create the user if it does not exist."""
    body = await read_model(request, UserIn)
    opened = await open_agent(request, agent)
    await users.name_user(opened, user_id, body.name)
    return json_response(identity_requests.render_user(await users.read_user(opened, user_id)))
