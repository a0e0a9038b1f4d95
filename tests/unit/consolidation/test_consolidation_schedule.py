"""The queue of consolidations: independent objects, reported failures, and retries."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.consolidation.consolidation_schedule import ConsolidationSchedule
from agentmemory_operator.consolidation.run import OpenAgent
from agentmemory_operator.errors import LeadershipLost, ModelUnavailable, SpecInvalid, StoreUnavailable
from agentmemory_operator.ports.models import Completion
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, Key, ObjectTable
from agentmemory_operator.spec.kinds.agent_memory import CONSOLIDATION_REQUESTED
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import EVERYTHING, SIZE, FakeEmbedder, World, agent_of, settings_of
from tests.support.engine.fakes import FakeCluster
from tests.support.engine.language_models import FunctionModel, merge_by_first_word
from tests.support.engine.point_memory import PointMemory
from tests.support.metrics import collect_samples
from tests.support.spec.documents import memory_document

MODEL = {"model": {"model": "m", "baseURL": "http://llm.ml.svc/v1"}, "schedule": "Never"}


class Points(PointMemory):
    """Points in memory without similar neighbours."""

    async def query(self, collection: str, body: Any) -> list[Any]:
        return []


@dataclass
class Hanging:
    """A model that never responds.

    Attributes:
        was_called: Set by the first call.
    """

    was_called: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self, *_: Any) -> Completion:
        self.was_called.set()
        await asyncio.Event().wait()
        raise AssertionError


class Operator:
    """Consolidates agents, each with a model of its own."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.worlds: dict[str, World] = {}
        self.models: dict[str, Any] = {}
        self.fault: BaseException | None = None
        self.rebuilding: set[Key] = set()
        self.passes: list[Key] = []
        self.table = ObjectTable()
        clock = World(agent_of(settings_of("clock"), Points())).clock
        self.clock = clock
        self.consolidating = ConsolidationSchedule(
            *(self.table, self._open_store, self._open_model, self.cluster, clock, self.passes.append),
            is_rebuilding=self.rebuilding.__contains__,
        )

    @contextlib.asynccontextmanager
    async def _open_store(self, memory: Any) -> AsyncIterator[OpenAgent]:
        if self.fault is not None:
            raise self.fault

        async def open_now() -> Agent:
            return self.worlds[memory.slug].agent

        yield open_now

    async def _open_model(self, memory: Any, settings: Any) -> Any:
        return self.models[memory.slug]

    async def add(self, slug: str, model: Any, asked: str = "now", *, namespace: str = "agents") -> Key:
        """Add an object with two memories of one topic and a requested consolidation."""
        world = World(
            agent_of(settings_of(slug, ranking=replace(EVERYTHING, types=(MemoryType("fact", None),))), Points())
        )
        world.clock = self.clock
        world.agent = replace(world.agent, clock=self.clock)
        world.set_embedder(FakeEmbedder(size=SIZE))
        for content in ("alpha one", "alpha two"):
            self.clock.move(ms=1)
            await world.add(content, vector=None)
        self.clock.move(ms=1)
        self.worlds[slug], self.models[slug] = world, model
        return self.ask(slug, asked, namespace=namespace)

    def ask(self, slug: str, asked: str, *, namespace: str = "agents") -> Key:
        document = memory_document(slug, consolidation=MODEL) | {"status": {"collection": {"physical": "p"}}}
        document["metadata"] |= {"annotations": {CONSOLIDATION_REQUESTED: asked}, "namespace": namespace}
        self.table.put(document)
        return Key(AGENT_MEMORY, namespace, document["metadata"]["name"])

    def last_run(self, key: Key) -> dict[str, Any]:
        document = self.table.get(key)
        assert document is not None
        status = self.consolidating.plan_next(key, document, {"conditions": []})
        last: dict[str, Any] = status.get("lastConsolidation") or {}
        return last

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.consolidating.schedule.queue.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


