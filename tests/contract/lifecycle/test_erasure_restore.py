"""Restores, rollbacks, clones and retained collections contain no forgotten user."""

from collections.abc import AsyncIterator

import pytest

from agentmemory_operator.adapters.embedding.embedder_factory import CallerVectors
from agentmemory_operator.agents.directory import open_collection
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import StoreUnavailable, TransientError
from agentmemory_operator.lifecycle.erase import Eraser
from agentmemory_operator.lifecycle.forget import ForgetRequest, ForgetUseCase
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.runtime.object_table import Key
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.job.job_world import EMBEDDING
from tests.support.job.restore_world import POINTS, RestoreWorld, open_restore
from tests.support.spec.documents import memory_document

pytestmark = pytest.mark.usefixtures("keeps_and_empties")

ROLLBACK = {"agentmemory.dev/rollback": "yes"}


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[RestoreWorld]:
    async with open_restore(qdrant_url) as restore_world:
        yield restore_world


async def forget(world: RestoreWorld, user: str = "u") -> None:
    """Forget a user, as the API does."""
    settings = effective_settings(parse_agent_memory(world.must_get(world.memory)))
    erasing = Eraser(world.clock)

    async def operation(server: Server) -> None:
        embedder = CallerVectors(settings.embedding.dimensions)
        agent = await open_collection(
            server.points, settings, embedder, world.clock, cluster_id=world.cluster.cluster_id
        )
        request = ForgetRequest(scope=ErasureScope(user_id=user, is_whole=True), filters={})
        await ForgetUseCase(world.clock, erasing).forget(agent, request)

    await world.with_server(operation)


def count_memories_of_user(world: RestoreWorld, collection: str) -> int:
    """Count the memories of user `u` in a collection."""
    mine = {"must": [{"key": "userId", "match": {"value": "u"}}]}
    body = {"filter": mine, "exact": True}
    answer = world.http.post(f"/collections/{collection}/points/count", json=body)
    return int(answer.raise_for_status().json()["result"]["count"])


def erase_message(world: RestoreWorld, key: Key) -> str:
    """Return the message of the Erase step of a restore."""
    return next(str(step["message"]) for step in world.status(key)["steps"] if step["name"] == "Erase")


async def test_restore_keeps_user_forgotten(world: RestoreWorld) -> None:
    assert count_memories_of_user(world, world.alias) == POINTS
    await forget(world)

    await world.run(key := world.restore())

    assert world.condition(key, "Succeeded") == "True/Restored"
    assert world.aliases() == {world.alias: f"{world.alias}__2"}
    assert count_memories_of_user(world, world.alias) == 0
    assert erase_message(world, key) == f"{POINTS} memories erased since the snapshot were erased again"


async def test_forget_before_alias_move_is_applied(world: RestoreWorld) -> None:
    world.fails["apply"] = StoreUnavailable("away, right before the alias moves")
    key = world.restore()
    with pytest.raises(TransientError):
        await world.restores.run(key)
    await forget(world)

    world.fails.clear()
    await world.run(key)

    assert world.aliases() == {world.alias: f"{world.alias}__2"}
    assert count_memories_of_user(world, world.alias) == 0


async def test_rollback_keeps_user_forgotten(world: RestoreWorld) -> None:
    await world.run(key := world.restore())
    await forget(world)

    world.annotate(key, ROLLBACK)
    await world.run(key)

    assert world.aliases() == {world.alias: world.physical}
    assert count_memories_of_user(world, world.alias) == 0


async def test_sweep_erases_in_retained_collection(world: RestoreWorld) -> None:
    await world.run(world.restore())
    await forget(world)
    assert count_memories_of_user(world, world.physical) == POINTS

    assert await world.with_server(world.sweeper().sweep) == []

    assert count_memories_of_user(world, world.physical) == 0


async def test_clone_has_no_forgotten_user(world: RestoreWorld) -> None:
    await forget(world)
    clone = f"{world.agent}-copy"
    world.table.put(memory_document(clone, embedding=EMBEDDING))

    await world.run(key := world.restore(target={"name": clone}))

    assert world.condition(key, "Succeeded") == "True/Restored"
    assert count_memories_of_user(world, f"agent_memory_{clone}") == 0
    assert erase_message(world, key) == f"{POINTS} memories erased since the snapshot were erased again"


async def test_snapshot_of_another_cluster_is_not_cloned(
    world: RestoreWorld,
) -> None:
    await forget(world)
    marker = world.metadata(world.physical)["agentmemory"] | {"clusterId": "another"}
    world.http.patch(f"/collections/{world.physical}", json={"metadata": {"agentmemory": marker}}).raise_for_status()
    clone = f"{world.agent}-copy"
    world.table.put(memory_document(clone, embedding=EMBEDDING))

    await world.run(key := world.restore(target={"name": clone}))

    assert world.condition(key, "Succeeded") == "False/CollectionNotOwned"
    assert world.collections() == [world.physical]


async def test_second_restore_keeps_user_forgotten(world: RestoreWorld) -> None:
    await forget(world)
    await world.run(world.restore("first"))

    await world.run(world.restore("second"))

    assert world.aliases() == {world.alias: f"{world.alias}__3"}
    assert count_memories_of_user(world, world.alias) == 0
