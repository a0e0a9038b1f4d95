"""What was erased since a snapshot is erased in what is restored of it too: no erased user comes back."""

from dataclasses import dataclass

from agentmemory_operator.domain.naming import alias_of
from agentmemory_operator.domain.resources import AgentMemory
from agentmemory_operator.services.erasure_mirror import ErasureMirror
from agentmemory_operator.services.erasures import Erasures
from agentmemory_operator.services.objects import ObjectTable
from agentmemory_operator.services.previous import live_behind
from agentmemory_operator.services.servers import Server, Servers


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
        return count + await self.mirror.reapply(server, target, memory, slug=slug, since_ms=since_ms)

    async def _of_origin(self, server: Server, origin: str, target: str, memory: AgentMemory, since_ms: int) -> int:
        """Erase in a clone what the agent that it is made of was told to forget."""
        owner = self.table.owner_of(origin)
        connection = self.table.connection_of(owner) if owner else None
        if connection is None:
            return 0

        async def work(other: Server) -> int:
            live = await live_behind(other, alias_of(origin), None)
            if live is None:
                return 0
            exported = self.erasures.export_receipts(other.points, live.physical, memory, since_ms=since_ms)
            return await self.erasures.import_receipts(server.points, target, memory, exported)

        return await self.servers.use(connection, work, namespace=memory.metadata.namespace)
