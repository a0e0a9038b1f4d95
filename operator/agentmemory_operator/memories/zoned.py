"""Memories with a zone on their way in: which zones an agent takes, and what ids, hashes, vectors and words they get.

What is read and written here is plain: `zones/sealed_store.py` seals it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentmemory_operator.agents.checks import check_given
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import FieldError, KeysUnavailable, RequestInvalid
from agentmemory_operator.memories.rules.ids import secret_scope
from agentmemory_operator.memories.rules.record import Payload
from agentmemory_operator.spec.access import is_shared
from agentmemory_operator.zones.keyring import DataKey
from agentmemory_operator.zones.rules.sealing import PERSONAL, ZONE_KEY, is_locked, rank_of, sealed_keys
from agentmemory_operator.zones.sealed_store import ZoneKeys

Owner = tuple[str, str]
"""A zone and the user whose memory it is."""

_IDENTITY = ("id", "userId", ZONE_KEY)


def zone_errors(agent: Agent, zone: str | None, user_id: str) -> list[FieldError]:
    """What is wrong with storing a user's memory in a zone."""
    if zone is None:
        return []
    allowed = sorted(agent.settings.zones.allowed) if agent.settings.zones else []
    if zone not in allowed:
        known = f"it allows {', '.join(allowed)}" if allowed else "it allows none"
        return [FieldError("zone", f"{zone!r} is not allowed by spec.zones of this agent: {known}")]
    if zone == PERSONAL and is_shared(user_id):
        return [FieldError("zone", f"{PERSONAL} memories use the key of one user, but {user_id!r} is a shared scope")]
    return []


async def keys_of(agent: Agent, owners: Iterable[tuple[str | None, str]]) -> dict[Owner, DataKey | KeysUnavailable]:
    """The keys that memories of these zones and users are sealed with, or why one cannot be had now."""
    found: dict[Owner, DataKey | KeysUnavailable] = {}
    for zone, user_id in dict.fromkeys(owners):
        if zone is None:
            continue
        try:
            found[zone, user_id] = await writing_key(agent, zone, user_id)
        except KeysUnavailable as error:
            found[zone, user_id] = error
    return found


async def writing_key(agent: Agent, zone: str, user_id: str) -> DataKey:
    """The key that a user's memory of a zone is sealed with.

    Raises:
        KeysUnavailable: it cannot be had now.
    """
    return await zone_keys_of(agent).writing(zone, user_id)


def zone_keys_of(agent: Agent) -> ZoneKeys:
    """The keys of an agent's zones.

    Raises:
        KeysUnavailable: nobody keeps any here.
    """
    if agent.zone_keys is None:
        raise KeysUnavailable("this API has no zone keys: set AGENTMEMORY_ZONE_KEYS_NAMESPACE")
    return agent.zone_keys


async def id_scope(agent: Agent, zone: str | None, user_id: str) -> str:
    """What the ids of a user's memories of a zone are made with, and the hashes of what they say.

    Raises:
        RequestInvalid: the agent does not take the zone, or not of this user.
        KeysUnavailable: its key cannot be had now.
    """
    if errors := zone_errors(agent, zone, user_id):
        raise RequestInvalid(errors)
    return agent.id_scope if zone is None else scope_with(agent, await writing_key(agent, zone, user_id))


async def known_id_scope(agent: Agent, zone: str | None, user_id: str) -> str | None:
    """The same for what is stored already; None where nothing of the user can be in the zone.

    Raises:
        RequestInvalid, KeysUnavailable: as `id_scope`.
    """
    if errors := zone_errors(agent, zone, user_id):
        raise RequestInvalid(errors)
    if zone is None or agent.zone_keys is None:
        return agent.id_scope if zone is None else None
    key = await agent.zone_keys.known(zone, user_id)
    return None if key is None else scope_with(agent, key)


def scope_with(agent: Agent, key: DataKey | None) -> str:
    """What ids are made with under a key."""
    return secret_scope(agent.id_scope, key.id_secret) if key else agent.id_scope


def has_vector(agent: Agent, zone: str | None) -> bool:
    """Whether memories of a zone keep a vector, which gives away what they are about."""
    return zone is None or (agent.settings.zones is not None and zone in agent.settings.zones.vectors)


def has_words(agent: Agent, zone: str | None) -> bool:
    """Whether memories of a zone are found by words, which the engine keeps unsealed."""
    return zone is None or (agent.settings.zones is not None and zone in agent.settings.zones.words)


def whole(row: Mapping[str, Any], changes: Payload) -> Payload:
    """Changes to a row, with all that is sealed together with what they change.

    Raises:
        KeysUnavailable: the row is locked, and what would change is sealed.
    """
    zone = row.get(ZONE_KEY)
    hidden = sealed_keys(zone) if zone else frozenset()
    if hidden.isdisjoint(changes):
        return changes
    check_open(row)
    return {key: row[key] for key in row if key in hidden or key in _IDENTITY} | changes


def check_open(row: Mapping[str, Any]) -> None:
    """Pass where a row's sealed fields were opened.

    Raises:
        KeysUnavailable: it is locked.
    """
    if is_locked(row):
        raise KeysUnavailable(f"memory {row['id']} is locked: its key is unavailable or deleted")


def vector_errors(agent: Agent, vector: Sequence[float] | None, zone: str | None) -> list[FieldError]:
    """What is wrong with the vector of what is to be stored; a zone that keeps none needs none."""
    return check_given(vector, agent) if vector is not None or has_vector(agent, zone) else []


def sinks(before: str | None, after: str | None) -> bool:
    """Whether a memory would be less sealed than before."""
    return rank_of(after) < rank_of(before)
