"""What is done once, step by step: one object of such a kind, what its status says, and how its steps are taken.

Also what is done to an AgentMemory from time to time: what it came to last.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, TransientError
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.runtime.cache import Key, ObjectTable, Statuses, owned_memory
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory, Metadata
from agentmemory_operator.spec.times import parse_time

S = TypeVar("S", bound=StrEnum)
T = TypeVar("T")


async def run_steps(
    steps: Mapping[S, Callable[[T], Awaitable[str | None]]],
    task: T,
    *,
    first: S,
    begin: Callable[[T, S, str], Awaitable[None]],
) -> str | None:
    """Take the steps from `first` on, in the order of their kind; return what the last came to, None while one waits.

    Whoever is killed, fails or waits in a step is followed by one that takes that step again.

    Args:
        steps: what does each; what is not in it is left out.
        begin: writes down that a step begins, and what the one before it came to; raises where it may not.
    """
    order, came_to = list(type(first)), ""
    for step in order[order.index(first) :]:
        if step not in steps:
            continue
        await begin(task, step, came_to)
        done = await steps[step](task)
        if done is None:
            return None
        came_to = done
    return came_to


@dataclass(slots=True)
class Job:
    """One object of a kind that is done once.

    Attributes:
        status: as the table had it, or as this job has written it since.
    """

    key: Key
    metadata: Metadata
    document: Json
    status: Json
    book: "JobBook"

    @property
    def now(self) -> str:
        """The time as statuses say it."""
        return self.book.statuses.now

    @property
    def age_s(self) -> float:
        """Seconds since it was begun; 0 before."""
        return self.seconds_since(self.status.get("startTime"))

    def seconds_since(self, time: str | None) -> float:
        """The seconds since a time of the status or the metadata, 0 where there is none."""
        return (self.book.clock.now_ms() - parse_time(time)) / 1000 if time else 0.0

    async def write(self, status: Json) -> None:
        """Replace the status, where it differs."""
        if status != self.status:
            await self.book.statuses.write(self.document, self.metadata, status)
            self.status = status

    async def post_event(self, kind: str, reason: str, message: str) -> None:
        """Post an event about the object."""
        await self.book.cluster.post_event(self.key.kind, self.metadata, Event(kind, reason, message))

    @property
    def is_held(self) -> bool:
        """Whether the object's deletion waits for us."""
        return self.book.finalizer in self.metadata.finalizers

    async def hold(self, *, is_wanted: bool = True) -> None:
        """Hold the object's deletion up, or no more.

        Raises:
            TransientError: the object has changed since it came: the next pass knows more.
        """
        if self.is_held == is_wanted:
            return
        others = [other for other in self.metadata.finalizers if other != self.book.finalizer]
        finalizers = [*others, self.book.finalizer] if is_wanted else others
        await self.book.cluster.write_finalizers(self.key.kind, self.metadata, finalizers)

    async def let_go(self) -> None:
        """Let the object be deleted at any time."""
        await self.hold(is_wanted=False)

    async def release(
        self,
        remove: Callable[[], Awaitable[None]],
        *,
        patience_s: float,
        kept: Callable[[AgentMemoryError], tuple[str, str]],
    ) -> None:
        """Clean up behind an object that is being deleted, and let it go.

        Args:
            patience_s: how long a server that is away may hold the deletion up.
            kept: reason and message of the event that says what is left.

        Raises:
            TransientError: it cannot be cleaned up yet, and the deletion can wait.
        """
        if not self.is_held:
            return
        try:
            await remove()
        except LeadershipLost:
            raise
        except AgentMemoryError as exc:
            is_overdue = self.seconds_since(self.metadata.deletion_timestamp) > patience_s
            if isinstance(exc, TransientError) and not is_overdue:
                raise
            await self.post_event("Warning", *kept(exc))
        await self.let_go()

    def is_wanted(self) -> bool:
        """Whether the object is still there, the same one, and not being deleted."""
        document = self.book.table.get(self.key)
        if document is None:
            return False
        metadata = document["metadata"]
        return metadata.get("uid", "") == self.metadata.uid and not metadata.get("deletionTimestamp")


@dataclass(slots=True)
class JobBook:
    """Opens objects as jobs.

    Attributes:
        finalizer: stands while something that an object made may have to be cleaned up.
    """

    table: ObjectTable
    cluster: Cluster
    clock: Clock
    finalizer: str
    statuses: Statuses = field(init=False)

    def __post_init__(self) -> None:
        self.statuses = Statuses(self.table, self.cluster, self.clock)

    def open(self, key: Key) -> Job | None:
        """The object as a job, None where it is gone."""
        document = self.table.get(key)
        if document is None:
            return None
        metadata = Metadata.model_validate(document["metadata"])
        return Job(key, metadata, document, dict(document.get("status") or {}), self)


@dataclass(slots=True)
class LastRuns:
    """What the last run over each object came to: the status may not say so yet.

    Attributes:
        status_field: what the status will say it in.
    """

    table: ObjectTable
    status_field: str
    _results: dict[Key, tuple[str, Json]] = field(init=False, default_factory=dict)

    def of(self, key: Key, memory: AgentMemory) -> Json:
        """The last result of an object, empty where there is none."""
        in_status: Json = memory.status.get(self.status_field) or {}
        uid, own = self._results.get(key, ("", {}))
        return own if uid == memory.metadata.uid and own["time"] >= in_status.get("time", "") else in_status

    def keep(self, key: Key, memory: AgentMemory, result: Json) -> None:
        """Remember a result, whose `time` is when its run began."""
        self._results[key] = (memory.metadata.uid, result)

    def ready(self, key: Key) -> AgentMemory | None:
        """The object if runs apply to it: owned, not suspended, with a collection. Forgets one that is gone."""
        if self.table.get(key) is None:
            self._results.pop(key, None)
        memory = owned_memory(self.table, key)
        return memory if memory and not memory.spec.suspend and memory.status.get("collection") else None
