"""An empty collection is rebuilt unasked, and only while it is empty: seen where writers wait, not in a status."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import NoReturn

import pytest

from agentmemory_operator.adapters.qdrant import collections as qdrant_collections
from agentmemory_operator.adapters.qdrant.configuration import observed_from
from agentmemory_operator.collections.rules.announcement import MOVING_KEY, Phase
from agentmemory_operator.errors import RebuildPaused
from tests.support.job.rebuild_world import TIMEOUT_S, FullWorld
from tests.support.spec.documents import connection_document


class EmptyWorld(FullWorld):
    """An agent without memories whose object asks for a Rebuild that nobody approved, and somebody who writes.

    Attributes:
        writes_at: the moment of the operator at which a memory is stored; 0 is never.
        writes_held: the same, of those at which writers are held: the API would not acknowledge it.
        has_come: whether it was stored.
    """

    writes_at = writes_held = 0
    has_come = False

    async def begin_empty(self) -> None:
        self.table.put(connection_document(url=self.url, timeoutSeconds=TIMEOUT_S))
        await self.create_agent(0)
        self.change(index={"distance": "Dot"})
        self.calls = 0

    def _moment(self) -> None:
        super()._moment()
        if self.writes_held and self.is_final():
            self.writes_held -= 1
            self.writes_at = 0 if self.writes_held else self.calls
        if self.calls == self.writes_at:
            self.come()

    def is_final(self) -> bool:
        moving = self.metadata(self.physical).get(MOVING_KEY) or {}
        return moving.get("phase") == Phase.FINAL

    def come(self) -> None:
        self.has_come = True
        self.put(1, content="stored", rev=1)

    def assert_untouched(self) -> None:
        """Nothing was moved, nothing is left of what was begun, and nobody is held."""
        assert self.aliases() == {self.alias: self.physical}
        assert self.collections() == [self.physical]
        assert MOVING_KEY not in self.metadata(self.physical)

    def assert_moved(self) -> None:
        assert self.aliases() == {self.alias: f"{self.alias}__2"}
        assert self.rebuild_status["state"] == "Done"


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[EmptyWorld]:
    made = EmptyWorld(qdrant_url)
    await made.begin_empty()
    yield made
    await made.close()


async def test_nobody_has_to_approve_it(world: EmptyWorld) -> None:
    await world.rebuild()

    world.assert_moved()
    assert world.count() == 0


async def test_where_callers_send_the_vectors_no_embedder_is_needed(world: EmptyWorld) -> None:
    world.change(embedding={"provider": "none", "dimensions": 16})

    await world.rebuild()

    world.assert_moved()


async def test_what_cannot_begin_asks_for_no_pass_after_the_first(
    world: EmptyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def missing(*_: object) -> NoReturn:
        raise RebuildPaused("the Secret is not there")

    monkeypatch.setattr(world.rebuilds, "open_embedder", missing)
    world.change(embedding={"provider": "openai", "model": "m", "dimensions": 16})

    await world.rebuilds.run(world.memory)
    first = list(world.requested)
    await world.rebuilds.run(world.memory)

    assert world.rebuild_status["state"] == "Paused"
    assert (len(first), world.requested) == (1, first)


@pytest.mark.parametrize("spec", [{"changePolicy": "Never"}, {"index": {}}])
async def test_what_is_not_to_be_made_is_not(world: EmptyWorld, spec: dict[str, object]) -> None:
    world.change(**spec)

    await world.rebuild()

    world.assert_untouched()


async def test_one_tombstone_is_not_nothing(world: EmptyWorld) -> None:
    world.put(1, deletedAt=world.clock.now_ms(), rev=2)

    await world.rebuild()

    world.assert_untouched()


async def test_a_collection_that_tells_of_no_points_and_holds_some_is_held(
    world: EmptyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.come()
    # The number that Qdrant tells of a collection is an estimate.
    monkeypatch.setattr(qdrant_collections, "observed_from", lambda *a, **b: replace(observed_from(*a, **b), points=0))

    await world.rebuild()

    world.assert_untouched()


async def test_whenever_somebody_writes_it_is_held_again_or_carried_over(qdrant_url: str) -> None:
    moment, outcomes = -5, set[bool]()
    while True:
        moment += 9
        world = EmptyWorld(qdrant_url)
        await world.begin_empty()
        world.writes_at = moment

        await world.rebuild()

        has_come, is_moved = world.has_come, world.aliases()[world.alias] != world.physical
        if has_come:
            assert world.rows()[1]["content"] == "stored"
            (world.assert_moved if is_moved else world.assert_untouched)()
            outcomes.add(is_moved)
        await world.close()
        if not has_come:
            break
    assert set(outcomes) == {True, False}


@pytest.mark.parametrize(("held", "is_moved"), [(1, False), (2, True)])
async def test_a_write_while_writers_are_held_is_seen_or_carried_over(
    world: EmptyWorld, held: int, is_moved: bool
) -> None:
    # The first moment is right before it is looked whether the collection is empty, the second right before the move.
    world.writes_held = held

    await world.rebuild()

    assert world.has_come
    assert world.rows()[1]["content"] == "stored"
    (world.assert_moved if is_moved else world.assert_untouched)()


async def test_killed_anywhere_and_written_to_then_it_is_held_again_or_gone_on_with(qdrant_url: str) -> None:
    moment, outcomes = -1, list[bool]()
    while True:
        moment += 11
        world = EmptyWorld(qdrant_url)
        await world.begin_empty()

        def come(world: EmptyWorld = world) -> None:
            outcomes.append(world.aliases()[world.alias] != world.physical)
            world.come()

        was_killed = await world.rebuild_killed_at(moment, come)
        if world.has_come:
            assert world.rows()[1]["content"] == "stored"
            (world.assert_moved if outcomes[-1] else world.assert_untouched)()
        await world.close()
        if not was_killed:
            break
    assert set(outcomes) == {True, False}


async def test_killed_anywhere_and_left_empty_it_is_gone_on_with(qdrant_url: str) -> None:
    moment = -1
    while True:
        moment += 17
        world = EmptyWorld(qdrant_url)
        await world.begin_empty()
        was_killed = await world.rebuild_killed_at(moment)

        world.assert_moved()
        await world.close()
        if not was_killed:
            break
