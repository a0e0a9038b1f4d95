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
    PREVIOUS_KEY,
    Collection,
    EmbeddingSource,
    Observed,
    has_same_vectors,
    is_placeholder,
)
from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.domain.desired import newest_collection
from agentmemory_operator.domain.naming import alias_of, number_of
from agentmemory_operator.domain.outcomes import Reconciled
from agentmemory_operator.domain.plain_moves import is_of_plain, is_past_return, without_plain
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
from agentmemory_operator.services.moving import release_writers, withdraw
from agentmemory_operator.services.objects import Key, ObjectTable, key_of_memory, owned_memory
from agentmemory_operator.services.previous import leads_to, live_behind
from agentmemory_operator.services.rebuild_beginnings import RebuildBeginnings
from agentmemory_operator.services.rebuild_reports import RebuildReports
from agentmemory_operator.services.rebuild_tasks import Task
from agentmemory_operator.services.rebuild_wishes import RebuildWishes, is_carried_out
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
    """

    look_s: float = 5.0
    hold_s: float = 60.0


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
    beginnings: RebuildBeginnings = field(init=False)
    width: int = 1
    periods: RebuildPeriods = field(default_factory=RebuildPeriods)
    queue: WorkQueue[Key] = field(init=False)

    def __post_init__(self) -> None:
        self.wishes = RebuildWishes(self.table, self.cluster)
        self.beginnings = RebuildBeginnings(self.table, self.clock, self.wishes, self.reports)
        self.queue = WorkQueue(self.run, lane_of=self.table.lane_of, width=self.width)

    def note(self, key: Key, memory: AgentMemory, done: Reconciled) -> None:
        """Take in what a pass found; what has to be done is begun, or gone on with."""
        record, back = done.observed.record, memory.metadata.annotations.get(ROLLBACK_REBUILD)
        is_open = record is not None and record.target == done.observed.physical and record.step is not Step.DONE
        is_wanted = is_carried_out(done.refusal) or (back is not None and back == done.observed.physical)
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
        if memory is None:
            return None
        look = self._leave if memory.spec.suspend else self._look
        work, before = partial(look, key, memory), self.reports.last(key)
        try:
            return await self.servers.use(connection_of(memory), work, namespace=key.namespace)
        finally:
            # Only news is worth a pass: each asks here again.
            if self.reports.last(key) != before:
                self.request(key)

    def note_suspended(self, key: Key) -> None:
        """Take in that an object is to be left alone: who held its writers may have been killed."""
        if self.reports.is_under_way(key):
            self.queue.request(key)

    async def _leave(self, key: Key, memory: AgentMemory, server: Server) -> None:
        live = await live_behind(server, alias_of(memory.slug), _last_physical(memory))
        if live is not None:
            await release_writers(server, live.physical)

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
        if decision.going_on is None and self.reports.has_failed(key, wish.digest, asked):
            return None
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
            record = decision.going_on or await self.beginnings.begin(key, memory, server, live, decision.begins)
        except SpecInvalid as exc:
            await self._refuse_way_back(key, memory, live, str(exc))
            return None
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
            await self._met(key, memory, server, record, exc)
        except AgentMemoryError as exc:
            await self._fail(key, memory, server, record, str(exc))
        return None

    async def _met(self, key: Key, memory: AgentMemory, server: Server, record: Record, exc: TransientError) -> None:
        """Give up what has filled the disk, so that others can write again; what else may pass is waited for.

        Raises:
            TransientError: `exc` itself, where it is waited for.
        """
        if not exc.is_disk_full or not await leads_to(server, alias_of(memory.slug), record.source):
            await self.reports.stand(key, State.WAITING, str(exc), record)
            raise exc
        room = f"give it room for a second collection beside {record.source}"
        await self._fail(key, memory, server, record, f"the disk of Qdrant is full: {room}. {exc}")

    async def _refuse_way_back(self, key: Key, memory: AgentMemory, live: Observed, why: str) -> None:
        """Say why a rebuild is not taken back; nothing was changed."""
        asked, now_ms = memory.metadata.annotations.get(RECONCILE_REQUESTED_AT), self.clock.now_ms()
        # What no rebuild made has nowhere to go back to but itself.
        itself = Record(source=live.physical, target=live.physical, digest="", begun_ms=now_ms, since_ms=now_ms)
        record = way_back(live.record or itself, now_ms)
        await self.reports.end(key, record, State.FAILED, why, asked=asked)
        await self.reports.post(memory, Event("Warning", Reason.PREVIOUS_GONE, why))

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
            check=_regardless if is_past_return(record, live.physical) else check,
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
        try:
            await self._take_steps(task)
        except BaseException:
            if task.announcement is not None:
                await withdraw(task)
            raise
        await self._finish(task)

    async def _take_steps(self, task: Task) -> None:
        is_moved = task.source.physical != task.record.source or await leads_to(
            task.server, task.alias, task.target_name
        )
        for step in steps_from(task.record.step, is_moved=is_moved):
            if not (is_moved or step in (Step.DRAIN, Step.SETTLE)):
                await task.check()
            if step is Step.CREATE:
                await self.beginnings.create(task)
                continue
            if step is Step.KEEP and not is_of_plain(task.record, task.alias):
                continue
            if task.record.step is not step:
                await task.note(step=step)
            if step in WHOLE:
                await await_replicas(task)
            came_to = await self.steps[step](task)
            log.info("rebuild of %s into %s: %s: %s", task.source_name, task.target_name, step, came_to)

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

    async def _fail(self, key: Key, memory: AgentMemory, server: Server, record: Record, why: str) -> None:
        """Give a rebuild up, and say why; what it made is removed, unless it is live."""
        await self._remove(key, memory, server, record)
        asked = memory.metadata.annotations.get(RECONCILE_REQUESTED_AT)
        await self.reports.end(key, record, State.FAILED, why, asked=asked)
        await self.reports.post(memory, Event("Warning", Reason.REBUILD_FAILED, why))


async def _regardless() -> None:
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
