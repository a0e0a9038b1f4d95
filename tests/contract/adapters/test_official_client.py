"""Qdrant's own client reads what the operator made and the API stored: agents' data is not locked in."""

import uuid

from qdrant_client import AsyncQdrantClient, models

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.reconcile import reconcile
from agentmemory_operator.memories.incoming import IncomingMemory
from tests.support.engine.agents import World, vector_of
from tests.support.spec.plans import desired_of


async def test_the_official_client_finds_memories_behind_the_alias(qdrant_url: str, world: World) -> None:
    await world.remember.store(world.agent, [IncomingMemory(user_id="u", content="near", vector=vector_of("near"))])
    is_users = models.FieldCondition(key="userId", match=models.MatchValue(value="u"))
    client = AsyncQdrantClient(url=qdrant_url, timeout=30, check_compatibility=False)

    found = await client.query_points(
        world.agent.alias, query=list(vector_of("near")), query_filter=models.Filter(must=[is_users]), limit=1
    )

    await client.close()
    assert [(point.payload or {}).get("content") for point in found.points] == ["near"]


async def test_the_official_client_reads_the_figures_of_a_collection(qdrant_url: str) -> None:
    alias = f"agent_memory_c-{uuid.uuid4().hex[:12]}"
    desired = desired_of({"embedding": {"provider": "none", "dimensions": 4}})
    store, client = (
        QdrantCollections(qdrant_url),
        AsyncQdrantClient(url=qdrant_url, timeout=30, check_compatibility=False),
    )
    await reconcile(alias, desired, store=store, last_physical=None, last_points=0)

    seen = await client.get_collection(alias)

    await store.delete(f"{alias}__1")
    await store.close()
    await client.close()
    assert (seen.config.hnsw_config.m, seen.config.hnsw_config.ef_construct) == (desired.m, desired.ef_construct)
    assert set(seen.payload_schema) == set(dict(desired.indexes))
