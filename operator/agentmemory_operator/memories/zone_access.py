"""Privacy zones of an agent: which zones it allows, their data keys and id scopes, and the vectors that they may have.

A *scope* is the string that the ids of memories are derived from. In a zone it contains a secret of the data key.
The rows that this module gets are already decrypted by `zones/sealed_store.py`, except *locked* ones. The key of a
locked row is mostly unavailable or deleted.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentmemory_operator.agents.checks import check_stored_vector
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import FieldError, KeysUnavailable, RequestInvalid
from agentmemory_operator.memories.rules.ids import zone_scope
from agentmemory_operator.memories.rules.record import Payload
from agentmemory_operator.spec.caller_rights import is_shared
from agentmemory_operator.zones.keyring import DataKey
from agentmemory_operator.zones.rules.sealing import PERSONAL, ZONE_KEY, is_locked, rank_of, sealed_keys
from agentmemory_operator.zones.sealed_store import ZoneKeys

ZoneUser = tuple[str, str]
"""A zone and a user."""

_IDENTITY = ("id", "userId", ZONE_KEY)


def find_zone_errors(agent: Agent, zone: str | None, user_id: str) -> list[FieldError]:
    """Return the errors that prevent a user's memory from being stored in a zone."""
    if zone is None:
        return []
    allowed = sorted(agent.settings.zones.allowed) if agent.settings.zones else []
    if zone not in allowed:
        detail = f"it allows {', '.join(allowed)}" if allowed else "it allows none"
        return [FieldError("zone", f"{zone!r} is not allowed by spec.zones of this agent: {detail}")]
    if zone == PERSONAL and is_shared(user_id):
        return [FieldError("zone", f"{PERSONAL} memories use the key of one user, but {user_id!r} is a shared scope")]
    return []


async def read_writing_keys(
    agent: Agent, owners: Iterable[tuple[str | None, str]]
) -> dict[ZoneUser, DataKey | KeysUnavailable]:
    """Return the data keys that encrypt new memories, by zone and user, creating missing ones.

    If a key is unavailable, its value is the KeysUnavailable error. Owners without a zone are skipped.

    Args:
        owners: Zone, or None, and user of each memory; duplicates are allowed.
    """
    found: dict[ZoneUser, DataKey | KeysUnavailable] = {}
    for zone, user_id in dict.fromkeys(owners):
        if zone is None:
            continue
        try:
            found[zone, user_id] = await writing_key(agent, zone, user_id)
        except KeysUnavailable as error:
            found[zone, user_id] = error
    return found


async def writing_key(agent: Agent, zone: str, user_id: str) -> DataKey:
    """Return the data key that encrypts new memories of a user in a zone, creating it if needed.

    Raises:
        KeysUnavailable: If the key is unavailable, or this API process may not read zone keys.
    """
    return await zone_keys_of(agent).get_or_create_key(zone, user_id)


def zone_keys_of(agent: Agent) -> ZoneKeys:
    """Return the keys of an agent's zones.

    Raises:
        KeysUnavailable: If this API process may not read zone keys.
    """
    if agent.zone_keys is None:
        raise KeysUnavailable("this API has no zone keys: set AGENTMEMORY_ZONE_KEYS_NAMESPACE")
    return agent.zone_keys


async def id_scope(agent: Agent, zone: str | None, user_id: str) -> str:
    """Return the scope of a user's memories in a zone, creating its data key if needed; without a zone, the `id_slug`.

    Raises:
        RequestInvalid: If the agent does not allow the zone, or the zone is PERSONAL and `user_id` is a shared scope.
        KeysUnavailable: As in `writing_key`.
    """
    if errors := find_zone_errors(agent, zone, user_id):
        raise RequestInvalid(errors)
    return agent.id_slug if zone is None else scope_of_key(agent, await writing_key(agent, zone, user_id))


async def find_id_scope(agent: Agent, zone: str | None, user_id: str) -> str | None:
    """Return the scope as `id_scope`, but without creating a key.

    None if the user has no key in the zone, and so no readable memories, or if this process may not read zone keys.

    Raises:
        RequestInvalid: As in `id_scope`.
        KeysUnavailable: If the key is unavailable.
    """
    if errors := find_zone_errors(agent, zone, user_id):
        raise RequestInvalid(errors)
    if zone is None or agent.zone_keys is None:
        return agent.id_slug if zone is None else None
    key = await agent.zone_keys.find_key(zone, user_id)
    return None if key is None else scope_of_key(agent, key)


def scope_of_key(agent: Agent, key: DataKey | None) -> str:
    """Return the scope of memories with this data key; for None (no zone), the agent's `id_slug`."""
    return zone_scope(agent.id_slug, key.id_secret) if key else agent.id_slug


def has_vector(agent: Agent, zone: str | None) -> bool:
    """Return whether memories of a zone may have a dense vector, which discloses their subject; True without a zone."""
    return zone is None or (agent.settings.zones is not None and zone in agent.settings.zones.vectors)


def has_words(agent: Agent, zone: str | None) -> bool:
    """Return whether memories of a zone may have a keyword vector, which is not encrypted; True without a zone."""
    return zone is None or (agent.settings.zones is not None and zone in agent.settings.zones.words)


def with_encrypted_fields(row: Mapping[str, Any], changes: Payload) -> Payload:
    """Return changes to a row. If an encrypted field changes, add the others, which are encrypted together with it.

    Raises:
        KeysUnavailable: If the row is locked and an encrypted field changes.
    """
    zone = row.get(ZONE_KEY)
    hidden = sealed_keys(zone) if zone else frozenset()
    if hidden.isdisjoint(changes):
        return changes
    check_unlocked(row)
    return {key: row[key] for key in row if key in hidden or key in _IDENTITY} | changes


def check_unlocked(row: Mapping[str, Any]) -> None:
    """Raise if the encrypted fields of a row were not decrypted.

    Raises:
        KeysUnavailable: If the row is locked.
    """
    if is_locked(row):
        raise KeysUnavailable(f"memory {row['id']} is locked: its key is unavailable or deleted")


def find_vector_errors(agent: Agent, vector: Sequence[float] | None, zone: str | None) -> list[FieldError]:
    """Return the errors of a new memory's vector. A missing vector is no error in a zone without vectors."""
    return check_stored_vector(vector, agent) if vector is not None or has_vector(agent, zone) else []


def is_lower_zone(before: str | None, after: str | None) -> bool:
    """Return whether zone `after` protects less than zone `before`. None is the lowest zone, SENSITIVE the highest."""
    return rank_of(after) < rank_of(before)
