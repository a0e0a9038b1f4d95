"""Remove the collections of rebuilds that are cancelled or fail. The replaced and the live collection are kept."""

import logging
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass, replace

from agentmemory_operator.collections.announce import AliasLocks, release_writers
from agentmemory_operator.collections.replaced_collection import alias_points_to, find_live
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY, read_owner
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
from agentmemory_operator.rebuilds.rules.plain_swap_steps import is_plain_deleted
from agentmemory_operator.runtime.object_table import Key
from agentmemory_operator.spec.kinds.agent_memory import RECONCILE_REQUESTED_AT, AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.spec_rebuild import RebuildState
from agentmemory_operator.spec.naming import alias_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RebuildRemoval:
    """Removes the collections of unfinished rebuilds, and reports the reason.

    Attributes:
        locks: Locks of the aliases, shared by all modules that move aliases.
        abandon: Undoes the changes that a cancelled or failed rebuild made to its source.
    """

    cluster: Cluster
    locks: AliasLocks
    abandon: Callable[[Server, RebuildRecord], Awaitable[None]]
    reports: RebuildReports

    async def remove(self, key: Key, memory: AgentMemory, server: Server, record: RebuildRecord) -> bool:
        """Remove the target of a cancelled rebuild, and its way back; release the writers, and report the end.

        Return False, and change nothing, if the target is live, or will be because its plain collection may be deleted.
        The target of a rollback, and any other that is marked as a replaced collection, is kept, and its record is
        completed. A target with the marker of another cluster is kept too.

        Raises:
            TransientError: If the call must be repeated.
        """
        async with self.locks.lock_for(memory.slug):
            live = await find_live(server, alias_of(memory.slug), record.source)
            # Read the record again under the lock: a step may have changed it after `record` was read.
            metadata = await server.snapshots.metadata(record.target) or {}
            record = record_from_json(metadata) or record
            if (live is not None and live.physical == record.target) or is_plain_deleted(record, alias_of(memory.slug)):
                return False
            await self.abandon(server, record)
            await release_writers(server, record.source)
            is_kept = True
            if record.kind is RebuildKind.ROLLBACK or PREVIOUS_KEY in metadata:
                document = record_to_json(replace(record, step=RebuildStep.DONE))
                await server.snapshots.write_metadata(record.target, {REBUILD_KEY: document})
            elif metadata and read_owner(metadata)[0] != await self.cluster.cluster_id():
                log.warning("not deleting %s: its marker names another cluster", record.target)
            else:
                is_kept = False
                await server.collections.delete(record.target)
            if record.way_back is not None:
                await server.collections.delete(record.way_back)
        message = _cancelled_message(record.target, is_kept=is_kept)
        await self.reports.report_end(key, record, RebuildState.STOPPED, message)
        return True

    async def report_missed(self, key: Key, targets: Set[str]) -> None:
        """Report a cancellation whose operator was killed before its report.

        Args:
            targets: Existing targets of the agent's rebuilds.
        """
        target = self.reports.last_status(key).get("target")
        message = _cancelled_message(target, is_kept=target in targets)
        await self.reports.report_waiting(key, RebuildState.STOPPED, message)

    async def handle_transient_error(
        self, key: Key, memory: AgentMemory, server: Server, record: RebuildRecord, exc: TransientError
    ) -> None:
        """Fail a rebuild that has filled Qdrant's disk before its move, because other writes need the space.

        Raises:
            TransientError: `exc`, in any other case: the rebuild is retried.
        """
        if not exc.is_disk_full or not await alias_points_to(server, alias_of(memory.slug), record.source):
            await self.reports.report_waiting(key, RebuildState.WAITING, str(exc), record)
            raise exc
        remedy = f"add disk space for a second collection next to {record.source}"
        await self.fail(key, memory, server, record, f"Qdrant's disk is full: {remedy}. {exc}")

    async def fail(self, key: Key, memory: AgentMemory, server: Server, record: RebuildRecord, message: str) -> None:
        """Remove the target of a rebuild as `remove` does, and report that the rebuild failed, and why.

        Raises:
            TransientError: If the call must be repeated, or the target is kept because it is live or will be. Then the
                rebuild waits, and its last step is repeated.
        """
        if not await self.remove(key, memory, server, record):
            await self.reports.report_waiting(key, RebuildState.WAITING, message, record)
            raise TransientError(message)
        requested_at = memory.metadata.annotations.get(RECONCILE_REQUESTED_AT)
        await self.reports.report_end(key, record, RebuildState.FAILED, message, retry_value=requested_at)
        await self.reports.post_event(memory, Event("Warning", Reason.REBUILD_FAILED, message))


def _cancelled_message(target: str | None, *, is_kept: bool) -> str:
    """Return the text for users about a cancelled rebuild.

    Args:
        target: Collection that was being built; None if there was none yet.
    """
    if target is None:
        return "rebuild cancelled"
    return f"{target}, the target of a cancelled rebuild, is {'kept' if is_kept else 'removed'}"
