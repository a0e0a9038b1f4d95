"""Pass over an AgentMemory. It converts errors to conditions, except a TransientError that is no StoreUnavailable.

1. A deleted object: carry out the deletion (`controllers/deletion.py`), and stop.
2. Parse the object. If it is suspended, write that into the status, renew the Secrets of the retrieval API, and stop.
3. Check that the object owns its slug, and record the claim of its namespace.
4. Copy the Secrets of the object to the retrieval API.
5. Reconcile the collection: observe, plan, apply, observe again (`collections/reconcile.py`).
6. Post events about changes, and write the status if it changed.

A pass may be stopped at any point: the next one observes the current state and continues.
"""

import logging
from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime

from agentmemory_operator.collections.announce import AliasLocks
from agentmemory_operator.collections.claim_registry import ClaimRegistry
from agentmemory_operator.collections.reconcile import PassPermit, reconcile
from agentmemory_operator.collections.reindex_slots import ReindexSlots, is_running
from agentmemory_operator.collections.replication import replicate
from agentmemory_operator.collections.rules.collection import RED, Collection, Marker, Observation
from agentmemory_operator.collections.rules.desired import (
    PassTerms,
    build_pass_terms,
    newest_collection,
    with_recorded_defaults,
)
from agentmemory_operator.collections.rules.outcome import PassOutcome
from agentmemory_operator.collections.rules.refusals import build_slug_taken, describe_owner
from agentmemory_operator.collections.takeover_requests import TakeoverRequests, terms_for
from agentmemory_operator.connections.agent_secrets import AgentSecrets
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.connections.resolve import Servers, connection_of
from agentmemory_operator.consolidation.consolidation_schedule import ConsolidationSchedule
from agentmemory_operator.controllers.bootstrap import check_creation, count_memories, count_to_reseal, count_unlisted
from agentmemory_operator.controllers.connection_pass import ConnectionPasses
from agentmemory_operator.controllers.deletion import DELETING_POLICIES, FINALIZER, Deletion
from agentmemory_operator.controllers.events import pass_events
from agentmemory_operator.controllers.periods import Periods
from agentmemory_operator.controllers.rules.status import access_status, converged_status, suspended_status
from agentmemory_operator.controllers.status_writer import StatusWriter
from agentmemory_operator.errors import (
    AgentMemoryError,
    DeletionPending,
    NotOwned,
    SpecInvalid,
    StoreRejected,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.lifecycle.cleanup_schedule import CleanupSchedule
from agentmemory_operator.ports.access import Hosts
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.rebuilds.controller import Rebuilds
from agentmemory_operator.runtime.object_table import (
    AGENT_MEMORY,
    MEMORY_SNAPSHOT,
    QDRANT_CONNECTION,
    Key,
    ObjectTable,
    Statuses,
    slug_of,
)
from agentmemory_operator.runtime.work_queue import Request, jittered
from agentmemory_operator.snapshots.rules.facts import max_recorded_points
from agentmemory_operator.snapshots.schedule import SnapshotSchedule
from agentmemory_operator.spec.effective.embedding import effective_embedding
from agentmemory_operator.spec.effective.revisions import at_revision
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory, Metadata
from agentmemory_operator.spec.kinds.cel.embedding import OPENAI_URL
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.parse import access_notice
from agentmemory_operator.spec.naming import alias_of
from agentmemory_operator.spec.times import render_second
from agentmemory_operator.webhooks.deliver import WebhookDelivery
from agentmemory_operator.zones.key_checks import KeyChecks

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Passes:
    """Passes over AgentMemory and QdrantConnection objects.

    Attributes:
        request: Requests a pass over another object.
        servers: Access to whole servers, for deletions.
        claims: Records which namespace a slug belongs to.
        locks: Locks by slug, shared with all code of this process that moves aliases.
        takeover_requests: Pending takeover requests by connection, shared with the status writer.
        hosts: Egress policy of this process. A pass checks the URL of the embedding service against it.
        handover: Copies Secrets to the retrieval API. None if the API reads them itself.
        cleanup_schedule: Schedule of cleanups. Each successful pass plans the next cleanup of its object.
        webhooks: Delivers webhooks. Each successful pass schedules the deliveries of its object.
        consolidation_schedule, snapshots: Each status write plans the next consolidation and snapshot of its object.
        key_checks: Checks of zone keys. Each status write schedules those of its object.
        rebuilds: Rebuild controller. A pass calls it after each success, and if it finds the object suspended.
    """

    table: ObjectTable
    connections: Connections
    cluster: Cluster
    clock: Clock
    request: Request
    _: KW_ONLY
    periods: Periods
    servers: Servers
    claims: ClaimRegistry
    locks: AliasLocks
    takeover_requests: TakeoverRequests
    hosts: Hosts
    handover: AgentSecrets | None
    cleanup_schedule: CleanupSchedule
    webhooks: WebhookDelivery
    consolidation_schedule: ConsolidationSchedule
    snapshots: SnapshotSchedule
    key_checks: KeyChecks
    rebuilds: Rebuilds
    statuses: Statuses = field(init=False)
    writer: StatusWriter = field(init=False)
    connection_passes: ConnectionPasses = field(init=False)
    reindex_slots: ReindexSlots = field(init=False)
    deletion: Deletion = field(init=False)

    def __post_init__(self) -> None:
        self.deletion = Deletion(
            *(self.table, self.connections, self.cluster, self.request, self.servers, self.key_checks.shards)
        )
        self.reindex_slots = ReindexSlots(self.table, self.clock)
        self.statuses = Statuses(self.table, self.cluster, self.clock)
        self.writer = StatusWriter(
            *(self.table, self.cluster, self.statuses, self.request, self.takeover_requests),
            *(self.snapshots, self.key_checks, self.consolidation_schedule),
        )
        self.connection_passes = ConnectionPasses(
            *(self.table, self.connections, self.cluster, self.request, self.writer),
            probe_s=self.periods.probe_s,
            reconnect_passes_per_s=self.periods.reconnect_passes_per_s,
        )

    async def run(self, key: Key) -> float | None:
        """Do one pass; return the seconds until the next one.

        None means that no pass is due: the object is absent or now deleted, or suspended without Secrets to renew.

        Raises:
            TransientError: If the pass should be retried. The status contains the message of a StoreUnavailable.
        """
        document = self.table.get(key)
        if document is None:
            return None
        if key.kind == QDRANT_CONNECTION:
            return await self.connection_passes.run(key, document)
        return await self._memory(key, document)

    async def _memory(self, key: Key, document: Json) -> float | None:
        metadata = Metadata.model_validate(document["metadata"])
        if metadata.deletion_timestamp:
            return await self._release(document, metadata)
        try:
            memory = self._parse(document)
            if memory.spec.suspend:
                self._release_slot(key)
                self.rebuilds.handle_suspension(key)
                await self._suspend(document, metadata)
                return await self._keep_served(key, memory)
            await self._check_slug(key, memory)
            qdrant_access, api_error = await self._sync_api_secret(memory)
            done = await self._reconcile(key, document, memory)
            marker = done.observed.collection.marker
            if self.handover and self.handover.note_embedding(memory, marker.embedding if marker else None):
                qdrant_access, api_error = await self._sync_api_secret(memory)
        except AgentMemoryError as exc:
            self._release_slot(key)
            await self.writer.write_failure(document, metadata, exc)
            return self._delay_after_failure(key, exc)
        # Keep the slot until the next pass after a new reindex, which Qdrant may not have started yet.
        if not done.has_reindexed and not is_running(done.observed):
            self._release_slot(key)
        self.takeover_requests.forget(key)
        await self._report(key, document, memory, done, opened_by=qdrant_access)
        if api_error is not None:
            raise api_error
        return self._due_s(key, done)

    async def _sync_api_secret(self, memory: AgentMemory) -> tuple[str | None, TransientError | None]:
        """Copy Secrets to the API; return the kind of its credential for Qdrant (None if it needs none), and None.

        After a TransientError, return the kind in the last status, and the error, which the pass raises at its end.
        """
        try:
            return await self.handover.sync_secret(memory) if self.handover else None, None
        except TransientError as exc:
            return ((memory.status.get("access") or {}).get("qdrant")), exc

    async def _keep_served(self, key: Key, memory: AgentMemory) -> float | None:
        """Renew a suspended agent's copied Secrets; return the seconds until the next, None if it has no copies."""
        if self.handover is None or self.table.find_owner(memory.slug) != key:
            return None
        try:
            await self.handover.sync_secret(memory)
        except (SpecInvalid, StoreRejected, StoreUnavailable) as exc:
            log.warning("the suspended %s may stop being served: %s", key, exc)
        return jittered(self.periods.converged_s)

    def _due_s(self, key: Key, done: PassOutcome) -> float:
        if done.observed.state == RED or done.is_queued:
            return self.periods.stalled_s
        if done.observed.is_busy:
            return self.periods.busy_s
        if self.reindex_slots.has_slot(key):
            return self.periods.settle_s
        return jittered(self.periods.converged_s)

    def _delay_after_failure(self, key: Key, exc: AgentMemoryError) -> float:
        """Return the seconds until the next pass after a failure.

        Raises:
            TransientError: `exc` itself, if it is transient and the last probe of the connection found no fault. The
                queue applies the backoff.
        """
        connection = self.table.find_connection(key)
        if self.connections.has_fault(connection):
            # Do not retry soon: the connection requests passes when it responds again.
            return jittered(self.periods.converged_s)
        if connection is not None and isinstance(exc, StoreUnavailable | StoreRejected):
            # Request one probe of the connection, instead of a retry of each of its objects.
            self.request(connection, after_s=self.connections.probe_delay_s(connection))
        if isinstance(exc, TransientError):
            raise exc
        return self.periods.stalled_s

    def _release_slot(self, key: Key) -> None:
        """Release the slot for reindexing, and request a pass over the next object that waits for it."""
        if not self.reindex_slots.has_slot(key):
            return
        self.reindex_slots.release(key)
        if next_key := self.reindex_slots.first_waiting(key):
            self.request(next_key)

    async def _acquire_slot(self, key: Key, document: Json, memory: AgentMemory) -> str | None:
        """Acquire the reindexing slot, record it in the status and return None; or return the object that has it."""

        async def observe(alias: str) -> Observation | None:
            # Read without a guard, because a slot covers the collections of all namespaces on the server.
            return await self.connections.survey(connection_of(memory), lambda store: store.observe(alias, alias))

        holder = await self.reindex_slots.acquire(key, observe)
        if holder is not None:
            return str(holder)
        status = (document.get("status") or {}) | {"reindexSince": self.statuses.now}
        await self.writer.write(document, memory.metadata, status, is_ended=False)
        return None

    async def _release(self, document: Json, metadata: Metadata) -> float | None:
        deleted_at = datetime.fromisoformat(metadata.deletion_timestamp or self.statuses.now)
        deadline_s = deleted_at.timestamp() + self.periods.release_s
        is_overdue = self.clock.now_ms() / 1000 > deadline_s
        try:
            async with self.locks.lock_for(slug_of(document)):
                await self.deletion.run(document, metadata, is_overdue=is_overdue)
            return None
        except DeletionPending as exc:
            await self.writer.write_failure(document, metadata, exc)
            return self.periods.busy_s
        except StoreUnavailable as exc:
            pending = DeletionPending(
                f"the deletion waits for Qdrant until {render_second(deadline_s)}. Then the object is deleted and its "
                f"collection is kept: {exc}"
            )
            await self.writer.write_failure(document, metadata, pending)
            raise pending from exc

    async def _suspend(self, document: Json, metadata: Metadata) -> None:
        old = document.get("status") or {}
        status = suspended_status(old=old, generation=metadata.generation, now=self.statuses.now)
        await self.writer.write(document, metadata, status)

    async def _check_slug(self, key: Key, memory: AgentMemory) -> None:
        """Check that the object owns its slug, and record its claim: new, or transferred if the connection permits it.

        Raises:
            NotOwned: If another object or namespace has the slug.
            TransientError: If the claim cannot be recorded now.
        """
        claim = self.claims.find_blocking(memory)
        if claim and await self.claims.transfer(memory):
            claim = None
        owner = self.table.find_owner(memory.slug)
        if owner is None or owner.namespace != key.namespace:
            # If an existing object owns the slug, do not offer a takeover.
            raise build_slug_taken(memory.slug, claim if owner is None else None)
        if owner != key:
            message = f"agent {memory.slug!r} belongs to the older AgentMemory {owner.name}: choose another spec.agent"
            raise NotOwned(Reason.SLUG_TAKEN, message)
        await self.claims.claim(memory)

    async def _reconcile(self, key: Key, document: Json, memory: AgentMemory) -> PassOutcome:
        required = (FINALIZER,) if memory.spec.deletion_policy in DELETING_POLICIES else ()
        other_finalizers = [name for name in memory.metadata.finalizers if name != FINALIZER]
        if sorted(memory.metadata.finalizers) != sorted([*other_finalizers, *required]):
            await self.cluster.write_finalizers(AGENT_MEMORY, memory.metadata, [*other_finalizers, *required])
        await self.connections.check_embedding_secret(memory)
        await self._check_embedder(memory)

        async def bring_about(store: CollectionStore) -> PassOutcome:
            async with self.locks.lock_for(memory.slug):
                done = await self._reconcile_collection(key, document, memory, store)
            unlisted = await count_unlisted(memory, done.observed, store)
            to_reseal = await count_to_reseal(memory, done.observed, store, self.clock.now_ms())
            memories = await count_memories(done.observed, store)
            return replace(done, memories=memories, unlisted=unlisted, memories_to_reseal=to_reseal)

        return await self.connections.use(memory, bring_about)

    async def _check_embedder(self, memory: AgentMemory) -> None:
        """Raise SpecInvalid if the egress policy forbids the URL of an OpenAI-compatible embedding service."""
        settings = effective_embedding(memory)
        if settings.provider == "openai":
            await self.hosts.check("spec.embedding.baseURL", settings.base_url or OPENAI_URL)

    async def _reconcile_collection(
        self, key: Key, document: Json, memory: AgentMemory, store: CollectionStore
    ) -> PassOutcome:
        last, cluster_id = memory.status.get("collection") or {}, await self.cluster.cluster_id()
        snapshots, desired = (
            self.table.list_jobs(key, MEMORY_SNAPSHOT),
            newest_collection(memory, cluster_id=cluster_id),
        )

        def decide(live: Marker | None) -> tuple[Collection, PassTerms]:
            recorded = with_recorded_defaults(memory, live)
            terms = replace(build_pass_terms(recorded, cluster_id=cluster_id), takeover=terms_for(recorded, self.table))
            collection = desired if recorded is memory else newest_collection(recorded, cluster_id=cluster_id)
            return collection, terms

        async def acquire_slot() -> str | None:
            return await self._acquire_slot(key, document, memory)

        async with AsyncExitStack() as capacity:

            async def may_create() -> None:
                await check_creation(key, memory, table=self.table, cluster=self.cluster)
                await capacity.enter_async_context(
                    self.connections.reserve_capacity(memory, desired, cluster_id=cluster_id)
                )

            done = await reconcile(
                alias_of(memory.slug),
                desired,
                store=store,
                last_physical=last.get("physical"),
                last_points=max(last.get("points") or 0, max_recorded_points(last.get("physical"), snapshots)),
                permit=PassPermit(
                    decide=decide,
                    resources=self.connections.server_resources(memory),
                    acquire_slot=acquire_slot,
                    check_creation=may_create,
                ),
            )
        return await replicate(done, desired.replication_factor, store=store, acquire_slot=acquire_slot)

    async def _report(
        self, key: Key, document: Json, memory: AgentMemory, done: PassOutcome, *, opened_by: str | None
    ) -> None:
        marker = done.observed.collection.marker
        memory = with_recorded_defaults(memory, marker)
        self.rebuilds.handle_pass(key, memory, done)
        done = self.rebuilds.reports.explain(key, done)
        settings = effective_settings(at_revision(memory, marker.preset_revision) if marker else memory)
        status = converged_status(settings, done, old=memory.status, now=self.statuses.now)
        if self.handover is not None:
            status["access"] = access_status(settings, opened_by)
        status |= self.cleanup_schedule.plan_next(key, memory, settings)
        status |= self.webhooks.schedule(key, memory)
        if rebuild := self.rebuilds.reports.last_status(key):
            status["rebuild"] = rebuild
        reindex_since = (document.get("status") or {}).get("reindexSince")
        if reindex_since and (self.reindex_slots.has_slot(key) or is_running(done.observed)):
            status["reindexSince"] = reindex_since
        if done.previous_owner:
            owner = describe_owner(done.previous_owner, cluster_id=await self.cluster.cluster_id())
            message = f"took over {done.observed.physical} from {owner}"
            event = Event("Normal", "CollectionTakenOver", message)
            await self.cluster.post_event(AGENT_MEMORY, memory.metadata, event)
        for event in pass_events(done, old=document.get("status") or {}, new=status):
            await self.cluster.post_event(AGENT_MEMORY, memory.metadata, event)
        await self.writer.write(document, memory.metadata, status)

    def _parse(self, document: Json) -> AgentMemory:
        """Parse the object. The message of a SpecInvalid names the callers that the API accepts in the meantime."""
        try:
            return self.table.parse(document)
        except SpecInvalid as exc:
            raise SpecInvalid(exc.reason, f"{exc}. {access_notice(document)}") from exc
