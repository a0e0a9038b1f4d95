"""No acknowledged write is missed by the last pass of a move, and no search is answered from another space.

The operator's side is a list of what it does when. Every call takes its time, and what the operator does meanwhile
happens at the call's beginning, or before its end.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

from agentmemory_operator.domain.rebuilding import ANNOUNCE_S, LEASE_S, MOVING_KEY, REBUILD_KEY, Record, record_to_json
from agentmemory_operator.errors import (
    AgentMemoryError,
    CollectionMoved,
    OutcomeUnknown,
    StoreRejected,
    StoreUnavailable,
)
from agentmemory_operator.services.chains import midway
from agentmemory_operator.services.collection_facts import read_facts
from agentmemory_operator.services.fence import Fence, FencedStore, Times, again_if_moved
from tests.support.agents import settings_of

SETTINGS = settings_of("bot")
SOURCE, TARGET = "agent_memory_bot__1", "agent_memory_bot__2"
MOVING = {"from": SOURCE, "to": TARGET}
MOVED_S = 17.5


@dataclass(slots=True)
class Engine:
    """Two collections behind one alias; its calls take time, in which the operator does what is due.

    Attributes:
        takes_s: how long a write or search takes.
        applies_late: a call takes effect at its end, and not at its beginning.
        refuses: what it answers to a write or search.
        is_away: metadata cannot be read.
    """

    takes_s: float = 0.0
    applies_late: bool = False
    describe_takes_s: float = 0.01
    refuses: AgentMemoryError | None = None
    is_away: bool = False
    now_s: float = 0.0
    live: str = SOURCE
    moving: dict[str, str] | None = None
    described: int = 0
    writes: int = 0
    points: dict[str, set[str]] = field(default_factory=lambda: {SOURCE: set(), TARGET: set()})
    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def pass_until(self, until_s: float) -> None:
        while self.due and self.due[0][0] <= until_s:
            at_s, act = self.due.pop(0)
            self.now_s = max(self.now_s, at_s)
            act()
        self.now_s = max(self.now_s, until_s)

    def announce(self) -> None:
        self.moving = {**MOVING, "phase": "Announced"}

    def make_final(self) -> None:
        self.moving = {**MOVING, "phase": "Final"}

    def carry(self) -> None:
        self.points[TARGET] |= self.points[SOURCE]

    def move(self) -> None:
        self.live = TARGET

    def give_up(self) -> None:
        self.moving = None

    def plan_move(self) -> None:
        """Announce at 10, carry and move; what is late is carried a second after that."""
        self.due = [
            (MOVED_S - 0.5 - ANNOUNCE_S, self.announce),
            (MOVED_S - 0.5, self.make_final),
            (MOVED_S - 0.4, self.carry),
            (MOVED_S, self.move),
            (MOVED_S + 1.0, self.carry),
        ]

    async def describe(self, collection: str) -> dict[str, Any]:
        self.described += 1
        if self.is_away:
            raise StoreUnavailable("away")
        self.pass_until(self.now_s + self.describe_takes_s / 2)
        record = Record(source=SOURCE, target=TARGET, digest="", begun_ms=0, since_ms=0)
        own = {MOVING_KEY: self.moving} if self.live == SOURCE else {REBUILD_KEY: record_to_json(record)}
        self.pass_until(self.now_s + self.describe_takes_s / 2)
        # The same provider, model and size: nothing but the epoch tells them apart.
        marker = {"embedding": {"provider": "openai", "model": "m", "dimensions": 8}}
        metadata = {"agentmemory": marker, **own}
        return {"config": {"metadata": metadata, "params": {"vectors": {"size": 8, "distance": "Cosine"}}}}

    async def upsert(self, collection: str, points: list[Any], **how: Any) -> None:
        live = self._call()
        self.writes += 1
        self.points[live] |= {point["id"] for point in points}

    async def batch(self, collection: str, operations: list[Any], **how: Any) -> None:
        await self.upsert(collection, [{"id": str(number)} for number, _ in enumerate(operations)])

    async def retrieve(self, collection: str, ids: list[str], *, keys: Any) -> list[Any]:
        self.pass_until(self.now_s + self.describe_takes_s)
        return [{"id": id_, "payload": {"rev": 1}} for id_ in ids if id_ in self.points[self.live]]

    async def query(self, collection: str, body: Any) -> list[Any]:
        return [{"id": self._call()}]

    async def scroll(self, collection: str, body: Any) -> tuple[list[Any], Any]:
        return [{"id": self._call()}], None

    def _call(self) -> str:
        """Return which collection the call went to."""
        begun_s, before = self.now_s, self.live
        self.pass_until(begun_s + self.takes_s)
        if self.refuses:
            raise self.refuses
        return self.live if self.applies_late else before


@dataclass(slots=True)
class Process:
    """An API process that has read the metadata at the beginning."""

    engine: Engine
    fence: Fence = field(init=False)

    def __post_init__(self) -> None:
        async def read() -> Any:
            return await read_facts(self.engine, SETTINGS)  # type: ignore[arg-type]

        times = Times(now_s=lambda: self.engine.now_s, poll_s=0)
        self.fence = Fence("bot", read, times)

    async def open(self) -> FencedStore:
        facts = self.fence.facts or await self.fence.read()
        return FencedStore(self.engine, self.fence, facts.space)  # type: ignore[arg-type]

    async def write(self, store: FencedStore, memory_id: str = "new") -> None:
        await store.upsert(SETTINGS.alias, [{"id": memory_id, "payload": {"rev": 1}}])


async def opened(**how: Any) -> tuple[Engine, Process, FencedStore]:
    engine = Engine(**how)
    process = Process(engine)
    return engine, process, await process.open()


def timings() -> Iterator[tuple[float, float, float, bool]]:
    """Yield begin and length of a call, the length of a reading, and when the call takes effect.

    The move is announced at 10, final at 17 and done at 17.5; the process read the metadata at 0 or shortly before 10.
    """
    begins = [place / 4 for place in range(4, 84)]
    yield from product(begins, (0.0, 0.3, 2.0, 6.9, 9.0), (0.01, 0.4), (False, True))


@pytest.mark.parametrize("known_s", [0.0, 9.8, 12.0, 16.9])
async def test_an_acknowledged_write_is_in_the_target_and_a_refused_one_nowhere(known_s: float) -> None:
    outcomes: Counter[str] = Counter()
    for begin_s, takes_s, describe_takes_s, applies_late in timings():
        engine, process, store = await opened(
            takes_s=takes_s, describe_takes_s=describe_takes_s, applies_late=applies_late
        )
        engine.plan_move()
        engine.pass_until(known_s)
        await process.fence.read()
        engine.pass_until(begin_s)
        try:
            await process.write(store)
        except OutcomeUnknown:
            outcomes["unknown"] += 1
            continue
        except CollectionMoved:
            outcomes["moved"] += 1
            engine.pass_until(100)
            assert engine.points == {SOURCE: set(), TARGET: set()}
            continue
        outcomes["acknowledged"] += 1
        engine.pass_until(MOVED_S)
        assert "new" in engine.points[TARGET], (begin_s, takes_s, describe_takes_s, applies_late)

    assert min(outcomes[kind] for kind in ("acknowledged", "moved", "unknown")) > 20, outcomes


@pytest.mark.parametrize("known_s", [0.0, 9.8, 12.0, 16.9])
async def test_a_search_is_answered_by_the_collection_that_it_was_made_for_or_moved(known_s: float) -> None:
    outcomes: Counter[str] = Counter()
    for begin_s, takes_s, describe_takes_s, applies_late in timings():
        engine, process, store = await opened(
            takes_s=takes_s, describe_takes_s=describe_takes_s, applies_late=applies_late
        )
        engine.plan_move()
        engine.pass_until(known_s)
        await process.fence.read()
        engine.pass_until(begin_s)
        try:
            [found] = await store.query(SETTINGS.alias, {})
        except CollectionMoved:
            outcomes["moved"] += 1
            assert engine.live == TARGET
            continue
        outcomes["answered"] += 1
        assert found["id"] == SOURCE, (begin_s, takes_s, describe_takes_s, applies_late)

    assert min(outcomes[kind] for kind in ("answered", "moved")) > 20, outcomes


async def test_what_ends_within_the_lease_of_a_quiet_reading_reads_nothing_more() -> None:
    engine, process, store = await opened(takes_s=LEASE_S - 0.1)

    await process.write(store)

    assert engine.described == 1


@pytest.mark.parametrize("ends_s", [LEASE_S + 1.0, ANNOUNCE_S + 1.0])
async def test_what_ends_later_reads_once_after_it(ends_s: float) -> None:
    engine, _, store = await opened(takes_s=ends_s)

    assert await store.query(SETTINGS.alias, {}) == [{"id": SOURCE}]
    assert engine.described == 2


async def test_while_a_move_is_announced_writes_and_searches_go_on_and_each_is_looked_after() -> None:
    engine, process, store = await opened()
    engine.announce()
    await process.fence.read()

    await process.write(store)
    await store.query(SETTINGS.alias, {})

    assert engine.points[SOURCE] == {"new"}
    assert engine.described == 5, "one reading before the write, one after it, one after the search"


async def test_a_write_waits_for_the_move_and_is_then_meant_for_another_collection() -> None:
    engine, process, store = await opened()
    engine.make_final()
    await process.fence.read()
    engine.due = [(2.0, engine.move)]

    with pytest.raises(CollectionMoved):
        await process.write(store)

    assert engine.writes == 0


async def test_a_write_that_waited_for_a_move_that_was_given_up_is_written() -> None:
    engine, process, store = await opened()
    engine.make_final()
    await process.fence.read()
    engine.due = [(2.0, engine.give_up)]

    await process.write(store)

    assert engine.points[SOURCE] == {"new"}


async def test_where_a_move_does_not_end_a_write_gives_up_and_a_search_goes_on() -> None:
    engine, process, store = await opened()
    engine.make_final()
    await process.fence.read()

    with pytest.raises(StoreUnavailable, match="about to be replaced: nothing was written") as raised:
        await process.write(store)

    assert raised.value.retry_after_s > 0
    assert 5.0 <= engine.now_s < 6.0
    assert await store.query(SETTINGS.alias, {}) == [{"id": SOURCE}]


async def write_as_it_becomes_final(*then: tuple[float, str], by: str = "upsert") -> Engine:
    """Write for a second, in which the move becomes final; after that the operator does what is given, at its times."""
    engine, process, store = await opened(takes_s=1.0)
    engine.announce()
    await process.fence.read()
    engine.due = [(0.5, engine.make_final), *((at_s, getattr(engine, what)) for at_s, what in then)]
    if by == "upsert":
        await process.write(store)
    else:
        await store.batch(SETTINGS.alias, [{}])
    return engine


async def test_a_write_that_was_under_way_when_a_move_became_final_counts_where_it_is_carried_over() -> None:
    engine = await write_as_it_becomes_final((2.0, "carry"), (3.0, "move"))

    assert engine.points[TARGET] == {"new"}
    assert 3.0 <= engine.now_s < 4.0


async def test_one_that_the_last_pass_missed_counts_where_it_is_carried_later() -> None:
    engine = await write_as_it_becomes_final((2.0, "move"), (4.0, "carry"))

    assert 4.0 <= engine.now_s < 5.0


@pytest.mark.parametrize("by", ["upsert", "batch"])
async def test_one_that_is_not_seen_to_be_carried_may_have_been(by: str) -> None:
    carried: list[tuple[float, str]] = [(1.5, "carry")] if by == "batch" else []
    with pytest.raises(OutcomeUnknown, match="was replaced while"):
        await write_as_it_becomes_final(*carried, (2.0, "move"), by=by)


@pytest.mark.parametrize("by", ["upsert", "batch"])
async def test_one_counts_where_the_move_is_given_up(by: str) -> None:
    engine = await write_as_it_becomes_final((2.0, "give_up"), by=by)

    assert engine.writes == 1


async def test_a_move_that_does_not_end_leaves_a_write_that_was_under_way_unknown() -> None:
    with pytest.raises(OutcomeUnknown):
        await write_as_it_becomes_final()


async def test_a_write_whose_collection_cannot_be_told_afterwards_is_not_acknowledged() -> None:
    engine, process, store = await opened(takes_s=LEASE_S + 1)
    engine.is_away = True

    with pytest.raises(OutcomeUnknown, match="cannot be read"):
        await process.write(store)


@pytest.mark.parametrize("is_moved", [True, False])
async def test_a_refusal_is_the_moves_where_there_was_one(is_moved: bool) -> None:
    engine, process, store = await opened(refuses=StoreRejected(400, "expected dim: 16, got 8"))
    engine.live = TARGET if is_moved else SOURCE

    kind = CollectionMoved if is_moved else StoreRejected
    with pytest.raises(kind):
        await store.query(SETTINGS.alias, {})
    with pytest.raises(kind):
        await process.write(store)


async def test_a_refusal_stays_what_it_was_where_nothing_can_be_read() -> None:
    engine, _, store = await opened(refuses=StoreRejected(401, "no"))
    engine.is_away = True

    with pytest.raises(StoreRejected):
        await store.query(SETTINGS.alias, {})


async def test_a_batch_that_is_refused_may_be_written_in_part() -> None:
    engine, _, store = await opened(refuses=StoreRejected(400, "expected dim: 16, got 8"))
    engine.live = TARGET

    with pytest.raises(OutcomeUnknown, match="midway"):
        await store.batch(SETTINGS.alias, [{}, {}])


async def test_vectors_that_are_read_page_by_page_are_all_of_one_space() -> None:
    engine, _, store = await opened()
    await store.scroll(SETTINGS.alias, {"with_vector": True})
    engine.pass_until(LEASE_S + 1)
    engine.live = TARGET

    assert await store.scroll(SETTINGS.alias, {"with_vector": False}) == ([{"id": TARGET}], None)
    with pytest.raises(CollectionMoved):
        await store.scroll(SETTINGS.alias, {"with_vector": True})


async def test_after_a_use_case_has_written_a_move_leaves_its_outcome_unknown() -> None:
    engine, process, store = await opened()
    await process.write(store, "first step")
    engine.pass_until(LEASE_S + 1)
    engine.live = TARGET

    with pytest.raises(OutcomeUnknown, match="midway"):
        await process.write(store, "second step")

    with pytest.raises(CollectionMoved):
        await process.write(await stale(process), "another use case")


async def stale(process: Process) -> FencedStore:
    """Return a store that was opened before the alias moved."""
    return FencedStore(process.engine, process.fence, ("", ("openai", "m", 8), "Cosine"))  # type: ignore[arg-type]


async def test_what_has_not_written_yet_may_begin_anew_wherever_it_is() -> None:
    engine, process, store = await opened()
    engine.pass_until(LEASE_S + 1)
    engine.live = TARGET

    with pytest.raises(CollectionMoved), midway():
        await process.write(store)


async def test_a_use_case_is_run_once_more_with_the_agent_opened_again() -> None:
    engine, process, _ = await opened()
    engine.pass_until(LEASE_S + 1)
    engine.live = TARGET

    async def remember() -> str:
        await process.write(await process.open())
        return "stored"

    assert await again_if_moved(remember) == "stored"
    assert engine.points == {SOURCE: set(), TARGET: {"new"}}


async def test_readings_at_one_time_are_one_and_none_that_had_begun_before() -> None:
    engine, process, _ = await opened()
    running = asyncio.create_task(process.fence.read())
    await asyncio.sleep(0)

    told = await asyncio.gather(*(process.fence.read() for _ in range(20)))

    assert len(told) == 20
    assert engine.described == 1 + 1 + 1
    assert (await running).epoch == ""


async def test_one_who_is_cancelled_takes_no_reading_along() -> None:
    _, process, _ = await opened()
    first, second = asyncio.create_task(process.fence.read()), asyncio.create_task(process.fence.read())
    await asyncio.sleep(0)
    first.cancel()

    assert (await second).epoch == ""
