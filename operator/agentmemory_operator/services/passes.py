"""One pass over one object: parse, deletion first, slug, reconcile, status. Errors become conditions here."""

import logging
import math
import random
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from agentmemory_operator.domain.collection import RED
from agentmemory_operator.domain.desired import newest_collection, terms_of
from agentmemory_operator.domain.effective import at_revision, effective_settings
from agentmemory_operator.domain.failures import reason_of
from agentmemory_operator.domain.manifests import parse_agent_memory
from agentmemory_operator.domain.naming import alias_of
from agentmemory_operator.domain.outcomes import Reconciled
from agentmemory_operator.domain.reporting import (
    access_status,
    connection_status,
    converged_status,
    failed_connection_status,
    failed_status,
    suspended_status,
)
from agentmemory_operator.domain.resources import AgentMemory, Metadata
from agentmemory_operator.domain.safety import describe_owner
from agentmemory_operator.domain.snapshot_facts import points_held
from agentmemory_operator.domain.times import render_second
from agentmemory_operator.errors import (
    AgentMemoryError,
    DeletionWaiting,
    NotOwned,
    SpecInvalid,
    StoreRejected,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.ports import Clock, Cluster, CollectionStore, Event, Json
from agentmemory_operator.services.aliases import AliasLocks
from agentmemory_operator.services.bootstrap import check_creation
from agentmemory_operator.services.cleaning import Cleaning
from agentmemory_operator.services.closing import with_closing
from agentmemory_operator.services.connections import Connections
from agentmemory_operator.services.handover import Handover
from agentmemory_operator.services.news import events_of
from agentmemory_operator.services.objects import (
    AGENT_MEMORY,
    MEMORY_SNAPSHOT,
    QDRANT_CONNECTION,
    Key,
    ObjectTable,
    key_of,
    slug_of,
)
from agentmemory_operator.services.rebuilds import Rebuilds
from agentmemory_operator.services.reconcile import Permit, reconcile
from agentmemory_operator.services.release import FINALIZER, POLICIES, Release
from agentmemory_operator.services.replication import replicate
from agentmemory_operator.services.snapshot_schedule import SnapshotSchedule
from agentmemory_operator.services.turns import Turns, is_running
from agentmemory_operator.services.unlisted import count_unlisted
from agentmemory_operator.services.workqueue import LAST_RETRY_S

log = logging.getLogger(__name__)

# A server that is away is asked less and less, up to 3 times the period.
PROBE_GROWTH, LARGEST_PROBE_GROWTH = 1.5, 3.0


class Request(Protocol):
    """Asks for a pass over an object."""

    def __call__(self, key: Key, *, after_s: float = 0.0) -> None:
        """Ask for it now or later."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """Seconds until something is looked at again.

    Attributes:
        converged_s: an object that is as it should be: finds what changed behind the operator's back.
        busy_s: one whose collection the engine indexes.
        settle_s: one whose collection was told to reindex and is not seen to.
        stalled_s: one that only a person can mend: a Secret created later sends no event.
        probe_s: a connection.
        release_s: how long an unreachable Qdrant may hold an object's deletion.
        returning_per_s: not a period: how many objects of a connection that came back are looked at each second.
        resync_s: all objects, against the list of the API server.
    """

    converged_s: float = 300.0
    busy_s: float = 5.0
    settle_s: float = 1.0
    stalled_s: float = 30.0
    probe_s: float = 5.0
    release_s: float = 300.0
    resync_s: float = 300.0
    returning_per_s: float = 100.0


@dataclass(slots=True)
class Passes:
    """Passes over every kind.

    Attributes:
        request: asks for a pass over another object.
        handover: gives the retrieval API what it needs of Secrets; None where the API reads them itself.
        cleaning: told of each object, when its next cleanup is due; None cleans nothing up.
        snapshots: told of each object, what there is to say of its snapshots; None makes none.
        rebuilds: told of what each pass found; None carries none out.
        locks: of the aliases; one for all who move them.
    """

    table: ObjectTable
    connections: Connections
    cluster: Cluster
    clock: Clock
    request: Request
    periods: Periods
    handover: Handover | None = None
    cleaning: Cleaning | None = None
    snapshots: SnapshotSchedule | None = None
    rebuilds: Rebuilds | None = None
    locks: AliasLocks = field(default_factory=AliasLocks)
    turns: Turns = field(init=False)
    release: Release = field(init=False)

    def __post_init__(self) -> None:
        self.release = Release(self.table, self.connections, self.cluster, self.request)
        self.turns = Turns(self.table, self.clock)

    async def run(self, key: Key) -> float | None:
        """Do one pass; return after how many seconds the next one is due, None when the object is gone.

        Raises:
            TransientError: it is to be tried again; the status says why.
        """
        document = self.table.get(key)
        if document is None:
            return None
        if key.kind == QDRANT_CONNECTION:
            return await self._connection(key, document)
        return await self._memory(key, document)

    async def _memory(self, key: Key, document: Json) -> float | None:
        metadata = Metadata.model_validate(document["metadata"])
        if metadata.deletion_timestamp:
            return await self._release(document, metadata)
        try:
            memory = parse_agent_memory(document)
            if memory.spec.suspend:
                self._end_turn(key)
                if self.rebuilds is not None:
                    self.rebuilds.note_suspended(key)
                await self._suspend(document, metadata)
                return await self._keep_served(key, memory)
            self._check_slug(key, memory)
            opened_by, trouble = await self._hand_over(memory)
            done = await self._reconcile(key, document, memory)
        except AgentMemoryError as exc:
            self._end_turn(key)
            await self._fail(document, metadata, exc)
            return self._after(key, exc)
        # Right after a Reindex was begun the engine may not be seen to work: the turn stays until the next look.
        if not done.has_reindexed and not is_running(done.observed):
            self._end_turn(key)
        await self._report(key, document, memory, done, opened_by=opened_by)
        if trouble is not None:
            raise trouble
        return self._due_s(key, done)

    async def _hand_over(self, memory: AgentMemory) -> tuple[str | None, TransientError | None]:
        """Give the API what it needs; return what opens Qdrant, and what went wrong, for which nothing else waits."""
        try:
            return await self.handover.hand_over(memory) if self.handover else None, None
        except TransientError as exc:
            return ((memory.status.get("access") or {}).get("qdrant")), exc

    async def _keep_served(self, key: Key, memory: AgentMemory) -> float | None:
        """Renew what the API needs of a suspended agent; return when to do so again."""
        if self.handover is None or self.table.owner_of(memory.slug) != key:
            return None
        try:
            await self.handover.hand_over(memory)
        except SpecInvalid as exc:
            log.warning("the suspended %s may not be served for long: %s", key, exc)
        return _jittered(self.periods.converged_s)

    def _due_s(self, key: Key, done: Reconciled) -> float:
        """Return after how many seconds the next pass is due."""
        if done.observed.state == RED or done.is_queued:
            return self.periods.stalled_s
        if done.observed.is_busy:
            return self.periods.busy_s
        if self.turns.is_held_by(key):
            return self.periods.settle_s
        return _jittered(self.periods.converged_s)

    def _after(self, key: Key, exc: AgentMemoryError) -> float:
        """Return when to look again after a failure.

        Raises:
            TransientError: `exc` itself, if another attempt may help; the queue spaces the attempts.
        """
        connection = self.table.connection_of(key)
        if self.connections.is_away(connection):
            # Who comes back asks for passes.
            return _jittered(self.periods.converged_s)
        if connection is not None and isinstance(exc, StoreUnavailable | StoreRejected):
            # One probe finds out for all what this pass has met.
            self.request(connection, after_s=self.connections.until_probe_s(connection))
        if isinstance(exc, TransientError):
            raise exc
        return self.periods.stalled_s

    def _end_turn(self, key: Key) -> None:
        """Give the turn to reindex to whoever waits for it."""
        if not self.turns.is_held_by(key):
            return
        self.turns.give_back(key)
        if waiting := self.turns.next_of(key):
            self.request(waiting)

    async def _take_turn(self, key: Key, document: Json, memory: AgentMemory, store: CollectionStore) -> str | None:
        """Take the turn to reindex and write that down; return whose turn it is where it is another's."""
        before = await self.turns.take(key, store)
        if before is not None:
            return str(before)
        status = (document.get("status") or {}) | {"reindexSince": self._now()}
        await self._write(AGENT_MEMORY, document, memory.metadata, status)
        return None

    async def _release(self, document: Json, metadata: Metadata) -> float | None:
        since = datetime.fromisoformat(metadata.deletion_timestamp or self._now())
        deadline_s = since.timestamp() + self.periods.release_s
        is_overdue = self.clock.now_ms() / 1000 > deadline_s
        try:
            async with self.locks.of(slug_of(document)):
                await self.release.run(document, metadata, is_overdue=is_overdue)
            return None
        except DeletionWaiting as exc:
            await self._fail(document, metadata, exc)
            return self.periods.busy_s
        except StoreUnavailable as exc:
            waiting = DeletionWaiting(
                f"the deletion waits for Qdrant until {render_second(deadline_s)}; then the object goes, and its "
                f"collection is kept: {exc}"
            )
            await self._fail(document, metadata, waiting)
            raise waiting from exc

    async def _suspend(self, document: Json, metadata: Metadata) -> None:
        old = document.get("status") or {}
        status = suspended_status(old=old, generation=metadata.generation, now=self._now())
        await self._write(AGENT_MEMORY, document, metadata, status)

    def _check_slug(self, key: Key, memory: AgentMemory) -> None:
        owner = self.table.owner_of(memory.slug)
        if owner is not None and owner != key:
            raise NotOwned(
                "SlugTaken",
                f"agent {memory.slug!r} belongs to the older AgentMemory {owner.namespace}/{owner.name}: "
                f"choose another spec.agent",
            )

    async def _reconcile(self, key: Key, document: Json, memory: AgentMemory) -> Reconciled:
        wanted = (FINALIZER,) if memory.spec.deletion_policy in POLICIES else ()
        others = [name for name in memory.metadata.finalizers if name != FINALIZER]
        if sorted(memory.metadata.finalizers) != sorted([*others, *wanted]):
            await self.cluster.write_finalizers(AGENT_MEMORY, memory.metadata, [*others, *wanted])
        await self.connections.check_embedding_secret(memory)

        async def bring_about(store: CollectionStore) -> Reconciled:
            async with self.locks.of(memory.slug):
                done = await self._bring_about(key, document, memory, store)
            return replace(done, unlisted=await count_unlisted(memory, done.observed, store))

        return await self.connections.use(memory, bring_about)

    async def _bring_about(self, key: Key, document: Json, memory: AgentMemory, store: CollectionStore) -> Reconciled:
        last, cluster_id = memory.status.get("collection") or {}, await self.cluster.cluster_id()
        taken, desired = self.table.jobs_of(key, MEMORY_SNAPSHOT), newest_collection(memory, cluster_id=cluster_id)

        async def take_turn() -> str | None:
            return await self._take_turn(key, document, memory, store)

        done = await reconcile(
            alias_of(memory.slug),
            desired,
            store=store,
            last_physical=last.get("physical"),
            last_points=max(last.get("points") or 0, points_held(last.get("physical"), taken)),
            permit=Permit(
                terms=terms_of(memory, cluster_id=cluster_id),
                room=self.connections.room_of(memory),
                turn=take_turn,
                check_creation=lambda: check_creation(key, memory, table=self.table, cluster=self.cluster),
            ),
        )
        return await replicate(done, desired.replication_factor, store=store, turn=take_turn)

    async def _report(
        self, key: Key, document: Json, memory: AgentMemory, done: Reconciled, *, opened_by: str | None
    ) -> None:
        if self.rebuilds is not None:
            self.rebuilds.note(key, memory, done)
            done = self.rebuilds.reports.explained(key, done)
        marker = done.observed.collection.marker
        settings = effective_settings(at_revision(memory, marker.preset_revision) if marker else memory)
        status = converged_status(settings, done, old=memory.status, now=self._now())
        if self.handover is not None:
            status["access"] = access_status(settings, opened_by)
        if self.cleaning is not None:
            status |= self.cleaning.note(key, memory, settings)
        if rebuild := self.rebuilds.reports.last(key) if self.rebuilds else None:
            status["rebuild"] = rebuild
        since = (document.get("status") or {}).get("reindexSince")
        if since and (self.turns.is_held_by(key) or is_running(done.observed)):
            status["reindexSince"] = since
        if done.taken_from:
            owner = describe_owner(done.taken_from, cluster_id=await self.cluster.cluster_id())
            message = f"{done.observed.physical} was {owner}'s and is this object's"
            event = Event("Normal", "CollectionTakenOver", message)
            await self.cluster.post_event(AGENT_MEMORY, memory.metadata, event)
        for event in events_of(done, old=document.get("status") or {}, new=status):
            await self.cluster.post_event(AGENT_MEMORY, memory.metadata, event)
        await self._write(AGENT_MEMORY, document, memory.metadata, status)

    async def _connection(self, key: Key, document: Json) -> float:
        metadata = Metadata.model_validate(document["metadata"])
        old = document.get("status") or {}
        try:
            server, was_down = await self.connections.probe(document)
        except AgentMemoryError as exc:
            if await self._fail(document, metadata, exc):
                self._request_users(key)
            growth = PROBE_GROWTH ** self.connections.failures(key)
            asked_s = min(exc.retry_after_s, LAST_RETRY_S) if isinstance(exc, TransientError) else 0.0
            return max(_jittered(self.periods.probe_s * min(growth, LARGEST_PROBE_GROWTH)), asked_s)
        status = connection_status(server, old=old, generation=metadata.generation, now=self._now())
        if await self._write(QDRANT_CONNECTION, document, metadata, status) or was_down:
            self._request_users(key, per_s=self.periods.returning_per_s if was_down else math.inf)
        return _jittered(self.periods.probe_s)

    def _request_users(self, connection: Key, *, per_s: float = math.inf) -> None:
        """Ask for passes of the connection's objects, spread so that about `per_s` of them come each second."""
        users = self.table.users_of(connection)
        for key in users:
            self.request(key, after_s=random.uniform(0.0, len(users) / per_s))

    async def _fail(self, document: Json, metadata: Metadata, exc: AgentMemoryError) -> bool:
        """Write down what failed; tell whether that is news.

        Raises:
            TransientError: `exc` itself, if it is not Qdrant's: Kubernetes' own trouble says nothing about the object.
        """
        if isinstance(exc, TransientError) and not isinstance(exc, StoreUnavailable):
            raise exc
        reason, is_stalled = reason_of(exc)
        make_status = failed_connection_status if document["kind"] == QDRANT_CONNECTION else failed_status
        status = make_status(
            reason,
            str(exc),
            is_stalled=is_stalled,
            old=document.get("status") or {},
            generation=metadata.generation,
            now=self._now(),
        )
        if isinstance(exc, NotOwned) and exc.owner:
            status["foreignOwner"] = dict(exc.owner)
        if _reasons(status) != _reasons(document.get("status") or {}):
            await self.cluster.post_event(document["kind"], metadata, Event("Warning", reason, str(exc)))
        return await self._write(document["kind"], document, metadata, status)

    async def _write(self, kind: str, document: Json, metadata: Metadata, status: Json) -> bool:
        """Write the status where it differs; tell whether it did."""
        if kind == AGENT_MEMORY:
            status = with_closing(status, key_of(document), self.table)
            status = self.snapshots.note(key_of(document), document, status) if self.snapshots else status
        if status == (document.get("status") or {}):
            return False
        await self.cluster.write_status(kind, metadata, status)
        # The watch brings the written object only later; a pass before that must not write again.
        document["status"] = status
        return True

    def _now(self) -> str:
        return render_second(self.clock.now_ms() / 1000)


def _jittered(seconds: float) -> float:
    """Return about so many seconds: a thousand objects must not come in step."""
    return seconds * random.uniform(0.8, 1.2)


def _reasons(status: Json) -> list[Any]:
    return [(condition["type"], condition["reason"]) for condition in status.get("conditions") or []]
