"""How often memories were returned: noted in memory, flushed in batches, never on an answer's path."""

from collections.abc import Awaitable, Callable, Sequence

from agentmemory_operator.ports import Clock
from agentmemory_operator.services.directory import Agent

OpenAgent = Callable[[str], Awaitable[Agent]]
"""`AgentDirectory.open`."""


class AccessCounts:
    """Notes and flushes access counts.

    Args:
        open_agent: gives the agent of a slug at the time of the flush.
        writer: names this process; two that run at once must differ.
    """

    def __init__(self, open_agent: OpenAgent, clock: Clock, *, writer: str) -> None:
        self._open_agent = open_agent
        self._clock = clock
        self._writer = writer

    def note(self, slug: str, ids: Sequence[str]) -> None:
        """Count one access of each memory."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Write what was noted; what could not be written stays noted. Raises nothing transient."""
        raise NotImplementedError

    async def run(self, interval_s: float = 30) -> None:
        """Flush until cancelled, and once more then."""
        raise NotImplementedError
