"""Chains of versions: finish what a crash left half done."""

from agentmemory_operator.ports import Clock
from agentmemory_operator.services.directory import Agent


class Chains:
    """Repairs chains of one agent; every method may run on several replicas at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def sweep(self, agent: Agent) -> int:
        """Finish every unfinished step older than 10 s; return how many there were."""
        raise NotImplementedError
