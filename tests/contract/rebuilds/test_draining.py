"""What late writers leave in a rebuild's source after the move comes into the target, over a real engine."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import pytest

from agentmemory_operator.collections.rules.announcement import MOVING_KEY, Phase
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.collections.rules.rebuild_record import RebuildStep
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.stored_memories import change_head, delete_head
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.rebuilds.catch_up import copy_differences
from agentmemory_operator.rebuilds.drain import DrainStep
from agentmemory_operator.rebuilds.task import RebuildRun
from tests.contract.rebuilds.test_move import Hook, Time
from tests.support.engine.agents import SIZE, World, move_alias, vector_of
from tests.support.job.rebuild_task import TIMEOUT_S, RebuildTask, open_rebuild

pytestmark = pytest.mark.usefixtures("keeps_vectors")

ENGLISH = KeywordSource(language="english", window=2)
GERMAN = KeywordSource(language="german", window=2)


@dataclass(frozen=True)
class NewModel:
    """Another embedding of the same size."""

    dimensions: int = SIZE

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [vector_of(f"new {text}") for text in texts]


@pytest.fixture
async def rebuild(qdrant_url: str) -> AsyncIterator[RebuildTask]:
    async with open_rebuild(qdrant_url) as rebuild:
        yield rebuild


async def moved(rebuild: RebuildTask) -> tuple[RebuildRun, World]:
    """Move the alias, everything carried; return the task, and a writer who does not know of it."""
    moving = {MOVING_KEY: {"from": rebuild.source, "to": rebuild.target, "phase": Phase.FINAL}}
    await rebuild.server.snapshots.write_metadata(rebuild.source, moving)
    await copy_differences(await rebuild.begin())
    await move_alias(rebuild.url, rebuild.world.agent.settings, rebuild.target)
    rebuild.world.clock.move(ms=10)
    task = await rebuild.begin(step=RebuildStep.DRAIN, moved_ms=rebuild.world.clock.now_ms())
    rebuild.world.clock.move(ms=10)
    return task, rebuild.writing_to(rebuild.source)


async def drain(task: RebuildRun, *meanwhile: Hook) -> str:
    time = Time(meanwhile=list(meanwhile))
    return await DrainStep(monotonic=time.monotonic, sleep=time.sleep)(task)


async def test_it_goes_on_for_as_long_as_a_request_may_take_and_until_nothing_is_found(rebuild: RebuildTask) -> None:
    task, late = await moved(rebuild)
    time, written = Time(), 0

    async def write() -> None:
        nonlocal written
        if time.now_s < TIMEOUT_S + 2:
            written += 1
            await late.add(f"late {written}")

    time.meanwhile.append(write)
    told = await DrainStep(monotonic=time.monotonic, sleep=time.sleep)(task)

    assert TIMEOUT_S + 2 <= time.now_s <= TIMEOUT_S + 4
    assert told.startswith(f"{written} late points")
    assert len(await rebuild.world.heads()) == written
    assert MOVING_KEY not in await rebuild.metadata(rebuild.source)


async def test_what_was_written_in_the_target_since_the_move_wins(rebuild: RebuildTask) -> None:
    world = rebuild.world
    both, late_only = await world.add("both"), await world.add("late only")
    task, late = await moved(rebuild)
    for memory_id in (both, both, late_only):
        await change_head(late.agent, memory_id, {"importance": 0.9}, user_id="u")
    await change_head(world.agent, both, {"importance": 0.1}, user_id="u")

    await drain(task)

    rows = await rebuild.points(rebuild.target)
    assert {id_: rows[id_]["importance"] for id_ in (both, late_only)} == {both: 0.1, late_only: 0.9}


async def test_what_is_late_comes_into_the_change_log_when_it_is_carried(rebuild: RebuildTask) -> None:
    """Readers of the log are past the time at which it was written."""
    world = rebuild.world
    changed, left = await world.add("changed"), await world.add("left")
    task, late = await moved(rebuild)
    await change_head(late.agent, changed, {"importance": 0.9}, user_id="u")
    new = await late.add("new")
    written_ms = world.clock.now_ms()
    world.clock.move(ms=60_000)

    await drain(task)

    times = {id_: row["loggedAt"] for id_, row in (await rebuild.points(rebuild.target)).items()}
    assert times[left] < written_ms < min(times[changed], times[new])


async def test_a_late_successor_becomes_the_head(rebuild: RebuildTask) -> None:
    old = await rebuild.world.add("old")
    task, late = await moved(rebuild)
    await late.add("new", supersedes=old)

    await drain(task)

    assert await rebuild.world.heads() == ["new"]


async def test_a_late_successor_gives_way_to_the_one_that_the_target_has(rebuild: RebuildTask) -> None:
    old = await rebuild.world.add("old")
    task, late = await moved(rebuild)
    await late.add("late", supersedes=old)
    await rebuild.world.add("acknowledged", supersedes=old)

    await drain(task)

    assert await rebuild.world.heads() == ["acknowledged"]


async def test_a_late_deletion_of_a_head_lets_the_version_before_it_answer(rebuild: RebuildTask) -> None:
    head = await rebuild.world.add("head", supersedes=await rebuild.world.add("before"))
    task, late = await moved(rebuild)
    await delete_head(late.agent, head, user_id="u")

    await drain(task)

    assert await rebuild.world.heads() == ["before"]


async def test_of_a_late_deletion_nothing_is_done_where_the_head_was_written_in_the_target(
    rebuild: RebuildTask,
) -> None:
    head = await rebuild.world.add("head", supersedes=await rebuild.world.add("before"))
    task, late = await moved(rebuild)
    await delete_head(late.agent, head, user_id="u")
    await change_head(rebuild.world.agent, head, {"importance": 0.9}, user_id="u")

    await drain(task)

    assert await rebuild.world.heads() == ["head"]


async def test_who_was_forgotten_in_the_target_does_not_come_back_by_a_late_write(rebuild: RebuildTask) -> None:
    await rebuild.world.add("known")
    task, late = await moved(rebuild)
    await late.add("late")
    rebuild.world.clock.move(ms=5_000)
    await rebuild.world.forgetting.forget(
        rebuild.world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True))
    )

    await drain(task)

    assert await rebuild.world.heads() == []


async def test_what_was_stored_after_a_forget_in_the_target_stays_though_who_forgot_was_ahead(
    rebuild: RebuildTask,
) -> None:
    world = rebuild.world
    task, late = await moved(rebuild)
    await late.add("late")
    world.clock.move(ms=5_000)
    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    world.clock.move(ms=-1_500)
    await world.add("stored since")

    await drain(task)

    assert await world.heads() == ["stored since"]


async def test_what_a_killed_drain_had_carried_is_carried_once(rebuild: RebuildTask) -> None:
    old = await rebuild.world.add("old")
    task, late = await moved(rebuild)
    await late.add("new", supersedes=old)
    await drain(task)

    told = await drain(await rebuild.begin())

    assert told.startswith("0 late points")
    assert await rebuild.world.heads() == ["new"]


async def test_a_source_that_is_gone_has_nothing_left(rebuild: RebuildTask) -> None:
    task, _ = await moved(rebuild)
    await rebuild.server.collections.delete(rebuild.source)

    assert (await drain(task)).startswith("0 late points")


async def test_a_vector_of_the_old_space_that_a_sleeping_writer_sent_is_made_anew(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, embedder=NewModel()) as rebuild:
        before = await rebuild.world.add("before")
        task, _ = await moved(rebuild)
        strange = await rebuild.world.add("strange")
        right = await rebuild.world.add("right", vector=vector_of("new right"))

        assert (await drain(task)).endswith("1 outdated vectors embedded again")

        found = await rebuild.vectors(rebuild.target)
        rows = await rebuild.points(rebuild.target)
        for memory_id, content in ((before, "before"), (strange, "strange"), (right, "right")):
            assert cosine(found[memory_id], vector_of(f"new {content}")) > 0.999
        assert (rows[strange]["rev"], rows[right]["rev"]) == (2, 1)


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    lengths = sum(x * x for x in one) ** 0.5 * sum(x * x for x in other) ** 0.5
    return float(sum(x * y for x, y in zip(one, other, strict=True)) / lengths)


async def test_words_that_a_sleeping_writer_sent_in_the_old_language_are_made_anew(qdrant_url: str) -> None:
    async with open_rebuild(qdrant_url, keyword=ENGLISH, other_keyword=GERMAN) as rebuild:
        task, _ = await moved(rebuild)
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
