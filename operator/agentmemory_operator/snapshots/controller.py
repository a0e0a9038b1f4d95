"""Passes over MemorySnapshots: made once, step by step; each step stands in the status before it is begun.

`snapshots/rules/steps.py` has the steps. An operator that is killed anywhere is followed by one that goes on: a file
that nobody saw finished is found again among the server's, and failure or deletion removes whatever was made.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector

from agentmemory_operator.collections.retire import keep_in_reach
from agentmemory_operator.collections.scratch import Scratch
from agentmemory_operator.collections.takeover import TakeoverRequests
from agentmemory_operator.connections.link import REFUSED_KEY
from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.error_reasons import reason_of
from agentmemory_operator.errors import (
    AgentMemoryError,
    LeadershipLost,
    NotOwned,
    SpecInvalid,
    StorageRejected,
    StoreRejected,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.runtime.cache import Key, ObjectTable
from agentmemory_operator.runtime.jobs import Job, JobBook
from agentmemory_operator.snapshots.adopt import SnapshotImport
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.make import Prover, SnapshotMaking, recorded_connection, tell
from agentmemory_operator.snapshots.remove import SnapshotRemoval
from agentmemory_operator.snapshots.rules.steps import (
    DEFAULT_VERIFY,
    FINALIZER,
    QDRANT,
    S3,
    VERIFIED,
    SnapshotStep,
    failed,
    failure_of,
    has_succeeded,
    is_ended,
    location_of,
    lost,
    made,
    proven_again,
    step_of,
    without_location,
)
from agentmemory_operator.spec.kinds.agent_memory import CONFIRM_DELETE, VERIFY_REQUESTED_AT
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason
from agentmemory_operator.spec.kinds.parse import parse_snapshot

log = logging.getLogger(__name__)

SUCCEEDED, FAILED = "succeeded", "failed"
# From a small collection to one of hundreds of gigabytes.
SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)

# What the author of the objects may be about to apply.
_AWAITED = (
    Reason.AGENT_MEMORY_NOT_FOUND,
    Reason.NO_COLLECTION,
    Reason.CONNECTION_NOT_FOUND,
    Reason.CONNECTION_NOT_ALLOWED,
    Reason.SECRET_NOT_FOUND,
    Reason.SECRET_NOT_USABLE,
)


class SnapshotMeter:
    """Counts snapshots by how they ended."""

    def __init__(self) -> None:
        self._runs = Counter("agentmemory_snapshots_total", "Snapshots by result.", ("outcome",), registry=None)
        self._bytes = Counter("agentmemory_snapshot_bytes_total", "Bytes of created snapshots.", registry=None)
        self._durations = Histogram(
            "agentmemory_snapshot_duration_seconds",
            "Duration of snapshots in seconds.",
            ("outcome",),
            buckets=SECONDS,
            registry=None,
        )

    @property
    def metrics(self) -> list[Collector]:
        """Everything that is counted."""
        return [self._runs, self._bytes, self._durations]

    def succeeded(self, seconds: float, size: int) -> None:
        """Count one that was made."""
        self._runs.labels(SUCCEEDED).inc()
        self._bytes.inc(size)
        self._durations.labels(SUCCEEDED).observe(seconds)

    def failed(self, seconds: float) -> None:
        """Count one that was not."""
        self._runs.labels(FAILED).inc()
        self._durations.labels(FAILED).observe(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPeriods:
    """Seconds.

    Attributes:
        deadline_s: how long a snapshot may take, its verification included.
        wait_s: for what its author may still apply: the AgentMemory, a Secret.
        look_s: until the next look for that.
        settle_s: from a snapshot's end until its finalizer goes: what was written has come back by then.
        rest_s: until a finished one is looked at again.
        again_s: from a look that does not find its file until the one that is believed.
        release_s: how long a server that is away may hold up a deletion, or the end of a failed one.
    """

    deadline_s: float = 4 * 3600.0
    wait_s: float = 600.0
    look_s: float = 5.0
    settle_s: float = 1.0
    rest_s: float = 3600.0
    again_s: float = 30.0
    release_s: float = 300.0


@dataclass(slots=True)
class SnapshotPasses:
    """Makes, proves, looks after and removes snapshots.

    Attributes:
        request: asks for a pass over another object.
        prover: proves.
        copies: takes bytes off the servers.
        scratch: where existing ones are looked at.
        asking: told of snapshots that are refused another's memories.
    """

    table: ObjectTable
    servers: Servers
    cluster: Cluster
    clock: Clock
    request: Callable[[Key], None]
    prover: Prover
    copies: Copies
    scratch: Scratch
    asking: TakeoverRequests
    periods: SnapshotPeriods = field(default_factory=SnapshotPeriods)
    meter: SnapshotMeter = field(default_factory=SnapshotMeter)
    making: SnapshotMaking = field(init=False)
    removal: SnapshotRemoval = field(init=False)
    _book: JobBook = field(init=False)
    # When a file was first looked for in vain, Unix milliseconds: one look is no proof that it is gone.
    _missed_ms: dict[Key, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        imports = SnapshotImport(self.table, self.cluster, self.copies, self.scratch)
        self.making = SnapshotMaking(self.table, self.servers, self.cluster, self.prover, self.copies, imports)
        self.removal = SnapshotRemoval(self.servers, self.copies)
        self._book = JobBook(self.table, self.cluster, self.clock, FINALIZER)

    async def run(self, key: Key) -> float | None:
        """Do one pass; return after how many seconds the next one is due, None when the object is gone.

        Raises:
            TransientError: it is to be tried again; the status says why.
        """
        job = self._book.open(key)
        if job is None:
            self._missed_ms.pop(key, None)
            return None
        if job.metadata.deletion_timestamp:
            await self._release(job)
            return None
        if is_ended(job.status):
            return await self._look_after(job)
        return await self._bring_on(job)

    async def _bring_on(self, job: Job) -> float:
        """Go on with one that has not ended; the deletion of its object waits for the step under way."""
        try:
            if step_of(job.status) is SnapshotStep.CLEAN:
                await self._clean(job)
            else:
                await self._make(job)
        except LeadershipLost:
            raise
        except AgentMemoryError as exc:
            return await self._meet(job, exc)
        return self.periods.settle_s

    async def _make(self, job: Job) -> None:
        snapshot = parse_snapshot(job.document)
        await job.hold()
        if "startTime" not in job.status:
            await tell(job, job.status | {"startTime": job.now})
        try:
            proof = await self.making.make(job, snapshot)
        except StoreUnavailable as exc:
            if step_of(job.status) is not SnapshotStep.VERIFY or job.age_s <= self.periods.deadline_s:
                raise
            proof = ConditionState(VERIFIED, None, Reason.DEADLINE_EXCEEDED, f"it could not be verified in time: {exc}")
        if proof.status is False:
            await self._fail(job, proof.reason, proof.message, proof=proof)
        else:
            await self._end(job, proof)

    async def _end(self, job: Job, proof: ConditionState) -> None:
        await job.write(made(job.status, proof, generation=job.metadata.generation, now=job.now))
        size = int(job.status.get("sizeBytes") or 0)
        self.meter.succeeded(job.age_s, size)
        message = f"{job.status.get('name')} of {size} bytes; {proof.message}"
        await self._announce(job, "Normal", "SnapshotMade", message)

    async def _meet(self, job: Job, exc: AgentMemoryError) -> float:
        """Write down what went wrong: it is tried again, waited for, or has failed for good.

        Raises:
            TransientError: `exc`, if it is to be tried again.
        """
        (reason, _), is_overdue = reason_of(exc), job.age_s > self.periods.deadline_s
        if isinstance(exc, TransientError):
            if step_of(job.status) is SnapshotStep.CLEAN:
                raise exc
            if not is_overdue:
                await tell(job, job.status, detail=str(exc), reason=reason)
                raise exc
            reason = Reason.DEADLINE_EXCEEDED
        elif is_awaited(exc) and job.age_s < self.periods.wait_s:
            await tell(job, job.status, detail=str(exc), reason=reason)
            return self.periods.look_s
        if isinstance(exc, NotOwned) and (connection := self.asking.note_job(job.key, exc, now=job.now)):
            self.request(connection)
        await self._fail(job, reason, str(exc))
        return self.periods.settle_s

    async def _fail(self, job: Job, reason: str, message: str, *, proof: ConditionState | None = None) -> None:
        """Write down why, remove what was made, and end."""
        await tell(job, job.status | {"step": SnapshotStep.CLEAN}, detail=message, reason=reason, proof=proof)
        await self._clean(job)

    async def _clean(self, job: Job) -> None:
        """Remove what a failed one has made, and end; what cannot be removed in time is told."""
        reason, message = failure_of(job.status)
        status = job.status
        try:
            await self._remove(job)
            status = {key: value for key, value in status.items() if key != "locations"}
        except LeadershipLost:
            raise
        except AgentMemoryError as exc:
            limit_s = self.periods.deadline_s + self.periods.release_s
            if isinstance(exc, TransientError) and job.age_s <= limit_s:
                raise
            message = f"{message}; its partial result stays: {exc}"
        await job.write(failed(status, reason, message, generation=job.metadata.generation, now=job.now))
        self.meter.failed(job.age_s)
        await self._announce(job, "Warning", "SnapshotNotMade", f"{reason}: {message}")

    async def _announce(self, job: Job, kind: str, reason: str, message: str) -> None:
        await job.post_event(kind, reason, message)
        memory = self.table.memory_of(job.key)
        if memory is not None:
            self.request(memory)

    async def _remove(self, job: Job) -> None:
        """Remove what a snapshot has made, on record or not."""
        namespace, physical = job.metadata.namespace, job.status.get("physical")
        await self.removal.remove(job.status, snapshot=job.document)
        if physical and job.status.get("attempts") and "name" not in job.status:
            left = lambda files: self.making.left_by(job, files)  # noqa: E731 - it reads as an argument
            await self.removal.remove_files(job.status, physical, left, namespace=namespace)

    async def _look_after(self, job: Job) -> float:
        """See that a finished one is deleted as it is to be, and that its file stays in reach."""
        await self._prove_again(job)
        await job.hold(is_wanted=takes_bytes(job) and has_succeeded(job.status))
        place, connection = location_of(job.status, QDRANT), recorded_connection(job.status)
        if not has_succeeded(job.status) or place is None or connection is None:
            return self.periods.rest_s

        async def list_files(server: Server) -> set[str]:
            return await keep_in_reach(server.collections, server.snapshots, place["physical"])

        try:
            files = await self.servers.use(connection, list_files, namespace=job.metadata.namespace)
        except (SpecInvalid, NotOwned, StoreRejected, StoreUnavailable) as exc:
            log.debug("checking the file of %s is postponed: %s", job.key, exc)
            return self.periods.rest_s
        if place["name"] in files:
            self._missed_ms.pop(job.key, None)
            return self.periods.rest_s
        now_ms = self.clock.now_ms()
        left_s = self.periods.again_s - (now_ms - self._missed_ms.setdefault(job.key, now_ms)) / 1000
        if left_s > 0:
            return left_s
        self._missed_ms.pop(job.key)
        await self._miss(job)
        return self.periods.rest_s

    async def _prove_again(self, job: Job) -> None:
        """Verify one that was made, where somebody asks for it; whatever comes of it, its bytes stay.

        Raises:
            TransientError: it is to be tried again.
        """
        request, connection = job.metadata.annotations.get(VERIFY_REQUESTED_AT), recorded_connection(job.status)
        if (
            request is None
            or request == job.status.get("verifyRequest")
            or not has_succeeded(job.status)
            or connection is None
        ):
            return
        # Asked for by hand, None is no answer.
        how = job.status.get("verify") if job.status.get("verify") != "None" else DEFAULT_VERIFY

        async def prove(server: Server) -> ConditionState:
            return await self.prover.prove(server, job.metadata, job.status | {"verify": how})

        try:
            proof = await self.servers.use(connection, prove, namespace=job.metadata.namespace)
        except (SpecInvalid, NotOwned) as exc:
            proof = ConditionState(VERIFIED, None, exc.reason, str(exc))
        generation = job.metadata.generation
        await job.write(proven_again(job.status, proof, request=request, generation=generation, now=job.now))
        kind = "Warning" if proof.status is False else "Normal"
        await self._announce(job, kind, "SnapshotVerified", f"{proof.reason}: {proof.message}")

    async def _miss(self, job: Job) -> None:
        """Take from the record a file that the server has no more."""
        if location_of(job.status, S3):
            await job.write(without_location(job.status, QDRANT))
            return
        await job.write(lost(job.status, generation=job.metadata.generation, now=job.now))
        message = "the file no longer exists in Qdrant, and there is no copy off the server"
        await self._announce(job, "Warning", "BytesLost", message)

    async def _release(self, job: Job) -> None:
        """Remove the bytes where that is asked for, or where nothing whole was made; then let the object go.

        Raises:
            TransientError: they cannot be removed yet, and the deletion can wait.
        """

        async def remove() -> None:
            if takes_bytes(job) or not is_ended(job.status):
                await self._remove(job)

        def kept(exc: AgentMemoryError) -> tuple[str, str]:
            return "SnapshotKept", f"the object is deleted, its bytes stay: {exc}"

        await job.release(remove, patience_s=self.periods.release_s, kept=kept)


def takes_bytes(job: Job) -> bool:
    """Whether the bytes go with the object: its policy says so, or somebody confirmed it since by annotation."""
    is_confirmed = job.metadata.annotations.get(CONFIRM_DELETE) == job.metadata.name
    # In a folder of manifests nobody has checked what it is.
    spec = job.document.get("spec")
    return is_confirmed or (isinstance(spec, dict) and spec.get("deletionPolicy") == "Delete")


def is_awaited(exc: AgentMemoryError) -> bool:
    """Whether somebody may set it right in a moment: applies what is missing, corrects a key, makes a bucket."""
    match exc:
        case SpecInvalid():
            return exc.reason in _AWAITED
        case StorageRejected():
            return True
        case StoreRejected():
            return exc.status in REFUSED_KEY
        case _:
            return False
