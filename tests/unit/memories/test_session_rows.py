"""Reads of sessions: those that wait at the same time share a request, and its end."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.memories.rules.record import ORDER_KEY
from agentmemory_operator.memories.session_rows import SessionRows
from agentmemory_operator.ports.base import Json
from tests.support.engine.agents import agent_of, settings_of


class Session:
    """A session of 5,000 memories. The newest `hidden` are superseded during the first read, after its search.

    Attributes:
        rows: All memories, in order.
    """

    def __init__(self, hidden: int = 0) -> None:
        self.rows = [_row(number) for number in range(5_000)]
        self.hidden = hidden
        self.requests = 0

    async def query_batch(self, collection: str, bodies: Sequence[Json]) -> list[list[Json]]:
        self.requests += 1
        found = [self._rows_of(body) for body in bodies]
        for row in self.rows[len(self.rows) - self.hidden :]:
            row["supersededById"] = "other"
        return [[{"payload": row} for row in rows] for rows in found]

    def _rows_of(self, body: Json) -> list[Json]:
        bound = next(part["range"] for part in body["filter"]["must"] if "range" in part)
        rows = [row for row in self.rows if "supersededById" not in row and _is_within(row[ORDER_KEY], bound)]
        is_descending = body["query"]["order_by"]["direction"] == "desc"
        return sorted(rows, key=lambda row: row[ORDER_KEY], reverse=is_descending)[: body["limit"]]


def _row(number: int) -> Json:
    return {"id": f"{number:05}", "userId": "u", "sessionId": "s", "createdAt": number, ORDER_KEY: number}


def _is_within(order: int, bound: Json) -> bool:
    compared = {"gt": order.__gt__, "gte": order.__ge__, "lt": order.__lt__, "lte": order.__le__}
    return all(compared[name](limit) for name, limit in bound.items())


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


def reader_of(store: Store | Session) -> SessionRows:
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


async def test_page_with_superseded_rows_is_not_the_last() -> None:
    session = Session(hidden=3)

    before = await reader_of(session).before(_row(6_000), 2)

    assert [row["id"] for row in before] == ["04995", "04996"]


async def test_rows_between_distant_memories_are_read_in_growing_pages() -> None:
    session = Session()

    [span] = await reader_of(session).spans([_row(10), _row(4_990)], 2)

    assert [row["id"] for row in span.rows][:3] == ["00008", "00009", "00010"]
    assert len(span.rows) > 4_990 - 8 + 2
    assert session.requests < 40
