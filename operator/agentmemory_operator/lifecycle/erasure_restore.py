"""Prepare restored contents before they are served, and repair links afterwards.

Memories erased since the snapshot are erased in the restored collection too, so that no erased user reappears. Writes
that were in progress when the snapshot was created are abandoned or completed.
"""

from dataclasses import dataclass

from agentmemory_operator.agents.direct_agents import open_by_name
from agentmemory_operator.collections.replaced_collection import find_live, has_owner
from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.lifecycle.erasure_mirror import ErasureMirror
from agentmemory_operator.lifecycle.erasure_replay import ErasureReplay
from agentmemory_operator.memories import restored_chains
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.runtime.object_table import ObjectTable
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.naming import alias_of


@dataclass(frozen=True, slots=True)
class RestoredErasureReplay:
    """Repeats erasures in restored collections.

    Attributes:
        mirror: Traces of erasures in object storage. They remain if the server is lost.
    """

    table: ObjectTable
    servers: Servers
    erasures: ErasureReplay
    mirror: ErasureMirror

    async def replay_collection(
        self, server: Server, source: str, target: str, memory: AgentMemory, *, since_ms: int
    ) -> int:
        """Repeat the erasures of one collection in another collection of the same server; return the number of points.

        Args:
            source, target: Physical collection names.
            since_ms: When the target was copied, Unix milliseconds.

        Raises:
            NotFound: If one of the collections does not exist.
            StoreRejected: If Qdrant rejects a call.
            TransientError: If Qdrant is unavailable, or a memory was changed. Repeating the call erases the rest.
        """
        return await self.erasures.reapply(server.points, source, target, memory, since_ms=since_ms)

    async def replay_all(
        self, server: Server, live: str | None, target: str, memory: AgentMemory, *, origin: str | None, since_ms: int
    ) -> int:
        """Repeat every known erasure in a restored collection; return the number of points erased.

        Sources are the live collection, that of the snapshot's original agent if it is in the same namespace, and the
        object storage. Then vectors that tombstones of `target` still have are removed.

        Args:
            live: Collection that `target` replaces. None if it is lost.
            target: Physical name of the restored collection.
            origin: Slug of the agent that the snapshot was created from. None if unknown.
            since_ms: Time at which the snapshot was created, Unix milliseconds.

        Raises:
            AgentMemoryError: Errors of `ErasureReplay.reapply` and `ErasureMirror.reapply`.
        """
        count = 0
        if live is not None:
            count += await self.replay_collection(server, live, target, memory, since_ms=since_ms)
        if origin is not None and origin != memory.slug:
            count += await self._of_origin(server, origin, target, memory, since_ms)
        slug = origin or memory.slug
        count += await self.mirror.reapply(server, target, memory, slug=slug, since_ms=since_ms)
        await self.erasures.empty_tombstones(server.points, target, memory)
        return count

    async def _of_origin(self, server: Server, origin: str, target: str, memory: AgentMemory, since_ms: int) -> int:
        """Repeat in a clone the erasures of the agent that it was cloned from."""
        owner = self.table.find_owner(origin)
        connection = self.table.find_connection(owner) if owner else None
        # Ignore an agent of another namespace, because a snapshot may name any agent.
        if owner is None or connection is None or owner.namespace != memory.metadata.namespace:
            return 0

        async def operation(origin_server: Server) -> int:
            live = await find_live(origin_server, alias_of(origin), None)
            if live is None or not await has_owner(origin_server, live.physical, owner, self.mirror.cluster_id):
                return 0
            exported = self.erasures.export_receipts(origin_server.points, live.physical, memory, since_ms=since_ms)
            return await self.erasures.import_receipts(server.points, target, memory, exported)

        return await self.servers.use(connection, operation, namespace=memory.metadata.namespace)


async def resolve_pending_chains(server: Server, physical: str, memory: AgentMemory, clock: Clock) -> None:
    """Abandon pending versions and complete pending deletions in contents that are about to be served.

    The writer of a pending version may have received a Conflict since the snapshot was created. In the replaced
    collection its version was abandoned; here it would become visible. See `memories/restored_chains.py`.

    Args:
        physical: Physical name of the collection.

    Raises:
        NotFound: If the collection does not exist.
        TransientError: If Qdrant is unavailable, or writers interfere. Call again.
    """
    await restored_chains.repair_chains(await open_by_name(server.points, effective_settings(memory), physical, clock))


async def repair_late_links(server: Server, physical: str, memory: AgentMemory, clock: Clock) -> None:
    """Repair links with only one stored end, in the collection that the alias points to now.

    Writes sent before the alias moved may have reached this collection afterwards.

    Args:
        physical: Physical name of the collection.

    Raises:
        NotFound: If the collection does not exist.
        TransientError: If Qdrant is unavailable, or writers interfere. Call again.
    """
    await restored_chains.repair_links(await open_by_name(server.points, effective_settings(memory), physical, clock))
