"""One reindex at a time per connection, in request order, across failures and restarts."""

from dataclasses import dataclass, field

import pytest

from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import Key
from tests.support.engine.passes import passes_over
from tests.support.spec.documents import connection_document, memory_document
from tests.unit.controllers.test_agent_memory_pass import PERIODS, READY, Stage

QUEUED = [("Ready", "True", "Serving"), ("InSync", "False", "ReindexQueued")]
INDEXING = [("Ready", "True", "Serving"), ("InSync", "False", "Indexing")]


def physical(name: str) -> str:
    return f"agent_memory_{name}__1"


@dataclass
class Crowd:
    """Objects with memories on one connection, all converged."""

    stage: Stage = field(default_factory=Stage)
    generation: int = 1

    async def add(self, *names: str, connection: str = "main", points: int = 5) -> None:
        self.stage.put(connection_document(connection))
        for name in names:
            key = self.stage.put(memory_document(name, connectionRef={"name": connection}))
            await self.stage.run(key)
            self.stage.store.points[physical(name)] = points

    async def change(self, name: str, m: int = 32) -> float | None:
        """Change `hnsw.m` and run a pass."""
        key = self.key(name)
        before = self.stage.table.get(key)
        assert before is not None
        self.generation += 1
        spec = before["spec"] | {"index": {"hnsw": {"m": m}}}
        metadata = before["metadata"] | {"generation": self.generation}
        self.stage.put(before | {"spec": spec, "metadata": metadata})
        return await self.stage.run(key)

    async def run(self, name: str) -> float | None:
        return await self.stage.run(self.key(name))

    def restart(self) -> None:
        """Restart the operator: only statuses and Qdrant persist."""
        stage = self.stage
        stage.passes = passes_over(
            stage.table, stage.passes.connections, stage.cluster, stage.clock, stage.request, periods=PERIODS
        )

    def key(self, name: str) -> Key:
        return Key("AgentMemory", "agents", name)

    def m(self, name: str) -> int | None:
        return self.stage.store.collections[physical(name)].hnsw.m

    def set_busy(self, name: str, state: str = "yellow") -> None:
        self.stage.store.states[physical(name)] = state

    def set_idle(self, name: str) -> None:
        self.stage.store.states.pop(physical(name), None)

    def short(self, name: str) -> list[tuple[str, str, str]]:
        return self.stage.short(self.key(name))

    def status(self, name: str) -> Json:
        return self.stage.status(self.key(name))


@pytest.fixture
async def crowd() -> Crowd:
    """Return three objects, the first being reindexed."""
    crowd = Crowd()
    await crowd.add("a", "b", "c")
    crowd.set_busy("a")
    await crowd.change("a")
    assert crowd.m("a") == 32
    return crowd


async def test_second_reindex_waits_and_names_the_first(crowd: Crowd) -> None:
    due_s = await crowd.change("b")

    assert (crowd.m("b"), crowd.short("b")) == (16, QUEUED)
    assert "agents/a is first" in crowd.status("b")["conditions"][1]["message"]
    assert [change["held"] for change in crowd.status("b")["plan"]["changes"]] == [True, True]
    assert due_s == PERIODS.stalled_s
    assert crowd.stage.cluster.events[-1].type == "Normal"


async def test_status_has_reindex_since_while_running(crowd: Crowd) -> None:
    assert crowd.short("a") == INDEXING
    assert "reindexSince" in crowd.status("a")

    crowd.set_idle("a")
    await crowd.run("a")

    assert "reindexSince" not in crowd.status("a")
    assert crowd.short("a") == READY


async def test_slots_are_granted_in_request_order(crowd: Crowd) -> None:
    await crowd.change("c")
    crowd.stage.clock.move(ms=1000)
    await crowd.change("b")
    crowd.set_idle("a")

    await crowd.run("a")
    assert crowd.stage.requested[-1] == crowd.key("c")
    await crowd.run("b")
    assert crowd.short("b") == QUEUED
    await crowd.run("c")
    await crowd.run("c")
    await crowd.run("b")

    assert (crowd.m("c"), crowd.m("b")) == (32, 32)


async def test_queued_object_writes_nothing_on_next_pass(crowd: Crowd) -> None:
    await crowd.change("b")
    writes = crowd.stage.cluster.writes

    await crowd.run("b")

    assert crowd.stage.cluster.writes == writes


async def test_new_reindex_keeps_slot_until_next_pass() -> None:
    """The server does not report the collection as busy yet."""
    crowd = Crowd()
    await crowd.add("a", "b")

    due_s = await crowd.change("a")
    await crowd.change("b")

    assert (due_s, crowd.m("b")) == (PERIODS.settle_s, 16)
    await crowd.run("a")
    await crowd.run("b")
    assert crowd.m("b") == 32


async def test_busy_collection_keeps_slot_after_restart(crowd: Crowd) -> None:
    crowd.restart()

    await crowd.change("b")
    assert (crowd.m("b"), crowd.short("b")) == (16, QUEUED)
    await crowd.run("a")
    assert "reindexSince" in crowd.status("a")

    crowd.set_idle("a")
    await crowd.run("b")
    assert crowd.m("b") == 32


async def test_queue_order_survives_restart(crowd: Crowd) -> None:
    await crowd.change("c")
    crowd.stage.clock.move(ms=60_000)
    await crowd.change("b")
    crowd.restart()
    for name in ("b", "c"):
        await crowd.run(name)
    crowd.set_idle("a")

    await crowd.run("b")

    assert crowd.m("b") == 16


async def test_failed_holder_frees_slot_once_green(crowd: Crowd) -> None:
    crowd.stage.store.error = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await crowd.run("a")
    crowd.stage.store.error = None
    await crowd.change("b")
    assert crowd.m("b") == 16

    crowd.set_idle("a")
    await crowd.run("b")

    assert crowd.m("b") == 32


async def test_deleted_holder_frees_slot(crowd: Crowd) -> None:
    crowd.stage.table.remove(crowd.key("a"))

    await crowd.change("b")

    assert crowd.m("b") == 32


async def test_red_collection_frees_slot(crowd: Crowd) -> None:
    crowd.set_busy("a", "red")
    await crowd.run("a")

    await crowd.change("b")

    assert crowd.m("b") == 32


@pytest.mark.parametrize("ms", [121_000, -86_400_000], ids=["after 2 minutes", "clock set back a day"])
async def test_object_without_passes_loses_its_place(crowd: Crowd, ms: int) -> None:
    await crowd.change("b")
    crowd.stage.clock.move(ms=ms)
    await crowd.change("c")
    crowd.set_idle("a")
    await crowd.run("a")

    await crowd.run("c")

    assert crowd.m("c") == 32


async def test_empty_collection_needs_no_slot(crowd: Crowd) -> None:
    await crowd.add("d", points=0)

    await crowd.change("d")

    assert crowd.m("d") == 32


async def test_each_connection_has_its_own_slot(crowd: Crowd) -> None:
    await crowd.add("d", connection="other")

    await crowd.change("d")

    assert crowd.m("d") == 32


async def test_creation_does_not_wait_for_reindex(crowd: Crowd) -> None:
    await crowd.add("d")

    assert crowd.short("d") == READY
