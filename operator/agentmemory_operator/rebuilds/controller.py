"""Run rebuilds of agents' collections and their rollbacks: start the requested ones, and continue them to their end.

The state of a rebuild is in the metadata of its target (`collections/rules/rebuild_record.py`), so after a crash the
next operator continues there. The object's status informs users; no run takes its next step from there. Every pass over
an object calls `handle_pass` with its result. The end of a rebuild requests another pass, which then reads the new
collection behind the alias.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial

from agentmemory_operator.collections.announce import AliasLocks, release_writers
from agentmemory_operator.collections.claim_registry import ClaimRegistry
from agentmemory_operator.collections.replaced_collection import alias_points_to, find_live, has_owner
from agentmemory_operator.collections.rules.collection import Collection, Observation, has_same_vectors, is_placeholder
from agentmemory_operator.collections.rules.desired import newest_collection, with_recorded_defaults
from agentmemory_operator.collections.rules.outcome import PassOutcome
from agentmemory_operator.collections.rules.rebuild_record import (
    RebuildKind,
    RebuildRecord,
    RebuildStep,
    record_from_json,
    resume_step,
    rollback_record,
)
from agentmemory_operator.connections.resolve import Server, Servers, connection_of
from agentmemory_operator.errors import (
    AgentMemoryError,
    LeadershipLost,
    RebuildAwaitsApproval,
    RebuildCancelled,
    RebuildPaused,
    SpecInvalid,
    TransientError,
)
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.collections import observe_physical
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.converge import await_replicas
from agentmemory_operator.rebuilds.move import withdraw_announcement
from agentmemory_operator.rebuilds.rebuild_removal import RebuildRemoval
from agentmemory_operator.rebuilds.rebuild_start import (
    RebuildRequests,
    RebuildStarter,
    correct_point_count,
    has_background_rebuild,
)
from agentmemory_operator.rebuilds.reports import RebuildReports
from agentmemory_operator.rebuilds.rules.decision import RebuildDecision, decide
from agentmemory_operator.rebuilds.rules.plain_swap_steps import (
    is_plain_deleted,
    replaces_plain_collection,
    with_way_back_as_source,
)
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.restores.in_place import is_abandoned, reopen
from agentmemory_operator.restores.precedence import blocking_restore_message, find_started_restore
from agentmemory_operator.runtime.jobs import run_steps
from agentmemory_operator.runtime.object_table import Key, ObjectTable, key_of_memory, owned_memory
from agentmemory_operator.runtime.work_queue import WorkQueue
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.kinds.agent_memory import RECONCILE_REQUESTED_AT, ROLLBACK_REBUILD, AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.spec_rebuild import RebuildState, is_active
from agentmemory_operator.spec.naming import alias_of, number_of

log = logging.getLogger(__name__)

ALL_REPLICAS_STEPS = (RebuildStep.VERIFY, RebuildStep.MOVE)
"""Steps before which every replica of the target must be active."""

StepWork = Callable[[RebuildRun], Awaitable[str]]
"""Runs a step; returns its result for users."""

OpenEmbedder = Callable[[EmbeddingSource, AgentMemory], Awaitable[Embedder]]
"""Opens the embedder for an embedding, as an AgentMemory configures it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildPeriods:
    """Pauses between runs of a rebuild, in seconds.

    Attributes:
        wait_poll_s: Pause before a waiting rebuild is checked again.
        hold_s: Pause before a rebuild that waits for an approval catches up again.
    """

    wait_poll_s: float = 5.0
    hold_s: float = 60.0


