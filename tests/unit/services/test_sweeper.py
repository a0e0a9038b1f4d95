"""Every agent is swept, whatever becomes of the others."""

import asyncio
from typing import Any

from agentmemory_operator.errors import NotFound, StoreUnavailable
from agentmemory_operator.services.sweeper import Sweeper
from tests.support.agents import settings_of


class FakeDirectory:
    """Three agents; one is away, one was removed meanwhile."""

    def __init__(self) -> None:
        self.slugs = ["away", "gone", "here"]

    def list(self) -> list[Any]:
        return [settings_of(slug) for slug in self.slugs]

    async def open(self, slug: str, *, reads_ahead: bool) -> str:
        assert not reads_ahead
        if slug == "away":
            raise StoreUnavailable("away")
        if slug == "gone":
            raise NotFound("gone")
        return slug


class FakeChains:
    """Notes what is swept."""

    def __init__(self) -> None:
        self.swept: list[str] = []

    async def sweep(self, agent: str) -> int:
        self.swept.append(agent)
        return 1


async def run_for(directory: FakeDirectory, rounds_s: float) -> FakeChains:
    chains = FakeChains()
    running = asyncio.create_task(Sweeper(directory, chains, FakeChains()).run(round_s=0.01))  # type: ignore[arg-type]
    await asyncio.sleep(rounds_s)
    assert not running.done()
    running.cancel()
    return chains


async def test_an_agent_that_is_away_does_not_keep_the_others_from_being_swept() -> None:
    chains = await run_for(FakeDirectory(), 0.1)

    assert set(chains.swept) == {"here"}
    assert len(chains.swept) > 1


async def test_without_agents_the_sweeper_waits() -> None:
    directory = FakeDirectory()
    directory.slugs = []

    assert (await run_for(directory, 0.05)).swept == []
