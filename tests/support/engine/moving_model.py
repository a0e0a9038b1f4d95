"""Model of a rebuild with concurrent writers: an engine with two collections, and processes that step call by call.

The processes run the real code: use cases behind the API's fence, and the operator's steps. A process may die at each
call. Time passes only when a test advances it, and each process has its own clock.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from agentmemory_operator.agents.collection_facts import CollectionFacts, check_epoch, read_facts
from agentmemory_operator.agents.fence import Fence, FenceTiming
from agentmemory_operator.agents.fenced_store import FencedStore
from agentmemory_operator.collections.announce import AliasLocks
from agentmemory_operator.collections.rules.changes import Change, SetAlias
from agentmemory_operator.collections.rules.collection import METADATA_KEY, Collection, Observation
from agentmemory_operator.collections.rules.rebuild_record import (
    REBUILD_KEY,
    RebuildKind,
    RebuildRecord,
    RebuildStep,
    record_from_json,
    record_to_json,
)
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import NotFound
from agentmemory_operator.ports.base import Json
from agentmemory_operator.rebuilds.catch_up import catch_up
from agentmemory_operator.rebuilds.drain import DrainStep
from agentmemory_operator.rebuilds.move import MoveStep
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.agents import SIZE, World, agent_of
from tests.support.engine.fakes import START_MS, FakeClock
from tests.support.engine.interleaved_store import ProcessKilled
from tests.support.engine.point_memory import PointMemory
from tests.support.spec.documents import cluster_id, marker_for, memory_document

TIMEOUT_S = 10
WRITES = frozenset({"upsert", "set_payload", "batch", "delete"})


@dataclass(slots=True)
class Time:
    """Seconds since the start, set by the test."""

    now_s: float = 0.0

    def monotonic(self) -> float:
        return self.now_s


class ProcessClock(FakeClock):
    """Wall clock of one process, with a constant offset."""

    def __init__(self, time: Time, *, off_s: float = 0) -> None:
        super().__init__()
        self._time, self._off_s = time, off_s

    def now_ms(self) -> int:
        return START_MS + int((self._time.now_s + self._off_s) * 1000)


@dataclass(slots=True)
class Engine:
    """Two collections of an agent, and the target of its alias. Each call takes effect at once."""

    slug: str
    alias: str
    collections: dict[str, PointMemory] = field(default_factory=dict)
    metadata: dict[str, Json] = field(default_factory=dict)
    behind: str = ""
    claimed: list[tuple[float, int]] = field(default_factory=lambda: [(float("-inf"), 0)])

    def __post_init__(self) -> None:
        for number in (1, 2):
            name = f"{self.alias}__{number}"
            self.collections[name] = PointMemory()
            embedding = {"provider": "none", "dimensions": SIZE}
            self.metadata[name] = {METADATA_KEY: marker_for(self.slug, embedding=embedding)}
        self.behind = f"{self.alias}__1"

    def physical(self, collection: str) -> str:
        return self.behind if collection == self.alias else collection

    def least_epoch_at(self, seconds: float) -> int:
        """Return the minimum epoch in the slug's claim at a time."""
        return [least for at_s, least in self.claimed if at_s <= seconds][-1]

    def snapshot(self, name: str) -> tuple[Json, Json]:
        """Copy the points and the metadata of a collection."""
        return deepcopy(self.collections[name].payloads), deepcopy(self.metadata[name])

    def recover(self, name: str, snapshot: tuple[Json, Json]) -> None:
        """Replace a collection by a snapshot, including the metadata."""
        self.collections[name].payloads, self.metadata[name] = deepcopy(snapshot[0]), deepcopy(snapshot[1])

    @property
    def live(self) -> PointMemory:
        return self.collections[self.behind]

    async def describe(self, collection: str) -> Json:
        physical = self.physical(collection)
        if physical not in self.metadata:
            raise NotFound(f"there is no {collection}")
        vectors = {"size": SIZE, "distance": "Cosine"}
        return {"config": {"params": {"vectors": vectors}, "metadata": self.metadata[physical]}}

    async def observe(self, alias: str, likely: str, *, is_linked: bool = False) -> Observation:
        shape, physical = Collection(size=SIZE, distance="Cosine"), self.physical(alias)
        return Observation(
            physical=physical,
            is_aliased=physical != alias,
            collection=shape,
            points=0,
            indexed=0,
            state="green",
            is_busy=False,
        )

    async def apply(self, physical: str, change: Change) -> None:
        if isinstance(change, SetAlias):
            self.behind = change.physical

    async def read_metadata(self, physical: str) -> Json | None:
        return self.metadata.get(physical)

    async def write_metadata(self, physical: str, changes: Json) -> None:
        merged = self.metadata[physical] | changes
        self.metadata[physical] = {key: value for key, value in merged.items() if value is not None}


@dataclass(slots=True)
class Gate:
    """Synchronisation point of one process.

    Attributes:
        in_flight_s: Time at which the pending write was sent; None if no write is pending.
    """

    time: Time
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: "asyncio.Future[None] | None" = None
    in_flight_s: float | None = None
    is_killed: bool = False

    async def wait(self) -> None:
        if self.is_killed:
            raise ProcessKilled
        self.let_go = asyncio.get_running_loop().create_future()
        self.arrived.set()
        await self.let_go

    async def sleep(self, seconds: float) -> None:
        until_s = self.time.now_s + seconds
        while self.time.now_s < until_s:
            await self.wait()


