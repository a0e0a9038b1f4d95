"""Memories below others: a parent is a memory of the same user, and no memory is below itself.

What is stored anew cannot be above anything, so a circle comes about in one way only: a memory is superseded by one
that names as its parent something below it. Two that do so at the same time may pass; who reads a tree looks at none
twice.
"""

from collections.abc import Mapping

from agentmemory_operator.domain.expiry import EXPIRY_KEYS, is_expired
from agentmemory_operator.domain.records import TOMBSTONE_KEY, MemoryRecord, Payload
from agentmemory_operator.domain.taxonomy import MemoryType
from agentmemory_operator.errors import AgentMemoryError, FieldError, NotFound, RequestInvalid
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.rows import read_row

# Levels, and versions of one memory, that are looked through for a circle.
MOST_STEPS = 1_000

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


async def check_hierarchy(agent: Agent, record: MemoryRecord) -> None:
    """Refuse a parent that is what the memory supersedes, or is below it.

    Raises:
        RequestInvalid: it says which of the two.
    """
    parent, own = record.parent_id, record.supersedes_id
    if own is None:
        return
    for level in range(MOST_STEPS):
        head = await _head_of(agent, parent) if parent else None
        if head is None:
            return
        if own in (parent, head["id"]):
            raise _circle(record, is_direct=level == 0)
        parent = head.get("parentId")
    raise RequestInvalid([FieldError("parent_id", f"{record.parent_id} lies more than {MOST_STEPS:,} levels deep")])


async def _head_of(agent: Agent, memory_id: str) -> Payload | None:
    """Return the newest version of a memory."""
    row = await read_row(agent, memory_id)
    for _ in range(MOST_STEPS):
        next_id = row.get("supersededById") if row else None
        successor = await read_row(agent, next_id) if next_id else None
        if successor is None:
            break
        row = successor
    return row


def _circle(record: MemoryRecord, *, is_direct: bool) -> RequestInvalid:
    reason = "no memory is its own parent" if is_direct else "the hierarchy would go round in a circle"
    relation = "the memory" if is_direct else "below the memory"
    message = f"{record.parent_id} is {relation} that this one supersedes ({record.supersedes_id}): {reason}"
    return RequestInvalid([FieldError("parent_id", message)])


def _is_there(row: Payload | None, user_id: str, types: tuple[MemoryType, ...], *, now_ms: int) -> bool:
    if row is None or TOMBSTONE_KEY in row or row.get("pending"):
        return False
    return bool(row["userId"] == user_id and not is_expired(row, types, now_ms))
