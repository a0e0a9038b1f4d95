"""One MemoryRestore under way: what it asks for, and what its status says."""

from dataclasses import dataclass

from agentmemory_operator.domain.resources import GROUP, MemoryRestore, Metadata
from agentmemory_operator.domain.restore_reporting import Moment
from agentmemory_operator.domain.restoring import Identity, digest_of
from agentmemory_operator.domain.times import parse_time, render_second
from agentmemory_operator.ports import Event, Json
from agentmemory_operator.services.jobs import Job
from agentmemory_operator.services.objects import MEMORY_RESTORE, QDRANT_CONNECTION, Key

FINALIZER = f"{GROUP}/restore"
"""Stands only while something that the restore made may have to be cleaned up."""

DEFAULT_KEEP_HOURS = 24


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """A restore as a pass sees it."""

    job: Job
    restore: MemoryRestore

    @property
    def key(self) -> Key:
        """Names the object."""
        return self.job.key

    @property
    def metadata(self) -> Metadata:
        """Of the object."""
        return self.job.metadata

    @property
    def status(self) -> Json:
        """As it was last written."""
        return self.job.status

    @property
    def is_in_place(self) -> bool:
        """Tell whether it restores into the collection itself."""
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
    def connection(self) -> Key | None:
        """The connection that it was begun on: the AgentMemory may be gone."""
        found = self.status.get("connection")
        return Key(QDRANT_CONNECTION, found["namespace"], found["name"]) if found else None

    @property
    def identity(self) -> Identity:
        """What makes it the same restore, however often it is created."""
        digest = digest_of(self.job.document["spec"])
        return Identity(namespace=self.key.namespace, name=self.key.name, digest=digest)

    @property
    def now_ms(self) -> int:
        """Unix milliseconds."""
        return self.job.book.clock.now_ms()

    @property
    def moment(self) -> Moment:
        """Now."""
        return Moment(self.metadata.generation, render_second(self.now_ms / 1000))

    @property
    def keep_until(self) -> str:
        """When a collection that is replaced now is removed."""
        hours = self.restore.spec.keep_previous_hours
        kept_s = (DEFAULT_KEEP_HOURS if hours is None else hours) * 3600
        return render_second(self.now_ms / 1000 + kept_s)

    def age_s(self, since: str | None) -> float:
        """Return the seconds since a time of the status or the metadata, 0 where there is none."""
        return (self.now_ms - parse_time(since)) / 1000 if since else 0.0

    @property
    def is_held(self) -> bool:
        """Tell whether the object waits for us."""
        return FINALIZER in self.metadata.finalizers

    async def hold(self) -> None:
        """Keep the object until what it makes is applied or cleaned up."""
        await self.job.set_finalizer(FINALIZER, is_wanted=True)

    async def let_go(self) -> None:
        """Let the object be deleted at any time."""
        await self.job.set_finalizer(FINALIZER, is_wanted=False)

    async def tell(self, kind: str, reason: str, message: str) -> None:
        """Post an event."""
        await self.job.book.cluster.post_event(MEMORY_RESTORE, self.metadata, Event(kind, reason, message))


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
    """

    look_s: float = 5.0
    settle_s: float = 0.5
    patience_s: float = 1800.0
    deadline_s: float = 6 * 3600.0
    release_s: float = 300.0
    source_s: float = 60.0
    watch_s: float = 60.0
    keep_s: float = 300.0


def alias_behind(physical: str) -> str:
    """Return the alias that a numbered collection was made for."""
    return physical.rpartition("__")[0]
