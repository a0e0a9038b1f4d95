"""Remove the scheduled snapshots that no rule keeps.

1. Record the removal in the status. From then on restores reject the snapshot, and the rules do not count it.
2. In the next run, delete its files: the copy in object storage, the file in Qdrant, and the collection's placeholder
   if that was its last file.
3. Delete the object.

The object exists until its files are deleted, and its status contains their locations. So after a crash the next
operator repeats the removal. Only a file that the namespace may not delete remains in Qdrant.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client import Counter
from prometheus_client.registry import Collector

from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, NotOwned
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.runtime.object_table import (
    AGENT_MEMORY,
    MEMORY_RESTORE,
    MEMORY_SNAPSHOT,
    Key,
    ObjectTable,
    Statuses,
    key_of,
)
from agentmemory_operator.runtime.work_queue import WorkQueue
from agentmemory_operator.snapshots.rules.due import SnapshotOverview
from agentmemory_operator.snapshots.rules.facts import removal_status
from agentmemory_operator.snapshots.rules.retention import RetentionVerdict
from agentmemory_operator.snapshots.rules.retention_verdicts import find_users, judge_overview
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.times import render_second

log = logging.getLogger(__name__)

MAX_CONCURRENT_AGENTS = 2
# Maximum number of snapshots of one agent in a run, so that other agents get their turn.
MAX_REMOVALS_PER_RUN = 5
# Pauses in seconds before the next run of an agent: after a step, after an error, and if nothing is to be removed.
SOON_S, RETRY_S, PERIOD_S = 0.0, 60.0, 3600.0


class BytesRemoval(Protocol):
    """Removes the files of a snapshot from all locations."""

    async def remove(self, status: Mapping[str, Any], *, snapshot: Json) -> None:
        """Remove the snapshot's own files at the locations in its status. Missing files are no error.

        Args:
            status: Status with the locations of the files.
            snapshot: The MemorySnapshot as received.

        Raises:
            AgentMemoryError: If a file remains. Another call continues.
        """
        ...


def removed_counter() -> Counter:
    """Build the Prometheus counter of the snapshots that retention removed, without registering it."""
    return Counter("agentmemory_snapshots_removed_total", "Snapshots that retention removed.", registry=None)


@dataclass(slots=True)
class RetentionRuns:
    """Removes snapshots that no rule keeps, for at most 2 agents of a namespace at a time.

    Attributes:
        removal: Removes the files of a snapshot.
        read_overview: Returns the state of an agent's snapshots. None if the agent is deleted, suspended or invalid, so
            that nothing may be removed.
    """

    table: ObjectTable
    cluster: Cluster
    statuses: Statuses
    removal: BytesRemoval
    read_overview: Callable[[Key], SnapshotOverview | None]
    queue: WorkQueue[Key] = field(init=False)
    _removed: Counter = field(init=False, default_factory=removed_counter)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(self.run, tenant_lane_of=self.table.tenant_lane_of, share=MAX_CONCURRENT_AGENTS)

    @property
    def metrics(self) -> list[Collector]:
        """Collectors to register with Prometheus."""
        return [self._removed]

    async def run(self, key: Key) -> float | None:
        """Run the next step of at most five snapshots to remove, the oldest first.

        Returns:
            Seconds until the next run; None if the agent is deleted, suspended or invalid, or has no valid retention
            rules.

        Raises:
            LeadershipLost: If another operator may lead. Other errors are logged, and the removal is retried.
        """
        outlook = self.read_overview(key)
        if outlook is None or outlook.figures.rules is None:
            return None
        to_remove = [verdict for verdict in self._to_remove(outlook) if not self._is_deleting(key, verdict)]
        has_failed = False
        for verdict in to_remove[:MAX_REMOVALS_PER_RUN]:
            try:
                await self._take_step(key, outlook, verdict)
            except LeadershipLost:
                raise
            except AgentMemoryError as exc:
                has_failed = True
                log.warning("%s: removing snapshot %s is postponed: %s", key, verdict.name, exc)
        if has_failed:
            return RETRY_S
        return SOON_S if to_remove else PERIOD_S

    def _to_remove(self, outlook: SnapshotOverview) -> list[RetentionVerdict]:
        """Return the verdicts on the snapshots to remove, oldest first.

        To save time, the restores and agents that need a snapshot are searched for only if the other rules would remove
        any snapshot.
        """
        if all(verdict.is_kept for verdict in judge_overview(outlook)):
            return []
        namespace = outlook.memory.metadata.namespace
        restores, memories = (self._documents(kind, namespace) for kind in (MEMORY_RESTORE, AGENT_MEMORY))
        users = {item.name: find_users(item.name, restores=restores, memories=memories) for item in outlook.snapshots}
        return [verdict for verdict in reversed(judge_overview(outlook, users)) if not verdict.is_kept]

    def _documents(self, kind: str, namespace: str) -> list[Json]:
        return [document for document in self.table.documents(kind) if key_of(document).namespace == namespace]

    def _is_deleting(self, key: Key, verdict: RetentionVerdict) -> bool:
        """Return whether the snapshot's object is deleted, or a finalizer delays its deletion."""
        document = self.table.get(Key(MEMORY_SNAPSHOT, key.namespace, verdict.name))
        return document is None or bool(document["metadata"].get("deletionTimestamp"))

    async def _take_step(self, key: Key, outlook: SnapshotOverview, verdict: RetentionVerdict) -> None:
        document = self.table.get(Key(MEMORY_SNAPSHOT, key.namespace, verdict.name))
        facts = next(snapshot for snapshot in outlook.snapshots if snapshot.name == verdict.name)
        if document is None:
            return
        if facts.is_being_removed:
            await self._remove(outlook, document, facts.metadata)
        else:
            # The next run deletes the files. By then the table contains any restore that was created before this step.
            await self._mark_removed(outlook, document, facts.metadata, why=verdict.text)

    async def _mark_removed(self, outlook: SnapshotOverview, document: Json, metadata: Metadata, *, why: str) -> None:
        old, now = document.get("status") or {}, render_second(outlook.now_ms / 1000)
        status = removal_status(old, why, generation=metadata.generation, now=now)
        await self.statuses.write(document, metadata, status)
        event = Event("Normal", "SnapshotRemoved", f"{metadata.name} is removed: {why}")
        await self.cluster.post_event(AGENT_MEMORY, outlook.memory.metadata, event)

    async def _remove(self, outlook: SnapshotOverview, document: Json, metadata: Metadata) -> None:
        try:
            await self.removal.remove(document.get("status") or {}, snapshot=document)
        except NotOwned as exc:
            # Keep the file that the status names, because the namespace may not delete it, but delete the object.
            log.warning("snapshot %s/%s is deleted, but not what it names: %s", metadata.namespace, metadata.name, exc)
        await self.cluster.delete_object(MEMORY_SNAPSHOT, metadata)
        # Mark the object now, so that the next run skips it: the watch delivers the deletion later.
        document["metadata"].setdefault("deletionTimestamp", render_second(outlook.now_ms / 1000))
        self._removed.inc()
