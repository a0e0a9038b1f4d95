"""The queue of consolidations: a model that hangs holds up its own object, and what fails is told and made again."""

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
    """Points in memory, none of which is like another."""

    async def query(self, collection: str, body: Any) -> list[Any]:
        return []


@dataclass
class Hanging:
    """A model that never answers.

    Attributes:
        is_asked: set once it was.
    """

    is_asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self, *_: Any) -> Completion:
        self.is_asked.set()
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
        """Add an object whose user has two memories of one thing, and that somebody asked to consolidate."""
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

    def told(self, key: Key) -> dict[str, Any]:
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


async def test_a_model_that_hangs_holds_up_no_other_object() -> None:
    operator, hanging = Operator(), [Hanging() for _ in range(3)]
    for number, model in enumerate(hanging):
        await operator.add(f"hung-{number}", model)
    key = await operator.add("well", FunctionModel(merge_by_first_word), namespace="others")

    async with operator.working():
        for each in operator.table.keys(AGENT_MEMORY):
            operator.told(each)
        await until(lambda: all(model.is_asked.is_set() for model in hanging) and bool(operator.told(key)))

    assert operator.told(key)["counts"]["merged"] == 1
    assert await operator.worlds["well"].heads() == ["alpha one alpha two"]
    assert not operator.consolidating.schedule.is_changing(Key(AGENT_MEMORY, "agents", "hung-0"))


async def look(operator: Operator, key: Key) -> float | None:
    return await operator.consolidating.schedule.run_if_due(key)


def away(rows: Any) -> Any:
    raise ModelUnavailable("no answer within 120 s")


async def test_a_model_that_is_away_is_told_and_counted() -> None:
    operator = Operator()
    key = await operator.add("a", FunctionModel(away))

    await look(operator, key)

    told = operator.told(key)
    assert (told["reason"], told["requested"]) == ("ModelUnavailable", "now")
    assert [event.reason for event in operator.cluster.events] == ["ConsolidationFailed"]
    samples = collect_samples(*operator.consolidating.meter.metrics)
    assert samples['agentmemory_consolidations_total{action="Run",outcome="failed"}'] == 1
    assert operator.passes == [key]


async def test_a_secret_that_is_not_there_is_told_by_its_reason() -> None:
    operator = Operator()
    key = await operator.add("a", FunctionModel(merge_by_first_word))
    operator.fault = SpecInvalid("SecretNotFound", "Secret agents/llm not found")

    await look(operator, key)

    assert operator.told(key)["reason"] == "SecretNotFound"


async def test_where_qdrant_is_away_before_the_model_was_asked_the_queue_tries_again() -> None:
    operator = Operator()
    key = await operator.add("a", FunctionModel(merge_by_first_word))
    operator.fault = StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        await look(operator, key)

    assert operator.told(key) == {}


async def test_who_does_not_lead_any_more_writes_nothing_down() -> None:
    operator = Operator()
    key = await operator.add("a", FunctionModel(merge_by_first_word))
    operator.fault = LeadershipLost("lost")

    with pytest.raises(LeadershipLost):
        await look(operator, key)

    assert operator.told(key) == {}


async def test_nothing_is_merged_while_the_collection_is_rebuilt() -> None:
    operator, model = Operator(), FunctionModel(merge_by_first_word)
    key = await operator.add("a", model)
    operator.rebuilding.add(key)

    assert await look(operator, key) == 30.0

    assert model.rows == []


async def test_a_rebuild_that_begins_while_the_model_reads_keeps_what_it_says_from_being_done() -> None:
    operator = Operator()

    def begins(rows: Any) -> Any:
        operator.rebuilding.add(key)
        return merge_by_first_word(rows)

    key = await operator.add("a", FunctionModel(begins))

    await look(operator, key)

    assert operator.told(key)["reason"] == "QdrantUnavailable"
    assert sorted(await operator.worlds["a"].heads()) == ["alpha one", "alpha two"]


async def test_what_is_asked_for_is_done_once_and_its_run_taken_back() -> None:
    operator = Operator()
    key = await operator.add("a", FunctionModel(merge_by_first_word))
    await look(operator, key)
    done = operator.told(key)

    assert await look(operator, key) is None
    assert operator.told(key) == done

    operator.ask("a", f"later undo {done['run']}")
    await look(operator, key)

    assert operator.told(key)["counts"] == {"reactivated": 2}
    assert sorted(await operator.worlds["a"].heads()) == ["alpha one", "alpha two"]


async def test_no_event_and_no_status_has_a_text() -> None:
    operator = Operator()
    key = await operator.add("a", FunctionModel(merge_by_first_word))

    await look(operator, key)

    assert "alpha" not in str(operator.told(key)) + str(operator.cluster.events)
