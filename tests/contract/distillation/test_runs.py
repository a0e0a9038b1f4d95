"""One run over a real engine: killed, raced, forgotten in the middle, answered badly."""

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
# One more than a run makes.
CALLS = 15
Meanwhile = Callable[[], Awaitable[object]]


@dataclass
class Reader:
    """A language model that makes a memory of each turn.

    Attributes:
        meanwhile: what happens while it reads.
        trouble: what it raises.
    """

    meanwhile: Meanwhile | None = None
    trouble: AgentMemoryError | None = None
    read: list[str] = field(default_factory=list)
    prefix: str = "The user said: "

    async def complete(
        self, instructions: str, material: str, schema: Mapping[str, Any], max_tokens: int
    ) -> Completion:
        rows = rows_of(material)
        self.read.extend(row["content"] for row in rows)
        if self.meanwhile:
            await self.meanwhile()
        if self.trouble:
            raise self.trouble
        said = {"type": "fact", "importance": "high"}
        memories = [said | {"content": self.prefix + row["content"], "sources": [row["id"]]} for row in rows]
        return Completion({"memories": memories}, 10, 5)


class Embedder:
    """Embeds anything."""

    dimensions = SIZE

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [vector_of(text) for text in texts]


@pytest.fixture
def talking(world: World) -> World:
    """An agent that embeds, and has a model."""
    world.set_embedder(Embedder())
    settings = replace(world.agent.settings, language_model=ModelSettings(model="m", timeout_s=30))
    world.agent = replace(world.agent, settings=settings)
    return world


async def say(world: World, *turns: SpokenTurn, **more: Any) -> StoredConversation:
    conversation = Conversation(user_id="u", turns=turns or TURNS, **more)
    return await store_conversation(world.agent, world.remember, conversation)


async def distil(world: World, last: str, reader: Reader) -> DistillationResult:
    return await DistillationRun(world.agent, reader, world.remember, last).carry_out()


async def made(world: World) -> list[str]:
    return sorted(record.content for record in await world.rows() if record.source == "distillation")


BOTH = ["The user said: I like tea", "The user said: I live in Rome"]


async def test_memories_are_made_once_and_the_conversation_is_over(talking: World) -> None:
    stored, reader = await say(talking), Reader()

    done = await distil(talking, stored.last_turn_id, reader)
    again = await distil(talking, stored.last_turn_id, reader)

    assert (done.is_completed, len(done.stored), done.tokens_in) == (True, 2, 10)
    assert again.stored == []
    assert await made(talking) == BOTH
    assert await find_due_rows(talking.agent) == []
    assert {record.run_id or record.conversation_id for record in await talking.rows()} == {stored.run}


async def test_a_conversation_that_nobody_has_read_is_found(talking: World) -> None:
    stored = await say(talking)

    assert await find_due_rows(talking.agent) == [stored.last_turn_id]


@pytest.mark.parametrize("at", range(CALLS))
async def test_killed_anywhere_it_is_begun_again_and_nothing_is_stored_twice(at: int, talking: World) -> None:
    stored = await say(talking)
    doomed = talking.crash_at(at, "after")
    with contextlib.suppress(AgentMemoryError):
        await distil(doomed, stored.last_turn_id, Reader())
    calls: int = cast(Any, doomed.agent.store).calls
    assert calls > at or at == CALLS - 1

    talking.clock.move(ms=(30 + LEASE_MARGIN_S) * 1000 + 1)
    if await find_due_rows(talking.agent):
        await distil(talking, stored.last_turn_id, Reader())

    assert await made(talking) == BOTH
    assert await find_due_rows(talking.agent) == []


async def test_one_run_at_a_time(talking: World) -> None:
    stored = await say(talking)
    second = Reader()

    async def another() -> None:
        done = await distil(talking, stored.last_turn_id, second)
        assert (done.is_completed, done.stored) == (False, [])

    await distil(talking, stored.last_turn_id, Reader(meanwhile=another))

    assert second.read == []
    assert await made(talking) == BOTH


async def test_of_two_that_begin_together_one_reads(talking: World) -> None:
    stored = await say(talking)
    readers = [Reader(), Reader(), Reader()]

    await asyncio.gather(*(distil(talking, stored.last_turn_id, reader) for reader in readers))

    assert sorted(len(reader.read) for reader in readers) == [0, 0, 2]
    assert await made(talking) == BOTH


async def test_who_slept_over_its_lease_stores_nothing(talking: World) -> None:
    stored = await say(talking)

    async def sleep_over_it() -> None:
        talking.clock.move(ms=(30 + LEASE_MARGIN_S) * 1000 + 1)
        await distil(talking, stored.last_turn_id, Reader(prefix="The person said: "))

    await distil(talking, stored.last_turn_id, Reader(meanwhile=sleep_over_it))

    assert await made(talking) == ["The person said: I like tea", "The person said: I live in Rome"]


