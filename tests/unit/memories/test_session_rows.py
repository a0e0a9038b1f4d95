"""Merged reads of sessions if the task that sends them is cancelled."""

import asyncio
from typing import Any

import pytest

from agentmemory_operator.memories import session_rows
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
