"""A hundred objects of one server that goes away and returns: how often, and how many at a time, they ask it."""

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
# Observed once a pass over what is as it should be; a first pass creates, indexes, names and observes again.
CALLS_A_PASS = 2
# Long beside what a pass takes itself, and short beside the time to the next probe: few passes end before it.
LATENCY_S = 0.02


@dataclass(slots=True)
class SlowServer(FakeCollectionStore):
    """Takes its time, and counts who is there at once."""

    at_once: int = 0
    most_at_once: int = 0
    asked: int = 0

    async def observe(self, alias: str, likely: str, *, is_linked: bool = False) -> Observation | None:
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(LATENCY_S)
            return await FakeCollectionStore.observe(self, alias, likely, is_linked=is_linked)
        finally:
            self.at_once -= 1


@dataclass(slots=True)
class Herd:
    """An operator with its objects, over one server."""

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
        """Return how many objects are Ready."""
        return sum(_is_ready(self.operator.table.get(key)) for key in self.operator.table.keys(AGENT_MEMORY))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.05)

    def count_anew(self) -> None:
        self.server.asked = self.server.most_at_once = 0


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
async def test_a_server_is_asked_by_so_many_objects_at_once_and_no_more() -> None:
    async with working_herd() as herd:
        assert herd.server.most_at_once == WIDTH
        assert herd.server.asked <= 2 * CALLS_A_PASS * OBJECTS


@with_virtual_time
async def test_objects_of_a_server_that_goes_away_are_not_ready_and_none_of_them_asks_it_again() -> None:
    async with working_herd() as herd:
        collections = dict(herd.server.collections)
        herd.count_anew()

        herd.server.error = StoreUnavailable("away")
        await herd.until(lambda: herd.ready() == 0)
        await asyncio.sleep(0.5)

        assert herd.server.asked == 0, "the probe found it away before any object asked"
        assert herd.server.collections == collections


@with_virtual_time
async def test_a_server_that_fails_under_many_passes_is_given_up_after_one_round() -> None:
    async with working_herd() as herd:
        herd.count_anew()

        herd.server.error = StoreUnavailable("away")
        for key in herd.operator.table.keys(AGENT_MEMORY):
            herd.operator.queue.request(key)
        await herd.until(lambda: herd.ready() == 0)
        await asyncio.sleep(0.5)

        assert herd.server.asked <= OBJECTS / 2, "the first failures ask for a probe, and the others follow it"


@with_virtual_time
async def test_a_server_that_returns_is_not_hammered_and_every_object_comes_back() -> None:
    async with working_herd() as herd:
        herd.server.error = StoreUnavailable("away")
        await herd.until(lambda: herd.ready() == 0)
        herd.count_anew()
        returned = asyncio.get_running_loop().time()

        herd.server.error = None
        await herd.until(lambda: herd.ready() == OBJECTS)
        took_s = asyncio.get_running_loop().time() - returned

        assert herd.server.most_at_once <= WIDTH
        assert herd.server.asked == OBJECTS, "one look each: nothing is to be done"
        assert took_s >= 0.8 * OBJECTS / PERIODS.reconnect_passes_per_s, "they come spread over a while"


@with_virtual_time
async def test_a_server_that_falls_over_again_under_the_returning_objects_is_spared_the_rest() -> None:
    async with working_herd() as herd:
        herd.server.error = StoreUnavailable("away")
        await herd.until(lambda: herd.ready() == 0)
        herd.count_anew()
        herd.server.error = None
        await herd.until(lambda: herd.ready() >= OBJECTS / 10)

        herd.server.error = StoreUnavailable("away again")
        await herd.until(lambda: herd.ready() == 0)
        await asyncio.sleep(0.5)

        assert herd.server.asked <= OBJECTS / 2
        herd.server.error = None
        await herd.until(lambda: herd.ready() == OBJECTS)
