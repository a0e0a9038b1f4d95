"""Start a rebuild with an empty target and its record, or a rollback to the collection that the rebuild replaced."""

from dataclasses import dataclass, replace

from agentmemory_operator.collections.reconcile import plan_pass
from agentmemory_operator.collections.rules.changes import CreateCollection, CreateIndexes
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY, Observation, is_placeholder
from agentmemory_operator.collections.rules.desired import build_pass_terms, newest_collection, with_recorded_defaults
from agentmemory_operator.collections.rules.plan import rebuild_digest
from agentmemory_operator.collections.rules.rebuild_record import (
    REBUILD_KEY,
    RebuildKind,
    RebuildRecord,
    record_to_json,
    rollback_record,
)
from agentmemory_operator.collections.rules.refusals import Refusal
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import NotFound, RebuildCancelled, RebuildPaused, SpecInvalid
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.rebuilds.reports import RebuildReports
from agentmemory_operator.rebuilds.rules.decision import RebuildRequest, decide
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.restores.precedence import blocking_restore_message
from agentmemory_operator.runtime.object_table import Key, ObjectTable, owned_memory, read_recorded_names
from agentmemory_operator.spec.kinds.agent_memory import PAUSE_REBUILD, ROLLBACK_REBUILD, AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.naming import alias_of, next_physical


@dataclass(frozen=True, slots=True)
class RebuildRequests:
    """Reads the requests of objects, and checks that a rebuild is still requested."""

    table: ObjectTable
    cluster: Cluster

    async def read(self, memory: AgentMemory, live: Observation | None) -> RebuildRequest:
        """Return the request of the object. A rebuild that is refused or lacks an approval is not requested.

        Args:
            live: Collection behind the alias. If it is None, no rebuild is requested.
        """
        rollback = memory.metadata.annotations.get(ROLLBACK_REBUILD)
        digest = await self._read_allowed_digest(memory, live) if live else None
        return RebuildRequest(digest=digest, rollback=rollback)

    async def _read_allowed_digest(self, memory: AgentMemory, live: Observation) -> str | None:
        cluster_id = await self.cluster.cluster_id()
        # As a pass does: the status may not have the defaults of the collection yet.
        memory = with_recorded_defaults(memory, live.collection.marker)
        planned = plan_pass(
            alias_of(memory.slug),
            newest_collection(memory, cluster_id=cluster_id),
            live,
            last_physical=live.physical,
            last_points=live.points,
            terms=build_pass_terms(memory, cluster_id=cluster_id),
        )
        return rebuild_digest(planned.plan) if has_background_rebuild(planned.refusal) else None

    async def check(self, key: Key, uid: str, live: Observation, record: RebuildRecord, points: PointStore) -> None:
        """Raise unless a rebuild may continue.

        Args:
            uid: UID of the AgentMemory at the start of this run.
            live: Live collection at the start of this run. If it was empty, its points are counted again.
            points: Point store of the live collection's server.

        Raises:
            RebuildPaused: If the object is suspended or paused, or a restore is in progress.
            RebuildCancelled: If the object was deleted, became invalid, lost its slug, or requests no such rebuild any
                more.
        """
        memory = owned_memory(self.table, key)
        if memory is None or memory.metadata.uid != uid:
            raise RebuildCancelled("the AgentMemory was deleted or became invalid")
        if memory.spec.suspend:
            raise RebuildPaused("spec.suspend is true: set it to false to continue")
        if PAUSE_REBUILD in memory.metadata.annotations:
            raise RebuildPaused(f"paused by the annotation {PAUSE_REBUILD}: remove it to continue")
        if message := blocking_restore_message(key, self.table):
            raise RebuildPaused(message)
        live = await correct_point_count(live, points)
        request = await self.read(memory, live)
        decision = decide(live, [record], request)
        if decision.current is None:
            raise RebuildCancelled("the object no longer asks for it")


