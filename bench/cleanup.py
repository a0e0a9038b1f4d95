"""`python -m bench.cleanup`: cost of a cleanup of one agent: time, memory, requests to the engine.

It fills a development server, or the server at QDRANT_URL. Some memories have decayed, some are in too long chains, and
some exceed the maximum of their user. Then it runs a dry run, a run, and a second run.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.lifecycle.cleanup import Cleanup
from agentmemory_operator.lifecycle.rules.cleanup_rules import CleanupRules, build_rules
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.spec.expression.variables import DAY_MS
from agentmemory_operator.spec.presets import CORTEX
from bench.tables import Cells, machine, render
from tests.support.engine.agents import EVERYTHING, World, open_world
from tests.support.programs import running, start_qdrant

SIZE = 384
PAGE = 1_000
CHAIN = 8


@dataclass(slots=True)
class CallCounter:
    """Point store that counts its calls by method."""

    store: PointStore
    calls: dict[str, int] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        self.calls[name] = self.calls.get(name, 0) + 1
        return getattr(self.store, name)


def points_of(memories: int, users: int, now_ms: int) -> Iterator[Json]:
    """Yield memories, 100 in a row for each user. Of every 100, 10 have decayed and 16 form two chains of 8."""
    drawn = np.random.default_rng(1)
    older: Json | None = None
    for number in range(memories):
        place = number % 100
        row: Json = {
            "id": str(uuid.UUID(int=number + 1, version=4)),
            "agentId": "bench",
            "userId": f"user-{number // 100 % users}",
            "type": "fact",
            "content": f"memory {number}",
            "createdAt": now_ms - (4_000 if place < 10 else number % 300) * DAY_MS,
            "updatedAt": now_ms,
            "importance": number % 7 / 7,
            "accessCount": number % 5,
            "pending": False,
            "rev": 1,
        }
        is_chained = 10 <= place < 10 + 2 * CHAIN
        if is_chained and older is not None and (place - 10) % CHAIN:
            row["supersedesId"], older["payload"]["supersededById"] = older["id"], row["id"]
        point = {"id": row["id"], "vector": drawn.normal(size=SIZE).astype(np.float32), "payload": row}
        if older is not None:
            yield older
        older = point
    if older is not None:
        yield older


async def fill(world: World, memories: int, users: int, now_ms: int) -> None:
    page: list[Json] = []
    for point in points_of(memories, users, now_ms):
        page.append(point)
        if len(page) == PAGE:
            await world.agent.store.upsert(world.agent.alias, page)
            page = []
    if page:
        await world.agent.store.upsert(world.agent.alias, page)


async def measure(url: str, memories: int, users: int, cap: int | None) -> list[Cells]:
    """Fill an agent. Return one line each for the dry run, the run, and the second run.

    Args:
        cap: Maximum number of memories per user. None for no maximum.
    """
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        ranking = replace(EVERYTHING, types=CORTEX.types)
        world = await stack.enter_async_context(open_world(url, ranking=ranking, size=SIZE))
        store = await stack.enter_async_context(QdrantPoints(url, timeout_s=60))
        now_ms = clock.now_ms()
        await fill(world, memories, users, now_ms)
        lifecycle = replace(CORTEX.lifecycle, max_memories_per_user=cap, max_removal_percent=100)
        rules = build_rules(lifecycle, ranking, now_ms)
        lines: list[Cells] = []
        for name, is_dry in (("dry run", True), ("run", False), ("run again", False)):
            counted = CallCounter(store)
            agent = replace(world.agent, store=counted)
            cleanup = Cleanup(clock)
            before_mib, started_s = peak_mib(), time.monotonic()
            removed = await _clean(cleanup, agent, rules, is_dry=is_dry)
            took_s = time.monotonic() - started_s
            calls = ", ".join(f"{number} {call}" for call, number in sorted(counted.calls.items()))
            lines.append((name, str(removed), f"{took_s:.1f}", f"{peak_mib() - before_mib:.0f}", calls))
        return lines


async def _clean(cleanup: Cleanup, agent: Any, rules: CleanupRules, *, is_dry: bool) -> int:
    if is_dry:
        return len([row["id"] async for row, _ in cleanup.preview(agent, rules)])
    return (await cleanup.run(agent, rules)).removed


def peak_mib() -> float:
    """Return the peak resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memories", type=int, default=100_000)
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--cap", type=int, default=None, help="maxMemoriesPerUser; default: none")
    options = parser.parse_args()
    with server() as url:
        lines = asyncio.run(measure(url, options.memories, options.users, options.cap))
    print(machine())
    print(f"\n{options.memories} memories of {options.users} users, cap {options.cap or 'none'}\n")
    print(render(("", "removed", "s", "MiB more", "calls to the engine"), lines))


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Yield the URL of the server at QDRANT_URL, else of a temporary development server."""
    if url := os.environ.get("QDRANT_URL"):
        yield url.rstrip("/")
        return
    with tempfile.TemporaryDirectory() as folder:
        program, started = start_qdrant(Path(folder))
        with running(program):
            yield started


if __name__ == "__main__":
    main()
