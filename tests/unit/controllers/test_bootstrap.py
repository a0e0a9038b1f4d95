"""Agents without a collection: created empty, awaiting a restore, or restored from a snapshot."""

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

FROM_SNAPSHOT = {"bootstrap": {"fromSnapshot": {"name": "before"}}}
KEY = Key(AGENT_MEMORY, "agents", "probe")


class NewAgent:
    """Cluster with one agent that has no collection."""

    def __init__(self, **spec: Any) -> None:
        self.table, self.cluster = ObjectTable(), FakeCluster()
        self.memory = parse_agent_memory(memory_document(**spec))

    def restore(self, name: str, status: Json, *, into: str = "probe", **metadata: Any) -> None:
        spec = {"target": {"name": into}, "source": {"snapshotRef": {"name": "before"}}}
        named = {"name": name, "namespace": "agents", "uid": name} | metadata
        self.table.put({"kind": "MemoryRestore", "metadata": named, "spec": spec, "status": status})

    async def check(self) -> None:
        await check_creation(KEY, self.memory, table=self.table, cluster=self.cluster)


def ended_status(status: str) -> Json:
    """Return the status of a completed restore."""
    return {"conditions": [{"type": "Succeeded", "status": status, "reason": "Because", "message": "it was spoilt"}]}


async def test_agent_without_bootstrap_starts_empty() -> None:
    site = NewAgent()

    await site.check()

    assert site.cluster.created == {}


@pytest.mark.parametrize("now", [None, {"uid": "another"}, {"deletionTimestamp": "2026-11-25T08:00:00Z"}])
async def test_deleted_object_gets_no_collection(now: Json | None) -> None:
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


async def test_running_restore_blocks_creation() -> None:
    site = NewAgent()
    site.restore("undo", {"physical": "agent_memory_probe__2"})

    with pytest.raises(RestoreInProgress, match="MemoryRestore undo"):
        await site.check()


@pytest.mark.parametrize(
    ("status", "more"),
    [
        ({}, {}),
        (ended_status("True") | {"physical": "p"}, {}),
        (ended_status("False") | {"physical": "p"}, {}),
        ({"physical": "p"}, {"deletionTimestamp": "2026-11-22T08:00:00Z"}),
    ],
    ids=["not started", "applied", "failed", "deleted"],
)
async def test_inactive_restore_does_not_block(status: Json, more: Json) -> None:
    site = NewAgent()
    site.restore("undo", status, **more)
    site.restore("another-s", {"physical": "p"}, into="other")

    await site.check()


async def test_bootstrap_creates_one_restore() -> None:
    site = NewAgent(**FROM_SNAPSHOT)

    for _ in range(2):
        with pytest.raises(RestoreInProgress, match="probe-bootstrap-uid-prob"):
            await site.check()

    ((kind, name),) = site.cluster.created
    assert (kind, name) == ("MemoryRestore", "probe-bootstrap-uid-prob")
    restore = parse_restore(site.cluster.created[kind, name])
    assert restore.spec.target.name == "probe"
    assert restore.spec.source.snapshot_ref is not None
    assert restore.spec.source.snapshot_ref.name == "before"


async def test_failed_bootstrap_creates_no_collection() -> None:
    site = NewAgent(**FROM_SNAPSHOT)
    site.restore("probe-bootstrap-uid-prob", ended_status("False"))

    with pytest.raises(SpecInvalid, match="it was spoilt") as caught:
        await site.check()

    assert caught.value.reason == "BootstrapFailed"
    assert site.cluster.created == {}


async def test_completed_bootstrap_is_not_repeated() -> None:
    site = NewAgent(**FROM_SNAPSHOT)
    site.restore("probe-bootstrap-uid-prob", ended_status("True"))

    await site.check()

    assert site.cluster.created == {}


