"""Rebuilds of agents' collections, and the way back: what is wanted is begun, and gone on with to its end.

What is under way stands in the metadata of collections (`domain/rebuilding.py`), so that whoever comes next goes on
where the last one was killed; an object's status only tells people of it. Every pass over an object says here what it
found; a rebuild ends with a pass, which sees what the alias leads to then.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from agentmemory_operator.domain.collection import (
    Collection,
    EmbeddingSource,
    Observed,
    has_same_vectors,
    is_placeholder,
)
from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.domain.desired import newest_collection
from agentmemory_operator.domain.naming import alias_of, next_physical, number_of
from agentmemory_operator.domain.outcomes import Reconciled
from agentmemory_operator.domain.plain_moves import is_of_plain, is_past_return, without_plain
from agentmemory_operator.domain.planning import CreateCollection
from agentmemory_operator.domain.rebuild_decision import Decision, decide
from agentmemory_operator.domain.rebuild_status import State, is_under_way
from agentmemory_operator.domain.rebuilding import (
    REBUILD_KEY,
    Kind,
    Record,
    Step,
    record_from_json,
    record_to_json,
    steps_from,
    way_back,
)
from agentmemory_operator.domain.resources import (
    RECONCILE_REQUESTED_AT,
    ROLLBACK_REBUILD,
    AgentMemory,
)
from agentmemory_operator.errors import (
    AgentMemoryError,
    LeadershipLost,
    RebuildHeld,
    RebuildPaused,
    RebuildUnwanted,
    SpecInvalid,
    TransientError,
)
from agentmemory_operator.ports import Clock, Cluster, Embedder, Event
from agentmemory_operator.services.aliases import AliasLocks
from agentmemory_operator.services.moving import release_writers
from agentmemory_operator.services.objects import Key, ObjectTable, key_of_memory, names_on_record, owned_memory
from agentmemory_operator.services.previous import PREVIOUS_KEY, live_behind
from agentmemory_operator.services.rebuild_reports import RebuildReports
from agentmemory_operator.services.rebuild_tasks import Task
from agentmemory_operator.services.rebuild_wishes import RebuildWishes, is_running
from agentmemory_operator.services.replication import await_replicas
from agentmemory_operator.services.restore_queue import restore_under_way
from agentmemory_operator.services.servers import Server, Servers, connection_of
from agentmemory_operator.services.workqueue import WorkQueue

log = logging.getLogger(__name__)

WHOLE = (Step.VERIFY, Step.MOVE)
"""Steps before which every replica of the target has to be active."""

StepWork = Callable[[Task], Awaitable[str]]
"""Does a step; returns what it came to, for people."""

OpenEmbedder = Callable[[EmbeddingSource, AgentMemory], Awaitable[Embedder]]
"""Opens what embeds for an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildPeriods:
    """Seconds.

    Attributes:
        look_s: until what has to wait is looked at again.
        hold_s: until what waits for an approval catches up again.
        retry_s: until one that failed for good is tried again by itself.
    """

    look_s: float = 5.0
    hold_s: float = 60.0
    retry_s: float = 3600.0


