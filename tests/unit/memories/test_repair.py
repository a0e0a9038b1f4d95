"""Every agent is swept, whatever becomes of the others."""

import asyncio
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import NotFound, StoreUnavailable
from agentmemory_operator.memories.repair import Sweeper
from agentmemory_operator.memories.rules.filters import IS_PENDING
from agentmemory_operator.ports.base import Json
from tests.support.engine.agents import agent_of, settings_of


class Empty:
    """A store without points; notes whose pending ones are looked for."""

    def __init__(self, swept: list[str]) -> None:
        self.swept = swept

    async def scroll(self, collection: str, body: Json) -> tuple[list[Json], None]:
        if IS_PENDING in body["filter"]["must"]:
            self.swept.append(collection)
        return [], None


class FakeDirectory:
    """Three agents; one is away, one was removed meanwhile."""

    def __init__(self) -> None:
        self.slugs = ["away", "gone", "here"]
        self.swept: list[str] = []

    def list_settings(self) -> list[Any]:
        return [settings_of(slug) for slug in self.slugs]

    async def open(self, slug: str, *, renews_lease: bool) -> Agent:
        assert not renews_lease
        if slug == "away":
            raise StoreUnavailable("away")
        if slug == "gone":
            raise NotFound("gone")
        return agent_of(settings_of(slug), Empty(self.swept))  # type: ignore[arg-type] # what the sweeper uses of it


async def run_for(directory: FakeDirectory, rounds_s: float) -> None:
    running = asyncio.create_task(Sweeper(directory).run(round_s=0.01))  # type: ignore[arg-type]
    await asyncio.sleep(rounds_s)
    assert not running.done()
    running.cancel()


async def test_an_agent_that_is_away_does_not_keep_the_others_from_being_swept() -> None:
    directory = FakeDirectory()

    await run_for(directory, 0.1)

    assert set(directory.swept) == {settings_of("here").alias}
    assert len(directory.swept) > 1


async def test_without_agents_the_sweeper_waits() -> None:
    directory = FakeDirectory()
    directory.slugs = []

    await run_for(directory, 0.05)

    assert directory.swept == []
