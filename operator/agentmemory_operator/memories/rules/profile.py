"""The profile of a user or scope: its name, and when it was created. One point of each user has it.

The point is a tombstone for readers of memories, so that none of them finds it. It has the user's id, so that it is
erased, copied and restored with the user's memories.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.memories.rules.ids import keyed_id
from agentmemory_operator.memories.rules.record import PROFILE_KEY

NAME_MAX = 256


@dataclass(frozen=True, slots=True)
class UserProfile:
    """What is known of a user beside the memories.

    Attributes:
        created_at: Unix milliseconds; when the user was first named.
    """

    name: str
    created_at: int


def profile_id(agent_scope: str, user_id: str) -> str:
    """Return the id of a user's profile; no idempotency key of a memory gives the same id."""
    return keyed_id(agent_scope, user_id, "user\x1fprofile")


def profile_to_facts(profile: UserProfile) -> dict[str, Any]:
    """Render a profile as its point has it under `PROFILE_KEY`."""
    return {"name": profile.name, "createdAt": profile.created_at}


def profile_from_payload(payload: Mapping[str, Any] | None) -> UserProfile | None:
    """Parse the profile of a point; None if it has none, as an erased one."""
    facts = (payload or {}).get(PROFILE_KEY)
    if not isinstance(facts, dict):
        return None
    name, created_at = facts.get("name"), facts.get("createdAt")
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX or not isinstance(created_at, int):
        return None
    return UserProfile(name, created_at)
