"""A Qdrant server over HTTP: the one that QDRANT_URL names, else the development server."""

import os
import pathlib
from collections.abc import AsyncIterator, Iterator

import pytest

from agentmemory_operator.devserver import create_app
from tests.support.agents import World, open_world
from tests.support.http_server import serve


@pytest.fixture(scope="session")
def qdrant_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if url := os.environ.get("QDRANT_URL"):
        yield url.rstrip("/")
        return
    data: pathlib.Path = tmp_path_factory.mktemp("qdrant")
    with serve(create_app(data)) as url:
        yield url


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with open_world(qdrant_url) as world:
        yield world
