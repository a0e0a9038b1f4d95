"""Removes the scheduled snapshots that no rule keeps: bytes first, the object last.

First the object says so: restores refuse it then, and no rule counts on it. Then its bytes go: the copy off the server,
the file on it, and the placeholder whose last file it was. Then the object goes.

While the object stands it names everything that there is; so one that is killed anywhere is followed by one that begins
again, and no bytes are left that nobody knows of.
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
from agentmemory_operator.runtime.cache import (
    AGENT_MEMORY,
    MEMORY_RESTORE,
    MEMORY_SNAPSHOT,
    Key,
    ObjectTable,
    Statuses,
    key_of,
)
from agentmemory_operator.runtime.queue import WorkQueue
from agentmemory_operator.snapshots.rules.due import Outlook
from agentmemory_operator.snapshots.rules.facts import being_removed
from agentmemory_operator.snapshots.rules.retention import RetentionVerdict
from agentmemory_operator.snapshots.rules.why_kept import users_of, verdicts_of
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.times import render_second

log = logging.getLogger(__name__)

AGENTS_AT_ONCE = 2
# Of one agent before others have their turn.
REMOVED_AT_ONCE = 5
SOON_S, RETRY_S, PERIOD_S = 0.0, 60.0, 3600.0


class BytesRemoval(Protocol):
    """Whoever removes the bytes of a snapshot wherever they are."""

    async def remove(self, status: Mapping[str, Any], *, snapshot: Json) -> None:
        """Remove what a MemorySnapshot's status names and is its own; what is gone is no error.

        Args:
            snapshot: the MemorySnapshot as it came.

        Raises:
            AgentMemoryError: something is left; another call goes on.
        """
        ...


def removed_counter() -> Counter:
    """The counter of what is removed."""
    return Counter("agentmemory_snapshots_removed_total", "Snapshots that retention removed.", registry=None)


@dataclass(slots=True)
class RetentionRuns:
    """Removes what no rule keeps, of few agents at a time.

    Args:
        outlook_of: everything that is known of an agent's snapshots now; None where nothing of it is to be removed.
    """

    table: ObjectTable
    cluster: Cluster
    statuses: Statuses
    removal: BytesRemoval
    outlook_of: Callable[[Key], Outlook | None]
    queue: WorkQueue[Key] = field(init=False)
    _removed: Counter = field(init=False, default_factory=removed_counter)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(self.run, place_of=self.table.place_of, share=AGENTS_AT_ONCE)

    @property
    def metrics(self) -> list[Collector]:
        """Everything that is counted."""
        return [self._removed]

    async def run(self, key: Key) -> float | None:
        """Take one step with each of the first snapshots of an agent that are to go; return the seconds until the next.

        Raises:
            LeadershipLost: the process has to end.
        """
        outlook = self.outlook_of(key)
        if outlook is None or outlook.figures.rules is None:
            return None
        going = [verdict for verdict in self._going(outlook) if not self._is_leaving(key, verdict)]
        has_failed = False
        for verdict in going[:REMOVED_AT_ONCE]:
            try:
                await self._take_step(key, outlook, verdict)
            except LeadershipLost:
                raise
            except AgentMemoryError as exc:
                has_failed = True
                log.warning("%s: removing snapshot %s is postponed: %s", key, verdict.name, exc)
        if has_failed:
            return RETRY_S
        return SOON_S if going else PERIOD_S

    def _going(self, outlook: Outlook) -> list[RetentionVerdict]:
        """The snapshots that are to go, the oldest first; who needs them is asked only where any is."""
        if all(verdict.is_kept for verdict in verdicts_of(outlook)):
            return []
        namespace = outlook.memory.metadata.namespace
        restores, memories = (self._documents(kind, namespace) for kind in (MEMORY_RESTORE, AGENT_MEMORY))
        users = {one.name: users_of(one.name, restores=restores, memories=memories) for one in outlook.taken}
        return [verdict for verdict in reversed(verdicts_of(outlook, users)) if not verdict.is_kept]

    def _documents(self, kind: str, namespace: str) -> list[Json]:
        return [document for document in self.table.documents(kind) if key_of(document).namespace == namespace]

    def _is_leaving(self, key: Key, verdict: RetentionVerdict) -> bool:
        """Whether the object is being deleted, maybe held by a finalizer: that it is gone will be heard of."""
        document = self.table.get(Key(MEMORY_SNAPSHOT, key.namespace, verdict.name))
        return document is None or bool(document["metadata"].get("deletionTimestamp"))

    async def _take_step(self, key: Key, outlook: Outlook, verdict: RetentionVerdict) -> None:
        document = self.table.get(Key(MEMORY_SNAPSHOT, key.namespace, verdict.name))
        taken = next(one for one in outlook.taken if one.name == verdict.name)
        if document is None:
            return
        if taken.is_being_removed:
            await self._remove(outlook, document, taken.metadata)
        else:
            # Its bytes go with the next step: who began to read it before this one is seen by then.
            await self._announce(outlook, document, taken.metadata, why=verdict.text)

    async def _announce(self, outlook: Outlook, document: Json, metadata: Metadata, *, why: str) -> None:
        old, now = document.get("status") or {}, render_second(outlook.now_ms / 1000)
        status = being_removed(old, why, generation=metadata.generation, now=now)
        await self.statuses.write(document, metadata, status)
        event = Event("Normal", "SnapshotRemoved", f"{metadata.name} is removed: {why}")
        await self.cluster.post_event(AGENT_MEMORY, outlook.memory.metadata, event)

    async def _remove(self, outlook: Outlook, document: Json, metadata: Metadata) -> None:
        try:
            await self.removal.remove(document.get("status") or {}, snapshot=document)
        except NotOwned as exc:
            # Nothing of it is ours to remove, now or later.
            log.warning("snapshot %s/%s is deleted, but not what it names: %s", metadata.namespace, metadata.name, exc)
        await self.cluster.delete_object(MEMORY_SNAPSHOT, metadata)
        # A watch brings the deletion only later.
        document["metadata"].setdefault("deletionTimestamp", render_second(outlook.now_ms / 1000))
        self._removed.inc()
