"""Passes over MemoryRestores.

A restore runs once, and its status reports the result, or the cause of a wait; after a crash the next pass continues.

After a failure the collection that a swap created is removed; a restore in place that has changed the collection
recovers its safety snapshot. A swap can be rolled back until the replaced collection is removed, a restore in place as
long as its safety snapshot exists.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from agentmemory_operator.collections.announce import AliasLocks, MoveAnnouncer
from agentmemory_operator.collections.rules.desired import newest_collection
from agentmemory_operator.collections.takeover_requests import TakeoverRequests, terms_for
from agentmemory_operator.connections.resolve import Server, Servers, connection_of
from agentmemory_operator.error_reasons import reason_of
from agentmemory_operator.errors import (
    AgentMemoryError,
    LeadershipLost,
    NotFound,
    NotOwned,
    RecoveryOutcomeUnknown,
    SpecInvalid,
    StoreRejected,
    TransientError,
)
from agentmemory_operator.lifecycle.erasure_restore import RestoredErasureReplay
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.restores.in_place import InPlaceRestore
from agentmemory_operator.restores.job import FINALIZER, RestoreJob, RestorePeriods, RestoreRun
from agentmemory_operator.restores.precedence import find_obstacle, find_target_fault, moving_rebuild_message
from agentmemory_operator.restores.previous_sweeper import ReplacedCollectionRemoval
from agentmemory_operator.restores.restore_preparation import RestoreStarter
from agentmemory_operator.restores.restore_removal import RestoreRemoval
from agentmemory_operator.restores.restore_targets import guard_live_collections, may_use_target, read_own_live
from agentmemory_operator.restores.rollback import Rollback
from agentmemory_operator.restores.rules.in_place_steps import InPlaceStep
from agentmemory_operator.restores.rules.status import (
    StatusStamp,
    current_step,
    failed_status,
    has_ended,
    has_succeeded,
    is_rolling_back,
    not_rolled_back_status,
    waiting_status,
)
from agentmemory_operator.restores.rules.swap_checks import SwapStep
from agentmemory_operator.restores.safety_snapshot import read_safety_name
from agentmemory_operator.restores.sources import RestoreSources, SourceWaiting
from agentmemory_operator.restores.swap import SwapRestore
from agentmemory_operator.runtime.jobs import Job, JobBook
from agentmemory_operator.runtime.object_table import MEMORY_RESTORE, Key, ObjectTable
from agentmemory_operator.spec.kinds.agent_memory import ROLLBACK, AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.status_snapshot import MAX_ABANDONED

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RestorePasses:
    """Runs restores, rolls them back, and removes the collections that they replaced.

    Attributes:
        request: Requests a pass over another object.
        locks: Locks of the aliases, shared by all modules that move aliases.
        sources: Finds the snapshot file of a restore.
        in_place: Runs restores into the live collection itself.
        erasures: Repeats erasures in restored collections.
        announcer: Announces moves of an alias.
        takeover_requests: Records that a restore was refused because another object owns the memories.
    """

    table: ObjectTable
    servers: Servers
    cluster: Cluster
    clock: Clock
    request: Callable[[Key], None]
    sources: RestoreSources
    locks: AliasLocks
    in_place: InPlaceRestore
    erasures: RestoredErasureReplay
    takeover_requests: TakeoverRequests
    announcer: MoveAnnouncer = field(default_factory=MoveAnnouncer)
    periods: RestorePeriods = field(default_factory=RestorePeriods)
    beginnings: RestoreStarter = field(init=False)
    removal: RestoreRemoval = field(init=False)
    _book: JobBook = field(init=False)
    _keeping: ReplacedCollectionRemoval = field(init=False)
    # Restores whose recoveries were all started by this process, and none of which ended without a response. For any
    # other restore, the server may still be executing a recovery.
    _supervised: set[Key] = field(init=False, default_factory=set)
    # Time since when the MemorySnapshot of a waiting restore has been missing, Unix milliseconds.
    _missing_ms: dict[Key, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.beginnings = RestoreStarter(self.table, self.servers, self.cluster, self.sources, self.locks)
        self.removal = RestoreRemoval(self.table, self.servers, self.in_place)
        self._book = JobBook(self.table, self.cluster, self.clock, FINALIZER)
        self._keeping = ReplacedCollectionRemoval(self.servers, self.periods)

    async def run(self, key: Key) -> float | None:
        """Run one pass over a MemoryRestore; return the seconds until the next pass, or None if none is scheduled.

        Raises:
            TransientError: If the pass must be repeated. Until the restore has ended, the status gives the reason.
        """
        opened = self._book.open(key)
        if opened is None:
            self._supervised.discard(key)
            self._missing_ms.pop(key, None)
            return None
        try:
            job = RestoreJob.parse(opened)
        except SpecInvalid as exc:
            await self._refuse(opened, exc)
            return None
        if job.metadata.deletion_timestamp:
            await self._release(job)
            return None
        if has_ended(job.status):
            return await self._check_ended(job)
        return await self._advance(job)

    async def _refuse(self, job: Job, exc: SpecInvalid) -> None:
        """Fail a restore whose spec is invalid, or remove its finalizer if it is being deleted. Nothing is cleaned up.

        In a cluster the spec is immutable and valid at creation, so such a restore has created nothing.
        """
        if job.metadata.deletion_timestamp:
            await job.remove_finalizer()
            return
        stamp = StatusStamp(job.metadata.generation, job.now)
        await job.write(failed_status(job.status, exc.reason, str(exc), stamp))

    async def _advance(self, job: RestoreJob) -> float:
        """Continue a restore until it ends, waits, or fails; return the seconds until the next pass.

        Raises:
            TransientError: If the restore is retried; the status gives the reason.
        """
        missing_ms = self._missing_ms.pop(job.key, job.now_ms)
        try:
            if obstacle := find_obstacle(job, self.table):
                await job.write(waiting_status(job.status, *obstacle, job.stamp))
                return self.periods.wait_poll_s
            memory = self._target(job)
            if fault := find_target_fault(job, self.table.get(job.target_key)):
                raise SpecInvalid(Reason.TARGET_GONE, fault)
            operation = self._build_operation(job, memory)
            await self.servers.use(connection_of(memory), operation, namespace=job.key.namespace)
        except LeadershipLost:
            raise
        except SourceWaiting as exc:
            return await self._await_source(job, exc, missing_ms)
        except TransientError as exc:
            await self._retry(job, exc)
        except AgentMemoryError as exc:
            await self._fail(job, exc)
        self._request_related(job)
        return self.periods.settle_s

    def _build_operation(self, job: RestoreJob, memory: AgentMemory) -> Callable[[Server], Awaitable[None]]:
        async def operation(server: Server) -> None:
            cluster_id = await self.cluster.cluster_id()
            desired = newest_collection(memory, cluster_id=cluster_id)
            live = await read_own_live(server, memory, desired, takeover=terms_for(memory, self.table))
            if job.physical is None and not await self.beginnings.start(job, server, memory, desired, live):
                return
            if self._may_still_recover(job):
                await self._abandon(job, server, memory)
            self._supervised.add(job.key)
            source = self.sources.find(job.restore.spec.source, memory)
            takeover = terms_for(memory, self.table, job.metadata.annotations)
            if desired.marker and not await may_use_target(job, server, desired.marker, takeover=takeover):
                await self.beginnings.choose_names(job, server, memory)
            task = RestoreRun(
                job=job,
                server=server if job.is_in_place else guard_live_collections(server),
                memory=memory,
                source=source,
                desired=desired,
                takeover=takeover,
                cluster_id=cluster_id,
                check_target=lambda: self._check_target(job),
            )
            restoring = self.in_place if job.is_in_place else SwapRestore(self.locks, self.erasures, self.announcer)
            await restoring.run(task)

        return operation

    def _may_still_recover(self, job: RestoreJob) -> bool:
        """Return whether the server may still execute a recovery that another process started or that got no response.

        The server completes it even without a client, and then replaces the collection of that name.
        """
        is_recovering = current_step(job.status, SwapStep) is SwapStep.RECOVER
        return is_recovering and not job.is_in_place and job.key not in self._supervised

    async def _abandon(self, job: RestoreJob, server: Server, memory: AgentMemory) -> None:
        """Choose a new collection name that no recovery in progress uses.

        If a recovery still creates a collection with the old name, that collection is removed.
        """
        abandoned = _abandoned_names(job)
        log.warning("%s: cannot tell whether %s is still being recovered: using another name", job.key, abandoned[-1])
        start = {name: value for name, value in job.status.items() if name == "startTime"}
        await self.beginnings.choose_names(job, server, memory, start | {"abandoned": abandoned})
        await self.removal.remove_abandoned(job, server)

    def _target(self, job: RestoreJob) -> AgentMemory:
        document = self.table.get(job.target_key)
        if document is None:
            raise SpecInvalid(Reason.TARGET_GONE, f"AgentMemory {job.restore.spec.target.name} was deleted")
        return self.table.parse(document)

    async def _check_target(self, job: RestoreJob) -> None:
        """Raise if the restore must stop.

        Raises:
            SpecInvalid: If the AgentMemory or the restore was deleted or recreated, or the restore is older than
                `deadline_s`.
        """
        await self._check_alive(job)
        if not job.is_current():
            raise SpecInvalid(Reason.TARGET_GONE, "the restore was deleted")
        if job.age_s > self.periods.deadline_s:
            raise SpecInvalid(Reason.DEADLINE_EXCEEDED, self._overdue_message(job, ""))

    async def _await_source(self, job: RestoreJob, exc: SourceWaiting, missing_ms: int) -> float:
        """Let the restore wait for its snapshot; fail it if there has been none for `source_s`, since `missing_ms`.

        Returns the seconds until the next pass.
        """
        self._missing_ms[job.key] = missing_ms if exc.is_missing else job.now_ms
        if exc.is_missing and job.now_ms - missing_ms > self.periods.source_s * 1000:
            await self._fail(job, SpecInvalid(Reason.SNAPSHOT_NOT_FOUND, str(exc)))
            return self.periods.settle_s
        await job.write(waiting_status(job.status, Reason.SNAPSHOT_NOT_READY, str(exc), job.stamp))
        return self.periods.wait_poll_s

    async def _retry(self, job: RestoreJob, exc: TransientError) -> None:
        """Record the cause of a retry, or fail the restore if it started more than `patience_s` ago.

        Raises:
            TransientError: `exc`, if the restore is retried.
        """
        if isinstance(exc, RecoveryOutcomeUnknown):
            self._supervised.discard(job.key)
        if job.age_s > self.periods.patience_s:
            await self._fail(job, SpecInvalid(Reason.DEADLINE_EXCEEDED, self._overdue_message(job, f": {exc}")))
            return
        await job.write(waiting_status(job.status, Reason.RETRYING, str(exc), job.stamp))
        raise exc

    @staticmethod
    def _overdue_message(job: RestoreJob, cause: str) -> str:
        step = job.status["steps"][-1]["name"] if job.status.get("steps") else None
        if step in (SwapStep.SETTLE, InPlaceStep.OPEN):
            outcome = "The restored memories are live"
        elif job.is_in_place and step in (InPlaceStep.RECOVER, InPlaceStep.COMPARE):
            outcome = f"The safety snapshot {read_safety_name(job)} is restored"
        else:
            outcome = "The live collection is unchanged; the partial result is removed"
        return (
            f"started at {job.status.get('startTime')} and not finished{cause}. {outcome}. Fix the cause, and create a "
            f"MemoryRestore with another name"
        )

    async def _fail(self, job: RestoreJob, exc: AgentMemoryError) -> None:
        reason, _ = reason_of(exc)
        if isinstance(exc, NotOwned) and (connection := self.takeover_requests.record_job(job.key, exc, now=job.now)):
            self.request(connection)
        abandoned = {"abandoned": _abandoned_names(job)} if self._may_still_recover(job) else {}
        await job.write(failed_status({**job.status, **abandoned}, reason, str(exc), job.stamp))
        await job.post_event("Warning", reason, str(exc))

    def _request_related(self, job: RestoreJob) -> None:
        """Request passes over the AgentMemory, whose collection may have changed, and over its other restores."""
        for key in (job.target_key, *self.table.list_job_keys(job.target_key, MEMORY_RESTORE)):
            if key != job.key:
                self.request(key)

    async def _check_ended(self, job: RestoreJob) -> float | None:
        """Finish an ended restore, and remove collections that its abandoned recoveries have created since.

        Once the restore has ended for `late_s`, the abandoned names are dropped from the status. Returns the seconds
        until the next check, or None if none is needed.
        """
        self._supervised.discard(job.key)
        connection = job.connection
        if not job.abandoned or connection is None:
            return await self._finish_ended(job)
        try:
            remove = partial(self.removal.remove_abandoned, job)
            await self.servers.use(connection, remove, namespace=job.key.namespace)
        except LeadershipLost:
            raise
        except AgentMemoryError as exc:
            log.info("looking for leftovers of %s is postponed: %s", job.key, exc)
        if job.seconds_since(job.status.get("endTime")) > self.periods.late_s:
            await job.write({name: value for name, value in job.status.items() if name != "abandoned"})
        wait_s, period_s = await self._finish_ended(job), self.periods.replaced_check_period_s
        return period_s if wait_s is None else min(wait_s, period_s)

    async def _finish_ended(self, job: RestoreJob) -> float | None:
        """Clean up a failed restore. Roll an applied one back on request, or remove the collection that it replaced.

        Returns the seconds until the next check, or None if none is needed.
        """
        if job.has_finalizer:
            try:
                if not has_succeeded(job.status):
                    await self.removal.clean(job)
            except (SpecInvalid, StoreRejected) as exc:
                if isinstance(exc, SpecInvalid) and exc.reason == Reason.NOT_UNDONE:
                    await job.write(failed_status(job.status, exc.reason, str(exc), job.stamp))
                else:
                    # The restore failed for another reason, which the status keeps.
                    log.warning("cleaning up after %s is postponed: %s", job.key, exc)
                return self.periods.replaced_check_period_s
            await job.remove_finalizer()
            return self.periods.settle_s
        if not has_succeeded(job.status):
            return self._keeping.delay_until_delivered_s(job)
        if ROLLBACK in job.metadata.annotations and "rolledBackTime" not in job.status:
            wait_s = await self._roll_back(job)
            if wait_s is not None:
                return wait_s
        return await self._keeping.check(job)

    async def _roll_back(self, job: RestoreJob) -> float | None:
        """Roll a restore back; return the seconds until the next check if the rollback must wait, else None.

        If the rollback is impossible, the status gives the reason.

        Raises:
            TransientError: If the rollback must be repeated.
        """
        if job.is_in_place:
            return None if await self.in_place.roll_back(job) else self.periods.wait_poll_s
        try:
            memory = self._target(job)
            is_in_progress = is_rolling_back(job.status)
            if find_obstacle(job, self.table) or (
                not is_in_progress and moving_rebuild_message(job.target_key, self.table)
            ):
                return self.periods.wait_poll_s
            rollback = Rollback(self.locks, self.erasures, self.announcer)

            async def operation(server: Server) -> None:
                await rollback.run(job, server, memory, lambda: self._check_alive(job))

            await self.servers.use(connection_of(memory), operation, namespace=job.key.namespace)
            self._request_related(job)
        except TransientError:
            raise
        except AgentMemoryError as exc:
            reason, _ = reason_of(exc)
            await job.write(not_rolled_back_status(job.status, reason, str(exc), job.stamp))
        return None

    async def _check_alive(self, job: RestoreJob) -> None:
        """Raise unless the AgentMemory that the restore started for still exists.

        Reads the object from the API server, because the watch may lag.

        Raises:
            SpecInvalid: If the AgentMemory was deleted or recreated.
        """
        key = job.target_key
        try:
            document = await self.cluster.read_object(key.kind, key.namespace, key.name)
        except NotFound:
            document = None
        if fault := find_target_fault(job, document):
            raise SpecInvalid(Reason.TARGET_GONE, fault)

    async def _release(self, job: RestoreJob) -> None:
        """Remove the finalizer of a restore that is being deleted. If it was not applied, clean up first."""

        async def clean() -> None:
            if not has_succeeded(job.status):
                await self.removal.clean(job)

        def describe_kept(exc: AgentMemoryError) -> tuple[str, str]:
            return "CollectionKept", f"{job.physical} is kept in Qdrant, see `agentmemory orphans`: {exc}"

        await job.release(clean, max_delay_s=self.periods.release_s, describe_leftovers=describe_kept)


def _abandoned_names(job: RestoreJob) -> list[str]:
    """Return the last `MAX_ABANDONED` abandoned collection names, with the current name as the last."""
    return [*job.abandoned, str(job.physical)][-MAX_ABANDONED:]
