"""What is done once, step by step: one object of such a kind, what its status says, and how its steps are taken.

Also what is done to an AgentMemory from time to time.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, StoreUnavailable, TransientError
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.runtime.cache import Key, ObjectTable, Statuses, owned_memory
from agentmemory_operator.runtime.queue import WorkQueue
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory, Metadata
from agentmemory_operator.spec.times import parse_time

S = TypeVar("S", bound=StrEnum)
T = TypeVar("T")

# Until a run that waits for a rebuild looks again.
REBUILDING_S = 30.0


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
class RunSchedule:
    """Does something to each AgentMemory when it is due, to few at a time, and keeps the result of the last run.

    Attributes:
        is_rebuilding: Whether the collection of an object is being rebuilt: no run begins in the meantime.
        request: Asks for a pass over an object, which writes the result into its status.
        status_field: Field of the status with the result of the last run, whose `time` is when that run began.
        due_ms: When the next run is due after the last result; None is never.
        run: Does a run, and calls `keep`.
        share: Objects of one namespace at a time.
    """

    table: ObjectTable
    clock: Clock
    is_rebuilding: Callable[[Key], bool]
    request: Callable[[Key], None]
    status_field: str
    due_ms: Callable[[AgentMemory, Json], int | None]
    run: Callable[[Key, AgentMemory, Json], Awaitable[None]]
    share: int
    queue: WorkQueue[Key] = field(init=False)
    _results: dict[Key, tuple[str, Json]] = field(init=False, default_factory=dict)
    _changing: set[Key] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(self.look, place_of=self.table.place_of, share=self.share)

    def last_result(self, key: Key, memory: AgentMemory) -> Json:
        """The last result of an object, which its status may not have yet; empty if there is none."""
        in_status: Json = memory.status.get(self.status_field) or {}
        uid, own = self._results.get(key, ("", {}))
        return own if uid == memory.metadata.uid and own["time"] >= in_status.get("time", "") else in_status

    def keep(self, key: Key, memory: AgentMemory, result: Json) -> None:
        """Remember the result of a run."""
        self._results[key] = (memory.metadata.uid, result)

    def plan(self, key: Key, due_ms: int) -> None:
        """Look at an object when its run is due."""
        self.queue.request(key, after_s=max(0, due_ms - self.clock.now_ms()) / 1000)

    async def look(self, key: Key) -> float | None:
        """Do the run of an object if it is due; return after how many seconds the next one is.

        Raises:
            TransientError: it is to be tried again.
        """
        if self.table.get(key) is None:
            self._results.pop(key, None)
        memory = owned_memory(self.table, key)
        if memory is None or memory.spec.suspend or not memory.status.get("collection"):
            return None
        last = self.last_result(key, memory)
        due_ms = self.due_ms(memory, last)
        if due_ms is None or due_ms > self.clock.now_ms():
            return None if due_ms is None else (due_ms - self.clock.now_ms()) / 1000
        if self.is_rebuilding(key):
            return REBUILDING_S
        await self.run(key, memory, last)
        self.request(key)
        return None

    @contextmanager
    def changing(self, key: Key) -> Iterator[None]:
        """Keep a rebuild from moving the alias of an object while its memories are changed.

        Raises:
            StoreUnavailable: the collection is being rebuilt.
        """
        if self.is_rebuilding(key):
            raise StoreUnavailable("the collection is being rebuilt: waiting for it")
        # The queue gives an object to one worker at a time.
        self._changing.add(key)
        try:
            yield
        finally:
            self._changing.remove(key)

    def is_changing(self, key: Key) -> bool:
        """Whether memories of an object are being changed at the moment."""
        return key in self._changing
