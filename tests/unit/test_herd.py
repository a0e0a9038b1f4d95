"""Load of a hundred objects on one server during an outage and its recovery."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.collections.rules.collection import Observation
from agentmemory_operator.connections.guarded_secrets import GuardedSecrets
from agentmemory_operator.controllers.periods import Periods
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.main.operator import Operator
from agentmemory_operator.main.operator_ports import OperatorPorts
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import AGENT_MEMORY
from agentmemory_operator.settings import Settings
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.engine.fakes import FakeClaimStore, FakeCluster, FakeSecrets, with_virtual_time
from tests.support.spec.documents import connection_document, memory_document

OBJECTS = 100
WIDTH = 8
PERIODS = Periods(probe_s=0.1, reconnect_passes_per_s=200.0)
# A pass over a converged object observes once; a first pass creates, indexes, sets the alias and observes again.
CALLS_A_PASS = 2
# Longer than a pass itself, shorter than the probe period: few passes end before the next probe.
LATENCY_S = 0.02


@dataclass(slots=True)
class SlowServer(FakeCollectionStore):
    """Store with latency that counts its calls and their concurrency."""

    concurrent: int = 0
    max_concurrent: int = 0
    calls_made: int = 0

    async def observe(self, alias: str, likely_physical: str, *, is_linked: bool = False) -> Observation | None:
        self.calls_made += 1
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        try:
            await asyncio.sleep(LATENCY_S)
            return await FakeCollectionStore.observe(self, alias, likely_physical, is_linked=is_linked)
        finally:
            self.concurrent -= 1


@dataclass(slots=True)
class Herd:
    """Operator with its objects, over one server."""

    server: SlowServer = field(default_factory=SlowServer)
    cluster: FakeCluster = field(default_factory=FakeCluster)
    operator: Operator = field(init=False)

    def __post_init__(self) -> None:
        nothing: Any = None
        ports = OperatorPorts(
            cluster=self.cluster,
            secrets=GuardedSecrets(FakeSecrets(), None),
            claim_store=FakeClaimStore(),
            collections=lambda endpoint: self.server,
            points=nothing,
            server=nothing,
            objects=nothing,
            embedder=nothing,
            language_model=nothing,
        )
        self.operator = Operator(ports, Settings.from_env({}), periods=PERIODS)

    def ready(self) -> int:
        """Return the number of Ready objects."""
        return sum(_is_ready(self.operator.table.get(key)) for key in self.operator.table.keys(AGENT_MEMORY))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.05)

    def reset_counters(self) -> None:
        self.server.calls_made = self.server.max_concurrent = 0


def _is_ready(document: Json | None) -> bool:
    conditions: list[dict[str, Any]] = ((document or {}).get("status") or {}).get("conditions") or []
    return any((entry["type"], entry["status"]) == ("Ready", "True") for entry in conditions)


@contextlib.asynccontextmanager
async def working_herd() -> AsyncIterator[Herd]:
    herd = Herd()
    for document in (connection_document(), *(memory_document(f"m{number}") for number in range(OBJECTS))):
        herd.operator.feed.take("ADDED", document)
    working = asyncio.create_task(herd.operator.queues.run())
    try:
        await herd.until(lambda: herd.ready() == OBJECTS)
        yield herd
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


@with_virtual_time
async def test_concurrent_calls_are_limited() -> None:
    async with working_herd() as herd:
        assert herd.server.max_concurrent == WIDTH
        assert herd.server.calls_made <= 2 * CALLS_A_PASS * OBJECTS


@with_virtual_time
async def test_outage_stops_calls_of_objects() -> None:
    async with working_herd() as herd:
        collections = dict(herd.server.collections)
        herd.reset_counters()

        herd.server.error = StoreUnavailable("away")
        await herd.until(lambda: herd.ready() == 0)
        await asyncio.sleep(0.5)

        assert herd.server.calls_made == 0, "the probe detects the outage first"
        assert herd.server.collections == collections


@with_virtual_time
async def test_failing_passes_stop_after_one_round() -> None:
    async with working_herd() as herd:
        herd.reset_counters()

        herd.server.error = StoreUnavailable("away")
        for key in herd.operator.table.keys(AGENT_MEMORY):
            herd.operator.queue.request(key)
        await herd.until(lambda: herd.ready() == 0)
        await asyncio.sleep(0.5)

        assert herd.server.calls_made <= OBJECTS / 2, (
            "the first failures request a probe, whose result stops the others"
        )


@with_virtual_time
async def test_recovery_spreads_passes() -> None:
    async with working_herd() as herd:
        herd.server.error = StoreUnavailable("away")
        await herd.until(lambda: herd.ready() == 0)
        herd.reset_counters()
        returned = asyncio.get_running_loop().time()

        herd.server.error = None
        await herd.until(lambda: herd.ready() == OBJECTS)
        took_s = asyncio.get_running_loop().time() - returned

        assert herd.server.max_concurrent <= WIDTH
        assert herd.server.calls_made == OBJECTS, "one read each: all are converged"
        assert took_s >= 0.8 * OBJECTS / PERIODS.reconnect_passes_per_s, "passes are spread over time"


@with_virtual_time
async def test_second_outage_stops_remaining_passes() -> None:
    async with working_herd() as herd:
        herd.server.error = StoreUnavailable("away")
        await herd.until(lambda: herd.ready() == 0)
        herd.reset_counters()
        herd.server.error = None
        await herd.until(lambda: herd.ready() >= OBJECTS / 10)

        herd.server.error = StoreUnavailable("away again")
        await herd.until(lambda: herd.ready() == 0)
        await asyncio.sleep(0.5)

        assert herd.server.calls_made <= OBJECTS / 2
        herd.server.error = None
        await herd.until(lambda: herd.ready() == OBJECTS)
