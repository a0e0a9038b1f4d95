"""The move of an agent's alias from a rebuild's source to its target, on a real engine."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentmemory_operator.collections.announce import AliasLocks, release_writers
from agentmemory_operator.collections.rules.announcement import MOVING_KEY, Phase, phase_of
from agentmemory_operator.collections.rules.changes import Change, SetAlias
from agentmemory_operator.collections.rules.collection import ORIGIN_KEY, embedding_from_json
from agentmemory_operator.collections.rules.rebuild_record import record_from_json
from agentmemory_operator.errors import OutcomeUnknown, RebuildCancelled, StoreUnavailable
from agentmemory_operator.rebuilds.move import MoveStep
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.restores.rules.swap_checks import RECORDS_KEY
from tests.support.engine.agents import FakeEmbedder, create_copy, delete_collection, move_alias
from tests.support.job.rebuild_task import RebuildTask, open_rebuild

Hook = Callable[[], Awaitable[None]]


@pytest.fixture
async def rebuild(qdrant_url: str) -> AsyncIterator[RebuildTask]:
    async with open_rebuild(qdrant_url) as rebuild:
        await rebuild.world.add("first")
        yield rebuild


@dataclass(slots=True)
class Time:
    """Virtual clock that advances in `sleep`, which then runs the hooks."""

    now_s: float = 0.0
    hooks: list[Hook] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for hook in self.hooks:
            await hook()


class Watched:
    """Collections that run a hook before a change of the alias, and can fail after it."""

    def __init__(self, inner: Any, before: Hook, *, error: Exception | None = None) -> None:
        self._inner, self._before, self._error = inner, before, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def apply(self, physical: str, change: Change) -> None:
        if isinstance(change, SetAlias):
            await self._before()
        await self._inner.apply(physical, change)
        if isinstance(change, SetAlias) and self._error:
            raise self._error


def watch(task: RebuildRun, before: Hook, *, error: Exception | None = None) -> None:
    """Run a hook right before the alias moves, and raise `error` after it."""
    collections: Any = Watched(task.server.collections, before, error=error)
    task.server = replace(task.server, collections=collections)


def mover(time: Time | None = None, **more: Any) -> MoveStep:
    time = time or Time()
    return MoveStep(
        *(AliasLocks(), more.pop("is_cleaned", lambda task: False)), monotonic=time.monotonic, sleep=time.sleep, **more
    )


async def test_target_holds_writes_until_the_move(rebuild: RebuildTask) -> None:
    task, time = await rebuild.begin(), Time()
    phases: list[Phase | None] = []

    async def write() -> None:
        phases.append(phase_of(await rebuild.metadata(rebuild.source)))
        await rebuild.writing_to(rebuild.source).add(f"while {len(phases)} s had passed")

    time.hooks.append(write)
    watch(task, write)

    message = await mover(time)(task)

    assert "writes were paused for" in message
    assert await rebuild.alias() == rebuild.target
    assert phases == [*[Phase.ANNOUNCED] * 7, Phase.FINAL]
    # The last write ignores the announcement: the drain copies it.
    assert len(await rebuild.points(rebuild.target)) == len(await rebuild.points(rebuild.source)) - 1


async def test_embedding_calls_before_the_last_passes_are_counted(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, embedder=FakeEmbedder()) as rebuild:
        await rebuild.world.add("first")
        task = await rebuild.begin()

        await mover()(task)

        record = record_from_json(await rebuild.metadata(rebuild.target))
        assert record is not None
        assert (record.calls, len(await rebuild.points(rebuild.target))) == (1, 1)


async def test_early_announcement_shortens_the_wait(rebuild: RebuildTask) -> None:
    """The move is announced during the previous step."""
    task, time, move_s = await rebuild.begin(), Time(), list[float]()
    move = mover(time)

    async def verify(_: RebuildRun) -> str:
        assert phase_of(await rebuild.metadata(rebuild.source)) is Phase.ANNOUNCED
        time.now_s += 5
        return "verified"

    async def note() -> None:
        move_s.append(time.now_s)

    time.hooks.append(note)

    assert await move.with_announcement(verify)(task) == "verified"
    await move(task)

    assert await rebuild.alias() == rebuild.target
    assert move_s == [6, 7]


async def test_removed_announcement_is_repeated(rebuild: RebuildTask) -> None:
    task, time = await rebuild.begin(), Time()

    async def release() -> None:
        await release_writers(rebuild.server, rebuild.source)

    time.hooks.append(release)
    with pytest.raises(StoreUnavailable, match="was removed and is repeated"):
        await mover(time)(task)

    assert await rebuild.alias() == rebuild.source
    await mover()(task)
    assert await rebuild.alias() == rebuild.target


async def test_announcement_names_the_new_embedding(rebuild: RebuildTask) -> None:
    """The API loads the new embedder before the move."""
    task, embeddings = await rebuild.begin(), list[Any]()

    async def read_embedding() -> None:
        embeddings.append((await rebuild.metadata(rebuild.source))[MOVING_KEY]["embedding"])

    time = Time()
    time.hooks.append(read_embedding)
    await mover(time)(task)

    assert task.desired.marker is not None
    assert embedding_from_json(embeddings[0]) == task.desired.marker.embedding


async def test_recorded_time_precedes_writes_to_target(rebuild: RebuildTask) -> None:
    task = await rebuild.begin()

    await mover()(task)
    rebuild.world.clock.move(ms=1)
    memory_id = await rebuild.world.add("later")

    moved_ms = (await rebuild.begin()).record.moved_ms
    assert moved_ms is not None
    assert (await rebuild.points(rebuild.target))[memory_id]["updatedAt"] > moved_ms


async def test_history_metadata_is_copied(rebuild: RebuildTask) -> None:
    past = {ORIGIN_KEY: "other", RECORDS_KEY: [{"name": "undo"}]}
    await rebuild.server.snapshots.write_metadata(rebuild.source, past)

    await mover()(await rebuild.begin())

    found = await rebuild.metadata(rebuild.target)
    assert {key: found[key] for key in past} == past


async def test_cleanup_blocks_the_announcement(rebuild: RebuildTask) -> None:
    with pytest.raises(StoreUnavailable, match="a cleanup of the agent"):
        await mover(is_cleaned=lambda task: True)(await rebuild.begin())

    assert MOVING_KEY not in await rebuild.metadata(rebuild.source)


@pytest.mark.parametrize("checks", [0, 1, 9], ids=["before it is announced", "announced", "right before the move"])
async def test_cancelled_move_releases_writers(rebuild: RebuildTask, checks: int) -> None:
    task, passing_checks = await rebuild.begin(), [None] * checks

    def check() -> None:
        passing_checks.pop() if passing_checks else _refuse()

    rebuild.checks = check
    with pytest.raises(RebuildCancelled):
        await mover()(task)

    assert MOVING_KEY not in await rebuild.metadata(rebuild.source)
    assert await rebuild.alias() == rebuild.source


def _refuse() -> None:
    raise RebuildCancelled("the object was deleted")


async def test_foreign_move_of_the_alias_is_respected(rebuild: RebuildTask) -> None:
    task, time = await rebuild.begin(), Time()
    third = await create_copy(rebuild.url, rebuild.world.agent.settings, keyword=None, number=3)

    async def move() -> None:
        await move_alias(rebuild.url, rebuild.world.agent.settings, third)

    time.hooks.append(move)
    with pytest.raises(RebuildCancelled):
        await mover(time)(task)

    assert await rebuild.alias() == third
    assert MOVING_KEY not in await rebuild.metadata(rebuild.source)
    await delete_collection(rebuild.url, rebuild.world.agent.settings, number=3)


async def test_refused_move_releases_writers(rebuild: RebuildTask) -> None:
    task = await rebuild.begin()

    async def fail() -> None:
        assert phase_of(await rebuild.metadata(rebuild.source)) is Phase.FINAL
        raise StoreUnavailable("away")

    watch(task, fail)
    with pytest.raises(StoreUnavailable):
        await mover()(task)

    assert MOVING_KEY not in await rebuild.metadata(rebuild.source)
    assert await rebuild.alias() == rebuild.source


async def test_lost_response_counts_as_moved(rebuild: RebuildTask) -> None:
    task = await rebuild.begin()

    async def nothing() -> None:
        """Let the call succeed."""

    watch(task, nothing, error=OutcomeUnknown("lost"))

    assert await mover()(task) == "moved"


async def test_slow_last_pass_releases_writers(rebuild: RebuildTask) -> None:
    task = await rebuild.begin()
    points: Any = _SlowScroll(task.server.points, rebuild)
    task.server = replace(task.server, points=points)

    with pytest.raises(StoreUnavailable, match="the limit for pausing writes"):
        await mover(hold_s=0.05)(task)

    assert MOVING_KEY not in await rebuild.metadata(rebuild.source)
    assert await rebuild.alias() == rebuild.source


class _SlowScroll:
    """Points of a server that is slow while writers are paused."""

    def __init__(self, inner: Any, rebuild: RebuildTask) -> None:
        self._inner, self._rebuild = inner, rebuild

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def scroll(self, collection: str, body: Any) -> Any:
        if phase_of(await self._rebuild.metadata(self._rebuild.source)) is Phase.FINAL:
            await asyncio.sleep(60)
        return await self._inner.scroll(collection, body)


async def test_restart_releases_writers_first(rebuild: RebuildTask) -> None:
    """The next operator repeats the move from its announcement."""
    moving = {MOVING_KEY: {"from": rebuild.source, "to": rebuild.target, "phase": Phase.FINAL}}
    await rebuild.server.snapshots.write_metadata(rebuild.source, moving)
    task = await rebuild.begin()
    phases: list[Phase | None] = []

    class Points:
        """Record the phase while all points are compared: writers are not paused then."""

        def __getattr__(self, name: str) -> Any:
            return getattr(rebuild.server.points, name)

        async def scroll(self, collection: str, body: Any) -> Any:
            phases.append(phase_of(await rebuild.metadata(rebuild.source)))
            return await rebuild.server.points.scroll(collection, body)

    points: Any = Points()
    task.server = replace(task.server, points=points)

    await mover()(task)

    assert phases[0] is Phase.ANNOUNCED
    assert await rebuild.alias() == rebuild.target
