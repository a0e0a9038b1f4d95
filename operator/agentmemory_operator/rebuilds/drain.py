"""Carries over what late writers left in a rebuild's source after the alias was moved; then nobody knows it any more.

A request that was on its way at the move may land in the source for as long as a request may take.
Whatever lands in the source after the last pass was acknowledged to nobody. So what was written in the target since the
move wins, and nothing is carried that could part a chain: of a change that spans several memories some may be in the
source alone. What is carried as pending is joined to its chain, or given up, by `memories/chains.py`.

| in the source | in the target | is carried |
|---|---|---|
| a tombstone | nothing | as it is |
| a memory that supersedes another | nothing | as pending |
| another memory | nothing | as it is |
| anything | written since the move, or as new | not at all |
| a tombstone | a memory | as pending, where it has a place in a chain |
| a memory with another place in its chain | | not at all: the other end of the link decides |
| a memory that is not pending any more | a pending one | not at all: it is joined there |
| a memory | | as it is |
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.agents.copies import open_copy
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.previous import mark_previous, restore_source
from agentmemory_operator.collections.retire import retire
from agentmemory_operator.collections.rules.announcement import MOVING_KEY
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY
from agentmemory_operator.lifecycle.erasure_replay import Erasures
from agentmemory_operator.memories import chains, session_keywords
from agentmemory_operator.memories.point_pages import read_pages, upsert_where
from agentmemory_operator.memories.rules.comparison import Rows, divergence, rev_of, vectors_of
from agentmemory_operator.memories.rules.filters import IS_PENDING, NOT_DELETED, Filter, equals, only
from agentmemory_operator.memories.rules.links import LINK_KEYS
from agentmemory_operator.memories.rules.record import LOGGED_KEY, TOMBSTONE_KEY, Payload, window_mark
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.carry import carrying_of, ends_of
from agentmemory_operator.rebuilds.catch_up import changed_since, every_point, read_points, writers_behind_ms
from agentmemory_operator.rebuilds.rules.carried_vectors import CarriedVectors
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.effective.policies import rebuild_settings
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.times import render_second

PAGE = 64

Row = Mapping[str, Any]


async def screen(task: RebuildRun) -> int:
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


def _changed_around(task: RebuildRun) -> Filter:
    since_ms = _moved_ms(task) - writers_behind_ms(task)
    return {"must": [{"key": "updatedAt", "range": {"gte": since_ms}}, NOT_DELETED]}


async def _renew_vectors(task: RebuildRun, embedder: Embedder, changed: Filter) -> int:
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


async def _renew_words(task: RebuildRun, changed: Filter) -> None:
    agent = await _target_of(task)
    async for points in read_pages(agent, _asked(changed, with_vector=False)):
        await session_keywords.renew(agent, {point["id"] for point in points})


async def _target_of(task: RebuildRun) -> Agent:
    return await open_copy(task.server.points, effective_settings(task.memory), task.target_name, task.clock)


def _asked(filter_: Filter, *, with_vector: bool) -> Json:
    return {"filter": filter_, "limit": PAGE, "with_payload": True, "with_vector": with_vector}


def _replacing(point: Json, vector: Sequence[float], now_ms: int) -> Json:
    """The operation that puts a vector in the place of a point's, if that is as it was read."""
    row, vectors = point["payload"], point["vector"]
    made = vectors | {"": vector} if isinstance(vectors, dict) else vector
    newer = {"id": point["id"], "vector": made, "payload": row | {"rev": row["rev"] + 1, "updatedAt": now_ms}}
    unchanged = only(point["id"], equals("rev", row["rev"]), NOT_DELETED)
    return upsert_where(newer, unchanged)


PENDING_PAGE = 100
PASS_S = 0.5
"""Seconds between two passes."""


