"""Qdrant's own client reads the collections of the operator and the memories of the API."""

import asyncio
import os
import subprocess
import sys
import time
import uuid

from qdrant_client import AsyncQdrantClient, models

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.reconcile import reconcile
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.stored_memories import delete_head
from tests.support.engine.agents import World, vector_of
from tests.support.programs import ROOT
from tests.support.spec.plans import desired_of


async def test_client_finds_memories_behind_alias(qdrant_url: str, world: World) -> None:
    await world.remember.store(world.agent, [IncomingMemory(user_id="u", content="near", vector=vector_of("near"))])
    is_users = models.FieldCondition(key="userId", match=models.MatchValue(value="u"))
    client = AsyncQdrantClient(url=qdrant_url, timeout=30, check_compatibility=False)

    found = await client.query_points(
        world.agent.alias, query=list(vector_of("near")), query_filter=models.Filter(must=[is_users]), limit=1
    )

    await client.close()
    assert [(point.payload or {}).get("content") for point in found.points] == ["near"]


async def test_example_application_reads_memories(qdrant_url: str, world: World) -> None:
    now_ms = world.clock.value_ms = int(time.time() * 1000)
    old = await world.add("pays by card", user_id="ada", tags=("billing",), created_at=now_ms - 3000)
    await world.add("pays by invoice", user_id="ada", tags=("billing",), created_at=now_ms - 2000, supersedes=old)
    await world.add("wants invoices in English", user_id="ada", tags=("billing",), created_at=now_ms - 1000)
    await world.add("offer that has ended", user_id="ada", tags=("billing",), expires_at=now_ms + 1)
    await world.add("belongs to another", user_id="bob", tags=("billing",))
    deleted = await world.add("was deleted", user_id="ada", tags=("billing",))
    await delete_head(world.agent, deleted, user_id="ada")
    agent = world.agent.alias.removeprefix("agent_memory_")
    environment = {"QDRANT_URL": qdrant_url, "EXAMPLE_AGENT": agent, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(ROOT / "examples" / "qdrant-client" / "read.py")]

    process = await asyncio.to_thread(
        subprocess.run, command, env=os.environ | environment, capture_output=True, text=True, timeout=60
    )

    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.splitlines() == [
        "billing: 'wants invoices in English'",
        "billing: 'pays by invoice'",
        "fact: 2",
        "like the newest: 'pays by invoice'",
    ]


async def test_client_reads_collection_settings(qdrant_url: str) -> None:
    alias = f"agent_memory_c-{uuid.uuid4().hex[:12]}"
    desired = desired_of({"embedding": {"provider": "none", "dimensions": 4}})
    store, client = (
        QdrantCollections(qdrant_url),
        AsyncQdrantClient(url=qdrant_url, timeout=30, check_compatibility=False),
    )
    await reconcile(alias, desired, store=store, last_physical=None, last_points=0)

    collection = await client.get_collection(alias)

    await store.delete(f"{alias}__1")
    await store.close()
    await client.close()
    graph = collection.config.hnsw_config
    assert (graph.m, graph.ef_construct) == (desired.hnsw.m, desired.hnsw.ef_construct)
    assert set(collection.payload_schema) == set(dict(desired.indexes))
