"""Change the points with facts about users, which are not memories: names of users, and their entity data."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.memories.point_pages import conditional_upsert, read_row
from agentmemory_operator.memories.rules.filters import equals, point_filter
from agentmemory_operator.memories.rules.record import EDIT_MARK_KEY, STORED_KEY, TOMBSTONE_KEY, Payload
from agentmemory_operator.memories.stored_memories import read_if_marked
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.tasks import update


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPoint:
    """Address of facts about a user that are not memories: one point per kind of fact.

    Attributes:
        key: Payload key of the facts.
        name: Name of the facts, for messages.
    """

    id: str
    user_id: str
    key: str
    name: str


async def change_point(agent: Agent, user_point: UserPoint, change: Callable[[Payload | None], Json | None]) -> None:
    """Write the facts that `change` returns for the stored payload; None leaves the point unchanged.

    Args:
        change: May be called several times. Its argument is None if the point does not exist.

    Raises:
        StoreUnavailable: If other writers changed the point in every attempt, or Qdrant is unavailable.
        OutcomeUnknown: If the point may have been changed.
    """

    async def write(row: Payload | None) -> Payload | None:
        facts = change(row)
        if facts is None:
            return {}
        mark = secrets.token_hex(8)
        point = {
            "id": user_point.id,
            "vector": {},
            "payload": _facts_payload(agent, user_point, facts, row) | {EDIT_MARK_KEY: mark},
        }
        if row is None:
            await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
        else:
            unchanged = point_filter(user_point.id, equals("rev", row["rev"]))
            await agent.store.batch(agent.alias, [conditional_upsert(point, unchanged)], strong=True)
        return await read_if_marked(agent, user_point.id, mark)

    busy = StoreUnavailable(f"{user_point.name} of this user: changed concurrently all the time, retry")
    await update(partial(read_row, agent, user_point.id), write, busy=busy)


def _facts_payload(agent: Agent, point: UserPoint, facts: Json, row: Payload | None) -> Payload:
    """Build the payload of changed facts: a tombstone for readers of memories, which is erased with the user."""
    now_ms = agent.clock.now_ms()
    # Keep the time of the first write, because an erasure compares it and erases the whole point. Start again after an
    # erasure.
    since_ms = row[STORED_KEY] if row is not None and point.key in row else now_ms
    marks = {"id": point.id, "agentId": agent.settings.slug, "userId": point.user_id, "pending": False}
    # Write 0 as the time of deletion: counts and the removal of tombstones search for later times, and so exclude this
    # point.
    times = {"updatedAt": now_ms, STORED_KEY: since_ms, TOMBSTONE_KEY: 0}
    return marks | times | {"rev": (row["rev"] if row else 0) + 1, point.key: facts}
