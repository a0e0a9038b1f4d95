"""A reader of the change log with concurrent writers: clock skew, slow writes, kills."""

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
from agentmemory_operator.memories.rules.change_entries import Change
from agentmemory_operator.memories.rules.log_times import MAX_CLOCK_DIFFERENCE_MS
from agentmemory_operator.memories.stored_memories import change_head, delete_head
from agentmemory_operator.ports.points import PointStore
from tests.support.engine.agents import World
from tests.support.engine.fakes import FakeClock
from tests.support.engine.interleaved_store import WRITES

WRITE_S = 16.0
WRITE_MS = round(WRITE_S * 1000)
STEPS = 45


class OffsetClock(FakeClock):
    """Shows the time of another clock plus an offset."""

    def __init__(self, true: FakeClock, offset_ms: int) -> None:
        super().__init__()
        self._true, self._offset_ms = true, offset_ms

    def now_ms(self) -> int:
        return self._true.now_ms() + self._offset_ms


class SlowStore:
    """Runs `before` ahead of each write; `fails` decides whether a write fails before or after it."""

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
    """Polls the change log, a few entries at a time."""

    world: World
    cursor: str | None = None
    changes: list[Change] = field(default_factory=list)

    async def poll(self, limit: int = 3) -> int:
        page = await read_changes(self.world.agent, ChangesRequest(limit=limit, cursor=self.cursor))
        self.cursor = page.next_cursor
        self.changes += page.changes
        return len(page.changes)

    @property
    def known(self) -> dict[str, str]:
        """Last kind of change of each memory id."""
        return {change.id: change.kind for change in self.changes}


@dataclass(slots=True)
class Race:
    """Writers, each in its own process, and one reader.

    Attributes:
        late_ms: Maximum delay of a write.
        killing: Probability that a process dies at a write.
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
            await self.reader.poll()

    def _dies(self) -> bool:
        return self.chance.random() < self.killing

    async def step(self) -> None:
        """Run one random operation of a random writer."""
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
        """Complete the writes of dead processes, then read the rest of the log."""
        for _ in range(5):
            self.true.move(ms=60_000)
            await chains.sweep(self.world.agent)
        self.true.move(ms=WRITE_MS + 2 * MAX_CLOCK_DIFFERENCE_MS)
        while await self.reader.poll():
            pass

    async def read_states(self) -> dict[str, str]:
        """Return the state of each memory and receipt in the collection."""
        body = {"filter": {"must": []}, "limit": 1_000, "with_payload": True}
        points, _ = await self.world.agent.store.scroll(self.world.agent.alias, body)
        rows = {point["id"]: point["payload"] for point in points}
        return {id_: _state(row) for id_, row in rows.items() if "erasureId" not in row and not _is_abandoned(row)}


def _is_abandoned(row: dict[str, Any]) -> bool:
    """Return whether a version was abandoned before it was visible: the log omits its tombstone."""
    return "deletedAt" in row and "loggedAt" not in row


def _state(row: dict[str, Any]) -> str:
    if "receipt" in row:
        return "forgotten"
    return "deleted" if "deletedAt" in row else "superseded" if "supersededById" in row else "stored"


def missed_ids(race: Race, states: dict[str, str]) -> set[str]:
    """Return the ids whose last logged change differs from their state."""
    known = race.reader.known
    return {id_ for id_, state in states.items() if known.get(id_) != state}


def check_order(changes: list[Change]) -> None:
    """Check that changes of one memory are in order, and that no change follows one made 20 s after it."""
    latest, by_id = 0, dict[str, int]()
    for change in changes:
        assert change.at > by_id.get(change.id, 0)
        assert change.at > latest - WRITE_MS - 2 * MAX_CLOCK_DIFFERENCE_MS
        latest, by_id[change.id] = max(latest, change.at), change.at


@pytest.mark.parametrize("seed", range(8))
async def test_reader_misses_no_change(world: World, seed: int) -> None:
    chance = random.Random(seed)
    half_ms = MAX_CLOCK_DIFFERENCE_MS // 2
    race = Race(world, chance, (-half_ms, 0, half_ms))
    for _ in range(STEPS):
        await race.step()
        await race.reader.poll()
    await race.end()
    states = await race.read_states()
    assert missed_ids(race, states) == set()
    assert race.acknowledged <= race.reader.known.keys() | {id_ for id_ in race.acknowledged if id_ not in states}
    check_order(race.reader.changes)
    logged = [(change.id, change.at) for change in race.reader.changes]
    assert len(logged) == len(set(logged))
    assert {"stored", "superseded", "forgotten"} <= set(race.reader.known.values())


@pytest.mark.parametrize("offset_ms", [-MAX_CLOCK_DIFFERENCE_MS, 0, MAX_CLOCK_DIFFERENCE_MS - STEPS])
async def test_acknowledged_change_is_readable_at_once(world: World, offset_ms: int) -> None:
    """Whatever the clock of its writer shows, and once only."""
    race = Race(world, random.Random(0), (offset_ms,), late_ms=0, killing=0.0)
    for _ in range(STEPS):
        await race.step()
        while await race.reader.poll():
            pass
        assert missed_ids(race, await race.read_states()) == set()
    assert len(race.reader.changes) == len({(change.id, change.at) for change in race.reader.changes})


async def test_excessive_clock_skew_causes_misses(world: World) -> None:
    """Proves that the test above detects a reader that advances too early."""
    race = Race(world, random.Random(1), (-2 * WRITE_MS, 0), killing=0.0)
    for _ in range(STEPS):
        await race.step()
        await race.reader.poll()
    await race.end()
    assert missed_ids(race, await race.read_states())
