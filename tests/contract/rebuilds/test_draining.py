"""Late writes to a rebuild's source after the move, on a real engine."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.announcement import MOVING_KEY, Phase
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.collections.rules.rebuild_record import RebuildStep
from agentmemory_operator.errors import RebuildCancelled, SpecInvalid, StoreUnavailable, TransientError
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.stored_memories import change_head, delete_head
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.rebuilds import budget
from agentmemory_operator.rebuilds.catch_up import copy_differences
from agentmemory_operator.rebuilds.drain import MAX_RENEWALS, DrainStep
from agentmemory_operator.rebuilds.task import RebuildRun
from tests.contract.rebuilds.test_move import Hook, Time
from tests.support.engine.agents import SIZE, World, move_alias, vector_of
from tests.support.engine.interleaved_store import Event, InterleavedStore
from tests.support.job.rebuild_task import TIMEOUT_S, RebuildTask, open_rebuild

pytestmark = pytest.mark.usefixtures("keeps_vectors")

ENGLISH = KeywordSource(language="english", window=2)
GERMAN = KeywordSource(language="german", window=2)


@dataclass(frozen=True)
class NewModel:
    """Embedding model with other vectors of the same size."""

    dimensions: int = SIZE

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [vector_of(f"new {text}") for text in texts]


@pytest.fixture
async def rebuild(qdrant_url: str) -> AsyncIterator[RebuildTask]:
    async with open_rebuild(qdrant_url) as rebuild:
        yield rebuild


async def move(rebuild: RebuildTask) -> tuple[RebuildRun, World]:
    """Copy all points and move the alias; return the task and a writer that still uses the source."""
    moving = {MOVING_KEY: {"from": rebuild.source, "to": rebuild.target, "phase": Phase.FINAL}}
    await rebuild.server.snapshots.write_metadata(rebuild.source, moving)
    await copy_differences(await rebuild.begin())
    await move_alias(rebuild.url, rebuild.world.agent.settings, rebuild.target)
    rebuild.world.clock.move(ms=10)
    task = await rebuild.begin(step=RebuildStep.DRAIN, moved_ms=rebuild.world.clock.now_ms())
    rebuild.world.clock.move(ms=10)
    return task, rebuild.writing_to(rebuild.source)


async def drain(task: RebuildRun, *hooks: Hook) -> str:
    time = Time(hooks=list(hooks))
    return await DrainStep(monotonic=time.monotonic, sleep=time.sleep)(task)


async def test_lasts_until_no_late_write_is_found(rebuild: RebuildTask) -> None:
    """The drain lasts at least as long as the request timeout."""
    task, late = await move(rebuild)
    time, written = Time(), 0

    async def write() -> None:
        nonlocal written
        if time.now_s < TIMEOUT_S + 2:
            written += 1
            await late.add(f"late {written}")

    time.hooks.append(write)
    message = await DrainStep(monotonic=time.monotonic, sleep=time.sleep)(task)

    assert TIMEOUT_S + 2 <= time.now_s <= TIMEOUT_S + 4
    assert message.startswith(f"{written} late points")
    assert len(await rebuild.world.heads()) == written
    assert MOVING_KEY not in await rebuild.metadata(rebuild.source)


async def test_newer_write_in_target_wins(rebuild: RebuildTask) -> None:
    world = rebuild.world
    both, late_only = await world.add("both"), await world.add("late only")
    task, late = await move(rebuild)
    for memory_id in (both, both, late_only):
        await change_head(late.agent, memory_id, {"importance": 0.9}, user_id="u")
    await change_head(world.agent, both, {"importance": 0.1}, user_id="u")

    await drain(task)

    rows = await rebuild.points(rebuild.target)
    assert {id_: rows[id_]["importance"] for id_ in (both, late_only)} == {both: 0.1, late_only: 0.9}


async def test_late_write_is_logged_at_its_copy_time(rebuild: RebuildTask) -> None:
    """Readers of the log have passed the time of the write."""
    world = rebuild.world
    changed, unchanged = await world.add("changed"), await world.add("left")
    task, late = await move(rebuild)
    await change_head(late.agent, changed, {"importance": 0.9}, user_id="u")
    new = await late.add("new")
    written_ms = world.clock.now_ms()
    world.clock.move(ms=60_000)

    await drain(task)

    times = {id_: row["loggedAt"] for id_, row in (await rebuild.points(rebuild.target)).items()}
    assert times[unchanged] < written_ms < min(times[changed], times[new])


async def test_late_successor_becomes_the_head(rebuild: RebuildTask) -> None:
    old = await rebuild.world.add("old")
    task, late = await move(rebuild)
    await late.add("new", supersedes=old)

    await drain(task)

    assert await rebuild.world.heads() == ["new"]


async def test_late_successor_yields_to_targets_successor(rebuild: RebuildTask) -> None:
    old = await rebuild.world.add("old")
    task, late = await move(rebuild)
    await late.add("late", supersedes=old)
    await rebuild.world.add("acknowledged", supersedes=old)

    await drain(task)

    assert await rebuild.world.heads() == ["acknowledged"]


async def test_late_deletion_restores_previous_version(rebuild: RebuildTask) -> None:
    head = await rebuild.world.add("head", supersedes=await rebuild.world.add("before"))
    task, late = await move(rebuild)
    await delete_head(late.agent, head, user_id="u")

    await drain(task)

    assert await rebuild.world.heads() == ["before"]


async def test_late_deletion_yields_to_write_in_target(
    rebuild: RebuildTask,
) -> None:
    head = await rebuild.world.add("head", supersedes=await rebuild.world.add("before"))
    task, late = await move(rebuild)
    await delete_head(late.agent, head, user_id="u")
    await change_head(rebuild.world.agent, head, {"importance": 0.9}, user_id="u")

    await drain(task)

    assert await rebuild.world.heads() == ["head"]


async def test_late_write_of_forgotten_user_is_dropped(rebuild: RebuildTask) -> None:
    await rebuild.world.add("known")
    task, late = await move(rebuild)
    await late.add("late")
    rebuild.world.clock.move(ms=5_000)
    await rebuild.world.forgetting.forget(
        rebuild.world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True))
    )

    await drain(task)

    assert await rebuild.world.heads() == []


async def test_write_after_forget_survives_clock_skew(
    rebuild: RebuildTask,
) -> None:
    """The clock of the forget was ahead of the clock of the write."""
    world = rebuild.world
    task, late = await move(rebuild)
    await late.add("late")
    world.clock.move(ms=5_000)
    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    world.clock.move(ms=-1_500)
    await world.add("stored since")

    await drain(task)

    assert await world.heads() == ["stored since"]


async def test_killed_drain_copies_nothing_twice(rebuild: RebuildTask) -> None:
    old = await rebuild.world.add("old")
    task, late = await move(rebuild)
    await late.add("new", supersedes=old)
    await drain(task)

    message = await drain(await rebuild.begin())

    assert message.startswith("0 late points")
    assert await rebuild.world.heads() == ["new"]


async def test_deleted_source_has_no_late_points(rebuild: RebuildTask) -> None:
    task, _ = await move(rebuild)
    await rebuild.server.collections.delete(rebuild.source)

    assert (await drain(task)).startswith("0 late points")


async def test_outdated_vector_is_embedded_again(qdrant_url: str) -> None:
    """A paused writer sent the vector after the move."""
    async with open_rebuild(qdrant_url, embedder=NewModel()) as rebuild:
        before = await rebuild.world.add("before")
        task, _ = await move(rebuild)
        strange = await rebuild.world.add("strange")
        right = await rebuild.world.add("right", vector=vector_of("new right"))

        assert (await drain(task)).endswith("1 outdated vectors embedded again")

        found = await rebuild.vectors(rebuild.target)
        rows = await rebuild.points(rebuild.target)
        for memory_id, content in ((before, "before"), (strange, "strange"), (right, "right")):
            assert cosine(found[memory_id], vector_of(f"new {content}")) > 0.999
        assert (rows[strange]["rev"], rows[right]["rev"]) == (2, 1)


@pytest.mark.parametrize("is_deleted", [pytest.param(False, id="changed"), pytest.param(True, id="deleted")])
async def test_concurrent_write_before_renewal(qdrant_url: str, is_deleted: bool) -> None:
    """Qdrant then ignores the new vector. It is written again, and counted once; that of a deleted memory never is."""
    async with open_rebuild(qdrant_url, embedder=NewModel()) as rebuild:
        task, _ = await move(rebuild)
        agent, memory_id = rebuild.world.agent, await rebuild.world.add("strange")

        async def write() -> None:
            if is_deleted:
                await delete_head(agent, memory_id, user_id="u")
            else:
                await change_head(agent, memory_id, {"importance": 0.9}, user_id="u")

        points: Any = InterleavedStore(task.server.points, Event(lambda name, _: name == "batch", write))
        task.server = replace(task.server, points=points)

        assert (await drain(task)).endswith(f"; {0 if is_deleted else 1} outdated vectors embedded again")

        if not is_deleted:
            row, vectors = (await rebuild.points(rebuild.target))[memory_id], await rebuild.vectors(rebuild.target)
            assert (row["importance"], cosine(vectors[memory_id], vector_of("new strange")) > 0.999) == (0.9, True)


async def test_endless_writes_repeat_the_renewal(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, embedder=NewModel()) as rebuild:
        task, _ = await move(rebuild)
        agent, memory_id = rebuild.world.agent, await rebuild.world.add("strange")

        async def write() -> None:
            await change_head(agent, memory_id, {"importance": 0.9}, user_id="u")

        events = [Event(lambda name, _: name == "batch", write) for _ in range(MAX_RENEWALS)]
        points: Any = InterleavedStore(task.server.points, *events)
        task.server = replace(task.server, points=points)

        with pytest.raises(StoreUnavailable, match="1 memories were changed"):
            await drain(task)

        assert (await drain(await rebuild.begin())).endswith("; 1 outdated vectors embedded again")


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    lengths = sum(x * x for x in one) ** 0.5 * sum(x * x for x in other) ** 0.5
    return float(sum(x * y for x, y in zip(one, other, strict=True)) / lengths)


async def test_outdated_keyword_vector_is_computed_again(qdrant_url: str) -> None:
    """A paused writer sent the vector after the move, in the old language."""
    async with open_rebuild(qdrant_url, keyword=ENGLISH, other_keyword=GERMAN) as rebuild:
        task, _ = await move(rebuild)
        sleeping = await rebuild.world.add("die Züge fuhren", session_id="s")
        rebuild.world.agent = replace(rebuild.world.agent, keyword=GERMAN)
        awake = await rebuild.world.add("die Züge fuhren", session_id="t")
        before = await rebuild.vectors(rebuild.target)
        assert words(before[sleeping]) != words(before[awake])

        await drain(task)

        found = await rebuild.vectors(rebuild.target)
        assert words(found[sleeping]) == words(found[awake])


def words(vector: dict[str, dict[str, list[int]]]) -> list[int]:
    return sorted(vector[KEYWORD_VECTOR]["indices"])


@dataclass(frozen=True)
class RevokedModel(NewModel):
    """Rejects the API key."""

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        raise SpecInvalid("EmbeddingKeyRejected", "the key was revoked")


@pytest.mark.parametrize("is_late", [pytest.param(True, id="late point"), pytest.param(False, id="outdated vector")])
async def test_drain_with_revoked_key_is_repeated(qdrant_url: str, is_late: bool) -> None:
    """After the move a rebuild is neither paused nor failed."""
    async with open_rebuild(qdrant_url, embedder=NewModel()) as rebuild:
        task, late = await move(rebuild)
        await (late if is_late else rebuild.world).add("text")
        task.embedder = RevokedModel()

        with pytest.raises(TransientError, match="the key was revoked"):
            await drain(task)

        await drain(await rebuild.begin())
        (vector,) = (await rebuild.vectors(rebuild.target)).values()
        assert cosine(vector, vector_of("new text")) > 0.999


@dataclass
class Bucket:
    """Token bucket that grants every other call."""

    refill_s: float = 0
    attempts: int = 0

    def take(self, *_: object) -> bool:
        self.attempts += 1
        return self.attempts % 2 == 0


async def test_drain_waits_for_budget_of_embedding_calls(qdrant_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object was edited since the move: that does not cancel the rebuild any more."""
    bucket = Bucket()
    monkeypatch.setattr(budget, "hourly_bucket", lambda *_: bucket)
    async with open_rebuild(qdrant_url, embedder=NewModel()) as rebuild:
        rebuild.spec = {"rebuild": {"maxEmbeddingCallsPerHour": 1}}
        task, late = await move(rebuild)
        await late.add("late")
        await rebuild.world.add("strange")
        rebuild.checks = cancel

        assert await drain(task) == "1 late points; 1 outdated vectors embedded again"

    # The late point, then both texts at once.
    assert (bucket.attempts, task.record.calls) == (4, 2)


def cancel() -> None:
    raise RebuildCancelled("the object no longer asks for it")
