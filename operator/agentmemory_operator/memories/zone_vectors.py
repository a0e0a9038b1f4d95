"""Bring the vectors of sealed memories in line with their object: which zones are found by meaning, and by words.

What they lack is made, after a rebuild too: the operator, which rebuilds, has no right to their text; the API has the
keys. What gives them away and is wanted no more is deleted.
"""

from collections.abc import Iterable, Sequence

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR
from agentmemory_operator.memories import session_keywords
from agentmemory_operator.memories.point_pages import read_pages, upsert_where
from agentmemory_operator.memories.rules.filters import (
    NOT_DELETED,
    NOT_PENDING,
    Condition,
    Filter,
    both,
    equals,
    equals_any,
    only,
)
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, Payload, record_of
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.zones import Zone
from agentmemory_operator.zones.rules.sealing import ZONE_KEY, is_locked

PAGE = 100
# So that other agents are swept too.
PAGES_A_SWEEP = 10


async def sweep(agent: Agent) -> int:
    """Delete and make vectors of some memories; return of how many."""
    return await _delete(agent) + await _make(agent)


async def _delete(agent: Agent) -> int:
    """Delete what zones are to have no more; nothing of a zone that is not allowed now. Needs no keys."""
    deleted = 0
    for name, zones in _unwanted(agent):
        having: Filter = {"must": [equals_any(ZONE_KEY, zones), {"has_vector": name}]}
        pages = 0
        async for points in read_pages(agent, {"filter": having, "limit": PAGE, "with_payload": False}):
            if ids := [point["id"] for point in points]:
                operation = {"delete_vectors": {"filter": both(having, {"has_id": ids}), "vector": [name]}}
                await agent.store.batch(agent.alias, [operation], strong=True)
            deleted, pages = deleted + len(points), pages + 1
            if pages == PAGES_A_SWEEP:
                break
    return deleted


def _unwanted(agent: Agent) -> list[tuple[str, list[Zone]]]:
    """Vectors by name, and the zones whose memories are to have none."""
    zones = agent.settings.zones
    if zones is None:
        return []
    wanted = {"": zones.vectors, KEYWORD_VECTOR: zones.words}
    unwanted = [(name, sorted(zones.allowed - wanted[name])) for name in agent.vectors]
    return [(name, without) for name, without in unwanted if without]


async def _make(agent: Agent) -> int:
    """Make what is missing of some; return of how many. What is locked is left as it is."""
    made = 0
    if (lacking := _lacking(agent)) is None or agent.zone_keys is None:
        return made
    pages = 0
    async for points in read_pages(agent, {"filter": lacking, "limit": PAGE, "with_payload": True}):
        rows = (point["payload"] for point in points)
        living = [row for row in rows if TOMBSTONE_KEY not in row and not is_locked(row)]
        if living:
            await _write(agent, living)
        made, pages = made + len(living), pages + 1
        if pages == PAGES_A_SWEEP:
            break
    return made


def _lacking(agent: Agent) -> Filter | None:
    """The filter of memories that lack a vector that they should have; None where no zone has any."""
    zones = agent.settings.zones
    if zones is None or agent.takes_vectors:
        return None
    wanted = [_without("", zones.vectors)] if zones.vectors else []
    if zones.words and agent.keyword is not None:
        wanted.append(_without(KEYWORD_VECTOR, zones.words))
    return {"must": [NOT_DELETED, NOT_PENDING, {"should": wanted}]} if wanted else None


def _without(name: str, zones: Iterable[str]) -> Condition:
    return {"must": [equals_any(ZONE_KEY, sorted(zones))], "must_not": [{"has_vector": name}]}


async def _write(agent: Agent, rows: Sequence[Payload]) -> None:
    """Write each with its vectors, unless it changed meanwhile."""
    vectors = await agent.embedder.embed([row["content"] for row in rows])
    words = await session_keywords.words(agent, [record_of(row) for row in rows])
    operations = []
    for row, vector in zip(rows, vectors, strict=True):
        payload = row | {"rev": row["rev"] + 1, "updatedAt": agent.clock.now_ms()}
        point: Json = {"id": row["id"], "vector": vector, "payload": payload}
        if agent.keyword is not None and (worded := words.get(row["id"])):
            point = worded.on(point, agent.keyword)
        operations.append(upsert_where(point, only(row["id"], equals("rev", row["rev"]), NOT_DELETED)))
    await agent.store.batch(agent.alias, operations, strong=True)
