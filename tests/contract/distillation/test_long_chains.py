"""A memory with twenty versions is noticed and counted, and a model makes one authoritative version of them."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from agentmemory_operator.consolidation.plan_executor import PlanEffect
from agentmemory_operator.consolidation.undo import UndoReport, approve, read_proposals, undo
from agentmemory_operator.distillation.rules.model_output import MAX_HEAD_CHARS, MAX_VERSIONS
from agentmemory_operator.distillation.run_queue import find_due_rows
from agentmemory_operator.distillation.runs import LEASE_MARGIN_S, MAX_TRIES, DistillationResult, DistillationRun
from agentmemory_operator.errors import AgentMemoryError, ModelOutputInvalid
from agentmemory_operator.lifecycle.cleanup import Cleanup, CleanupResult
from agentmemory_operator.lifecycle.cleanup_schedule import cleanup_events
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.cleanup_rules import build_rules
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.remember import Remember
from agentmemory_operator.memories.rules.criteria_json import parse_filters
from agentmemory_operator.memories.rules.record import LONG_CHAIN
from agentmemory_operator.memories.stored_memories import change_head
from agentmemory_operator.ports.models import Completion
from agentmemory_operator.spec.effective.consolidation import ModelSettings
from agentmemory_operator.spec.memory_types import MemoryType, Ttl
from tests.contract.distillation.test_runs import Embedder
from tests.contract.distillation.test_runs import Meanwhile as While
from tests.support.engine.agents import EVERYTHING, World
from tests.support.engine.interleaved_store import Event, InterleavedStore
from tests.support.web.language_models import rows_of

pytestmark = pytest.mark.usefixtures("keeps_vectors")

TYPES = (
    MemoryType("episodic", half_life_days=1),
    MemoryType("fact", half_life_days=1, supersede_by="key"),
    MemoryType("decision", half_life_days=None, immutable=True),
    MemoryType("working", half_life_days=None, ttl=Ttl("Session", idle_hours=1)),
)
LEASE_MS = (120 + LEASE_MARGIN_S) * 1000 + 1
# Calls that read the lease and the chain; then those that write the new head and end the run.
HISTORY_CALLS = LONG_CHAIN + 4
CALLS = 22


@dataclass
class Writer:
    """A language model that makes one text of versions.

    Attributes:
        meanwhile: what happens while it reads.
        trouble: what it raises.
    """

    text: str = "plan 19, the last of many"
    meanwhile: While | None = None
    trouble: AgentMemoryError | None = None
    read: list[str] = field(default_factory=list)

    async def complete(
        self, instructions: str, material: str, schema: Mapping[str, Any], max_tokens: int
    ) -> Completion:
        self.read += [row["content"] for row in rows_of(material)]
        if self.meanwhile:
            await self.meanwhile()
        if self.trouble:
            raise self.trouble
        return Completion({"content": self.text}, 10, 5)


@pytest.fixture
def changing(world: World) -> World:
    """An agent that embeds, has a model, and facts that replace each other by their key."""
    world.set_embedder(Embedder())
    ranking = replace(EVERYTHING, types=TYPES)
    settings = replace(world.agent.settings, ranking=ranking, language_model=ModelSettings(model="m"))
    world.agent = replace(world.agent, settings=settings)
    return world


async def change(world: World, times: int, *, by_id: bool = False, after: str | None = None) -> str:
    """Store versions of one memory; return the id of the last."""
    last = after
    for number in range(times):
        world.clock.move(ms=1)
        named = {"supersedes": last} if by_id else {"key": "plan"}
        last = await world.add(f"plan {number}", type="fact", vector=None, **named)
    return last or ""


async def collapse(world: World, last: str, writer: Writer) -> DistillationResult:
    return await DistillationRun(world.agent, writer, world.remember, last).carry_out()


async def all_versions(world: World) -> list[Any]:
    return await world.rows(include_superseded=True)


async def overwrite(world: World, memory_id: str, payload: dict[str, Any]) -> None:
    operation = {"set_payload": {"payload": payload, "points": [memory_id]}}
    await world.agent.store.batch(world.agent.alias, [operation], strong=True)


async def seal(world: World, memory_id: str) -> None:
    await overwrite(world, memory_id, {"zone": "PERSONAL"})


def shows(name: str, arguments: tuple[Any, ...]) -> bool:
    """Mean the call that shows what was pending."""
    return name in ("set_payload", "batch") and "'pending': False" in str(arguments)


async def clean(world: World) -> CleanupResult:
    settings = world.agent.settings
    rules = build_rules(settings.lifecycle, settings.ranking, world.clock.now_ms())
    return await Cleanup(world.clock, min_rest_s=0).run(world.agent, rules)


@pytest.mark.parametrize("by_id", [False, True], ids=["by key", "by id"])
async def test_the_twentieth_version_is_counted_and_offered(by_id: bool, changing: World) -> None:
    counted: list[None] = []
    changing.remember = Remember(lambda: counted.append(None))

    await change(changing, LONG_CHAIN - 1, by_id=by_id)
    assert (counted, await find_due_rows(changing.agent)) == ([], [])

    head = next(iter(await changing.rows())).id
    named = {"supersedes": head} if by_id else {"key": "plan"}
    last = await changing.add("plan 20", type="fact", vector=None, **named)
    assert (len(counted), await find_due_rows(changing.agent)) == (1, [last])


async def test_a_model_s_text_is_the_new_head_and_the_versions_are_its_sources(changing: World) -> None:
    last = await change(changing, LONG_CHAIN)
    versions = {record.content: record.id for record in await all_versions(changing)}
    writer = Writer()

    done = await collapse(changing, last, writer)

    assert writer.read == [f"plan {number}" for number in range(LONG_CHAIN)]
    (head,) = await changing.rows()
    assert (done.stored, done.is_completed) == ([head.id], True)
    assert (head.content, head.source, head.type, head.key) == (writer.text, "distillation", "fact", "plan")
    assert head.source_ids == tuple(versions[f"plan {number}"] for number in range(LONG_CHAIN))
    assert (head.supersedes_id, head.run_id) == (last, last)
    assert len(await all_versions(changing)) == LONG_CHAIN + 1


@pytest.mark.parametrize("by_id", [False, True], ids=["by key", "by id"])
async def test_it_is_collapsed_once_and_again_after_as_many_versions(by_id: bool, changing: World) -> None:
    last = await change(changing, LONG_CHAIN, by_id=by_id)
    await collapse(changing, last, Writer())
    again = Writer()

    await collapse(changing, last, again)
    head = (await changing.rows())[0].id
    assert (again.read, await find_due_rows(changing.agent), (await clean(changing)).long_chains) == ([], [], 0)

    later = await change(changing, LONG_CHAIN - 2, by_id=by_id, after=head)
    assert await find_due_rows(changing.agent) == []
    last = await change(changing, 1, by_id=by_id, after=later)
    assert await find_due_rows(changing.agent) == [last]
    await collapse(changing, last, again)
    assert again.read[-1] == "plan 0"
    assert await changing.heads() == [again.text]


@pytest.mark.parametrize("by_id", [False, True], ids=["by key", "by id"])
@pytest.mark.parametrize("at", range(0, CALLS, 2))
async def test_killed_anywhere_it_is_finished_by_the_next_run(at: int, by_id: bool, changing: World) -> None:
    last = await change(changing, LONG_CHAIN, by_id=by_id)
    doomed = changing.crash_at(HISTORY_CALLS + at, "after")
    with contextlib.suppress(AgentMemoryError):
        await collapse(doomed, last, Writer("plan 19 after 19 others"))
    assert len(await changing.heads()) <= 1

    changing.clock.move(ms=LEASE_MS)
    if await find_due_rows(changing.agent):
        await collapse(changing, last, Writer("plan 19 once more"))

    assert await changing.heads() in (["plan 19 after 19 others"], ["plan 19 once more"])
    assert await find_due_rows(changing.agent) == []
    assert len(await all_versions(changing)) == LONG_CHAIN + 1


async def test_the_calls_at_which_it_is_killed_are_all_there_are(changing: World) -> None:
    last = await change(changing, LONG_CHAIN)
    counting = changing.crash_at(10_000)

    await collapse(counting, last, Writer())

    calls: int = cast(Any, counting.agent.store).calls
    assert HISTORY_CALLS < calls <= HISTORY_CALLS + CALLS


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(0, CALLS, 2))
async def test_what_somebody_stores_meanwhile_stays_the_newest(at: int, after: bool, changing: World) -> None:
    last = await change(changing, LONG_CHAIN)
    seen = 0

    def is_meant(name: str, arguments: tuple[Any, ...]) -> bool:
        nonlocal seen
        seen += 1
        return seen > HISTORY_CALLS + at

    async def say() -> None:
        await changing.add("plan of somebody", type="fact", key="plan", vector=None)

    store = InterleavedStore(changing.agent.store, Event(is_meant, say, after=after))
    await collapse(World(replace(changing.agent, store=cast(Any, store)), clock=changing.clock), last, Writer())

    assert store.is_over or seen <= HISTORY_CALLS + at
    await chains.sweep(changing.agent)
    expected = ["plan of somebody"] if store.is_over else [Writer().text]
    assert await changing.heads() == expected
    assert {record.content for record in await all_versions(changing)} >= {"plan 19", *expected}


async def test_what_is_stored_while_the_model_reads_is_the_newest_and_read_next(changing: World) -> None:
    last = await change(changing, LONG_CHAIN)

    async def say() -> None:
        await changing.add("plan 20", type="fact", key="plan", vector=None)

    await collapse(changing, last, Writer(meanwhile=say))

    assert await changing.heads() == ["plan 20"]
    (newest,) = await find_due_rows(changing.agent)
    await collapse(changing, newest, Writer("plan 20 after many"))
    assert await changing.heads() == ["plan 20 after many"]


async def test_only_the_head_is_read_where_several_versions_are_due(changing: World) -> None:
    await change(changing, LONG_CHAIN + 3)
    writer = Writer()

    waiting = await find_due_rows(changing.agent)
    for last in waiting:
        await collapse(changing, last, writer)

    assert len(waiting) == 4
    assert len(writer.read) == LONG_CHAIN + 3
    assert (await changing.heads(), await find_due_rows(changing.agent)) == ([writer.text], [])


async def test_a_change_of_the_head_meanwhile_is_not_lost(changing: World) -> None:
    last = await change(changing, LONG_CHAIN)

    async def pin() -> None:
        await change_head(changing.agent, last, {"pinned": True, "tags": ["kept"]}, user_id="u")

    # Right before the new version is written, and so after the head was read.
    store = InterleavedStore(changing.agent.store, Event(lambda name, _: name == "upsert", pin))
    await collapse(World(replace(changing.agent, store=cast(Any, store)), clock=changing.clock), last, Writer())

    assert store.is_over
    (head,) = await changing.rows()
    assert (head.content, head.pinned, head.tags) == ("plan 19", True, ("kept",))


async def test_the_new_head_is_pinned_tagged_and_ends_as_the_one_before(changing: World) -> None:
    last = await change(changing, LONG_CHAIN - 1)
    more: dict[str, Any] = {"tags": ("t",), "metadata": {"n": 1.5}, "pinned": True, "importance": 0.9, "author": "ann"}
    more |= {"expires_at": changing.clock.now_ms() + 10**9, "session_id": "s", "confidence": 0.7}
    last = await changing.add("plan 19", type="fact", key="plan", vector=None, **more)

    await collapse(changing, last, Writer())

    (head,) = await changing.rows()
    assert head.content == Writer().text
    assert {name: getattr(head, name) for name in more} == more


@pytest.mark.parametrize("moment", ["reads", "writes"])
@pytest.mark.parametrize("how", ["deleted", "sealed"])
async def test_a_version_that_goes_meanwhile_leaves_nothing_behind(how: str, moment: str, changing: World) -> None:
    last = await change(changing, LONG_CHAIN)
    versions = {record.content: record.id for record in await all_versions(changing)}
    await overwrite(changing, versions["plan 3"], {"sessionId": "three"})

    async def take_away() -> None:
        if how == "sealed":
            await seal(changing, versions["plan 3"])
        else:
            filters = {"session_id": "three"}
            scope = ErasureScope(user_id="u", criterion=parse_filters(filters))
            await changing.forgetting.forget(changing.agent, ForgetRequest(scope=scope, filters=filters))

    writer, world = Writer(), changing
    if moment == "reads":
        writer.meanwhile = take_away
    else:
        # Once the new version is shown.
        store = InterleavedStore(changing.agent.store, Event(shows, take_away, after=True))
        world = World(replace(changing.agent, store=cast(Any, store)), clock=changing.clock)
    await collapse(world, last, writer)

    assert (await changing.heads(), await find_due_rows(changing.agent)) == (["plan 19"], [])


@pytest.mark.parametrize(
    "head",
    [
        pytest.param({"zone": "PERSONAL"}, id="sealed"),
        pytest.param({"type": "decision"}, id="immutable"),
        pytest.param({"type": "working"}, id="of a session"),
        pytest.param({"content": "x" * (MAX_HEAD_CHARS + 1)}, id="longer than an answer"),
        pytest.param({"validTo": 1}, id="not true any more"),
    ],
)
async def test_a_head_that_must_stay_is_shown_to_no_model(head: dict[str, Any], changing: World) -> None:
    last = await change(changing, LONG_CHAIN)
    await overwrite(changing, last, head)
    writer = Writer()

    done = await collapse(changing, last, writer)

    assert (writer.read, done.is_completed, done.stored) == ([], True, [])
    assert len(await all_versions(changing)) == LONG_CHAIN


async def test_sealed_versions_before_the_head_are_not_read_and_no_sources(changing: World) -> None:
    last = await change(changing, LONG_CHAIN)
    versions = {record.content: record.id for record in await all_versions(changing)}
    await seal(changing, versions["plan 3"])
    writer = Writer()

    await collapse(changing, last, writer)

    (head,) = await changing.rows()
    assert "plan 3" not in writer.read
    assert (len(head.source_ids), versions["plan 3"] in head.source_ids) == (LONG_CHAIN - 1, False)


async def test_of_a_huge_chain_the_newest_versions_are_read(changing: World) -> None:
    last = await change(changing, MAX_VERSIONS + 6)
    writer = Writer("plan 69 after many")

    await collapse(changing, last, writer)

    assert writer.read == [f"plan {number}" for number in range(6, MAX_VERSIONS + 6)]
    assert len((await changing.rows())[0].source_ids) == MAX_VERSIONS


async def test_a_text_that_no_version_supports_waits_for_an_approval_and_becomes_the_head(changing: World) -> None:
    last = await change(changing, LONG_CHAIN)

    done = await collapse(changing, last, Writer("Mallory plans 99 things"))

    assert (done.proposed, await changing.heads(), await find_due_rows(changing.agent)) == (1, ["plan 19"], [])
    tally = await approve(changing.agent, last)
    (head,) = await changing.rows()
    assert (tally[PlanEffect.MERGED], tally[PlanEffect.SUPERSEDED]) == (1, 1)
    assert (head.content, head.key, head.supersedes_id) == ("Mallory plans 99 things", "plan", last)
    assert [one async for one in read_proposals(changing.agent)] == []


async def test_an_approval_that_comes_after_another_version_stores_nothing(changing: World) -> None:
    last = await change(changing, LONG_CHAIN)
    await collapse(changing, last, Writer("Mallory plans 99 things"))
    await changing.add("plan 20", type="fact", key="plan", vector=None)

    tally = await approve(changing.agent, last)

    assert (tally[PlanEffect.LOST], await changing.heads()) == (1, ["plan 20"])


async def test_to_take_the_run_back_lets_the_version_before_answer_again(changing: World) -> None:
    last = await change(changing, LONG_CHAIN)
    await collapse(changing, last, Writer())
    undone = UndoReport()

    await undo(changing.agent, last, undone)

    assert (await changing.heads(), undone.facts, undone.reactivated) == (["plan 19"], 1, 1)
    await changing.add("plan 20", type="fact", key="plan", vector=None)
    assert await find_due_rows(changing.agent) == []


async def test_three_unusable_answers_leave_the_chain_as_it_is(changing: World) -> None:
    last = await change(changing, LONG_CHAIN)
    writer = Writer(trouble=ModelOutputInvalid("no JSON"))

    for _ in range(MAX_TRIES):
        with pytest.raises(ModelOutputInvalid):
            await collapse(changing, last, writer)
        changing.clock.move(ms=LEASE_MS)

    assert (await find_due_rows(changing.agent), await changing.heads()) == ([], ["plan 19"])
    await changing.add("plan 20", type="fact", key="plan", vector=None)
    assert await find_due_rows(changing.agent) == []


async def test_versions_that_a_cleanup_took_out_count_too(changing: World) -> None:
    settings = changing.agent.settings
    lifecycle = replace(settings.lifecycle, max_chain_length=5, max_removal_percent=100)
    changing.agent = replace(changing.agent, settings=replace(settings, lifecycle=lifecycle))
    for _ in range(3):
        await change(changing, 6)
        await clean(changing)

    last = await change(changing, 2)

    assert await find_due_rows(changing.agent) == [last]


async def test_a_cleanup_tells_of_them(changing: World) -> None:
    await change(changing, LONG_CHAIN + 3)

    outcome = await clean(changing)

    assert outcome.long_chains == 1
    assert [event.reason for event in cleanup_events(outcome, None)] == ["LongChains"]