def test_recreated_agent_gets_new_restore() -> None:
    first = parse_agent_memory(memory_document(**FROM_SNAPSHOT))
    second = parse_agent_memory(memory_document(metadata={"uid": "another"}, **FROM_SNAPSHOT))

    assert (
        build_bootstrap_restore(first, "a")["metadata"]["name"]
        != build_bootstrap_restore(second, "a")["metadata"]["name"]
    )


FACT, TASK = {"name": "fact", "halfLifeDays": 365}, {"name": "task", "halfLifeDays": 30}


@dataclass(slots=True)
class Agent:
    """Agent with memories of the types fact and task."""

    stage: Stage = field(default_factory=Stage)
    generation: int = 0

    async def list_types(self, *types: Json) -> None:
        """Change the object's types and run a pass."""
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
    def warnings(self) -> list[str]:
        """Messages of the TypesListed conditions."""
        found = self.stage.status(self.key)["conditions"]
        return [condition["message"] for condition in found if condition["type"] == "TypesListed"]

    @property
    def counts(self) -> int:
        return [method for method, _ in self.stage.store.calls].count("count_unlisted")

    def _document(self, types: tuple[Json, ...]) -> Json:
        document = memory_document("probe", metadata={"generation": self.generation}, types=list(types))
        before = self.stage.table.get(self.key)
        return document | {"status": (before or {}).get("status") or {}}


@pytest.fixture
async def agent() -> Agent:
    """Return an agent whose object lists both types of its memories."""
    agent = Agent()
    await agent.list_types(FACT, TASK)
    return agent


async def test_removed_type_warns_with_count(agent: Agent) -> None:
    await agent.list_types(FACT)

    assert ("TypesListed", "False", "TypeRemoved") in agent.stage.short(agent.key)
    assert "2 of type task" in agent.warnings[0]
    assert "recency of 0.5" in agent.warnings[0]
    assert [event.reason for event in agent.stage.cluster.events if event.type == "Warning"] == ["TypeRemoved"]


async def test_removed_type_does_not_stop_serving(agent: Agent) -> None:
    await agent.list_types(FACT)

    assert ("Ready", "True", "Serving") in agent.stage.short(agent.key)


async def test_warning_ends_with_last_memory(agent: Agent) -> None:
    await agent.list_types(FACT)
    agent.stage.store.types[FIRST] = {"fact": 3}

    await agent.run()

    assert agent.warnings == []


async def test_warning_ends_when_type_is_listed(agent: Agent) -> None:
    await agent.list_types(FACT)

    await agent.list_types(FACT, TASK)

    assert agent.warnings == []


async def test_warning_survives_outage(agent: Agent) -> None:
    await agent.list_types(FACT)
    agent.stage.store.error = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await agent.run()
    agent.stage.store.error = None

    await agent.run()

    assert "2 of type task" in agent.warnings[0]


async def test_listed_types_are_not_counted(agent: Agent) -> None:
    await agent.list_types(FACT, TASK)
    counts = agent.counts

    await agent.run()
    await agent.run()

    assert agent.counts == counts


async def test_unchanged_warning_writes_nothing(agent: Agent) -> None:
    await agent.list_types(FACT)
    writes = agent.stage.cluster.writes

    await agent.run()

    assert agent.stage.cluster.writes == writes


async def test_object_without_types_has_no_warning(agent: Agent) -> None:
    agent.generation += 1
    document = memory_document("probe", metadata={"generation": agent.generation}, preset="none")
    agent.stage.put(document | {"status": agent.stage.status(agent.key)})

    await agent.run()

    assert agent.warnings == []


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ({}, None),
        ({"rotateKeysBefore": "2999-01-01T00:00:00Z"}, None),
        ({"rotateKeysBefore": "2026-01-01T00:00:00Z"}, 2),
    ],
)
async def test_memories_under_replaced_keys_are_counted(more: dict[str, str], left: int | None) -> None:
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
async def test_exact_count_is_limited(points: int, limits: Limits | None, how: str | None) -> None:
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
async def test_refused_count_does_not_stop_serving(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
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
