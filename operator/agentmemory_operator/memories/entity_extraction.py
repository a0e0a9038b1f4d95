"""Extract the entities of memories, also of those stored before the agent's object enabled entities.

Each process walks once through each agent's memories, and again if the entity settings or the collection changed.
Several processes may do so concurrently, and a killed process starts over: a memory is written only if it has not
changed since it was read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachetools import FIFOCache

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.rules.epochs import Epoch
from agentmemory_operator.entities.rules.extract import extract_entities
from agentmemory_operator.memories.point_pages import page_limit
from agentmemory_operator.memories.rules.entities import ENTITIES_KEY, Entity, entities_to_payload
from agentmemory_operator.memories.rules.filters import NOT_DELETED, UNSEALED, Condition, equals, point_filter
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, Payload
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.tasks import map_with_pauses, run_in_slices
from agentmemory_operator.zones.rules.sealing import SEALED_KEY, ZONE_KEY, is_locked

PAGE = 100
# Maximum number of pages that one sweep of an agent reads.
PAGES_A_SWEEP = 20
MAX_WALKS = 10_000

_READ = ("userId", "author", "content", "rev", ZONE_KEY, SEALED_KEY, TOMBSTONE_KEY)


@dataclass(slots=True)
class _NamingWalk:
    """Progress of this process in an agent's memories.

    Attributes:
        detection: See `EntitySettings`; another value restarts the walk.
        offset: Start of the next page; None at the first.
    """

    detection: object
    epoch: Epoch
    offset: Any = None
    is_done: bool = False


class EntityBackfill:
    """Walks of one process through the memories of agents, to extract names. A completed walk costs no more reads."""

    def __init__(self) -> None:
        self._walks: FIFOCache[str, _NamingWalk] = FIFOCache(MAX_WALKS)

    async def sweep(self, agent: Agent) -> int:
        """Extract names from the next pages of an agent's memories: at most 20 pages of at most 100 memories.

        Returns:
            Number of memories for which entities were found. 0 if the walk is done, or if the agent's object disables
            entities, which forgets the walk.

        Raises:
            StoreUnavailable, OutcomeUnknown: If Qdrant failed. The next call continues, with the page that failed.
        """
        settings = agent.settings.entities
        if settings is None or agent.entity_lists is None:
            self._walks.pop(agent.alias, None)
            return 0
        walk = self._walks.get(agent.alias)
        if walk is None or (walk.detection, walk.epoch) != (settings.detection, agent.epoch):
            walk = self._walks[agent.alias] = _NamingWalk(settings.detection, agent.epoch)
        return 0 if walk.is_done else await _some(agent, walk)


async def _some(agent: Agent, walk: _NamingWalk) -> int:
    count = 0
    for _ in range(PAGES_A_SWEEP):
        ids, following = await _unnamed(agent, walk.offset)
        count += await _name(agent, ids) if ids else 0
        # Advance only after the writes, so that the next sweep reads a page again that could not be written.
        walk.offset = following
        if walk.offset is None:
            walk.is_done = True
            break
    return count


async def _unnamed(agent: Agent, offset: Any) -> tuple[list[str], Any]:
    """Return the ids of a page's memories without names, and the offset of the next page."""
    must: list[Condition] = [NOT_DELETED, *([UNSEALED] if agent.settings.zones else [])]
    body: Json = {
        "filter": {"must": must},
        "limit": page_limit(agent, PAGE),
        "with_payload": [ENTITIES_KEY],
    }
    points, following = await agent.store.scroll(agent.alias, body | ({} if offset is None else {"offset": offset}))
    return [point["id"] for point in points if not point["payload"].get(ENTITIES_KEY)], following


async def _name(agent: Agent, ids: Sequence[str]) -> int:
    points = await agent.store.retrieve(agent.alias, ids, keys=_READ)
    rows = [point["payload"] | {"id": point["id"]} for point in points if _is_ours(point["payload"])]
    found = await run_in_slices(map_with_pauses(lambda _, row: extract_row_entities(agent, row), rows))
    operations = [_write(agent, row, entities) for row, entities in zip(rows, found, strict=True) if entities]
    if operations:
        await agent.store.batch(agent.alias, operations, strong=True)
        for row in rows:
            agent.sizes.forget(row["userId"])
    return len(operations)


def _is_ours(row: Payload) -> bool:
    """Return whether a row is a memory, with a revision and a user. Points of other tools may lack both."""
    return TOMBSTONE_KEY not in row and isinstance(row.get("rev"), int) and isinstance(row.get("userId"), str)


def _write(agent: Agent, row: Payload, entities: list[dict[str, str]]) -> Json:
    unchanged = point_filter(row["id"], equals("rev", row["rev"]), NOT_DELETED)
    change = {ENTITIES_KEY: entities, "rev": row["rev"] + 1, "updatedAt": agent.clock.now_ms()}
    return {"set_payload": {"payload": change, "filter": unchanged}}


def extract_memory_entities(
    agent: Agent, content: str, *, user_id: str, author: str | None, zone: str | None
) -> tuple[Entity, ...]:
    """Return a memory's owner, author and the names in its text; empty without entities in the object, or in a zone."""
    if agent.entity_lists is None or zone is not None:
        return ()
    return extract_entities(content, agent.entity_lists, user_id=user_id, author=author)


def extract_row_entities(agent: Agent, row: Mapping[str, Any]) -> list[dict[str, str]] | None:
    """Return the entities of a row, as stored on the point; None if it has none, is locked or has no content."""
    if is_locked(row) or not isinstance(row.get("content"), str):
        return None
    author, zone = row.get("author"), row.get(ZONE_KEY)
    found = extract_memory_entities(agent, row["content"], user_id=row["userId"], author=author, zone=zone)
    return entities_to_payload(found) or None
