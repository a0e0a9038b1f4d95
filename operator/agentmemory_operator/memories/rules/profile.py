"""Profile of a user or scope: its name, and the time of creation, on one point per user.

The point is written as a tombstone, so readers of memories never find it. It has the user's id, so it is erased, copied
and restored with the user's memories.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.memories.rules.ids import keyed_id
from agentmemory_operator.memories.rules.record import PROFILE_KEY

MAX_USER_NAME_CHARS = 256


@dataclass(frozen=True, slots=True)
class UserProfile:
    """Name of a user, stored apart from the memories.

    Attributes:
        created_at: Time at which the user was first named, Unix milliseconds.
    """

    name: str
    created_at: int


def profile_id(agent_scope: str, user_id: str) -> str:
    """Return the id of a user's profile. No idempotency key has the same id."""
    return keyed_id(agent_scope, user_id, "user\x1fprofile")


def profile_to_facts(profile: UserProfile) -> dict[str, Any]:
    """Build the value that the point stores under `PROFILE_KEY`."""
    return {"name": profile.name, "createdAt": profile.created_at}


def profile_from_payload(payload: Mapping[str, Any] | None) -> UserProfile | None:
    """Parse the profile of a point; None if there is no point, or its profile was erased or is malformed."""
    facts = (payload or {}).get(PROFILE_KEY)
    if not isinstance(facts, dict):
        return None
    name, created_at = facts.get("name"), facts.get("createdAt")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_USER_NAME_CHARS or not isinstance(created_at, int):
        return None
    return UserProfile(name, created_at)
