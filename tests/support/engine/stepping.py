"""Processes over an in-memory store that step call by call and may die at each: a state machine for hypothesis."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from agentmemory_operator.spec.effective.settings import AgentSettings
from tests.support.engine.agents import World, agent_of
from tests.support.engine.point_memory import BETWEEN

MAX_ALIVE = 4
# More calls than any protocol needs with concurrent processes.
MAX_CALLS = 3_000


@dataclass(slots=True, eq=False)
class Process:
    """A process that waits before each call to the engine until it is released."""

    task: "asyncio.Task[Any]"
    turn: "Gate"
    content: str = ""

    @property
    def is_done(self) -> bool:
        return self.task.done()


@dataclass(slots=True)
class Gate:
    """Synchronisation point of a process."""

    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: "asyncio.Future[None] | None" = None

    async def wait(self) -> None:
        self.let_go = asyncio.get_running_loop().create_future()
        self.arrived.set()
        await self.let_go


class SteppingStore:
    """Forwards a call when its process is released. It also waits between two points of one call."""

    def __init__(self, store: Any, turn: Gate) -> None:
        self._store = store
        self._turn = turn

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **more: Any) -> Any:
            await self._turn.wait()
            BETWEEN.set(self._turn.wait)
            return await getattr(self._store, name)(*args, **more)

        return call


class SteppingMachine(RuleBasedStateMachine):
    """Processes over the store of one agent. Subclasses define rules: actions, steps and kills."""

    def __init__(self, settings: AgentSettings, store: Any) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = World(agent_of(settings, store))
        self.processes: list[Process] = []

    def note_end(self, process: Process) -> None:
        """Handle the end of a process."""
        raise NotImplementedError

    @property
    def has_room(self) -> bool:
        return len(self.processes) < MAX_ALIVE

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)  # type: ignore[arg-type]

    def start(self, action: Callable[[World], Awaitable[Any]], content: str = "") -> Process:
        """Start an action in a process, up to its first call."""
        turn = Gate()
        stepping: Any = SteppingStore(self.world.agent.store, turn)
        world = World(replace(self.world.agent, store=stepping), clock=self.world.clock)

        async def begin() -> Process:
            return Process(asyncio.create_task(action(world)), turn, content)  # type: ignore[arg-type]

        started: Process = self.run(begin())
        self.processes.append(started)
        self.run(self._settle(started))
        return started

    def step(self, process: Process) -> None:
        """Release one call of a process."""
        assert process.turn.let_go is not None
        process.turn.arrived.clear()
        process.turn.let_go.set_result(None)
        self.run(self._settle(process))

    def advance(self, choice: int, calls: int) -> None:
        """Release several calls of one process."""
        self.world.clock.move(ms=1)
        process = self.processes[choice % len(self.processes)]
        for _ in range(calls):
            if not process.is_done:
                self.step(process)

    def kill(self, choice: int) -> Process:
        """Kill one process at its current call."""
        process = self.processes.pop(choice % len(self.processes))
        process.task.cancel()
        self.run(asyncio.wait({process.task}))
        return process

    def finish_all(self, check: Callable[[], None] = lambda: None) -> None:
        """Run all processes to their end, one call each in turn; run `check` after each call."""
        for _ in range(MAX_CALLS):
            if not self.processes:
                break
            self.step(self.processes[0])
            self.processes.append(self.processes.pop(0)) if len(self.processes) > 1 else None
            check()
        assert not self.processes

    def end(self) -> None:
        """Check the final state."""
        raise NotImplementedError

    def teardown(self) -> None:
        try:
            self.end()
        finally:
            self.loop.close()

    async def _settle(self, process: Process) -> None:
        """Wait until a process waits again or has ended."""
        arrived = asyncio.create_task(process.turn.arrived.wait())
        await asyncio.wait({process.task, arrived}, return_when=asyncio.FIRST_COMPLETED)
        arrived.cancel()
        if process.is_done:
            self.processes.remove(process)
            self.note_end(process)
