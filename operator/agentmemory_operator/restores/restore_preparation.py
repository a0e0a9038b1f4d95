"""Start a restore: run the checks that need no recovery, and record the names of collections before creating any."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.announce import AliasLocks
from agentmemory_operator.collections.replaced_collection import find_live
from agentmemory_operator.collections.rules.capacity import need_of
from agentmemory_operator.collections.rules.collection import Collection, Observation, Tenant
from agentmemory_operator.connections.resolve import Server, Servers, connection_of
from agentmemory_operator.connections.server_capacity import CollectionRequest
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.restores.job import RestoreJob
from agentmemory_operator.restores.precedence import moving_rebuild_message
from agentmemory_operator.restores.rules.in_place_steps import check_replaceable
from agentmemory_operator.restores.rules.status import applied_status, started_status, with_fields
from agentmemory_operator.restores.rules.swap_checks import check_size, check_swappable, find_record, parse_records
from agentmemory_operator.restores.sources import RestoreSources
from agentmemory_operator.runtime.object_table import ObjectTable, read_recorded_names
from agentmemory_operator.snapshots.rules.facts import check_version
from agentmemory_operator.spec.effective.embedding import DEFAULT_SIZES
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.naming import alias_of, next_physical

_NAME_FIELDS = ("steps", "points", "previousCollection")
"""Status fields that become invalid when other names are chosen."""


@dataclass(frozen=True, slots=True)
class RestoreStarter:
    """Starts restores: checks them, and writes the chosen collection names into their status.

    Attributes:
        locks: Locks of the aliases, shared by all modules that move aliases.
    """

    table: ObjectTable
    servers: Servers
    cluster: Cluster
    sources: RestoreSources
    locks: AliasLocks

    async def start(
        self, job: RestoreJob, server: Server, memory: AgentMemory, desired: Collection, live: Observation | None
    ) -> bool:
        """Run the first checks and choose the names; return False if the restore was applied earlier.

        Args:
            desired: Collection that the AgentMemory specifies.
            live: Collection behind the alias; None if there is none.

        Raises:
            SourceWaiting: If the snapshot is not available yet.
            SpecInvalid: If the restore cannot be done. Neither a name nor the finalizer was written.
            ServerFull, NamespaceFull: If an agent that never had a collection may not get one.
            TransientError: If the call must be repeated.
        """
        metadata = await server.snapshots.metadata(live.physical) if live else None
        if record := find_record(parse_records(metadata), job.identity):
            await job.write(applied_status(job.status, record, job.stamp))
            return False
        if job.is_in_place:
            check_replaceable(live)
        else:
            check_swappable(alias_of(memory.slug), live)
        source = self.sources.find(job.restore.spec.source, memory)
        check_version(source.version, (await server.collections.server()).version)
        # Without `spec.embedding`, a restored collection keeps its default embedding, even if the operator has another.
        if memory.spec.embedding is not None or source.dimensions not in DEFAULT_SIZES:
            check_size(desired, dimensions=source.dimensions, live=live)
        if live is None and memory.reported_physical is None:
            await self._check_room(memory, desired)
        await job.set_finalizer()
        async with self.locks.lock_for(memory.slug):
            # Check again under the lock. A rebuild checks for restores under the same lock, so one detects the other.
            if rebuild := moving_rebuild_message(job.target_key, self.table):
                raise StoreUnavailable(rebuild)
            await self.choose_names(job, server, memory)
        return True

    async def choose_names(
        self, job: RestoreJob, server: Server, memory: AgentMemory, extra: Mapping[str, Any] | None = None
    ) -> None:
        """Choose the collection names and write them to the status.

        As long as the status contains them, no pass over the AgentMemory creates another collection.

        Args:
            extra: Further status fields to write. None writes no further fields.
        """
        alias, connection = alias_of(memory.slug), connection_of(memory)
        live = await find_live(server, alias, memory.reported_physical)
        names = [
            *await server.snapshots.collections(),
            memory.reported_physical,
            *read_recorded_names(self.table, job.key.namespace),
        ]
        live_physical = live.physical if live else None
        status = started_status(
            {name: value for name, value in job.status.items() if name not in _NAME_FIELDS},
            physical=live_physical if job.is_in_place and live_physical else next_physical(alias, names),
            previous=None if job.is_in_place else live_physical,
            target_uid=memory.metadata.uid,
            connection={"namespace": connection.namespace, "name": connection.name},
            at=job.stamp,
        )
        await job.write(with_fields(status, extra or {}))

    async def _check_room(self, memory: AgentMemory, desired: Collection) -> None:
        """Raise unless an agent that never had a collection may get its first. A restored collection counts as new.

        Raises:
            ServerFull: If its server has no capacity for new agents.
            NamespaceFull: If its namespace has its maximum number of collections.
        """
        tenant = Tenant(await self.cluster.cluster_id(), memory.metadata.namespace)
        request = CollectionRequest(tenant, alias_of(memory.slug), need_of(desired))
        await self.servers.check_capacity(connection_of(memory), request)
