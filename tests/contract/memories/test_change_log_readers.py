"""A reader beside writers with clocks that differ, slow writes and kills: in the end it knows all that is there."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentmemory_operator.errors import AgentMemoryError, OutcomeUnknown, StoreUnavailable
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.change_log import ChangesRequest, read_changes
from agentmemory_operator.memories.rules.change_entries import MAX_CLOCK_DIFFERENCE_MS, Change
from agentmemory_operator.memories.stored_memories import change_head, delete_head
from agentmemory_operator.ports.points import PointStore
from tests.support.engine.agents import World
from tests.support.engine.fakes import FakeClock
from tests.support.engine.interleaved_store import WRITES

WRITE_S = 16.0
WRITE_MS = round(WRITE_S * 1000)
STEPS = 45


class OffsetClock(FakeClock):
    """Tells another's time, wrong by so much."""

    def __init__(self, true: FakeClock, offset_ms: int) -> None:
        super().__init__()
        self._true, self._offset_ms = true, offset_ms

    def now_ms(self) -> int:
        return self._true.now_ms() + self._offset_ms


class SlowStore:
    """Passes calls on; before each write reaches the engine, and after it, things happen."""

    def __init__(self, store: PointStore, before: Callable[[], Awaitable[None]], fails: Callable[[], bool]) -> None:
        self._store = store
        self._before = before
        self._fails = fails

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **more: Any) -> Any:
            if name not in WRITES:
                return await getattr(self._store, name)(*arguments, **more)
            if self._fails():
                raise StoreUnavailable("the process died")
            await self._before()
            answer = await getattr(self._store, name)(*arguments, **more)
            if self._fails():
                raise OutcomeUnknown("the process died")
            return answer

        return call


@dataclass(slots=True)
class Reader:
    """Polls the log, a few entries at a time."""

    world: World
    cursor: str | None = None
    seen: list[Change] = field(default_factory=list)

    async def look(self, limit: int = 3) -> int:
        page = await read_changes(self.world.agent, ChangesRequest(limit=limit, cursor=self.cursor))
        self.cursor = page.next_cursor
        self.seen += page.changes
        return len(page.changes)

    @property
    def known(self) -> dict[str, str]:
        """What it takes each memory for."""
        return {change.id: change.kind for change in self.seen}


@dataclass(slots=True)
class Race:
    """Writers, each in a process of its own, and a reader.

    Attributes:
        late_ms: how long a write may be on its way.
    """

    world: World
    chance: random.Random
    offsets_ms: tuple[int, ...]
    late_ms: int = WRITE_MS
    killing: float = 0.06
    true: FakeClock = field(default_factory=FakeClock)
    acknowledged: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.world = self._process(0, self.world.agent.store)
        self.reader = Reader(self.world)
        self.writers = [
            self._process(offset, SlowStore(self.world.agent.store, self._meanwhile, self._dies))  # type: ignore[arg-type]
            for offset in self.offsets_ms
        ]

    reader: Reader = field(init=False)
    writers: list[World] = field(init=False)

    def _process(self, offset_ms: int, store: PointStore) -> World:
        agent = replace(self.world.agent, store=store, write_s=WRITE_S)
        return World(agent, clock=OffsetClock(self.true, offset_ms))

    async def _meanwhile(self) -> None:
        self.true.move(ms=self.chance.choice([0, 1, self.late_ms // 3, self.late_ms]))
        if self.chance.random() < 0.7:
            await self.reader.look()

    def _dies(self) -> bool:
        return self.chance.random() < self.killing

    async def step(self) -> None:
        """Let a writer do something."""
        writer = self.chance.choice(self.writers)
        heads = [record.id for record in await self.world.rows()]
        head = self.chance.choice(heads) if heads else None
        self.true.move(ms=self.chance.choice([0, 1, 700, 9_000]))
        try:
            match self.chance.choice(["add", "add", "follow", "follow", "change", "delete", "forget"]):
                case "add":
                    self.acknowledged.add(await writer.add(f"memory {self.chance.random()}"))
                case "follow" if head:
                    self.acknowledged.add(await writer.add(f"newer {self.chance.random()}", supersedes=head))
                case "change" if head:
                    await change_head(writer.agent, head, {"importance": self.chance.random()}, user_id="u")
                    self.acknowledged.add(head)
                case "delete" if head:
                    await delete_head(writer.agent, head, user_id="u")
                    self.acknowledged.add(head)
                case "forget":
                    await writer.add(f"of another {self.chance.random()}", user_id="v")
                    await writer.forgetting.forget(
                        writer.agent, ForgetRequest(scope=ErasureScope(user_id="v", is_whole=True))
                    )
        except AgentMemoryError:
            pass

    async def end(self) -> None:
        """Let the sweep finish what processes that died have left, and the reader read all."""
        for _ in range(5):
            self.true.move(ms=60_000)
            await chains.sweep(self.world.agent)
        self.true.move(ms=WRITE_MS + 2 * MAX_CLOCK_DIFFERENCE_MS)
        while await self.reader.look():
            pass

    async def there(self) -> dict[str, str]:
        """What each memory and receipt of the collection is, by its own account."""
        body = {"filter": {"must": []}, "limit": 1_000, "with_payload": True}
        points, _ = await self.world.agent.store.scroll(self.world.agent.alias, body)
        rows = {point["id"]: point["payload"] for point in points}
        return {id_: _state(row) for id_, row in rows.items() if "erasureId" not in row and not _is_given_up(row)}


def _is_given_up(row: dict[str, Any]) -> bool:
    """Whether a version came to nothing before it was seen: nobody is told of the tombstone that it left."""
    return "deletedAt" in row and "loggedAt" not in row


def _state(row: dict[str, Any]) -> str:
    if "receipt" in row:
        return "forgotten"
    return "deleted" if "deletedAt" in row else "superseded" if "supersededById" in row else "stored"


def missed(race: Race, there: dict[str, str]) -> set[str]:
    """What a reader takes for something else than it is, or knows nothing of."""
    known = race.reader.known
    return {id_ for id_, state in there.items() if known.get(id_) != state}


@pytest.mark.parametrize("seed", range(8))
async def test_a_reader_knows_all_that_is_there_whatever_happens_to_writers(world: World, seed: int) -> None:
    chance = random.Random(seed)
    half = MAX_CLOCK_DIFFERENCE_MS // 2
    race = Race(world, chance, (-half, 0, half))
    for _ in range(STEPS):
        await race.step()
        await race.reader.look()
    await race.end()
    there = await race.there()
    assert missed(race, there) == set()
    assert race.acknowledged <= race.reader.known.keys() | {id_ for id_ in race.acknowledged if id_ not in there}
    assert [change.at for change in race.reader.seen] == sorted(change.at for change in race.reader.seen)
    told = [(change.id, change.at) for change in race.reader.seen]
    assert len(told) == len(set(told))
    assert {"stored", "superseded", "forgotten"} <= set(race.reader.known.values())


async def test_a_clock_that_is_further_behind_than_it_may_be_is_noticed_here(world: World) -> None:
    """What the test above would say of a reader that goes ahead too soon."""
    race = Race(world, random.Random(1), (-2 * WRITE_MS, 0), killing=0.0)
    for _ in range(STEPS):
        await race.step()
        await race.reader.look()
    await race.end()
    assert missed(race, await race.there())
