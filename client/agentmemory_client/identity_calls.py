"""The calls about who speaks: user tokens, and the users of an agent; each is a method of an agent or a user."""

from collections.abc import Sequence
from functools import partial

from agentmemory_client.exchange import Call, Listing, path_of
from agentmemory_client.values import UserDetails, UserSummary, UserToken, read_users, read_value


def mint_token(agent: str, user_id: str, verbs: Sequence[str], *, ttl_seconds: int = 3600) -> Call[UserToken]:
    """A token with which a program acts for one user: at most an hour, and no more than the caller may do itself."""
    body = {"user_id": user_id, "verbs": list(verbs), "ttl_seconds": ttl_seconds}
    return Call(method="POST", path=path_of(agent, "tokens"), body=body, read=partial(read_value, UserToken))


def users(agent: str) -> Listing[UserSummary]:
    """The users and scopes that have memories, by name; pages are read as they are needed."""
    return Listing(Call(method="GET", path=path_of(agent, "users"), read=read_users))


def user_details(agent: str, user_id: str) -> Call[UserDetails]:
    """Read the user: name, number of memories, their first and last time.

    Raises:
        ApiError: 404 if the user has neither a name nor memories.
    """
    return Call(method="GET", path=path_of(agent, "users", user_id), read=partial(read_value, UserDetails))


def name_user(agent: str, user_id: str, name: str) -> Call[UserDetails]:
    """Name the user; create it if it does not exist."""
    path, read = path_of(agent, "users", user_id), partial(read_value, UserDetails)
    return Call(method="PUT", path=path, body={"name": name}, read=read)