async def test_counts_of_use_in_between_do_not_end_a_run(talking: World) -> None:
    stored = await say(talking)

    async def use_and_edit() -> None:
        talking.counts.note(talking.agent.settings.slug, [stored.last_turn_id])
        await talking.counts.flush()
        await change_head(talking.agent, stored.last_turn_id, {"pinned": True}, user_id="u")

    done = await distil(talking, stored.last_turn_id, Reader(meanwhile=use_and_edit))

    assert done.is_completed
    assert await made(talking) == BOTH


async def test_what_was_deleted_while_the_model_read_leaves_nothing(talking: World) -> None:
    stored = await say(talking)

    async def delete() -> None:
        await delete_head(talking.agent, stored.turns[0] or "", user_id="u")

    await distil(talking, stored.last_turn_id, Reader(meanwhile=delete))

    assert await made(talking) == ["The user said: I like tea"]


async def test_of_a_user_who_is_forgotten_meanwhile_nothing_is_made(talking: World) -> None:
    stored = await say(talking)

    async def forget() -> None:
        for turn in stored.turns:
            await delete_head(talking.agent, turn or "", user_id="u")

    await distil(talking, stored.last_turn_id, Reader(meanwhile=forget))

    assert await talking.rows() == []


async def test_what_is_no_memory_any_more_is_not_read(talking: World) -> None:
    stored = await say(talking, *TURNS, SpokenTurn(role="user", content="bye"))
    await delete_head(talking.agent, stored.turns[0] or "", user_id="u")
    await talking.add("I like coffee", supersedes=stored.turns[1], type="episodic", vector=None)
    reader = Reader()

    await distil(talking, stored.last_turn_id, reader)

    assert reader.read == ["bye"]


async def test_an_answer_that_is_none_is_tried_three_times(talking: World) -> None:
    stored, reader = await say(talking), Reader(trouble=ModelOutputInvalid("none", tokens_in=7))

    for _ in range(MAX_TRIES):
        assert len(await find_due_rows(talking.agent)) == 1
        with pytest.raises(ModelOutputInvalid):
            await distil(talking, stored.last_turn_id, reader)
        talking.clock.move(ms=(30 + LEASE_MARGIN_S) * 1000 + 1)

    assert await find_due_rows(talking.agent) == []
    assert await made(talking) == []
    assert len(await talking.rows()) == 2


async def test_a_model_that_is_away_is_asked_again_for_ever(talking: World) -> None:
    stored, reader = await say(talking), Reader(trouble=ModelUnavailable("away"))

    for _ in range(MAX_TRIES + 1):
        with pytest.raises(ModelUnavailable):
            await distil(talking, stored.last_turn_id, reader)
        assert await find_due_rows(talking.agent) == []
        talking.clock.move(ms=(30 + LEASE_MARGIN_S) * 1000 + 1)

    assert await find_due_rows(talking.agent) == [stored.last_turn_id]


async def test_a_long_conversation_is_read_in_parts(talking: World) -> None:
    turns = [SpokenTurn(role="user", content=f"{'word ' * 2_000}number {number}") for number in range(12)]
    stored, reader = await say(talking, *turns), Reader(prefix="")
    calls: list[int] = []

    async def count() -> None:
        calls.append(len(reader.read))

    reader.meanwhile = count

    await distil(talking, stored.last_turn_id, reader)

    assert calls == [4, 8, 12]


async def test_where_no_type_can_hold_it_nothing_is_asked(talking: World) -> None:
    types = (MemoryType("episodic", half_life_days=1), MemoryType("log", half_life_days=1, immutable=True))
    talking.set_ranking(replace(talking.agent.settings.ranking, types=types))

    stored = await say(talking)

    assert stored.run is not None
    talking.set_ranking(replace(talking.agent.settings.ranking, types=types[1:]))
    assert (await say(talking)).warnings[0].endswith("no type of the agent accepts distilled memories")


async def test_a_run_is_taken_back(talking: World) -> None:
    stored = await say(talking)
    await distil(talking, stored.last_turn_id, Reader())

    undone = UndoReport()
    await undo(talking.agent, stored.run or "", undone)

    assert undone.facts == 2
    assert sorted(await talking.heads()) == ["I like tea", "I live in Rome"]


async def test_what_no_turn_says_waits_for_an_approval(talking: World) -> None:
    stored = await say(talking)

    done = await distil(talking, stored.last_turn_id, Reader(prefix="Zebulon said: "))

    assert (done.proposed, done.stored, await made(talking)) == (2, [], [])
    assert len(await talking.rows()) == 2
    await approve(talking.agent, stored.run or "")
    assert len(await talking.rows()) == 4
    assert [proposal async for proposal in read_proposals(talking.agent)] == []
