"""Re-encryption of memories: kills at any call, concurrent writes, and concurrent destruction of keys."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentmemory_operator.ports.base import Json
from agentmemory_operator.zones import reencryption_walks as module
from agentmemory_operator.zones.keyring import AgentKeys, Keyring
from agentmemory_operator.zones.reencryption_walks import ResealWalks, SealedPoints
from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.rules.sealing import is_locked
from agentmemory_operator.zones.sealed_store import EncryptingPointStore, ZoneKeys
from tests.support.engine.fakes import FakeClock
from tests.support.engine.interleaved_store import Event, InterleavedStore, Moment, ProcessKilled, writes
from tests.support.engine.point_memory import PointMemory
from tests.support.zones import RING, FakeKeyShards, FakeWrapping

OWNERS = ("ada", "bob", "eve")


@dataclass(slots=True)
class Life:
    """Lifetime of a process that is killed at one of its calls, counted from 0."""

    ends_at: int
    moment: Moment
    calls: int = 0

    def over(self, other: object) -> Any:
        """Wrap an object so that calls pass until the process is killed."""
        return _Mortal(other, self)


class _Mortal:
    def __init__(self, other: object, life: Life) -> None:
        self._other, self._life = other, life

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **more: Any) -> Any:
            number, self._life.calls = self._life.calls, self._life.calls + 1
            if number == self._life.ends_at and self._life.moment == "before":
                raise ProcessKilled
            answer = await getattr(self._other, name)(*arguments, **more)
            if number == self._life.ends_at:
                raise ProcessKilled
            return answer

        return call


@dataclass(slots=True)
class World:
    """The points and keys of one agent, used by one process after another."""

    points: PointMemory = field(default_factory=PointMemory)
    shards: FakeKeyShards = field(default_factory=FakeKeyShards)
    wrapping: FakeWrapping = field(default_factory=FakeWrapping)
    clock: FakeClock = field(default_factory=FakeClock)
    before_ms: int = 0
    texts: dict[str, str] = field(default_factory=dict)

    def keys(self, shards: Any = None) -> ZoneKeys:
        """Return the keys as a new process opens them."""
        keyring = Keyring(shards or self.shards, self.clock)
        return ZoneKeys(
            keyring, AgentKeys(RING, self.wrapping, self._has_sealed, rotate_before_ms=self.before_ms), "bot", "acme"
        )

    async def _has_sealed(self) -> bool:
        return bool(self.points.payloads)

    async def store(self, memory_id: str, text: str, *, owner: str, rev: int = 1) -> None:
        payload = {"id": memory_id, "userId": owner, "zone": "PERSONAL", "content": text, "rev": rev, "updatedAt": 1}
        point = {"id": memory_id, "vector": {"": [1.0, 2.0]}, "payload": payload}
        await EncryptingPointStore(self.points, self.keys()).upsert("c", [point])  # type: ignore[arg-type]
        self.texts[memory_id] = text

    async def filled(self, count: int = 5) -> "World":
        """Store memories and request the rotation of all keys."""
        for number in range(count):
            await self.store(f"m{number}", f"text {number}", owner=OWNERS[number % 3])
        self.clock.move(ms=1000)
        self.before_ms = self.clock.now_ms()
        return self

    def reached(self, points: Any = None, shards: Any = None, most: int | None = 2) -> SealedPoints:
        return SealedPoints(points or self.points, "c", self.keys(shards), max_page_size=most)

    async def go_on(self, points: Any = None, shards: Any = None) -> int:
        """Advance the walk in a new process; return the number of memories it encrypted."""
        return await ResealWalks().advance(self.reached(points, shards), self.clock.now_ms())

    async def read(self) -> dict[str, str | None]:
        """Read every memory in a new process; None for a locked one."""
        found = await EncryptingPointStore(self.points, self.keys()).retrieve("c", [*self.texts])  # type: ignore[arg-type]
        rows = [point["payload"] for point in found]
        return {row["id"]: None if is_locked(row) else row["content"] for row in rows}

    def sealed_before(self) -> set[str]:
        """Return the ids of memories encrypted with older keys."""
        return {id_ for id_, row in self.points.payloads.items() if row["keyMadeAt"] < self.before_ms}


async def test_walk_reencrypts_all_pages_once() -> None:
    world = await World().filled()
    vectors, keys = dict(world.points.vectors), world.shards.texts[RING, "0"]

    assert await world.go_on() == 5
    assert await world.go_on() == 0

    assert world.sealed_before() == set()
    assert await world.read() == world.texts
    assert world.points.vectors == vectors
    assert {row["rev"] for row in world.points.payloads.values()} == {2}
    assert {row["updatedAt"] for row in world.points.payloads.values()} == {world.clock.now_ms()}
    assert keys.count("PERSONAL") * 2 == world.shards.texts[RING, "0"].count("PERSONAL")


class Batches(PointMemory):
    """Answers each query of a batch with all points."""

    async def query_batch(self, collection: str, bodies: Sequence[Json]) -> list[list[Json]]:
        return [await self.retrieve(collection, [*self.payloads]) for _ in bodies]


async def test_each_query_of_a_batch_excludes_its_own_keys() -> None:
    world = World(points=Batches())
    await world.store("m0", "text", owner="ada")
    store = EncryptingPointStore(world.points, world.keys())  # type: ignore[arg-type]
    selections: list[Any] = [True, {"exclude": ["content"]}, {"exclude": ["rev"]}]

    results = await store.query_batch("c", [{"with_payload": selection} for selection in selections])

    payloads = [point["payload"] for [point] in results]
    assert [("content" in payload, "rev" in payload) for payload in payloads] == [
        (True, True),
        (False, True),
        (True, False),
    ]


async def test_walk_without_rotation_reads_nothing() -> None:
    world = World()
    await world.store("m0", "text", owner="ada")
    life = Life(0, "before")

    assert await world.go_on(points=life.over(world.points)) == 0
    world.before_ms = world.clock.now_ms() + 1
    assert await world.go_on(points=life.over(world.points)) == 0
    assert life.calls == 0


async def test_each_call_advances_a_bounded_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAGES_PER_CALL", 2)
    world = await World().filled(9)
    walks, reached = ResealWalks(), world.reached()

    done = [await walks.advance(reached, world.clock.now_ms()) for _ in range(4)]

    assert done == [4, 4, 1, 0]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_kill_at_any_call_leaves_all_readable(moment: Moment) -> None:
    """Another process then completes the walk."""

    for number in range(100):
        world = await World().filled()
        life = Life(number, moment)
        try:
            await world.go_on(life.over(world.points), life.over(world.shards))
        except ProcessKilled:
            assert await world.read() == world.texts
            await world.go_on()
        assert await world.read() == world.texts
        assert world.sealed_before() == set()
        shard = await world.shards.read(RING, "0")
        active = [entry.scope for entry in shard.entries.values() if entry.is_active]
        assert len(active) == len(set(active)) == len(shard.entries) // 2 == 3
        if life.calls <= number:
            assert number > 10
            return
    raise AssertionError("a walk through five memories takes a hundred calls")


async def test_concurrent_write_is_kept() -> None:
    world = await World().filled()
    event = Event(at=writes, act=lambda: world.store("m0", "changed", owner="ada", rev=2))

    await world.go_on(points=InterleavedStore(world.points, event))

    assert await world.read() == world.texts
    assert world.texts["m0"] == "changed"
    assert world.sealed_before() == set()


@pytest.mark.parametrize("after", [False, True])
async def test_concurrently_destroyed_key_stays_destroyed(after: bool) -> None:
    world = await World().filled()
    event = Event(at=writes, act=lambda: world.keys().destroy("ada", ["PERSONAL"]), after=after)

    await world.go_on(points=InterleavedStore(world.points, event))
    await world.go_on()

    found = await world.read()
    assert {memory_id for memory_id, text in found.items() if text is None} == {"m0", "m3"}
    assert world.shards.texts[RING, "0"].count("PERSONAL") == 4


async def test_concurrent_walks_write_each_memory_once() -> None:
    world = await World().filled(20)

    await asyncio.gather(*(world.go_on() for _ in range(4)))

    assert {row["rev"] for row in world.points.payloads.values()} == {2}
    assert await world.read() == world.texts


async def test_lost_shard_pauses_the_walk_without_writes() -> None:
    world = await World().filled()
    payloads = {id_: dict(row) for id_, row in world.points.payloads.items()}
    kept = world.shards.texts.pop((RING, "0")), world.shards.versions.pop((RING, "0"))
    walks, reached = ResealWalks(), world.reached()

    # Each call finds one page of two memories, all locked.
    assert [await walks.advance(reached, world.clock.now_ms()) for _ in range(4)] == [0, 0, 0, 0]
    assert world.points.payloads == payloads
    world.shards.texts[RING, "0"], world.shards.versions[RING, "0"] = kept
    assert await walks.advance(reached, world.clock.now_ms()) == 0
    assert await walks.advance(reached, world.clock.now_ms() + module.PAUSE_AFTER_FAILURE_MS) == 5
    assert await world.read() == world.texts


async def test_stored_walks_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WALKS", 1)
    world = await World().filled()
    walks = ResealWalks()
    walks._walks[Ring("agents", "another")] = module._Walk(1)

    assert await walks.advance(world.reached(), world.clock.now_ms()) == 5
    assert [*walks._walks] == [RING]
