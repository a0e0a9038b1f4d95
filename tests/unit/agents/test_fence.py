"""Fence and FencedStore while an alias moves: no acknowledged write is lost, no search mixes vector spaces.

The operator is a list of timed actions. Every call takes some time; actions due in that time run when the call
starts or before it ends.
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
    """Two collections behind one alias. Its calls take time, in which due actions of the operator run.

    Attributes:
        takes_s: Duration of a write or search.
        applies_late: True if a call takes effect at its end, not at its start.
        refuses: Error that a write or search raises.
        is_away: True if metadata cannot be read.
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
        """Announce at 10, copy and move; copy late points a second after that."""
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
        record = RebuildRecord(source=SOURCE, target=TARGET, digest="", started_ms=0, since_ms=0)
        own = {MOVING_KEY: self.moving} if self.live == SOURCE else {REBUILD_KEY: record_to_json(record)}
        self.pass_until(self.now_s + self.describe_takes_s / 2)
        # The provider, model and size are the same in both collections: only the epoch differs.
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

    async def query_batch(self, collection: str, bodies: list[Any]) -> list[list[Any]]:
        live = self._call()
        return [[{"id": live}] for _ in bodies]

    async def scroll(self, collection: str, body: Any) -> tuple[list[Any], Any]:
        return [{"id": self._call()}], None

    async def count(self, collection: str, filter_: Any, *, exact: bool = True) -> int:
        self._call()
        return 1

    async def facet(self, collection: str, key: str, filter_: Any, *, limit: int) -> dict[str, int]:
        return {self._call(): 1}

    def _call(self) -> str:
        """Return the collection that the call used."""
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


async def open_agent(**how: Any) -> tuple[TwoCollections, Process, FencedStore]:
    engine = TwoCollections(**how)
    process = Process(engine)
    return engine, process, await process.open()


async def open_agent_before_move(timing: Timing, known_s: float) -> tuple[TwoCollections, Process, FencedStore]:
    """Open an agent whose process last read the metadata at a time, right before a call that begins."""
    begin_s, takes_s, describe_takes_s, applies_late = timing
    engine, process, store = await open_agent(
        takes_s=takes_s, describe_takes_s=describe_takes_s, applies_late=applies_late
    )
    engine.plan_move()
    engine.pass_until(known_s)
    await process.fence.read()
    engine.pass_until(begin_s)
    return engine, process, store


def timings() -> Iterator[Timing]:
    """Yield start and duration of a call, the duration of a metadata read, and when the call takes effect.

    The move is announced at 10, final at 17 and done at 17.5; the process read the metadata at 0 or shortly before 10.
    """
    begins = [place / 4 for place in range(4, 84, 3)]
    yield from product(begins, (0.0, 0.3, 2.0, 6.9, 9.0), (0.01, 0.4), (False, True))


@pytest.mark.parametrize("known_s", [0.0, 9.8, 12.0, 16.9])
async def test_acknowledged_write_reaches_target(known_s: float) -> None:
    """A write answered with CollectionMoved is in neither collection."""

    outcomes: Counter[str] = Counter()
    for timing in timings():
        engine, process, store = await open_agent_before_move(timing, known_s)
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
async def test_search_never_mixes_collections(known_s: float) -> None:
    """A search is answered by the collection it was embedded for, or fails with CollectionMoved."""

    outcomes: Counter[str] = Counter()
    for timing in timings():
        engine, _, store = await open_agent_before_move(timing, known_s)
        try:
            [found] = await store.query(SETTINGS.alias, {})
        except CollectionMoved:
            outcomes["moved"] += 1
            assert engine.live == TARGET
            continue
        outcomes["answered"] += 1
        assert found["id"] == SOURCE, timing

    assert min(outcomes[kind] for kind in ("answered", "moved")) > 20, outcomes


async def test_lease_covers_call_without_new_read() -> None:
    engine, process, store = await open_agent(takes_s=LEASE_S - 0.1)

    await process.write(store)

    assert engine.described == 1


