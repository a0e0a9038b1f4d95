"""Passes over MemorySnapshots: made once, step by step; each step stands in the status before it is begun.

`domain/snapshotting.py` has the steps. An operator that is killed anywhere is followed by one that goes on: a file that
nobody saw finished is found again among the server's, and failure or deletion removes whatever was made.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from agentmemory_operator.domain.conditions import Reason, State
from agentmemory_operator.domain.manifests import parse_snapshot
from agentmemory_operator.domain.resources import CONFIRM_DELETE, VERIFY_REQUESTED_AT
from agentmemory_operator.domain.snapshotting import (
    DEFAULT_VERIFY,
    FINALIZER,
    QDRANT,
    S3,
    VERIFIED,
    Step,
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
from agentmemory_operator.errors import (
    AgentMemoryError,
    BytesDiffer,
    LeadershipLost,
    NotOwned,
    SpecInvalid,
    StorageRejected,
    StorageUnavailable,
    StoreRejected,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.ports import Clock, Cluster, Event
from agentmemory_operator.services.copies import Copies
from agentmemory_operator.services.jobs import Job, JobBook
from agentmemory_operator.services.links import REFUSED_KEY
from agentmemory_operator.services.objects import MEMORY_SNAPSHOT, Key, ObjectTable
from agentmemory_operator.services.retirement import keep_in_reach
from agentmemory_operator.services.scratch import Scratch
from agentmemory_operator.services.servers import Server, Servers
from agentmemory_operator.services.snapshot_import import SnapshotImport
from agentmemory_operator.services.snapshot_making import Prover, SnapshotMaking, recorded_connection, tell
from agentmemory_operator.services.snapshot_metering import SnapshotMeter
from agentmemory_operator.services.snapshot_removal import SnapshotRemoval

log = logging.getLogger(__name__)

# What the author of the objects may be about to apply.
_AWAITED = (
    Reason.AGENT_MEMORY_NOT_FOUND,
    Reason.NO_COLLECTION,
    Reason.CONNECTION_NOT_FOUND,
    Reason.CONNECTION_NOT_ALLOWED,
    Reason.SECRET_NOT_FOUND,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPeriods:
    """Seconds.

    Attributes:
        deadline_s: how long a snapshot may take, its verification included.
        wait_s: for what its author may still apply: the AgentMemory, a Secret.
        look_s: until the next look for that.
        settle_s: from a snapshot's end until its finalizer goes: what was written has come back by then.
        rest_s: until a finished one is looked at again.
        release_s: how long a server that is away may hold up a deletion, or the end of a failed one.
    """

    deadline_s: float = 4 * 3600.0
    wait_s: float = 600.0
    look_s: float = 5.0
    settle_s: float = 1.0
    rest_s: float = 3600.0
    release_s: float = 300.0


@dataclass(slots=True)
class SnapshotPasses:
    """Makes, proves, looks after and removes snapshots.

    Attributes:
        request: asks for a pass over another object.
        prover: proves.
        copies: takes bytes off the servers.
        scratch: where existing ones are looked at.
    """

    table: ObjectTable
    servers: Servers
    cluster: Cluster
    clock: Clock
    request: Callable[[Key], None]
    prover: Prover
    copies: Copies
    scratch: Scratch
    periods: SnapshotPeriods = field(default_factory=SnapshotPeriods)
    meter: SnapshotMeter = field(default_factory=SnapshotMeter)
    making: SnapshotMaking = field(init=False)
    removal: SnapshotRemoval = field(init=False)
    _book: JobBook = field(init=False)

    def __post_init__(self) -> None:
        imports = SnapshotImport(self.cluster, self.copies, self.scratch)
        self.making = SnapshotMaking(self.table, self.servers, self.cluster, self.prover, self.copies, imports)
        self.removal = SnapshotRemoval(self.servers, self.copies)
        self._book = JobBook(self.table, self.cluster, self.clock)

    async def run(self, key: Key) -> float | None:
        """Do one pass; return after how many seconds the next one is due, None when the object is gone.

        Raises:
            TransientError: it is to be tried again; the status says why.
        """
        document = self.table.get(key)
        if document is None:
            self._book.forget(key)
            return None
        job = self._book.open(key, document)
        if job.metadata.deletion_timestamp:
            await self._release(job)
            return None
        if is_ended(job.status):
            return await self._look_after(job)
        return await self._bring_on(job)

    async def _bring_on(self, job: Job) -> float:
        """Go on with one that has not ended; the deletion of its object waits for the step under way."""
        try:
            if step_of(job.status) is Step.CLEAN:
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
        await job.set_finalizer(FINALIZER, is_wanted=True)
        if "startTime" not in job.status:
            await tell(job, job.status | {"startTime": job.now})
        try:
            proof = await self.making.make(job, snapshot)
        except StoreUnavailable as exc:
            if step_of(job.status) is not Step.VERIFY or job.age_s <= self.periods.deadline_s:
                raise
            proof = State(VERIFIED, None, Reason.DEADLINE_EXCEEDED, f"it could not be verified in time: {exc}")
        if proof.status is False:
            await self._fail(job, proof.reason, proof.message, proof=proof)
        else:
            await self._end(job, proof)

    async def _end(self, job: Job, proof: State) -> None:
        await job.write(made(job.status, proof, generation=job.metadata.generation, now=job.now))
        size = int(job.status.get("sizeBytes") or 0)
        self.meter.succeeded(job.age_s, size)
        event = Event("Normal", "SnapshotMade", f"{job.status.get('name')} of {size} bytes; {proof.message}")
        await self._announce(job, event)

    async def _meet(self, job: Job, exc: AgentMemoryError) -> float:
        """Write down what went wrong: it is tried again, waited for, or has failed for good.

        Raises:
            TransientError: `exc`, if it is to be tried again.
        """
        reason, is_overdue = reason_of(exc), job.age_s > self.periods.deadline_s
        if isinstance(exc, TransientError):
            if step_of(job.status) is Step.CLEAN:
                raise exc
            if not is_overdue:
                await tell(job, job.status, detail=str(exc), reason=reason)
                raise exc
            reason = Reason.DEADLINE_EXCEEDED
        elif is_awaited(exc) and job.age_s < self.periods.wait_s:
            await tell(job, job.status, detail=str(exc), reason=reason)
            return self.periods.look_s
        await self._fail(job, reason, str(exc))
        return self.periods.settle_s

    async def _fail(self, job: Job, reason: str, message: str, *, proof: State | None = None) -> None:
        """Write down why, remove what was made, and end."""
        await tell(job, job.status | {"step": Step.CLEAN}, detail=message, reason=reason, proof=proof)
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
            message = f"{message}; what was made of it is left: {exc}"
        await job.write(failed(status, reason, message, generation=job.metadata.generation, now=job.now))
        self.meter.failed(job.age_s)
        await self._announce(job, Event("Warning", "SnapshotNotMade", f"{reason}: {message}"))

    async def _announce(self, job: Job, event: Event) -> None:
        await self.cluster.post_event(MEMORY_SNAPSHOT, job.metadata, event)
        memory = self.table.memory_of(job.key)
        if memory is not None:
            self.request(memory)

    async def _remove(self, job: Job) -> None:
        """Remove what a snapshot has made, on record or not."""
        namespace, physical = job.metadata.namespace, job.status.get("physical")
        await self.removal.remove(job.status, namespace=namespace)
        if physical and job.status.get("attempts") and "name" not in job.status:
            left = lambda files: self.making.left_by(job, files)  # noqa: E731 - it reads as an argument
            await self.removal.remove_files(job.status, physical, left, namespace=namespace)

    async def _look_after(self, job: Job) -> float:
        """See that a finished one is deleted as it is to be, and that its file stays in reach."""
        await self._prove_again(job)
        await job.set_finalizer(FINALIZER, is_wanted=takes_bytes(job) and has_succeeded(job.status))
        place, connection = location_of(job.status, QDRANT), recorded_connection(job.status)
        if not has_succeeded(job.status) or place is None or connection is None:
            return self.periods.rest_s

        async def list_files(server: Server) -> set[str]:
            return await keep_in_reach(server.collections, server.snapshots, place["physical"])

        try:
            files = await self.servers.use(connection, list_files, namespace=job.metadata.namespace)
        except (SpecInvalid, StoreRejected, StoreUnavailable) as exc:
            log.debug("whether the file of %s is in reach is found out later: %s", job.key, exc)
            return self.periods.rest_s
        if place["name"] not in files:
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

        async def prove(server: Server) -> State:
            return await self.prover.prove(server, job.metadata, job.status | {"verify": how})

        proof = await self.servers.use(connection, prove, namespace=job.metadata.namespace)
        generation = job.metadata.generation
        await job.write(proven_again(job.status, proof, request=request, generation=generation, now=job.now))
        kind = "Warning" if proof.status is False else "Normal"
        await self._announce(job, Event(kind, "SnapshotVerified", f"{proof.reason}: {proof.message}"))

    async def _miss(self, job: Job) -> None:
        """Take from the record a file that the server has no more."""
        if location_of(job.status, S3):
            await job.write(without_location(job.status, QDRANT))
            return
        await job.write(lost(job.status, generation=job.metadata.generation, now=job.now))
        event = Event("Warning", "BytesLost", "Qdrant has the file no more, and there is no copy off the server")
        await self._announce(job, event)

    async def _release(self, job: Job) -> None:
        """Remove the bytes where that is asked for, or where nothing whole was made; then let the object go.

        Raises:
            TransientError: they cannot be removed yet, and the deletion can wait.
        """
        if FINALIZER not in job.metadata.finalizers:
            return
        since = datetime.fromisoformat(job.metadata.deletion_timestamp or job.now)
        is_overdue = self.clock.now_ms() / 1000 > since.timestamp() + self.periods.release_s
        try:
            if takes_bytes(job) or not is_ended(job.status):
                await self._remove(job)
        except LeadershipLost:
            raise
        except AgentMemoryError as exc:
            if isinstance(exc, TransientError) and not is_overdue:
                raise
            event = Event("Warning", "SnapshotKept", f"the object goes, its bytes stay: {exc}")
            await self.cluster.post_event(MEMORY_SNAPSHOT, job.metadata, event)
        await job.set_finalizer(FINALIZER, is_wanted=False)


def takes_bytes(job: Job) -> bool:
    """Tell whether the bytes go with the object: its policy says so, or somebody confirmed it since by annotation."""
    is_confirmed = job.metadata.annotations.get(CONFIRM_DELETE) == job.metadata.name
    # In a folder of manifests nobody has checked what it is.
    spec = job.document.get("spec")
    return is_confirmed or (isinstance(spec, dict) and spec.get("deletionPolicy") == "Delete")


def is_awaited(exc: AgentMemoryError) -> bool:
    """Tell whether somebody may set it right in a moment: applies what is missing, corrects a key, makes a bucket."""
    match exc:
        case SpecInvalid():
            return exc.reason in _AWAITED
        case StorageRejected():
            return True
        case StoreRejected():
            return exc.status in REFUSED_KEY
        case _:
            return False


def reason_of(exc: AgentMemoryError) -> str:
    """Return the condition's reason."""
    match exc:
        case SpecInvalid() | NotOwned():
            return exc.reason
        case StorageRejected():
            return Reason.STORAGE_REJECTED
        case StoreRejected():
            return Reason.QDRANT_REJECTED
        case BytesDiffer():
            return Reason.CHECKSUM_DIFFERS
        case StorageUnavailable():
            return Reason.STORAGE_UNAVAILABLE
        case _:
            return Reason.QDRANT_UNAVAILABLE
