"""The sweeper handles every agent, also if others fail."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import NotFound, StoreUnavailable
from agentmemory_operator.memories.repair import Sweeper
from agentmemory_operator.memories.rules.filters import IS_PENDING
from agentmemory_operator.ports.base import Json
from tests.support.engine.agents import agent_of, settings_of
from tests.support.patience import wait_until


class Empty:
    """A store without points that records the swept collections."""

    def __init__(self, swept: list[str]) -> None:
        self.swept = swept

    async def scroll(self, collection: str, body: Json) -> tuple[list[Json], None]:
        if IS_PENDING in body["filter"]["must"]:
            self.swept.append(collection)
        return [], None


class FakeDirectory:
    """Four agents: one unavailable, one removed, one with an unexpected error, one healthy."""

    def __init__(self) -> None:
        self.slugs = ["away", "gone", "odd", "here"]
        self.swept: list[str] = []

    def list_settings(self) -> list[Any]:
        return [settings_of(slug) for slug in self.slugs]

    async def open(self, slug: str, *, renews_lease: bool) -> Agent:
        assert not renews_lease
        if slug == "away":
            raise StoreUnavailable("away")
        if slug == "gone":
            raise NotFound("gone")
        if slug == "odd":
            raise OSError("File name too long")
        return agent_of(settings_of(slug), Empty(self.swept))  # type: ignore[arg-type] # what the sweeper uses of it


@contextlib.asynccontextmanager
async def sweeping(directory: FakeDirectory) -> AsyncIterator[None]:
    """Sweep while the context is open; the sweeper must not end earlier."""
    running = asyncio.create_task(Sweeper(directory).run(round_s=0.01))  # type: ignore[arg-type]
    yield
    assert not running.done()
    running.cancel()


async def test_failing_agents_do_not_block_the_others(caplog: pytest.LogCaptureFixture) -> None:
    directory = FakeDirectory()

    async with sweeping(directory):
        await asyncio.to_thread(wait_until, lambda: len(directory.swept) > 1, seconds=10, what="a second round")

    assert set(directory.swept) == {settings_of("here").alias}
    assert len(directory.swept) > 1
    assert "sweep of agent odd failed" in caplog.text
    assert "OSError: File name too long" in caplog.text


async def test_sweeper_waits_without_agents() -> None:
    directory = FakeDirectory()
    directory.slugs = []

    async with sweeping(directory):
        await asyncio.sleep(0.05)

    assert directory.swept == []
