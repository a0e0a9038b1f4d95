"""A move of the alias during a use case: retryable before the first write, else of unknown outcome."""

from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.agents.collection_facts import CollectionFacts, Space
from agentmemory_operator.agents.fence import DEFAULT_TIMING, Fence, FenceTiming
from agentmemory_operator.agents.fenced_store import FencedStore
from agentmemory_operator.errors import AgentMemoryError, CollectionMoved, OutcomeUnknown
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.stored_memories import change_head, delete_head
from agentmemory_operator.memories.transfer.import_batch import ImportLine
from agentmemory_operator.memories.transfer.imports import import_lines
from agentmemory_operator.memories.working_memory import Session
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.memory_types import MemoryType, Ttl
from tests.support.engine.agents import EVERYTHING, SIZE, World, agent_of, settings_of, vector_of
from tests.support.engine.fakes import FakeClock
from tests.support.engine.point_memory import PointMemory
from tests.support.metrics import collect_samples

TYPES = (
    MemoryType("fact", None, supersede_by="key"),
    MemoryType("note", None),
    MemoryType("thought", None, ttl=Ttl("Session")),
    MemoryType("working", None),
)
SESSION = Session("u", "s")
PLACE = Address(user_id="u", namespace=("memories", "u"), key="a")
SOURCE = EmbeddingSource(provider="none", model=None, dimensions=SIZE)
BEFORE = CollectionFacts(source=SOURCE, keyword=None, distance="Cosine", origin=None, allows_exact=True)
AFTER = replace(BEFORE, epoch="agent_memory_bot__2")


class MovingFence(Fence):
    """Fence read before and after each write; from one of these reads on, the alias has moved."""

    def __init__(self, moves_at: int) -> None:
        super().__init__("bot", self.read_moved, DEFAULT_TIMING)
        self.moves_at, self.looks = moves_at, 0

    @property
    def has_moved(self) -> bool:
        return self.looks > self.moves_at

    def has_space_lease(self, space: Space) -> bool:
        self.looks += 1
        return not self.has_moved

    async def read_moved(self) -> CollectionFacts:
        return AFTER


UseCase = Callable[[World], Awaitable[Any]]


def memory(content: str, **more: Any) -> IncomingMemory:
    return IncomingMemory(user_id="u", content=content, vector=vector_of(content), **more)


def content_of(text: str, **more: Any) -> ItemContent:
    return ItemContent(content=text, vector=vector_of(text), **more)


async def add_note(world: World, **more: Any) -> str:
    return await world.add("first", type="note", **more)


async def store(world: World, *memories: IncomingMemory) -> None:
    for outcome in await world.remember.store(world.agent, memories):
        if isinstance(outcome, AgentMemoryError):
            raise outcome


async def delete_newest(world: World) -> None:
    [newest] = await world.rows()
    await delete_head(world.agent, newest.id, user_id="u")


async def supersede(world: World) -> None:
    [newest] = await world.rows()
    await store(world, memory("second", type="note", supersedes=newest.id))


async def add_two_versions(world: World) -> None:
    await add_note(world)
    await supersede(world)


async def edit(world: World) -> None:
    [newest] = await world.rows()
    await change_head(world.agent, newest.id, {"pinned": True}, user_id="u")


async def think(world: World) -> None:
    await world.working.store(world.agent, memory("in mind", session_id="s"))
    await world.add("thought", type="thought", session_id="s")


async def import_two_lines(world: World) -> None:
    first, second = (f"00000000-0000-4000-8000-00000000000{number}" for number in (1, 2))
    lines = [
        ImportLine(memory=memory("old", type="note"), id=first, superseded_by=second, superseded_at=1),
        ImportLine(memory=memory("new", type="note", supersedes=first), id=second),
    ]
    await import_lines(world.agent, lines, can_restore_erased=False)


async def nothing(world: World) -> None:
    """Prepare nothing."""


USE_CASES: dict[str, tuple[UseCase, UseCase]] = {
    "a memory": (nothing, lambda world: store(world, memory("new", type="note"))),
    "one with an idempotency key": (nothing, lambda w: store(w, memory("new", type="note", idempotency_key="k"))),
    "several at once": (nothing, lambda w: store(w, memory("a", type="note"), memory("b", type="fact", key="b"))),
    "the first of an identity": (nothing, lambda world: store(world, memory("new", type="fact", key="k"))),
    "the next of an identity": (
        lambda world: world.add("old", type="fact", key="k"),
        lambda world: store(world, memory("new", type="fact", key="k")),
    ),
    "several of one identity": (nothing, lambda w: store(w, *(memory(str(n), type="fact", key="k") for n in range(3)))),
    "what is said again": (
        lambda world: add_note(world, author="ada"),
        lambda world: store(world, memory("first", type="note", author="bob")),
    ),
    "one that supersedes": (add_note, supersede),
    "a change in place": (add_note, edit),
    "a deletion": (add_note, delete_newest),
    "a deletion that lets another answer": (add_two_versions, delete_newest),
    "an item": (nothing, lambda world: world.items.put(world.agent, PLACE, content_of("new"))),
    "an item in the place of another": (
        lambda world: world.items.put(world.agent, PLACE, content_of("old")),
        lambda world: world.items.put(world.agent, PLACE, content_of("new")),
    ),
    "an item's deletion": (
        lambda world: world.items.put(world.agent, PLACE, content_of("old")),
        lambda world: world.items.delete(world.agent, PLACE),
    ),
    "a working memory": (think, lambda w: w.working.store(w.agent, memory("also in mind", session_id="s"))),
    "the end of a session": (think, lambda world: world.working.end_session(world.agent, SESSION)),
    "an import": (nothing, import_two_lines),
    "an erasure": (
        add_two_versions,
        lambda world: world.forgetting.forget(
            world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True))
        ),
    ),
}


