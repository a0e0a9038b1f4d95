"""The end of a session over a real engine: a model reads what was said and what was in mind, and then it is gone."""

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
def talking(world: World) -> World:
    """An agent that embeds, has working memory, and a model."""
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
    """Return what the model was shown."""
    reader = Reader()
    await DistillationRun(world.agent, reader, world.remember, ended.request_row_id).carry_out()
    return reader.read


async def made(world: World) -> list[str]:
    return sorted(record.content for record in await world.rows() if record.source == "distillation")


async def payloads(world: World, ids: Sequence[str]) -> list[dict[str, Any]]:
    return [point["payload"] for point in await world.agent.store.retrieve(world.agent.alias, ids)]


async def test_what_was_said_and_what_was_in_mind_is_read_and_then_dropped(talking: World) -> None:
    said = await turn(talking, "she wants a refund")
    mind = await keep(talking, "an open order")

    ended = await end(talking)

    assert (ended.request_row_id, ended.ended.counts) == (said, {"working": 1})
    assert await talking.working.read(talking.agent, SESSION) == ()
    assert await talking.heads() == ["she wants a refund"]
    assert await distil(talking, ended) == ["she wants a refund", "an open order"]
    assert await made(talking) == ["The user said: an open order", "The user said: she wants a refund"]
    [row] = await payloads(talking, [mind])
    assert TOMBSTONE_KEY in row
    assert await find_due_rows(talking.agent) == []


async def test_a_session_that_only_had_things_in_mind_is_read_too(talking: World) -> None:
    minds = [await keep(talking, "an open order"), await keep(talking, "a broken lamp")]

    ended = await end(talking)

    assert await talking.heads() == []
    assert sorted(await distil(talking, ended)) == ["a broken lamp", "an open order"]
    assert all(TOMBSTONE_KEY in row for row in await payloads(talking, minds))
    assert len(await made(talking)) == 2


async def test_ending_again_offers_only_what_came_since(talking: World) -> None:
    await turn(talking, "she wants a refund")
    await distil(talking, await end(talking))

    assert (await end(talking)).run is None

    await turn(talking, "she got it")
    assert await distil(talking, await end(talking)) == ["she got it"]


async def test_what_the_next_session_has_in_mind_is_not_read(talking: World) -> None:
    talking.agent = replace(talking.agent, settings=replace(talking.agent.settings, working_memory_slots=1))
    await turn(talking, "she wants a refund")
    await keep(talking, "an open order")
    ended = await end(talking)
    await keep(talking, "another order")

    assert await distil(talking, ended) == ["she wants a refund"]
    assert [record.content for record in await talking.working.read(talking.agent, SESSION)] == ["another order"]


async def test_without_a_model_nothing_is_kept_for_one(talking: World) -> None:
    talking.agent = replace(talking.agent, settings=replace(talking.agent.settings, language_model=None))
    mind = await keep(talking, "an open order")

    ended = await end(talking)

    assert (ended.run, ended.ended.counts) == (None, {"working": 1})
    assert all(TOMBSTONE_KEY in row for row in await payloads(talking, [mind]))


async def test_an_empty_session_offers_nothing(talking: World) -> None:
    assert await end(talking) == SessionEnd((await end(talking)).ended)


async def test_others_turns_are_not_read(talking: World) -> None:
    await talking.add("of bob", user_id="bob", session_id="s", type="episodic", vector=None)
    await talking.add("of another session", session_id="t", type="episodic", vector=None)

    assert (await end(talking)).run is None
