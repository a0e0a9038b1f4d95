"""The copy step of a rebuild on a real engine: resuming after a kill, embedding, budget."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.adapters.embedding.openai_embedder import OpenAIEmbedder, OpenAIOptions
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, record_from_json
from agentmemory_operator.errors import (
    EmbedderUnavailable,
    OutcomeUnknown,
    RebuildPaused,
    StoreUnavailable,
)
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.ports.base import Json, Vector
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.rebuilds import point_copier as carrying
from agentmemory_operator.rebuilds.copy import CopyStep
from agentmemory_operator.rebuilds.task import RebuildRun
from tests.support.engine.agents import FakeEmbedder, World, vector_of
from tests.support.engine.interleaved_store import CrashingStore
from tests.support.job.rebuild_task import RebuildTask, open_rebuild
from tests.support.web.http_server import serve
from tests.support.web.services import FakeOpenAI, failure

POINTS = 40
PAGE = 7


@pytest.fixture
async def rebuild(qdrant_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RebuildTask]:
    """A rebuild that copies the vectors."""
    for name in ("MAX_COPIED_POINTS", "MAX_EMBEDDED_POINTS"):
        monkeypatch.setattr(carrying, name, PAGE)
    async with open_rebuild(qdrant_url) as rebuild:
        await fill(rebuild.world)
        yield rebuild


@pytest.fixture
async def smaller(qdrant_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RebuildTask]:
    """A rebuild that computes the vectors again, with four dimensions."""
    for name in ("MAX_COPIED_POINTS", "MAX_EMBEDDED_POINTS"):
        monkeypatch.setattr(carrying, name, PAGE)
    async with open_rebuild(qdrant_url, size=4) as rebuild:
        await fill(rebuild.world)
        yield rebuild


async def task_of(
    world: RebuildTask,
    *,
    embedder: Embedder | None = None,
    points: PointStore | None = None,
    check: Callable[[], Awaitable[None]] | None = None,
    provider: str = "none",
    **spec: Any,
) -> RebuildRun:
    """Build the run that the step gets.

    Args:
        points: Replaces the point store of the server.
        provider: Embedding provider of the target.
        spec: Fields of the AgentMemory spec.
    """
    world.spec, world.embedder = spec, embedder
    task = await world.begin()
    task.check = check or task.check
    task.server = replace(task.server, points=points or task.server.points)
    source = replace(task.marker.embedding, provider=provider)
    task.desired = replace(task.desired, marker=replace(task.marker, embedding=source))
    return task


async def record_of(rebuild: RebuildTask) -> RebuildRecord:
    record = record_from_json(await rebuild.metadata(rebuild.target))
    assert record
    return record


async def fill(world: World) -> None:
    """Store memories, each content twice, and delete the first."""
    points = [point_of(number) for number in range(POINTS)]
    tombstone = {"id": points[0]["id"], "rev": 2, "updatedAt": 2, "deletedAt": 2}
    points[0] |= {"vector": {}, "payload": tombstone}
    await world.agent.store.upsert(world.agent.alias, points)


def point_of(number: int) -> Json:
    id_ = f"00000000-0000-0000-0000-{number:012}"
    payload = {"id": id_, "rev": 1, "updatedAt": 1, "content": f"content {number // 2}"}
    return {"id": id_, "vector": vector_of(number), "payload": payload}


async def test_copies_and_counts_every_point(rebuild: RebuildTask) -> None:
    assert await CopyStep()(await task_of(rebuild)) == f"{POINTS} points"
    assert await rebuild.points_with_vectors(rebuild.target) == await rebuild.points_with_vectors(rebuild.source)
    record = await record_of(rebuild)
    assert (record.copied, record.total, record.calls) == (POINTS, POINTS, 0)


async def test_item_versions_are_copied_unembedded(smaller: RebuildTask) -> None:
    world = smaller.world
    world.agent = replace(world.agent, settings=replace(world.agent.settings, keep_versions=3))
    address = Address(user_id="u", namespace=("memories", "u"), key="k")
    for content in ("first", "second"):
        put = await world.items.put(world.agent, address, ItemContent(content=content, vector=vector_of(content)))
    embedder = FakeEmbedder(size=4)

    await CopyStep()(await task_of(smaller, embedder=embedder, embedding={"provider": "wordllama", "batchSize": 8}))

    points = smaller.server.points
    before, after = [await points.retrieve(of, [put.memory_id]) for of in (smaller.source, smaller.target)]
    assert [version["content"] for version in after[0]["payload"]["itemVersions"]] == ["first"]
    assert before[0]["payload"] == after[0]["payload"]
    assert "second" in embedder.texts
    assert "first" not in embedder.texts


async def test_resumes_after_kill_at_any_call(rebuild: RebuildTask) -> None:
    step, store = CopyStep(note_s=0), rebuild.server.points
    cursors: list[Any] = []
    while True:
        # Call 5 is in the third page.
        dying: Any = CrashingStore(store, 5, "after")
        try:
            await step(await task_of(rebuild, points=dying))
            break
        except (StoreUnavailable, OutcomeUnknown):
            cursors.append((await record_of(rebuild)).cursor)

    assert len(cursors) > 2
    assert cursors == sorted(cursors, key=str), "the cursor never decreases"
    assert await rebuild.points_with_vectors(rebuild.target) == await rebuild.points_with_vectors(rebuild.source)
    assert (await record_of(rebuild)).copied == POINTS


async def test_pause_takes_effect_between_pages(rebuild: RebuildTask) -> None:
    checks = iter([None, None, RebuildPaused("paused")])

    async def check() -> None:
        if error := next(checks):
            raise error

    with pytest.raises(RebuildPaused):
        await CopyStep(note_s=0)(await task_of(rebuild, check=check))
    assert 0 < len(await rebuild.points_with_vectors(rebuild.target)) <= 2 * PAGE


async def test_each_content_is_embedded_once(smaller: RebuildTask) -> None:
    embedder = FakeEmbedder(size=4)

    await CopyStep()(await task_of(smaller, embedder=embedder, embedding={"provider": "wordllama", "batchSize": 8}))
    copied = await smaller.points_with_vectors(smaller.target)
    assert len(copied) == POINTS
    assert sorted(embedder.texts) == sorted({f"content {number // 2}" for number in range(1, POINTS)})
    assert (await record_of(smaller)).calls == embedder.calls


class Flickering(FakeEmbedder):
    """Fails at every third call."""

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        if (self.calls + 1) % 3 == 0:
            self.calls += 1
            raise EmbedderUnavailable("away")
        return await super().embed(texts)


async def test_flaky_provider_delays_copy_without_loss(smaller: RebuildTask) -> None:
    embedder, runs = Flickering(size=4), 0
    while True:
        runs += 1
        try:
            await CopyStep(note_s=0)(await task_of(smaller, embedder=embedder, provider="openai"))
            break
        except EmbedderUnavailable:
            continue

    assert runs > 1
    copied = await smaller.points_with_vectors(smaller.target)
    assert sum(bool(point["vector"]) for point in copied.values()) == POINTS - 1


async def test_resumes_after_refused_content(
    smaller: RebuildTask,
) -> None:
    """The points copied before are kept."""
    embedder = FakeEmbedder(size=4, refused="content 15")

    with pytest.raises(RebuildPaused, match=r"000000000030, 0.*000000000031 have content that"):
        await CopyStep(note_s=0)(await task_of(smaller, embedder=embedder))
    before = await record_of(smaller)
    embedder.refused, embedder.texts = None, []
    await CopyStep()(await task_of(smaller, embedder=embedder))

    assert before.copied > 0
    assert "content 1" not in embedder.texts, "a copied content is not embedded again"
    assert len(await smaller.points_with_vectors(smaller.target)) == POINTS


async def test_embedding_calls_stay_within_budget(smaller: RebuildTask) -> None:
    # Four calls a second.
    spec: Json = {"rebuild": {"maxEmbeddingCallsPerHour": 4 * 3600}}
    embedder = FakeEmbedder(size=4)
    task = await task_of(
        smaller, embedder=embedder, provider="openai", embedding={"provider": "wordllama", "batchSize": 4}, **spec
    )
    started_s = asyncio.get_running_loop().time()

    await CopyStep()(task)
    took_s = asyncio.get_running_loop().time() - started_s
    assert embedder.calls >= 5
    assert took_s > (embedder.calls - 4) / 4


async def test_can_be_paused_while_budget_is_used_up(smaller: RebuildTask) -> None:
    checks = 0

    async def check() -> None:
        nonlocal checks
        checks += 1
        if checks > 4:
            raise RebuildPaused("paused")

    embedder = FakeEmbedder(size=4)
    task = await task_of(smaller, embedder=embedder, check=check, rebuild={"maxEmbeddingCallsPerHour": 1})
    with pytest.raises(RebuildPaused):
        await asyncio.wait_for(CopyStep()(task), 30)
    assert embedder.calls == 0


@pytest.mark.parametrize("datatype", ["float16", "uint8"])
async def test_small_datatypes_equal_a_direct_write(qdrant_url: str, datatype: str) -> None:
    async with open_rebuild(qdrant_url, datatype=datatype) as rebuild:
        await fill(rebuild.world)
        await CopyStep()(await task_of(rebuild))
        copied = await rebuild.points_with_vectors(rebuild.target)

        await rebuild.server.points.delete(rebuild.target, {"must": []})
        await rebuild.server.points.upsert(
            rebuild.target, list((await rebuild.points_with_vectors(rebuild.source)).values())
        )
        assert copied == await rebuild.points_with_vectors(rebuild.target)


class Failing(list[Json]):
    """Requests of a service. Recording one may add a fault."""

    def __init__(self, service: FakeOpenAI, draw: random.Random) -> None:
        super().__init__()
        self._service, self._draw = service, draw

    def append(self, body: Json) -> None:
        super().append(body)
        if not self._service.faults and self._draw.random() < 0.3:
            self._service.faults.append(failure(503))


async def test_unavailable_service_is_awaited(
    smaller: RebuildTask,
) -> None:
    """The service fails at first, then for 30 % of the requests."""
    draw = random.Random(1)
    service = FakeOpenAI(dimensions=4, faults=[failure(503)] * 30)
    service.bodies = Failing(service, draw)
    spec: Any = {"provider": "openai", "embedding": {"provider": "wordllama", "batchSize": 4}}
    step, failures = CopyStep(note_s=0), 0
    with serve(service.app()) as url:
        options = OpenAIOptions(model="m", dimensions=4, base_url=f"{url}/v1", timeout_s=0.3, first_delay_s=0.01)
        embedder = OpenAIEmbedder(options)
        while True:
            try:
                await step(await task_of(smaller, embedder=embedder, **spec))
                break
            except EmbedderUnavailable:
                failures += 1
        await embedder.aclose()

    assert failures > 0
    copied = (await smaller.points_with_vectors(smaller.target)).values()
    assert sum(bool(point["vector"]) for point in copied) == POINTS - 1