@dataclass(slots=True)
class Drain:
    """Drains the sources of rebuilds.

    Attributes:
        monotonic, sleep: seconds of this process.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def __call__(self, task: RebuildRun) -> str:
        """Carry until a pass over all finds nothing that was begun a request's time after the move.

        Raises:
            TransientError: to be done again.
        """
        begun_s, carried = self.monotonic(), 0
        is_last = await task.server.snapshots.metadata(task.source_name) is None
        while not is_last:
            is_over = self.monotonic() - begun_s >= task.server.endpoint.timeout_s
            found = await _pass(task, every_point(task) if is_over else changed_since(task, _since_ms(task)))
            carried, is_last = carried + found, is_over and not found
            if not is_last:
                await self.sleep(PASS_S)
        if carried:
            await _settle(task)
        screened = await screen(task)
        if await task.server.snapshots.metadata(task.source_name) is not None:
            await task.server.snapshots.write_metadata(task.source_name, {MOVING_KEY: None})
        return f"{carried} late points; {screened} outdated vectors embedded again"


async def _pass(task: RebuildRun, pages: AsyncIterator[tuple[Rows, Rows]]) -> int:
    carried, carrying = 0, carrying_of(task)
    async for source, target in pages:
        async for points in read_points(carrying, divergence(source, target).behind):
            inserts, updates = await _late(task, points)
            # What follows another before what is followed: a link never leads to what is not there.
            await carrying.insert(inserts)
            await carrying.update(updates, before_ms=_moved_ms(task))
            carried += len(inserts) + len(updates)
    return carried


async def _settle(task: RebuildRun) -> None:
    """Join to their chains what was carried as pending, and erase what was to be forgotten meanwhile."""
    points, settings = task.server.points, effective_settings(task.memory)
    agent = await open_copy(points, settings, task.target_name, task.clock)
    async for page in read_pages(
        agent, {"filter": {"must": [IS_PENDING]}, "limit": PENDING_PAGE, "with_payload": True}
    ):
        for point in page:
            await chains.complete(agent, point["payload"])
    # Who was forgotten in the target must not come back by what was on its way to the source.
    names = (task.source_name, task.target_name)
    await Erasures(task.clock).erase_late(points, *names, task.memory, since_ms=_moved_ms(task))


async def _late(task: RebuildRun, points: list[Json]) -> tuple[list[Json], list[Json]]:
    """Which late points are inserted, and which take the place of what is there, each as the target gets it."""
    ids = [point["id"] for point in points]
    there = {row["id"]: row["payload"] or {} for row in await task.server.points.retrieve(task.target_name, ids)}
    inserts, updates = [], []
    for point in points:
        row, live = point["payload"] or {}, there.get(point["id"])
        if live is None:
            inserts.append(point | {"payload": _logged(late_insert(row), task)})
        elif (payload := late_update(row, live, moved_ms=_moved_ms(task))) is not None:
            updates.append(point | {"payload": _logged(payload, task)})
    return inserts, updates


def _logged(payload: Payload, task: RebuildRun) -> Payload:
    """A late point in the change log: it comes now, where readers are past the time at which it was written."""
    return payload | {LOGGED_KEY: task.clock.now_ms()} if LOGGED_KEY in payload else payload


def _since_ms(task: RebuildRun) -> int:
    return min(task.record.since_ms, _moved_ms(task)) - writers_behind_ms(task)


def _moved_ms(task: RebuildRun) -> int:
    assert task.record.moved_ms is not None
    return task.record.moved_ms


async def settle(task: RebuildRun) -> str:
    """Mark the source as replaced, or remove it where nothing is to be kept.

    Raises:
        TransientError: to be done again.
    """
    server, source = task.server, task.source_name
    # A collection that is live again is kept by nobody's leave.
    await server.snapshots.write_metadata(task.target_name, {PREVIOUS_KEY: None})
    if await server.snapshots.metadata(source) is None:
        return f"{source} no longer exists"
    hours = rebuild_settings(task.memory.spec).keep_previous_hours
    if hours == 0:
        await retire(server.collections, server.snapshots, source)
        return f"{source} is removed"
    await restore_source(server, source)
    now_s, moved_ms = task.clock.now_ms() / 1000, task.record.moved_ms or task.record.begun_ms
    until = render_second(now_s + hours * 3600)
    since = render_second(moved_ms / 1000)
    await mark_previous(server, source, since=since, until=until, by={"rebuild": task.target_name})
    return f"{source} is kept until {until}"


def late_insert(row: Row) -> Payload:
    """What the target gets of a point that it lacks."""
    if TOMBSTONE_KEY in row:
        return dict(row)
    joins = {"pending": True} if row.get("supersedesId") else {}
    return {**row, **joins, **window_mark(row)}


def late_update(row: Row, live: Row, *, moved_ms: int) -> Payload | None:
    """What the target gets of a point that it has, None where it keeps its own.

    Args:
        live: the target's.
        moved_ms: when the alias was moved, Unix milliseconds.
    """
    if rev_of(live) >= rev_of(row) or live.get("updatedAt", 0) >= moved_ms or TOMBSTONE_KEY in live:
        return None
    if TOMBSTONE_KEY in row:
        is_linked = any(row.get(link) for link in LINK_KEYS)
        return {**row, **({"pending": True} if is_linked else {}), **window_mark(live)}
    is_moved = any(row.get(link) != live.get(link) for link in LINK_KEYS)
    is_joined = bool(live.get("pending")) and not row.get("pending")
    return None if is_moved or is_joined else {**row, **window_mark(row)}
