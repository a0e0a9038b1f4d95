"""Keep the vectors of encrypted memories as the agent's object allows them: dense and keyword vectors, for each zone.

Missing vectors are added, after a rebuild too: the operator, which rebuilds, cannot decrypt the text, but the API has
the keys. Vectors that a zone no longer allows are deleted, because they disclose the content.
"""

from collections.abc import Iterable, Sequence

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR
from agentmemory_operator.memories import session_keywords
from agentmemory_operator.memories.point_pages import conditional_upsert, read_pages
from agentmemory_operator.memories.rules.filters import (
    NOT_DELETED,
    NOT_PENDING,
    Condition,
    Filter,
    equals,
    equals_any,
    narrow,
    point_filter,
)
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, Payload, record_of
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.zones import Zone
from agentmemory_operator.zones.rules.sealing import ZONE_KEY, is_locked

PAGE = 100
# Maximum number of pages that one sweep of an agent reads for each vector to delete, and for the vectors to add.
PAGES_A_SWEEP = 10


async def sweep(agent: Agent) -> int:
    """Delete disallowed vectors and add missing ones; return the number of vectors deleted and memories completed."""
    return await _delete(agent) + await _add(agent)


async def _delete(agent: Agent) -> int:
    """Delete vectors that a zone no longer allows. Needs no keys. Skips zones that the object does not allow now."""
    deleted = 0
    for name, zones in _disallowed(agent):
        with_vector: Filter = {"must": [equals_any(ZONE_KEY, zones), {"has_vector": name}]}
        pages = 0
        async for points in read_pages(agent, {"filter": with_vector, "limit": PAGE, "with_payload": False}):
            if ids := [point["id"] for point in points]:
                operation = {"delete_vectors": {"filter": narrow(with_vector, {"has_id": ids}), "vector": [name]}}
                await agent.store.batch(agent.alias, [operation], strong=True)
            deleted, pages = deleted + len(points), pages + 1
            if pages == PAGES_A_SWEEP:
                break
    return deleted


def _disallowed(agent: Agent) -> list[tuple[str, list[Zone]]]:
    """Return vector names, each with the zones whose memories must not have that vector."""
    zones = agent.settings.zones
    if zones is None:
        return []
    allowed = {"": zones.vectors, KEYWORD_VECTOR: zones.words}
    disallowed = [(name, sorted(zones.allowed - allowed[name])) for name in agent.vectors]
    return [(name, zones_without) for name, zones_without in disallowed if zones_without]


async def _add(agent: Agent) -> int:
    """Add missing vectors to the memories of at most `PAGES_A_SWEEP` pages; return their number. Skips locked ones."""
    added = 0
    if (missing := _missing_vectors(agent)) is None or agent.zone_keys is None:
        return added
    pages = 0
    async for points in read_pages(agent, {"filter": missing, "limit": PAGE, "with_payload": True}):
        rows = (point["payload"] for point in points)
        unlocked = [row for row in rows if TOMBSTONE_KEY not in row and not is_locked(row)]
        if unlocked:
            await _write(agent, unlocked)
        added, pages = added + len(unlocked), pages + 1
        if pages == PAGES_A_SWEEP:
            break
    return added


def _missing_vectors(agent: Agent) -> Filter | None:
    """Return the filter for memories that lack an allowed vector; None if no zone allows any, or callers send them."""
    zones = agent.settings.zones
    if zones is None or agent.takes_vectors:
        return None
    conditions = [_without("", zones.vectors)] if zones.vectors else []
    if zones.words and agent.keyword is not None:
        conditions.append(_without(KEYWORD_VECTOR, zones.words))
    return {"must": [NOT_DELETED, NOT_PENDING, {"should": conditions}]} if conditions else None


def _without(name: str, zones: Iterable[str]) -> Condition:
    return {"must": [equals_any(ZONE_KEY, sorted(zones))], "must_not": [{"has_vector": name}]}


async def _write(agent: Agent, rows: Sequence[Payload]) -> None:
    """Write each memory with its vectors, by compare-and-set."""
    vectors = await agent.embedder.embed([row["content"] for row in rows])
    words = await session_keywords.build_words(agent, [record_of(row) for row in rows])
    operations = []
    for row, vector in zip(rows, vectors, strict=True):
        payload = row | {"rev": row["rev"] + 1, "updatedAt": agent.clock.now_ms()}
        point: Json = {"id": row["id"], "vector": vector, "payload": payload}
        if agent.keyword is not None and (worded := words.get(row["id"])):
            point = worded.add_to_point(point, agent.keyword)
        operations.append(conditional_upsert(point, point_filter(row["id"], equals("rev", row["rev"]), NOT_DELETED)))
    await agent.store.batch(agent.alias, operations, strong=True)