async def test_lease_includes_its_end() -> None:
    engine, _, store = await open_agent(takes_s=1.0)
    engine.pass_until(LEASE_S - 1.0)

    await store.query(SETTINGS.alias, {})

    assert (engine.now_s, engine.described) == (LEASE_S, 1)


@pytest.mark.parametrize("ends_s", [LEASE_S + 1.0, ANNOUNCE_S + 1.0])
async def test_call_beyond_lease_reads_once_more(ends_s: float) -> None:
    engine, _, store = await open_agent(takes_s=ends_s)

    assert await store.query(SETTINGS.alias, {}) == [{"id": SOURCE}]
    assert engine.described == 2


async def test_announced_move_checks_every_call() -> None:
    """Writes and searches succeed while a move is announced; metadata is read after each."""

    engine, process, store = await open_agent()
    engine.announce()
    await process.fence.read()

    await process.write(store)
    await store.query(SETTINGS.alias, {})

    assert engine.points[SOURCE] == {"new"}
    assert engine.described == 5, "one read before the write, one after it, one after the search"


async def test_write_waits_for_final_move_and_is_rejected() -> None:
    engine, process, store = await open_agent()
    engine.make_final()
    await process.fence.read()
    engine.due = [(2.0, engine.move)]

    with pytest.raises(CollectionMoved):
        await process.write(store)

    assert engine.writes == 0


async def test_write_proceeds_after_abandoned_move() -> None:
    engine, process, store = await open_agent()
    engine.make_final()
    await process.fence.read()
    engine.due = [(2.0, engine.give_up)]

    await process.write(store)

    assert engine.points[SOURCE] == {"new"}


async def test_stuck_move_fails_writes_not_searches() -> None:
    engine, process, store = await open_agent()
    engine.make_final()
    await process.fence.read()

    with pytest.raises(StoreUnavailable, match="being replaced: nothing was written") as raised:
        await process.write(store)

    assert raised.value.retry_after_s > 0
    assert 5.0 <= engine.now_s < 6.0
    assert await store.query(SETTINGS.alias, {}) == [{"id": SOURCE}]


async def write_as_it_becomes_final(*then: tuple[float, str], by: str = "upsert") -> TwoCollections:
    """Write for a second, in which the move becomes final; then run the given actions of the operator when due."""
    engine, process, store = await open_agent(takes_s=1.0)
    engine.announce()
    await process.fence.read()
    engine.due = [(0.5, engine.make_final), *((at_s, getattr(engine, what)) for at_s, what in then)]
    if by == "upsert":
        await process.write(store)
    else:
        await store.batch(SETTINGS.alias, [{}])
    return engine


async def test_write_during_final_counts_if_copied() -> None:
    engine = await write_as_it_becomes_final((2.0, "carry"), (3.0, "move"))

    assert engine.points[TARGET] == {"new"}
    assert 3.0 <= engine.now_s < 4.0


async def test_write_missed_by_last_pass_counts_if_copied_later() -> None:
    engine = await write_as_it_becomes_final((2.0, "move"), (4.0, "carry"))

    assert 4.0 <= engine.now_s < 5.0


async def test_point_without_rev_counts_if_it_exists() -> None:
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


async def test_strong_flag_is_passed_through() -> None:
    _, process, _ = await open_agent()
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


async def test_updated_at_is_the_send_time() -> None:
    _, process, _ = await open_agent()
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
async def test_slow_write_is_not_acknowledged(takes_s: float, is_acknowledged: bool) -> None:
    """Readers of the change log do not wait longer than 60 s for a write."""
    engine, process, store = await open_agent(takes_s=takes_s)

    with nullcontext() if is_acknowledged else pytest.raises(OutcomeUnknown, match="longer than 60 s"):
        await process.write(store)

    assert engine.points[SOURCE] == {"new"}


@pytest.mark.parametrize("by", ["upsert", "batch"])
async def test_uncopied_write_has_unknown_outcome(by: str) -> None:
    carried: list[tuple[float, str]] = [(1.5, "carry")] if by == "batch" else []
    with pytest.raises(OutcomeUnknown, match="was replaced during"):
        await write_as_it_becomes_final(*carried, (2.0, "move"), by=by)


