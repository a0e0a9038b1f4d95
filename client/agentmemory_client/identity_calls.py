"""Calls about identities: user tokens, and the users of an agent; each becomes a method of an agent or a user."""

from collections.abc import Sequence
from functools import partial

from agentmemory_client.exchange import Call, Listing, build_path
from agentmemory_client.values import UserDetails, UserSummary, UserToken, read_users, read_value


def mint_token(agent: str, user_id: str, verbs: Sequence[str], *, ttl_seconds: int = 3600) -> Call[UserToken]:
    """Mint a token that lets a program act for one user.

    Args:
        verbs: Verbs that the token allows. The caller must have them too.
        ttl_seconds: Lifetime of the token in seconds, at most 3,600.
    """
    body = {"user_id": user_id, "verbs": list(verbs), "ttl_seconds": ttl_seconds}
    return Call(method="POST", path=build_path(agent, "tokens"), body=body, read=partial(read_value, UserToken))


def users(agent: str, *, prefix: str | None = None) -> Listing[UserSummary]:
    """List the users and scopes that have memories, sorted by user id. Pages are read on demand.

    Args:
        prefix: Start of the ids to list; None for all.
    """
    parameters = {} if prefix is None else {"prefix": prefix}
    return Listing(Call(method="GET", path=build_path(agent, "users"), parameters=parameters, read=read_users))


def user_details(agent: str, user_id: str) -> Call[UserDetails]:
    """Read the user: name, number of memories, and times of the oldest and newest.

    Raises:
        ApiError: 404 if the user has neither a name nor memories.
    """
    return Call(method="GET", path=build_path(agent, "users", user_id), read=partial(read_value, UserDetails))


def name_user(agent: str, user_id: str, name: str) -> Call[UserDetails]:
    """Name the user; create it if it does not exist."""
    path, read = build_path(agent, "users", user_id), partial(read_value, UserDetails)
    return Call(method="PUT", path=path, body={"name": name}, read=read)
