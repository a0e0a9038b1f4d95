"""Carries over what late writers left in a rebuild's source after the alias was moved; then nobody knows it any more.

A request that was on its way at the move may land in the source for as long as a request may take. What lands there was
acknowledged to nobody; it is carried all the same, as `domain/draining.py` says.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from agentmemory_operator.domain.divergence import divergence
from agentmemory_operator.domain.draining import late_insert, late_update
from agentmemory_operator.domain.effective import effective_settings
from agentmemory_operator.domain.filters import IS_PENDING
from agentmemory_operator.domain.rebuilding import MOVING_KEY
from agentmemory_operator.ports import Json
from agentmemory_operator.services.carrying import carrying_of
from agentmemory_operator.services.catching_up import (
    SKEW_MS,
    changed_since,
    every_point,
    read_points,
)
from agentmemory_operator.services.chains import Chains
from agentmemory_operator.services.directory import open_copy
from agentmemory_operator.services.erasures import Erasures
from agentmemory_operator.services.rebuild_tasks import Task
from agentmemory_operator.services.rows import read_pages
from agentmemory_operator.services.screening import screen
from agentmemory_operator.services.walks import Rows

PAGE = 100
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

    async def __call__(self, task: Task) -> str:
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
        return f"{carried} late points; {screened} of the old vectors made anew"


async def _pass(task: Task, pages: AsyncIterator[tuple[Rows, Rows]]) -> int:
    carried, carrying = 0, carrying_of(task)
    async for source, target in pages:
        async for points in read_points(carrying, divergence(source, target).carried):
            inserts, updates = await _late(task, points)
            # What follows another before what is followed: a link never leads to what is not there.
            await carrying.insert(inserts)
            await carrying.update(updates, before_ms=_moved_ms(task))
            carried += len(inserts) + len(updates)
    return carried


async def _settle(task: Task) -> None:
    """Join to their chains what was carried as pending, and erase what was to be forgotten meanwhile."""
    points, settings = task.server.points, effective_settings(task.memory)
    agent, chains = await open_copy(points, settings, task.target_name), Chains(task.clock)
    async for page in read_pages(agent, {"filter": {"must": [IS_PENDING]}, "limit": PAGE, "with_payload": True}):
        for point in page:
            await chains.complete(agent, point["payload"])
    # Who was forgotten in the target must not come back by what was on its way to the source.
    target = task.target_name
    await Erasures(task.clock).reapply(points, target, target, task.memory, since_ms=_moved_ms(task))


async def _late(task: Task, points: list[Json]) -> tuple[list[Json], list[Json]]:
    """Return which late points are inserted, and which take the place of what is there, each as the target gets it."""
    ids = [point["id"] for point in points]
    there = {row["id"]: row["payload"] or {} for row in await task.server.points.retrieve(task.target_name, ids)}
    inserts, updates = [], []
    for point in points:
        row, live = point["payload"] or {}, there.get(point["id"])
        if live is None:
            inserts.append(point | {"payload": late_insert(row)})
        elif (payload := late_update(row, live, moved_ms=_moved_ms(task))) is not None:
            updates.append(point | {"payload": payload})
    return inserts, updates


def _since_ms(task: Task) -> int:
    return min(task.record.since_ms, _moved_ms(task)) - SKEW_MS


def _moved_ms(task: Task) -> int:
    assert task.record.moved_ms is not None
    return task.record.moved_ms
