"""Rebuilds of agents' collections, and the way back: what is wanted is begun, and gone on with to its end.

What is under way stands in the metadata of collections (`collections/rules/rebuild_record.py`), so that whoever comes
next goes on where the last one was killed; an object's status only tells people of it. Every pass over an object says
here what it found; a rebuild ends with a pass, which sees what the alias leads to then.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from agentmemory_operator.collections.announce import AliasLocks, release_writers
from agentmemory_operator.collections.claims import Claims
from agentmemory_operator.collections.previous import is_of, leads_to, live_behind
from agentmemory_operator.collections.rules.collection import (
    Collection,
    Observed,
    has_same_vectors,
    is_placeholder,
)
from agentmemory_operator.collections.rules.desired import newest_collection
from agentmemory_operator.collections.rules.outcome import Reconciled
from agentmemory_operator.collections.rules.rebuild_record import (
    RebuildKind,
    RebuildRecord,
    RebuildStep,
    record_from_json,
    resume_at,
    way_back,
)
from agentmemory_operator.connections.resolve import Server, Servers, connection_of
from agentmemory_operator.errors import (
    AgentMemoryError,
    LeadershipLost,
    RebuildHeld,
    RebuildPaused,
    RebuildUnwanted,
    SpecInvalid,
    TransientError,
)
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.begin import RebuildBeginnings, RebuildWishes, is_carried_out, seen_empty
from agentmemory_operator.rebuilds.converge import await_replicas
from agentmemory_operator.rebuilds.move import withdraw
from agentmemory_operator.rebuilds.remove import RebuildRemoval
from agentmemory_operator.rebuilds.reports import RebuildReports
from agentmemory_operator.rebuilds.rules.decision import Decision, decide
from agentmemory_operator.rebuilds.rules.plain import is_of_plain, is_past_return, without_plain
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.restores.in_place import is_abandoned, reopen
from agentmemory_operator.restores.precedence import restore_under_way
from agentmemory_operator.runtime.cache import Key, ObjectTable, key_of_memory, owned_memory
from agentmemory_operator.runtime.jobs import run_steps
from agentmemory_operator.runtime.queue import WorkQueue
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.kinds.agent_memory import (
    RECONCILE_REQUESTED_AT,
    ROLLBACK_REBUILD,
    AgentMemory,
)
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.rebuild import RebuildState, is_under_way
from agentmemory_operator.spec.naming import alias_of, number_of

log = logging.getLogger(__name__)

WHOLE = (RebuildStep.VERIFY, RebuildStep.MOVE)
"""Steps before which every replica of the target has to be active."""

StepWork = Callable[[RebuildRun], Awaitable[str]]
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
        steps: what is done in each step but Create.
        abandon: takes back what a rebuild that is given up did to its source.
        width: rebuilds at a time of the objects of one namespace on one connection.
        claims: where it is on record that an agent is closed; None where nobody keeps claims.
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
    wishes: RebuildWishes = field(init=False)
    beginnings: RebuildBeginnings = field(init=False)
    width: int = 1
    claims: Claims | None = None
    periods: RebuildPeriods = field(default_factory=RebuildPeriods)
    removal: RebuildRemoval = field(init=False)
    queue: WorkQueue[Key] = field(init=False)
    # Those that are to be tried again: an object without a finalizer may be gone by then.
    _waiting: dict[Key, tuple[AgentMemory, RebuildRecord]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wishes = RebuildWishes(self.table, self.cluster)
        self.beginnings = RebuildBeginnings(self.table, self.clock, self.wishes, self.reports)
        self.removal = RebuildRemoval(self.cluster, self.locks, self.abandon, self.reports)
        self.queue = WorkQueue(self.run, place_of=self.table.place_of, width=self.width)

    def note(self, key: Key, memory: AgentMemory, done: Reconciled) -> None:
        """Take in what a pass found; what has to be done is begun, or gone on with."""
        record, back = done.observed.record, memory.metadata.annotations.get(ROLLBACK_REBUILD)
        is_open = record is not None and record.target == done.observed.physical and record.step is not RebuildStep.DONE
        is_wanted = is_carried_out(done.refusal) or (back is not None and back == done.observed.physical)
        if is_wanted:
            self.reports.await_turn(key)
        # Who holds its clients may have been killed.
        if is_open or is_wanted or done.observed.is_held or self.reports.is_under_way(key):
            self.queue.request(key)

    async def run(self, key: Key) -> float | None:
        """Do what is to be done; return after how many seconds to look again, None for when a pass asks.

        Raises:
            TransientError: it is to be tried again; the status says why.
        """
        memory = owned_memory(self.table, key)
        if memory is None:
            await self._leave_nothing_of_gone(key)
            return None
        self._waiting.pop(key, None)
        look = self._leave if memory.spec.suspend else self._look
        work, before = partial(look, key, memory), self.reports.last(key)
        try:
            return await self.servers.use(connection_of(memory), work, namespace=key.namespace)
        finally:
            # Only news is worth a pass: each asks here again.
            if _news_of(self.reports.last(key)) != _news_of(before):
                self.request(key)

    async def _leave_nothing_of_gone(self, key: Key) -> None:
        """Remove what was made for an object that was deleted while its rebuild waited: nobody else comes for it."""
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

    def note_suspended(self, key: Key) -> None:
        """Take in that an object is to be left alone: who held its writers may have been killed."""
        if self.reports.is_under_way(key):
            self.queue.request(key)

    async def _leave(self, key: Key, memory: AgentMemory, server: Server) -> None:
        live = await live_behind(server, alias_of(memory.slug), memory.told_physical)
        if live is not None and await is_of(server, live.physical, key, self.cluster.cluster_id):
            await self._let_go_on(key, memory.slug, server, live.physical)

    async def _look(self, key: Key, memory: AgentMemory, server: Server) -> float | None:
        live = await live_behind(server, alias_of(memory.slug), memory.told_physical)
        live = await seen_empty(live, server.points) if live else None
        wish = await self.wishes.read(memory, live)
        decision = decide(live, await self._records(server, memory), wish)
        if live is not None and not decision.is_urgent:
            # Nothing moves at the beginning of a look: who announced it was killed.
            await self._let_go_on(key, memory.slug, server, live.physical)
        if waits := self._obstacle(key, decision):
            await self.reports.stand(key, RebuildState.WAITING, waits, decision.going_on)
            return self.periods.look_s
        for record in decision.unwanted:
            await self.removal.remove(key, memory, server, record)
        if live is None:
            return None
        if not (decision.going_on or decision.begins):
            await self._catch_up_with(key, live)
            return None
        asked = memory.metadata.annotations.get(RECONCILE_REQUESTED_AT)
        if decision.going_on is None and self.reports.has_failed(key, wish.digest, asked):
            return None
        return await self._bring_on(key, memory, server, live, decision)

    async def _let_go_on(self, key: Key, slug: str, server: Server, physical: str) -> None:
        """Let the clients of a collection go on that nobody moves or restores into: who held them was killed."""
        if restore_under_way(key, self.table) is not None:
            return
        await release_writers(server, physical)
        if await is_abandoned(await server.snapshots.metadata(physical), key, self.cluster):
            await reopen(server, physical, slug, table=self.table, claims=self.claims)

    async def _records(self, server: Server, memory: AgentMemory) -> list[RebuildRecord]:
        """The records of the agent's collections."""
        alias, records = alias_of(memory.slug), []
        for name in await server.snapshots.collections():
            if number_of(name, alias) is None or not await server.may_use(name):
                continue
            metadata = await server.snapshots.metadata(name)
            record = None if is_placeholder(metadata) else record_from_json(metadata)
            # One that came with a snapshot tells of another collection.
            if record is not None and record.target == name:
                records.append(record)
        return records

    def _obstacle(self, key: Key, decision: Decision) -> str | None:
        """What there is to wait for.

        What a restore is about to mark as replaced is not to be taken for what nobody wants.
        """
        found = restore_under_way(key, self.table) if decision.may_wait else None
        return f"waiting for MemoryRestore {found.name}" if found else None

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
        self, key: Key, memory: AgentMemory, server: Server, live: Observed, record: RebuildRecord
    ) -> float | None:
        if record.target == live.physical:
            record = without_plain(record, alias_of(memory.slug), self.clock.now_ms())
        try:
            await self._go_through(await self._task(key, memory, server, live, record))
        except LeadershipLost:
            raise
        except RebuildPaused as exc:
            await self.reports.stand(key, RebuildState.PAUSED, str(exc), record)
        except RebuildHeld as exc:
            await self.reports.stand(key, RebuildState.HELD, str(exc), record)
            return self.periods.hold_s
        except RebuildUnwanted as exc:
            # Now: nobody comes back for an object that is gone.
            log.info("%s: rebuild cancelled: %s", key, exc)
            await self.removal.remove(key, memory, server, record)
            return 0.0
        except TransientError as exc:
            self._waiting[key] = memory, record
            await self.removal.meet(key, memory, server, record, exc)
        except AgentMemoryError as exc:
            await self.removal.give_up(key, memory, server, record, str(exc))
        return None

    async def _refuse_way_back(self, key: Key, memory: AgentMemory, live: Observed, why: str) -> None:
        """Say why a rebuild is not taken back; nothing was changed."""
        asked, now_ms = memory.metadata.annotations.get(RECONCILE_REQUESTED_AT), self.clock.now_ms()
        # What no rebuild made has nowhere to go back to but itself.
        itself = RebuildRecord(source=live.physical, target=live.physical, digest="", begun_ms=now_ms, since_ms=now_ms)
        record = way_back(live.record or itself, now_ms)
        await self.reports.end(key, record, RebuildState.FAILED, why, asked=asked)
        await self.reports.post(memory, Event("Warning", Reason.PREVIOUS_GONE, why))

    async def _task(
        self, key: Key, memory: AgentMemory, server: Server, live: Observed, record: RebuildRecord
    ) -> RebuildRun:
        desired = await self._desired(memory, server, record)
        source = live
        if record.target == live.physical:
            gone = await server.collections.observe(record.source, record.source, is_linked=True)
            source = gone or replace(live, physical=record.source, points=0)
        embedder = None
        # Where callers send the vectors, a rebuild that changes them is of an empty collection: nothing is embedded.
        embedding = desired.marker.embedding if desired.marker is not None else None
        if embedding and embedding.provider != "none" and not has_same_vectors(source.collection, desired):
            embedder = await self.open_embedder(embedding, memory)
        check = partial(self.wishes.check, key, memory.metadata.uid, live, record, server.points)
        return RebuildRun(
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

    async def _desired(self, memory: AgentMemory, server: Server, record: RebuildRecord) -> Collection:
        if record.kind is RebuildKind.REBUILD:
            return newest_collection(memory, cluster_id=await self.cluster.cluster_id())
        previous = await server.collections.observe(record.target, record.target, is_linked=True)
        if previous is None:
            raise SpecInvalid(Reason.PREVIOUS_GONE, f"{record.target} was deleted in Qdrant")
        return previous.collection

    async def _go_through(self, task: RebuildRun) -> None:
        try:
            await self._take_steps(task)
        except BaseException:
            if task.announcement is not None:
                await withdraw(task)
            raise
        await self._finish(task)

    async def _take_steps(self, task: RebuildRun) -> None:
        is_moved = task.source.physical != task.record.source or await leads_to(
            task.server, task.alias, task.target_name
        )
        steps = {**self.steps, RebuildStep.CREATE: self.beginnings.create}
        if not is_of_plain(task.record, task.alias):
            steps.pop(RebuildStep.KEEP, None)
        came_to = await run_steps(steps, task, first=resume_at(task.record.step, is_moved=is_moved), begin=_begin)
        _log_end_of_step(task, came_to)

    async def _catch_up_with(self, key: Key, live: Observed) -> None:
        """Tell how one ended whose operator was killed before it came to say so."""
        told, record = self.reports.last(key), live.record
        if not is_under_way(told):
            return
        if record is not None and record.target == live.physical == told.get("target"):
            await self.reports.end(key, record, RebuildState.DONE, _done(record))
        else:
            await self.reports.stand(key, RebuildState.STOPPED, "rebuild cancelled; target collection removed")

    async def _finish(self, task: RebuildRun) -> None:
        await task.note(step=RebuildStep.DONE)
        message = _done(task.record)
        await self.reports.end(key_of_memory(task.memory), task.record, RebuildState.DONE, message)
        reason = Reason.ROLLED_BACK if task.record.kind is RebuildKind.ROLLBACK else "Rebuilt"
        await self.reports.post(task.memory, Event("Normal", reason, message))


async def _begin(task: RebuildRun, step: RebuildStep, came_to: str) -> None:
    """Write down that a step begins; until the move the rebuild has to be wanted still."""
    _log_end_of_step(task, came_to)
    if step not in (RebuildStep.DRAIN, RebuildStep.SETTLE):
        await task.check()
    if task.record.step is not step:
        await task.note(step=step)
    if step in WHOLE:
        await await_replicas(task)


def _log_end_of_step(task: RebuildRun, came_to: str | None) -> None:
    if came_to:
        log.info("rebuild of %s into %s: %s: %s", task.source_name, task.target_name, task.record.step, came_to)


async def _regardless() -> None:
    """Let a rebuild go on, whatever is asked for: without it clients are not served."""


def _news_of(told: Json) -> Json:
    """What of a status is news: what cannot be begun has another target and another beginning at each look."""
    return {name: value for name, value in told.items() if name not in ("target", "startTime")}


def _done(record: RebuildRecord) -> str:
    if record.pause_ms is None:
        return f"{record.target} is live and replaces {record.source}"
    return (
        f"{record.target} is live and replaces a collection with the alias's name, of which {record.source} is "
        f"the kept copy; the collection was unavailable for {record.pause_ms} ms"
    )
