"""ConvergeStep: updates the target to the spec and waits until the engine has indexed it."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import RebuildCancelled, RebuildPaused, SpecInvalid, StoreUnavailable
from agentmemory_operator.rebuilds.converge import ConvergeStep
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.presets.table import Hnsw
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.engine.fakes import FakeClock
from tests.support.spec.documents import memory_document
from tests.support.spec.plans import marker_of

TARGET = "agent_memory_mine__2"
MARKER = marker_of(dimensions=4, cluster_id="cluster-1", name="mine", uid="u")
DESIRED = Collection(size=4, distance="Dot", hnsw=Hnsw(m=16), indexes=(("userId", "keyword"),), marker=MARKER)


@dataclass
class ScriptedTarget:
    """A target, and an engine with one scripted state for each second of waiting.

    Attributes:
        paused_after: Number of checks after which the object pauses the rebuild.
    """

    store: FakeCollectionStore = field(default_factory=lambda: FakeCollectionStore(collections={TARGET: DESIRED}))
    states: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    paused_after: int = 1000
    now_s: float = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.states:
            self.store.states[TARGET] = self.states.pop(0)

    async def check(self) -> None:
        self.paused_after -= 1
        if self.paused_after < 0:
            raise RebuildPaused("the annotation pauses it")

    async def show(self, record: RebuildRecord, message: str) -> None:
        self.messages.append(message)

    async def run(self, **how: Any) -> str:
        unused: Any = None
        task = RebuildRun(
            memory=parse_agent_memory(memory_document("mine")),
            server=Server(Endpoint("http://q", None, 1), self.store, unused, unused),
            source=unused,
            desired=DESIRED,
            record=RebuildRecord(source="agent_memory_mine__1", target=TARGET, digest="d", started_ms=0, since_ms=0),
            clock=FakeClock(),
            embedder=None,
            check=self.check,
            report_progress=self.show,
        )
        return await ConvergeStep(monotonic=lambda: self.now_s, sleep=self.sleep, **how)(task)


async def test_matching_target_is_only_read_twice() -> None:
    engine = ScriptedTarget()

    assert (await engine.run()).startswith("matches the spec")

    assert engine.store.changes == []
    assert engine.now_s == 1.0


async def test_changed_spec_is_applied() -> None:
    engine = ScriptedTarget()
    engine.store.collections[TARGET] = replace(DESIRED, hnsw=Hnsw(m=8), indexes=())

    await engine.run()

    assert engine.store.changes == ["UpdateHnsw", "CreateIndexes"]
    assert engine.store.collections[TARGET] == DESIRED


async def test_waits_for_green_and_shows_progress() -> None:
    engine = ScriptedTarget(states=["yellow", "green", "yellow", "green", "green"])
    engine.store.states[TARGET] = "yellow"

    await engine.run()

    assert engine.now_s == 5.0
    assert engine.messages == [f"Qdrant indexes {TARGET}: 0 of 0 vectors"] * 3


async def test_grey_collection_is_woken() -> None:
    engine = ScriptedTarget()
    engine.store.states[TARGET] = "grey"
    engine.states = ["yellow", "green", "green"]

    await engine.run()

    assert engine.store.changes == ["WakeOptimizers"]


async def test_red_collection_fails_with_the_server_error() -> None:
    engine = ScriptedTarget()
    engine.store.states[TARGET] = "red"

    with pytest.raises(SpecInvalid, match="cannot optimize") as refused:
        await engine.run()

    assert refused.value.reason == "CollectionRed"


async def test_missing_progress_is_retried_later() -> None:
    engine = ScriptedTarget()
    engine.store.states[TARGET] = "yellow"

    with pytest.raises(StoreUnavailable, match="without progress for 30 s"):
        await engine.run(patience_s=30.0)

    assert engine.now_s == pytest.approx(31.0)


async def test_pause_interrupts_the_wait() -> None:
    engine = ScriptedTarget(paused_after=3)
    engine.store.states[TARGET] = "yellow"

    with pytest.raises(RebuildPaused):
        await engine.run()


@pytest.mark.parametrize("gone", [None, replace(DESIRED, distance="Cosine")])
async def test_missing_or_unfit_target_cancels(gone: Collection | None) -> None:
    engine = ScriptedTarget()
    engine.store.collections = {TARGET: gone} if gone else {}

    with pytest.raises(RebuildCancelled):
        await engine.run()
