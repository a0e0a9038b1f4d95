"""The rebuild of an empty collection, which needs no approval while the collection is empty."""

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
    """An agent without memories whose spec needs an unapproved rebuild, and one writer.

    Attributes:
        write_at_call: Call of the operator at which a memory is stored; 0 for never.
        write_at_paused_call: The same, but counts only the calls while writers are paused.
        has_written: True if the memory was stored.
    """

    write_at_call = write_at_paused_call = 0
    has_written = False

    async def begin_empty(self) -> None:
        self.table.put(connection_document(url=self.url, timeoutSeconds=TIMEOUT_S))
        await self.create_agent(0)
        self.change(index={"distance": "Dot"})
        self.calls = 0

    def _moment(self) -> None:
        super()._moment()
        if self.write_at_paused_call and self.is_final():
            self.write_at_paused_call -= 1
            self.write_at_call = 0 if self.write_at_paused_call else self.calls
        if self.calls == self.write_at_call:
            self.write()

    def is_final(self) -> bool:
        moving = self.metadata(self.physical).get(MOVING_KEY) or {}
        return moving.get("phase") == Phase.FINAL

    def write(self) -> None:
        self.has_written = True
        self.put(1, content="stored", rev=1)

    def assert_untouched(self) -> None:
        """Assert that the alias is unchanged, no target remains and no writer is paused."""
        assert self.aliases() == {self.alias: self.physical}
        assert self.collections() == [self.physical]
        assert MOVING_KEY not in self.metadata(self.physical)

    def assert_moved(self) -> None:
        assert self.aliases() == {self.alias: f"{self.alias}__2"}
        assert self.rebuild_status["state"] == "Done"


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[EmptyWorld]:
    world = EmptyWorld(qdrant_url)
    await world.begin_empty()
    yield world
    await world.close()


async def test_needs_no_approval(world: EmptyWorld) -> None:
    await world.rebuild()

    world.assert_moved()
    assert world.count() == 0


async def test_client_vectors_need_no_embedder(world: EmptyWorld) -> None:
    world.change(embedding={"provider": "none", "dimensions": 16})

    await world.rebuild()

    world.assert_moved()


async def test_blocked_start_requests_one_pass(world: EmptyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_disabled_or_unneeded_rebuild_is_skipped(world: EmptyWorld, spec: dict[str, object]) -> None:
    world.change(**spec)

    await world.rebuild()

    world.assert_untouched()


async def test_tombstone_requires_approval(world: EmptyWorld) -> None:
    world.put(1, deletedAt=world.clock.now_ms(), rev=2)

    await world.rebuild()

    world.assert_untouched()


async def test_points_are_counted_exactly(world: EmptyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of points in the collection info of Qdrant is an estimate."""
    world.write()
    monkeypatch.setattr(qdrant_collections, "observed_from", lambda *a, **b: replace(observed_from(*a, **b), points=0))

    await world.rebuild()

    world.assert_untouched()


async def test_concurrent_write_is_never_lost(qdrant_url: str) -> None:
    moment, outcomes = -5, set[bool]()
    while True:
        moment += 9
        world = EmptyWorld(qdrant_url)
        await world.begin_empty()
        world.write_at_call = moment

        await world.rebuild()

        has_written, is_moved = world.has_written, world.aliases()[world.alias] != world.physical
        if has_written:
            assert world.rows()[1]["content"] == "stored"
            (world.assert_moved if is_moved else world.assert_untouched)()
            outcomes.add(is_moved)
        await world.close()
        if not has_written:
            break
    assert set(outcomes) == {True, False}


@pytest.mark.parametrize(("call", "is_moved"), [(1, False), (2, True)])
async def test_write_during_pause_is_never_lost(world: EmptyWorld, call: int, is_moved: bool) -> None:
    # The first call comes right before the check for emptiness, the second right before the move.
    world.write_at_paused_call = call

    await world.rebuild()

    assert world.has_written
    assert world.rows()[1]["content"] == "stored"
    (world.assert_moved if is_moved else world.assert_untouched)()


async def test_write_after_kill_is_never_lost(qdrant_url: str) -> None:
    moment, outcomes = -1, list[bool]()
    while True:
        moment += 11
        world = EmptyWorld(qdrant_url)
        await world.begin_empty()

        def write(world: EmptyWorld = world) -> None:
            outcomes.append(world.aliases()[world.alias] != world.physical)
            world.write()

        was_killed = await world.rebuild_killed_at(moment, write)
        if world.has_written:
            assert world.rows()[1]["content"] == "stored"
            (world.assert_moved if outcomes[-1] else world.assert_untouched)()
        await world.close()
        if not was_killed:
            break
    assert set(outcomes) == {True, False}


async def test_resumes_after_kill_anywhere(qdrant_url: str) -> None:
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
