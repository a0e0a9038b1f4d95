"""Carries into a rebuild's target what was changed in its source meanwhile, until hardly anything is left.

A pass by time asks for what bears a time since the last pass, and is short; it misses what bears no time, and what was
really deleted. The full pass compares every point of both collections by `rev` and `updatedAt`, without vectors.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from agentmemory_operator.collections.previous import INDEXED_KEY, UPDATED_AT_INDEX
from agentmemory_operator.collections.rules.changes import CreateIndexes
from agentmemory_operator.collections.rules.collection import Observed
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import StoreRejected
from agentmemory_operator.memories.point_scan import page_of, rows_of, side_by_side, walk
from agentmemory_operator.memories.rules.comparison import VERSION_KEYS, Divergence, PointId, Rows, divergence
from agentmemory_operator.memories.rules.filters import Condition, equals
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.carry import Carrying, KeptVectors, carrying_of
from agentmemory_operator.rebuilds.copy import embedding_of
from agentmemory_operator.rebuilds.task import RebuildRun

CLOCKS_BEHIND_MS = 50_000
"""By how much the clocks of writers may be behind the operator's."""

LITTLE = 100
# Under constant writing each pass finds what came during the one before it; the move carries the rest.
MOST_PASSES = 10


log = logging.getLogger(__name__)


async def catch_up(task: RebuildRun) -> str:
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


async def carry_changed(task: RebuildRun, *, embedder: Embedder | None = None, is_last: bool = False) -> int:
    """Carry what bears a time since the last pass; return how many points that were.

    Args:
        embedder: in the place of the task's.
        is_last: writers wait for it: nothing is asked or noted that has time.
    """
    begun_ms, carried = task.clock.now_ms(), 0
    async for source, target in changed_since(task, task.record.since_ms - writers_behind_ms(task)):
        if not is_last:
            await task.check()
        carried += await _carry(task, divergence(source, target), embedder)
    if not is_last:
        await task.note(since_ms=begun_ms)
    return carried


async def carry_all(task: RebuildRun, *, embedder: Embedder | None = None) -> int:
    """Compare all points, carry what differs, and remove what the source has no more; return how many that were.

    Args:
        embedder: in the place of the task's.
    """
    carried = 0
    async for source, target in every_point(task):
        await task.check()
        found = divergence(source, target)
        carried += await _carry(task, found, embedder)
        carried += await _remove_gone(task, {id_: target[id_] for id_ in found.extra})
    return carried


async def changed_since(task: RebuildRun, since_ms: int) -> AsyncIterator[tuple[Rows, Rows]]:
    """Yield the source's points that bear a time since then, with the target's of the same ids, by versions."""
    points, changed = task.server.points, {"must": [{"key": "updatedAt", "range": {"gte": since_ms}}]}
    page = page_of(task.source.collection, task.desired)
    async for source in walk(points, task.source_name, page, keys=VERSION_KEYS, filter_=changed):
        yield source, await _rows(task, task.target_name, source)


def every_point(task: RebuildRun) -> AsyncIterator[tuple[Rows, Rows]]:
    """Yield the points of both, stretch by stretch, by versions."""
    page = page_of(task.source.collection, task.desired)
    return side_by_side(task.server.points, task.source_name, task.target_name, page, keys=VERSION_KEYS)


async def read_points(carrying: Carrying, ids: Sequence[PointId]) -> AsyncIterator[list[Json]]:
    """Yield those of the source's points that are there, as they are carried, a few at a time."""
    for part in chunks_of(ids, carrying.page):
        found, _ = await carrying.read({"must": [{"has_id": list(part)}]}, limit=len(part))
        yield found


async def _carry(task: RebuildRun, found: Divergence, embedder: Embedder | None) -> int:
    embedder = embedder or task.embedder
    await _remove(task, found.strayed)
    kept = KeptVectors(embedder, task.server.points, task.target_name) if embedder else None
    carrying = carrying_of(task, embedder=kept)
    ids = [*found.behind, *found.strayed]
    async for points in read_points(carrying, ids):
        if kept is not None:
            await kept.look_up([point["id"] for point in points])
        await carrying.update(points)
    return len(ids)


async def _remove_gone(task: RebuildRun, alone: Rows) -> int:
    """Remove what is in the target alone; the source is asked for it by name, since it may have come meanwhile."""
    gone = alone.keys() - (await _rows(task, task.source_name, alone)).keys()
    await _remove(task, {id_: alone[id_].get("rev") for id_ in gone})
    return len(gone)


async def _remove(task: RebuildRun, revisions: Mapping[PointId, int | None]) -> None:
    """Remove points from the target, each if it still has the revision that it was seen with."""
    by_rev: dict[int | None, list[PointId]] = {}
    for id_, rev in revisions.items():
        by_rev.setdefault(rev, []).append(id_)
    for rev, ids in by_rev.items():
        await task.check()
        same: Condition = {"is_empty": {"key": "rev"}} if rev is None else equals("rev", rev)
        await task.server.points.delete(task.target_name, {"must": [{"has_id": list(ids)}, same]})


async def _rows(task: RebuildRun, collection: str, ids: Iterable[PointId]) -> Rows:
    page = page_of(task.source.collection, task.desired)
    return await rows_of(task.server.points, collection, ids, page, keys=VERSION_KEYS)


def writers_behind_ms(task: RebuildRun) -> int:
    """By how many milliseconds the time of a write may be earlier than the operator's when the write takes effect.

    A write bears the time at which it is sent (`agents/fenced_store.py`), and is on its way for as long as a call to
    the server may take.
    """
    return CLOCKS_BEHIND_MS + task.server.endpoint.timeout_s * 1000


async def prepare_source(server: Server, source: Observed) -> None:
    """Have the passes find what was changed by an index; one that was there already stays afterwards."""
    if UPDATED_AT_INDEX in source.collection.indexes:
        return
    await server.snapshots.write_metadata(source.physical, {INDEXED_KEY: True})
    try:
        await server.collections.apply(source.physical, CreateIndexes((UPDATED_AT_INDEX,)))
    except StoreRejected as exc:
        # As many indexes as the strict mode allows: the passes take longer.
        log.info("%s has no index on updatedAt: %s", source.physical, exc)
