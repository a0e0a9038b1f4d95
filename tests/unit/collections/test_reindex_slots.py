"""One Reindex at a time per connection, in the order of asking, through failures and restarts."""

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
        """Ask for another graph, and do a pass."""
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
        """Let another operator go on: only statuses and Qdrant are left."""
        stage = self.stage
        stage.passes = passes_over(
            stage.table, stage.passes.connections, stage.cluster, stage.clock, stage.request, periods=PERIODS
        )

    def key(self, name: str) -> Key:
        return Key("AgentMemory", "agents", name)

    def m(self, name: str) -> int | None:
        return self.stage.store.collections[physical(name)].hnsw.m

    def is_busy(self, name: str, state: str = "yellow") -> None:
        self.stage.store.states[physical(name)] = state

    def is_done(self, name: str) -> None:
        self.stage.store.states.pop(physical(name), None)

    def short(self, name: str) -> list[tuple[str, str, str]]:
        return self.stage.short(self.key(name))

    def status(self, name: str) -> Json:
        return self.stage.status(self.key(name))


@pytest.fixture
async def crowd() -> Crowd:
    """Three objects, the first of which is being reindexed."""
    crowd = Crowd()
    await crowd.add("a", "b", "c")
    crowd.is_busy("a")
    await crowd.change("a")
    assert crowd.m("a") == 32
    return crowd


async def test_a_second_reindex_waits_and_says_for_whom(crowd: Crowd) -> None:
    due_s = await crowd.change("b")

    assert (crowd.m("b"), crowd.short("b")) == (16, QUEUED)
    assert "agents/a is first" in crowd.status("b")["conditions"][1]["message"]
    assert [change["held"] for change in crowd.status("b")["plan"]["changes"]] == [True, True]
    assert due_s == PERIODS.stalled_s
    assert crowd.stage.cluster.events[-1].type == "Normal"


async def test_the_status_says_who_has_the_turn(crowd: Crowd) -> None:
    assert crowd.short("a") == INDEXING
    assert "reindexSince" in crowd.status("a")

    crowd.is_done("a")
    await crowd.run("a")

    assert "reindexSince" not in crowd.status("a")
    assert crowd.short("a") == READY


async def test_the_turn_passes_on_in_the_order_of_asking(crowd: Crowd) -> None:
    await crowd.change("c")
    crowd.stage.clock.move(ms=1000)
    await crowd.change("b")
    crowd.is_done("a")

    await crowd.run("a")
    assert crowd.stage.requested[-1] == crowd.key("c")
    await crowd.run("b")
    assert crowd.short("b") == QUEUED
    await crowd.run("c")
    await crowd.run("c")
    await crowd.run("b")

    assert (crowd.m("c"), crowd.m("b")) == (32, 32)


async def test_a_waiting_object_that_looks_again_writes_nothing(crowd: Crowd) -> None:
    await crowd.change("b")
    writes = crowd.stage.cluster.writes

    await crowd.run("b")

    assert crowd.stage.cluster.writes == writes


async def test_a_reindex_that_is_not_seen_yet_keeps_its_turn_until_the_next_look() -> None:
    crowd = Crowd()
    await crowd.add("a", "b")

    due_s = await crowd.change("a")
    await crowd.change("b")

    assert (due_s, crowd.m("b")) == (PERIODS.settle_s, 16)
    await crowd.run("a")
    await crowd.run("b")
    assert crowd.m("b") == 32


async def test_after_a_restart_the_collection_that_is_busy_still_has_the_turn(crowd: Crowd) -> None:
    crowd.restart()

    await crowd.change("b")
    assert (crowd.m("b"), crowd.short("b")) == (16, QUEUED)
    await crowd.run("a")
    assert "reindexSince" in crowd.status("a")

    crowd.is_done("a")
    await crowd.run("b")
    assert crowd.m("b") == 32


async def test_after_a_restart_the_line_is_as_it_was(crowd: Crowd) -> None:
    await crowd.change("c")
    crowd.stage.clock.move(ms=60_000)
    await crowd.change("b")
    crowd.restart()
    for name in ("b", "c"):
        await crowd.run(name)
    crowd.is_done("a")

    await crowd.run("b")

    assert crowd.m("b") == 16


async def test_a_holder_that_fails_blocks_nobody_once_its_collection_is_green(crowd: Crowd) -> None:
    crowd.stage.store.error = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await crowd.run("a")
    crowd.stage.store.error = None
    await crowd.change("b")
    assert crowd.m("b") == 16

    crowd.is_done("a")
    await crowd.run("b")

    assert crowd.m("b") == 32


async def test_a_holder_that_is_gone_blocks_nobody(crowd: Crowd) -> None:
    crowd.stage.table.remove(crowd.key("a"))

    await crowd.change("b")

    assert crowd.m("b") == 32


async def test_a_red_collection_blocks_nobody(crowd: Crowd) -> None:
    crowd.is_busy("a", "red")
    await crowd.run("a")

    await crowd.change("b")

    assert crowd.m("b") == 32


@pytest.mark.parametrize("ms", [121_000, -86_400_000], ids=["after 2 minutes", "and the clock was set back a day"])
async def test_one_that_stopped_asking_loses_its_place(crowd: Crowd, ms: int) -> None:
    await crowd.change("b")
    crowd.stage.clock.move(ms=ms)
    await crowd.change("c")
    crowd.is_done("a")
    await crowd.run("a")

    await crowd.run("c")

    assert crowd.m("c") == 32


async def test_an_empty_collection_waits_for_nobody(crowd: Crowd) -> None:
    await crowd.add("d", points=0)

    await crowd.change("d")

    assert crowd.m("d") == 32


async def test_another_connection_has_its_own_turn(crowd: Crowd) -> None:
    await crowd.add("d", connection="other")

    await crowd.change("d")

    assert crowd.m("d") == 32


async def test_a_new_collection_beside_a_reindex_is_made_at_once(crowd: Crowd) -> None:
    await crowd.add("d")

    assert crowd.short("d") == READY
