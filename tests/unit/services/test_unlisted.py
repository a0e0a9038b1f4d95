"""A type that is taken off an object's list while memories of it exist: its status says how many there are."""

from dataclasses import dataclass, field

import pytest

from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.ports import Json
from agentmemory_operator.services.objects import Key
from tests.support.fakes import connection_document, memory_document
from tests.unit.services.test_passes import FIRST, Stage

FACT, TASK = {"name": "fact", "halfLifeDays": 365}, {"name": "task", "halfLifeDays": 30}


@dataclass(slots=True)
class Agent:
    """An object over an agent with memories of the types fact and task."""

    stage: Stage = field(default_factory=Stage)
    generation: int = 0

    async def list_types(self, *types: Json) -> None:
        """Change the object's types, and run a pass."""
        self.generation += 1
        key = self.stage.put(connection_document(), self._document(types))
        await self.stage.run(key)
        self.stage.store.points[FIRST], self.stage.store.types[FIRST] = 5, {"fact": 3, "task": 2}

    async def run(self) -> None:
        await self.stage.run(self.key)

    @property
    def key(self) -> Key:
        return Key("AgentMemory", "agents", "probe")

    @property
    def told(self) -> list[str]:
        """The messages of the conditions about types."""
        found = self.stage.status(self.key)["conditions"]
        return [condition["message"] for condition in found if condition["type"] == "TypesListed"]

    @property
    def asked(self) -> int:
        return [method for method, _ in self.stage.store.calls].count("count_unlisted")

    def _document(self, types: tuple[Json, ...]) -> Json:
        document = memory_document("probe", metadata={"generation": self.generation}, types=list(types))
        before = self.stage.table.get(self.key)
        return document | {"status": (before or {}).get("status") or {}}


@pytest.fixture
async def agent() -> Agent:
    """An agent whose object lists both types of its memories."""
    agent = Agent()
    await agent.list_types(FACT, TASK)
    return agent


async def test_the_status_warns_of_memories_of_a_type_that_was_removed_and_counts_them(agent: Agent) -> None:
    await agent.list_types(FACT)

    assert ("TypesListed", "False", "TypeRemoved") in agent.stage.short(agent.key)
    assert "2 of type task" in agent.told[0]
    assert "recency of 0.5" in agent.told[0]
    assert [event.reason for event in agent.stage.cluster.events if event.type == "Warning"] == ["TypeRemoved"]


async def test_the_agent_serves_all_the_same(agent: Agent) -> None:
    await agent.list_types(FACT)

    assert ("Ready", "True", "Serving") in agent.stage.short(agent.key)


async def test_the_warning_goes_with_the_last_of_these_memories(agent: Agent) -> None:
    await agent.list_types(FACT)
    agent.stage.store.types[FIRST] = {"fact": 3}

    await agent.run()

    assert agent.told == []


async def test_the_warning_goes_when_the_type_is_listed_again(agent: Agent) -> None:
    await agent.list_types(FACT)

    await agent.list_types(FACT, TASK)

    assert agent.told == []


async def test_the_warning_outlives_an_outage(agent: Agent) -> None:
    await agent.list_types(FACT)
    agent.stage.store.error = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await agent.run()
    agent.stage.store.error = None

    await agent.run()

    assert "2 of type task" in agent.told[0]


async def test_passes_over_an_object_that_lists_its_types_count_nothing(agent: Agent) -> None:
    await agent.list_types(FACT, TASK)
    asked = agent.asked

    await agent.run()
    await agent.run()

    assert agent.asked == asked


async def test_an_unchanged_warning_writes_nothing(agent: Agent) -> None:
    await agent.list_types(FACT)
    writes = agent.stage.cluster.writes

    await agent.run()

    assert agent.stage.cluster.writes == writes


async def test_an_object_that_takes_any_type_is_never_warned_of(agent: Agent) -> None:
    agent.generation += 1
    document = memory_document("probe", metadata={"generation": agent.generation}, preset="none")
    agent.stage.put(document | {"status": agent.stage.status(agent.key)})

    await agent.run()

    assert agent.told == []
