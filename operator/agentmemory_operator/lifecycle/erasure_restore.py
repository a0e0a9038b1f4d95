"""What has to be done to what is restored before anybody sees it.

What was erased since the snapshot is erased in it too: no erased user comes back. What writers were in the middle of is
ended.
"""

from dataclasses import dataclass

from agentmemory_operator.agents.copies import open_copy
from agentmemory_operator.collections.previous import is_of, live_behind
from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.lifecycle.erasure_mirror import ErasureMirror
from agentmemory_operator.lifecycle.erasure_replay import Erasures
from agentmemory_operator.memories import restored_chains
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.runtime.cache import ObjectTable
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.naming import alias_of


@dataclass(frozen=True, slots=True)
class RestoredErasures:
    """Makes erasures again in what was restored.

    Attributes:
        mirror: what object storage knows of a server that is lost.
    """

    table: ObjectTable
    servers: Servers
    erasures: Erasures
    mirror: ErasureMirror

    async def carry(self, server: Server, source: str, target: str, memory: AgentMemory, *, since_ms: int) -> int:
        """Erase in one collection what was erased in another of the same server; return how many memories.

        Args:
            since_ms: when the target was copied, Unix milliseconds.
        """
        return await self.erasures.reapply(server.points, source, target, memory, since_ms=since_ms)

    async def carry_all(
        self, server: Server, live: str | None, target: str, memory: AgentMemory, *, origin: str | None, since_ms: int
    ) -> int:
        """Erase in a restored collection everything that is known to have been erased; return how many memories.

        Args:
            live: the collection that it takes the place of, None where that is lost.
            origin: slug of the agent whose snapshot it is, None where nobody knows.
        """
        count = 0
        if live is not None:
            count += await self.carry(server, live, target, memory, since_ms=since_ms)
        if origin is not None and origin != memory.slug:
            count += await self._of_origin(server, origin, target, memory, since_ms)
        slug = origin or memory.slug
        count += await self.mirror.reapply(server, target, memory, slug=slug, since_ms=since_ms)
        await self.erasures.empty(server.points, target, memory)
        return count

    async def _of_origin(self, server: Server, origin: str, target: str, memory: AgentMemory, since_ms: int) -> int:
        """Erase in a clone what the agent that it is made of was told to forget."""
        owner = self.table.owner_of(origin)
        connection = self.table.connection_of(owner) if owner else None
        # What another namespace's agent was told to forget is nothing to this one, whatever a snapshot says it is of.
        if owner is None or connection is None or owner.namespace != memory.metadata.namespace:
            return 0

        async def work(other: Server) -> int:
            live = await live_behind(other, alias_of(origin), None)
            if live is None or not await is_of(other, live.physical, owner, self.mirror.cluster_id):
                return 0
            exported = self.erasures.export_receipts(other.points, live.physical, memory, since_ms=since_ms)
            return await self.erasures.import_receipts(server.points, target, memory, exported)

        return await self.servers.use(connection, work, namespace=memory.metadata.namespace)


async def settle_unfinished(server: Server, physical: str, memory: AgentMemory, clock: Clock) -> None:
    """Undo what is pending in contents that are about to be served; see `memories/restored_chains.py`.

    Its writer may have been answered since that somebody else was faster. In the collection it was given up then; here
    it would come to be seen.
    """
    await restored_chains.settle_chains(await open_copy(server.points, effective_settings(memory), physical, clock))


async def repair_late(server: Server, physical: str, memory: AgentMemory, clock: Clock) -> None:
    """Repair links of which a write that was meant for the contents before left one end in those that are served."""
    await restored_chains.repair_links(await open_copy(server.points, effective_settings(memory), physical, clock))
