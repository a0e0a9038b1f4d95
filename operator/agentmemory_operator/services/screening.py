"""Looks at what was written into a rebuild's target around the move, for vectors that are not its own.

A writer that slept may have sent a vector of the old embedding, or words in the old language, to an alias that led to
the target already. Nobody was told that this was stored, but it lies there: its vectors are made anew.
"""

import math
from collections.abc import AsyncIterator, Sequence

from agentmemory_operator.domain.effective import effective_settings
from agentmemory_operator.domain.filters import NOT_DELETED, Filter, equals, only
from agentmemory_operator.ports import Embedder, Json, Vector
from agentmemory_operator.services.directory import open_copy
from agentmemory_operator.services.rebuild_tasks import Task
from agentmemory_operator.services.reshaping import End
from agentmemory_operator.services.windows import Windows

PAGE = 64
ALIKE = 0.99
"""Cosine of two vectors of one text in one space; stored ones are rounded, those of two spaces are near to 0."""


async def screen(task: Task) -> int:
    """Make vectors anew that are not what the target's embedding makes; return how many those were.

    Raises:
        EmbedderUnavailable, StoreUnavailable, OutcomeUnknown: to be done again.
    """
    changed = _changed_around(task)
    wrong = await _renew_vectors(task, task.embedder, changed) if task.embedder is not None else 0
    source = End(physical=task.source_name, collection=task.source.collection)
    target = End(physical=task.target_name, collection=task.desired)
    if target.keyword is not None and source.keyword not in (None, target.keyword):
        await _renew_words(task, changed)
    return wrong


def _changed_around(task: Task) -> Filter:
    assert task.record.moved_ms is not None
    since_ms = task.record.moved_ms - task.server.endpoint.timeout_s * 1000
    return {"must": [{"key": "updatedAt", "range": {"gte": since_ms}}, NOT_DELETED]}


async def _renew_vectors(task: Task, embedder: Embedder, changed: Filter) -> int:
    wrong = 0
    async for points in _pages(task, changed, with_vector=True):
        # What has no revision is nobody's whose writes could be late.
        points = [point for point in points if point["payload"].get("content") and "rev" in point["payload"]]
        made = await embedder.embed([point["payload"]["content"] for point in points]) if points else []
        strange = [pair for pair in zip(points, made, strict=True) if not _is_alike(_dense_of(pair[0]), pair[1])]
        operations = [_replacing(point, vector, task.clock.now_ms()) for point, vector in strange]
        if operations:
            await task.server.points.batch(task.target_name, operations, strong=True)
        wrong += len(operations)
    return wrong


async def _renew_words(task: Task, changed: Filter) -> None:
    agent = await open_copy(task.server.points, effective_settings(task.memory), task.target_name)
    async for points in _pages(task, changed, with_vector=False):
        await Windows(task.clock).renew(agent, {point["id"] for point in points})


async def _pages(task: Task, filter_: Filter, *, with_vector: bool) -> AsyncIterator[list[Json]]:
    body: Json = {"filter": filter_, "limit": PAGE, "with_payload": True, "with_vector": with_vector}
    while True:
        points, following = await task.server.points.scroll(task.target_name, body)
        yield points
        if following is None:
            return
        body = body | {"offset": following}


def _dense_of(point: Json) -> Vector:
    vector = point["vector"]
    dense: Vector = vector.get("", ()) if isinstance(vector, dict) else vector
    return dense


def _is_alike(one: Vector, other: Vector) -> bool:
    if len(one) != len(other):
        return False
    lengths = math.hypot(*one) * math.hypot(*other)
    return lengths > 0 and sum(a * b for a, b in zip(one, other, strict=True)) >= ALIKE * lengths


def _replacing(point: Json, vector: Sequence[float], now_ms: int) -> Json:
    """Return the operation that puts a vector in the place of a point's, if that is as it was read."""
    row, vectors = point["payload"], point["vector"]
    made = vectors | {"": vector} if isinstance(vectors, dict) else vector
    newer = {"id": point["id"], "vector": made, "payload": row | {"rev": row["rev"] + 1, "updatedAt": now_ms}}
    unchanged = only(point["id"], equals("rev", row["rev"]), NOT_DELETED)
    return {"upsert": {"points": [newer], "update_filter": unchanged, "update_mode": "update_only"}}
