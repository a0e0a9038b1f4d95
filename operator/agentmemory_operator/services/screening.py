"""Looks at what was written into a rebuild's target around the move, for vectors that are not its own.

A writer that slept may have sent a vector of the old embedding, or words in the old language, to an alias that led to
the target already. Nobody was told that this was stored, but it lies there: its vectors are made anew.
"""

from collections.abc import Sequence

from agentmemory_operator.domain.carried_vectors import CarriedVectors
from agentmemory_operator.domain.effective import effective_settings
from agentmemory_operator.domain.filters import NOT_DELETED, Filter, equals, only
from agentmemory_operator.domain.samples import vectors_of
from agentmemory_operator.ports import Embedder, Json
from agentmemory_operator.services.carrying import ends_of
from agentmemory_operator.services.directory import Agent, open_copy
from agentmemory_operator.services.rebuild_tasks import Task
from agentmemory_operator.services.rows import read_pages
from agentmemory_operator.services.windows import Windows

PAGE = 64


async def screen(task: Task) -> int:
    """Make vectors anew that are not what the target's embedding makes; return how many those were.

    Raises:
        EmbedderUnavailable, StoreUnavailable, OutcomeUnknown: to be done again.
    """
    changed = _changed_around(task)
    wrong = await _renew_vectors(task, task.embedder, changed) if task.embedder is not None else 0
    source, target = ends_of(task)
    if target.keyword is not None and source.keyword not in (None, target.keyword):
        await _renew_words(task, changed)
    return wrong


def _changed_around(task: Task) -> Filter:
    assert task.record.moved_ms is not None
    since_ms = task.record.moved_ms - task.server.endpoint.timeout_s * 1000
    return {"must": [{"key": "updatedAt", "range": {"gte": since_ms}}, NOT_DELETED]}


async def _renew_vectors(task: Task, embedder: Embedder, changed: Filter) -> int:
    wrong, agent = 0, await _target_of(task)
    vectors = CarriedVectors(task.source.collection, task.desired, is_embedded=True)
    async for points in read_pages(agent, _asked(changed, with_vector=True)):
        # What has no revision is nobody's whose writes could be late.
        points = [point for point in points if point["payload"].get("content") and "rev" in point["payload"]]
        made = await embedder.embed([point["payload"]["content"] for point in points]) if points else []
        operations = [
            _replacing(point, vector, task.clock.now_ms())
            for point, vector in zip(points, made, strict=True)
            if not vectors.is_meant(vectors_of(point).get("", ()), vector)
        ]
        if operations:
            await task.server.points.batch(task.target_name, operations, strong=True)
        wrong += len(operations)
    return wrong


async def _renew_words(task: Task, changed: Filter) -> None:
    agent = await _target_of(task)
    async for points in read_pages(agent, _asked(changed, with_vector=False)):
        await Windows(task.clock).renew(agent, {point["id"] for point in points})


async def _target_of(task: Task) -> Agent:
    return await open_copy(task.server.points, effective_settings(task.memory), task.target_name)


def _asked(filter_: Filter, *, with_vector: bool) -> Json:
    return {"filter": filter_, "limit": PAGE, "with_payload": True, "with_vector": with_vector}


def _replacing(point: Json, vector: Sequence[float], now_ms: int) -> Json:
    """Return the operation that puts a vector in the place of a point's, if that is as it was read."""
    row, vectors = point["payload"], point["vector"]
    made = vectors | {"": vector} if isinstance(vectors, dict) else vector
    newer = {"id": point["id"], "vector": made, "payload": row | {"rev": row["rev"] + 1, "updatedAt": now_ms}}
    unchanged = only(point["id"], equals("rev", row["rev"]), NOT_DELETED)
    return {"upsert": {"points": [newer], "update_filter": unchanged, "update_mode": "update_only"}}
