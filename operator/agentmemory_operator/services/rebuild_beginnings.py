"""How a rebuild begins: the name and the record of its target, which is made empty; or the way back to what is kept."""

from dataclasses import dataclass, replace

from agentmemory_operator.domain.changes import CreateCollection, CreateIndexes
from agentmemory_operator.domain.collection import PREVIOUS_KEY, Observed, is_placeholder
from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.domain.naming import alias_of, next_physical
from agentmemory_operator.domain.rebuilding import REBUILD_KEY, Kind, Record, record_to_json, way_back
from agentmemory_operator.domain.resources import AgentMemory
from agentmemory_operator.errors import RebuildUnwanted, SpecInvalid
from agentmemory_operator.ports import Clock, Event
from agentmemory_operator.services.objects import Key, ObjectTable, names_on_record
from agentmemory_operator.services.rebuild_reports import RebuildReports
from agentmemory_operator.services.rebuild_tasks import Task
from agentmemory_operator.services.rebuild_wishes import RebuildWishes
from agentmemory_operator.services.servers import Server

INDEXING_OFF = 0
"""Threshold with which Qdrant builds no graph; Converge puts the object's in its place."""


@dataclass(frozen=True, slots=True)
class RebuildBeginnings:
    """Begins rebuilds."""

    table: ObjectTable
    clock: Clock
    wishes: RebuildWishes
    reports: RebuildReports

    async def begin(self, key: Key, memory: AgentMemory, server: Server, live: Observed, kind: Kind | None) -> Record:
        """Return the record of a new one; that of a way back lies in its target already.

        Raises:
            SpecInvalid: nothing is kept that a way back would lead to.
        """
        if kind is Kind.ROLLBACK:
            return await self._begun_back(server, live)
        digest, now_ms = await self.wishes.allowed(memory, live), self.clock.now_ms()
        if digest is None:
            raise RebuildUnwanted("it is not asked for any more")
        alias = alias_of(memory.slug)
        last = self.reports.last(key)
        known = (
            (memory.status.get("collection") or {}).get("physical"),
            last.get("source"),
            last.get("target"),
            *names_on_record(self.table),
        )
        names = [*await server.snapshots.collections(), *known]
        return Record(
            source=live.physical,
            target=next_physical(alias, names),
            digest=digest,
            begun_ms=now_ms,
            since_ms=now_ms,
            total=live.points,
        )

    async def _begun_back(self, server: Server, live: Observed) -> Record:
        if live.record is None or live.record.kind is Kind.ROLLBACK:
            raise SpecInvalid(
                Reason.PREVIOUS_GONE, f"{live.physical} is not what a rebuild made: nothing is taken back"
            )
        previous = live.record.source
        metadata = await server.snapshots.metadata(previous)
        if metadata is None or is_placeholder(metadata) or PREVIOUS_KEY not in metadata:
            raise SpecInvalid(Reason.PREVIOUS_GONE, f"{previous}, which {live.physical} replaced, is not kept any more")
        record = way_back(live.record, self.clock.now_ms())
        await server.snapshots.write_metadata(previous, {REBUILD_KEY: record_to_json(record)})
        return record

    async def create(self, task: Task) -> None:
        """Make the target, empty, with its record."""
        begun = f"{task.source_name} is being rebuilt as {task.target_name}, and serves meanwhile"
        await self.reports.post(task.memory, Event("Normal", "RebuildBegun", begun))
        # What the object leaves to the server stays as the source has it.
        live, desired = task.source.collection, task.desired
        shards = desired.shard_number or live.shard_number
        factor = desired.replication_factor or live.replication_factor
        # No graph before all is there: it would be built time and again, beside searches of the source.
        bare = replace(
            desired,
            indexes=(),
            shard_number=shards,
            replication_factor=factor,
            indexing_threshold_kb=INDEXING_OFF,
        )
        await task.server.collections.apply(task.target_name, CreateCollection(task.target_name, bare, task.record))
        # Before there are points: the graph gets its links for filters only by indexes that are there when it is built.
        await task.server.collections.apply(task.target_name, CreateIndexes(desired.indexes))
