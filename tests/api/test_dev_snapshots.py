"""The verbs of snapshots and restores on `agentmemory dev`: the folder that it watches stands in for a cluster."""

import hashlib
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from agentmemory_operator.entrypoints.downloads import Downloads
from agentmemory_operator.main.stores import open_jobs, open_objects, open_snapshots
from tests.support.api_stack import agent_document
from tests.support.command_line import command_line
from tests.support.operator import AGENTMEMORY, Program, running, wait_until

CONNECTION = {
    "apiVersion": "agentmemory.dev/v1alpha1",
    "kind": "QdrantConnection",
    "metadata": {"name": "main", "namespace": "agents"},
    "spec": {"url": "http://qdrant.qdrant.svc:6333"},
}


@dataclass(frozen=True, slots=True)
class Development:
    """A running development stack with one agent."""

    manifests: pathlib.Path
    api: httpx.Client
    qdrant: str

    def run(self, *arguments: str) -> str:
        """Run a command on the folder; return what it printed."""
        cli = command_line(open_jobs=open_jobs, downloads=Downloads(open_snapshots, open_objects))
        done = CliRunner().invoke(cli, [*arguments, "--manifests", str(self.manifests)])
        assert done.exit_code == 0, done.output
        return done.output

    def store(self, text: str) -> None:
        """Store a memory."""
        memory = {"user_id": "ada", "content": text, "vector": [1.0] * 8}
        self.api.post("/v1/agents/bot/memories", json=memory).raise_for_status()

    def contents(self) -> list[str]:
        """Return what is remembered."""
        listed = self.api.get("/v1/agents/bot/memories", params={"user_id": "ada"}).raise_for_status().json()
        return sorted(memory["content"] for memory in listed["results"])


@pytest.fixture(scope="module")
def development(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Development]:
    folder = tmp_path_factory.mktemp("dev")
    manifests = folder / "manifests"
    manifests.mkdir()
    (manifests / "agents.yaml").write_text(yaml.safe_dump_all([CONNECTION, agent_document("bot")]))
    options = ("--manifests", str(manifests), "--data", str(folder / "data"), "--port", "0")
    with running(Program(folder / "dev.log", *AGENTMEMORY, "dev", *options, AGENTMEMORY_AUTH="none")) as program:
        url, qdrant = program.wait_for(r"API (http://\S+)")[1], program.wait_for(r"Qdrant (http://\S+)")[1]
        with httpx.Client(base_url=url, timeout=30) as api:
            # Readiness is the API's: the agent has its collection a moment later.
            wait_until(lambda: api.get("/v1/agents/bot").is_success, seconds=30, what="the agent")
            yield Development(manifests, api, qdrant)


def test_what_was_stored_since_a_snapshot_goes_with_a_restore_and_comes_back_with_its_rollback(
    development: Development,
) -> None:
    development.store("before")
    made = development.run("snapshot", "create", "bot", "--name", "one", "--wait")
    development.store("after")

    restored = development.run("restore", "bot", "--from", "one", "--wait")
    then = development.contents()
    taken_back = development.run("restore", "--rollback", "bot", "--wait")

    assert "MemorySnapshot agents/one has succeeded" in made
    assert "has succeeded (Restored)" in restored
    assert then == ["before"]
    assert "is live again" in taken_back
    assert development.contents() == ["after", "before"]


def test_a_snapshot_is_listed_downloaded_verified_and_deleted(development: Development, tmp_path: pathlib.Path) -> None:
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
