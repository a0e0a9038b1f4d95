"""Merged reads of sessions if the task that sends them is cancelled, and reads page by page."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentmemory_operator.memories import session_rows
from agentmemory_operator.memories.rules.record import ORDER_KEY
from agentmemory_operator.memories.session_rows import SessionRows
from agentmemory_operator.ports.base import Json
from tests.support.engine.agents import EVERYTHING, agent_of, settings_of


class SlowStore:
    """Answers each query of a batch with one row, and waits `rounds` of the event loop before."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.sizes: list[int] = []

    async def query_batch(self, alias: str, bodies: list[Json]) -> list[list[Json]]:
        self.sizes.append(len(bodies))
        for _ in range(self.rounds):
            await asyncio.sleep(0)
        return [[{"payload": {"id": "a"}}] for _ in bodies]


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


def reader_of(store: Any) -> SessionRows:
    return SessionRows(agent_of(settings_of("mine", ranking=EVERYTHING), store))


@pytest.mark.parametrize("rounds", range(1, 15))
async def test_reader_works_after_cancelled_reads(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """The cancellation arrives before, during or between requests; texts are then updated with the same reader."""
    monkeypatch.setattr(session_rows, "MAX_MERGED_READS", 1)
    reader = reader_of(SlowStore(rounds=5))
    reads = asyncio.gather(*(reader.find({}, limit=1) for _ in range(2)))
    for _ in range(rounds):
        await asyncio.sleep(0)
    reads.cancel()

    with pytest.raises(asyncio.CancelledError):
        await reads
    async with asyncio.timeout(5):
        assert await reader.find({}, limit=1) == [{"id": "a"}]


async def test_reads_at_the_same_time_share_a_request() -> None:
    store = SlowStore(rounds=1)
    reader = reader_of(store)

    await asyncio.gather(*(reader.find({}, limit=1) for _ in range(3)))

    assert store.sizes == [3]


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
