"""Ownership of collections in development: an id in the data folder, on a server that may be shared."""

import os
import pathlib
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from agentmemory_operator.main.stores import open_jobs
from tests.support.command_line import command_line
from tests.support.forked import run_agentmemory
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, ROOT, Program, clean_environment, running
from tests.support.spec.documents import agent_document
from tests.support.web.dev_qdrant import dev_qdrant

CONNECTION = {
    "apiVersion": "agentmemory.dev/v1alpha1",
    "kind": "QdrantConnection",
    "metadata": {"name": "main", "namespace": "agents"},
    "spec": {"url": "http://qdrant.qdrant.svc:6333"},
}
AGENT = "/v1/agents/bot"
VECTOR = [1.0] * 8
START_ENVIRONMENT = clean_environment() | {"HOME": os.environ.get("HOME", "/")}
STARTS = 8
# Forks that begin at once: each reads the same line when it is written.
CONCURRENT = f"""
import os, pathlib, sys
from agentmemory_operator.adapters.folder.data_files import ensure_cluster_id
waiting, begin = os.pipe()
for _ in range({STARTS}):
    if os.fork() == 0:
        os.close(begin)
        os.read(waiting, 1)
        os.write(1, f"{{ensure_cluster_id(pathlib.Path(sys.argv[1]))}}\\n".encode())
        os._exit(0)
os.close(begin)
for _ in range({STARTS}):
    assert os.wait()[1] == 0
"""


@dataclass(slots=True)
class Stack:
    """Running stack."""

    program: Program
    api: httpx.Client
    qdrant: httpx.Client

    def wait_served(self) -> None:
        wait_until(lambda: self.api.get(AGENT).status_code == 200, seconds=30, what="the agent")

    def store(self, text: str) -> None:
        memory = {"user_id": "ada", "content": text, "vector": VECTOR}
        self.api.post(f"{AGENT}/memories", json=memory).raise_for_status()

    def contents(self) -> list[str]:
        listed = self.api.get(f"{AGENT}/memories", params={"user_id": "ada"}).raise_for_status().json()
        return sorted(memory["content"] for memory in listed["results"])

    def owners(self) -> dict[str, str]:
        """Return the clusterId of each collection."""
        names = [item["name"] for item in self.qdrant.get("/collections").json()["result"]["collections"]]
        return {name: self._marker(name).get("clusterId", "") for name in names}

    def _marker(self, name: str) -> dict[str, Any]:
        config = self.qdrant.get(f"/collections/{name}").raise_for_status().json()["result"]["config"]
        marker: dict[str, Any] = (config.get("metadata") or {}).get("agentmemory") or {}
        return marker


