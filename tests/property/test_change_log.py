"""The change log for every order in which writes take effect: no change is missed or repeated, and each is prompt.

Writers and readers have clocks that differ, writes are slow, writers die, and the alias moves. `NaiveReader` reads the
same log up to now and continues after the last entry: it shows that the drawn orders are those that lose changes.
"""

import asyncio
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.rules.epochs import Epoch
from agentmemory_operator.entrypoints.api.transfer.change_requests import MAX_CURSOR_CHARS
from agentmemory_operator.memories.change_log import ChangesRequest, read_changes
from agentmemory_operator.memories.rules.change_entries import Change, build_change, decode_position, without_recent
from agentmemory_operator.memories.rules.log_times import MAX_CLOCK_DIFFERENCE_MS, next_logged_at
from agentmemory_operator.memories.rules.recent_entries import MAX_RECENT
from tests.support.engine.agents import agent_of, settings_of
from tests.support.engine.fakes import FakeClock
from tests.support.engine.point_memory import BETWEEN, PointMemory

WRITE_MS = 16_000
SETTLED_MS = WRITE_MS + MAX_CLOCK_DIFFERENCE_MS
OFFSETS_MS = (-MAX_CLOCK_DIFFERENCE_MS // 2, 0, MAX_CLOCK_DIFFERENCE_MS // 2)
STEPS = 80
Entry = tuple[str, int, str]
"""Id, time and kind of a change."""


def numbered_id(number: int) -> str:
    """Return an id, in the order of the numbers."""
    return str(uuid.UUID(int=number))


CHANGES: list[Callable[[dict[str, Any]], Any]] = [
    lambda row: row.update(content="edited"),
    lambda row: row.update(supersededById="next"),
    lambda row: row.pop("supersededById", None),
    lambda row: row.update(deletedAt=1),
]


def entry_of(change: Change) -> Entry:
    return change.id, change.at, change.kind


@dataclass(slots=True)
class Log:
    """One collection, and writers whose writes take effect later.

    Attributes:
        late: Writes on their way: the time at which each takes effect, and its point.
    """

    chance: random.Random
    clock: FakeClock = field(default_factory=FakeClock)
    store: PointMemory = field(default_factory=PointMemory)
    late: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    epoch: Epoch = field(default_factory=Epoch)

    def agent(self, offset_ms: int) -> Agent:
        """Return the agent in a process whose clock has an offset."""
        agent = agent_of(settings_of("probe"), self.store)  # type: ignore[arg-type]
        clock = FakeClock(self.clock.now_ms() + offset_ms)
        return replace(agent, clock=clock, write_s=WRITE_MS / 1000, epoch=self.epoch)

    def entries(self) -> set[Entry]:
        """Return the entries that are in the log now."""
        return {entry_of(build_change(id_, row, self.epoch)) for id_, row in self.store.payloads.items()}

    async def write(self) -> None:
        """Send a write of a random process, which may die before the write takes effect."""
        id_ = numbered_id(self.chance.randrange(12))
        row = self.store.payloads.get(id_)
        now_ms = self.clock.now_ms() + self.chance.choice(OFFSETS_MS)
        payload = dict(row or {"userId": "u", "rev": 0})
        if row is not None:
            self.chance.choice(CHANGES)(payload)
        payload |= {"rev": payload["rev"] + 1, "loggedAt": next_logged_at(row, now_ms)}
        if self.chance.random() < 0.9:
            delay_ms = self.chance.choice([0, 0, 1, WRITE_MS // 3, WRITE_MS])
            self.late.append((self.clock.now_ms() + delay_ms, {"id": id_, "vector": {}, "payload": payload}))
            await self.arrive()

    async def arrive(self) -> None:
        """Let the writes take effect that are due, each if its point is unchanged."""
        due = [point for at_ms, point in self.late if at_ms <= self.clock.now_ms()]
        self.late = [(at_ms, point) for at_ms, point in self.late if at_ms > self.clock.now_ms()]
        for point in due:
            unchanged = {"must": [{"key": "rev", "match": {"value": point["payload"]["rev"] - 1}}]}
            await self.store.upsert("a", [point], update_filter=unchanged, inserts=True)

    async def pass_time(self, ms: int) -> None:
        """Let time pass; each write takes effect at its time, and accesses are counted."""
        end_ms = self.clock.now_ms() + ms
        for at_ms in sorted({at_ms for at_ms, _ in self.late if at_ms <= end_ms} | {end_ms}):
            self.clock.value_ms = at_ms
            await self.arrive()
        for row in self.store.payloads.values():
            row["rev"] += self.chance.random() < 0.1


@dataclass(slots=True)
class Reader:
    """Reads the log page by page, from a process that is drawn for each page.

    Attributes:
        dies: Probability that it loses the end of a page, and continues after an entry of it.
    """

    log: Log
    limit: int
    dies: float = 0.0
    cursor: str | None = None
    changes: list[Change] = field(default_factory=list)

    async def poll(self) -> int:
        agent = self.log.agent(self.log.chance.choice(OFFSETS_MS))
        page = await read_changes(agent, ChangesRequest(limit=self.limit, cursor=self.cursor))
        changes, self.cursor = list(page.changes), page.next_cursor
        if changes and self.log.chance.random() < self.dies:
            changes = changes[: self.log.chance.randint(1, len(changes))]
            self.cursor = changes[-1].position.encode("probe")
        self.changes += changes
        return len(changes)

    @property
    def entries(self) -> list[Entry]:
        return [entry_of(change) for change in self.changes if change.kind != "rebuilt"]


@dataclass(slots=True)
class NaiveReader:
    """Reads up to now, and continues after the last entry."""

    log: Log
    position: tuple[int, str] = (0, "")
    entries: set[Entry] = field(default_factory=set)

    def poll(self) -> None:
        found = [entry for entry in self.log.entries() if (entry[1], entry[0]) > self.position]
        self.position = max([self.position, *((at, id_) for id_, at, _ in found)])
        self.entries.update(found)


def missing(log: Log, entries: list[Entry]) -> set[Entry]:
    """Return the entries of the log that are not the last of their memory for a reader."""
    last = {id_: (id_, at, kind) for id_, at, kind in entries}
    return {entry for entry in log.entries() if last.get(entry[0]) != entry}


async def run(seed: int) -> tuple[Log, list[Reader], NaiveReader]:
    """Run writers and readers, and read the rest once all writes have taken effect."""
    log = Log(random.Random(seed))
    prompt, readers, naive = Reader(log, 1_000), [Reader(log, 1), Reader(log, 3, dies=0.5)], NaiveReader(log)
    for step in range(STEPS):
        await log.write()
        await log.pass_time(log.chance.choice([0, 0, 1, 300, 4_000]))
        if step == STEPS // 2:
            log.epoch = Epoch(number=log.clock.now_ms())
        for reader in [reader for reader in readers if log.chance.random() < 0.7]:
            await reader.poll()
        naive.poll()
        await prompt.poll()
        assert missing(log, prompt.entries) == set(), "every entry in the log is readable at once"
    await log.pass_time(SETTLED_MS + MAX_CLOCK_DIFFERENCE_MS)
    naive.poll()
    for reader in (prompt, *readers):
        while await reader.poll():
            pass
    return log, [prompt, *readers], naive


# Two ranges by default, the rest with the fault tests.
RANGES = [range(start, start + 10) for start in range(0, 60, 10)]


@pytest.mark.parametrize(
    "seeds", [*RANGES[:2], *(pytest.param(seeds, marks=pytest.mark.faults) for seeds in RANGES[2:])], ids=str
)
def test_no_change_is_missed_or_repeated(seeds: range) -> None:
    missed = 0
    for seed in seeds:
        log, readers, naive = asyncio.run(run(seed))
        for reader in readers:
            assert missing(log, reader.entries) == set(), seed
            assert len(reader.entries) == len(set(reader.entries)), seed
            assert [change.kind for change in reader.changes].count("rebuilt") == 1, seed
            check_order(reader)
            position = decode_position(reader.cursor or "", "probe")
            assert position is not None
            assert not position.recent.marks
        missed += bool(log.entries() - naive.entries)
    assert missed, "the drawn orders make a reader up to now miss changes"


def check_order(reader: Reader) -> None:
    """Check that changes of one memory are in order, and that no change follows one made 20 s after it."""
    latest, by_id = 0, dict[str, int]()
    for id_, at, _ in reader.entries:
        assert at > by_id.get(id_, 0)
        assert at > latest - SETTLED_MS - MAX_CLOCK_DIFFERENCE_MS
        latest, by_id[id_] = max(latest, at), at


def add_memories(log: Log, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        log.store.payloads[numbered_id(number)] = {
            "userId": "u",
            "rev": 1,
            "loggedAt": log.clock.now_ms() + number % 1_000,
        }


async def test_burst_is_read_in_two_parts() -> None:
    """A cursor has room for some recent entries. The others follow as soon as the first are complete."""
    log = Log(random.Random(0))
    log.epoch = Epoch(number=(1 << 53) - 1, contents=(1 << 53) - 1)
    add_memories(log, MAX_RECENT + 50)
    reader = Reader(log, 1_000)
    assert await reader.poll() == MAX_RECENT
    assert await reader.poll() == 0
    assert len(reader.cursor or "") <= MAX_CURSOR_CHARS
    add_memories(log, 10, first=5_000)
    log.clock.move(ms=SETTLED_MS + MAX_CLOCK_DIFFERENCE_MS)
    while await reader.poll():
        pass
    log.clock.move(ms=SETTLED_MS)
    while await reader.poll():
        pass
    assert missing(log, reader.entries) == set()
    assert len(reader.entries) == MAX_RECENT + 60


async def test_memory_that_keeps_changing_needs_one_mark() -> None:
    """Also for a reader that never gets to the end of the log."""
    log = Log(random.Random(0))
    reader = Reader(log, 1)
    for _ in range(2 * MAX_RECENT):
        add_memories(log, 1)
        assert await reader.poll() == 1
        log.clock.move(ms=500)
    position = decode_position(reader.cursor or "", "probe")
    assert position is not None
    assert len(position.recent.marks) == 1


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 10])
async def test_change_during_a_page_hides_no_other(deletes: bool, limit: int) -> None:
    """Qdrant matches points before it reads their payloads, and returns those of one time in no order."""
    log = Log(random.Random(0))
    log.clock.move(ms=SETTLED_MS * 2)
    ids = list(map(numbered_id, range(5)))
    times = dict(zip(ids, (1, 2, 2, 2, 3), strict=True))
    log.store.payloads = {id_: {"userId": "u", "rev": 1, "loggedAt": at} for id_, at in times.items()}
    reader = Reader(log, limit)

    async def change() -> None:
        if deletes:
            log.store.payloads.pop(ids[2], None)
        else:
            log.store.payloads[ids[2]] |= {"rev": 2, "loggedAt": log.clock.now_ms()}

    token = BETWEEN.set(change)
    await reader.poll()
    BETWEEN.reset(token)
    while await reader.poll():
        pass
    assert missing(log, reader.entries) == set()
    assert [id_ for id_, _, _ in reader.entries if id_ != ids[2]] == [*ids[:2], *ids[3:]]


async def test_cursor_without_marks_repeats_recent_entries() -> None:
    """A status has the short cursor. So has a replica that reads only the first part of it."""
    log = Log(random.Random(0))
    reader = Reader(log, 10)
    add_memories(log, 3)
    log.clock.move(ms=2 * SETTLED_MS)
    await reader.poll()
    add_memories(log, 2, first=3)
    await reader.poll()
    reader.cursor = without_recent(reader.cursor or "")
    assert await reader.poll() == 2
    assert [id_ for id_, _, _ in reader.entries] == list(map(numbered_id, (0, 1, 2, 3, 4, 3, 4)))
