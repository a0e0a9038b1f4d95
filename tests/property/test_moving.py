"""Model of a rebuild and its rollback, under writers of two API processes and kills of the operator.

Invariant: at the end, the alias's target contains every acknowledged write, no acknowledged deletion is undone, and
each chain has one head. The clocks of the API processes differ by nearly `CLOCKS_BEHIND_MS`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from agentmemory_operator.collections.rules.rebuild_record import RebuildKind
from agentmemory_operator.errors import CollectionMoved, Conflict, NotFound, OutcomeUnknown, StoreUnavailable
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.chains import SWEEP_AFTER_MS
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.memories.stored_memories import change_head, delete_head
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import EVERYTHING, SIZE, World, agent_of, settings_of
from tests.support.engine.fakes import START_MS, FakeClock
from tests.support.engine.interleaved_store import ProcessKilled
from tests.support.engine.moving_model import TIMEOUT_S, ApiProcess, Engine, Gate, Process, Time, operator_of

TYPES = (MemoryType("fact", None, supersede_by="key"), MemoryType("note", None))
VECTOR = [1.0] * SIZE
APIS = (0, 1)
# More than any run takes, with any number of kills.
MAX_STEPS = 50_000
# Maximum number of memories: writers should conflict.
MAX_HEADS = 5
Action = Callable[[World], Awaitable[Any]]


# Do not shrink: an order is drawn from one number. It has hundreds of steps, so half of the usual examples are drawn.
ORDERS = settings(
    max_examples=settings().max_examples // 2,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@dataclass(slots=True, eq=False)
class Request:
    """Request to the API, and the steps of the model at its start and end.

    Attributes:
        value: Value set by an edit.
    """

    kind: str
    started: int
    memory_id: str = ""
    value: int = 0
    ended: int | None = None
    is_acknowledged: bool = False


class Moving:
    """One agent whose collection is rebuilt and then rolled back, in a drawn order."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.time, self.steps, self.counter = draw, Time(), 0, 0
        self.settings = settings_of("model", ranking=replace(EVERYTHING, types=TYPES))
        self.engine = Engine("model", self.settings.alias)
        self.apis = [ApiProcess(self.engine, self.settings, self.time, off_s=off_s) for off_s in (-49, 49)]
        # Relative speed of the two API processes and the operator. A sleeping call continues only as time passes.
        self.pace = [1.0, 1.0, 1.0]
        self.busy: dict[int, tuple[Process, Request]] = {}
        self.requests: list[Request] = []
        self.operator: Process | None = None
        self.slow: set[Process] = set()
        self.moves = [(RebuildKind.REBUILD, 1, 2), (RebuildKind.ROLLBACK, 2, 1)]

    async def run(self) -> None:
        await self.fill()
        while self.moves or self.operator:
            await self.happen()
        await self.end()

    async def fill(self) -> None:
        """Store some memories before the first step."""
        direct = World(agent_of(self.settings, self.engine.live))  # type: ignore[arg-type] # what writers use of it
        for number in range(3):
            await direct.add(f"first {number}", type="note", vector=VECTOR)
        await direct.add("the fact", type="fact", key="k", vector=VECTOR)

    async def end(self) -> None:
        """Complete every request, and check the result."""
        while self.busy:
            for process, _ in list(self.busy.values()):
                await self.step(process)
            await self.pass_time(0.1)
        await self.sweep()
        self.check()

    async def happen(self) -> None:
        """Perform one step."""
        self.steps += 1
        assert self.steps < MAX_STEPS
        if self.draw.random() < 0.02:
            self.pace = [self.draw.choice([0.02, 0.3, 1, 1, 3]) for _ in range(3)]
        who = self.draw.choices((*APIS, "operator"), self.pace)[0]
        if who == "operator":
            await self.operate()
        elif who in self.busy:
            await self.continue_process(self.busy[who][0])
        else:
            await self.ask(who)
        await self.pass_time(self.draw.choice([0, 0, 0, 0.05, 0.2, 0.6]))

    async def continue_process(self, process: Process) -> None:
        """Let a process continue, unless its write is one of those that take until the request times out."""
        if process.turn.in_flight_s is None:
            self.slow.discard(process)
        if process not in self.slow:
            await self.step(process)
            if process.turn.in_flight_s is not None and self.draw.random() < 0.2:
                self.slow.add(process)

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock. Writes that have been in flight for as long as a request may take now take effect."""
        self.time.now_s += seconds
        for process, _ in list(self.busy.values()):
            while process.turn.in_flight_s is not None and self.time.now_s - process.turn.in_flight_s >= TIMEOUT_S:
                await self.step(process)

    async def start(self, turn: Gate, work: Awaitable[Any]) -> Process:
        turn.arrived.clear()
        process = Process(turn, asyncio.create_task(work))  # type: ignore[arg-type]
        await self.settle(process)
        return process

    async def step(self, process: Process) -> None:
        assert process.turn.let_go is not None
        process.turn.arrived.clear()
        process.turn.let_go.set_result(None)
        await self.settle(process)
        self.reap()

    async def settle(self, process: Process) -> None:
        """Wait until a process waits again or has ended."""
        arrived = asyncio.create_task(process.turn.arrived.wait())
        await asyncio.wait({process.task, arrived}, return_when=asyncio.FIRST_COMPLETED)
        arrived.cancel()

    def reap(self) -> None:
        """Record processes that have ended."""
        for number, (process, request) in list(self.busy.items()):
            if process.is_done:
                del self.busy[number]
                self.end_request(process, request)
        if self.operator is not None and self.operator.is_done:
            error = self.operator.task.exception()
            assert error is None or isinstance(error, StoreUnavailable), error
            if error is None:
                self.end_move()
            self.operator = None

    def end_move(self) -> None:
        """Record that the operator has completed its move."""
        self.moves.pop(0)

    def end_request(self, process: Process, request: Request) -> None:
        error, request.ended = process.task.exception(), self.steps
        if error is not None:
            assert isinstance(error, OutcomeUnknown | StoreUnavailable | NotFound | Conflict), error
            return
        outcome = process.task.result()
        if isinstance(outcome, StoredMemory):
            request.memory_id, request.is_acknowledged = outcome.id, True
        elif not isinstance(outcome, Exception):
            request.is_acknowledged = True

    async def operate(self) -> None:
        if self.operator is None:
            kind, source, target = self.moves[0]
            names, turn = (f"{self.settings.alias}__{source}", f"{self.settings.alias}__{target}"), Gate(self.time)
            work = operator_of(self.engine, turn, self.time, kind=kind, names=names)
            self.operator = await self.start(turn, work)
            self.reap()
        elif self.draw.random() < 0.005:
            process, self.operator = self.operator, None
            process.turn.is_killed = True
            process.task.cancel()
            await asyncio.wait({process.task})
            assert process.task.cancelled() or isinstance(process.task.exception(), ProcessKilled)
        else:
            await self.step(self.operator)

    async def ask(self, number: int) -> None:
        rows = [row for row in self.engine.live.payloads.values() if TOMBSTONE_KEY not in row]
        heads = [row for row in rows if not row.get("pending") and not row.get("supersededById")]
        self.counter += 1
        content = f"said {self.counter}"
        kind = self.draw.choice(["add", "fact", "supersede", "edit", "edit", "delete"])
        one = self.draw.choice(rows if kind == "delete" else heads)["id"] if heads else ""
        if kind == "fact":
            await self.send(number, Request("add", self.steps), lambda world: add(world, content, "fact", key="k"))
        elif not one or (kind == "add" and len(heads) < MAX_HEADS):
            await self.send(number, Request("add", self.steps), lambda world: add(world, content, "note"))
        elif kind == "supersede":
            request = Request("add", self.steps)
            await self.send(number, request, lambda world: add(world, content, "note", supersedes=one))
        elif kind == "delete":
            request = Request("delete", self.steps, one)
            await self.send(number, request, lambda world: delete_head(world.agent, one, user_id="u"))
        else:
            request, changes = Request("edit", self.steps, one, self.counter), {"importance": self.counter / 100_000}
            await self.send(number, request, lambda world: change_head(world.agent, one, changes, user_id="u"))

    async def send(self, number: int, request: Request, action: Action) -> None:
        api = self.apis[number]

        async def serve() -> Any:
            try:
                return await action(await api.open())
            except CollectionMoved:
                api.forget()
                return await action(await api.open())

        self.requests.append(request)
        self.busy[number] = (await self.start(api.turn, serve()), request)
        self.reap()

    async def sweep(self) -> None:
        clock = FakeClock(START_MS + int(self.time.now_s * 1000) + 100_000)
        agent = replace(agent_of(self.settings, self.engine.live), clock=clock)  # type: ignore[arg-type]
        for _ in range(3):
            clock.move(ms=SWEEP_AFTER_MS + 1)
            await chains.sweep(agent)

    def check(self) -> None:
        rows = self.engine.live.payloads
        deletions = {request.memory_id for request in self.requests if request.kind == "delete"}
        for request in self.requests:
            if not request.is_acknowledged:
                continue
            row = rows.get(request.memory_id)
            # A new version of a subject may have the id of a deleted one.
            is_recreated = row is not None and row["type"] == "fact" and request.memory_id in deletions
            if request.kind == "add":
                assert row is not None, "an acknowledged memory is lost"
                assert TOMBSTONE_KEY not in row or request.memory_id in deletions, "an acknowledged memory is deleted"
            elif request.kind == "delete":
                assert row is None or TOMBSTONE_KEY in row or is_recreated, "an acknowledged deletion is undone"
            elif row is not None and TOMBSTONE_KEY not in row and not is_recreated:
                self.check_edit(request, round(row["importance"] * 100_000))
        self.check_chains(rows)

    def check_edit(self, request: Request, value: int) -> None:
        """Check that an acknowledged edit was not overwritten by one that had ended before it started."""
        found = next((one for one in self.requests if one.value == value and one.memory_id == request.memory_id), None)
        assert found is not None, "an acknowledged edit is lost"
        is_older = found.is_acknowledged and found.ended is not None and found.ended < request.started
        assert not is_older, "an acknowledged edit is lost to an older one"

    def check_chains(self, rows: dict[str, Json]) -> None:
        living = {id_: row for id_, row in rows.items() if TOMBSTONE_KEY not in row}
        assert not any(row.get("pending") for row in living.values())
        facts = [row for row in living.values() if row["type"] == "fact" and not row.get("supersededById")]
        assert len(facts) <= 1, "a fact has two newest versions"
        for id_, row in living.items():
            if successor := row.get("supersededById"):
                assert successor in living, "a memory is hidden by a version that is not there"
            if before := living.get(row.get("supersedesId") or ""):
                assert before.get("supersededById") == id_, "a chain has two newest versions"


def add(world: World, content: str, type_: str, **more: Any) -> Awaitable[Any]:
    return world.try_add(content, type=type_, vector=VECTOR, **more)


@settings(ORDERS)
# An edit that waited for long before it was sent, by a clock that is behind.
@example(seed=1470)
@given(seed=st.integers(0, 2**32))
def test_no_write_is_lost_and_no_deletion_undone(seed: int) -> None:
    asyncio.run(Moving(random.Random(seed)).run())