@dataclass(slots=True, kw_only=True)
class Rebuilds:
    """Begins rebuilds and brings them on.

    Attributes:
        request: asks for a pass over an object.
        locks: of the aliases; one for all who move them.
        steps: what is done in each step but the first.
        abandon: takes back what a rebuild that is given up did to its source.
        width: rebuilds at a time of the objects of one connection.
    """

    table: ObjectTable
    servers: Servers
    cluster: Cluster
    clock: Clock
    request: Callable[[Key], None]
    locks: AliasLocks
    open_embedder: OpenEmbedder
    steps: Mapping[Step, StepWork]
    abandon: Callable[[Server, Record], Awaitable[None]]
    reports: RebuildReports
    wishes: RebuildWishes = field(init=False)
    width: int = 1
    periods: RebuildPeriods = field(default_factory=RebuildPeriods)
    queue: WorkQueue[Key] = field(init=False)

    def __post_init__(self) -> None:
        self.wishes = RebuildWishes(self.table, self.cluster)
        self.queue = WorkQueue(self.run, lane_of=self.table.lane_of, width=self.width)

    def note(self, key: Key, memory: AgentMemory, done: Reconciled) -> None:
        """Take in what a pass found; what has to be done is begun, or gone on with."""
        record, back = done.observed.record, memory.metadata.annotations.get(ROLLBACK_REBUILD)
        is_open = record is not None and record.target == done.observed.physical and record.step is not Step.DONE
        is_wanted = is_running(done.refusal) or (back is not None and back == done.observed.physical)
        if is_wanted:
            self.reports.await_turn(key)
        if is_open or is_wanted or self.reports.is_under_way(key):
            self.queue.request(key)

    async def run(self, key: Key) -> float | None:
        """Do what is to be done; return after how many seconds to look again, None for when a pass asks.

        Raises:
            TransientError: it is to be tried again; the status says why.
        """
        memory = owned_memory(self.table, key)
        if memory is None or memory.spec.suspend:
            return None
        work, before = partial(self._look, key, memory), self.reports.last(key)
        try:
            return await self.servers.use(connection_of(memory), work, namespace=key.namespace)
        finally:
            # Only news is worth a pass: each asks here again.
            if self.reports.last(key) != before:
                self.request(key)

    async def _look(self, key: Key, memory: AgentMemory, server: Server) -> float | None:
        live = await live_behind(server, alias_of(memory.slug), _last_physical(memory))
        wish = await self.wishes.read(memory, live)
        decision = decide(live, await self._records(server, memory), wish)
        if live is not None and not decision.is_urgent:
            # Nothing moves at the beginning of a look: who announced it was killed.
            await release_writers(server, live.physical)
        if waits := self._obstacle(key, decision):
            await self.reports.stand(key, State.WAITING, waits, decision.going_on)
            return self.periods.look_s
        for record in decision.unwanted:
            await self._remove(key, memory, server, record)
        if live is None:
            return None
        if not (decision.going_on or decision.begins):
            await self._catch_up_with(key, live)
            return None
        asked = memory.metadata.annotations.get(RECONCILE_REQUESTED_AT)
        failed_s = self.reports.failed_since_s(key, wish.digest, asked)
        if decision.going_on is None and failed_s is not None and failed_s < self.periods.retry_s:
            return self.periods.retry_s - failed_s
        return await self._bring_on(key, memory, server, live, decision)

    async def _records(self, server: Server, memory: AgentMemory) -> list[Record]:
        """Return the records of the agent's collections."""
        alias, records = alias_of(memory.slug), []
        for name in await server.snapshots.collections():
            if number_of(name, alias) is None:
                continue
            metadata = await server.snapshots.metadata(name)
            record = None if is_placeholder(metadata) else record_from_json(metadata)
            # One that came with a snapshot tells of another collection.
            if record is not None and record.target == name:
                records.append(record)
        return records

    def _obstacle(self, key: Key, decision: Decision) -> str | None:
        """Return what there is to wait for.

        What a restore is about to mark as replaced is not to be taken for what nobody wants.
        """
        found = restore_under_way(key, self.table) if decision.may_wait else None
        return f"MemoryRestore {found.name} is under way: it goes first" if found else None

    async def _bring_on(
        self, key: Key, memory: AgentMemory, server: Server, live: Observed, decision: Decision
    ) -> float | None:
        try:
            record = decision.going_on or await self._begun(key, memory, server, live, decision.begins)
        except SpecInvalid as exc:
            return await self._refuse_way_back(key, memory, live, str(exc))
        return await self._go_on(key, memory, server, live, record)

    async def _go_on(
        self, key: Key, memory: AgentMemory, server: Server, live: Observed, record: Record
    ) -> float | None:
        if record.target == live.physical:
            record = without_plain(record, alias_of(memory.slug), self.clock.now_ms())
        try:
            await self._go_through(await self._task(key, memory, server, live, record))
        except LeadershipLost:
            raise
        except RebuildPaused as exc:
            await self.reports.stand(key, State.PAUSED, str(exc), record)
        except RebuildHeld as exc:
            await self.reports.stand(key, State.HELD, str(exc), record)
            return self.periods.hold_s
        except RebuildUnwanted as exc:
            # Now: nobody comes back for an object that is gone.
            log.info("%s: the rebuild is given up: %s", key, exc)
            await self._remove(key, memory, server, record)
            return 0.0
        except TransientError as exc:
            return await self._met(key, memory, server, record, exc)
        except AgentMemoryError as exc:
            return await self._fail(key, memory, server, record, str(exc))
        return None

    async def _met(self, key: Key, memory: AgentMemory, server: Server, record: Record, exc: TransientError) -> float:
        """Give up what has filled the disk, so that others can write again; what else may pass is waited for.

        Raises:
            TransientError: `exc` itself, where it is waited for.
        """
        if exc.is_disk_full and await self._is_source_live(server, memory, record):
            room = f"give it room for a second collection beside {record.source}"
            return await self._fail(key, memory, server, record, f"the disk of Qdrant is full: {room}. {exc}")
        await self.reports.stand(key, State.WAITING, str(exc), record)
        raise exc

    async def _begun(self, key: Key, memory: AgentMemory, server: Server, live: Observed, kind: Kind | None) -> Record:
        """Begin one: the record is all that is made of it here, and what the first step makes."""
        if kind is Kind.ROLLBACK:
            return await self._begun_back(server, live)
        digest, now_ms = await self.wishes.allowed(memory, live), self.clock.now_ms()
        if digest is None:
            raise RebuildUnwanted("it is not asked for any more")
        alias = alias_of(memory.slug)
        last = self.reports.last(key)
        known = (_last_physical(memory), last.get("source"), last.get("target"), *names_on_record(self.table))
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

    async def _refuse_way_back(self, key: Key, memory: AgentMemory, live: Observed, why: str) -> float:
        """Say why a rebuild is not taken back; nothing was changed."""
        asked, now_ms = memory.metadata.annotations.get(RECONCILE_REQUESTED_AT), self.clock.now_ms()
        # What no rebuild made has nowhere to go back to but itself.
        itself = Record(source=live.physical, target=live.physical, digest="", begun_ms=now_ms, since_ms=now_ms)
        record = way_back(live.record or itself, now_ms)
        await self.reports.end(key, record, State.FAILED, why, asked=asked)
        await self.reports.post(memory, Event("Warning", Reason.PREVIOUS_GONE, why))
        return self.periods.retry_s

    async def _task(self, key: Key, memory: AgentMemory, server: Server, live: Observed, record: Record) -> Task:
        desired = await self._desired(memory, server, record)
        source = live
        if record.target == live.physical:
            gone = await server.collections.observe(record.source, record.source, is_linked=True)
            source = gone or replace(live, physical=record.source, points=0)
        embedder = None
        if desired.marker is not None and not has_same_vectors(source.collection, desired):
            embedder = await self.open_embedder(desired.marker.embedding, memory)
        check = partial(self.wishes.check, key, memory.metadata.uid, live, record)
        return Task(
            memory=memory,
            server=server,
            source=source,
            desired=desired,
            record=record,
            clock=self.clock,
            embedder=embedder,
            check=_go_on if is_past_return(record, live.physical) else check,
            show=partial(self.reports.show, key),
        )

    async def _desired(self, memory: AgentMemory, server: Server, record: Record) -> Collection:
        if record.kind is Kind.REBUILD:
            return newest_collection(memory, cluster_id=await self.cluster.cluster_id())
        previous = await server.collections.observe(record.target, record.target, is_linked=True)
        if previous is None:
            raise SpecInvalid(Reason.PREVIOUS_GONE, f"{record.target} is gone from Qdrant: somebody deleted it")
        return previous.collection

    async def _go_through(self, task: Task) -> None:
        is_moved = task.source.physical != task.record.source or await self._is_live(task)
        for step in steps_from(task.record.step, is_moved=is_moved):
            if not (is_moved or step in (Step.DRAIN, Step.SETTLE)):
                await task.check()
            if step is Step.CREATE:
                await self._create(task)
                continue
            if step is Step.KEEP and not is_of_plain(task.record, task.alias):
                continue
            if task.record.step is not step:
                await task.note(step=step)
            if step in WHOLE:
                await await_replicas(task)
            came_to = await self.steps[step](task)
            log.info("rebuild of %s into %s: %s: %s", task.source_name, task.target_name, step, came_to)
        await self._finish(task)

    @staticmethod
    async def _is_source_live(server: Server, memory: AgentMemory, record: Record) -> bool:
        live = await live_behind(server, alias_of(memory.slug), record.source)
        return live is not None and live.physical == record.source

    @staticmethod
    async def _is_live(task: Task) -> bool:
        live = await live_behind(task.server, task.alias, task.target_name)
        return live is not None and live.physical == task.target_name

    async def _create(self, task: Task) -> None:
        begun = f"{task.source_name} is being rebuilt as {task.target_name}, and serves meanwhile"
        await self.reports.post(task.memory, Event("Normal", "RebuildBegun", begun))
        # What the object leaves to the server stays as the source has it.
        live, desired = task.source.collection, task.desired
        shards = desired.shard_number or live.shard_number
        factor = desired.replication_factor or live.replication_factor
        bare = replace(desired, indexes=(), shard_number=shards, replication_factor=factor)
        await task.server.collections.apply(task.target_name, CreateCollection(task.target_name, bare, task.record))

    async def _catch_up_with(self, key: Key, live: Observed) -> None:
        """Tell how one ended whose operator was killed before it came to say so."""
        told, record = self.reports.last(key), live.record
        if not is_under_way(told):
            return
        if record is not None and record.target == live.physical == told.get("target"):
            await self.reports.end(key, record, State.DONE, _done(record))
        else:
            await self.reports.stand(key, State.STOPPED, "it is not wanted any more; nothing of it is left")

    async def _finish(self, task: Task) -> None:
        await task.note(step=Step.DONE)
        message = _done(task.record)
        await self.reports.end(key_of_memory(task.memory), task.record, State.DONE, message)
        reason = Reason.ROLLED_BACK if task.record.kind is Kind.ROLLBACK else "Rebuilt"
        await self.reports.post(task.memory, Event("Normal", reason, message))

    async def _remove(self, key: Key, memory: AgentMemory, server: Server, record: Record) -> None:
        """Remove what a rebuild has made that is not wanted; a collection that was replaced stays what it was."""
        async with self.locks.of(memory.slug):
            live = await live_behind(server, alias_of(memory.slug), record.source)
            # What was noted since this record was read counts.
            metadata = await server.snapshots.metadata(record.target) or {}
            record = record_from_json(metadata) or record
            if (live is not None and live.physical == record.target) or is_past_return(record, alias_of(memory.slug)):
                return
            await self.abandon(server, record)
            await release_writers(server, record.source)
            if record.kind is Kind.ROLLBACK or PREVIOUS_KEY in metadata:
                ended = record_to_json(replace(record, step=Step.DONE))
                await server.snapshots.write_metadata(record.target, {REBUILD_KEY: ended})
            else:
                await server.collections.delete(record.target)
            if record.way_back is not None:
                await server.collections.delete(record.way_back)
        message = f"{record.target}, which was being made, is not wanted any more and is removed"
        await self.reports.end(key, record, State.STOPPED, message)

    async def _fail(self, key: Key, memory: AgentMemory, server: Server, record: Record, why: str) -> float:
        """Give a rebuild up, and say why; what it made is removed, unless it is live."""
        await self._remove(key, memory, server, record)
        asked = memory.metadata.annotations.get(RECONCILE_REQUESTED_AT)
        await self.reports.end(key, record, State.FAILED, why, asked=asked)
        await self.reports.post(memory, Event("Warning", Reason.REBUILD_FAILED, why))
        return self.periods.retry_s


async def _go_on() -> None:
    """Let a rebuild go on, whatever is asked for: without it clients are not served."""


def _done(record: Record) -> str:
    if record.pause_ms is None:
        return f"{record.target} is live in the place of {record.source}"
    return (
        f"{record.target} is live in the place of a collection of the alias's own name, of which {record.source} is "
        f"the copy that is kept; clients found no collection for {record.pause_ms} ms"
    )


def _last_physical(memory: AgentMemory) -> str | None:
    return (memory.status.get("collection") or {}).get("physical")