class SteppingPoints:
    """Forwards a call to the engine when the process is released.

    A write resolves the alias one step before it takes effect, and takes effect within the maximum duration of a call.
    """

    def __init__(self, engine: Engine, turn: Gate) -> None:
        self._engine, self._turn = engine, turn

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(collection: str, *args: Any, **more: Any) -> Any:
            self._turn.in_flight_s = self._turn.time.now_s if name in WRITES else None
            try:
                await self._turn.wait()
                if name == "describe":
                    return await self._engine.describe(collection)
                physical = self._engine.physical(collection)
                if name in WRITES:
                    await self._turn.wait()
            finally:
                self._turn.in_flight_s = None
            return await getattr(self._engine.collections[physical], name)(physical, *args, **more)

        return call


class SteppingControl:
    """Forwards a control call when the operator is released."""

    def __init__(self, engine: Engine, turn: Gate) -> None:
        self._engine, self._turn = engine, turn

    async def metadata(self, physical: str) -> Json | None:
        await self._turn.wait()
        return await self._engine.read_metadata(physical)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **more: Any) -> Any:
            await self._turn.wait()
            return await getattr(self._engine, name)(*args, **more)

        return call


@dataclass(slots=True, eq=False)
class Process:
    """A process that waits before each call until it is released."""

    turn: Gate
    task: "asyncio.Task[Any]"

    @property
    def is_done(self) -> bool:
        return self.task.done()


class ApiProcess:
    """An API process: one request at a time, and the state that it keeps between requests."""

    def __init__(
        self, engine: Engine, settings: AgentSettings, time: Time, *, off_s: float, lag_s: float = 0.0
    ) -> None:
        self.turn, self.clock = Gate(time), ProcessClock(time, off_s=off_s)
        self._engine, self._time, self._lag_s, self._begun_s = engine, time, lag_s, time.now_s
        self._settings, self._store = settings, SteppingPoints(engine, self.turn)
        times = FenceTiming(poll_s=0, now_s=time.monotonic)
        self._fence = Fence(settings.slug, self._read, times)

    async def _read(self) -> CollectionFacts:
        facts = await read_facts(self._store, self._settings, cluster_id)  # type: ignore[arg-type] # the used part fits
        # Updates of claims arrive late, except for those at the start of the process.
        heard_s = max(self._begun_s, self._time.now_s - self._lag_s)
        check_epoch(facts, self._settings.slug, self._engine.least_epoch_at(heard_s))
        return facts

    async def open(self) -> World:
        """Open the agent for one use, like the directory."""
        facts = self._fence.facts or await self._fence.read()
        store = FencedStore(self._store, self._fence, facts, clock=self.clock, write_s=60)  # type: ignore[arg-type]
        return World(agent_of(self._settings, store), clock=self.clock)

    def forget(self) -> None:
        """Drop the facts of the collection, as after a move of the alias."""
        self._fence.facts = None


def operator_of(engine: Engine, turn: Gate, time: Time, *, kind: RebuildKind, names: Sequence[str]) -> Awaitable[None]:
    """Return the work of an operator: continue the rebuild recorded in the target, or start it."""
    return _operate(engine, turn, ProcessClock(time), kind=kind, names=names)


async def _operate(engine: Engine, turn: Gate, clock: ProcessClock, *, kind: RebuildKind, names: Sequence[str]) -> None:
    source, target = names
    control: Any = SteppingControl(engine, turn)
    points: Any = SteppingPoints(engine, turn)
    server = Server(Endpoint("", None, TIMEOUT_S), control, control, points)
    record = record_from_json(await control.metadata(target))
    if record is None or record.target != target or record.kind is not kind:
        record = _begun(record_from_json(await control.metadata(source)), clock.now_ms(), kind=kind, names=names)
        await control.write_metadata(target, {REBUILD_KEY: record_to_json(record)})
    live = await control.observe(engine.alias, source)
    task = RebuildRun(
        memory=parse_agent_memory(memory_document(engine.slug, embedding={"provider": "none", "dimensions": SIZE})),
        server=server,
        source=replace(live, physical=source),
        desired=live.collection,
        record=record,
        clock=clock,
        embedder=None,
        check=_pass,
        report_progress=_show,
    )
    if live.physical == source:
        move = MoveStep(AliasLocks(), lambda _: False, monotonic=turn.time.monotonic, sleep=turn.sleep)
        # A rebuild is announced during the comparison, a rollback after it.
        await (move.with_announcement(catch_up) if kind is RebuildKind.REBUILD else catch_up)(task)
        await move(task)
    await DrainStep(monotonic=turn.time.monotonic, sleep=turn.sleep)(task)
    await task.update_record(step=RebuildStep.DONE)


def _begun(last: RebuildRecord | None, now_ms: int, *, kind: RebuildKind, names: Sequence[str]) -> RebuildRecord:
    since_ms = (
        last.moved_ms if kind is RebuildKind.ROLLBACK and last is not None and last.moved_ms is not None else now_ms
    )
    return RebuildRecord(
        source=names[0],
        target=names[1],
        kind=kind,
        digest="d",
        started_ms=now_ms,
        since_ms=since_ms,
        step=RebuildStep.CATCH_UP,
    )


async def _pass() -> None:
    """Do nothing: the rebuild may continue."""


async def _show(record: RebuildRecord, message: str) -> None:
    """Do nothing."""
