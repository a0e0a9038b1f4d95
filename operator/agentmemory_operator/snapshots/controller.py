"""Passes over MemorySnapshots. A snapshot is created once, in steps, each recorded in the status before it starts.

`snapshots/rules/steps.py` lists the steps. After a crash at any point the next operator resumes at the recorded step.
If the response to a create was lost, the file is found by its creation time among the server's files. Partial data is
removed after a failure, and when the object of an unfinished snapshot is deleted.

For completed snapshots, passes check that the file still exists, and verify the snapshot again on request.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from agentmemory_operator.collections.replaced_collection import keep_snapshots_available
from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.collections.takeover_requests import TakeoverRequests
from agentmemory_operator.connections.link import REFUSED_KEY_STATUSES
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
from agentmemory_operator.runtime.jobs import Job, JobBook
from agentmemory_operator.runtime.metrics import MetricSet
from agentmemory_operator.runtime.object_table import Key, ObjectTable
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.rules.steps import (
    DEFAULT_VERIFY,
    FINALIZER,
    QDRANT,
    S3,
    VERIFIED,
    SnapshotStep,
    current_step,
    failed_status,
    has_succeeded,
    is_ended,
    location_of,
    lost_status,
    read_failure,
    reverified_status,
    succeeded_status,
    without_location,
)
from agentmemory_operator.snapshots.snapshot_creation import (
    SnapshotCreator,
    Verifier,
    recorded_connection,
    write_progress,
)
from agentmemory_operator.snapshots.snapshot_file_removal import SnapshotRemoval
from agentmemory_operator.snapshots.snapshot_import import SnapshotImport
from agentmemory_operator.spec.kinds.agent_memory import CONFIRM_DELETE, VERIFY_REQUESTED_AT
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason
from agentmemory_operator.spec.kinds.parse import parse_snapshot

log = logging.getLogger(__name__)

SUCCEEDED, FAILED = "succeeded", "failed"
# Histogram buckets in seconds, from small collections to hundreds of gigabytes.
SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)

# Reasons of errors after which a snapshot waits up to `wait_s`, because the user may still be applying objects.
_AWAITED = (
    Reason.AGENT_MEMORY_NOT_FOUND,
    Reason.NO_COLLECTION,
    Reason.CONNECTION_NOT_FOUND,
    Reason.CONNECTION_NOT_ALLOWED,
    Reason.SECRET_NOT_FOUND,
    Reason.SECRET_NOT_USABLE,
)


class SnapshotMeter(MetricSet):
    """Metrics of snapshots: number and duration by result, and size."""

    def __init__(self) -> None:
        super().__init__()
        self._runs = self.add_counter("agentmemory_snapshots_total", "Snapshots by result.", "outcome")
        self._bytes = self.add_counter("agentmemory_snapshot_bytes_total", "Bytes of created snapshots.")
        self._durations = self.add_histogram(
            "agentmemory_snapshot_duration_seconds", "Duration of snapshots in seconds.", "outcome", buckets=SECONDS
        )

    def succeeded(self, seconds: float, size: int) -> None:
        """Count a snapshot that succeeded `seconds` after its start, and its `size` in bytes."""
        self._runs.labels(SUCCEEDED).inc()
        self._bytes.inc(size)
        self._durations.labels(SUCCEEDED).observe(seconds)

    def failed(self, seconds: float) -> None:
        """Count a snapshot that failed `seconds` after its start."""
        self._runs.labels(FAILED).inc()
        self._durations.labels(FAILED).observe(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPeriods:
    """Timeouts and pauses of snapshot passes, in seconds.

    Attributes:
        deadline_s: Age from which a failed attempt is not repeated: the snapshot fails. If it cannot be verified now in
            step Verify, it ends unverified instead.
        wait_s: Age up to which a snapshot waits for objects that the user may still apply: the AgentMemory, a Secret.
        wait_poll_s: Pause between checks for such objects.
        settle_s: Pause before the next pass after a snapshot's end, so the watch can deliver the written status.
        check_period_s: Pause between passes over a completed snapshot.
        recheck_s: Minimum time between two checks without the file, after which the file counts as deleted.
        release_s: Maximum time that an unavailable server delays a deletion or the cleanup of a failed snapshot.
    """

    deadline_s: float = 4 * 3600.0
    wait_s: float = 600.0
    wait_poll_s: float = 5.0
    settle_s: float = 1.0
    check_period_s: float = 3600.0
    recheck_s: float = 30.0
    release_s: float = 300.0


@dataclass(slots=True)
class SnapshotPasses:
    """Creates, verifies, checks and removes snapshots.

    Attributes:
        request: Requests a pass over another object.
        prover: Verifies snapshots.
        copies: Reads and writes copies of snapshots in object storage.
        scratch: Scratch collections in which imports are examined.
        takeover_requests: Records that a snapshot was refused because another object owns the memories.
    """

    table: ObjectTable
    servers: Servers
    cluster: Cluster
    clock: Clock
    request: Callable[[Key], None]
    prover: Verifier
    copies: Copies
    scratch: ScratchCollections
    takeover_requests: TakeoverRequests
    periods: SnapshotPeriods = field(default_factory=SnapshotPeriods)
    meter: SnapshotMeter = field(default_factory=SnapshotMeter)
    creator: SnapshotCreator = field(init=False)
    removal: SnapshotRemoval = field(init=False)
    _book: JobBook = field(init=False)
    # Time of the first check that did not find the file, Unix milliseconds. One such check does not prove a deletion.
    _missed_ms: dict[Key, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        imports = SnapshotImport(self.table, self.cluster, self.copies, self.scratch)
        self.creator = SnapshotCreator(self.table, self.servers, self.cluster, self.prover, self.copies, imports)
        self.removal = SnapshotRemoval(self.servers, self.copies)
        self._book = JobBook(self.table, self.cluster, self.clock, FINALIZER)

    async def run(self, key: Key) -> float | None:
        """Run one pass over a MemorySnapshot; return the seconds until the next one, or None if the object is deleted.

        Raises:
            TransientError: If the pass must be repeated. Until the snapshot is created, the status gives the reason.
        """
        job = self._book.open(key)
        if job is None:
            self._missed_ms.pop(key, None)
            return None
        if job.metadata.deletion_timestamp:
            await self._release(job)
            return None
        if is_ended(job.status):
            return await self._check_completed(job)
        return await self._advance(job)

    async def _advance(self, job: Job) -> float:
        """Continue an unfinished snapshot; return the seconds until the next pass."""
        try:
            if current_step(job.status) is SnapshotStep.CLEAN:
                await self._clean(job)
            else:
                await self._create(job)
        except LeadershipLost:
            raise
        except AgentMemoryError as exc:
            return await self._handle_error(job, exc)
        return self.periods.settle_s

    async def _create(self, job: Job) -> None:
        snapshot = parse_snapshot(job.document)
        await job.set_finalizer()
        if "startTime" not in job.status:
            await write_progress(job, job.status | {"startTime": job.now})
        try:
            proof = await self.creator.create(job, snapshot)
        except LeadershipLost:
            raise
        except AgentMemoryError as exc:
            if current_step(job.status) is not SnapshotStep.VERIFY or not self._has_waited(job, exc):
                raise
            proof = ConditionState(VERIFIED, None, Reason.DEADLINE_EXCEEDED, f"it could not be verified in time: {exc}")
        if proof.status is False:
            await self._fail(job, proof.reason, proof.message, proof=proof)
        else:
            await self._complete(job, proof)

    def _has_waited(self, job: Job, exc: AgentMemoryError) -> bool:
        """Return whether an error of a verification, which shows nothing about the file, has lasted long enough."""
        if isinstance(exc, TransientError):
            return job.age_s > self.periods.deadline_s
        return may_be_fixed_soon(exc) and job.age_s >= self.periods.wait_s

    async def _complete(self, job: Job, proof: ConditionState) -> None:
        await job.write(succeeded_status(job.status, proof, generation=job.metadata.generation, now=job.now))
        size = int(job.status.get("sizeBytes") or 0)
        self.meter.succeeded(job.age_s, size)
        message = f"{job.status.get('name')} of {size} bytes; {proof.message}"
        await self._report(job, "Normal", "SnapshotMade", message)

    async def _handle_error(self, job: Job, exc: AgentMemoryError) -> float:
        """Retry a snapshot, let it wait, or fail it, depending on the error; return the seconds until the next pass.

        The status records the error, except in step Clean, and in step Verify past the deadline.

        Raises:
            TransientError: `exc`, if the step must be repeated.
        """
        (reason, _), is_overdue = reason_of(exc), job.age_s > self.periods.deadline_s
        if isinstance(exc, TransientError):
            # Keep a file that only waits for its verification: a later pass ends the snapshot, verified or not.
            if (step := current_step(job.status)) is SnapshotStep.CLEAN or (is_overdue and step is SnapshotStep.VERIFY):
                raise exc
            if not is_overdue:
                await write_progress(job, job.status, detail=str(exc), reason=reason)
                raise exc
            reason = Reason.DEADLINE_EXCEEDED
        elif may_be_fixed_soon(exc) and job.age_s < self.periods.wait_s:
            await write_progress(job, job.status, detail=str(exc), reason=reason)
            return self.periods.wait_poll_s
        if isinstance(exc, NotOwned) and (connection := self.takeover_requests.record_job(job.key, exc, now=job.now)):
            self.request(connection)
        await self._fail(job, reason, str(exc))
        return self.periods.settle_s

    async def _fail(self, job: Job, reason: str, message: str, *, proof: ConditionState | None = None) -> None:
        """Record the reason of the failure, remove partial data, and end the snapshot."""
        await write_progress(job, job.status | {"step": SnapshotStep.CLEAN}, detail=message, reason=reason, proof=proof)
        await self._clean(job)

    async def _clean(self, job: Job) -> None:
        """Remove the partial data of a failed snapshot, and record that it has permanently failed.

        Transient errors are retried until the snapshot is older than `deadline_s` + `release_s`. If data remains then,
        the message contains the error.
        """
        reason, message = read_failure(job.status)
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
        await job.write(failed_status(status, reason, message, generation=job.metadata.generation, now=job.now))
        self.meter.failed(job.age_s)
        await self._report(job, "Warning", "SnapshotNotMade", f"{reason}: {message}")

    async def _report(self, job: Job, kind: str, reason: str, message: str) -> None:
        await job.post_event(kind, reason, message)
        memory = self.table.find_memory(job.key)
        if memory is not None:
            self.request(memory)

    async def _remove(self, job: Job) -> None:
        """Remove the recorded files of a snapshot, and files that its attempts created but did not record."""
        namespace, physical = job.metadata.namespace, job.status.get("physical")
        await self.removal.remove(job.status, snapshot=job.document)
        if physical and job.status.get("attempts") and "name" not in job.status:
            choose_leftovers = lambda files: self.creator.leftover_files(job, files)  # noqa: E731 - it reads as an argument
            await self.removal.remove_files(job.status, physical, choose_leftovers, namespace=namespace)

    async def _check_completed(self, job: Job) -> float:
        """Verify a completed snapshot again on request, keep its finalizer up to date, and check that its file exists.

        The file counts as deleted if two checks, `recheck_s` apart, do not find it. A placeholder keeps the file of a
        deleted collection reachable. Returns the seconds until the next check.

        Raises:
            TransientError: If the verification or the write of the finalizer must be repeated.
        """
        await self._verify_again(job)
        await job.set_finalizer(is_present=is_removing_bytes(job) and has_succeeded(job.status))
        location, connection = location_of(job.status, QDRANT), recorded_connection(job.status)
        if not has_succeeded(job.status) or location is None or connection is None:
            return self.periods.check_period_s

        async def list_files(server: Server) -> set[str]:
            return await keep_snapshots_available(server.collections, server.snapshots, location["physical"])

        try:
            files = await self.servers.use(connection, list_files, namespace=job.metadata.namespace)
        except (SpecInvalid, NotOwned, StoreRejected, StoreUnavailable) as exc:
            log.debug("checking the file of %s is postponed: %s", job.key, exc)
            return self.periods.check_period_s
        if location["name"] in files:
            self._missed_ms.pop(job.key, None)
            return self.periods.check_period_s
        now_ms = self.clock.now_ms()
        remaining_s = self.periods.recheck_s - (now_ms - self._missed_ms.setdefault(job.key, now_ms)) / 1000
        if remaining_s > 0:
            return remaining_s
        self._missed_ms.pop(job.key)
        await self._record_loss(job)
        return self.periods.check_period_s

    async def _verify_again(self, job: Job) -> None:
        """Verify a snapshot if an annotation requests it and that request was not done yet. Its files are kept.

        Raises:
            TransientError: If the verification must be repeated.
        """
        request, connection = job.metadata.annotations.get(VERIFY_REQUESTED_AT), recorded_connection(job.status)
        if (
            request is None
            or request == job.status.get("verifyRequest")
            or not has_succeeded(job.status)
            or connection is None
        ):
            return
        # Replace `verify: None` by the default, because an explicit request overrides it.
        mode = job.status.get("verify") if job.status.get("verify") != "None" else DEFAULT_VERIFY

        async def prove(server: Server) -> ConditionState:
            return await self.prover.verify_status(server, job.metadata, job.status | {"verify": mode})

        try:
            proof = await self.servers.use(connection, prove, namespace=job.metadata.namespace)
        except (SpecInvalid, NotOwned, StoreRejected) as exc:
            proof = ConditionState(VERIFIED, None, reason_of(exc)[0], str(exc))
        generation = job.metadata.generation
        await job.write(reverified_status(job.status, proof, request=request, generation=generation, now=job.now))
        kind = "Warning" if proof.status is False else "Normal"
        await self._report(job, kind, "SnapshotVerified", f"{proof.reason}: {proof.message}")

    async def _record_loss(self, job: Job) -> None:
        """Record that the file no longer exists in Qdrant. Without a copy in S3, Verified becomes False."""
        if location_of(job.status, S3):
            await job.write(without_location(job.status, QDRANT))
            return
        await job.write(lost_status(job.status, generation=job.metadata.generation, now=job.now))
        message = "the file no longer exists in Qdrant, and there is no copy off the server"
        await self._report(job, "Warning", "BytesLost", message)

    async def _release(self, job: Job) -> None:
        """Remove a deleted snapshot's files if `is_removing_bytes` or it is unfinished; then remove the finalizer.

        Raises:
            TransientError: If the files cannot be removed yet. The deletion then waits at most `release_s`.
        """

        async def remove() -> None:
            if is_removing_bytes(job) or not is_ended(job.status):
                await self._remove(job)

        def describe_kept(exc: AgentMemoryError) -> tuple[str, str]:
            return "SnapshotKept", f"the object is deleted, its bytes stay: {exc}"

        await job.release(remove, max_delay_s=self.periods.release_s, describe_leftovers=describe_kept)


def is_removing_bytes(job: Job) -> bool:
    """Return whether deleting the object removes its files: its policy is Delete, or an annotation confirms it."""
    is_confirmed = job.metadata.annotations.get(CONFIRM_DELETE) == job.metadata.name
    # Check the types, because the document may come from a manifest file, which is not validated.
    spec = job.document.get("spec")
    return is_confirmed or (isinstance(spec, dict) and spec.get("deletionPolicy") == "Delete")


def may_be_fixed_soon(exc: AgentMemoryError) -> bool:
    """Return whether the user may soon fix an error: a missing object or Secret, an API key, or the object storage."""
    match exc:
        case SpecInvalid():
            return exc.reason in _AWAITED
        case StorageRejected():
            return True
        case StoreRejected():
            return exc.status in REFUSED_KEY_STATUSES
        case _:
            return False
