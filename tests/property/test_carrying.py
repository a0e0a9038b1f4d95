"""Model of copying points: a source with writers, and copiers that advance one call at a time.

Copiers read pages, and write them late, twice or never, as those of a paused leader. Invariant: revisions in the target
never decrease, and a final pass over the source makes both equal.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.ports.base import Json
from agentmemory_operator.rebuilds.point_conversion import CopyEnd
from agentmemory_operator.rebuilds.point_copier import CopyCounts, PointCopier
from tests.support.engine.agents import collection_of
from tests.support.engine.point_memory import BETWEEN, PointMemory

IDS = ["a", "b", "c"]
SOURCE, TARGET = "source", "target"

writes = st.tuples(st.just("write"), st.sampled_from(IDS))
reads = st.tuples(st.just("read"), st.sampled_from(["insert", "update"]))
turns = st.tuples(st.just("turn"), st.integers(0, 5))


class Stepping:
    """Two collections. Each call to the target waits for its turn, and again for each point."""

    def __init__(self) -> None:
        self.collections = {SOURCE: PointMemory(), TARGET: PointMemory()}
        self.waiting: list[asyncio.Event] = []

    def __getattr__(self, name: str) -> Any:
        async def call(collection: str, *args: Any, **more: Any) -> Any:
            if collection == TARGET:
                await self.wait()
                BETWEEN.set(self.wait)
            return await getattr(self.collections[collection], name)(collection, *args, **more)

        return call

    async def wait(self) -> None:
        turn = asyncio.Event()
        self.waiting.append(turn)
        await turn.wait()

    def revs(self, collection: str) -> dict[str, int]:
        return {id_: row["rev"] for id_, row in self.collections[collection].payloads.items()}


@dataclass(slots=True)
class Run:
    """State of the model."""

    store: Stepping = field(default_factory=Stepping)
    tasks: list["asyncio.Task[Any]"] = field(default_factory=list)

    def copier(self) -> PointCopier:
        shape = collection_of()
        ends = [CopyEnd(physical=name, collection=shape) for name in (SOURCE, TARGET)]
        return PointCopier(self.store, *ends)

    def write(self, id_: str) -> None:
        payloads = self.store.collections[SOURCE].payloads
        rev = payloads.get(id_, {}).get("rev", 0) + 1
        payloads[id_] = {"rev": rev, "updatedAt": rev, "content": f"{id_}{rev}"}

    async def read(self, how: str) -> None:
        copier = self.copier()
        points, _ = await copier.read()
        self.tasks.append(asyncio.create_task(getattr(copier, how)(points)))

    async def turn(self, place: int) -> None:
        """Let one waiting call continue, and check that no revision decreases."""
        before = self.store.revs(TARGET)
        if self.store.waiting:
            self.store.waiting.pop(place % len(self.store.waiting)).set()
            await settle()
        after = self.store.revs(TARGET)
        assert all(after.get(id_, 0) >= rev for id_, rev in before.items())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@given(st.lists(st.one_of(writes, reads, turns), max_size=40), st.booleans())
def test_highest_revision_wins_in_any_order(steps: list[tuple[str, Any]], sleepers_end: bool) -> None:
    asyncio.run(go_through(steps, sleepers_end=sleepers_end))


async def go_through(steps: list[tuple[str, Any]], *, sleepers_end: bool) -> None:
    run = Run()
    for kind, argument in steps:
        if kind == "write":
            run.write(argument)
        elif kind == "read":
            await run.read(argument)
            await settle()
        else:
            await run.turn(argument)
    sleepers, run.store.waiting = run.store.waiting, []
    assert await last_pass(run) == run.store.collections[SOURCE].payloads
    if sleepers_end:
        # Otherwise the sleeping copiers have died.
        run.store.waiting += sleepers
        while run.store.waiting:
            await run.turn(0)
        assert run.store.collections[TARGET].payloads == run.store.collections[SOURCE].payloads
    for task in run.tasks:
        task.cancel()
    await asyncio.gather(*run.tasks, return_exceptions=True)


async def last_pass(run: Run) -> dict[str, Json]:
    """Copy everything without writers; a second pass has nothing to do."""
    for expected_is_nothing in (False, True):
        copier = run.copier()
        points, _ = await copier.read()
        task: asyncio.Task[CopyCounts] = asyncio.create_task(copier.update(points))
        await settle()
        while run.store.waiting:
            await run.turn(0)
        assert not (expected_is_nothing and await task)
        await task
    return run.store.collections[TARGET].payloads