class Home:
    """Folders of one developer: manifests of one agent, and data."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self.manifests, self.data = path, path / "manifests", path / "data"
        self.manifests.mkdir(parents=True)
        (self.manifests / "agents.yaml").write_text(yaml.safe_dump_all([CONNECTION, agent_document("bot")]))

    @property
    def options(self) -> tuple[str, ...]:
        """Arguments that start the stack on an unreachable server."""
        folders = ("--manifests", str(self.manifests), "--data", str(self.data))
        return ("dev", *folders, "--port", "0", "--qdrant", "http://127.0.0.1:9")

    @property
    def file(self) -> pathlib.Path:
        return self.data / "cluster-id"

    @property
    def id(self) -> str:
        return self.file.read_text().strip()

    @contextmanager
    def dev(self, *more: str, **environment: str) -> Iterator[Stack]:
        """Run `agentmemory dev`."""
        options = ("--manifests", str(self.manifests), "--data", str(self.data), "--port", "0", *more)
        program = Program(self.path / "dev.log", *AGENTMEMORY, "dev", *options, **environment)
        with running(program), ExitStack() as stack:
            api, qdrant = (program.wait_for(rf"{name} (http://\S+)")[1] for name in ("API", "Qdrant"))
            clients = [stack.enter_context(httpx.Client(base_url=url, timeout=30)) for url in (api, qdrant)]
            yield Stack(program, *clients)
            program.stop()

    @contextmanager
    def api(self, qdrant: str, *more: str, **environment: str) -> Iterator[tuple[Program, httpx.Client]]:
        """Run `agentmemory api` on the manifests."""
        options = ("--source", "files", "--manifests", str(self.manifests), "--port", "0", *more)
        program = Program(self.path / "api.log", *AGENTMEMORY, "api", *options, QDRANT_URL=qdrant, **environment)
        with running(program), httpx.Client(base_url=program.wait_for(r"API (http://\S+)")[1], timeout=30) as client:
            yield program, client

    def run(self, *arguments: str) -> str:
        """Run a command on the folder; return its output."""
        done = CliRunner().invoke(command_line(open_jobs=open_jobs), [*arguments, "--manifests", str(self.manifests)])
        assert done.exit_code == 0, done.output
        return done.output


@pytest.fixture
def home(tmp_path: pathlib.Path) -> Home:
    return Home(tmp_path / "home")


class TestSharedServer:
    """Two developers with the same manifests and one Qdrant."""

    def test_second_developer_is_refused(self, tmp_path: pathlib.Path) -> None:
        ada, bob = Home(tmp_path / "ada"), Home(tmp_path / "bob")
        with dev_qdrant(tmp_path / "qdrant") as url:
            with ada.dev("--qdrant", url) as stack:
                stack.wait_served()
                stack.store("ada's")
            with bob.dev("--qdrant", url) as stack:
                stack.program.wait_for("CollectionNotOwned")
                refused = [stack.api.get(AGENT), stack.api.get(f"{AGENT}/memories", params={"user_id": "ada"})]
                owners = stack.owners()

        assert [answer.status_code for answer in refused] == [503, 503]
        assert "ada's" not in "".join(answer.text for answer in refused)
        assert set(owners.values()) == {ada.id}
        assert ada.id != bob.id

    def test_api_serves_collections_of_its_data_folder(self, tmp_path: pathlib.Path) -> None:
        ada, bob = Home(tmp_path / "ada"), Home(tmp_path / "bob")
        with dev_qdrant(tmp_path / "qdrant") as url:
            with ada.dev("--qdrant", url) as stack:
                stack.wait_served()
                stack.store("ada's")
            with ada.api(url, "--data", str(ada.data)) as (_, client):
                wait_until(lambda: client.get(AGENT).status_code == 200, seconds=20, what="the agent")
            with ada.api(url, AGENTMEMORY_CLUSTER_ID=ada.id) as (_, client):
                wait_until(lambda: client.get(AGENT).status_code == 200, seconds=20, what="the agent")
            with bob.api(url, "--data", str(bob.data)) as (program, client):
                program.wait_for("the cluster ID is not known: .*cluster-id is missing")
                assert client.get("/readyz").status_code == 503
                assert client.get(AGENT).status_code == 503
                bob.data.mkdir()
                bob.file.write_text("somebody-else\n")
                # On the next read the id is known, and the collection belongs to another id.
                wait_until(lambda: client.get("/readyz").status_code == 200, seconds=30, what="readiness")
                answer = client.get(AGENT)

        assert answer.status_code == 503
        assert "see the object's Ready condition" in answer.json()["detail"]


@pytest.mark.parametrize("secret", ["", "development"], ids=["none", "token"])
def test_user_token_survives_restart_for_its_user_only(home: Home, secret: str) -> None:
    mode = {"AGENTMEMORY_AUTH": "token", "AGENTMEMORY_TOKEN": secret} if secret else {}
    trusted = {"Authorization": f"Bearer {secret}"} if secret else {}
    with home.dev(**mode) as stack:
        wait_until(lambda: stack.api.get(AGENT, headers=trusted).status_code == 200, seconds=30, what="the agent")
        sent = {"user_id": "ada", "verbs": ["read", "write"]}
        token = stack.api.post(f"{AGENT}/tokens", json=sent, headers=trusted).raise_for_status().json()["token"]
    with home.dev(**mode) as stack:
        wait_until(lambda: stack.api.get(AGENT, headers=trusted).status_code == 200, seconds=30, what="the agent")
        held = {"Authorization": f"Bearer {token}"}
        memory = {"content": "c", "vector": VECTOR}
        stored = [
            stack.api.post(f"{AGENT}/memories", json=memory | said, headers=held).status_code
            for said in ({"user_id": "ada"}, {"user_id": "ada", "author": "eve"}, {"user_id": "eve"})
        ]
        free = stack.api.post(
            f"{AGENT}/memories", json=memory | {"user_id": "eve", "author": "anybody"}, headers=trusted
        )
        forged = stack.api.get(AGENT, headers={"Authorization": f"Bearer {token}x"})

    assert (stored, free.status_code, forged.status_code) == ([201, 403, 403], 201, 401)
    assert stat.S_IMODE((home.data / "user-token-key").stat().st_mode) == 0o600
    assert token not in stack.program.log


class TestFile:
    """The id file is complete or missing, and readable by its owner only."""

    def test_lost_id_leaves_collections_and_names_remedy(self, home: Home) -> None:
        with home.dev() as stack:
            stack.wait_served()
            stack.store("kept")
            before = home.id
        home.file.unlink()

        with home.dev() as stack:
            printed_id = stack.program.wait_for("write (.+) into the file cluster-id")[1]
            stack.program.wait_for("CollectionNotOwned")
            refused, owners = stack.api.get(AGENT).status_code, stack.owners()
        home.file.write_text(printed_id)
        with home.dev() as stack:
            stack.wait_served()
            kept = stack.contents()

        assert (printed_id, refused, set(owners.values()), kept) == (before, 503, {before}, ["kept"])

    @pytest.mark.parametrize(
        "content", [b"", b"\xff\xfe\x00", b"two words", b"x" * 5000], ids=lambda content: content[:8]
    )
    def test_corrupt_id_fails_start_with_remedy(self, home: Home, content: bytes) -> None:
        home.data.mkdir()
        home.file.write_bytes(content)

        done = run_agentmemory(*home.options, env=START_ENVIRONMENT)

        assert done.returncode == 1
        assert "cluster-id contains no ID: restore the one" in done.stderr
        assert home.file.read_bytes() == content

    def test_full_disk_fails_start_without_partial_file(self, home: Home) -> None:
        no_room = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (0, 0))
        command = [*AGENTMEMORY, *home.options]
        # Nothing is compiled: a file that cannot be written is to be the id's.
        environment = START_ENVIRONMENT | {"PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60, preexec_fn=no_room
        )

        assert done.returncode == 1
        assert "cannot be made: File too large: name another folder with --data" in done.stderr
        assert not home.file.exists()

        with home.dev("--qdrant", "http://127.0.0.1:9"):
            assert home.id

    def test_concurrent_first_starts_agree(self, home: Home) -> None:
        command = [sys.executable, "-c", CONCURRENT, str(home.data)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)

        assert done.stdout.split() == [home.id] * STARTS
