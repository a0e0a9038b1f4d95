"""Keys that passes share for the embedding in force, which the collection's marker names."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.access_tokens import QdrantTokens
from agentmemory_operator.connections.agent_secrets import AgentSecrets
from agentmemory_operator.connections.guarded_secrets import GuardedSecrets, SecretNotices, attribute_reads_to
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.controllers.agent_memory_pass import Passes
from agentmemory_operator.controllers.periods import Periods
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import Key, ObjectTable, key_of
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.kinds.conditions import find_condition
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.engine.fakes import FakeClock, FakeCluster, FakeHandoverStore, FakeSecrets
from tests.support.engine.passes import passes_over
from tests.support.spec.documents import connection_document, memory_document

PHYSICAL, SIZE = "agent_memory_probe__1", 8
KEYS = {("agents", name, "key"): f"sk-{name}" for name in ("own", "before", "other")}


def embedding(name: str) -> dict[str, Any]:
    return {"provider": "openai", "model": "m", "dimensions": SIZE, "secretRef": {"name": name, "key": "key"}}


@dataclass(slots=True)
class Stage:
    """Passes that share Secrets, which must list their hosts."""

    table: ObjectTable = field(default_factory=ObjectTable)
    store: FakeCollectionStore = field(default_factory=FakeCollectionStore)
    cluster: FakeCluster = field(default_factory=FakeCluster)
    secrets: FakeSecrets = field(default_factory=lambda: FakeSecrets(KEYS))
    shared: FakeHandoverStore = field(default_factory=FakeHandoverStore)
    passes: Passes = field(init=False)

    def __post_init__(self) -> None:
        self.secrets.hosts = {(namespace, name): "api.openai.com" for namespace, name, _ in KEYS}
        guarded, clock = GuardedSecrets(self.secrets, "Require"), FakeClock()
        notices = SecretNotices(self.table, self.cluster)
        connections = Connections(self.table, guarded, lambda endpoint: self.store)
        handover = AgentSecrets(self.shared, guarded, connections, QdrantTokens(), clock, notices=notices)
        self.passes = passes_over(
            *(self.table, connections, self.cluster, clock, lambda key, **_: None), periods=Periods(), handover=handover
        )
        self.table.put(connection_document())

    async def run(self, name: str, *, status: Json | None = None, generation: int = 1) -> Key:
        """Run a pass over the object with that embedding Secret."""
        document = memory_document(metadata={"generation": generation}, embedding=embedding(name), changePolicy="Never")
        before = self.table.get(key_of(document)) or {}
        self.table.put(document | {"status": (before.get("status") or {}) | (status or {})})
        with attribute_reads_to(key_of(document)):
            await self.passes.run(key_of(document))
        return key_of(document)

    def mark(self, source: EmbeddingSource) -> None:
        """Set the embedding source in the collection's marker."""
        live = self.store.collections[PHYSICAL]
        assert live.marker is not None
        self.store.collections[PHYSICAL] = replace(live, marker=replace(live.marker, embedding=source))

    @property
    def values(self) -> set[str]:
        return set(self.shared.stored["probe"].values.values()) if "probe" in self.shared.stored else set()


@pytest.fixture
def stage() -> Stage:
    return Stage()


def other_model(name: str, base_url: str | None = None) -> EmbeddingSource:
    """Return an embedding of another space, so that the object needs a rebuild, which is held."""
    return EmbeddingSource(
        provider="openai", model="older", dimensions=SIZE, base_url=base_url, secret_name=name, secret_key="key"
    )


async def test_pass_shares_the_key_in_force(stage: Stage) -> None:
    await stage.run("own")
    assert stage.values == {"sk-own"}

    stage.mark(other_model("before"))
    await stage.run("own")

    assert stage.values == {"sk-own", "sk-before"}


async def test_secret_in_status_is_not_shared(stage: Stage) -> None:
    for _ in range(3):
        await stage.run("own", status={"effective": {"embedding": {"secret": "other/key"}}})

    assert stage.values == {"sk-own"}


async def test_unchanged_secrets_are_read_once_per_pass(stage: Stage) -> None:
    await stage.run("own")
    reads = stage.shared.reads

    await stage.run("own")

    assert stage.shared.reads == reads + 1


async def test_unlisted_service_is_reported_once(stage: Stage) -> None:
    await stage.run("own")
    stage.mark(other_model("before", "https://evil.example/v1"))

    for _ in range(3):
        key = await stage.run("own")

    assert stage.values == {"sk-own"}
    assert find_condition((stage.table.get(key) or {})["status"], "Ready")["status"] == "True"
    (event,) = [event for event in stage.cluster.events if event.reason == "SecretNotUsable"]
    assert "agentmemory.dev/hosts" in event.message


async def test_report_is_repeated_after_the_host_was_listed(stage: Stage) -> None:
    await stage.run("own")
    stage.mark(other_model("before", "https://evil.example/v1"))

    listed = stage.secrets.hosts.copy()
    for hosts in (listed, dict.fromkeys(listed, "api.openai.com, evil.example"), listed):
        stage.secrets.hosts = hosts
        for _ in range(2):
            await stage.run("own")

    assert len([event for event in stage.cluster.events if event.reason == "SecretNotUsable"]) == 2


async def test_unlisted_own_service_stalls_the_object(stage: Stage) -> None:
    await stage.run("own")
    stage.secrets.hosts["agents", "own"] = "elsewhere.example"

    key = await stage.run("own")

    stalled = find_condition((stage.table.get(key) or {})["status"], "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "SecretNotUsable")
    assert stage.values == set()
