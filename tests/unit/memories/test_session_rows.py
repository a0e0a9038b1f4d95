"""Reads of sessions: those that wait at the same time share a request, and its end."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.memories.session_rows import SessionRows
from agentmemory_operator.ports.base import Json
from tests.support.engine.agents import agent_of, settings_of


class Store:
    """Counts the reads of each request. The first `failures` requests fail."""

    def __init__(self, failures: int = 0) -> None:
        self.requests: list[int] = []
        self.failures = failures

    async def query_batch(self, collection: str, bodies: Sequence[Json]) -> list[list[Json]]:
        self.requests.append(len(bodies))
        if len(self.requests) <= self.failures:
            raise StoreUnavailable("away")
        return [[{"payload": {"id": str(number)}}] for number in range(len(bodies))]


def reader_of(store: Store) -> SessionRows:
    return SessionRows(agent_of(settings_of("bot"), store))  # type: ignore[arg-type]


async def find(reader: SessionRows) -> list[Any]:
    return list(await reader.find({"must": []}, limit=1))


async def test_concurrent_reads_share_a_request() -> None:
    store = Store()
    reader = reader_of(store)

    found = await asyncio.gather(find(reader), find(reader))

    assert (found, store.requests) == ([[{"id": "0"}], [{"id": "1"}]], [2])


async def test_error_is_raised_by_each_read_once() -> None:
    reader = reader_of(Store(failures=1))

    outcomes = await asyncio.gather(find(reader), find(reader), return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable, StoreUnavailable]
    assert await find(reader) == [{"id": "0"}]


@pytest.mark.parametrize("rounds", [1, 2])
async def test_read_after_a_cancelled_one_is_sent(rounds: int) -> None:
    """A request that is cancelled updates the texts of what it may have written, with the same reader."""
    store = Store()
    reader = reader_of(store)
    cancelled = [asyncio.create_task(find(reader)) for _ in range(2)]
    for _ in range(rounds):
        await asyncio.sleep(0)
    cancelled[0].cancel()
    await asyncio.wait(cancelled)

    async with asyncio.timeout(10):
        assert await find(reader) == [{"id": "0"}]
    assert store.requests == [1]
