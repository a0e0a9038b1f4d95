"""Finish, in every agent, what crashed processes left half done; several replicas may do so at once."""

import asyncio
import logging

from agentmemory_operator.agents.directory import Agent, AgentDirectory
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories import chains, session_keywords, zone_vectors
from agentmemory_operator.memories.naming_walks import NamingWalks
from agentmemory_operator.memories.tombstone_writes import empty_all
from agentmemory_operator.zones.reseal_walks import ResealWalks, SealedPoints
from agentmemory_operator.zones.sealed_store import as_stored

log = logging.getLogger(__name__)

# One short scroll an agent: 17 a second for 1,000 agents.
ROUND_S = 60.0
# Pages of 100 tombstones that one sweep empties, so that other agents are swept too.
PAGES_A_SWEEP = 10


class Sweeper:
    """Sweeps the chains, keyword texts, tombstones and sealed memories of all agents in turn."""

    def __init__(self, directory: AgentDirectory) -> None:
        self._directory = directory
        self._resealing = ResealWalks()
        self._naming = NamingWalks()

    async def run(self, round_s: float = ROUND_S) -> None:
        """Sweep until cancelled, each agent about once a round."""
        while True:
            slugs = [settings.slug for settings in self._directory.list()]
            for slug in slugs:
                await self.sweep(slug)
                await asyncio.sleep(round_s / len(slugs))
            if not slugs:
                await asyncio.sleep(round_s)

    async def sweep(self, slug: str) -> None:
        """Sweep one agent; one that cannot be reached is left to the next round."""
        try:
            # Most find nothing to do, and need not know more.
            agent = await self._directory.open(slug, reads_ahead=False)
            completed = await chains.sweep(agent)
            rewritten = await session_keywords.sweep(agent)
            emptied = await empty_all(agent, most=PAGES_A_SWEEP)
            embedded = await zone_vectors.sweep(agent)
            sealed = await self._reseal(agent)
            named = await self._naming.go_on(agent)
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
        """Seal memories again whose data keys were replaced."""
        if agent.settings.zones is None or agent.zone_keys is None:
            return 0
        most = agent.settings.ranking.max_query_limit
        points = SealedPoints(as_stored(agent.store), agent.alias, agent.zone_keys, most_a_page=most)
        return await self._resealing.go_on(points, agent.clock.now_ms())