@dataclass(slots=True, kw_only=True)
class Rebuilds:
    """Starts rebuilds and continues them.

    Attributes:
        request: Requests a pass over an object.
        locks: Locks of the aliases, shared by all modules that move aliases.
        steps: Function of each step except Create.
        open_embedder: Opens the embedder of the target's vectors.
        abandon: Undoes the changes that a cancelled or failed rebuild made to its source.
        reports: Reports the state of rebuilds to users.
        concurrency: Maximum number of concurrent rebuilds of one namespace on one connection; twice as many for all
            namespaces together.
        claims: Records the minimum epoch of a closed agent, which reopening clears; None if no claims are kept.
    """

    table: ObjectTable
    servers: Servers
    cluster: Cluster
    clock: Clock
    request: Callable[[Key], None]
    locks: AliasLocks
    open_embedder: OpenEmbedder
    steps: Mapping[RebuildStep, StepWork]
    abandon: Callable[[Server, RebuildRecord], Awaitable[None]]
    reports: RebuildReports
    requests: RebuildRequests = field(init=False)
    beginnings: RebuildStarter = field(init=False)
    concurrency: int = 1
    claims: ClaimRegistry | None = None
    periods: RebuildPeriods = field(default_factory=RebuildPeriods)
    removal: RebuildRemoval = field(init=False)
    queue: WorkQueue[Key] = field(init=False)
    # Rebuilds to retry, kept to remove their targets if the object (maybe without finalizer) is deleted before that.
    _waiting: dict[Key, tuple[AgentMemory, RebuildRecord]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.requests = RebuildRequests(self.table, self.cluster)
        self.beginnings = RebuildStarter(self.table, self.clock, self.reports)
        self.removal = RebuildRemoval(self.cluster, self.locks, self.abandon, self.reports)
        self.queue = WorkQueue(self.run, tenant_lane_of=self.table.tenant_lane_of, width=self.concurrency)

    def handle_pass(self, key: Key, memory: AgentMemory, done: PassOutcome) -> None:
        """Schedule a run if there may be a rebuild to start (reported as queued) or continue, or writers to release."""
        record, rollback = done.observed.record, memory.metadata.annotations.get(ROLLBACK_REBUILD)
        is_open = record is not None and record.target == done.observed.physical and record.step is not RebuildStep.DONE
        is_requested = has_background_rebuild(done.refusal) or (
            rollback is not None and rollback == done.observed.physical
        )
        if is_requested:
            self.reports.report_queued(key)
        # Also run if clients wait: the process that held the writers may have been killed.
        if is_open or is_requested or done.observed.must_clients_wait or self.reports.is_in_progress(key):
            self.queue.request(key)

    async def run(self, key: Key) -> float | None:
        """Start or continue the rebuild of an object; return the seconds until the next run.

        None means that a pass over the object requests the next run. For a suspended object, only writers are released.
        For a deleted object whose rebuild waited for a retry, the target is removed.

        Raises:
            TransientError: If the run must be repeated. If a step of the rebuild failed, the status gives the reason.
            SpecInvalid, NotOwned: If the connection or the collection cannot be used.
        """
        memory = owned_memory(self.table, key)
        if memory is None:
            await self._remove_of_deleted(key)
            return None
        self._waiting.pop(key, None)
        process = self._release_suspended if memory.spec.suspend else self._process
        operation, old_status = partial(process, key, memory), self.reports.last_status(key)
        try:
            return await self.servers.use(connection_of(memory), operation, namespace=key.namespace)
        finally:
            # Request a pass only after a change: otherwise passes and runs could request each other forever.
            if _reportable(self.reports.last_status(key)) != _reportable(old_status):
                self.request(key)

    async def _remove_of_deleted(self, key: Key) -> None:
        """Remove the target of an object that was deleted while its rebuild waited for a retry."""
        if key not in self._waiting or self.table.get(key) is not None:
            return
        memory, record = self._waiting[key]

        async def remove(server: Server) -> None:
            await self.removal.remove(key, memory, server, record)

        try:
            await self.servers.use(connection_of(memory), remove, namespace=key.namespace)
        except TransientError:
            raise
        except AgentMemoryError as exc:
            log.warning("%s stays, `agentmemory orphans` lists it: %s", record.target, exc)
        self._waiting.pop(key, None)

    def handle_suspension(self, key: Key) -> None:
        """Schedule a run that releases writers of a suspended object, if its last reported rebuild has not ended."""
        if self.reports.is_in_progress(key):
            self.queue.request(key)

    async def _release_suspended(self, key: Key, memory: AgentMemory, server: Server) -> None:
        live = await find_live(server, alias_of(memory.slug), memory.reported_physical)
        if live is not None and await has_owner(server, live.physical, key, self.cluster.cluster_id):
            await self._release_clients(key, memory.slug, server, live.physical)

    async def _process(self, key: Key, memory: AgentMemory, server: Server) -> float | None:
        live = await find_live(server, alias_of(memory.slug), memory.reported_physical)
        live = await correct_point_count(live, server.points) if live else None
        request = await self.requests.read(memory, live)
        decision = decide(live, records := await self._records(server, memory), request)
        if live is not None and not decision.is_urgent:
            # Release the clients: a killed process left the announcement, because this run moves nothing yet.
            await self._release_clients(key, memory.slug, server, live.physical)
        if obstacle := self._obstacle(key, decision):
            await self.reports.report_waiting(key, RebuildState.WAITING, obstacle, decision.current)
            return self.periods.wait_poll_s
        for record in decision.obsolete:
            await self.removal.remove(key, memory, server, record)
        if live is None:
            return None
        if not (decision.current or decision.new_kind):
            await self._report_missed_end(key, live, {record.target for record in records})
            return None
        requested_at = memory.metadata.annotations.get(RECONCILE_REQUESTED_AT)
        if decision.current is None and self.reports.has_failed(key, request.digest, requested_at):
            return None
        digest = None if decision.new_kind is RebuildKind.ROLLBACK else request.digest
        try:
            record = decision.current or await self.beginnings.start(key, memory, server, live, digest)
        except SpecInvalid as exc:
            await self._report_no_rollback(key, memory, live, str(exc))
            return None
        return await self._continue(key, memory, server, live, record)

    async def _release_clients(self, key: Key, slug: str, server: Server, physical: str) -> None:
        """Release writers that still wait because the process that held them was killed.

        A collection that a restore has closed and will not open again is reopened too. Does nothing while a restore is
        in progress, because that restore may hold the writers.
        """
        if find_started_restore(key, self.table) is not None:
            return
        await release_writers(server, physical)
        if await is_abandoned(await server.snapshots.metadata(physical), key, self.cluster):
            await reopen(server, physical, slug, table=self.table, claims=self.claims)

    async def _records(self, server: Server, memory: AgentMemory) -> list[RebuildRecord]:
        """Read the rebuild records of the agent's collections."""
        alias, records = alias_of(memory.slug), []
        for name in await server.snapshots.collections():
            if number_of(name, alias) is None or not await server.may_use(name):
                continue
            metadata = await server.snapshots.metadata(name)
            record = None if is_placeholder(metadata) else record_from_json(metadata)
            # Skip a record that came with a snapshot: it names another collection as its target.
            if record is not None and record.target == name:
                records.append(record)
        return records

    def _obstacle(self, key: Key, decision: RebuildDecision) -> str | None:
        """Return a message if a restore must end, or be undone, before the rebuild continues; else None."""
        return blocking_restore_message(key, self.table) if decision.can_wait_for_restore else None

    async def _continue(
        self, key: Key, memory: AgentMemory, server: Server, live: Observation, record: RebuildRecord
    ) -> float | None:
        if record.target == live.physical:
            record = with_way_back_as_source(record, alias_of(memory.slug), self.clock.now_ms())
        try:
            await self._run_to_end(await self._build_run(key, memory, server, live, record))
        except LeadershipLost:
            raise
        except RebuildPaused as exc:
            await self.reports.report_waiting(key, RebuildState.PAUSED, str(exc), record)
        except RebuildAwaitsApproval as exc:
            await self.reports.report_waiting(key, RebuildState.HELD, str(exc), record)
            return self.periods.hold_s
        except RebuildCancelled as exc:
            # Remove the target now, because a deleted object gets no further run.
            log.info("%s: rebuild cancelled: %s", key, exc)
            await self.removal.remove(key, memory, server, record)
            return 0.0
        except TransientError as exc:
            self._waiting[key] = memory, record
            await self.removal.handle_transient_error(key, memory, server, record, exc)
        except AgentMemoryError as exc:
            await self.removal.fail(key, memory, server, record, str(exc))
        return None

    async def _report_no_rollback(self, key: Key, memory: AgentMemory, live: Observation, reason: str) -> None:
        """Report that a requested rollback failed, and why. Nothing was changed."""
        requested_at, now_ms = memory.metadata.annotations.get(RECONCILE_REQUESTED_AT), self.clock.now_ms()
        # A collection that no rebuild created has no previous one: name it as both source and target.
        base = RebuildRecord(source=live.physical, target=live.physical, digest="", started_ms=now_ms, since_ms=now_ms)
        record = rollback_record(live.record or base, now_ms)
        await self.reports.report_end(key, record, RebuildState.FAILED, reason, retry_value=requested_at)
        await self.reports.post_event(memory, Event("Warning", Reason.PREVIOUS_GONE, reason))

    async def _build_run(
        self, key: Key, memory: AgentMemory, server: Server, live: Observation, record: RebuildRecord
    ) -> RebuildRun:
        desired = await self._desired(memory := with_recorded_defaults(memory, live.collection.marker), server, record)
        source = live
        if record.target == live.physical:
            observed = await observe_physical(server.collections, record.source)
            source = observed or replace(live, physical=record.source, points=0)
        embedder = None
        # With provider none, callers send the vectors, and only an empty collection can get others: embed nothing.
        embedding = desired.marker.embedding if desired.marker is not None else None
        if embedding and embedding.provider != "none" and not has_same_vectors(source.collection, desired):
            embedder = await self.open_embedder(embedding, memory)
        check = partial(self.requests.check, key, memory.metadata.uid, live, record, server.points)
        return RebuildRun(
            memory=memory,
            server=server,
            source=source,
            desired=desired,
            record=record,
            clock=self.clock,
            embedder=embedder,
            check=_check_nothing if is_plain_deleted(record, live.physical) else check,
            report_progress=partial(self.reports.report_progress, key),
        )

    async def _desired(self, memory: AgentMemory, server: Server, record: RebuildRecord) -> Collection:
        if record.kind is RebuildKind.REBUILD:
            return newest_collection(memory, cluster_id=await self.cluster.cluster_id())
        previous = await observe_physical(server.collections, record.target)
        if previous is None:
            raise SpecInvalid(Reason.PREVIOUS_GONE, f"{record.target} was deleted in Qdrant")
        return previous.collection

    async def _run_to_end(self, task: RebuildRun) -> None:
        try:
            await self._run_steps(task)
        except BaseException:
            if task.announcement is not None:
                await withdraw_announcement(task)
            raise
        await self._finish(task)

    async def _run_steps(self, task: RebuildRun) -> None:
        is_moved = task.source.physical != task.record.source or await alias_points_to(
            task.server, task.alias, task.target_name
        )
        steps = {**self.steps, RebuildStep.CREATE: self.beginnings.create}
        if not replaces_plain_collection(task.record, task.alias):
            steps.pop(RebuildStep.KEEP, None)
        result = await run_steps(steps, task, first=resume_step(task.record.step, is_moved=is_moved), begin=_start_step)
        _log_result(task, result)

    async def _report_missed_end(self, key: Key, live: Observation, targets: Set[str]) -> None:
        """Report the end of a rebuild whose operator was killed before it reported: completed, else cancelled."""
        last, record = self.reports.last_status(key), live.record
        if not is_active(last):
            return
        if record is not None and record.target == live.physical == last.get("target"):
            await self.reports.report_end(key, record, RebuildState.DONE, _done_message(record))
        else:
            await self.removal.report_missed(key, targets)

    async def _finish(self, task: RebuildRun) -> None:
        await task.update_record(step=RebuildStep.DONE)
        message = _done_message(task.record)
        await self.reports.report_end(key_of_memory(task.memory), task.record, RebuildState.DONE, message)
        reason = Reason.ROLLED_BACK if task.record.kind is RebuildKind.ROLLBACK else "Rebuilt"
        await self.reports.post_event(task.memory, Event("Normal", reason, message))


async def _start_step(task: RebuildRun, step: RebuildStep, result: str) -> None:
    """Record a step. Up to Move, check first that the rebuild may continue. Verify and Move then wait for replicas."""
    _log_result(task, result)
    if step not in (RebuildStep.DRAIN, RebuildStep.SETTLE):
        await task.check()
    if task.record.step is not step:
        await task.update_record(step=step)
    if step in ALL_REPLICAS_STEPS:
        await await_replicas(task)


def _log_result(task: RebuildRun, result: str | None) -> None:
    if result:
        log.info("rebuild of %s into %s: %s: %s", task.source_name, task.target_name, task.record.step, result)


async def _check_nothing() -> None:
    """Never stop a rebuild whose plain collection may be deleted: clients are not served until its alias exists."""


def _reportable(status: Json) -> Json:
    """Return the parts of a status whose change requests a pass.

    A rebuild that cannot start gets another target and start time in each run, so these are excluded.
    """
    return {name: value for name, value in status.items() if name not in ("target", "startTime")}


def _done_message(record: RebuildRecord) -> str:
    if record.pause_ms is None:
        return f"{record.target} is live and replaces {record.source}"
    return (
        f"{record.target} is live and replaces a collection with the alias's name, of which {record.source} is "
        f"the kept copy; the collection was unavailable for {record.pause_ms} ms"
    )
