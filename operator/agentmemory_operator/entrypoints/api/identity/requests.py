"""What callers send and get about who speaks: user tokens, and the users of an agent."""

from typing import Annotated, Literal

from pydantic import Field

from agentmemory_operator.agents.user_tokens import MintedToken
from agentmemory_operator.entrypoints.api.answers import Json
from agentmemory_operator.entrypoints.api.fields import Time, UserId
from agentmemory_operator.entrypoints.api.requests import LIST_LIMIT, Body, Parameters
from agentmemory_operator.entrypoints.api.schemas import Answer
from agentmemory_operator.search.users import UserPage
from agentmemory_operator.spec.access import TOKEN_TTL_MAX_S
from agentmemory_operator.spec.times import render_time

# Each costs two requests to the engine.
USERS_LIMIT_MAX = 200
CURSOR_CHARS = 2048


class TokenIn(Body):
    """What a user token is for."""

    user_id: UserId = Field(description="The one user, or scope, in whose name it acts.")
    verbs: Annotated[list[Literal["read", "write", "admin", "impersonate"]], Field(min_length=1, max_length=4)] = Field(
        description="What it may do, of what the caller may do itself."
    )
    ttl_seconds: int = Field(default=TOKEN_TTL_MAX_S, ge=1, le=TOKEN_TTL_MAX_S, description="How long it is believed.")


class TokenOut(Answer):
    """A user token; it is told once."""

    token: str = Field(description="Send it as `Authorization: Bearer TOKEN`.")
    expires_at: Time


class UsersParameters(Parameters):
    """Which users."""

    limit: int = Field(default=LIST_LIMIT, ge=1, le=USERS_LIMIT_MAX, description="Users a page.")
    cursor: str | None = Field(default=None, max_length=CURSOR_CHARS, description="`next_cursor` of the page before.")


class UserOut(Answer):
    """A user or scope that has memories."""

    user_id: str
    memories: int = Field(description="That a search can find.")
    oldest: Time
    newest: Time


class UsersOut(Answer):
    """Users and scopes, by name."""

    results: list[UserOut]
    next_cursor: str | None
    truncated: bool = Field(description="There are more than are listed: those with the fewest memories are left out.")


def token(minted: MintedToken) -> Json:
    """`TokenOut`."""
    return {"token": minted.token, "expires_at": render_time(minted.expires_at_ms)}


def users(page: UserPage) -> Json:
    """`UsersOut`."""
    results = [
        {
            "user_id": user.user_id,
            "memories": user.memories,
            "oldest": render_time(user.oldest),
            "newest": render_time(user.newest),
        }
        for user in page.users
    ]
    return {"results": results, "next_cursor": page.next_cursor, "truncated": page.is_truncated}
