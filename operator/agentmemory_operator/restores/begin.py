"""How a restore begins: what can be checked beforehand, and the names of what it is about to make, on record first."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.announce import AliasLocks
from agentmemory_operator.collections.previous import live_behind
from agentmemory_operator.collections.rules.capacity import need_of
from agentmemory_operator.collections.rules.collection import Collection, Observed, Tenant
from agentmemory_operator.connections.capacity import CollectionWish
from agentmemory_operator.connections.resolve import Server, Servers, connection_of
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.restores.job import RestoreJob
from agentmemory_operator.restores.precedence import rebuild_moving
from agentmemory_operator.restores.rules.checks import applied_record, check_size, check_swappable, records_from
from agentmemory_operator.restores.rules.in_place import check_replaceable
from agentmemory_operator.restores.rules.status import applied_status, begun_status, noted_status
from agentmemory_operator.restores.sources import RestoreSources
from agentmemory_operator.runtime.cache import ObjectTable, names_on_record
from agentmemory_operator.snapshots.rules.facts import check_version
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.naming import alias_of, next_physical

_OF_NAMES = ("steps", "points", "previousCollection")
"""Of a status what goes with the names that were chosen before."""


@dataclass(frozen=True, slots=True)
class RestoreBeginnings:
    """Begins restores.

    Attributes:
        locks: of the aliases; one for all who move them.
    """

    table: ObjectTable
    servers: Servers
    cluster: Cluster
    sources: RestoreSources
    locks: AliasLocks

    async def begin(
        self, job: RestoreJob, server: Server, memory: AgentMemory, desired: Collection, live: Observed | None
    ) -> bool:
        """Check what can be checked beforehand, and choose the names; tell whether there is anything to do.

        Raises:
            SourceWaiting: what it restores is not there yet.
            SpecInvalid: it cannot be done.
            TransientError: it is to be tried again.
        """
        metadata = await server.snapshots.metadata(live.physical) if live else None
        if record := applied_record(records_from(metadata), job.identity):
            await job.write(applied_status(job.status, record, job.moment))
            return False
        if job.is_in_place:
            check_replaceable(live)
        else:
            check_swappable(alias_of(memory.slug), live)
        source = self.sources.find(job.restore.spec.source, memory)
        check_version(source.version, (await server.collections.server()).version)
        check_size(desired, dimensions=source.dimensions, live=live)
        if live is None and memory.told_physical is None:
            await self._check_room(memory, desired)
        await job.hold()
        async with self.locks.of(memory.slug):
            # Looked at once more where a rebuild looks at restores: of both one sees the other.
            if rebuild := rebuild_moving(job.target_key, self.table):
                raise StoreUnavailable(rebuild)
            await self.choose(job, server, memory)
        return True

    async def choose(
        self, job: RestoreJob, server: Server, memory: AgentMemory, kept: Mapping[str, Any] | None = None
    ) -> None:
        """Write down what is about to be made; while it stands there, nobody makes the agent another collection.

        Args:
            kept: of the status besides.
        """
        alias, connection = alias_of(memory.slug), connection_of(memory)
        live = await live_behind(server, alias, memory.told_physical)
        names = [
            *await server.snapshots.collections(),
            memory.told_physical,
            *names_on_record(self.table, job.key.namespace),
        ]
        replaced = live.physical if live else None
        status = begun_status(
            {name: value for name, value in job.status.items() if name not in _OF_NAMES},
            physical=replaced if job.is_in_place and replaced else next_physical(alias, names),
            previous=None if job.is_in_place else replaced,
            target_uid=memory.metadata.uid,
            connection={"namespace": connection.namespace, "name": connection.name},
            at=job.moment,
        )
        await job.write(noted_status(status, kept or {}))

    async def _check_room(self, memory: AgentMemory, desired: Collection) -> None:
        """Pass where an agent that never had a collection may get one: it is a new one, whatever it begins with.

        Raises:
            ServerFull: its server has no room for new agents.
            NamespaceFull: its namespace has as many collections as it may.
        """
        tenant = Tenant(await self.cluster.cluster_id(), memory.metadata.namespace)
        wish = CollectionWish(tenant, alias_of(memory.slug), need_of(desired))
        await self.servers.check_room(connection_of(memory), wish)
