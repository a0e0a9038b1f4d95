"""Copy late writes from a rebuild's source after the move, until the source gets no further ones.

A request in flight during the move may write to the source for as long as a request may take. Such writes after the
last pass were not acknowledged. So writes in the target since the move take precedence. No copy may split a chain of
versions: if a change affects several memories, the source may have received only some of its writes. A point that is
copied as pending is later joined to its chain, or abandoned, by `memories/chains.py`.

| in the source | in the target | copied |
|---|---|---|
| a tombstone | nothing | unchanged |
| a memory that supersedes another | nothing | as pending |
| another memory | nothing | unchanged |
| anything | a tombstone, a point written since the move, or one with the same or a later `rev` | no |
| a tombstone | a memory | as pending if it has links, else unchanged |
| a memory with other links | any | no: the memory at the other end of the link decides |
| a memory that is not pending | a pending memory | no: the pending memory is joined to its chain in the target |
| a memory | any | unchanged |

The first row that matches applies. A copy may also get the mark of stale keyword texts (`window_mark`). Its time in the
change log, if it has one, becomes the time of the copy.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentmemory_operator.agents.direct_agents import open_by_name
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.replaced_collection import (
    delete_keeping_snapshots,
    drop_rebuild_index,
    mark_previous,
)
from agentmemory_operator.collections.rules.announcement import MOVING_KEY
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY
from agentmemory_operator.errors import RebuildPaused, StoreUnavailable, TransientError
from agentmemory_operator.lifecycle.erasure_replay import ErasureReplay
from agentmemory_operator.memories import chains, session_keywords
from agentmemory_operator.memories.point_pages import conditional_upsert, read_pages
from agentmemory_operator.memories.rules.comparison import PointId, Rows, find_divergence, rev_of, vectors_of
from agentmemory_operator.memories.rules.filters import IS_PENDING, NOT_DELETED, Filter, equals, point_filter
from agentmemory_operator.memories.rules.links import LINK_KEYS
from agentmemory_operator.memories.rules.record import LOGGED_KEY, TOMBSTONE_KEY, Payload, window_mark
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.catch_up import max_write_delay_ms, read_points, walk_all, walk_changed
from agentmemory_operator.rebuilds.copy import build_budgeted_embedder
from agentmemory_operator.rebuilds.point_copier import build_copier, ends_of
from agentmemory_operator.rebuilds.rules.vector_tolerance import VectorTolerance
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.effective.policies import rebuild_settings
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.times import render_second

PAGE = 64
MAX_RENEWALS = 3
"""Maximum attempts to renew the vectors of a page. Each further one means that a memory of it was changed meanwhile."""

Row = Mapping[str, Any]


async def renew_late_vectors(task: RebuildRun, embedder: Embedder | None) -> int:
    """Embed memories again that changed since shortly before the move, if their vector is not that of their text.

    If both collections have keyword vectors, but by different rules, the keyword texts of these memories are computed
    again too.

    Args:
        embedder: Budgeted embedder of the target; None if the rebuild copies vectors.

    Returns:
        Number of replaced embeddings.

    Raises:
        EmbedderUnavailable, StoreUnavailable, OutcomeUnknown: If the step must be repeated.
        RebuildPaused, RequestInvalid: If the embedding provider rejects key, model or a text.
    """
    changed = _changed_near_move(task)
    renewed = await _renew_vectors(task, embedder, changed) if embedder is not None else 0
    source, target = ends_of(task)
    if target.keyword is not None and source.keyword not in (None, target.keyword):
        await _renew_words(task, changed)
    return renewed


def _changed_near_move(task: RebuildRun) -> Filter:
    since_ms = _moved_ms(task) - max_write_delay_ms(task)
    return {"must": [{"key": "updatedAt", "range": {"gte": since_ms}}, NOT_DELETED]}


async def _renew_vectors(task: RebuildRun, embedder: Embedder, changed: Filter) -> int:
    renewed, agent = 0, await _target_of(task)
    async for points in read_pages(agent, _page_request(changed, with_vector=True)):
        renewed += await _renew_page(task, agent, embedder, points)
    return renewed


async def _renew_page(task: RebuildRun, agent: Agent, embedder: Embedder, points: list[Json]) -> int:
    """Renew the outdated vectors of points; return their number. Points that change in the meantime are read again."""
    renewed, vectors = 0, VectorTolerance(task.source.collection, task.desired, is_embedded=True)
    for _ in range(MAX_RENEWALS):
        # Skip points without `rev`: the API did not write them, so no late write has changed them.
        points = [point for point in points if point["payload"].get("content") and "rev" in point["payload"]]
        embedded = await embedder.embed([point["payload"]["content"] for point in points]) if points else []
        outdated = {
            point["id"]: (point, vector)
            for point, vector in zip(points, embedded, strict=True)
            if not vectors.is_embedding_of(vectors_of(point).get("", ()), vector)
        }
        if not outdated:
            return renewed
        operations = [_replace_operation(*pair, task.clock.now_ms()) for pair in outdated.values()]
        await task.server.points.batch(task.target_name, operations, strong=True)
        # Qdrant does not report which points it has replaced. A change of the payload alone keeps the outdated vector.
        still_outdated: list[Json] = []
        async for page in read_pages(agent, _page_request(_memories(list(outdated)), with_vector=True)):
            remaining = [
                point
                for point in page
                if not vectors.is_embedding_of(vectors_of(point).get("", ()), outdated[point["id"]][1])
            ]
            renewed += len(page) - len(remaining)
            still_outdated += remaining
        points = still_outdated
        if not points:
            return renewed
    raise StoreUnavailable(f"{len(points)} memories were changed while their vectors were embedded again: retrying")


async def _renew_words(task: RebuildRun, changed: Filter) -> None:
    agent = await _target_of(task)
    async for points in read_pages(agent, _page_request(changed, with_vector=False)):
        await session_keywords.rewrite_texts(agent, {point["id"] for point in points})


async def _target_of(task: RebuildRun) -> Agent:
    return await open_by_name(task.server.points, effective_settings(task.memory), task.target_name, task.clock)


def _memories(ids: list[PointId]) -> Filter:
    return {"must": [{"has_id": ids}, NOT_DELETED]}


def _page_request(filter_: Filter, *, with_vector: bool) -> Json:
    return {"filter": filter_, "limit": PAGE, "with_payload": True, "with_vector": with_vector}


def _replace_operation(point: Json, vector: Sequence[float], now_ms: int) -> Json:
    """Return the operation that replaces a point's vector, if the point is unchanged since it was read."""
    row, vectors = point["payload"], point["vector"]
    new_vector = vectors | {"": vector} if isinstance(vectors, dict) else vector
    new_point = {"id": point["id"], "vector": new_vector, "payload": row | {"rev": row["rev"] + 1, "updatedAt": now_ms}}
    unchanged = point_filter(point["id"], equals("rev", row["rev"]), NOT_DELETED)
    return conditional_upsert(new_point, unchanged)


