"""A model of restores into another collection and into the collection itself, and of the way back, under writers.

Whatever the order of their calls, whoever is killed or starts midway, and however late news of claims come: what was
answered 409, 404 or 503 is never seen, nothing that was acknowledged is missing everywhere, what was acknowledged since
the last restore is there, and each chain has one newest version. Both API processes have clocks of their own.
"""

import asyncio
import random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentmemory_operator.collections.rules.epochs import epoch_in
from agentmemory_operator.errors import AgentMemoryError, Conflict, NotFound, OutcomeUnknown, StoreUnavailable
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from tests.property.test_moving import MOST_STEPS, ORDERS, Moving, Request
from tests.support.engine.meanwhile import Killed
from tests.support.engine.moving_model import ApiProcess, Process, Turn
from tests.support.engine.restoring_model import Restores, Restoring

# Of news of claims; see `restoring_model.SETTLE_S`.
MOST_LAG_S = 4.0


class Restored(Moving):
    """One agent that is restored in every way, one after the other, in an order that is drawn."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self.restores = Restores(self.engine, self.time)
        self.apis = [self.api(off_s) for off_s in (-40, 40)]
        ways = ["swap", "in_place", "roll_back", "in_place"]
        self.left = [(number, draw.choice(ways) if number else "swap") for number in range(4)]
        self.contents: dict[int, str] = {}
        self.refused: set[str] = set()
        self.last_end = 0
        self.chosen: dict[int, tuple[int, str]] = {}

    def api(self, off_s: float) -> ApiProcess:
        lag_s = self.draw.uniform(0, MOST_LAG_S)
        return ApiProcess(self.engine, self.settings, self.time, off_s=off_s, lag_s=lag_s)

    async def run(self) -> None:
        await self.fill()
        self.restores.snapshots.append(self.engine.snapshot(self.engine.behind))
        while self.left or self.operator:
            await self.happen()
        for _ in range(60):
            await self.happen()
        await self.end()

    async def happen(self) -> None:
        is_pending = any(row.get("pending") for row in self.engine.live.payloads.values())
        if self.draw.random() < (0.2 if is_pending else 0.02):
            self.restores.snapshots.append(self.engine.snapshot(self.engine.behind))
        # What is of the past would be served by whoever does not know that a restore is under way.
        is_past = epoch_in(self.engine.metadata[self.engine.behind]).number < self.engine.claimed[-1][1]
        if self.draw.random() < (0.1 if is_past else 0.02):
            await self.restart(self.draw.choice((0, 1)))
        if is_past and self.draw.random() < 0.9:
            self.pace = [1.0, 1.0, 0.0]
        await super().happen()
        self.pace[2] = self.pace[2] or 1.0
        assert self.steps < MOST_STEPS

    async def restart(self, number: int) -> None:
        """Let another process take the place of one that was killed."""
        if number in self.busy:
            process, _ = self.busy.pop(number)
            if process.turn.in_flight_s is not None:
                # What is on its way lands all the same.
                await self.step(process)
            await self.kill(process)
        self.apis[number] = self.api(self.draw.choice((-40, 40)))

    async def kill(self, process: Process) -> None:
        process.turn.is_killed = True
        process.task.cancel()
        await asyncio.wait({process.task})
        if not process.task.cancelled():
            error = process.task.exception()
            assert error is None or isinstance(error, Killed | AgentMemoryError), error

    async def operate(self) -> None:
        if self.operator is None:
            if self.left:
                self.operator = await self.start_operator()
                self.reap()
        elif self.draw.random() < 0.01:
            process, self.operator = self.operator, None
            await self.kill(process)
        else:
            await self.step(self.operator)

    async def start_operator(self) -> Process:
        number, way = self.left[0]
        if number not in self.chosen:
            behind = self.engine.behind
            other = next(name for name in self.engine.collections if name != behind)
            snapshot = self.draw.randrange(len(self.restores.snapshots))
            self.chosen[number] = snapshot, behind if way == "in_place" else other
        snapshot, target = self.chosen[number]
        turn = Turn(self.time)
        operator = Restoring(self.restores, turn, number, snapshot, target)
        return await self.start(turn, getattr(operator, way)())

    def end_move(self) -> None:
        self.left.pop(0)
        self.last_end = self.steps

    async def send(self, number: int, request: Request, action: Any) -> None:
        self.contents[id(request)] = f"said {self.said}"
        await super().send(number, request, action)

    def end_request(self, process: Process, request: Request) -> None:
        error, request.ended = process.task.exception(), self.steps
        outcome = error if error is not None else process.task.result()
        if isinstance(outcome, StoredMemory):
            request.memory_id, request.is_acknowledged = outcome.id, True
        elif isinstance(outcome, OutcomeUnknown):
            return
        elif isinstance(outcome, Conflict | NotFound | StoreUnavailable):
            self.refused.add(self.contents[id(request)])
        else:
            assert not isinstance(outcome, Exception), outcome
            request.is_acknowledged = True

    def check(self) -> None:
        rows = self.engine.live.payloads
        living = {id_: row for id_, row in rows.items() if TOMBSTONE_KEY not in row}
        seen = {row.get("content") for row in living.values()}
        assert not self.refused & seen, "what was refused is seen"
        deletions = {request.memory_id for request in self.requests if request.kind == "delete"}
        everywhere = [*self.restores.kept, *(memory.payloads for memory in self.engine.collections.values())]
        for request in self.requests:
            if request.kind != "add" or not request.is_acknowledged or request.memory_id in deletions:
                continue
            assert any(request.memory_id in payloads for payloads in everywhere), "an acknowledged memory is lost"
            if request.begun > self.last_end:
                assert request.memory_id in living, "a memory that was stored after the last restore is lost"
        self.check_chains(rows)


@settings(ORDERS, max_examples=settings.default.max_examples // 2)
# A late step 3 in a collection that was recovered since; a memory that was joined, deleted and refused; a late link.
@example(seed=595931)
@example(seed=2000359)
@example(seed=234)
@given(seed=st.integers(0, 2**32))
def test_no_order_of_calls_shows_what_was_refused_or_loses_what_was_acknowledged(seed: int) -> None:
    asyncio.run(Restored(random.Random(seed)).run())
