"""`python -m bench.changes`: cost of the change log for a store, and the delay until a change is readable.

Two collections on one server have the indexes of preset cortex and 384 dimensions. One is unchanged. The other lacks
the index on `loggedAt`, and its points lack that key. The same use case stores into both in turn, with alternating
order.

The delays are those from the answer to a store until a reader has its entry: a reader that asks after each store, and
one that polls like the stream of the API while memories are stored at random times. A read is measured on an idle log,
and for a reader with as many recent entries as a cursor has room for.
"""

import argparse
import asyncio
import contextlib
import random
import secrets
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.embedding.embedder_factory import CallerVectors
from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entrypoints.api.transfer.change_routes import POLL_S
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories.change_log import ChangesRequest, read_changes
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.remember import Remember
from agentmemory_operator.memories.rules.change_entries import Position
from agentmemory_operator.memories.rules.recent_entries import MAX_RECENT
from agentmemory_operator.memories.rules.record import LOGGED_KEY
from agentmemory_operator.ports.points import ForwardingPoints, PointCall, PointStore
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.effective.settings import AgentSettings, effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.presets import RETRIEVAL_INDEXES
from bench.clients import Client
from bench.datasets import DIMENSIONS
from bench.measures import Latency, latency_of
from bench.progress import log_progress
from bench.stacks import agent_manifest, serving_qdrant
from bench.tables import machine, render

WRITE_S = 16.0
MAX_GAP_S = 0.6
DELAY_HEAD = ("", "times", "p50, ms", "p99", "max")
HEAD = ("memories a store", "stores", "without: p50, ms", "p99", "with: p50, ms", "p99", "p50 with / without")


class UnloggedStore(ForwardingPoints):
    """PointStore that omits the change log's key from stored points."""

    def __init__(self, store: PointStore) -> None:
        self._store = store

    async def close(self) -> None:
        """Keep the connections open: they belong to the caller."""

    async def read(self, call: PointCall[Any]) -> Any:
        return await call.make(self._store)

    async def write(self, call: PointCall[None]) -> None:
        for point in call.args[1] if call.method is PointStore.upsert else ():
            point["payload"].pop(LOGGED_KEY, None)
        await call.make(self._store)


@dataclass(slots=True)
class Side:
    """One of the two agents, and the durations of its stores."""

    agent: Agent
    latencies_ms: list[float] = field(default_factory=list)

    async def store(self, memories: Sequence[IncomingMemory]) -> None:
        started_s = time.perf_counter()
        await Remember().store(self.agent, memories)
        self.latencies_ms.append((time.perf_counter() - started_s) * 1000)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.changes", description="What the change log costs a store.")
    parser.add_argument("--qdrant", help="URL of a real server in the dev server's place")
    parser.add_argument("--stores", type=int, default=1_500)
    parser.add_argument("--changes", type=int, default=200, help="changes whose delay is measured")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving_qdrant(Path(folder), arguments.qdrant) as url:
        rows = asyncio.run(_measured(url, arguments.stores))
        delays = asyncio.run(_measure_delays(url, arguments.changes))
    print(f"{machine()}\n")
    print(render(HEAD, rows))
    print(f"\n{render(DELAY_HEAD, delays)}")


