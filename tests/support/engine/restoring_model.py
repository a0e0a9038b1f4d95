"""Restores in the model of `moving_model.py`: what moves the alias, closes and opens, is the real thing."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from agentmemory_operator.collections.announce import AliasLocks, Announcing, Switch
from agentmemory_operator.collections.claims import Claims
from agentmemory_operator.collections.rules.claims import ClaimSet, SlugClaim
from agentmemory_operator.collections.rules.collection import METADATA_KEY
from agentmemory_operator.collections.rules.rebuild_record import copied_elsewhere
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.lifecycle.erasure_restore import repair_late, settle_unfinished
from agentmemory_operator.ports.base import Json
from agentmemory_operator.restores.in_place import InPlace
from agentmemory_operator.restores.rules.checks import Identity
from agentmemory_operator.restores.rules.status import Moment
from agentmemory_operator.runtime.cache import AGENT_MEMORY, MEMORY_RESTORE, Key, ObjectTable
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.agents import SIZE
from tests.support.engine.moving_model import TIMEOUT_S, Control, Engine, ProcessClock, Stepping, Time, Turn
from tests.support.spec.documents import marker_for, memory_document

SETTLE_S = 5.0
"""Between two passes over a restore: by then every process has heard of the claim."""


@dataclass(slots=True)
class Restores:
    """What survives an operator: the statuses and the claims.

    Attributes:
        snapshots: what was taken, the first one before anything was written.
        kept: what the restores took the place of, so that nothing acknowledged may be missing everywhere.
    """

    engine: Engine
    time: Time
    table: ObjectTable = field(default_factory=ObjectTable)
    snapshots: list[tuple[Json, Json]] = field(default_factory=list)
    kept: list[Json] = field(default_factory=list)
    steps: dict[int, str] = field(default_factory=dict)
    statuses: dict[int, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        claim = SlugClaim(namespace="agents", uid="u", connections=("agents/main",))
        self.table.claims = ClaimSet(claims={self.engine.slug: claim}, is_complete=True)

    async def load(self) -> ClaimSet:
        return self.table.claims

    async def save(self, claims: ClaimSet) -> None:
        self.engine.claimed.append((self.time.now_s, claims.least_epoch(self.engine.slug)))


@dataclass(slots=True)
class Restoring:
    """One operator that makes one restore; what it has done is in `Restores`, so that the next one goes on."""

    restores: Restores
    turn: Turn
    number: int
    snapshot: int
    target: str

    def __post_init__(self) -> None:
        engine, turn = self.restores.engine, self.turn
        control: Any = Control(engine, turn)
        points: Any = Stepping(engine, turn)
        self.engine, self.server = engine, Server(Endpoint("", None, TIMEOUT_S), control, control, points)
        self.clock = ProcessClock(self.restores.time)
        self.memory = parse_agent_memory(
            memory_document(engine.slug, embedding={"provider": "none", "dimensions": SIZE})
        )
        self.announcing = Announcing(monotonic=turn.time.monotonic, sleep=turn.sleep)

    engine: Engine = field(init=False)
    server: Server = field(init=False)
    clock: ProcessClock = field(init=False)
    memory: Any = field(init=False)
    announcing: Announcing = field(init=False)

    async def _once(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        """Take a step, unless a step after it was begun."""
        done = self.restores.steps.setdefault(self.number, "")
        if name in done.split(","):
            return
        await work()
        self.restores.steps[self.number] += f",{name}"

    async def swap(self) -> None:
        """Restore into another collection, and move the alias."""
        if self.engine.behind != self.target:
            await self._once("recover", self._recover)
            await self._once("claim", self._claim)
            await self._settle_and_switch()
        await self._repair()

    async def roll_back(self) -> None:
        """Let the alias lead to the collection that was replaced again."""
        if self.engine.behind != self.target:
            await self._settle_and_switch()
        await self._repair()

    async def _settle_and_switch(self) -> None:
        await settle_unfinished(self.server, self.target, self.memory, self.clock)
        await self._switch()

    async def _repair(self) -> None:
        await self.announcing.wait_for_late_writes(self.server)
        await repair_late(self.server, self.target, self.memory, self.clock)

    async def _recover(self) -> None:
        await self.turn.wait()
        self.restores.kept.append(dict(self.engine.collections[self.target].payloads))
        self.engine.recover(self.target, self.restores.snapshots[self.snapshot])

    async def _claim(self) -> None:
        marker = marker_for(self.engine.slug, embedding={"provider": "none", "dimensions": SIZE})
        await self.server.snapshots.write_metadata(self.target, copied_elsewhere() | {METADATA_KEY: marker})

    async def _switch(self) -> None:
        switch = Switch(
            server=self.server,
            slug=self.engine.slug,
            alias=self.engine.alias,
            target=self.target,
            now_ms=self.clock.now_ms,
            check=_pass,
        )
        await switch.run(AliasLocks(), self.announcing, likely=None)

    async def in_place(self) -> None:
        """Restore into the collection itself."""
        none: Any = None
        claims = Claims(self.restores, self.restores.table, none, none, lambda key: None)
        work = InPlace(self.restores.table, none, none, lambda key: None, none, claims, self.announcing)
        task: Any = self._task()
        await self._once("close", lambda: work._close(task))
        await self.turn.sleep(SETTLE_S)
        await self._once("safeguard", self._safeguard)
        await self._once("recover", lambda: work._recover(task))
        await settle_unfinished(self.server, self.target, self.memory, self.clock)
        await work._serve(task.job, self.server)

    async def _safeguard(self) -> None:
        await self.turn.wait()
        self.restores.kept.append(dict(self.engine.collections[self.target].payloads))

    def _task(self) -> Any:
        restores, key = self.restores, Key(MEMORY_RESTORE, "agents", f"r{self.number}")

        async def write(status: Json) -> None:
            await self.turn.wait()
            restores.statuses[self.number] = job.status = status

        async def recover(server: Server, target: str) -> None:
            await self.turn.wait()
            self.engine.recover(target, restores.snapshots[self.snapshot])

        job = SimpleNamespace(
            key=key,
            slug=self.engine.slug,
            physical=self.target,
            status=restores.statuses.get(self.number, {}),
            moment=Moment(1, "2026-01-01T00:00:00Z"),
            now_ms=self.clock.now_ms(),
            identity=Identity(namespace="agents", name=key.name, digest="d"),
            target_key=Key(AGENT_MEMORY, "agents", self.engine.slug),
            write=write,
            least_epoch=restores.table.claims.least_epoch(self.engine.slug),
        )
        source = SimpleNamespace(recover=recover, described="a snapshot")
        return SimpleNamespace(job=job, server=self.server, physical=self.target, source=source, ours=None)


async def _pass() -> None:
    await asyncio.sleep(0)