@pytest.mark.parametrize("by", ["upsert", "batch"])
async def test_write_counts_if_move_is_abandoned(by: str) -> None:
    engine = await write_as_it_becomes_final((2.0, "give_up"), by=by)

    assert engine.writes == 1


async def test_stuck_move_leaves_write_outcome_unknown() -> None:
    with pytest.raises(OutcomeUnknown):
        await write_as_it_becomes_final()


async def test_unreadable_metadata_leaves_outcome_unknown() -> None:
    engine, process, store = await open_agent(takes_s=LEASE_S + 1)
    engine.is_away = True

    with pytest.raises(OutcomeUnknown, match="cannot be read"):
        await process.write(store)


@pytest.mark.parametrize("is_moved", [True, False])
async def test_rejection_after_move_is_collection_moved(is_moved: bool) -> None:
    engine, process, store = await open_agent(refuses=StoreRejected(400, "expected dim: 16, got 8"))
    engine.live = TARGET if is_moved else SOURCE

    kind = CollectionMoved if is_moved else StoreRejected
    with pytest.raises(kind):
        await store.query(SETTINGS.alias, {})
    with pytest.raises(kind):
        await process.write(store)


async def test_rejection_is_kept_if_metadata_is_unreadable() -> None:
    engine, _, store = await open_agent(refuses=StoreRejected(401, "no"))
    engine.is_away = True

    with pytest.raises(StoreRejected):
        await store.query(SETTINGS.alias, {})


@pytest.mark.parametrize("is_batch", [True, False])
async def test_rejected_part_has_unknown_outcome(is_batch: bool) -> None:
    """Part of a rejected batch, or of an upsert in several requests, may have been written."""
    error = StoreRejected(400, "expected dim: 16, got 8")
    error.is_partial = not is_batch
    engine, process, store = await open_agent(refuses=error)
    engine.live = TARGET

    with pytest.raises(OutcomeUnknown, match="during the write"):
        await (store.batch(SETTINGS.alias, [{}, {}]) if is_batch else process.write(store))


async def test_scroll_with_vectors_stays_in_one_space() -> None:
    engine, _, store = await open_agent()
    await store.scroll(SETTINGS.alias, {"with_vector": True})
    engine.pass_until(LEASE_S + 1)
    engine.live = TARGET

    assert await store.scroll(SETTINGS.alias, {"with_vector": False}) == ([{"id": TARGET}], None)
    with pytest.raises(CollectionMoved):
        await store.scroll(SETTINGS.alias, {"with_vector": True})


@pytest.mark.parametrize(
    "body", [{"query": [0.5]}, {"query": {"fusion": "rrf"}, "prefetch": []}, {"prefetch": []}, {"with_vector": True}]
)
async def test_queries_of_rows_follow_copied_contents(body: dict[str, Any]) -> None:
    """Filters and orders do not depend on vectors: such a batch is answered after a move of the alias, like a scroll.

    A batch with one query that depends on vectors, or returns them, fails.
    """
    engine, _, store = await open_agent()
    rows = [{"filter": {}}, {"filter": {}, "query": {"order_by": {"key": "sessionOrder"}}, "with_vector": False}]
    await store.query_batch(SETTINGS.alias, rows)
    engine.pass_until(LEASE_S + 1)
    engine.live = TARGET

    assert await store.query_batch(SETTINGS.alias, rows) == [[{"id": TARGET}], [{"id": TARGET}]]
    with pytest.raises(CollectionMoved):
        await store.query_batch(SETTINGS.alias, [*rows, body])


async def test_move_after_own_write_is_outcome_unknown() -> None:
    engine, process, store = await open_agent()
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


async def test_move_before_first_write_allows_retry() -> None:
    engine, process, store = await open_agent()
    engine.pass_until(LEASE_S + 1)
    engine.live = TARGET

    with pytest.raises(CollectionMoved), outcome_unknown_on_failure():
        await process.write(store)