async def test_hanging_model_does_not_block_others() -> None:
    operator, hanging = Operator(), [Hanging() for _ in range(3)]
    for number, model in enumerate(hanging):
        await operator.add(f"hung-{number}", model)
    key = await operator.add("well", FunctionModel(merge_by_first_word), namespace="others")

    async with operator.working():
        for each in operator.table.keys(AGENT_MEMORY):
            operator.last_run(each)
        await until(lambda: all(model.was_called.is_set() for model in hanging) and bool(operator.last_run(key)))

    assert operator.last_run(key)["counts"]["merged"] == 1
    assert await operator.worlds["well"].heads() == ["alpha one alpha two"]
    assert not operator.consolidating.schedule.is_changing(Key(AGENT_MEMORY, "agents", "hung-0"))


async def look(operator: Operator, key: Key) -> float | None:
    return await operator.consolidating.schedule.run_if_due(key)


def away(rows: Any) -> Any:
    raise ModelUnavailable("no answer within 120 s")


async def test_unavailable_model_is_reported_and_counted() -> None:
    operator = Operator()
    key = await operator.add("a", FunctionModel(away))

    await look(operator, key)

    result = operator.last_run(key)
    assert (result["reason"], result["requested"]) == ("ModelUnavailable", "now")
    assert [event.reason for event in operator.cluster.events] == ["ConsolidationFailed"]
    samples = collect_samples(*operator.consolidating.meter.metrics)
    assert samples['agentmemory_consolidations_total{action="Run",outcome="failed"}'] == 1
    assert operator.passes == [key]


async def test_missing_secret_is_reported() -> None:
    operator = Operator()
    key = await operator.add("a", FunctionModel(merge_by_first_word))
    operator.fault = SpecInvalid("SecretNotFound", "Secret agents/llm not found")

    await look(operator, key)

    assert operator.last_run(key)["reason"] == "SecretNotFound"


async def test_outage_before_model_call_is_retried() -> None:
    operator = Operator()
    key = await operator.add("a", FunctionModel(merge_by_first_word))
    operator.fault = StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        await look(operator, key)

    assert operator.last_run(key) == {}


async def test_lost_leadership_writes_no_status() -> None:
    operator = Operator()
    key = await operator.add("a", FunctionModel(merge_by_first_word))
    operator.fault = LeadershipLost("lost")

    with pytest.raises(LeadershipLost):
        await look(operator, key)

    assert operator.last_run(key) == {}


async def test_rebuild_postpones_consolidation() -> None:
    operator, model = Operator(), FunctionModel(merge_by_first_word)
    key = await operator.add("a", model)
    operator.rebuilding.add(key)

    assert await look(operator, key) == 30.0

    assert model.rows == []


async def test_rebuild_during_model_call_discards_plan() -> None:
    operator = Operator()

    def begins(rows: Any) -> Any:
        operator.rebuilding.add(key)
        return merge_by_first_word(rows)

    key = await operator.add("a", FunctionModel(begins))

    await look(operator, key)

    assert operator.last_run(key)["reason"] == "QdrantUnavailable"
    assert sorted(await operator.worlds["a"].heads()) == ["alpha one", "alpha two"]


async def test_requested_run_is_done_once_and_undone() -> None:
    operator = Operator()
    key = await operator.add("a", FunctionModel(merge_by_first_word))
    await look(operator, key)
    done = operator.last_run(key)

    assert await look(operator, key) is None
    assert operator.last_run(key) == done

    operator.ask("a", f"later undo {done['run']}")
    await look(operator, key)

    assert operator.last_run(key)["counts"] == {"reactivated": 2}
    assert sorted(await operator.worlds["a"].heads()) == ["alpha one", "alpha two"]


async def test_events_and_status_contain_no_content() -> None:
    operator = Operator()
    key = await operator.add("a", FunctionModel(merge_by_first_word))

    await look(operator, key)

    assert "alpha" not in str(operator.last_run(key)) + str(operator.cluster.events)
