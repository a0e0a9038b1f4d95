"""No acknowledged write is missed by the last pass of a move, and no search is answered from another space.

The operator's side is a list of what it does when. Every call takes its time, and what the operator does meanwhile
happens at the call's beginning, or before its end.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from agentmemory_operator.agents.collection_facts import CollectionFacts, read_facts
from agentmemory_operator.agents.fence import Fence, FenceTiming
from agentmemory_operator.agents.fenced_store import FencedStore, retry_if_moved
from agentmemory_operator.collections.rules.announcement import ANNOUNCE_S, LEASE_S, MOVING_KEY
from agentmemory_operator.collections.rules.collection import embedding_from_json
from agentmemory_operator.collections.rules.epochs import Epoch, closed_to_json, epoch_to_json
from agentmemory_operator.collections.rules.rebuild_record import REBUILD_KEY, RebuildRecord, record_to_json
from agentmemory_operator.errors import (
    AgentClosed,
    AgentMemoryError,
    CollectionMoved,
    OutcomeUnknown,
    StoreRejected,
    StoreUnavailable,
)
from agentmemory_operator.memories.chains import outcome_unknown_on_failure
from tests.support.engine.agents import settings_of
from tests.support.engine.fakes import START_MS, FakeClock
from tests.support.spec.documents import cluster_id, marker_for

SETTINGS = settings_of("bot")
SOURCE, TARGET = "agent_memory_bot__1", "agent_memory_bot__2"
MOVING = {"from": SOURCE, "to": TARGET}
ANNOUNCED: dict[str, Any] = MOVING | {"phase": "Announced", "carries": False}
MOVED_S = 17.5
EMBEDDING = {"provider": "openai", "model": "m", "dimensions": 8}
BEFORE = CollectionFacts(
    source=embedding_from_json(EMBEDDING), keyword=None, distance="Cosine", origin=None, epoch=" of ", allows_exact=True
)


@dataclass(slots=True)
class TwoCollections:
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
    moving: dict[str, Any] | None = None
    described: int = 0
    owner: dict[str, str] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
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
        record = RebuildRecord(source=SOURCE, target=TARGET, digest="", begun_ms=0, since_ms=0)
        own = {MOVING_KEY: self.moving} if self.live == SOURCE else {REBUILD_KEY: record_to_json(record)}
        self.pass_until(self.now_s + self.describe_takes_s / 2)
        # The same provider, model and size: nothing but the epoch tells them apart.
        marker = marker_for("bot", embedding=EMBEDDING) | self.owner
        metadata = {"agentmemory": marker, **own, **self.more}
        return {"config": {"metadata": metadata, "params": {"vectors": {"size": 8, "distance": "Cosine"}}}}

    async def upsert(self, collection: str, points: list[Any], **how: Any) -> None:
        live = self._call()
        self.writes += 1
        self.points[live] |= {point["id"] for point in points}

    async def batch(self, collection: str, operations: list[Any], **how: Any) -> None:
        await self.upsert(collection, [{"id": str(number)} for number, _ in enumerate(operations)])

    async def retrieve(self, collection: str, ids: list[str], *, keys: Any = None, vectors: bool = False) -> list[Any]:
        self.pass_until(self.now_s + self.describe_takes_s)
        return [{"id": id_, "payload": {"rev": 1}} for id_ in ids if id_ in self.points[self.live]]

    async def query(self, collection: str, body: Any) -> list[Any]:
        return [{"id": self._call()}]

    async def scroll(self, collection: str, body: Any) -> tuple[list[Any], Any]:
        return [{"id": self._call()}], None

    async def count(self, collection: str, filter_: Any, *, exact: bool = True) -> int:
        self._call()
        return 1

    async def facet(self, collection: str, key: str, filter_: Any, *, limit: int) -> dict[str, int]:
        return {self._call(): 1}

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

    engine: TwoCollections
    fence: Fence = field(init=False)

    def __post_init__(self) -> None:
        async def read() -> Any:
            return await read_facts(self.engine, SETTINGS, cluster_id)  # type: ignore[arg-type]

        times = FenceTiming(now_s=lambda: self.engine.now_s, poll_s=0)
        self.fence = Fence("bot", read, times)

    async def open(self) -> FencedStore:
        facts = self.fence.facts or await self.fence.read()
        return FencedStore(self.engine, self.fence, facts, clock=FakeClock(), write_s=60)  # type: ignore[arg-type]

    async def write(self, store: FencedStore, memory_id: str = "new") -> None:
        await store.upsert(SETTINGS.alias, [{"id": memory_id, "payload": {"rev": 1}}])


Timing = tuple[float, float, float, bool]


async def opened(**how: Any) -> tuple[TwoCollections, Process, FencedStore]:
    engine = TwoCollections(**how)
    process = Process(engine)
    return engine, process, await process.open()


async def opened_about_to_move(timing: Timing, known_s: float) -> tuple[TwoCollections, Process, FencedStore]:
    """Open an agent whose process last read the metadata at a time, right before a call that begins."""
    begin_s, takes_s, describe_takes_s, applies_late = timing
    engine, process, store = await opened(takes_s=takes_s, describe_takes_s=describe_takes_s, applies_late=applies_late)
    engine.plan_move()
    engine.pass_until(known_s)
    await process.fence.read()
    engine.pass_until(begin_s)
    return engine, process, store


def timings() -> Iterator[Timing]:
    """Yield begin and length of a call, the length of a reading, and when the call takes effect.

    The move is announced at 10, final at 17 and done at 17.5; the process read the metadata at 0 or shortly before 10.
    """
    begins = [place / 4 for place in range(4, 84, 3)]
    yield from product(begins, (0.0, 0.3, 2.0, 6.9, 9.0), (0.01, 0.4), (False, True))


@pytest.mark.parametrize("known_s", [0.0, 9.8, 12.0, 16.9])
async def test_an_acknowledged_write_is_in_the_target_and_a_refused_one_nowhere(known_s: float) -> None:
    outcomes: Counter[str] = Counter()
    for timing in timings():
        engine, process, store = await opened_about_to_move(timing, known_s)
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
        assert "new" in engine.points[TARGET], timing

    assert min(outcomes[kind] for kind in ("acknowledged", "moved", "unknown")) > 20, outcomes


@pytest.mark.parametrize("known_s", [0.0, 9.8, 12.0, 16.9])
async def test_a_search_is_answered_by_the_collection_that_it_was_made_for_or_moved(known_s: float) -> None:
    outcomes: Counter[str] = Counter()
    for timing in timings():
        engine, _, store = await opened_about_to_move(timing, known_s)
        try:
            [found] = await store.query(SETTINGS.alias, {})
        except CollectionMoved:
            outcomes["moved"] += 1
            assert engine.live == TARGET
            continue
        outcomes["answered"] += 1
        assert found["id"] == SOURCE, timing

    assert min(outcomes[kind] for kind in ("answered", "moved")) > 20, outcomes


async def test_what_ends_within_the_lease_of_a_quiet_reading_reads_nothing_more() -> None:
    engine, process, store = await opened(takes_s=LEASE_S - 0.1)

    await process.write(store)

    assert engine.described == 1


async def test_a_lease_holds_to_its_very_end() -> None:
    engine, _, store = await opened(takes_s=1.0)
    engine.pass_until(LEASE_S - 1.0)

    await store.query(SETTINGS.alias, {})

    assert (engine.now_s, engine.described) == (LEASE_S, 1)


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

    with pytest.raises(StoreUnavailable, match="being replaced: nothing was written") as raised:
        await process.write(store)

    assert raised.value.retry_after_s > 0
    assert 5.0 <= engine.now_s < 6.0
    assert await store.query(SETTINGS.alias, {}) == [{"id": SOURCE}]


async def write_as_it_becomes_final(*then: tuple[float, str], by: str = "upsert") -> TwoCollections:
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


async def test_a_point_that_counts_no_changes_is_carried_once_it_is_there() -> None:
    class Uncounted(TwoCollections):
        async def retrieve(self, *args: Any, **how: Any) -> list[Any]:
            return [{"id": point["id"], "payload": {}} for point in await super().retrieve(*args, **how)]

    engine = Uncounted(takes_s=1.0)
    process = Process(engine)
    store = await process.open()
    engine.announce()
    await process.fence.read()
    engine.due = [(0.5, engine.make_final), (2.0, engine.move), (4.0, engine.carry)]

    await store.upsert(SETTINGS.alias, [{"id": "new", "payload": {}}])

    assert 4.0 <= engine.now_s < 5.0


async def test_a_write_waits_for_as_many_replicas_as_its_caller_wants() -> None:
    _, process, _ = await opened()
    sent: list[bool] = []

    async def note(*args: Any, strong: bool = False, **how: Any) -> None:
        sent.append(strong)

    engine: Any = SimpleNamespace(upsert=note, set_payload=note, batch=note)
    store = FencedStore(engine, process.fence, await process.fence.read(), clock=FakeClock(), write_s=60)
    for how in ({}, {"strong": True}):
        await store.upsert(SETTINGS.alias, [], **how)
        await store.set_payload(SETTINGS.alias, {}, {}, **how)
        await store.batch(SETTINGS.alias, [], **how)

    assert sent == [False] * 3 + [True] * 3


async def test_a_point_gets_the_time_at_which_it_is_sent() -> None:
    _, process, _ = await opened()
    sent: list[Any] = []

    async def note(collection: str, request: Any, *args: Any, **how: Any) -> None:
        sent.append(request)

    engine: Any = SimpleNamespace(upsert=note, set_payload=note, batch=note, delete=note)
    store = FencedStore(engine, process.fence, await process.fence.read(), clock=FakeClock(), write_s=60)
    prepared, now = {"rev": 1, "updatedAt": START_MS - 30_000}, {"rev": 1, "updatedAt": START_MS}
    later, untimed = {"updatedAt": START_MS + 1}, {"rev": 2}
    await store.upsert(SETTINGS.alias, [{"id": 1, "payload": prepared}, {"id": 2, "payload": untimed}])
    await store.set_payload(SETTINGS.alias, later, {})
    await store.batch(
        SETTINGS.alias,
        [
            {"upsert": {"points": [{"id": 1, "payload": prepared}], "update_mode": "insert_only"}},
            {"set_payload": {"payload": prepared, "filter": {}}},
            {"delete_vectors": {"filter": {}, "vector": []}},
        ],
    )
    await store.delete(SETTINGS.alias, {"must": []})

    assert sent == [
        [{"id": 1, "payload": now}, {"id": 2, "payload": untimed}],
        later,
        [
            {"upsert": {"points": [{"id": 1, "payload": now}], "update_mode": "insert_only"}},
            {"set_payload": {"payload": now, "filter": {}}},
            {"delete_vectors": {"filter": {}, "vector": []}},
        ],
        {"must": []},
    ]


@pytest.mark.parametrize(("takes_s", "is_acknowledged"), [(0.0, True), (59.0, True), (61.0, False)])
async def test_a_write_that_takes_too_long_is_acknowledged_to_nobody(takes_s: float, is_acknowledged: bool) -> None:
    """Readers of the change log go on after that time."""
    engine, process, store = await opened(takes_s=takes_s)

    with nullcontext() if is_acknowledged else pytest.raises(OutcomeUnknown, match="longer than 60 s"):
        await process.write(store)

    assert engine.points[SOURCE] == {"new"}


@pytest.mark.parametrize("by", ["upsert", "batch"])
async def test_one_that_is_not_seen_to_be_carried_may_have_been(by: str) -> None:
    carried: list[tuple[float, str]] = [(1.5, "carry")] if by == "batch" else []
    with pytest.raises(OutcomeUnknown, match="was replaced during"):
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

    with pytest.raises(OutcomeUnknown, match="during the write"):
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

    with pytest.raises(OutcomeUnknown, match="during the write"):
        await process.write(store, "second step")

    with pytest.raises(CollectionMoved):
        await process.write(await stale(process), "another use case")


async def stale(process: Process) -> FencedStore:
    """Return a store that was opened before the alias moved."""
    return FencedStore(process.engine, process.fence, BEFORE, clock=FakeClock(), write_s=60)  # type: ignore[arg-type]


async def test_what_has_not_written_yet_may_begin_anew_wherever_it_is() -> None:
    engine, process, store = await opened()
    engine.pass_until(LEASE_S + 1)
    engine.live = TARGET

    with pytest.raises(CollectionMoved), outcome_unknown_on_failure():
        await process.write(store)


async def test_a_use_case_is_run_once_more_with_the_agent_opened_again() -> None:
    engine, process, _ = await opened()
    engine.pass_until(LEASE_S + 1)
    engine.live = TARGET

    async def remember() -> str:
        await process.write(await process.open())
        return "stored"

    assert await retry_if_moved(remember) == "stored"
    assert engine.points == {SOURCE: set(), TARGET: {"new"}}


async def test_readings_at_one_time_are_one_and_none_that_had_begun_before() -> None:
    engine, process, _ = await opened()
    running = asyncio.create_task(process.fence.read())
    await asyncio.sleep(0)

    told = await asyncio.gather(*(process.fence.read() for _ in range(20)))

    assert len(told) == 20
    assert engine.described == 1 + 1 + 1
    assert (await running).space == BEFORE.space


async def test_one_who_is_cancelled_takes_no_reading_along() -> None:
    _, process, _ = await opened()
    first, second = asyncio.create_task(process.fence.read()), asyncio.create_task(process.fence.read())
    await asyncio.sleep(0)
    first.cancel()

    assert (await second).space == BEFORE.space


async def test_a_lease_is_counted_from_the_beginning_of_its_reading() -> None:
    engine = TwoCollections(describe_takes_s=2.0)
    process = Process(engine)
    store = await process.open()
    engine.pass_until(LEASE_S - 0.1)
    await READS["query"](store)
    assert engine.described == 1

    engine.pass_until(LEASE_S + 0.1)
    await READS["query"](store)

    assert engine.described == 2


async def test_what_was_seen_to_be_closed_is_not_served_as_the_snapshot_brings_it_back() -> None:
    engine, process, store = await opened()
    engine.pass_until(LEASE_S + 1)
    engine.more = closed_to_json("agents/undo", None, 7)
    with pytest.raises(AgentClosed):
        await process.write(store)

    engine.more = epoch_to_json(Epoch(number=6, contents=6))
    for read in READS.values():
        with pytest.raises(AgentClosed):
            await read(store)
    with pytest.raises(AgentClosed):
        await process.open()

    engine.more = epoch_to_json(Epoch(number=7, contents=7))
    with pytest.raises(CollectionMoved):
        await READS["count"](store)
    await process.write(await process.open())
    assert engine.writes == 1


async def test_a_write_that_meets_the_closing_is_of_unknown_outcome_and_so_is_what_follows_it() -> None:
    engine, process, store = await opened()
    engine.pass_until(LEASE_S + 1)
    engine.takes_s, engine.moving = 1.0, ANNOUNCED
    engine.due = [(engine.now_s + 0.5, lambda: setattr(engine, "more", closed_to_json("agents/undo", None, 7)))]

    with pytest.raises(OutcomeUnknown):
        await process.write(store)
    with pytest.raises(OutcomeUnknown):
        await process.write(store)
    with pytest.raises(OutcomeUnknown):
        await READS["retrieve"](store)


async def test_a_look_while_other_contents_are_announced_is_followed_by_a_reading() -> None:
    engine, _, store = await opened()
    engine.pass_until(engine.now_s + LEASE_S)
    engine.moving = ANNOUNCED

    for number in range(1, 3):
        engine.pass_until(engine.now_s + 0.5)
        await READS["count"](store)
        assert engine.described >= 1 + number


async def test_nothing_that_a_restore_leaves_behind_is_looked_for_where_it_leads() -> None:
    """A row of that id may lie there, of another time."""
    engine, process, store = await opened()
    engine.points[TARGET] = {"new"}
    engine.takes_s, engine.now_s, engine.moving = 1.0, engine.now_s + LEASE_S + 1, ANNOUNCED
    final = ANNOUNCED | {"phase": "Final"}
    engine.due = [
        (engine.now_s + 0.5, lambda: setattr(engine, "moving", final)),
        (engine.now_s + 1.2, engine.move),
    ]

    with pytest.raises(OutcomeUnknown):
        await process.write(store)


READS: dict[str, Callable[[FencedStore], Any]] = {
    "retrieve": lambda store: store.retrieve(SETTINGS.alias, ["a"]),
    "scroll": lambda store: store.scroll(SETTINGS.alias, {}),
    "count": lambda store: store.count(SETTINGS.alias, None),
    "facet": lambda store: store.facet(SETTINGS.alias, "type", {}, limit=1),
    "query": lambda store: store.query(SETTINGS.alias, {}),
}


@pytest.mark.parametrize("name", READS)
async def test_nothing_is_answered_of_a_collection_that_has_become_another_owners(name: str) -> None:
    engine, process, store = await opened()
    await READS[name](store)
    engine.owner = {"clusterId": "another"}
    engine.pass_until(engine.now_s + LEASE_S + 1)

    with pytest.raises(StoreUnavailable, match="Ready condition"):
        await READS[name](store)

    # What was opened is not used again, until the collection is the agent's once more.
    assert process.fence.facts is None
    engine.owner = {}
    await (await process.open()).count(SETTINGS.alias, None)


async def test_nothing_is_written_to_a_collection_that_has_become_another_owners() -> None:
    engine, process, store = await opened()
    engine.owner = {"name": ""}
    engine.pass_until(engine.now_s + LEASE_S + 1)

    with pytest.raises(StoreUnavailable, match="Ready condition"):
        await process.write(store)

    assert engine.writes == 0


async def test_after_a_write_a_reading_of_what_is_another_owners_now_leaves_its_outcome_unknown() -> None:
    engine, process, store = await opened()
    await process.write(store)
    engine.owner = {"namespace": "elsewhere"}
    engine.pass_until(engine.now_s + LEASE_S + 1)

    with pytest.raises(OutcomeUnknown, match="the write succeeded"):
        await store.count(SETTINGS.alias, None)
