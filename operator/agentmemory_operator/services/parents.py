"""Memories below others: a parent is a memory of the same user."""

from collections.abc import Mapping

from agentmemory_operator.domain.expiry import EXPIRY_KEYS, is_expired
from agentmemory_operator.domain.records import TOMBSTONE_KEY, Payload
from agentmemory_operator.domain.taxonomy import MemoryType
from agentmemory_operator.errors import AgentMemoryError, NotFound
from agentmemory_operator.services.directory import Agent

_KEYS = ("userId", "pending", TOMBSTONE_KEY, *EXPIRY_KEYS)


async def missing_parents(
    agent: Agent, children: Mapping[int, tuple[str, str]], now_ms: int
) -> dict[int, AgentMemoryError]:
    """Return NotFound for each child whose parent is no memory of its user, by place.

    Args:
        children: user and parent by place.
    """
    wanted = sorted({parent for _, parent in children.values()})
    points = await agent.store.retrieve(agent.alias, wanted, keys=_KEYS) if wanted else []
    rows = {point["id"]: point["payload"] for point in points}
    return {
        place: NotFound(f"parent_id: this user has no memory {parent}")
        for place, (user, parent) in children.items()
        if not _is_there(rows.get(parent), user, agent.settings.ranking.types, now_ms=now_ms)
    }


def _is_there(row: Payload | None, user_id: str, types: tuple[MemoryType, ...], *, now_ms: int) -> bool:
    if row is None or TOMBSTONE_KEY in row or row.get("pending"):
        return False
    return bool(row["userId"] == user_id and not is_expired(row, types, now_ms))
