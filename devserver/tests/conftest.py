"""Development servers: one that tests share, and those that a test starts."""

import pathlib
from collections.abc import Iterator

import pytest

from tests.support.web.qdrant_nodes import DevServer, StartServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """Shared server, for tests that clean up after themselves."""
    running = DevServer(tmp_path_factory.mktemp("devserver"))
    yield running
    running.stop()


@pytest.fixture
def emptied(server: DevServer) -> Iterator[None]:
    """Remove all collections and their snapshots from the shared server after the test."""
    yield
    for collection in server.call("GET", "/collections")["collections"]:
        path = f"/collections/{collection['name']}"
        for snapshot in server.call("GET", f"{path}/snapshots"):
            server.call("DELETE", f"{path}/snapshots/{snapshot['name']}")
        server.call("DELETE", path)


@pytest.fixture
def start_server(tmp_path: pathlib.Path) -> Iterator[StartServer]:
    """Return a function that starts servers, by default on one data folder; stop the remaining ones afterwards."""
    started: list[DevServer] = []

    def start(*options: str, data_dir: pathlib.Path | None = None) -> DevServer:
        started.append(DevServer(data_dir or tmp_path / "data", *options))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.stop()
