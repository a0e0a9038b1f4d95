"""Find the names in what is stored, where its agent has entities; what has a zone names nothing outside its seal."""

from collections.abc import Mapping
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entities.rules.extract import extract
from agentmemory_operator.memories.rules.entities import Entity, entities_to_payload
from agentmemory_operator.zones.rules.sealing import ZONE_KEY, is_locked


def entities_of(
    agent: Agent, content: str, *, user_id: str, author: str | None, zone: str | None
) -> tuple[Entity, ...]:
    """What a memory names; nothing where its agent has no entities, or it has a zone."""
    if agent.entity_lists is None or zone is not None:
        return ()
    return extract(content, agent.entity_lists, user_id=user_id, author=author)


def entities_in(agent: Agent, row: Mapping[str, Any]) -> list[dict[str, str]] | None:
    """What a row names, as it lies on the point; None is nothing."""
    if is_locked(row) or not isinstance(row.get("content"), str):
        return None
    author, zone = row.get("author"), row.get(ZONE_KEY)
    found = entities_of(agent, row["content"], user_id=row["userId"], author=author, zone=zone)
    return entities_to_payload(found) or None
