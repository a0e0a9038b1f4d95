"""Finish, in every agent, what crashed processes left half done; several replicas may do so at once."""

import asyncio
import logging

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.services.chains import Chains
from agentmemory_operator.services.directory import AgentDirectory
from agentmemory_operator.services.windows import Windows

_log = logging.getLogger(__name__)

# One short scroll an agent: 17 a second for 1,000 agents.
ROUND_S = 60.0


class Sweeper:
    """Sweeps the chains and keyword texts of all agents in turn."""

    def __init__(self, directory: AgentDirectory, chains: Chains, windows: Windows) -> None:
        self._directory = directory
        self._chains = chains
        self._windows = windows

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
            completed = await self._chains.sweep(agent)
            rewritten = await self._windows.sweep(agent)
        except AgentMemoryError as error:
            _log.info("agent %s is swept later: %s", slug, error)
            return
        if completed:
            _log.warning("finished %s memories of agent %s that a crash left half written or deleted", completed, slug)
        if rewritten:
            _log.info("brought the keyword texts of %s memories of agent %s in line", rewritten, slug)
