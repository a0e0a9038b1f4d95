"""Copy the changes that a rebuild's source got since the copy of all points, until few remain.

A pass by time reads points whose `updatedAt` is after the start of the last pass, less a margin for delayed writes
(`max_write_delay_ms`). It misses points without a time and physical deletions. The full pass compares all points of
both collections by `rev` and `updatedAt`, without vectors.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from agentmemory_operator.collections.replaced_collection import INDEXED_KEY, UPDATED_AT_INDEX
from agentmemory_operator.collections.rules.changes import CreateIndexes
from agentmemory_operator.collections.rules.collection import Observation
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import StoreRejected
from agentmemory_operator.memories.point_scan import page_size, read_rows_by_id, walk, walk_pair
from agentmemory_operator.memories.rules.comparison import VERSION_KEYS, Divergence, PointId, Rows, find_divergence
from agentmemory_operator.memories.rules.filters import Condition, equals
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.copy import build_budgeted_embedder
from agentmemory_operator.rebuilds.point_copier import PointCopier, VectorReuse, build_copier
from agentmemory_operator.rebuilds.task import RebuildRun

MAX_CLOCK_SKEW_MS = 50_000
"""Maximum difference by which writers' clocks may be behind the operator's, in milliseconds."""

MAX_REMAINING = 100
# Maximum number of passes by time. Under constant writes each pass finds points written during the pass before it, so
# the passes would not end. Step Move copies the rest.
MAX_PASSES = 10


log = logging.getLogger(__name__)


async def catch_up(task: RebuildRun) -> str:
    """Copy changes in up to 10 passes by time, until a pass finds at most 100 points. Then compare all points.

    Return the number of points and passes, as text for users.

    Raises:
        RebuildPaused: If the rebuild is paused, or a user must fix something before a point can be embedded.
        RebuildCancelled: If the rebuild is no longer requested.
        EmbedderUnavailable, StoreUnavailable, OutcomeUnknown: If the step must be repeated.
    """
    await create_time_index(task.server, task.source)
    embedder, copied, passes = build_budgeted_embedder(task), 0, 0
    while passes < MAX_PASSES:
        changed = await copy_changed(task, embedder=embedder)
        copied, passes = copied + changed, passes + 1
        if changed <= MAX_REMAINING:
            break
    copied += await copy_differences(task, embedder=embedder)
    if embedder is not None:
        await task.update_record(calls=embedder.calls)
    return f"{copied} points in {passes + 1} passes"


async def copy_changed(task: RebuildRun, *, embedder: Embedder | None = None, is_last: bool = False) -> int:
    """Copy points that changed in the source since the last pass and differ in the target; return their number.

    Errors are those of `catch_up`.

    Args:
        embedder: Embedder to use instead of `task.embedder`; None uses that.
        is_last: True while writers are held. To save time, `task.check` is then not called before each page, and the
            start of this pass is not recorded.
    """
    started_ms, copied = task.clock.now_ms(), 0
    async for source, target in walk_changed(task, task.record.since_ms - max_write_delay_ms(task)):
        if not is_last:
            await task.check()
        copied += await _carry(task, find_divergence(source, target), embedder)
    if not is_last:
        await task.update_record(since_ms=started_ms)
    return copied


async def copy_differences(task: RebuildRun, *, embedder: Embedder | None = None) -> int:
    """Compare all points of both collections, copy those that differ, and remove those that the source lacks.

    Errors are those of `catch_up`.

    Args:
        embedder: Embedder to use instead of `task.embedder`; None uses that.

    Returns:
        Number of points that were copied or removed.
    """
    copied = 0
    async for source, target in walk_all(task):
        await task.check()
        difference = find_divergence(source, target)
        copied += await _carry(task, difference, embedder)
        copied += await _remove_deleted(task, {id_: target[id_] for id_ in difference.extra})
    return copied


async def walk_changed(task: RebuildRun, since_ms: int) -> AsyncIterator[tuple[Rows, Rows]]:
    """Yield the source's points with `updatedAt` since a time, page by page, each page with these points in the target.

    Of each point only `rev` and `updatedAt` are read.

    Args:
        since_ms: The time, Unix milliseconds.
    """
    points, changed = task.server.points, {"must": [{"key": "updatedAt", "range": {"gte": since_ms}}]}
    page = page_size(task.source.collection, task.desired)
    async for source in walk(points, task.source_name, page, keys=VERSION_KEYS, filter_=changed):
        yield source, await _rows(task, task.target_name, source)


def walk_all(task: RebuildRun) -> AsyncIterator[tuple[Rows, Rows]]:
    """Yield `rev` and `updatedAt` of all points of the source and of the target, by ranges of ids."""
    page = page_size(task.source.collection, task.desired)
    return walk_pair(task.server.points, task.source_name, task.target_name, page, keys=VERSION_KEYS)


async def read_points(copier: PointCopier, ids: Sequence[PointId]) -> AsyncIterator[list[Json]]:
    """Yield the source's existing points among `ids`, page by page, as `PointCopier.update` accepts them."""
    for chunk in chunks_of(ids, copier.page):
        page, _ = await copier.read({"must": [{"has_id": list(chunk)}]}, limit=len(chunk))
        yield page


