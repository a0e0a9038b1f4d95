"""A model merges a chain of twenty versions into one new version."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from agentmemory_operator.consolidation.plan_executor import PlanEffect, store_fact
from agentmemory_operator.consolidation.rules.batch_plan import Fact
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
from tests.contract.distillation.test_runs import DuringRead, Embedder
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
# Calls that read the lease and the chain, then calls that write the new head and complete the run.
HISTORY_CALLS = LONG_CHAIN + 4
CALLS = 22


@dataclass
class Writer:
    """A language model that writes one text from versions.

    Attributes:
        during: Called while the model reads.
        error: Raised by the model.
    """

    text: str = "plan 19, the last of many"
    during: DuringRead | None = None
    error: AgentMemoryError | None = None
    read: list[str] = field(default_factory=list)

    async def complete(
        self, instructions: str, material: str, schema: Mapping[str, Any], max_tokens: int
    ) -> Completion:
        self.read += [row["content"] for row in rows_of(material)]
        if self.during:
            await self.during()
        if self.error:
            raise self.error
        return Completion({"content": self.text}, 10, 5)


@pytest.fixture
def agent_world(world: World) -> World:
    """An agent with an embedder, a model, and facts that supersede each other by key."""
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
        identity = {"supersedes": last} if by_id else {"key": "plan"}
        last = await world.add(f"plan {number}", type="fact", vector=None, **identity)
    return last or ""


async def collapse(world: World, last: str, writer: Writer) -> DistillationResult:
    return await DistillationRun(world.agent, writer, world.remember, last).execute()


async def all_versions(world: World) -> list[Any]:
    return await world.rows(include_superseded=True)


async def overwrite(world: World, memory_id: str, payload: dict[str, Any]) -> None:
    operation = {"set_payload": {"payload": payload, "points": [memory_id]}}
    await world.agent.store.batch(world.agent.alias, [operation], strong=True)


async def seal(world: World, memory_id: str) -> None:
    await overwrite(world, memory_id, {"zone": "PERSONAL"})


def publishes(name: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether a call publishes a pending memory."""
    return name in ("set_payload", "batch") and "'pending': False" in str(arguments)


async def clean(world: World) -> CleanupResult:
    settings = world.agent.settings
    rules = build_rules(settings.lifecycle, settings.ranking, world.clock.now_ms())
    return await Cleanup(world.clock, min_pause_s=0).run(world.agent, rules)


@pytest.mark.parametrize("by_id", [False, True], ids=["by key", "by id"])
async def test_chain_is_due_at_the_twentieth_version(by_id: bool, agent_world: World) -> None:
    counted: list[None] = []
    agent_world.remember = Remember(lambda: counted.append(None))

    await change(agent_world, LONG_CHAIN - 1, by_id=by_id)
    assert (counted, await find_due_rows(agent_world.agent)) == ([], [])

    head = next(iter(await agent_world.rows())).id
    identity = {"supersedes": head} if by_id else {"key": "plan"}
    last = await agent_world.add("plan 20", type="fact", vector=None, **identity)
    assert (len(counted), await find_due_rows(agent_world.agent)) == (1, [last])


async def test_model_text_becomes_head_with_sources(agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN)
    versions = {record.content: record.id for record in await all_versions(agent_world)}
    writer = Writer()

    result = await collapse(agent_world, last, writer)

    assert writer.read == [f"plan {number}" for number in range(LONG_CHAIN)]
    (head,) = await agent_world.rows()
    assert (result.stored, result.is_completed) == ([head.id], True)
    assert (head.content, head.source, head.type, head.key) == (writer.text, "distillation", "fact", "plan")
    assert head.source_ids == tuple(versions[f"plan {number}"] for number in range(LONG_CHAIN))
    assert (head.supersedes_id, head.run_id) == (last, last)
    assert len(await all_versions(agent_world)) == LONG_CHAIN + 1


@pytest.mark.parametrize("by_id", [False, True], ids=["by key", "by id"])
async def test_collapse_repeats_after_as_many_versions(by_id: bool, agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN, by_id=by_id)
    await collapse(agent_world, last, Writer())
    again = Writer()

    await collapse(agent_world, last, again)
    head = (await agent_world.rows())[0].id
    assert (again.read, await find_due_rows(agent_world.agent), (await clean(agent_world)).long_chains) == ([], [], 0)

    later = await change(agent_world, LONG_CHAIN - 2, by_id=by_id, after=head)
    assert await find_due_rows(agent_world.agent) == []
    last = await change(agent_world, 1, by_id=by_id, after=later)
    assert await find_due_rows(agent_world.agent) == [last]
    await collapse(agent_world, last, again)
    assert again.read[-1] == "plan 0"
    assert await agent_world.heads() == [again.text]