def world_over(points: PointMemory) -> World:
    settings = replace(settings_of("bot", ranking=replace(EVERYTHING, types=TYPES)), deduplicate=True)
    return World(agent_of(settings, points))  # type: ignore[arg-type] # what writers use of it


async def run_with_move(
    use_case: tuple[UseCase, UseCase], *, moves_at: int
) -> tuple[AgentMemoryError | None, bool, bool]:
    """Return the error of a use case, whether it met the move, and whether it had written."""
    before, run = use_case
    points = PointMemory()
    world = world_over(points)
    await before(world)
    payloads = deepcopy(points.payloads)
    fence = MovingFence(moves_at)
    fenced: Any = FencedStore(points, fence, BEFORE, clock=FakeClock(), write_s=60)  # type: ignore[arg-type]
    world.agent = replace(world.agent, store=fenced)
    try:
        await run(world)
    except AgentMemoryError as error:
        return error, fence.has_moved, points.payloads != payloads
    return None, fence.has_moved, points.payloads != payloads


@pytest.mark.parametrize("name", USE_CASES)
async def test_move_before_first_write_allows_retry(name: str) -> None:
    """After a write, the outcome is unknown."""

    raised, _, has_written = await run_with_move(USE_CASES[name], moves_at=0)
    assert isinstance(raised, CollectionMoved)
    assert not has_written

    looks = 0
    while True:
        looks += 1
        raised, has_moved, has_written = await run_with_move(USE_CASES[name], moves_at=looks)
        if not has_moved:
            break
        assert isinstance(raised, OutcomeUnknown), (looks, raised)
        assert has_written

    assert raised is None
    assert looks % 2 == 0
    assert looks >= 2


async def test_accesses_during_a_move_are_written_later() -> None:
    points = PointMemory()
    world = world_over(points)
    memory_id = await add_note(world)
    direct, fence = world.agent, MovingFence(0)
    fenced: Any = FencedStore(points, fence, BEFORE, clock=FakeClock(), write_s=60)  # type: ignore[arg-type]
    world.agent = replace(direct, store=fenced)
    counts = world.new_counts("w")
    counts.note("bot", [memory_id])

    await counts.flush()
    assert (counts.pending_count, collect_samples(counts.drops)["agentmemory_api_access_dropped_total"]) == (1, 0)

    world.agent = direct
    await counts.flush()
    assert points.payloads[memory_id]["accessCount"] == 1


class Restored:
    """Two collections of an agent; a restore moves its alias to the second before the call numbered `moves_at`."""

    def __init__(self, before: PointMemory, after: PointMemory, *, moves_at: int) -> None:
        self.before, self.after, self.moves_at, self.calls = before, after, moves_at, 0

    @property
    def has_moved(self) -> bool:
        return self.calls >= self.moves_at

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **more: Any) -> Any:
            self.calls += 1
            return await getattr(self.after if self.has_moved else self.before, name)(*args, **more)

        return call

    async def read_facts(self) -> CollectionFacts:
        self.calls += 1
        return replace(BEFORE, epoch="2", epoch_number=2, contents_number=2) if self.has_moved else BEFORE


@pytest.mark.parametrize("name", USE_CASES)
async def test_restore_causes_no_false_conflict(name: str) -> None:
    """After a 409 or 404 the client's write must not reappear with the replaced collection."""
    before, run = USE_CASES[name]
    moves_at, outcomes = 0, set()
    while True:
        moves_at += 1
        points = PointMemory()
        world = world_over(points)
        await before(world)
        payloads, restored = deepcopy(points.payloads), PointMemory()
        restored.payloads = deepcopy(payloads)
        engine = Restored(points, restored, moves_at=moves_at)
        # No lease: each call is followed by a read.
        fence = Fence("bot", engine.read_facts, FenceTiming(lease_s=-1, hold_s=0, poll_s=0))
        store_of_one_use: Any = FencedStore(engine, fence, BEFORE, clock=FakeClock(), write_s=60)  # type: ignore[arg-type]
        world.agent = replace(world.agent, store=store_of_one_use)
        raised: AgentMemoryError | None = None
        try:
            await run(world)
        except AgentMemoryError as error:
            raised = error
        if not engine.has_moved:
            assert raised is None
            break
        outcomes.add(type(raised))
        assert raised is None or isinstance(raised, CollectionMoved | OutcomeUnknown), (moves_at, raised)
        if isinstance(raised, CollectionMoved):
            assert points.payloads == payloads, moves_at
    assert OutcomeUnknown in outcomes
