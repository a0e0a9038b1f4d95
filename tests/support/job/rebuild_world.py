"""An agent with a rebuild of its collection, on a real engine. The operator may be killed at every call."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

from agentmemory_operator.collections.announce import AliasLocks
from agentmemory_operator.collections.rules.changes import SetAlias
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, RebuildStep
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.main.rebuilds import abandon as give_up
from agentmemory_operator.main.rebuilds import rebuild_steps
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.controller import Rebuilds, StepWork
from agentmemory_operator.rebuilds.converge import ConvergeStep
from agentmemory_operator.rebuilds.drain import DrainStep
from agentmemory_operator.rebuilds.move import MoveStep
from agentmemory_operator.rebuilds.reports import RebuildReports
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.rebuilds.verify import VerifyStep
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.kinds.agent_memory import ROLLBACK_REBUILD, AgentMemory
from tests.support.engine.interleaved_store import ProcessKilled
from tests.support.job.restore_world import CrashPoints, RestoreWorld
from tests.support.spec.documents import connection_document
from tests.support.web.http_server import check_success

POINTS = 10
ANNOUNCE_S = 0.05
TIMEOUT_S = 10


async def copy_raw(task: RebuildRun) -> str:
    """Copy up to 1,000 points unchanged, for tests of other steps."""
    body = {"limit": 1000, "with_payload": True, "with_vector": True}
    points, _ = await task.server.points.scroll(task.source_name, body)
    await task.server.points.upsert(task.target_name, points, insert_only=True)
    await task.update_record(copied=len(points))
    return f"{len(points)} points"


async def move_at_once(task: RebuildRun) -> str:
    """Point the alias to the target without an announcement."""
    await task.server.collections.apply(task.target_name, SetAlias(task.alias, task.target_name))
    await task.update_record(moved_ms=task.clock.now_ms())
    return "moved"


async def do_nothing(task: RebuildRun) -> str:
    """Do nothing."""
    return "nothing"


BARE_STEPS: Mapping[RebuildStep, StepWork] = dict.fromkeys(tuple(RebuildStep)[:-1], do_nothing) | {
    RebuildStep.COPY: copy_raw,
    RebuildStep.MOVE: move_at_once,
}


class RebuildWorld(RestoreWorld):
    """The agent, and the component that rebuilds its collection.

    Args:
        steps: Implementation of each step.
    """

    def __init__(self, url: str, steps: Mapping[RebuildStep, StepWork] = BARE_STEPS) -> None:
        self.steps = steps
        self.embedders: dict[str | None, Embedder] = {}
        super().__init__(url)
        self.rebuilds = self.operator()

    def operator(self) -> Rebuilds:
        """Build the rebuild component of a new operator."""
        cluster: Any = CrashPoints(self.cluster, self)
        return Rebuilds(
            table=self.table,
            servers=self.servers,
            cluster=cluster,
            clock=self.clock,
            request=self.requested.append,
            locks=AliasLocks(),
            open_embedder=self.open_embedder,
            steps=self.steps,
            abandon=self.abandon,
            reports=RebuildReports(self.table, cluster, self.clock),
        )

    async def open_embedder(self, source: EmbeddingSource, memory: AgentMemory) -> Embedder:
        return self.embedders[source.model]

    async def abandon(self, server: Server, record: RebuildRecord) -> None:
        """Do nothing: the source is unchanged."""

    async def rebuild(self, *, passes: int = 5) -> None:
        """Run up to `passes` passes, until the next one is more than 10 s away."""
        for _ in range(passes):
            due_s = await self.rebuilds.run(self.memory)
            if due_s is None or due_s > 10:
                return

    async def rebuild_killed_at(self, moment: int, between: Callable[[], None] = lambda: None) -> bool:
        """Rebuild with an operator that dies at a call, then with a new one; return whether that call was reached.

        Args:
            between: Called while no operator runs.
        """
        self.calls, self.crash_at = 0, moment
        try:
            await self.rebuild()
        except ProcessKilled:
            between()
            self.rebuilds = self.operator()
            await self.rebuild()
        return self.calls >= moment

    @property
    def rebuild_status(self) -> Json:
        """`status.rebuild` of the object; empty before the first rebuild."""
        return dict(self.status(self.memory).get("rebuild") or {})


class FullWorld(RebuildWorld):
    """The agent, and an operator with minimal waiting times."""

    def __init__(self, url: str, *, verify: StepWork | None = None) -> None:
        locks, converge = AliasLocks(), ConvergeStep(poll_s=0.02)
        move = MoveStep(locks, lambda task: False, announce_s=ANNOUNCE_S)
        quick = {
            RebuildStep.CONVERGE: converge,
            RebuildStep.VERIFY: move.with_announcement(verify or VerifyStep(converge)),
            RebuildStep.MOVE: move,
            # The clock jumps at each read, so requests in progress are over at the second one.
            RebuildStep.DRAIN: DrainStep(monotonic=partial(next, count(0, TIMEOUT_S)), sleep=asyncio.sleep),
        }
        super().__init__(url, rebuild_steps(locks, lambda key: False) | quick)

    async def abandon(self, server: Server, record: RebuildRecord) -> None:
        await give_up(server, record)

    async def begin(self, **changes: Any) -> None:
        """Create the agent and change its spec so that it needs a rebuild; by default the distance."""
        self.table.put(connection_document(url=self.url, timeoutSeconds=TIMEOUT_S))
        await self.create_agent(POINTS, changePolicy="Apply")
        self.change(**(changes or {"index": {"distance": "Dot"}}))

    def put(self, number: int, **payload: Any) -> None:
        """Write a memory through the alias, like the API does."""
        self.clock.move(ms=10)
        row = {"userId": "u", "type": "fact", "updatedAt": self.clock.now_ms()} | payload
        body = {"points": [{"id": number, "vector": [1, 0, 0, number], "payload": row}]}
        check_success(self.http.put(f"/collections/{self.alias}/points?wait=true", json=body))

    def rows(self, collection: str | None = None) -> dict[int, Any]:
        answer = self.http.post(f"/collections/{collection or self.alias}/points/scroll", json={"limit": 1000})
        return {point["id"]: point["payload"] for point in answer.json()["result"]["points"]}

    def roll_back(self) -> None:
        self.annotate(self.memory, {ROLLBACK_REBUILD: self.aliases()[self.alias]})