async def correct_point_count(live: Observation, points: PointStore) -> Observation:
    """Return the live collection with `points` set to 1 if it reports no points but contains one, else unchanged.

    The reported number is an estimate. A page of one point is exact and cheap, and is allowed where an exact count is
    not (`search_allow_exact: false`).
    """
    if live.points:
        return live
    try:
        page, _ = await points.scroll(live.physical, {"limit": 1, "with_payload": False, "with_vector": False})
    except NotFound:
        # Ignore that the collection was deleted after it was observed: later calls fail because of it.
        return live
    return replace(live, points=len(page))


def has_background_rebuild(refusal: Refusal | None) -> bool:
    """Return whether a pass left a rebuild to `Rebuilds`, which runs it in the background without a further decision.

    Args:
        refusal: Refusal of the pass; None if it withheld no change.
    """
    return refusal is not None and refusal.is_running


INDEXING_OFF = 0
"""`indexing_threshold` with which Qdrant builds no graph. Step Converge sets the object's own threshold."""


@dataclass(frozen=True, slots=True)
class RebuildStarter:
    """Starts rebuilds and rollbacks, and creates the targets of rebuilds."""

    table: ObjectTable
    clock: Clock
    reports: RebuildReports

    async def start(
        self, key: Key, memory: AgentMemory, server: Server, live: Observation, digest: str | None
    ) -> RebuildRecord:
        """Return the record of a new rebuild, which `create` stores later, or of a new rollback.

        The record of a rollback is written here, into the metadata of its target.

        Args:
            digest: Digest of the plan of the rebuild; None starts a rollback.

        Raises:
            SpecInvalid: If there is no collection to roll back to. Nothing was written.
        """
        if digest is None:
            return await self._start_rollback(server, live)
        alias, now_ms = alias_of(memory.slug), self.clock.now_ms()
        last = self.reports.last_status(key)
        used_names = (
            memory.reported_physical,
            last.get("source"),
            last.get("target"),
            *read_recorded_names(self.table, key.namespace),
        )
        names = [*await server.snapshots.collections(), *used_names]
        return RebuildRecord(
            source=live.physical,
            target=next_physical(alias, names),
            digest=digest,
            started_ms=now_ms,
            since_ms=now_ms,
            total=live.points,
        )

    async def _start_rollback(self, server: Server, live: Observation) -> RebuildRecord:
        if live.record is None or live.record.kind is RebuildKind.ROLLBACK:
            raise SpecInvalid(
                Reason.PREVIOUS_GONE, f"{live.physical} was not created by a rebuild: nothing to roll back"
            )
        previous = live.record.source
        metadata = await server.snapshots.metadata(previous)
        if metadata is None or is_placeholder(metadata) or PREVIOUS_KEY not in metadata:
            raise SpecInvalid(Reason.PREVIOUS_GONE, f"{previous}, which {live.physical} replaced, is no longer kept")
        record = rollback_record(live.record, self.clock.now_ms())
        await server.snapshots.write_metadata(previous, {REBUILD_KEY: record_to_json(record)})
        return record

    async def create(self, task: RebuildRun) -> str:
        """Step Create: create the empty target with its record and indexes, and post an event.

        Return the result for users.
        """
        message = f"{task.source_name} is being rebuilt as {task.target_name} and keeps serving"
        await self.reports.post_event(task.memory, Event("Normal", "RebuildBegun", message))
        # Use the source's values for two fields that the object may leave unset.
        live, desired = task.source.collection, task.desired
        shards = desired.shard_number or live.shard_number
        factor = desired.replication_factor or live.replication_factor
        # Build no graph before the copy is complete: it would be rebuilt repeatedly and slow down searches of the
        # source.
        settings = replace(
            desired,
            indexes=(),
            shard_number=shards,
            replication_factor=factor,
            optimizers=replace(desired.optimizers, indexing_threshold_kb=INDEXING_OFF),
        )
        await task.server.collections.apply(task.target_name, CreateCollection(task.target_name, settings, task.record))
        # Create indexes before there are points: a graph gets filter links only for indexes that exist when it is
        # built.
        await task.server.collections.apply(task.target_name, CreateIndexes(desired.indexes))
        return "made, empty"
