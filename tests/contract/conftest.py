"""A Qdrant server over HTTP: the one of QDRANT_URL, or the development server."""

import asyncio
import contextlib
import os
import pathlib
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.spec.effective.settings import AgentSettings
from qdrant_devserver.server import create_app
from tests.support.engine.agents import (
    World,
    agent_of,
    create_collection,
    delete_collection,
    settings_of,
    tombstones_with_vectors,
)
from tests.support.engine.reused_agents import delete_idle
from tests.support.fault_injection import plant, remove_faults, with_faults
from tests.support.web.http_server import serve
from tests.support.web.storage_proxy import shared_storage_proxy, storage_proxy

__all__ = ["shared_storage_proxy", "storage_proxy"]


@pytest.fixture(scope="session")
def qdrant_data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path | None:
    """Data folder of the development server; None for a server of QDRANT_URL."""
    return None if "QDRANT_URL" in os.environ else tmp_path_factory.mktemp("qdrant")


@pytest.fixture(scope="session")
def qdrant_url(qdrant_data: pathlib.Path | None) -> Iterator[str]:
    if qdrant_data is None:
        url = os.environ["QDRANT_URL"].rstrip("/")
        yield url
        asyncio.run(delete_idle(url))
        return
    with serve(create_app(qdrant_data)) as url:
        yield url


@pytest.fixture
def amid_snapshots(qdrant_data: pathlib.Path | None) -> Iterator[None]:
    """Make the development server keep vectors during snapshots, as Qdrant does."""
    with _fault(qdrant_data, "keeps-vectors"):
        yield


@pytest.fixture
def always_kept(qdrant_data: pathlib.Path | None) -> Iterator[None]:
    """Make the development server keep vectors at all times, as if snapshots were taken continuously."""
    if qdrant_data is None:
        pytest.skip("only the development server can do so")
    with _fault(qdrant_data, "keeps-vectors-always"):
        yield


@pytest.fixture
def keeps_vectors(qdrant_data: pathlib.Path | None) -> Iterator[None]:
    """Run a test on an engine that keeps the vectors that a write omits.

    Everything else is equal, so tests need not distinguish the engines.
    """
    with _engine(qdrant_data):
        yield


@pytest.fixture(params=["empties", "keeps-vectors-always"])
def keeps_and_empties(request: pytest.FixtureRequest, qdrant_data: pathlib.Path | None) -> Iterator[None]:
    """Run a test on an engine that deletes the vectors that a write omits, and on one that keeps them."""
    if request.param == "empties":
        yield
        return
    if qdrant_data is None:
        pytest.skip("only the development server can do so")
    with _engine(qdrant_data):
        yield


def _fault(data: pathlib.Path | None, upsert: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if data is None else with_faults(data, upsert=upsert)


@contextlib.contextmanager
def _engine(data: pathlib.Path | None) -> Iterator[None]:
    if data is None:
        yield
        return
    plant(data, engine={"upsert": "keeps-vectors-always"})
    yield
    remove_faults(data)


@pytest.fixture(scope="session")
def shared_settings(qdrant_url: str) -> Iterator[AgentSettings]:
    """One collection for many tests; its creation costs more than most tests."""
    settings = settings_of(f"shared-{uuid.uuid4().hex[:12]}")
    asyncio.run(create_collection(qdrant_url, settings))
    yield settings
    asyncio.run(delete_collection(qdrant_url, settings))


@pytest.fixture
async def world(qdrant_url: str, shared_settings: AgentSettings) -> AsyncIterator[World]:
    """An agent without memories."""
    async with QdrantPoints(qdrant_url) as store:
        try:
            yield World(agent_of(shared_settings, store))
            assert await tombstones_with_vectors(store, shared_settings.alias) == [], "tombstones have vectors"
        finally:
            await store.delete(shared_settings.alias, {"must": []})