PENDING_PAGE = 100
PASS_S = 0.5
"""Seconds between two passes."""


@dataclass(slots=True)
class DrainStep:
    """Step Drain: copies late writes from the source into the target.

    Attributes:
        monotonic, sleep: Clock and sleep of this process, in seconds.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def __call__(self, task: RebuildRun) -> str:
        """Copy late writes until a full pass finds none; return the result for users.

        The last pass starts at least one request timeout after the first. If the source does not exist, nothing is
        copied. Then outdated vectors are renewed (`renew_late_vectors`), and the announcement in the source is removed.

        Raises:
            RequestInvalid: If the embedding provider rejects a text of a changed memory.
            TransientError: If the step must be repeated, also after a user has fixed something.
        """
        # Do not stop while the embedder waits for budget: after the move a rebuild is neither paused nor cancelled.
        embedder = build_budgeted_embedder(replace(task, check=_check_nothing))
        try:
            copied = await self._copy_all_late(task, embedder)
            renewed = await renew_late_vectors(task, embedder)
        except RebuildPaused as exc:
            raise TransientError(str(exc)) from exc
        if embedder is not None:
            await task.update_record(calls=embedder.calls)
        if await task.server.snapshots.metadata(task.source_name) is not None:
            await task.server.snapshots.write_metadata(task.source_name, {MOVING_KEY: None})
        return f"{copied} late points; {renewed} outdated vectors embedded again"

    async def _copy_all_late(self, task: RebuildRun, embedder: Embedder | None) -> int:
        started_s, copied = self.monotonic(), 0
        is_last = await task.server.snapshots.metadata(task.source_name) is None
        while not is_last:
            is_over = self.monotonic() - started_s >= task.server.endpoint.timeout_s
            pages = walk_all(task) if is_over else walk_changed(task, _since_ms(task))
            changed = await _copy_late(task, embedder, pages)
            copied, is_last = copied + changed, is_over and not changed
            if not is_last:
                await self.sleep(PASS_S)
        if copied:
            await _settle(task)
        return copied


async def _check_nothing() -> None:
    """Let the step continue."""


async def _copy_late(task: RebuildRun, embedder: Embedder | None, pages: AsyncIterator[tuple[Rows, Rows]]) -> int:
    copied, copier = 0, build_copier(task, embedder=embedder)
    async for source, target in pages:
        async for points in read_points(copier, find_divergence(source, target).stale):
            inserts, updates = await _split_late(task, points)
            # Insert successors before their predecessors are updated, so that no link points to a missing memory.
            await copier.insert(inserts)
            await copier.update(updates, before_ms=_moved_ms(task))
            copied += len(inserts) + len(updates)
    return copied


async def _settle(task: RebuildRun) -> None:
    """Complete the changes that were copied as pending, and repeat the erasures since the move."""
    points, settings = task.server.points, effective_settings(task.memory)
    agent = await open_by_name(points, settings, task.target_name, task.clock)
    async for page in read_pages(
        agent, {"filter": {"must": [IS_PENDING]}, "limit": PENDING_PAGE, "with_payload": True}
    ):
        for point in page:
            await chains.complete(agent, point["payload"])
    # Repeat erasures on the late points: what was erased in the target must not reappear through writes to the source.
    names = (task.source_name, task.target_name)
    await ErasureReplay(task.clock).erase_late(points, *names, task.memory, since_ms=_moved_ms(task))


async def _split_late(task: RebuildRun, points: list[Json]) -> tuple[list[Json], list[Json]]:
    """Return the late points to insert and those to replace, each with its payload for the target. Omit all others."""
    ids = [point["id"] for point in points]
    existing = {row["id"]: row["payload"] or {} for row in await task.server.points.retrieve(task.target_name, ids)}
    inserts, updates = [], []
    for point in points:
        row, live = point["payload"] or {}, existing.get(point["id"])
        if live is None:
            inserts.append(point | {"payload": _with_log_time(build_late_insert(row), task)})
        elif (payload := build_late_update(row, live, moved_ms=_moved_ms(task))) is not None:
            updates.append(point | {"payload": _with_log_time(payload, task)})
    return inserts, updates


def _with_log_time(payload: Payload, task: RebuildRun) -> Payload:
    """Return a late point's payload with the current time in the change log, or unchanged if the log lacks the point.

    Readers of the log may already have passed the time at which the point was written.
    """
    return payload | {LOGGED_KEY: task.clock.now_ms()} if LOGGED_KEY in payload else payload


def _since_ms(task: RebuildRun) -> int:
    return min(task.record.since_ms, _moved_ms(task)) - max_write_delay_ms(task)


def _moved_ms(task: RebuildRun) -> int:
    assert task.record.moved_ms is not None
    return task.record.moved_ms


async def mark_source_replaced(task: RebuildRun) -> str:
    """Step Settle: mark the source as replaced, or remove it if `keepPreviousHours` is 0. Return the result for users.

    The target loses its own mark as replaced, which it has in a rollback. The index that `create_time_index` created in
    the source is dropped. A missing source is no error.

    Raises:
        TransientError: If the step must be repeated.
    """
    server, source = task.server, task.source_name
    # Remove the mark as replaced, which the target has in a rollback: it is an earlier source and now live again.
    await server.snapshots.write_metadata(task.target_name, {PREVIOUS_KEY: None})
    if await server.snapshots.metadata(source) is None:
        return f"{source} no longer exists"
    hours = rebuild_settings(task.memory.spec).keep_previous_hours
    if hours == 0:
        await delete_keeping_snapshots(server.collections, server.snapshots, source)
        return f"{source} is removed"
    await drop_rebuild_index(server, source)
    now_s, moved_ms = task.clock.now_ms() / 1000, task.record.moved_ms or task.record.started_ms
    expires_at = render_second(now_s + hours * 3600)
    since = render_second(moved_ms / 1000)
    await mark_previous(server, source, since=since, removal_time=expires_at, reference={"rebuild": task.target_name})
    return f"{source} is kept until {expires_at}"


def build_late_insert(row: Row) -> Payload:
    """Return the payload for a late point that the target lacks, by the module's table.

    Args:
        row: Payload in the source.
    """
    if TOMBSTONE_KEY in row:
        return dict(row)
    joins = {"pending": True} if row.get("supersedesId") else {}
    return {**row, **joins, **window_mark(row)}


def build_late_update(row: Row, live: Row, *, moved_ms: int) -> Payload | None:
    """Return the payload for a late point that exists in the target, by the module's table; None keeps the target's.

    Args:
        row: Payload in the source.
        live: Payload in the target.
        moved_ms: Time of the move, Unix milliseconds.
    """
    if rev_of(live) >= rev_of(row) or live.get("updatedAt", 0) >= moved_ms or TOMBSTONE_KEY in live:
        return None
    if TOMBSTONE_KEY in row:
        is_linked = any(row.get(key) for key in LINK_KEYS)
        return {**row, **({"pending": True} if is_linked else {}), **window_mark(live)}
    is_moved = any(row.get(key) != live.get(key) for key in LINK_KEYS)
    is_joined = bool(live.get("pending")) and not row.get("pending")
    return None if is_moved or is_joined else {**row, **window_mark(row)}
