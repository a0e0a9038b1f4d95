"""The job of a MemoryRestore, with its spec and accessors for its status, and the run that is passed to its steps."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from agentmemory_operator.collections.replaced_collection import find_live
from agentmemory_operator.collections.rules.collection import Collection, Marker, Observation
from agentmemory_operator.collections.rules.takeovers import TakeoverTerms
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.restores.rules.status import AnyStep, StatusStamp, step_status, succeeded_status
from agentmemory_operator.restores.rules.swap_checks import RestoreIdentity, digest_of
from agentmemory_operator.restores.sources import SnapshotSource
from agentmemory_operator.runtime.jobs import Job
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, QDRANT_CONNECTION, Key, slug_of
from agentmemory_operator.spec.effective.embedding import with_embedding_of
from agentmemory_operator.spec.kinds.agent_memory import GROUP, AgentMemory, MemoryRestore
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.parse import parse_restore
from agentmemory_operator.spec.naming import alias_of, find_slug, number_of
from agentmemory_operator.spec.times import render_second

FINALIZER = f"{GROUP}/restore"
"""Finalizer, present only while the restore may have created something to clean up."""

DEFAULT_KEEP_HOURS = 24


@dataclass(slots=True)
class RestoreJob(Job):
    """Job of a MemoryRestore, with access to the fields of its spec and status."""

    restore: MemoryRestore

    @classmethod
    def parse(cls, job: Job) -> Self:
        """Parse a job's object as a restore.

        Raises:
            SpecInvalid: If the object is not valid.
        """
        return cls(job.key, job.metadata, job.document, job.status, job.book, parse_restore(job.document))

    @property
    def is_in_place(self) -> bool:
        """True if the snapshot is restored into the live collection itself, False for a swap."""
        return self.restore.spec.mode == "InPlace"

    @property
    def physical(self) -> str | None:
        """Physical name of the collection to restore into; None before the restore has started."""
        name: str | None = self.status.get("physical")
        return name

    @property
    def previous(self) -> str | None:
        """Collection that the swap replaces or has replaced; None if there is none or it was removed.

        After a rollback this is the restored collection.
        """
        recorded = self.status.get("previousCollection") or {}
        return None if "removedTime" in recorded else recorded.get("physical")

    @property
    def abandoned(self) -> list[str]:
        """Collections that the server may still create: the operator does not know whether their recoveries ended."""
        return list(self.status.get("abandoned") or ())

    def alias_for(self, physical: str) -> str:
        """Return the alias that a collection was created for, read from its name.

        If the name has no number, as that of an adopted collection may, return the alias of the target AgentMemory; if
        that is deleted, the alias of the target's name.
        """
        document = self.book.table.get(self.target_key)
        return alias_in_name(physical) or alias_of(slug_of(document) if document else self.target_key.name)

    @property
    def target_key(self) -> Key:
        """Key of the AgentMemory to restore into, which may be deleted."""
        return Key(AGENT_MEMORY, self.key.namespace, self.restore.spec.target.name)

    @property
    def connection(self) -> Key | None:
        """Connection on which the restore started, also known if the AgentMemory is deleted; None before the start."""
        recorded = self.status.get("connection") or {}
        namespace, name = recorded.get("namespace"), recorded.get("name")
        return Key(QDRANT_CONNECTION, namespace, name) if namespace and name else None

    @property
    def identity(self) -> RestoreIdentity:
        """Identity of the restore, which stays the same if its object is deleted and created again."""
        digest = digest_of(self.document["spec"])
        return RestoreIdentity(namespace=self.key.namespace, name=self.key.name, digest=digest)

    @property
    def now_ms(self) -> int:
        """Current time in Unix milliseconds."""
        return self.book.clock.now_ms()

    @property
    def stamp(self) -> StatusStamp:
        """Current time and the object's generation, for a new status."""
        return StatusStamp(self.metadata.generation, self.now)

    @property
    def keep_until(self) -> str:
        """Time from which a collection that is replaced now may be removed, RFC 3339.

        The current time plus `keepPreviousHours`, by default 24.
        """
        hours = self.restore.spec.keep_previous_hours
        keep_s = (DEFAULT_KEEP_HOURS if hours is None else hours) * 3600
        return render_second(self.now_ms / 1000 + keep_s)

    @property
    def slug(self) -> str:
        """Slug of the target agent.

        If the AgentMemory is deleted, the slug is read from the collection's name, else it is the AgentMemory's name.
        """
        document = self.book.table.get(self.target_key)
        slug_in_name = find_slug(self.physical) if self.physical else None
        return slug_of(document) if document else slug_in_name or self.target_key.name

    @property
    def min_epoch(self) -> int:
        """Lowest epoch number of a collection with which the API serves the agent; 0 accepts any. See `SlugClaim`."""
        return self.book.table.claims.min_epoch_of(self.slug)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRun:
    """One restore in progress, as passed to each of its steps.

    Attributes:
        server: Server of the AgentMemory's connection, restricted to its namespace.
        memory: AgentMemory to restore into.
        source: Snapshot to restore.
        desired: Collection that the AgentMemory specifies.
        takeover: Terms under which the restore may use another owner's snapshot or collection.
        check_target: Raises SpecInvalid if the restore must stop.
    """

    job: RestoreJob
    server: Server
    memory: AgentMemory
    source: SnapshotSource
    desired: Collection
    takeover: TakeoverTerms
    cluster_id: str
    check_target: Callable[[], Awaitable[None]]

    @property
    def alias(self) -> str:
        """Alias through which clients reach the agent's live collection."""
        return alias_of(self.memory.slug)

    @property
    def physical(self) -> str:
        """Physical name of the collection to restore into, from the status of the started restore."""
        return str(self.job.physical)

    @property
    def marker(self) -> Marker:
        """Ownership marker of the AgentMemory for the restored collection."""
        assert self.desired.marker is not None
        return self.desired.marker

    def memory_with(self, restored: Marker | None) -> AgentMemory:
        """Return the AgentMemory with the default embedding of the restored collection, if its spec names none.

        Args:
            restored: Marker of that collection. None returns the AgentMemory unchanged.
        """
        return with_embedding_of(self.memory, restored.embedding) if restored else self.memory

    async def read_live(self) -> Observation | None:
        """Read the collection behind the alias; None if there is none."""
        return await find_live(self.server, self.alias, self.job.previous)

    async def start_step(self, step: AnyStep, last_result: str) -> None:
        """Record the start of a step in the status. Before every step except the last, call `check_target`.

        Args:
            last_result: Result of the step before; "" if there is none.

        Raises:
            SpecInvalid: If the restore must stop; the step is not recorded.
        """
        if step is not list(type(step))[-1]:
            await self.check_target()
        await self.job.write(step_status(self.job.status, step, self.job.stamp, last_result=last_result))

    async def succeed(self, message: str, last_result: str) -> None:
        """Record in the status that the restore is applied, and post an event.

        Args:
            message: Message of the condition Succeeded and of the event.
            last_result: Result of the last step.
        """
        await self.job.write(succeeded_status(self.job.status, message, self.job.stamp, last_result=last_result))
        await self.job.post_event("Normal", Reason.RESTORED, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePeriods:
    """Timeouts and pauses of restore passes, in seconds.

    Attributes:
        wait_poll_s: Pause between checks of a waiting restore.
        settle_s: Pause after a pass, in which the watch usually delivers what the pass has written.
        patience_s: Age from which a transient error fails a restore instead of a retry, counted from its start.
        deadline_s: Age from which an unfinished restore fails before its next step, counted from its start.
        release_s: Maximum time that an unavailable server delays a deletion.
        source_s: Time to wait for a MemorySnapshot that does not exist, from the first pass that does not find it.
        watch_s: Time after which the watch is assumed to have delivered a write.
        replaced_check_period_s: Maximum pause between checks of a replaced collection or an abandoned recovery.
        late_s: Time after the end in which a recovery without a response may still create its collection.
    """

    wait_poll_s: float = 5.0
    settle_s: float = 0.5
    patience_s: float = 1800.0
    deadline_s: float = 6 * 3600.0
    release_s: float = 300.0
    source_s: float = 60.0
    watch_s: float = 60.0
    replaced_check_period_s: float = 300.0
    late_s: float = 86400.0


def alias_in_name(physical: str) -> str:
    """Return the alias that a numbered collection was created for; "" if its name has no number."""
    alias = physical.rpartition("__")[0]
    return "" if number_of(physical, alias) is None else alias
