"""Complete the interrupted writes of crashed processes, in every agent. Several replicas may do so concurrently.

A sweep also keeps the vectors of encrypted memories as the agent's object allows them: dense and keyword vectors, for
each zone. Missing vectors are added, also those that a rebuild leaves out: the operator cannot decrypt the text, but
the API has the keys. Vectors that a zone no longer allows are deleted, because they disclose the content.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from agentmemory_operator.agents.directory import Agent, AgentDirectory
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories import chains, session_keywords
from agentmemory_operator.memories.entity_extraction import EntityBackfill
from agentmemory_operator.memories.point_pages import read_pages, rewrite_operations
from agentmemory_operator.memories.rules.filters import (
    NOT_DELETED,
    NOT_PENDING,
    Condition,
    Filter,
    equals_any,
    narrow,
)
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, Payload, record_of
from agentmemory_operator.memories.tombstone_writes import delete_remaining_vectors
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.zones import Zone
from agentmemory_operator.zones.reencryption_walks import ResealWalks, SealedPoints
from agentmemory_operator.zones.rules.sealing import ZONE_KEY, is_locked
from agentmemory_operator.zones.sealed_store import without_decryption

log = logging.getLogger(__name__)

# Seconds in which every agent is swept once. With 1,000 agents, 17 sweeps start per second. A sweep that finds nothing
# costs a few short scrolls.
ROUND_S = 60.0
PAGE = 100
# Maximum number of pages that one sweep of an agent reads for each of these tasks: to delete the vectors of tombstones,
# to delete each vector that zones no longer allow, and to add missing vectors.
PAGES_A_SWEEP = 10


class Sweeper:
    """Repeated sweep over all agents in turn.

    A sweep completes chains, keyword texts and tombstones. It also updates vectors, encryption and entities of older
    memories.
    """

    def __init__(self, directory: AgentDirectory) -> None:
        self._directory = directory
        self._resealing = ResealWalks()
        self._naming = EntityBackfill()

    async def run(self, round_s: float = ROUND_S) -> None:
        """Sweep until cancelled, each agent about once per round. Log the errors of an agent."""
        while True:
            slugs = [settings.slug for settings in self._directory.list_settings()]
            for slug in slugs:
                try:
                    await self.sweep(slug)
                except Exception:  # one agent must not end the sweep of all
                    log.exception("sweep of agent %s failed", slug)
                await asyncio.sleep(round_s / len(slugs))
            if not slugs:
                await asyncio.sleep(round_s)

    async def sweep(self, slug: str) -> None:
        """Sweep one agent. On an AgentMemoryError, log it and leave the rest to the next round."""
        try:
            # Renew no lease, because most sweeps find nothing to write, and need no further reads of the metadata.
            agent = await self._directory.open(slug, renews_lease=False)
            completed = await chains.sweep(agent)
            rewritten = await session_keywords.sweep(agent)
            emptied = await delete_remaining_vectors(agent, max_pages=PAGES_A_SWEEP)
            embedded = await _sweep_vectors(agent)
            sealed = await self._reseal(agent)
            named = await self._naming.sweep(agent)
        except AgentMemoryError as error:
            log.info("sweep of agent %s is postponed: %s", slug, error)
            return
        if completed:
            log.warning("completed %s interrupted writes or deletions in agent %s", completed, slug)
        if emptied:
            log.warning("removed the vectors of %s deleted memories of agent %s", emptied, slug)
        if embedded:
            log.info("added or removed vectors of %s sealed memories of agent %s", embedded, slug)
        if sealed:
            log.info("resealed %s memories of agent %s with new keys", sealed, slug)
        if named:
            log.info("extracted entities from %s older memories of agent %s", named, slug)
        if rewritten:
            log.info("updated the keyword texts of %s memories of agent %s", rewritten, slug)

    async def _reseal(self, agent: Agent) -> int:
        """Encrypt memories again that use replaced data keys; return how many. 0 without zones or access to keys."""
        if agent.settings.zones is None or agent.zone_keys is None:
            return 0
        max_page = agent.settings.ranking.max_query_limit
        points = SealedPoints(without_decryption(agent.store), agent.alias, agent.zone_keys, max_page_size=max_page)
        return await self._resealing.advance(points, agent.clock.now_ms())


async def _sweep_vectors(agent: Agent) -> int:
    """Delete disallowed vectors and add missing ones; return vectors deleted plus memories completed, as one number."""
    return await _delete_vectors(agent) + await _add_vectors(agent)


async def _delete_vectors(agent: Agent) -> int:
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


async def _add_vectors(agent: Agent) -> int:
    """Add missing vectors to the memories of at most `PAGES_A_SWEEP` pages; return the number of these memories.

    Skips locked memories.
    """
    added = 0
    if (missing := _missing_vectors(agent)) is None or agent.zone_keys is None:
        return added
    pages = 0
    async for points in read_pages(agent, {"filter": missing, "limit": PAGE, "with_payload": True}):
        rows = (point["payload"] for point in points)
        unlocked = [row for row in rows if TOMBSTONE_KEY not in row and not is_locked(row)]
        if unlocked:
            await _write_vectors(agent, unlocked)
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


async def _write_vectors(agent: Agent, rows: Sequence[Payload]) -> None:
    """Embed memories and write each with its dense and its keyword vector, by compare-and-set."""
    vectors = await agent.embedder.embed([row["content"] for row in rows])
    words = await session_keywords.build_words(agent, [record_of(row) for row in rows])
    points = []
    for row, vector in zip(rows, vectors, strict=True):
        payload = row | {"rev": row["rev"] + 1, "updatedAt": agent.clock.now_ms()}
        point: Json = {"id": row["id"], "vector": vector, "payload": payload}
        if agent.keyword is not None and (worded := words.get(row["id"])):
            point = worded.add_to_point(point, agent.keyword)
        points.append(point)
    await agent.store.batch(agent.alias, rewrite_operations(points), strong=True)