async def test_moved_use_case_is_retried_once() -> None:
    engine, process, _ = await open_agent()
    engine.pass_until(LEASE_S + 1)
    engine.live = TARGET

    async def remember() -> str:
        await process.write(await process.open())
        return "stored"

    assert await retry_if_moved(remember) == "stored"
    assert engine.points == {SOURCE: set(), TARGET: {"new"}}


async def test_concurrent_readers_share_a_later_read() -> None:
    engine, process, _ = await open_agent()
    running = asyncio.create_task(process.fence.read())
    await asyncio.sleep(0)

    results = await asyncio.gather(*(process.fence.read() for _ in range(20)))

    assert len(results) == 20
    assert engine.described == 1 + 1 + 1
    assert (await running).space == BEFORE.space


async def test_read_survives_a_cancelled_caller() -> None:
    _, process, _ = await open_agent()
    first, second = asyncio.create_task(process.fence.read()), asyncio.create_task(process.fence.read())
    await asyncio.sleep(0)
    first.cancel()

    assert (await second).space == BEFORE.space


async def test_lease_starts_with_its_read() -> None:
    engine = TwoCollections(describe_takes_s=2.0)
    process = Process(engine)
    store = await process.open()
    engine.pass_until(LEASE_S - 0.1)
    await READS["query"](store)
    assert engine.described == 1

    engine.pass_until(LEASE_S + 0.1)
    await READS["query"](store)

    assert engine.described == 2


async def test_closed_agent_rejects_older_epochs() -> None:
    """A snapshot restores older metadata; it must not reopen an agent that a restore has closed."""

    engine, process, store = await open_agent()
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


async def test_closing_leaves_writes_of_unknown_outcome() -> None:
    engine, process, store = await open_agent()
    engine.pass_until(LEASE_S + 1)
    engine.takes_s, engine.moving = 1.0, ANNOUNCED
    engine.due = [(engine.now_s + 0.5, lambda: setattr(engine, "more", closed_to_json("agents/undo", None, 7)))]

    with pytest.raises(OutcomeUnknown):
        await process.write(store)
    with pytest.raises(OutcomeUnknown):
        await process.write(store)
    with pytest.raises(OutcomeUnknown):
        await READS["retrieve"](store)


async def test_announced_contents_force_a_read_per_call() -> None:
    engine, _, store = await open_agent()
    engine.pass_until(engine.now_s + LEASE_S)
    engine.moving = ANNOUNCED

    for number in range(1, 3):
        engine.pass_until(engine.now_s + 0.5)
        await READS["count"](store)
        assert engine.described >= 1 + number


async def test_restored_target_is_not_searched_for_write() -> None:
    """The target may contain an older row with the same id."""
    engine, process, store = await open_agent()
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
    "query_batch": lambda store: store.query_batch(SETTINGS.alias, [{}]),
}


@pytest.mark.parametrize("name", READS)
async def test_read_fails_after_owner_change(name: str) -> None:
    engine, process, store = await open_agent()
    await READS[name](store)
    engine.owner = {"clusterId": "another"}
    engine.pass_until(engine.now_s + LEASE_S + 1)

    with pytest.raises(StoreUnavailable, match="Ready condition"):
        await READS[name](store)

    # The open store is not used again until the agent owns the collection again.
    assert process.fence.facts is None
    engine.owner = {}
    await (await process.open()).count(SETTINGS.alias, None)


async def test_write_fails_after_owner_change() -> None:
    engine, process, store = await open_agent()
    engine.owner = {"name": ""}
    engine.pass_until(engine.now_s + LEASE_S + 1)

    with pytest.raises(StoreUnavailable, match="Ready condition"):
        await process.write(store)

    assert engine.writes == 0


async def test_owner_change_after_write_is_outcome_unknown() -> None:
    engine, process, store = await open_agent()
    await process.write(store)
    engine.owner = {"namespace": "elsewhere"}
    engine.pass_until(engine.now_s + LEASE_S + 1)

    with pytest.raises(OutcomeUnknown, match="the write succeeded"):
        await store.count(SETTINGS.alias, None)
