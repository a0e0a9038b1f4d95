"""The end of a session over a real engine: its working memory is deleted, and a model reads it after the turns."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.distillation.run_queue import find_due_rows
from agentmemory_operator.distillation.runs import DistillationRun
from agentmemory_operator.distillation.session_end import SessionEnd, end_session
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.memories.working_memory import Session
from agentmemory_operator.spec.effective.consolidation import ModelSettings
from agentmemory_operator.spec.memory_types import MemoryType
from tests.contract.distillation.test_runs import Embedder, Reader
from tests.support.engine.agents import EVERYTHING, World

pytestmark = pytest.mark.usefixtures("keeps_vectors")

RANKING = replace(EVERYTHING, types=(*EVERYTHING.types, MemoryType("working", half_life_days=1)))
SESSION = Session("u", "s")


@pytest.fixture
def agent_world(world: World) -> World:
    """An agent with an embedder, working memory and a model."""
    world.set_embedder(Embedder())
    settings = replace(world.agent.settings, ranking=RANKING, language_model=ModelSettings(model="m"))
    world.agent = replace(world.agent, settings=settings)
    return world


async def keep(world: World, content: str) -> str:
    memory = IncomingMemory(user_id="u", session_id="s", content=content)
    return (await world.working.store(world.agent, memory)).record.id


async def turn(world: World, content: str, **more: Any) -> str:
    world.clock.move(ms=1)
    return await world.add(content, session_id="s", type="episodic", vector=None, **more)


async def end(world: World) -> SessionEnd:
    return await end_session(world.agent, world.working, SESSION)


async def distil(world: World, ended: SessionEnd) -> list[str]:
    """Return the texts that the model read."""
    reader = Reader()
    await DistillationRun(world.agent, reader, world.remember, ended.request_row_id).execute()
    return reader.read


async def distilled(world: World) -> list[str]:
    return sorted(record.content for record in await world.rows() if record.source == "distillation")


async def payloads(world: World, ids: Sequence[str]) -> list[dict[str, Any]]:
    return [point["payload"] for point in await world.agent.store.retrieve(world.agent.alias, ids)]


async def test_turns_and_working_memory_are_read(agent_world: World) -> None:
    """The end deletes the working memory; the model reads it afterwards from the request."""
    turn_id = await turn(agent_world, "she wants a refund")
    working_id = await keep(agent_world, "an open order")

    ended = await end(agent_world)

    assert (ended.request_row_id, ended.dropped.counts) == (turn_id, {"working": 1})
    assert await agent_world.working.read(agent_world.agent, SESSION) == ()
    assert await agent_world.heads() == ["she wants a refund"]
    assert await distil(agent_world, ended) == ["she wants a refund", "an open order"]
    assert await distilled(agent_world) == ["The user said: an open order", "The user said: she wants a refund"]
    [row] = await payloads(agent_world, [working_id])
    assert TOMBSTONE_KEY in row
    assert await find_due_rows(agent_world.agent) == []


async def test_working_memory_alone_is_read(agent_world: World) -> None:
    working_ids = [await keep(agent_world, "an open order"), await keep(agent_world, "a broken lamp")]

    ended = await end(agent_world)

    assert await agent_world.heads() == []
    assert sorted(await distil(agent_world, ended)) == ["a broken lamp", "an open order"]
    assert all(TOMBSTONE_KEY in row for row in await payloads(agent_world, working_ids))
    assert len(await distilled(agent_world)) == 2


async def test_second_end_reads_only_new_turns(agent_world: World) -> None:
    await turn(agent_world, "she wants a refund")
    await distil(agent_world, await end(agent_world))

    assert (await end(agent_world)).run is None

    await turn(agent_world, "she got it")
    assert await distil(agent_world, await end(agent_world)) == ["she got it"]


async def test_next_sessions_working_memory_is_not_read(agent_world: World) -> None:
    agent_world.agent = replace(agent_world.agent, settings=replace(agent_world.agent.settings, working_memory_slots=1))
    await turn(agent_world, "she wants a refund")
    await keep(agent_world, "an open order")
    ended = await end(agent_world)
    await keep(agent_world, "another order")

    assert await distil(agent_world, ended) == ["she wants a refund"]
    assert [record.content for record in await agent_world.working.read(agent_world.agent, SESSION)] == [
        "another order"
    ]


async def test_without_a_model_nothing_is_kept(agent_world: World) -> None:
    agent_world.agent = replace(agent_world.agent, settings=replace(agent_world.agent.settings, language_model=None))
    working_id = await keep(agent_world, "an open order")

    ended = await end(agent_world)

    assert (ended.run, ended.dropped.counts) == (None, {"working": 1})
    assert all(TOMBSTONE_KEY in row for row in await payloads(agent_world, [working_id]))


async def test_empty_session_starts_no_run(agent_world: World) -> None:
    assert await end(agent_world) == SessionEnd((await end(agent_world)).dropped)


async def test_other_users_and_sessions_are_not_read(agent_world: World) -> None:
    await agent_world.add("of bob", user_id="bob", session_id="s", type="episodic", vector=None)
    await agent_world.add("of another session", session_id="t", type="episodic", vector=None)

    assert (await end(agent_world)).run is None
