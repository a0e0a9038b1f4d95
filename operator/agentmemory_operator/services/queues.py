"""The work queues of the operator: one for what is reconciled, one for each kind that is done once."""

import asyncio

from agentmemory_operator.services.objects import AGENT_MEMORY, QDRANT_CONNECTION, Key
from agentmemory_operator.services.workqueue import WorkQueue


class Queues:
    """Hands each request to the queue of its kind, so that long work of one kind holds up no other.

    Args:
        reconciled: the queue of AgentMemories and QdrantConnections.
    """

    def __init__(self, reconciled: WorkQueue[Key]) -> None:
        self._by_kind = {AGENT_MEMORY: reconciled, QDRANT_CONNECTION: reconciled}

    def add(self, kind: str, queue: WorkQueue[Key]) -> None:
        """Work on another kind; what nobody works on is not asked for."""
        self._by_kind[kind] = queue

    def request(self, key: Key, *, after_s: float = 0.0) -> None:
        """Ask for a pass, now or later."""
        if queue := self._by_kind.get(key.kind):
            queue.request(key, after_s=after_s)

    def forget(self, key: Key) -> None:
        """Drop what is scheduled for a key that is gone."""
        if queue := self._by_kind.get(key.kind):
            queue.forget(key)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for queue in set(self._by_kind.values()):
                group.create_task(queue.run())
