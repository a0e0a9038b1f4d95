"""Carries into a rebuild's target what was changed in its source meanwhile, until hardly anything is left.

A pass by time asks for what bears a time since the last pass, and is short; it misses what bears no time, and what was
really deleted. The full pass compares every point of both collections by `rev` and `updatedAt`, without vectors.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from agentmemory_operator.domain.changes import CreateIndexes
from agentmemory_operator.domain.collection import Observed
from agentmemory_operator.domain.divergence import VERSION_KEYS, PointId, divergence
from agentmemory_operator.domain.filters import Condition, Filter, equals
from agentmemory_operator.errors import StoreRejected
from agentmemory_operator.ports import Embedder, Json
from agentmemory_operator.services.carrying import Carrying, carrying_of
from agentmemory_operator.services.copying import embedding_of
from agentmemory_operator.services.kept_vectors import KeptVectors
from agentmemory_operator.services.rebuild_tasks import Task
from agentmemory_operator.services.servers import Server
from agentmemory_operator.services.walks import Rows, aligned, page_of, rows_of, walk

SKEW_MS = 60_000
"""By how much the clocks of writers may differ, and how long a write may take from its time on."""

LITTLE = 100
# Under constant writing each pass finds what came during the one before it; the move carries the rest.
MOST_PASSES = 10

INDEXED_KEY = "agentmemoryIndexed"
"""Key of the source's metadata: its index on `updatedAt` was made for the passes, and goes after them."""

_INDEX = ("updatedAt", "integer")
_log = logging.getLogger(__name__)


async def catch_up(task: Task) -> str:
    """Carry what was changed, in ever shorter passes, and at last what no pass by time finds.

    Raises:
        EmbedderUnavailable, StoreUnavailable, OutcomeUnknown: to be done again.
    """
    await prepare_source(task.server, task.source)
    embedder, carried, passes = embedding_of(task), 0, 0
    while passes < MOST_PASSES:
        found = await carry_changed(task, embedder=embedder)
        carried, passes = carried + found, passes + 1
        if found <= LITTLE:
            break
    carried += await carry_all(task, embedder=embedder)
    if embedder is not None:
        await task.note(calls=embedder.calls)
    return f"{carried} points in {passes + 1} passes"


async def carry_changed(task: Task, *, embedder: Embedder | None = None, is_last: bool = False) -> int:
    """Carry what bears a time since the last pass; return how many points that were.

    Args:
        embedder: in the place of the task's.
        is_last: writers wait for it: nothing is asked or noted that has time.
    """
    begun_ms, carried = task.clock.now_ms(), 0
    async for source, target in changed_since(task, task.record.since_ms - SKEW_MS):
        if not is_last:
            await task.check()
        carried += await _carry(task, source, target, embedder)
    if not is_last:
        await task.note(since_ms=begun_ms)
    return carried


async def carry_all(task: Task, *, embedder: Embedder | None = None) -> int:
    """Compare all points, carry what differs, and remove what the source has no more; return how many that were.

    Args:
        embedder: in the place of the task's.
    """
    carried = 0
    async for source, target in every_point(task):
        await task.check()
        carried += await _carry(task, source, target, embedder)
        carried += await _remove_gone(task, source, target)
    return carried


async def changed_since(task: Task, since_ms: int) -> AsyncIterator[tuple[Rows, Rows]]:
    """Yield the source's points that bear a time since then, with the target's of the same ids, by versions."""
    points, changed = task.server.points, {"must": [{"key": "updatedAt", "range": {"gte": since_ms}}]}
    page = page_of(task.source.collection, task.desired)
    async for source in walk(points, task.source_name, page, keys=VERSION_KEYS, filter_=changed):
        yield source, await _rows(task, task.target_name, source)


async def every_point(task: Task) -> AsyncIterator[tuple[Rows, Rows]]:
    """Yield the points of both, stretch by stretch, by versions."""
    page = page_of(task.source.collection, task.desired)
    points, names = task.server.points, (task.source_name, task.target_name)
    async for stretch in aligned(*(walk(points, name, page, keys=VERSION_KEYS) for name in names)):
        yield stretch


async def read_points(carrying: Carrying, ids: Sequence[PointId]) -> AsyncIterator[list[Json]]:
    """Yield those of the source's points that are there, as they are carried, a few at a time."""
    for start in range(0, len(ids), carrying.page):
        part = list(ids[start : start + carrying.page])
        found, _ = await carrying.read({"must": [{"has_id": part}]}, limit=len(part))
        yield found


async def _carry(task: Task, source: Rows, target: Rows, embedder: Embedder | None) -> int:
    found, embedder = divergence(source, target), embedder or task.embedder
    await _remove(task, found.strayed)
    kept = KeptVectors(embedder, task.server.points, task.target_name) if embedder else None
    carrying = carrying_of(task, embedder=kept)
    ids = [*found.carried, *found.strayed]
    async for points in read_points(carrying, ids):
        if kept is not None:
            await kept.look_up([point["id"] for point in points])
        await carrying.update(points)
    return len(ids)


async def _remove_gone(task: Task, source: Rows, target: Rows) -> int:
    """Remove what is in the target alone; the source is asked for it by name, since it may have come meanwhile."""
    alone = target.keys() - source.keys()
    gone = alone - (await _rows(task, task.source_name, alone)).keys()
    await _remove(task, {id_: target[id_].get("rev") for id_ in gone})
    return len(gone)


async def _remove(task: Task, revisions: Mapping[PointId, int | None]) -> None:
    """Remove points from the target, each if it still has the revision that it was seen with."""
    by_rev: dict[int | None, list[PointId]] = {}
    for id_, rev in revisions.items():
        by_rev.setdefault(rev, []).append(id_)
    for rev, ids in by_rev.items():
        await task.check()
        await task.server.points.delete(task.target_name, _with_revision(rev, ids))


def _with_revision(rev: int | None, ids: Sequence[PointId]) -> Filter:
    same: Condition = {"is_empty": {"key": "rev"}} if rev is None else equals("rev", rev)
    return {"must": [{"has_id": list(ids)}, same]}


async def _rows(task: Task, collection: str, ids: Iterable[PointId]) -> Rows:
    page = page_of(task.source.collection, task.desired)
    return await rows_of(task.server.points, collection, ids, page, keys=VERSION_KEYS)


async def prepare_source(server: Server, source: Observed) -> None:
    """Have the passes find what was changed by an index; one that was there already stays afterwards."""
    if _INDEX in source.collection.indexes:
        return
    await server.snapshots.write_metadata(source.physical, {INDEXED_KEY: True})
    try:
        await server.collections.apply(source.physical, CreateIndexes((_INDEX,)))
    except StoreRejected as exc:
        # As many indexes as the strict mode allows: the passes take longer.
        _log.info("%s gets no index on updatedAt: %s", source.physical, exc)


async def restore_source(server: Server, physical: str) -> None:
    """Take away the index that was made for the passes; what is gone is no error."""
    metadata = await server.snapshots.metadata(physical)
    if metadata is None or INDEXED_KEY not in metadata:
        return
    await server.collections.drop_index(physical, _INDEX[0])
    await server.snapshots.write_metadata(physical, {INDEXED_KEY: None})
