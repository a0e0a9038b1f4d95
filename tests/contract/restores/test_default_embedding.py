"""A snapshot with another default embedding than the operator's is restored into an object that names none."""

from collections.abc import AsyncIterator

import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.reconcile import reconcile
from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, Key
from agentmemory_operator.spec.naming import alias_of
from tests.support.job.restore_world import RestoreWorld
from tests.support.spec.documents import memory_document
from tests.support.web.http_server import check_success

WORDLLAMA = {"provider": "wordllama", "model": "l2_supercat", "dimensions": 256}
BGE = {"provider": "fastembed", "model": "BAAI/bge-small-en-v1.5", "dimensions": 384}
MEMORIES = 3


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[RestoreWorld]:
    """An agent with the earlier default, wordllama, and a snapshot of it; the default is bge-small-en-v1.5 now."""
    world = RestoreWorld(qdrant_url)
    await world.create_agent(0, embedding=None)
    points = [
        {"id": number, "vector": [1.0] * 256, "payload": {"userId": "u", "type": "fact", "rev": 1}}
        for number in range(MEMORIES)
    ]
    check_success(world.http.put(f"/collections/{world.alias}/points?wait=true", json={"points": points}))
    await world.snapshot(embedding=WORDLLAMA)
    world.table.default_embedding = "bge-small-en-v1.5"
    try:
        yield world
    finally:
        await world.close()


async def create_empty(world: RestoreWorld, name: str) -> None:
    """Create the empty collection of a new object."""
    memory = world.table.parse(world.must_get(Key(AGENT_MEMORY, "agents", name)))
    desired = desired_collection(memory, cluster_id=world.cluster.identity)
    collections = QdrantCollections(world.url)
    await reconcile(alias_of(name), desired, store=collections, last_physical=None, last_points=0)
    await collections.close()
    assert embedding_of(world, name) == BGE


def embedding_of(world: RestoreWorld, name: str) -> Json:
    found: Json = world.metadata(alias_of(name))["agentmemory"]["embedding"]
    return found


@pytest.mark.parametrize("has_collection", [False, True], ids=["before its first pass", "with an empty collection"])
async def test_restored_collection_keeps_its_embedding(world: RestoreWorld, has_collection: bool) -> None:
    name = f"{world.agent}-new"
    world.table.put(memory_document(name))
    if has_collection:
        await create_empty(world, name)
    key = world.restore(target={"name": name})

    await world.run(key)

    assert world.condition(key, "Succeeded") == "True/Restored", world.status(key)
    assert world.count(alias_of(name)) == MEMORIES
    assert embedding_of(world, name) == WORDLLAMA


async def test_named_embedding_must_match(world: RestoreWorld) -> None:
    name = f"{world.agent}-new"
    world.table.put(memory_document(name, embedding={"provider": "fastembed"}))
    key = world.restore(target={"name": name})

    await world.run(key)

    assert world.condition(key, "Succeeded") == "False/SnapshotUnfit"
    assert "embedding.dimensions 256 (expected 384)" in world.message(key, "Succeeded")
