"""Passes over MemoryRestores: run once, to an end that the status tells; killed anywhere, the next pass goes on.

What waits says for what, what fails for good is cleaned up, and what was applied keeps a way back for a while.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agentmemory_operator.domain.collection import Collection
from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.domain.desired import newest_collection
from agentmemory_operator.domain.manifests import parse_agent_memory, parse_restore
from agentmemory_operator.domain.naming import alias_of, next_physical
from agentmemory_operator.domain.replacing import check_replaceable
from agentmemory_operator.domain.resources import ROLLBACK, TAKEOVER, AgentMemory
from agentmemory_operator.domain.restore_reporting import (
    Moment,
    applied_status,
    begun_status,
    failed_status,
    has_ended,
    has_succeeded,
    is_rolling_back,
    not_rolled_back_status,
    waiting_status,
)
from agentmemory_operator.domain.restoring import (
    applied_record,
    check_size,
    check_swappable,
    check_version,
    records_from,
)
from agentmemory_operator.domain.safety import check_ownership
from agentmemory_operator.errors import (
    AgentMemoryError,
    LeadershipLost,
    NotFound,
    NotOwned,
    SpecInvalid,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.ports import Clock, Cluster
from agentmemory_operator.services.aliases import AliasLocks
from agentmemory_operator.services.in_place import InPlace
from agentmemory_operator.services.jobs import Job, JobBook
from agentmemory_operator.services.keeping import Keeping
from agentmemory_operator.services.objects import (
    AGENT_MEMORY,
    MEMORY_RESTORE,
    Key,
    ObjectTable,
    names_on_record,
)
from agentmemory_operator.services.previous import live_behind
from agentmemory_operator.services.restore_jobs import FINALIZER, RestoreJob, RestorePeriods, alias_behind
from agentmemory_operator.services.restore_queue import obstacle_of, rebuild_moving, target_fault
from agentmemory_operator.services.restore_sources import RestoreSources, SourceWaiting
from agentmemory_operator.services.restored_erasures import RestoredErasures
from agentmemory_operator.services.rollbacks import Rollback
from agentmemory_operator.services.servers import Server, Servers, connection_of
from agentmemory_operator.services.swaps import Swap, Task


@dataclass(slots=True)
class RestorePasses:
    """Makes restores, takes them back, and removes what they replaced.

    Attributes:
        request: asks for a pass over another object.
        locks: of the aliases; one for all who move them.
        in_place: restores into the collection itself.
    """

    table: ObjectTable
    servers: Servers
    cluster: Cluster
    clock: Clock
    request: Callable[[Key], None]
    sources: RestoreSources
    locks: AliasLocks
    in_place: InPlace
    erasures: RestoredErasures
    periods: RestorePeriods = field(default_factory=RestorePeriods)
    _book: JobBook = field(init=False)
    _keeping: Keeping = field(init=False)

    def __post_init__(self) -> None:
        self._book = JobBook(self.table, self.cluster, self.clock)
        self._keeping = Keeping(self.servers, self.periods)

    async def run(self, key: Key) -> float | None:
        """Do one pass; return after how many seconds the next one is due, None for never.

        Raises:
            TransientError: it is to be tried again; the status says why.
        """
        document = self.table.get(key)
        if document is None:
            self._book.forget(key)
            return None
        opened = self._book.open(key, document)
        try:
            job = RestoreJob(opened, parse_restore(document))
        except SpecInvalid as exc:
            await self._refuse(opened, exc)
            return None
        if job.metadata.deletion_timestamp:
            return await self._release(job)
        if has_ended(job.status):
            return await self._look_after(job)
        return await self._bring_on(job)

    async def _refuse(self, job: Job, exc: SpecInvalid) -> None:
        """Write down that an object cannot be understood; it has made nothing."""
        if job.metadata.deletion_timestamp:
            await job.set_finalizer(FINALIZER, is_wanted=False)
            return
        at = Moment(job.metadata.generation, job.now)
        await job.write(failed_status(job.status, exc.reason, str(exc), at))

    async def _bring_on(self, job: RestoreJob) -> float:
        """Go on until it ends, waits, or fails."""
        try:
            if waits := obstacle_of(job, self.table):
                await job.job.write(waiting_status(job.status, *waits, job.moment))
                return self.periods.look_s
            memory = self._target(job)
            if fault := target_fault(job, self.table.get(self._target_key(job))):
                raise SpecInvalid(Reason.TARGET_GONE, fault)
            work = self._work(job, memory)
            await self.servers.use(connection_of(memory), work, namespace=job.key.namespace)
        except LeadershipLost:
            raise
        except SourceWaiting as exc:
            return await self._await_source(job, exc)
        except TransientError as exc:
            await self._put_off(job, exc)
        except AgentMemoryError as exc:
            await self._fail(job, exc)
        self._request_others(job)
        return self.periods.settle_s

    def _work(self, job: RestoreJob, memory: AgentMemory) -> Callable[[Server], Awaitable[None]]:
        async def work(server: Server) -> None:
            cluster_id = await self.cluster.cluster_id()
            desired = newest_collection(memory, cluster_id=cluster_id)
            if job.physical is None and not await self._begin(job, server, memory, desired):
                return
            task = Task(
                job=job,
                server=server,
                memory=memory,
                source=self.sources.find(job.restore.spec.source, memory),
                desired=desired,
                cluster_id=cluster_id,
                check_target=lambda: self._check_target(job),
            )
            restoring = self.in_place if job.is_in_place else Swap(self.locks, self.erasures)
            await restoring.run(task)

        return work

    async def _begin(self, job: RestoreJob, server: Server, memory: AgentMemory, desired: Collection) -> bool:
        """Check what can be checked beforehand, and choose the names; tell whether there is anything to do."""
        live = await live_behind(server, alias_of(memory.slug), _last_physical(memory))
        metadata = await server.snapshots.metadata(live.physical) if live else None
        if record := applied_record(records_from(metadata), job.identity):
            await job.job.write(applied_status(job.status, record, job.moment))
            return False
        check_ownership(live, desired, takeover=memory.metadata.annotations.get(TAKEOVER))
        if job.is_in_place:
            check_replaceable(live)
        else:
            check_swappable(alias_of(memory.slug), live)
        source = self.sources.find(job.restore.spec.source, memory)
        check_version(source.version, (await server.collections.server()).version)
        check_size(desired, dimensions=source.dimensions, live=live)
        await job.hold()
        async with self.locks.of(memory.slug):
            # Looked at once more where a rebuild looks at restores: of both one sees the other.
            if rebuild := rebuild_moving(self._target_key(job), self.table):
                raise StoreUnavailable(rebuild)
            await self._choose(job, server, memory)
        return True

    async def _choose(self, job: RestoreJob, server: Server, memory: AgentMemory) -> None:
        """Write down what is about to be made; while it stands there, nobody makes the agent another collection."""
        alias, connection = alias_of(memory.slug), connection_of(memory)
        live = await live_behind(server, alias, _last_physical(memory))
        names = [*await server.snapshots.collections(), _last_physical(memory), *names_on_record(self.table)]
        replaced = live.physical if live else None
        status = begun_status(
            job.status,
            physical=replaced if job.is_in_place and replaced else next_physical(alias, names),
            previous=None if job.is_in_place else replaced,
            target_uid=memory.metadata.uid,
            connection={"namespace": connection.namespace, "name": connection.name},
            at=job.moment,
        )
        await job.job.write(status)

    def _target(self, job: RestoreJob) -> AgentMemory:
        document = self.table.get(self._target_key(job))
        if document is None:
            raise SpecInvalid(Reason.TARGET_GONE, f"AgentMemory {job.restore.spec.target.name} was deleted")
        return parse_agent_memory(document)

    @staticmethod
    def _target_key(job: RestoreJob) -> Key:
        return Key(AGENT_MEMORY, job.key.namespace, job.restore.spec.target.name)

    async def _check_target(self, job: RestoreJob) -> None:
        """Pass while the AgentMemory is the one that the restore was begun for, and the restore is wanted.

        Raises:
            SpecInvalid: it is not.
        """
        await self._check_alive(job)
        if not job.job.is_wanted():
            raise SpecInvalid(Reason.TARGET_GONE, "the restore itself was deleted")
        if job.age_s(job.status.get("startTime")) > self.periods.deadline_s:
            raise SpecInvalid(Reason.DEADLINE_EXCEEDED, self._overdue(job, ""))

    async def _await_source(self, job: RestoreJob, exc: SourceWaiting) -> float:
        """Wait for a snapshot that is being made, and a moment for one that may be about to be created."""
        if exc.is_missing and job.age_s(job.metadata.creation_timestamp) > self.periods.source_s:
            await self._fail(job, SpecInvalid(Reason.SNAPSHOT_NOT_FOUND, str(exc)))
            return self.periods.settle_s
        await job.job.write(waiting_status(job.status, Reason.SNAPSHOT_NOT_READY, str(exc), job.moment))
        return self.periods.look_s

    async def _put_off(self, job: RestoreJob, exc: TransientError) -> None:
        """Say why it is tried again, or give it up.

        Raises:
            TransientError: `exc`: it is tried again.
        """
        if job.age_s(job.status.get("startTime")) > self.periods.patience_s:
            await self._fail(job, SpecInvalid(Reason.DEADLINE_EXCEEDED, self._overdue(job, f": {exc}")))
            return
        await job.job.write(waiting_status(job.status, Reason.RETRYING, str(exc), job.moment))
        raise exc

    @staticmethod
    def _overdue(job: RestoreJob, why: str) -> str:
        return (
            f"begun {job.status.get('startTime')} and not done{why}. The live collection is as it was; what was made "
            f"is removed. Mend the cause, and create a MemoryRestore of another name"
        )

    async def _fail(self, job: RestoreJob, exc: AgentMemoryError) -> None:
        reason = _reason_of(exc)
        await job.job.write(failed_status(job.status, reason, str(exc), job.moment))
        await job.tell("Warning", reason, str(exc))

    def _request_others(self, job: RestoreJob) -> None:
        """Let the AgentMemory see what lies behind its alias now, and the restores that waited for this one."""
        target = self._target_key(job)
        self.request(target)
        for key in self.table.job_keys(target, MEMORY_RESTORE):
            if key != job.key:
                self.request(key)

    async def _look_after(self, job: RestoreJob) -> float | None:
        """Clean up what failed; of what was applied, take it back or remove what it replaced."""
        if job.is_held:
            try:
                if not has_succeeded(job.status):
                    await self._clean(job)
            except SpecInvalid as exc:
                await job.job.write(failed_status(job.status, exc.reason, str(exc), job.moment))
                return self.periods.keep_s
            await job.let_go()
            return self.periods.settle_s
        if not has_succeeded(job.status):
            return self._keeping.seen_after_s(job)
        if ROLLBACK in job.metadata.annotations and "rolledBackTime" not in job.status:
            waits = await self._roll_back(job)
            if waits is not None:
                return waits
        return await self._keeping.look(job)

    async def _clean(self, job: RestoreJob) -> None:
        """Remove what a restore made and did not bring to life."""
        physical, connection = job.physical, job.connection
        if physical is None or connection is None:
            return
        if job.is_in_place:
            await self.servers.use(
                connection, lambda server: self.in_place.undo(job, server), namespace=job.key.namespace
            )
            return

        async def remove(server: Server) -> None:
            live = await live_behind(server, alias_behind(physical), job.previous)
            if live is None or live.physical != physical:
                await server.collections.delete(physical)

        await self.servers.use(connection, remove, namespace=job.key.namespace)

    async def _roll_back(self, job: RestoreJob) -> float | None:
        """Take it back; return when to look again if that has to wait."""
        if job.is_in_place:
            return None if await self.in_place.roll_back(job) else self.periods.look_s
        try:
            memory = self._target(job)
            is_begun = is_rolling_back(job.status)
            if obstacle_of(job, self.table) or (not is_begun and rebuild_moving(self._target_key(job), self.table)):
                return self.periods.look_s
            rollback = Rollback(self.locks, self.erasures)

            async def work(server: Server) -> None:
                await rollback.run(job, server, memory, lambda: self._check_alive(job))

            await self.servers.use(connection_of(memory), work, namespace=job.key.namespace)
            self._request_others(job)
        except TransientError:
            raise
        except AgentMemoryError as exc:
            reason = _reason_of(exc)
            await job.job.write(not_rolled_back_status(job.status, reason, str(exc), job.moment))
        return None

    async def _check_alive(self, job: RestoreJob) -> None:
        """Pass while the AgentMemory is the one that the restore was begun for: asked for, since a watch may lag.

        Raises:
            SpecInvalid: it is not.
        """
        key = self._target_key(job)
        try:
            document = await self.cluster.read_object(key.kind, key.namespace, key.name)
        except NotFound:
            document = None
        if fault := target_fault(job, document):
            raise SpecInvalid(Reason.TARGET_GONE, fault)

    async def _release(self, job: RestoreJob) -> float | None:
        """Clean up after a restore that is deleted midway, and let it go."""
        if not job.is_held:
            return None
        try:
            if not has_succeeded(job.status):
                await self._clean(job)
        except AgentMemoryError as exc:
            is_overdue = job.age_s(job.metadata.deletion_timestamp) > self.periods.release_s
            if isinstance(exc, TransientError) and not is_overdue:
                raise
            message = f"{job.physical} is left in Qdrant, `agentmemory orphans` lists it: {exc}"
            await job.tell("Warning", "CollectionKept", message)
        await job.let_go()
        return None


def _last_physical(memory: AgentMemory) -> str | None:
    found: str | None = (memory.status.get("collection") or {}).get("physical")
    return found


def _reason_of(exc: AgentMemoryError) -> str:
    return exc.reason if isinstance(exc, SpecInvalid | NotOwned) else Reason.QDRANT_REJECTED
