"""Development servers for tests: real processes, real HTTP."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

READY_S = 20


class Server:
    """A development server in a process of its own."""

    def __init__(self, data_dir: pathlib.Path, *options: str) -> None:
        self.data_dir = data_dir
        command = [sys.executable, "-m", "agentmemory_operator.devserver", "--data", str(data_dir), *options]
        package = pathlib.Path(__file__).parents[2] / "operator"
        environment = os.environ | {"PYTHONPATH": str(package)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
        self.urls = self._wait()
        self.url = self.urls[0]
        self.http = httpx.Client(base_url=self.url, timeout=30, headers={"accept-encoding": "identity"})

    def call(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        answer = self.http.request(method, path, json=body) if body is not None else self.http.request(method, path)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text[:300]}"
        return answer.json().get("result")

    def wait_for_status(self, collection: str, status: str, *, within_s: float = 60) -> None:
        deadline = time.monotonic() + within_s
        while (seen := self.call("GET", f"/collections/{collection}")["status"]) != status:
            assert time.monotonic() < deadline, f"{collection} is {seen}, not {status}, after {within_s} s"
            time.sleep(0.05)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        self.http.close()
        self.process.send_signal(how)
        self.process.wait(timeout=30)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _wait(self) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        found = re.search(r"Qdrant (http://.+)", line)
        if not found:
            rest = self.process.stdout.read().decode()
            self.process.stdout.close()
            self.process.wait(timeout=READY_S)
            raise RuntimeError(line + rest)
        return found[1].split()


StartServer = Callable[..., Server]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for tests that clean up after themselves."""
    running = Server(tmp_path_factory.mktemp("devserver"))
    yield running
    running.stop()


@pytest.fixture
def emptied(server: Server) -> Iterator[None]:
    """Leaves the shared server without collections and their snapshots, whatever the test did."""
    yield
    for collection in server.call("GET", "/collections")["collections"]:
        path = f"/collections/{collection['name']}"
        for snapshot in server.call("GET", f"{path}/snapshots"):
            server.call("DELETE", f"{path}/snapshots/{snapshot['name']}")
        server.call("DELETE", path)


@pytest.fixture
def start_server(tmp_path: pathlib.Path) -> Iterator[StartServer]:
    """Starts servers, on one data folder unless told otherwise, and stops those that still run."""
    started: list[Server] = []

    def start(*options: str, data_dir: pathlib.Path | None = None) -> Server:
        started.append(Server(data_dir or tmp_path / "data", *options))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.stop()