async def _measured(url: str, stores: int) -> list[tuple[str, ...]]:
    rows = []
    for number, count in ((1, stores), (100, stores // 10)):
        async with contextlib.AsyncExitStack() as stack:
            store = await stack.enter_async_context(QdrantPoints(url))
            sides = [Side(_agent(url, store, stack, is_logged=is_logged)) for is_logged in (False, True)]
            log_progress(f"{count} stores of {number}")
            await _store_alternately(sides, count, number)
            without, has = (latency_of(side.latencies_ms[len(side.latencies_ms) // 10 :]) for side in sides)
            rows.append(_row(number, count, without, has))
    return rows


async def _measure_delays(url: str, count: int) -> list[tuple[str, ...]]:
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(QdrantPoints(url))
        agent = replace(_agent(url, store, stack, is_logged=True), write_s=WRITE_S)
        log_progress(f"delays of {count} changes")
        asked, read_ms = await _delays_of_requests(agent, count)
        streamed = await _delays_of_stream(agent, count)
        return [
            _delay_row("answer to readable, a reader that asks at once", asked),
            _delay_row(f"answer to read, a stream that polls every {POLL_S:g} s", streamed),
            _delay_row("a read of an idle log", read_ms),
            _delay_row(f"a read after {MAX_RECENT} recent entries", await _read_full(agent, count)),
        ]


async def _delays_of_requests(agent: Agent, count: int) -> tuple[list[float], list[float]]:
    """Return the delays of changes, and the durations of reads that found nothing, both in milliseconds."""
    delays_ms, idle_ms, cursor = list[float](), list[float](), _end_of_log(agent)
    for number in range(count):
        id_, started_s = await _store(agent, number), time.perf_counter()
        page = await read_changes(agent, ChangesRequest(limit=50, cursor=cursor))
        delays_ms.append((time.perf_counter() - started_s) * 1000)
        if [change.id for change in page.changes] != [id_]:
            raise RuntimeError("a change was not readable at once")
        cursor, started_s = page.next_cursor, time.perf_counter()
        await read_changes(agent, ChangesRequest(limit=50, cursor=_end_of_log(agent)))
        idle_ms.append((time.perf_counter() - started_s) * 1000)
    return delays_ms, idle_ms


async def _delays_of_stream(agent: Agent, count: int) -> list[float]:
    """Return the delays of changes in milliseconds for a reader that polls as the stream of the API does."""
    read_s, begin = dict[str, float](), _end_of_log(agent)

    async def poll() -> None:
        cursor = begin
        while True:
            page = await read_changes(agent, ChangesRequest(limit=50, cursor=cursor))
            cursor = page.next_cursor
            read_s.update(dict.fromkeys((change.id for change in page.changes), time.perf_counter()))
            if not page.changes:
                await asyncio.sleep(POLL_S)

    stream, stored_s = asyncio.create_task(poll()), dict[str, float]()
    for number in range(count):
        stored_s[await _store(agent, count + number)] = time.perf_counter()
        await asyncio.sleep(random.uniform(0, MAX_GAP_S))
    await asyncio.sleep(2 * POLL_S)
    stream.cancel()
    return [(read_s[id_] - at_s) * 1000 for id_, at_s in stored_s.items()]


async def _read_full(agent: Agent, count: int) -> list[float]:
    """Return the durations of reads in milliseconds, by a reader that has as many recent entries as possible."""
    cursor = _end_of_log(agent)
    for number in range(MAX_RECENT):
        await _store(agent, 2 * count + number)
    page = await read_changes(agent, ChangesRequest(limit=1_000, cursor=cursor))
    durations_ms = list[float]()
    for _ in range(count):
        started_s = time.perf_counter()
        await read_changes(agent, ChangesRequest(limit=50, cursor=page.next_cursor))
        durations_ms.append((time.perf_counter() - started_s) * 1000)
    return durations_ms


def _end_of_log(agent: Agent) -> str:
    """Return a cursor after all entries of the milliseconds before this one."""
    return Position(agent.epoch, agent.clock.now_ms() - 1).encode(agent.settings.slug)


async def _store(agent: Agent, number: int) -> str:
    vector = np.random.default_rng(number).standard_normal(DIMENSIONS).tolist()
    memory = IncomingMemory(user_id=f"user-{number % 50}", content=f"memory {number}", vector=vector)
    [outcome] = await Remember().store(agent, [memory])
    if isinstance(outcome, AgentMemoryError):
        raise outcome
    return outcome.id


def _delay_row(name: str, values_ms: list[float]) -> tuple[str, ...]:
    latency = latency_of(values_ms)
    return name, str(len(values_ms)), *(f"{value:.1f}" for value in (latency.p50, latency.p99, max(values_ms)))


async def _store_alternately(sides: Sequence[Side], count: int, number: int) -> None:
    generator = np.random.default_rng(0)
    for turn in range(count):
        vectors = generator.standard_normal((number, DIMENSIONS)).tolist()
        memories = [
            IncomingMemory(user_id=f"user-{turn % 50}", content=f"memory {turn}.{place}", vector=vector)
            for place, vector in enumerate(vectors)
        ]
        for side in sides if turn % 2 else sides[::-1]:
            await side.store(memories)


def _agent(url: str, store: PointStore, stack: contextlib.AsyncExitStack, *, is_logged: bool) -> Agent:
    manifest = agent_manifest(f"bench-{secrets.token_hex(4)}")
    manifest["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}
    settings: AgentSettings = effective_settings(parse_agent_memory(manifest))
    with Client(url) as qdrant:
        body = {
            "vectors": {"size": DIMENSIONS, "distance": "Cosine", "on_disk": False},
            "quantization_config": {"scalar": {"type": "int8", "always_ram": True}},
        }
        qdrant.call("PUT", f"/collections/{settings.alias}", body)
        stack.callback(_remove, url, settings.alias)
        for name, schema in RETRIEVAL_INDEXES:
            if is_logged or name != LOGGED_KEY:
                index = {"field_name": name, "field_schema": schema}
                qdrant.call("PUT", f"/collections/{settings.alias}/index?wait=true", index)
    source = EmbeddingSource(provider="none", model=None, dimensions=DIMENSIONS)
    agent = Agent(
        settings=settings,
        store=store,
        source=source,
        embedder=CallerVectors(DIMENSIONS),
        distance="Cosine",
        clock=SystemClock(),
        vectors=("",),
    )
    return agent if is_logged else replace(agent, store=UnloggedStore(store))


def _remove(url: str, collection: str) -> None:
    with Client(url) as qdrant:
        qdrant.call("DELETE", f"/collections/{collection}")


def _row(number: int, count: int, without: Latency, has: Latency) -> tuple[str, ...]:
    figures = (without.p50, without.p99, has.p50, has.p99, has.p50 / without.p50)
    return (str(number), f"{count:,}", *(f"{figure:.2f}" for figure in figures))


if __name__ == "__main__":
    main()
