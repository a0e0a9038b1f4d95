"""Secrets that passes share with the API: for suspended objects too, and without blocking the collection."""

import pytest

from agentmemory_operator.adapters.qdrant.access_tokens import QdrantTokens
from agentmemory_operator.connections.agent_secrets import AgentSecrets
from agentmemory_operator.connections.rules.agent_secret_slots import AgentSecret
from agentmemory_operator.errors import AgentMemoryError, StoreRejected, StoreUnavailable, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import Key
from tests.support.engine.fakes import FakeHandoverStore
from tests.support.spec.documents import connection_document, memory_document
from tests.unit.controllers.test_agent_memory_pass import READY, Stage

KEYED = connection_document(apiKeySecretRef={"name": "qdrant", "key": "k"})
READER = {"kind": "ServiceAccount", "namespace": "agents", "name": "bot", "verbs": ["read"]}


class Away(FakeHandoverStore):
    """Fails every read."""

    async def read(self, slug: str) -> AgentSecret | None:
        raise TransientError("Kubernetes is away")


def staged(store: FakeHandoverStore) -> Stage:
    stage = Stage()
    stage.secrets.values = {("agents", "qdrant", "k"): "s3cret"}
    passes = stage.passes
    passes.handover = AgentSecrets(store, stage.secrets, passes.connections, QdrantTokens(), stage.clock)
    stage.put(KEYED)
    return stage


def reasons(stage: Stage) -> list[str]:
    return [event.reason for event in stage.cluster.events]


async def test_pass_shares_secrets_and_counts_readers() -> None:
    store = FakeHandoverStore()
    stage = staged(store)
    key = stage.put(memory_document(access={"subjects": [READER]}))

    await stage.run(key)

    assert [*store.stored] == ["probe"]
    assert stage.status(key)["access"] == {"readers": 1, "writers": 0, "qdrant": "Key"}
    assert "NobodyMayRead" not in reasons(stage)


async def test_lost_last_reader_is_reported_once() -> None:
    stage = staged(FakeHandoverStore())
    key = stage.put(memory_document())
    await stage.run(key)
    assert "NobodyMayRead" not in reasons(stage), "of one that never named anybody, status.access says it"

    for subjects in ([READER], [], []):
        status = stage.status(key)
        stage.put(memory_document(access={"subjects": subjects}) | {"status": status})
        await stage.run(key)

    assert reasons(stage).count("NobodyMayRead") == 1
    assert stage.short(key) == READY, "a note, not an error"


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({"suspend": True, "access": {"subjects": []}}, (0, 0)),
        ({"suspend": True, "access": {"subjects": [READER | {"verbs": ["write"]}]}}, (0, 1)),
        ({"index": {"hnsw": {"m": 1}}, "access": {"subjects": [READER, READER | {"name": "new"}]}}, (2, 0)),
        ({"index": {"hnsw": {"m": 1}}}, (0, 0)),
        ({"access": {"subjects": [READER, {"name": "half"}]}}, (0, 0)),
    ],
)
async def test_status_counts_callers_of_inactive_objects(spec: Json, counts: tuple[int, int]) -> None:
    """Suspended and invalid objects are counted too."""
    stage = staged(FakeHandoverStore())
    key = stage.put(memory_document(access={"subjects": [READER]}))
    await stage.run(key)

    stage.put(memory_document(**spec) | {"status": stage.status(key)})
    await stage.run(key)

    access = stage.status(key)["access"]
    assert (access["readers"], access["writers"], access["qdrant"]) == (*counts, "Key")


async def test_failed_sync_does_not_block_the_collection() -> None:
    stage = staged(Away())
    key = stage.put(memory_document())

    with pytest.raises(TransientError, match="away"):
        await stage.run(key)

    assert stage.short(key) == READY


def suspended(**metadata: object) -> Json:
    return memory_document(suspend=True, metadata=metadata or None)


async def test_suspended_object_is_requeued() -> None:
    """The token of a suspended object must be renewed."""
    store = FakeHandoverStore()
    stage = staged(store)
    key = stage.put(suspended())

    assert await stage.run(key)
    assert [*store.stored] == ["probe"]
    assert stage.store.changes == []


async def test_suspended_object_without_secret_is_requeued() -> None:
    """The suspended object gets no SecretNotFound condition."""
    stage = staged(FakeHandoverStore())
    stage.secrets.values = {}
    key = stage.put(suspended())

    assert await stage.run(key)
    assert [reason for _, _, reason in stage.short(key)].count("SecretNotFound") == 0


@pytest.mark.parametrize("error", [StoreRejected(403, "forbidden"), StoreUnavailable("away")], ids=["refused", "away"])
async def test_suspended_object_ignores_faults_of_qdrant(error: AgentMemoryError) -> None:
    """No pass would correct the status before the object is resumed."""
    stage = staged(FakeHandoverStore())
    key = stage.put(suspended())
    stage.store.error = error

    assert await stage.run(key)
    assert stage.short(key) == [("Ready", "Unknown", "Suspended"), ("Suspended", "True", "Suspended")]


async def test_suspended_object_needs_its_own_slug() -> None:
    store = FakeHandoverStore()
    stage = staged(store)
    stage.put(memory_document(metadata={"creationTimestamp": "2025-01-01T00:00:00Z", "namespace": "older"}))

    assert await stage.run(stage.put(suspended())) is None
    assert store.stored == {}


async def test_status_has_no_access_without_agent_secrets() -> None:
    stage = Stage()
    stage.put(connection_document())
    key: Key = stage.put(memory_document())

    await stage.run(key)

    assert "access" not in stage.status(key)
