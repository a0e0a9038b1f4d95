"""A model of carrying: a source that is written to, and runs that carry its points, each one call at a time.

Runs read pages, and write them whenever they get their turn: late, twice, or never, as those of a leader that slept.
Whatever the order, the target never goes back, and a last pass over the source leaves both equal.
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
    """Two collections; who asks for the target waits until it is his turn, for each point anew."""

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
    """What a model has come to."""

    store: Stepping = field(default_factory=Stepping)
    tasks: list["asyncio.Task[Any]"] = field(default_factory=list)

    def carrying(self) -> PointCopier:
        shape = collection_of()
        ends = [CopyEnd(physical=name, collection=shape) for name in (SOURCE, TARGET)]
        return PointCopier(self.store, *ends)

    def write(self, id_: str) -> None:
        payloads = self.store.collections[SOURCE].payloads
        rev = payloads.get(id_, {}).get("rev", 0) + 1
        payloads[id_] = {"rev": rev, "updatedAt": rev, "content": f"{id_}{rev}"}

    async def read(self, how: str) -> None:
        carrying = self.carrying()
        points, _ = await carrying.read()
        self.tasks.append(asyncio.create_task(getattr(carrying, how)(points)))

    async def turn(self, place: int) -> None:
        """Let one of those who wait go on by one call, and see that nothing went back."""
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
def test_whatever_comes_late_the_highest_revision_stays(steps: list[tuple[str, Any]], sleepers_end: bool) -> None:
    asyncio.run(go_through(steps, sleepers_end=sleepers_end))


async def go_through(steps: list[tuple[str, Any]], *, sleepers_end: bool) -> None:
    run = Run()
    for kind, what in steps:
        if kind == "write":
            run.write(what)
        elif kind == "read":
            await run.read(what)
            await settle()
        else:
            await run.turn(what)
    sleepers, run.store.waiting = run.store.waiting, []
    assert await last_pass(run) == run.store.collections[SOURCE].payloads
    if sleepers_end:
        # They have died otherwise.
        run.store.waiting += sleepers
        while run.store.waiting:
            await run.turn(0)
        assert run.store.collections[TARGET].payloads == run.store.collections[SOURCE].payloads
    for task in run.tasks:
        task.cancel()
    await asyncio.gather(*run.tasks, return_exceptions=True)


async def last_pass(run: Run) -> dict[str, Json]:
    """Carry everything while nobody writes; a second pass has nothing to do."""
    for expected_is_nothing in (False, True):
        carrying = run.carrying()
        points, _ = await carrying.read()
        task: asyncio.Task[CopyCounts] = asyncio.create_task(carrying.update(points))
        await settle()
        while run.store.waiting:
            await run.turn(0)
        assert not (expected_is_nothing and await task)
        await task
    return run.store.collections[TARGET].payloads
