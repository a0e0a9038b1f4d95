"""One distillation run over a real engine: crashes, races, deletions and invalid model output."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from agentmemory_operator.consolidation.undo import UndoReport, approve, read_proposals, undo
from agentmemory_operator.distillation.conversations import (
    Conversation,
    SpokenTurn,
    StoredConversation,
    store_conversation,
)
from agentmemory_operator.distillation.run_queue import find_due_rows
from agentmemory_operator.distillation.runs import LEASE_MARGIN_S, MAX_TRIES, DistillationResult, DistillationRun
from agentmemory_operator.errors import AgentMemoryError, ModelOutputInvalid, ModelUnavailable
from agentmemory_operator.memories.stored_memories import change_head, delete_head
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.ports.models import Completion
from agentmemory_operator.spec.effective.consolidation import ModelSettings
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import SIZE, World, vector_of
from tests.support.web.language_models import rows_of

pytestmark = pytest.mark.usefixtures("keeps_vectors")

TURNS = (SpokenTurn(role="user", content="I live in Rome"), SpokenTurn(role="user", content="I like tea"))
# One more call than a run makes.
CALLS = 15
DuringRead = Callable[[], Awaitable[object]]


@dataclass
class Reader:
    """A language model that returns one memory per turn.

    Attributes:
        during: Called while the model reads.
        error: Raised by the model.
    """

    during: DuringRead | None = None
    error: AgentMemoryError | None = None
    read: list[str] = field(default_factory=list)
    prefix: str = "The user said: "

    async def complete(
        self, instructions: str, material: str, schema: Mapping[str, Any], max_tokens: int
    ) -> Completion:
        rows = rows_of(material)
        self.read.extend(row["content"] for row in rows)
        if self.during:
            await self.during()
        if self.error:
            raise self.error
        fact = {"type": "fact", "importance": "high"}
        memories = [fact | {"content": self.prefix + row["content"], "sources": [row["id"]]} for row in rows]
        return Completion({"memories": memories}, 10, 5)


class Embedder:
    """Embeds any text."""

    dimensions = SIZE

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [vector_of(text) for text in texts]


@pytest.fixture
def agent_world(world: World) -> World:
    """An agent with an embedder and a model."""
    world.set_embedder(Embedder())
    settings = replace(world.agent.settings, language_model=ModelSettings(model="m", timeout_s=30))
    world.agent = replace(world.agent, settings=settings)
    return world


async def store_turns(world: World, *turns: SpokenTurn, **more: Any) -> StoredConversation:
    conversation = Conversation(user_id="u", turns=turns or TURNS, **more)
    return await store_conversation(world.agent, world.remember, conversation)


async def distil(world: World, last: str, reader: Reader) -> DistillationResult:
    return await DistillationRun(world.agent, reader, world.remember, last).execute()


async def distilled(world: World) -> list[str]:
    return sorted(record.content for record in await world.rows() if record.source == "distillation")


BOTH = ["The user said: I like tea", "The user said: I live in Rome"]


async def test_memories_are_stored_once(agent_world: World) -> None:
    stored, reader = await store_turns(agent_world), Reader()

    result = await distil(agent_world, stored.last_turn_id, reader)
    again = await distil(agent_world, stored.last_turn_id, reader)

    assert (result.is_completed, len(result.stored), result.tokens_in) == (True, 2, 10)
    assert again.stored == []
    assert await distilled(agent_world) == BOTH
    assert await find_due_rows(agent_world.agent) == []
    assert {record.run_id or record.conversation_id for record in await agent_world.rows()} == {stored.run}


async def test_unread_conversation_is_due(agent_world: World) -> None:
    stored = await store_turns(agent_world)

    assert await find_due_rows(agent_world.agent) == [stored.last_turn_id]


@pytest.mark.parametrize("at", range(CALLS))
async def test_killed_run_is_repeated_without_duplicates(at: int, agent_world: World) -> None:
    stored = await store_turns(agent_world)
    doomed = agent_world.crash_at(at, "after")
    with contextlib.suppress(AgentMemoryError):
        await distil(doomed, stored.last_turn_id, Reader())
    calls: int = cast(Any, doomed.agent.store).calls
    assert calls > at or at == CALLS - 1

    agent_world.clock.move(ms=(30 + LEASE_MARGIN_S) * 1000 + 1)
    if await find_due_rows(agent_world.agent):
        await distil(agent_world, stored.last_turn_id, Reader())

    assert await distilled(agent_world) == BOTH
    assert await find_due_rows(agent_world.agent) == []


async def test_concurrent_run_is_rejected(agent_world: World) -> None:
    stored = await store_turns(agent_world)
    second = Reader()

    async def another() -> None:
        result = await distil(agent_world, stored.last_turn_id, second)
        assert (result.is_completed, result.stored) == (False, [])

    await distil(agent_world, stored.last_turn_id, Reader(during=another))

    assert second.read == []
    assert await distilled(agent_world) == BOTH


async def test_simultaneous_runs_read_once(agent_world: World) -> None:
    stored = await store_turns(agent_world)
    readers = [Reader(), Reader(), Reader()]

    await asyncio.gather(*(distil(agent_world, stored.last_turn_id, reader) for reader in readers))

    assert sorted(len(reader.read) for reader in readers) == [0, 0, 2]
    assert await distilled(agent_world) == BOTH


async def test_expired_lease_stores_nothing(agent_world: World) -> None:
    stored = await store_turns(agent_world)

    async def outlive_lease() -> None:
        agent_world.clock.move(ms=(30 + LEASE_MARGIN_S) * 1000 + 1)
        await distil(agent_world, stored.last_turn_id, Reader(prefix="The person said: "))

    await distil(agent_world, stored.last_turn_id, Reader(during=outlive_lease))

    assert await distilled(agent_world) == ["The person said: I like tea", "The person said: I live in Rome"]


async def test_access_and_edit_do_not_end_a_run(agent_world: World) -> None:
    stored = await store_turns(agent_world)

    async def use_and_edit() -> None:
        agent_world.counts.note(agent_world.agent.settings.slug, [stored.last_turn_id])
        await agent_world.counts.flush()
        await change_head(agent_world.agent, stored.last_turn_id, {"pinned": True}, user_id="u")

    result = await distil(agent_world, stored.last_turn_id, Reader(during=use_and_edit))

    assert result.is_completed
    assert await distilled(agent_world) == BOTH


async def test_turn_deleted_meanwhile_is_not_distilled(agent_world: World) -> None:
    stored = await store_turns(agent_world)

    async def delete() -> None:
        await delete_head(agent_world.agent, stored.turns[0] or "", user_id="u")

    await distil(agent_world, stored.last_turn_id, Reader(during=delete))

    assert await distilled(agent_world) == ["The user said: I like tea"]


async def test_user_forgotten_meanwhile_gets_no_memories(agent_world: World) -> None:
    stored = await store_turns(agent_world)

    async def forget() -> None:
        for turn in stored.turns:
            await delete_head(agent_world.agent, turn or "", user_id="u")

    await distil(agent_world, stored.last_turn_id, Reader(during=forget))

    assert await agent_world.rows() == []


async def test_deleted_and_superseded_turns_are_not_read(agent_world: World) -> None:
    stored = await store_turns(agent_world, *TURNS, SpokenTurn(role="user", content="bye"))
    await delete_head(agent_world.agent, stored.turns[0] or "", user_id="u")
    await agent_world.add("I like coffee", supersedes=stored.turns[1], type="episodic", vector=None)
    reader = Reader()

    await distil(agent_world, stored.last_turn_id, reader)

    assert reader.read == ["bye"]


async def test_invalid_output_is_tried_three_times(agent_world: World) -> None:
    stored, reader = await store_turns(agent_world), Reader(error=ModelOutputInvalid("none", tokens_in=7))

    for _ in range(MAX_TRIES):
        assert len(await find_due_rows(agent_world.agent)) == 1
        with pytest.raises(ModelOutputInvalid):
            await distil(agent_world, stored.last_turn_id, reader)
        agent_world.clock.move(ms=(30 + LEASE_MARGIN_S) * 1000 + 1)

    assert await find_due_rows(agent_world.agent) == []
    assert await distilled(agent_world) == []
    assert len(await agent_world.rows()) == 2


async def test_unavailable_model_is_retried_forever(agent_world: World) -> None:
    stored, reader = await store_turns(agent_world), Reader(error=ModelUnavailable("away"))

    for _ in range(MAX_TRIES + 1):
        with pytest.raises(ModelUnavailable):
            await distil(agent_world, stored.last_turn_id, reader)
        assert await find_due_rows(agent_world.agent) == []
        agent_world.clock.move(ms=(30 + LEASE_MARGIN_S) * 1000 + 1)

    assert await find_due_rows(agent_world.agent) == [stored.last_turn_id]


async def test_long_conversation_is_read_in_parts(agent_world: World) -> None:
    turns = [SpokenTurn(role="user", content=f"{'word ' * 2_000}number {number}") for number in range(12)]
    stored, reader = await store_turns(agent_world, *turns), Reader(prefix="")
    calls: list[int] = []

    async def count() -> None:
        calls.append(len(reader.read))

    reader.during = count

    await distil(agent_world, stored.last_turn_id, reader)

    assert calls == [4, 8, 12]


async def test_no_run_without_a_type_for_facts(agent_world: World) -> None:
    types = (MemoryType("episodic", half_life_days=1), MemoryType("log", half_life_days=1, immutable=True))
    agent_world.set_ranking(replace(agent_world.agent.settings.ranking, types=types))

    stored = await store_turns(agent_world)

    assert stored.run is not None
    agent_world.set_ranking(replace(agent_world.agent.settings.ranking, types=types[1:]))
    assert (await store_turns(agent_world)).warnings[0].endswith("no type of the agent accepts distilled memories")


async def test_undo_restores_the_turns(agent_world: World) -> None:
    stored = await store_turns(agent_world)
    await distil(agent_world, stored.last_turn_id, Reader())

    undone = UndoReport()
    await undo(agent_world.agent, stored.run or "", undone)

    assert undone.facts == 2
    assert sorted(await agent_world.heads()) == ["I like tea", "I live in Rome"]


async def test_unsupported_memory_waits_for_approval(agent_world: World) -> None:
    stored = await store_turns(agent_world)

    result = await distil(agent_world, stored.last_turn_id, Reader(prefix="Zebulon said: "))

    assert (result.proposed, result.stored, await distilled(agent_world)) == (2, [], [])
    assert len(await agent_world.rows()) == 2
    await approve(agent_world.agent, stored.run or "")
    assert len(await agent_world.rows()) == 4
    assert [proposal async for proposal in read_proposals(agent_world.agent)] == []
