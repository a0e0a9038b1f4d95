"""Snapshot and restore commands on `agentmemory dev`, with its watched folder as the cluster."""

import contextlib
import hashlib
import pathlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from agentmemory_operator.adapters.qdrant.call_hooks import MAX_SAVED_RETRIES, READS_PER_RETRY
from agentmemory_operator.entrypoints.cli.composition import SnapshotAccess
from agentmemory_operator.main.stores import open_jobs, open_objects, open_snapshots
from agentmemory_operator.settings import Settings
from tests.support.command_line import command_line
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, running
from tests.support.spec.documents import agent_document
from tests.support.web.http_server import check_success

# Short, so that a pause outlasts it.
TIMEOUT_S = 4
READERS = 4

CONNECTION: dict[str, Any] = {
    "apiVersion": "agentmemory.dev/v1alpha1",
    "kind": "QdrantConnection",
    "metadata": {"name": "main", "namespace": "agents"},
    "spec": {"url": "http://qdrant.qdrant.svc:6333"},
}


@dataclass(frozen=True, slots=True)
class Development:
    """A running development stack with one agent."""

    program: Program
    manifests: pathlib.Path
    api: httpx.Client
    qdrant: str

    def run(self, *arguments: str) -> str:
        """Run a command on the folder; return its output."""
        cli = command_line(
            open_jobs=open_jobs, downloads=SnapshotAccess(partial(open_snapshots, Settings()), open_objects)
        )
        done = CliRunner().invoke(cli, [*arguments, "--manifests", str(self.manifests)])
        assert done.exit_code == 0, done.output
        return done.output

    def store(self, text: str) -> None:
        """Store a memory. After a 504, whose outcome is unknown, send it again with the same key."""
        memory = {"user_id": "ada", "content": text, "vector": [1.0] * 8}
        for _ in range(2):
            answer = self.api.post("/v1/agents/bot/memories", json=memory, headers={"Idempotency-Key": text})
            if answer.status_code != 504:
                break
        check_success(answer)

    def contents(self) -> list[str]:
        """Return the contents of all memories."""
        listed = check_success(self.api.get("/v1/agents/bot/memories", params={"user_id": "ada"})).json()
        return sorted(memory["content"] for memory in listed["results"])


@contextlib.contextmanager
def developing(folder: pathlib.Path, **connection: Any) -> Iterator[Development]:
    """Start a stack; `connection` extends the spec of its connection."""
    manifests = folder / "manifests"
    manifests.mkdir()
    documents = [{**CONNECTION, "spec": CONNECTION["spec"] | connection}, agent_document("bot")]
    (manifests / "agents.yaml").write_text(yaml.safe_dump_all(documents))
    options = ("--manifests", str(manifests), "--data", str(folder / "data"), "--port", "0")
    with running(Program(folder / "dev.log", *AGENTMEMORY, "dev", *options, AGENTMEMORY_AUTH="none")) as program:
        url, qdrant = program.wait_for(r"API (http://\S+)")[1], program.wait_for(r"Qdrant (http://\S+)")[1]
        with httpx.Client(base_url=url, timeout=30) as api:
            # The API is ready a moment before the agent has its collection.
            wait_until(lambda: api.get("/v1/agents/bot").is_success, seconds=30, what="the agent")
            yield Development(program, manifests, api, qdrant)


@pytest.fixture(scope="module")
def development(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Development]:
    # A move waits for calls in progress, for at most the timeout.
    with developing(tmp_path_factory.mktemp("dev"), timeoutSeconds=2) as started:
        yield started


def test_start_logs_no_error(development: Development) -> None:
    assert " ERROR " not in development.program.log


def test_mem0_clients_are_served(development: Development) -> None:
    assert check_success(development.api.get("/mem0/bot/v1/ping/")).json()["status"] == "ok"


def test_restore_can_be_rolled_back(
    development: Development,
) -> None:
    development.store("before")
    created = development.run("snapshot", "create", "bot", "--name", "one", "--wait")
    development.store("after")

    restored = development.run("restore", "bot", "--from", "one", "--wait")
    after_restore = development.contents()
    rolled_back = development.run("restore", "--rollback", "bot", "--wait")

    assert "MemorySnapshot agents/one has succeeded" in created
    assert "has succeeded (Restored)" in restored
    assert after_restore == ["before"]
    assert "is live again" in rolled_back
    assert development.contents() == ["after", "before"]


def test_snapshot_is_listed_verified_and_deleted(development: Development, tmp_path: pathlib.Path) -> None:
    development.run("snapshot", "create", "bot", "--name", "two", "--wait")
    path = tmp_path / "two.snapshot"

    listed = development.run("snapshot", "list", "bot", "-o", "yaml")
    development.run("snapshot", "download", "two", "-o", str(path), "--qdrant", development.qdrant)
    development.run("snapshot", "verify", "bot", "two", "--wait")
    development.run("snapshot", "delete", "two", "--yes")

    (two,) = [entry for entry in yaml.safe_load(listed)["snapshots"] if entry["name"] == "two"]
    assert two["verified"] == "True"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == two["sha256"]
    assert "two" not in development.run("snapshot", "list", "bot")


def test_api_shows_what_the_operator_of_the_stack_reports(development: Development) -> None:
    development.run("snapshot", "create", "bot", "--name", "three", "--wait")

    def read_state() -> dict[str, Any]:
        return dict(check_success(development.api.get("/v1/agents/bot/state")).json())

    wait_until(lambda: read_state()["last_proven"], seconds=20, what="the proven snapshot")

    state = read_state()
    assert (state["state"], state["last_proven"]["name"], state["capacity"] is not None) == ("ready", "three", True)
    assert state["last_proven"]["points"] is not None
    assert state["commands"]["snapshots"] == "agentmemory snapshot list bot -n agents"
    assert "three" in development.api.get("/ui/agents/bot/backups").text
    development.run("snapshot", "delete", "three", "--yes")
    wait_until(
        lambda: "three" not in [each["name"] for each in read_state()["snapshots"]], seconds=20, what="the deletion"
    )


def test_process_pause_fails_no_read(tmp_path: pathlib.Path) -> None:
    """Issue 16: a list in progress during a pause of 11 s got a 503."""
    is_over = threading.Event()

    def read_on(api: httpx.Client) -> list[int]:
        statuses = []
        while not is_over.is_set():
            statuses.append(api.get("/v1/agents/bot/memories", params={"user_id": "ada"}).status_code)
        return statuses

    with (
        developing(tmp_path, timeoutSeconds=TIMEOUT_S) as development,
        ThreadPoolExecutor(READERS) as readers,
    ):
        # Fill the retry budget, as of a server that has been read for a while.
        for _ in range(READS_PER_RETRY * MAX_SAVED_RETRIES):
            development.contents()
        reading = [readers.submit(read_on, development.api) for _ in range(READERS)]
        time.sleep(0.5)
        development.program.pause()
        time.sleep(TIMEOUT_S + 1)
        development.program.resume()
        time.sleep(0.5)
        is_over.set()
        statuses_seen = {status for readings in reading for status in readings.result()}

    assert statuses_seen == {200}