@pytest.mark.parametrize("by_id", [False, True], ids=["by key", "by id"])
@pytest.mark.parametrize("at", range(0, CALLS, 2))
async def test_killed_run_is_completed_by_the_next(at: int, by_id: bool, agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN, by_id=by_id)
    doomed = agent_world.crash_at(HISTORY_CALLS + at, "after")
    with contextlib.suppress(AgentMemoryError):
        await collapse(doomed, last, Writer("plan 19 after 19 others"))
    assert len(await agent_world.heads()) <= 1

    agent_world.clock.move(ms=LEASE_MS)
    if await find_due_rows(agent_world.agent):
        await collapse(agent_world, last, Writer("plan 19 once more"))

    assert await agent_world.heads() in (["plan 19 after 19 others"], ["plan 19 once more"])
    assert await find_due_rows(agent_world.agent) == []
    assert len(await all_versions(agent_world)) == LONG_CHAIN + 1


@pytest.mark.parametrize("at", range(0, CALLS, 2))
async def test_repeated_merge_leaves_no_text_of_an_erased_source(at: int, agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN)
    versions = {record.content: record.id for record in await all_versions(agent_world)}
    sources = tuple(versions.values())
    fact = Fact(content=Writer().text, type="fact", sources=sources, replaced=(last,), importance=0.5, collapses=True)
    with contextlib.suppress(AgentMemoryError):
        await store_fact(agent_world.crash_at(at, "after").agent, "u", fact, "run")
    await seal(agent_world, versions["plan 3"])

    agent_world.clock.move(ms=LEASE_MS)
    await store_fact(agent_world.agent, "u", fact, "run")

    assert await agent_world.heads() == ["plan 19"]


async def test_crash_points_cover_all_calls(agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN)
    counting = agent_world.crash_at(10_000)

    await collapse(counting, last, Writer())

    calls: int = cast(Any, counting.agent.store).calls
    assert HISTORY_CALLS < calls <= HISTORY_CALLS + CALLS


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(0, CALLS, 2))
async def test_concurrent_version_stays_newest(at: int, after: bool, agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN)
    calls = 0

    def is_due(name: str, arguments: tuple[Any, ...]) -> bool:
        nonlocal calls
        calls += 1
        return calls > HISTORY_CALLS + at

    async def store_version() -> None:
        await agent_world.add("plan of somebody", type="fact", key="plan", vector=None)

    store = InterleavedStore(agent_world.agent.store, Event(is_due, store_version, after=after))
    await collapse(World(replace(agent_world.agent, store=cast(Any, store)), clock=agent_world.clock), last, Writer())

    assert store.is_over or calls <= HISTORY_CALLS + at
    await chains.sweep(agent_world.agent)
    expected = ["plan of somebody"] if store.is_over else [Writer().text]
    assert await agent_world.heads() == expected
    assert {record.content for record in await all_versions(agent_world)} >= {"plan 19", *expected}


async def test_version_stored_during_read_is_due_next(agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN)

    async def store_version() -> None:
        await agent_world.add("plan 20", type="fact", key="plan", vector=None)

    await collapse(agent_world, last, Writer(during=store_version))

    assert await agent_world.heads() == ["plan 20"]
    (newest,) = await find_due_rows(agent_world.agent)
    await collapse(agent_world, newest, Writer("plan 20 after many"))
    assert await agent_world.heads() == ["plan 20 after many"]


async def test_only_the_head_is_read_if_several_are_due(agent_world: World) -> None:
    await change(agent_world, LONG_CHAIN + 3)
    writer = Writer()

    waiting = await find_due_rows(agent_world.agent)
    for last in waiting:
        await collapse(agent_world, last, writer)

    assert len(waiting) == 4
    assert len(writer.read) == LONG_CHAIN + 3
    assert (await agent_world.heads(), await find_due_rows(agent_world.agent)) == ([writer.text], [])


async def test_concurrent_edit_of_head_is_kept(agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN)

    async def pin() -> None:
        await change_head(agent_world.agent, last, {"pinned": True, "tags": ["kept"]}, user_id="u")

    # Edit the head after its read, directly before the write of the new version.
    store = InterleavedStore(agent_world.agent.store, Event(lambda name, _: name == "upsert", pin))
    await collapse(World(replace(agent_world.agent, store=cast(Any, store)), clock=agent_world.clock), last, Writer())

    assert store.is_over
    (head,) = await agent_world.rows()
    assert (head.content, head.pinned, head.tags) == ("plan 19", True, ("kept",))


async def test_new_head_keeps_properties_of_the_old(agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN - 1)
    more: dict[str, Any] = {"tags": ("t",), "metadata": {"n": 1.5}, "pinned": True, "importance": 0.9, "author": "ann"}
    more |= {"expires_at": agent_world.clock.now_ms() + 10**9, "session_id": "s", "confidence": 0.7}
    last = await agent_world.add("plan 19", type="fact", key="plan", vector=None, **more)

    await collapse(agent_world, last, Writer())

    (head,) = await agent_world.rows()
    assert head.content == Writer().text
    assert {name: getattr(head, name) for name in more} == more


