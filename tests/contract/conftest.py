"""A Qdrant server over HTTP: the one that QDRANT_URL names, else the development server."""

import asyncio
import os
import pathlib
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from agentmemory_operator.adapters.qdrant_points import QdrantPoints
from agentmemory_operator.devserver import create_app
from agentmemory_operator.domain.effective import AgentSettings
from tests.support.agents import World, agent_of, create_collection, delete_collection, settings_of
from tests.support.http_server import serve


@pytest.fixture(scope="session")
def qdrant_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if url := os.environ.get("QDRANT_URL"):
        yield url.rstrip("/")
        return
    data: pathlib.Path = tmp_path_factory.mktemp("qdrant")
    with serve(create_app(data)) as url:
        yield url


@pytest.fixture(scope="session")
def shared_settings(qdrant_url: str) -> Iterator[AgentSettings]:
    """One collection for many tests: to make one costs more than most tests do."""
    settings = settings_of(f"shared-{uuid.uuid4().hex[:12]}")
    asyncio.run(create_collection(qdrant_url, settings))
    yield settings
    asyncio.run(delete_collection(qdrant_url, settings))


@pytest.fixture
async def world(qdrant_url: str, shared_settings: AgentSettings) -> AsyncIterator[World]:
    """An agent without memories."""
    async with QdrantPoints(qdrant_url) as store:
        yield World(agent_of(shared_settings, store))
        await store.delete(shared_settings.alias, {"must": []})