async def _carry(task: RebuildRun, difference: Divergence, embedder: Embedder | None) -> int:
    embedder = embedder or task.embedder
    await _remove(task, difference.strayed)
    vector_reuse = VectorReuse(embedder, task.server.points, task.target_name) if embedder else None
    copier = build_copier(task, embedder=vector_reuse)
    ids = [*difference.stale, *difference.strayed]
    async for points in read_points(copier, ids):
        if vector_reuse is not None:
            await vector_reuse.prefetch([point["id"] for point in points])
        await copier.update(points)
    return len(ids)


async def _remove_deleted(task: RebuildRun, target_only: Rows) -> int:
    """Remove points that only the target has; return their number.

    The source is read again by id first, because the points may have been added there in the meantime.
    """
    deleted = target_only.keys() - (await _rows(task, task.source_name, target_only)).keys()
    await _remove(task, {id_: target_only[id_].get("rev") for id_ in deleted})
    return len(deleted)


async def _remove(task: RebuildRun, revisions: Mapping[PointId, int | None]) -> None:
    """Remove points from the target, each only if it still has the given revision; None stands for no `rev`."""
    by_rev: dict[int | None, list[PointId]] = {}
    for id_, rev in revisions.items():
        by_rev.setdefault(rev, []).append(id_)
    for rev, ids in by_rev.items():
        await task.check()
        same_rev: Condition = {"is_empty": {"key": "rev"}} if rev is None else equals("rev", rev)
        await task.server.points.delete(task.target_name, {"must": [{"has_id": list(ids)}, same_rev]})


async def _rows(task: RebuildRun, collection: str, ids: Iterable[PointId]) -> Rows:
    page = page_size(task.source.collection, task.desired)
    return await read_rows_by_id(task.server.points, collection, ids, page, keys=VERSION_KEYS)


def max_write_delay_ms(task: RebuildRun) -> int:
    """Return how many milliseconds after its `updatedAt` a write may still take effect, by the operator's clock.

    `updatedAt` is the time at which a write is sent (`agents/fenced_store.py`). The write may be in transit for the
    timeout of a call, and the writer's clock may be behind.
    """
    return MAX_CLOCK_SKEW_MS + task.server.endpoint.timeout_s * 1000


async def create_time_index(server: Server, source: Observation) -> None:
    """Create an index on `updatedAt` for the passes by time, and record in the source's metadata that it is temporary.

    Does nothing if the index exists. If Qdrant rejects the index, the passes by time run without it.
    """
    if UPDATED_AT_INDEX in source.collection.indexes:
        return
    await server.snapshots.write_metadata(source.physical, {INDEXED_KEY: True})
    try:
        await server.collections.apply(source.physical, CreateIndexes((UPDATED_AT_INDEX,)))
    except StoreRejected as exc:
        # Continue without the index, for example if strict mode allows no further index. The passes then take longer.
        log.info("%s has no index on updatedAt: %s", source.physical, exc)
