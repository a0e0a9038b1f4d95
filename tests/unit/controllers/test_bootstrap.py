"""An agent without a collection: an empty one, none while one is restored for it, or the one that its spec names."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import Limits
from agentmemory_operator.controllers.bootstrap import MAX_LISTED_MEMORIES, build_bootstrap_restore, check_creation
from agentmemory_operator.errors import (
    NotFound,
    RestoreInProgress,
    SpecInvalid,
    StoreRejected,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, Key, ObjectTable
from agentmemory_operator.spec.kinds.parse import parse_agent_memory, parse_restore
from agentmemory_operator.spec.times import parse_second
from tests.support.engine.fakes import FakeCluster
from tests.support.spec.documents import connection_document, memory_document
from tests.unit.controllers.test_agent_memory_pass import FIRST, Stage

BEGINS = {"bootstrap": {"fromSnapshot": {"name": "before"}}}
KEY = Key(AGENT_MEMORY, "agents", "probe")


class NewAgent:
    """A cluster with one agent that has no collection."""

    def __init__(self, **spec: Any) -> None:
        self.table, self.cluster = ObjectTable(), FakeCluster()
        self.memory = parse_agent_memory(memory_document(**spec))

    def restore(self, name: str, status: Json, *, into: str = "probe", **metadata: Any) -> None:
        spec = {"target": {"name": into}, "source": {"snapshotRef": {"name": "before"}}}
        named = {"name": name, "namespace": "agents", "uid": name} | metadata
        self.table.put({"kind": "MemoryRestore", "metadata": named, "spec": spec, "status": status})

    async def check(self) -> None:
        await check_creation(KEY, self.memory, table=self.table, cluster=self.cluster)


def ended(status: str) -> Json:
    """Return the status of a restore that has ended."""
    return {"conditions": [{"type": "Succeeded", "status": status, "reason": "Because", "message": "it was spoilt"}]}


async def test_an_agent_that_asks_for_nothing_gets_an_empty_collection() -> None:
    site = NewAgent()

    await site.check()

    assert site.cluster.created == {}


@pytest.mark.parametrize("now", [None, {"uid": "another"}, {"deletionTimestamp": "2026-11-25T08:00:00Z"}])
async def test_a_lost_collection_is_not_made_again_for_an_object_that_was_deleted(now: Json | None) -> None:
    site = NewAgent()
    document = memory_document() | {"status": {"collection": {"physical": "agent_memory_probe__1"}}}
    site.memory = parse_agent_memory(document)
    site.cluster.created[AGENT_MEMORY, "probe"] = document
    await site.check()
    site.cluster.created.clear()
    if now is not None:
        site.cluster.created[AGENT_MEMORY, "probe"] = document | {"metadata": document["metadata"] | now}

    with pytest.raises(TransientError, match="AgentMemory agents/probe was deleted"):
        await site.check()


async def test_while_a_restore_makes_its_collection_no_other_is_made() -> None:
    site = NewAgent()
    site.restore("undo", {"physical": "agent_memory_probe__2"})

    with pytest.raises(RestoreInProgress, match="MemoryRestore undo"):
        await site.check()


@pytest.mark.parametrize(
    ("status", "more"),
    [
        ({}, {}),
        (ended("True") | {"physical": "p"}, {}),
        (ended("False") | {"physical": "p"}, {}),
        ({"physical": "p"}, {"deletionTimestamp": "2026-11-22T08:00:00Z"}),
    ],
    ids=["not begun", "applied", "failed", "deleted"],
)
async def test_a_restore_that_makes_nothing_holds_nothing_up(status: Json, more: Json) -> None:
    site = NewAgent()
    site.restore("undo", status, **more)
    site.restore("another-s", {"physical": "p"}, into="other")

    await site.check()


async def test_one_that_begins_with_a_snapshot_has_its_restore_made_once() -> None:
    site = NewAgent(**BEGINS)

    for _ in range(2):
        with pytest.raises(RestoreInProgress, match="probe-bootstrap-uid-prob"):
            await site.check()

    ((kind, name),) = site.cluster.created
    assert (kind, name) == ("MemoryRestore", "probe-bootstrap-uid-prob")
    made = parse_restore(site.cluster.created[kind, name])
    assert made.spec.target.name == "probe"
    assert made.spec.source.snapshot_ref is not None
    assert made.spec.source.snapshot_ref.name == "before"


async def test_a_snapshot_that_cannot_be_restored_is_told_and_nothing_empty_is_made() -> None:
    site = NewAgent(**BEGINS)
    site.restore("probe-bootstrap-uid-prob", ended("False"))

    with pytest.raises(SpecInvalid, match="it was spoilt") as caught:
        await site.check()

    assert caught.value.reason == "BootstrapFailed"
    assert site.cluster.created == {}


async def test_once_it_was_restored_the_snapshot_is_not_asked_for_again() -> None:
    site = NewAgent(**BEGINS)
    site.restore("probe-bootstrap-uid-prob", ended("True"))

    await site.check()

    assert site.cluster.created == {}


def test_an_agent_that_is_made_anew_begins_anew() -> None:
    first = parse_agent_memory(memory_document(**BEGINS))
    second = parse_agent_memory(memory_document(metadata={"uid": "another"}, **BEGINS))

    assert (
        build_bootstrap_restore(first, "a")["metadata"]["name"]
        != build_bootstrap_restore(second, "a")["metadata"]["name"]
    )


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


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ({}, None),
        ({"rotateKeysBefore": "2999-01-01T00:00:00Z"}, None),
        ({"rotateKeysBefore": "2026-01-01T00:00:00Z"}, 2),
    ],
)
async def test_memories_under_keys_that_are_replaced_are_counted_and_no_others(
    more: dict[str, str], left: int | None
) -> None:
    stage, before = Stage(), parse_second("2026-01-01T00:00:00Z")
    zones = {"allowed": ["PERSONAL"], "keySecretRef": {"name": "zones"}} | more
    key = stage.put(connection_document(), memory_document("probe", zones=zones))
    await stage.run(key)
    stage.store.keys_made[FIRST] = [before - 1, before - 2, before]

    await stage.run(key)

    assert (stage.status(key).get("zones") or {}).get("toReseal") == left
    assert ("count_sealed_before" in {method for method, _ in stage.store.calls}) is (left is not None)


@pytest.mark.parametrize(
    ("points", "limits", "how"),
    [
        (0, None, None),
        (MAX_LISTED_MEMORIES + 1, None, "exact"),
        (MAX_LISTED_MEMORIES + 1, (("enabled", False), ("search_allow_exact", False)), "exact"),
        (MAX_LISTED_MEMORIES, (("enabled", True), ("search_allow_exact", False)), "exact"),
        (MAX_LISTED_MEMORIES + 1, (("enabled", True), ("search_allow_exact", False)), "estimated"),
    ],
)
async def test_a_pass_lists_no_more_memories_than_a_bound_to_count_them(
    points: int, limits: Limits | None, how: str | None
) -> None:
    stage = Stage()
    key = stage.put(connection_document(), memory_document("probe"))
    await stage.run(key)
    stage.store.points[FIRST] = points
    stage.store.collections[FIRST] = replace(stage.store.collections[FIRST], strict_mode=limits)
    stage.store.calls.clear()

    await stage.run(key)

    assert stage.status(key)["collection"]["memories"] == points
    assert [argument for method, argument in stage.store.calls if method == "count_memories"] == ([how] if how else [])


@pytest.mark.parametrize("error", [StoreRejected(400, "no"), NotFound("gone")])
async def test_a_server_that_refuses_to_count_serves_all_the_same(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def refuse(_: object, physical: str, *, exact: bool = True) -> int:
        raise error

    stage = Stage()
    key = stage.put(connection_document(), memory_document("probe"))
    await stage.run(key)
    stage.store.points[FIRST] = 5
    monkeypatch.setattr(type(stage.store), "count_memories", refuse)

    await stage.run(key)

    assert ("Ready", "True", "Serving") in stage.short(key)
    assert "memories" not in stage.status(key)["collection"]
