"""What a rebuild has made goes again where it is not wanted, or fails; what it replaced and what is live stay."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from agentmemory_operator.collections.announce import AliasLocks, release_writers
from agentmemory_operator.collections.previous import leads_to, live_behind
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY, owner_in
from agentmemory_operator.collections.rules.rebuild_record import (
    REBUILD_KEY,
    RebuildKind,
    RebuildRecord,
    RebuildStep,
    record_from_json,
    record_to_json,
)
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import TransientError
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.rebuilds.reports import RebuildReports
from agentmemory_operator.rebuilds.rules.plain import is_past_return
from agentmemory_operator.runtime.cache import Key
from agentmemory_operator.spec.kinds.agent_memory import RECONCILE_REQUESTED_AT, AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.rebuild import RebuildState
from agentmemory_operator.spec.naming import alias_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RebuildRemoval:
    """Removes what rebuilds have made that do not come to their end, and tells people why.

    Attributes:
        locks: of the aliases; one for all who move them.
        abandon: takes back what a rebuild that is given up did to its source.
    """

    cluster: Cluster
    locks: AliasLocks
    abandon: Callable[[Server, RebuildRecord], Awaitable[None]]
    reports: RebuildReports

    async def remove(self, key: Key, memory: AgentMemory, server: Server, record: RebuildRecord) -> None:
        """Remove what a rebuild has made that is not wanted; a collection that was replaced stays what it was."""
        async with self.locks.of(memory.slug):
            live = await live_behind(server, alias_of(memory.slug), record.source)
            # What was noted since this record was read counts.
            metadata = await server.snapshots.metadata(record.target) or {}
            record = record_from_json(metadata) or record
            if (live is not None and live.physical == record.target) or is_past_return(record, alias_of(memory.slug)):
                return
            await self.abandon(server, record)
            await release_writers(server, record.source)
            if record.kind is RebuildKind.ROLLBACK or PREVIOUS_KEY in metadata:
                ended = record_to_json(replace(record, step=RebuildStep.DONE))
                await server.snapshots.write_metadata(record.target, {REBUILD_KEY: ended})
            elif metadata and owner_in(metadata)[0] != await self.cluster.cluster_id():
                log.warning("not deleting %s: its marker names another cluster", record.target)
            else:
                await server.collections.delete(record.target)
            if record.way_back is not None:
                await server.collections.delete(record.way_back)
        message = f"{record.target}, the target of a cancelled rebuild, is removed"
        await self.reports.end(key, record, RebuildState.STOPPED, message)

    async def meet(
        self, key: Key, memory: AgentMemory, server: Server, record: RebuildRecord, exc: TransientError
    ) -> None:
        """Give up what has filled the disk, so that others can write again; what else may pass is waited for.

        Raises:
            TransientError: `exc` itself, where it is waited for.
        """
        if not exc.is_disk_full or not await leads_to(server, alias_of(memory.slug), record.source):
            await self.reports.stand(key, RebuildState.WAITING, str(exc), record)
            raise exc
        room = f"add disk space for a second collection next to {record.source}"
        await self.give_up(key, memory, server, record, f"Qdrant's disk is full: {room}. {exc}")

    async def give_up(self, key: Key, memory: AgentMemory, server: Server, record: RebuildRecord, why: str) -> None:
        """Give a rebuild up, and say why; what it made is removed, unless it is live."""
        await self.remove(key, memory, server, record)
        asked = memory.metadata.annotations.get(RECONCILE_REQUESTED_AT)
        await self.reports.end(key, record, RebuildState.FAILED, why, asked=asked)
        await self.reports.post(memory, Event("Warning", Reason.REBUILD_FAILED, why))
