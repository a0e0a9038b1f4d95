"""A memory with twenty versions is noticed, counted and read by a model, version by version."""

from dataclasses import replace

import pytest

from agentmemory_operator.distillation.queue import due
from agentmemory_operator.distillation.runs import Run
from agentmemory_operator.lifecycle.cleanup import Cleanup, CleanupOutcome
from agentmemory_operator.lifecycle.cleanup_schedule import events_of
from agentmemory_operator.lifecycle.rules.cleanup import rules_of
from agentmemory_operator.memories.remember import Remember
from agentmemory_operator.memories.rules.record import LONG_CHAIN
from agentmemory_operator.spec.effective.consolidation import ModelSettings
from agentmemory_operator.spec.memory_types import MemoryType
from tests.contract.distillation.test_runs import Embedder, Reader
from tests.support.engine.agents import EVERYTHING, World

pytestmark = pytest.mark.usefixtures("keeps_vectors")

TYPES = (MemoryType("episodic", half_life_days=1), MemoryType("fact", half_life_days=1, supersede_by="key"))


@pytest.fixture
def changing(world: World) -> World:
    """An agent that embeds, has a model, and facts that replace each other by their key."""
    world.embed_by(Embedder())
    ranking = replace(EVERYTHING, types=TYPES)
    settings = replace(world.agent.settings, ranking=ranking, language_model=ModelSettings(model="m"))
    world.agent = replace(world.agent, settings=settings)
    return world


async def change(world: World, times: int, *, by_id: bool = False) -> str:
    """Store versions of one memory; return the id of the last."""
    last = None
    for number in range(times):
        world.clock.move(ms=1)
        named = {"supersedes": last} if by_id else {"key": "plan"}
        last = await world.add(f"plan {number}", type="fact", vector=None, **named)
    return last or ""


async def clean(world: World) -> CleanupOutcome:
    settings = world.agent.settings
    rules = rules_of(settings.lifecycle, settings.ranking, world.clock.now_ms())
    return await Cleanup(world.clock, least_rest_s=0).run(world.agent, rules)


@pytest.mark.parametrize("by_id", [False, True], ids=["by key", "by id"])
async def test_the_twentieth_version_is_counted_and_offered(by_id: bool, changing: World) -> None:
    counted: list[None] = []
    changing.remember = Remember(lambda: counted.append(None))

    await change(changing, LONG_CHAIN - 1, by_id=by_id)
    assert (counted, await due(changing.agent)) == ([], [])

    head = next(iter(await changing.rows())).id
    named = {"supersedes": head} if by_id else {"key": "plan"}
    last = await changing.add("plan 20", type="fact", vector=None, **named)
    assert (len(counted), await due(changing.agent)) == (1, [last])


async def test_a_model_reads_all_versions_and_what_it_makes_cites_them(changing: World) -> None:
    last = await change(changing, LONG_CHAIN)
    reader = Reader()

    done = await Run(changing.agent, reader, changing.remember, last).carry_out()

    assert reader.read == [f"plan {number}" for number in range(LONG_CHAIN)]
    assert (len(done.stored), await due(changing.agent)) == (LONG_CHAIN, [])
    heads = {record.content: record for record in await changing.rows()}
    assert f"plan {LONG_CHAIN - 1}" in heads
    assert len(heads["The user said: plan 0"].source_ids) == 1


async def test_it_is_read_though_the_next_version_came_meanwhile(changing: World) -> None:
    last = await change(changing, LONG_CHAIN)
    await changing.add("plan 20", type="fact", key="plan", vector=None)
    reader = Reader()

    await Run(changing.agent, reader, changing.remember, last).carry_out()

    assert reader.read[-1] == "plan 20"


async def test_versions_that_a_cleanup_took_out_count_too(changing: World) -> None:
    settings = changing.agent.settings
    lifecycle = replace(settings.lifecycle, max_chain_length=5, max_removal_percent=100)
    changing.agent = replace(changing.agent, settings=replace(settings, lifecycle=lifecycle))
    for _ in range(3):
        await change(changing, 6)
        await clean(changing)

    last = await change(changing, 2)

    assert await due(changing.agent) == [last]


async def test_a_cleanup_tells_of_them(changing: World) -> None:
    await change(changing, LONG_CHAIN + 3)

    outcome = await clean(changing)

    assert outcome.long_chains == 1
    assert [event.reason for event in events_of(outcome, None)] == ["LongChains"]
