"""A rebuild's target is brought in line, and waited for until the engine has indexed it."""

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
    """A target, and an engine whose state follows a script: one word for each second that is waited.

    Attributes:
        paused_after: checks after which the object pauses the rebuild.
    """

    store: FakeCollectionStore = field(default_factory=lambda: FakeCollectionStore(collections={TARGET: DESIRED}))
    states: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
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
        self.told.append(message)

    async def run(self, **how: Any) -> str:
        unused: Any = None
        task = RebuildRun(
            memory=parse_agent_memory(memory_document("mine")),
            server=Server(Endpoint("http://q", None, 1), self.store, unused, unused),
            source=unused,
            desired=DESIRED,
            record=RebuildRecord(source="agent_memory_mine__1", target=TARGET, digest="d", begun_ms=0, since_ms=0),
            clock=FakeClock(),
            embedder=None,
            check=self.check,
            report_progress=self.show,
        )
        return await ConvergeStep(monotonic=lambda: self.now_s, sleep=self.sleep, **how)(task)


async def test_a_target_that_is_as_asked_is_not_changed_and_looked_at_twice() -> None:
    engine = ScriptedTarget()

    assert (await engine.run()).startswith("matches the spec")

    assert engine.store.changes == []
    assert engine.now_s == 1.0


async def test_what_the_object_asks_for_now_is_carried_out() -> None:
    engine = ScriptedTarget()
    engine.store.collections[TARGET] = replace(DESIRED, hnsw=Hnsw(m=8), indexes=())

    await engine.run()

    assert engine.store.changes == ["UpdateHnsw", "CreateIndexes"]
    assert engine.store.collections[TARGET] == DESIRED


async def test_it_waits_until_the_engine_is_at_rest_and_says_how_far_it_is() -> None:
    engine = ScriptedTarget(states=["yellow", "green", "yellow", "green", "green"])
    engine.store.states[TARGET] = "yellow"

    await engine.run()

    assert engine.now_s == 5.0
    assert engine.told == [f"Qdrant indexes {TARGET}: 0 of 0 vectors"] * 3


async def test_a_collection_that_a_restart_left_grey_is_woken() -> None:
    engine = ScriptedTarget()
    engine.store.states[TARGET] = "grey"
    engine.states = ["yellow", "green", "green"]

    await engine.run()

    assert engine.store.changes == ["WakeOptimizers"]


async def test_a_red_collection_ends_the_rebuild_with_the_server_s_words() -> None:
    engine = ScriptedTarget()
    engine.store.states[TARGET] = "red"

    with pytest.raises(SpecInvalid, match="cannot optimize") as refused:
        await engine.run()

    assert refused.value.reason == "CollectionRed"


async def test_an_engine_that_shows_no_progress_is_looked_at_again_later() -> None:
    engine = ScriptedTarget()
    engine.store.states[TARGET] = "yellow"

    with pytest.raises(StoreUnavailable, match="without progress for 30 s"):
        await engine.run(patience_s=30.0)

    assert engine.now_s == pytest.approx(31.0)


async def test_a_pause_is_heeded_while_it_waits() -> None:
    engine = ScriptedTarget(paused_after=3)
    engine.store.states[TARGET] = "yellow"

    with pytest.raises(RebuildPaused):
        await engine.run()


@pytest.mark.parametrize("gone", [None, replace(DESIRED, distance="Cosine")])
async def test_a_target_that_is_gone_or_fits_no_more_is_not_wanted(gone: Collection | None) -> None:
    engine = ScriptedTarget()
    engine.store.collections = {TARGET: gone} if gone else {}

    with pytest.raises(RebuildCancelled):
        await engine.run()
