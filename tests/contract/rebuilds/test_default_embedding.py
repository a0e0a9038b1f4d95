"""A rebuild of an object that names no embedding, before its status has the one of its collection."""

from collections.abc import AsyncIterator

import pytest

from agentmemory_operator.collections.rules.rebuild_record import RebuildStep
from tests.support.job.rebuild_world import BARE_STEPS, RebuildWorld, do_nothing


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[RebuildWorld]:
    """An agent whose collection has the earlier default, wordllama, and whose status does not name it."""
    world = RebuildWorld(qdrant_url, dict(BARE_STEPS) | {RebuildStep.COPY: do_nothing})
    world.table.default_embedding = "bge-small-en-v1.5"
    await world.create_agent(0, embedding=None, changePolicy="Apply")
    yield world
    await world.close()


async def test_other_default_needs_no_rebuild(world: RebuildWorld) -> None:
    await world.rebuild()

    assert world.collections() == [world.physical]


async def test_target_has_the_embedding_of_the_source(world: RebuildWorld) -> None:
    world.change(index={"distance": "Dot"})

    await world.rebuild()

    assert world.rebuild_status["state"] == "Done", world.rebuild_status["message"]
    assert (
        world.metadata(world.alias)["agentmemory"]["embedding"]
        == world.metadata(world.physical)["agentmemory"]["embedding"]
    )
