"""Complete the interrupted writes of crashed processes, in every agent. Several replicas may do so at once."""

import asyncio
import logging

from agentmemory_operator.agents.directory import Agent, AgentDirectory
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories import chains, session_keywords, zone_vectors
from agentmemory_operator.memories.entity_extraction import EntityBackfill
from agentmemory_operator.memories.tombstone_writes import delete_remaining_vectors
from agentmemory_operator.zones.reencryption_walks import ResealWalks, SealedPoints
from agentmemory_operator.zones.sealed_store import without_decryption

log = logging.getLogger(__name__)

# A sweep that finds nothing costs a few short scrolls. With 1,000 agents, 17 sweeps start per second.
ROUND_S = 60.0
# Maximum number of pages of 100 tombstones that one sweep of an agent clears of vectors.
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
        """Sweep until cancelled, each agent about once per round."""
        while True:
            slugs = [settings.slug for settings in self._directory.list_settings()]
            for slug in slugs:
                await self.sweep(slug)
                await asyncio.sleep(round_s / len(slugs))
            if not slugs:
                await asyncio.sleep(round_s)

    async def sweep(self, slug: str) -> None:
        """Sweep one agent. On an error, log it and leave the rest to the next round."""
        try:
            # Renew no lease: most sweeps find nothing to write, and need no further reads of the metadata.
            agent = await self._directory.open(slug, renews_lease=False)
            completed = await chains.sweep(agent)
            rewritten = await session_keywords.sweep(agent)
            emptied = await delete_remaining_vectors(agent, max_pages=PAGES_A_SWEEP)
            embedded = await zone_vectors.sweep(agent)
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
        """Encrypt memories again that use replaced data keys; return their number."""
        if agent.settings.zones is None or agent.zone_keys is None:
            return 0
        max_page = agent.settings.ranking.max_query_limit
        points = SealedPoints(without_decryption(agent.store), agent.alias, agent.zone_keys, max_page_size=max_page)
        return await self._resealing.advance(points, agent.clock.now_ms())
