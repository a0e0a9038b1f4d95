"""AccessCounts: bounded, and kept while the engine is unavailable."""

from typing import Any

import pytest

from agentmemory_operator.errors import NotFound, StoreUnavailable
from agentmemory_operator.memories import access_counts
from agentmemory_operator.memories.access_counts import AccessCounts
from tests.support.engine.fakes import FakeClock
from tests.support.metrics import collect_samples


def counts_of(error: Exception) -> AccessCounts:
    async def open_agent(slug: str) -> Any:
        raise error

    return AccessCounts(open_agent, FakeClock(), writer="w")


async def test_counts_of_deleted_agent_are_dropped() -> None:
    counts = counts_of(NotFound("gone"))
    counts.note("bot", ["a", "a", "b"])

    await counts.flush()

    assert collect_samples(counts.drops)["agentmemory_api_access_dropped_total"] == 3


async def test_counts_are_kept_during_an_outage() -> None:
    counts = counts_of(StoreUnavailable("away"))
    counts.note("bot", ["a"])

    await counts.flush()

    assert collect_samples(counts.drops)["agentmemory_api_access_dropped_total"] == 0
    assert counts.pending_count == 1


async def test_oldest_counts_are_dropped_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_counts, "MAX_WAITING", 3)
    counts = counts_of(StoreUnavailable("away"))

    counts.note("bot", ["a", "b", "c", "a", "d", "e"])

    assert (counts.pending_count, collect_samples(counts.drops)["agentmemory_api_access_dropped_total"]) == (3, 2)

    counts.note("other", ["f"])

    assert [bool(counts.last_ms(slug, id_)) for slug, id_ in (("bot", "a"), ("other", "f"))] == [False, True]


async def test_lag_is_the_age_of_the_oldest_access() -> None:
    clock = FakeClock()

    async def open_agent(slug: str) -> Any:
        raise StoreUnavailable("away")

    counts = AccessCounts(open_agent, clock, writer="w")
    assert counts.lag_s == 0
    counts.note("bot", ["a"])
    clock.move(ms=7_000)
    counts.note("other", ["b"])
    await counts.flush()

    assert counts.lag_s == 7