@pytest.mark.parametrize("moment", ["reads", "writes"])
@pytest.mark.parametrize("removal", ["deleted", "sealed"])
async def test_version_removed_meanwhile_is_not_merged(removal: str, moment: str, agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN)
    versions = {record.content: record.id for record in await all_versions(agent_world)}
    await overwrite(agent_world, versions["plan 3"], {"sessionId": "three"})

    async def remove_version() -> None:
        if removal == "sealed":
            await seal(agent_world, versions["plan 3"])
        else:
            filters = {"session_id": "three"}
            scope = ErasureScope(user_id="u", criterion=parse_filters(filters))
            await agent_world.forgetting.forget(agent_world.agent, ForgetRequest(scope=scope, filters=filters))

    writer, world = Writer(), agent_world
    if moment == "reads":
        writer.during = remove_version
    else:
        # Remove the version once the new version is published.
        store = InterleavedStore(agent_world.agent.store, Event(publishes, remove_version, after=True))
        world = World(replace(agent_world.agent, store=cast(Any, store)), clock=agent_world.clock)
    await collapse(world, last, writer)

    assert (await agent_world.heads(), await find_due_rows(agent_world.agent)) == (["plan 19"], [])


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
async def test_protected_head_is_not_sent_to_the_model(head: dict[str, Any], agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN)
    await overwrite(agent_world, last, head)
    writer = Writer()

    result = await collapse(agent_world, last, writer)

    assert (writer.read, result.is_completed, result.stored) == ([], True, [])
    assert len(await all_versions(agent_world)) == LONG_CHAIN


async def test_sealed_versions_are_not_read(agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN)
    versions = {record.content: record.id for record in await all_versions(agent_world)}
    await seal(agent_world, versions["plan 3"])
    writer = Writer()

    await collapse(agent_world, last, writer)

    (head,) = await agent_world.rows()
    assert "plan 3" not in writer.read
    assert (len(head.source_ids), versions["plan 3"] in head.source_ids) == (LONG_CHAIN - 1, False)


async def test_newest_versions_of_a_huge_chain_are_read(agent_world: World) -> None:
    last = await change(agent_world, MAX_VERSIONS + 6)
    writer = Writer("plan 69 after many")

    await collapse(agent_world, last, writer)

    assert writer.read == [f"plan {number}" for number in range(6, MAX_VERSIONS + 6)]
    assert len((await agent_world.rows())[0].source_ids) == MAX_VERSIONS


async def test_unsupported_text_waits_for_approval(agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN)

    result = await collapse(agent_world, last, Writer("Mallory plans 99 things"))

    assert (result.proposed, await agent_world.heads(), await find_due_rows(agent_world.agent)) == (1, ["plan 19"], [])
    tally = await approve(agent_world.agent, last)
    (head,) = await agent_world.rows()
    assert (tally[PlanEffect.MERGED], tally[PlanEffect.SUPERSEDED]) == (1, 1)
    assert (head.content, head.key, head.supersedes_id) == ("Mallory plans 99 things", "plan", last)
    assert [one async for one in read_proposals(agent_world.agent)] == []


async def test_late_approval_stores_nothing(agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN)
    await collapse(agent_world, last, Writer("Mallory plans 99 things"))
    await agent_world.add("plan 20", type="fact", key="plan", vector=None)

    tally = await approve(agent_world.agent, last)

    assert (tally[PlanEffect.LOST], await agent_world.heads()) == (1, ["plan 20"])


async def test_undo_restores_the_previous_head(agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN)
    await collapse(agent_world, last, Writer())
    undone = UndoReport()

    await undo(agent_world.agent, last, undone)

    assert (await agent_world.heads(), undone.facts, undone.reactivated) == (["plan 19"], 1, 1)
    await agent_world.add("plan 20", type="fact", key="plan", vector=None)
    assert await find_due_rows(agent_world.agent) == []


async def test_three_invalid_outputs_end_the_attempts(agent_world: World) -> None:
    last = await change(agent_world, LONG_CHAIN)
    writer = Writer(error=ModelOutputInvalid("no JSON"))

    for _ in range(MAX_TRIES):
        with pytest.raises(ModelOutputInvalid):
            await collapse(agent_world, last, writer)
        agent_world.clock.move(ms=LEASE_MS)

    assert (await find_due_rows(agent_world.agent), await agent_world.heads()) == ([], ["plan 19"])
    await agent_world.add("plan 20", type="fact", key="plan", vector=None)
    assert await find_due_rows(agent_world.agent) == []


async def test_versions_removed_by_cleanup_count(agent_world: World) -> None:
    settings = agent_world.agent.settings
    lifecycle = replace(settings.lifecycle, max_chain_length=5, max_removal_percent=100)
    agent_world.agent = replace(agent_world.agent, settings=replace(settings, lifecycle=lifecycle))
    for _ in range(3):
        await change(agent_world, 6)
        await clean(agent_world)

    last = await change(agent_world, 2)

    assert await find_due_rows(agent_world.agent) == [last]


async def test_cleanup_reports_long_chains(agent_world: World) -> None:
    await change(agent_world, LONG_CHAIN + 3)

    outcome = await clean(agent_world)

    assert outcome.long_chains == 1
    assert [event.reason for event in cleanup_events(outcome, None)] == ["LongChains"]
