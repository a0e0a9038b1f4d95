"""Request and response models of user tokens and of the users of an agent."""

from typing import Annotated, Literal

from pydantic import Field

from agentmemory_operator.agents.user_tokens import MintedToken
from agentmemory_operator.entrypoints.api.fields import Body, Id, Time, UserId, Whole
from agentmemory_operator.entrypoints.api.memory_requests import DEFAULT_PAGE_SIZE, Parameters
from agentmemory_operator.entrypoints.api.memory_schemas import Answer
from agentmemory_operator.entrypoints.api.response_views import Json
from agentmemory_operator.memories.rules.profile import MAX_USER_NAME_CHARS
from agentmemory_operator.search.users import UserDetails, UserPage
from agentmemory_operator.spec.caller_rights import MAX_TOKEN_TTL_S
from agentmemory_operator.spec.times import render_time

# Maximum number of users per page. Each costs two requests to Qdrant.
MAX_USERS_PER_PAGE = 200
MAX_CURSOR_CHARS = 2048

UserName = Annotated[Id, Field(max_length=MAX_USER_NAME_CHARS)]


class TokenIn(Body):
    """A user token to create."""

    user_id: UserId = Field(description="User or scope that the token is for.")
    verbs: Annotated[list[Literal["read", "write", "admin", "impersonate"]], Field(min_length=1, max_length=4)] = Field(
        description="Verbs of the token; the caller must have them too."
    )
    ttl_seconds: Whole = Field(default=MAX_TOKEN_TTL_S, ge=1, le=MAX_TOKEN_TTL_S, description="Lifetime in seconds.")


class TokenOut(Answer):
    """A user token; it is shown only once."""

    token: str = Field(description="Send it as `Authorization: Bearer TOKEN`.")
    expires_at: Time


class UsersParameters(Parameters):
    """Query parameters for listing users, page by page."""

    limit: int = Field(default=DEFAULT_PAGE_SIZE, ge=1, le=MAX_USERS_PER_PAGE, description="Users per page.")
    cursor: str | None = Field(
        default=None, max_length=MAX_CURSOR_CHARS, description="`next_cursor` of the previous page."
    )
    prefix: UserId | None = Field(default=None, description="Only users whose ID starts with this.")


class UserOut(Answer):
    """A user or scope that has active memories, with `created_at` of the oldest and newest."""

    user_id: str
    memories: int = Field(description="Number of active memories.")
    oldest: Time
    newest: Time


class UserIn(Body):
    """The name to give to a user or scope."""

    name: UserName = Field(description="Display name, for example a person's. It is stored unencrypted.")


class UserDetailsOut(Answer):
    """A user or scope: its name, and the number and times of its active memories."""

    user_id: str
    name: str | None = Field(description="Display name; null if it was never set.")
    created_at: Time | None = Field(description="Time when the name was first set; null if it never was.")
    memories: int = Field(description="Number of active memories.")
    oldest: Time | None = Field(description="`created_at` of the oldest active memory; null if there is none.")
    newest: Time | None = Field(description="`created_at` of the newest active memory; null if there is none.")


class UsersOut(Answer):
    """Users and scopes, by name."""

    results: list[UserOut]
    next_cursor: str | None
    truncated: bool = Field(description="True if users are omitted: those with the fewest memories.")


def render_token(token: MintedToken) -> Json:
    """Render the JSON of `TokenOut`."""
    return {"token": token.token, "expires_at": render_time(token.expires_at_ms)}


def render_user(details: UserDetails) -> Json:
    """Render the JSON of `UserDetailsOut`."""
    profile = details.profile
    times = {"created_at": profile.created_at if profile else None, "oldest": details.oldest, "newest": details.newest}
    return {
        "user_id": details.user_id,
        "name": profile.name if profile else None,
        "memories": details.memories,
        **{name: None if time is None else render_time(time) for name, time in times.items()},
    }


def render_users(page: UserPage) -> Json:
    """Render the JSON of `UsersOut`."""
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
