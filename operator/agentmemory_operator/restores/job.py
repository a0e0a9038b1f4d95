"""One MemoryRestore under way: what it asks for, and what its status says."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from agentmemory_operator.collections.previous import live_behind
from agentmemory_operator.collections.rules.collection import Collection, Marker, Observed
from agentmemory_operator.collections.rules.takeovers import TakeoverTerms
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.restores.rules.checks import Identity, digest_of
from agentmemory_operator.restores.rules.status import AnyStep, Moment, step_status, succeeded_status
from agentmemory_operator.restores.sources import SnapshotSource
from agentmemory_operator.runtime.cache import AGENT_MEMORY, QDRANT_CONNECTION, Key, slug_of
from agentmemory_operator.runtime.jobs import Job
from agentmemory_operator.spec.kinds.agent_memory import GROUP, AgentMemory, MemoryRestore
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.parse import parse_restore
from agentmemory_operator.spec.naming import alias_of, slug_in
from agentmemory_operator.spec.times import render_second

FINALIZER = f"{GROUP}/restore"
"""Stands only while something that the restore made may have to be cleaned up."""

DEFAULT_KEEP_HOURS = 24


@dataclass(slots=True)
class RestoreJob(Job):
    """A restore as a pass sees it."""

    restore: MemoryRestore

    @classmethod
    def of(cls, job: Job) -> Self:
        """An object as a restore.

        Raises:
            SpecInvalid: it is none.
        """
        return cls(job.key, job.metadata, job.document, job.status, job.book, parse_restore(job.document))

    @property
    def is_in_place(self) -> bool:
        """Whether it restores into the collection itself."""
        return self.restore.spec.mode == "InPlace"

    @property
    def physical(self) -> str | None:
        """The collection that it restores into, None before it was chosen."""
        found: str | None = self.status.get("physical")
        return found

    @property
    def previous(self) -> str | None:
        """The collection that is replaced, None where there was none, or none is left."""
        found = self.status.get("previousCollection") or {}
        return None if "removedTime" in found else found.get("physical")

    @property
    def abandoned(self) -> list[str]:
        """Collections that the server may still make: the end of their recovery was not seen."""
        return list(self.status.get("abandoned") or ())

    def alias_for(self, physical: str) -> str:
        """The alias that a collection was replaced behind; one that was adopted bears it not in its name."""
        document = self.book.table.get(self.target_key)
        return alias_behind(physical) or alias_of(slug_of(document) if document else self.target_key.name)

    @property
    def target_key(self) -> Key:
        """The AgentMemory that it restores into; it may be gone."""
        return Key(AGENT_MEMORY, self.key.namespace, self.restore.spec.target.name)

    @property
    def connection(self) -> Key | None:
        """The connection that it was begun on: the AgentMemory may be gone."""
        found = self.status.get("connection") or {}
        namespace, name = found.get("namespace"), found.get("name")
        return Key(QDRANT_CONNECTION, namespace, name) if namespace and name else None

    @property
    def identity(self) -> Identity:
        """What makes it the same restore, however often it is created."""
        digest = digest_of(self.document["spec"])
        return Identity(namespace=self.key.namespace, name=self.key.name, digest=digest)

    @property
    def now_ms(self) -> int:
        """Unix milliseconds."""
        return self.book.clock.now_ms()

    @property
    def moment(self) -> Moment:
        """Now."""
        return Moment(self.metadata.generation, self.now)

    @property
    def keep_until(self) -> str:
        """When a collection that is replaced now is removed."""
        hours = self.restore.spec.keep_previous_hours
        kept_s = (DEFAULT_KEEP_HOURS if hours is None else hours) * 3600
        return render_second(self.now_ms / 1000 + kept_s)

    @property
    def slug(self) -> str:
        """The agent's that it restores into, whether its object is still there or not."""
        document = self.book.table.get(self.target_key)
        named = slug_in(self.physical) if self.physical else None
        return slug_of(document) if document else named or self.target_key.name

    @property
    def least_epoch(self) -> int:
        """Number of the epoch from which on its agent is served: see `SlugClaim`."""
        return self.book.table.claims.least_epoch(self.slug)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRun:
    """One restore under way, as each of its steps sees it.

    Attributes:
        desired: what the AgentMemory asks for.
        takeover: what allows it another's memories.
        check_target: raises SpecInvalid once it is not to be restored any more.
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
        """The agent's."""
        return alias_of(self.memory.slug)

    @property
    def physical(self) -> str:
        """The collection that it restores into."""
        return str(self.job.physical)

    @property
    def ours(self) -> Marker:
        """Of the AgentMemory."""
        assert self.desired.marker is not None
        return self.desired.marker

    async def live(self) -> Observed | None:
        """What the alias leads to."""
        return await live_behind(self.server, self.alias, self.job.previous)

    async def begin(self, step: AnyStep, came_to: str) -> None:
        """Write down that a step begins; before the last one the restore has to be wanted still.

        Args:
            came_to: what the step before came to.
        """
        if step is not list(type(step))[-1]:
            await self.check_target()
        await self.job.write(step_status(self.job.status, step, self.job.moment, came_to=came_to))

    async def succeed(self, message: str, came_to: str) -> None:
        """Write down that it is applied.

        Args:
            came_to: what the last step came to.
        """
        await self.job.write(succeeded_status(self.job.status, message, self.job.moment, came_to=came_to))
        await self.job.post_event("Normal", Reason.RESTORED, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePeriods:
    """Seconds.

    Attributes:
        look_s: until one that waits is looked at again.
        settle_s: until the watch has brought what was written.
        patience_s: how long a restore is tried again that fails by what may pass.
        deadline_s: after which one that has not ended has failed.
        release_s: how long a server that is away may hold a deletion.
        source_s: how long a MemorySnapshot that is not there is waited for.
        watch_s: until the watch has brought every write for sure.
        keep_s: until a collection that is kept is looked at again.
        late_s: for how long a recovery of which the end was not seen is expected to make its collection.
    """

    look_s: float = 5.0
    settle_s: float = 0.5
    patience_s: float = 1800.0
    deadline_s: float = 6 * 3600.0
    release_s: float = 300.0
    source_s: float = 60.0
    watch_s: float = 60.0
    keep_s: float = 300.0
    late_s: float = 86400.0


def alias_behind(physical: str) -> str:
    """The alias that a numbered collection was made for."""
    return physical.rpartition("__")[0]
