"""Jobs (MemorySnapshot, MemoryRestore), which run once in recorded steps, and recurring runs for each AgentMemory.

`JobBook` opens an object as a `Job`, which reads and writes its status and finalizer. `run_steps` runs its steps in
order and records each before it starts. So the successor of a killed process repeats only the recorded step.
`RunSchedule` starts recurring runs when they are due.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, StoreUnavailable, TransientError
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.runtime.object_table import Key, ObjectTable, Statuses, owned_memory
from agentmemory_operator.runtime.work_queue import WorkQueue
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory, Metadata
from agentmemory_operator.spec.times import parse_time

S = TypeVar("S", bound=StrEnum)
T = TypeVar("T")

# Seconds after which a run that waits for a rebuild checks again.
REBUILD_RECHECK_S = 30.0


async def run_steps(
    steps: Mapping[S, Callable[[T], Awaitable[str | None]]],
    task: T,
    *,
    first: S,
    begin: Callable[[T, S, str], Awaitable[None]],
) -> str | None:
    """Run steps in the order of their enum, starting at `first`; return the last result, or None if a step must wait.

    The result is '' if no step ran.

    After a crash, a failure or a wait, the caller passes the recorded step as `first`, which repeats it.

    Args:
        steps: Step functions by step; a step that is missing is skipped. A function returns its result, or None to
            wait.
        task: Argument of the step functions.
        first: Step to start with.
        begin: Records the start of a step, and the result of the step before it. Raises if the step must not run.
    """
    order, last_result = list(type(first)), ""
    for step in order[order.index(first) :]:
        if step not in steps:
            continue
        await begin(task, step, last_result)
        result = await steps[step](task)
        if result is None:
            return None
        last_result = result
    return last_result


@dataclass(slots=True)
class Job:
    """A MemorySnapshot or MemoryRestore object, which is processed once.

    Attributes:
        status: Status from the table when the job was opened, or as written by this job since.
    """

    key: Key
    metadata: Metadata
    document: Json
    status: Json
    book: "JobBook"

    @property
    def now(self) -> str:
        """Current UTC time, RFC 3339 in whole seconds, as in statuses."""
        return self.book.statuses.now

    @property
    def age_s(self) -> float:
        """Seconds since the job was started; 0 before its start."""
        return self.seconds_since(self.status.get("startTime"))

    def seconds_since(self, time: str | None) -> float:
        """Return the seconds since a timestamp of the status or metadata; 0 if it is None or empty."""
        return (self.book.clock.now_ms() - parse_time(time)) / 1000 if time else 0.0

    async def write(self, status: Json) -> None:
        """Replace the status of the object if it differs from the last known one. A deleted object is no error."""
        if status != self.status:
            await self.book.statuses.write(self.document, self.metadata, status)
            self.status = status

    async def post_event(self, kind: str, reason: str, message: str) -> None:
        """Post an event about the object, or drop the event if that fails. `kind` is Normal or Warning."""
        await self.book.cluster.post_event(self.key.kind, self.metadata, Event(kind, reason, message))

    @property
    def has_finalizer(self) -> bool:
        """True if the object, as read, has the finalizer of `book`, which delays its deletion."""
        return self.book.finalizer in self.metadata.finalizers

    async def set_finalizer(self, *, is_present: bool = True) -> None:
        """Add the finalizer of `book`, or remove it if `is_present` is False.

        Raises:
            TransientError: If the object has changed since it was read. Retry in the next pass.
        """
        if self.has_finalizer == is_present:
            return
        other_finalizers = [finalizer for finalizer in self.metadata.finalizers if finalizer != self.book.finalizer]
        finalizers = [*other_finalizers, self.book.finalizer] if is_present else other_finalizers
        await self.book.cluster.write_finalizers(self.key.kind, self.metadata, finalizers)

    async def remove_finalizer(self) -> None:
        """Remove the finalizer of `book`. Kubernetes may then delete the object.

        Raises:
            TransientError: If the object has changed since it was read. Retry in the next pass.
        """
        await self.set_finalizer(is_present=False)

    async def release(
        self,
        remove: Callable[[], Awaitable[None]],
        *,
        max_delay_s: float,
        describe_leftovers: Callable[[AgentMemoryError], tuple[str, str]],
    ) -> None:
        """Clean up after an object that is being deleted, then remove its finalizer. Do nothing if it has none.

        Args:
            remove: Does the cleanup.
            max_delay_s: Seconds for which a TransientError of `remove` can delay the deletion. After that, as after any
                other error, the finalizer is removed although the cleanup failed.
            describe_leftovers: Returns reason and message of a warning event, from the error that left something
                behind.

        Raises:
            TransientError: If the cleanup failed and the deletion can still wait, or the object has changed.
            LeadershipLost: If this process may no longer write; the finalizer stays.
        """
        if not self.has_finalizer:
            return
        try:
            await remove()
        except LeadershipLost:
            raise
        except AgentMemoryError as exc:
            is_overdue = self.seconds_since(self.metadata.deletion_timestamp) > max_delay_s
            if isinstance(exc, TransientError) and not is_overdue:
                raise
            await self.post_event("Warning", *describe_leftovers(exc))
        await self.remove_finalizer()

    def is_current(self) -> bool:
        """Return whether the table still has the same object, and it is not being deleted."""
        document = self.book.table.get(self.key)
        if document is None:
            return False
        metadata = document["metadata"]
        return metadata.get("uid", "") == self.metadata.uid and not metadata.get("deletionTimestamp")


@dataclass(slots=True)
class JobBook:
    """Opens objects as jobs.

    Attributes:
        finalizer: Finalizer for objects that may have created something to clean up.
    """

    table: ObjectTable
    cluster: Cluster
    clock: Clock
    finalizer: str
    statuses: Statuses = field(init=False)

    def __post_init__(self) -> None:
        self.statuses = Statuses(self.table, self.cluster, self.clock)

    def open(self, key: Key) -> Job | None:
        """Open the object of a key as a job, or return None if the table does not contain it."""
        document = self.table.get(key)
        if document is None:
            return None
        metadata = Metadata.model_validate(document["metadata"])
        return Job(key, metadata, document, dict(document.get("status") or {}), self)


@dataclass(slots=True)
class RunSchedule:
    """Runs a task for each AgentMemory when it is due, a few at a time, and keeps the result of the last run.

    Attributes:
        is_rebuilding: Returns whether the collection of an object is being rebuilt; no run starts in the meantime.
        request: Requests a pass over an object, which writes the result into its status.
        status_field: Status field with the result of the last run. Its `time` is the start of that run.
        due_ms: Returns when the next run is due, in Unix milliseconds, from the last result; None is never.
        run: Executes a run, and calls `record_result` with its result.
        share: Maximum number of concurrent runs for the objects of one namespace.
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
        self.queue = WorkQueue(self.run_if_due, tenant_lane_of=self.table.tenant_lane_of, share=self.share)

    def last_result(self, key: Key, memory: AgentMemory) -> Json:
        """Return the last result: the newer of the one in the status and the one in memory; empty if there is none.

        A result in memory counts only for an object of the same uid.
        """
        in_status: Json = memory.status.get(self.status_field) or {}
        uid, recorded = self._results.get(key, ("", {}))
        return recorded if uid == memory.metadata.uid and recorded["time"] >= in_status.get("time", "") else in_status

    def record_result(self, key: Key, memory: AgentMemory, result: Json) -> None:
        """Keep the result of a run in memory until a pass writes it into the status. See `last_result`."""
        self._results[key] = (memory.metadata.uid, result)

    def plan(self, key: Key, due_ms: int) -> None:
        """Schedule the check of an object for `due_ms`, Unix milliseconds; immediately if that time has passed."""
        self.queue.request(key, after_s=max(0, due_ms - self.clock.now_ms()) / 1000)

    async def run_if_due(self, key: Key) -> float | None:
        """Execute the run of an object if it is due; return the seconds until the next check.

        None means that no check is scheduled. After a run, the requested pass schedules the next one. Nothing is run or
        scheduled for an object that is absent, deleted, suspended or invalid, or owns no slug or has no collection.
        While the collection is being rebuilt, a due run is not started, and the next check is after 30 s.

        Raises:
            TransientError: If the run failed and is to be retried.
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
            return REBUILD_RECHECK_S
        await self.run(key, memory, last)
        self.request(key)
        return None

    @contextmanager
    def block_rebuild(self, key: Key) -> Iterator[None]:
        """Block a rebuild from moving the alias of an object while its memories are changed.

        Raises:
            StoreUnavailable: If the collection is being rebuilt. Nothing was changed.
        """
        if self.is_rebuilding(key):
            raise StoreUnavailable("the collection is being rebuilt: waiting for it")
        # Add the key without a check: at most one worker processes an object, so the set cannot contain it.
        self._changing.add(key)
        try:
            yield
        finally:
            self._changing.remove(key)

    def is_changing(self, key: Key) -> bool:
        """Return whether a run is changing memories of an object now."""
        return key in self._changing
