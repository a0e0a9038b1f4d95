"""`agentmemory snapshot download` writes a whole and checked file, or none."""

import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.entrypoints.cli.composition import SnapshotAccess
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.main.stores import open_jobs
from agentmemory_operator.ports.objects import AccessKey, Bucket
from tests.support.command_line import command_line
from tests.support.engine.stored_files import MemoryObjects
from tests.support.job.job_folder import JobFolder, condition

CONTENT = [b"first part, ", b"second part"]
SHA256 = hashlib.sha256(b"".join(CONTENT)).hexdigest()
QDRANT = {"type": "Qdrant", "physical": "agent_memory_bot__1", "name": "agent_memory_bot__1-1.snapshot"}
MADE = {
    "conditions": [condition("Succeeded", "True")],
    "sizeBytes": 23,
    "sha256": SHA256,
    "locations": [QDRANT],
    "connection": {"namespace": "agents", "name": "main"},
}


class Files:
    """Serves one snapshot.

    Args:
        content: a part that is an error is raised.
    """

    def __init__(self, content: list[Any]) -> None:
        self._content = content
        self.asked: list[tuple[str, str, str]] = []
        self.owner = {"clusterId": "c", "namespace": "agents"}

    def downloads(self, storage: MemoryObjects | None = None) -> SnapshotAccess:
        @asynccontextmanager
        async def opened(endpoint: Endpoint) -> AsyncIterator[Any]:
            self._url = endpoint.url
            yield self

        def open_objects(bucket: Bucket) -> MemoryObjects:
            assert storage is not None, f"no bucket was meant, asked for {bucket}"
            assert bucket.access_key == AccessKey("id", "secret")
            return storage

        return SnapshotAccess(opened, open_objects)

    async def metadata(self, physical: str) -> dict[str, Any]:
        return {"agentmemory": self.owner}

    @asynccontextmanager
    async def download(self, physical: str, name: str) -> AsyncIterator[AsyncIterator[bytes]]:
        self.asked.append((self._url, physical, name))

        async def parts() -> AsyncIterator[bytes]:
            for part in self._content:
                if isinstance(part, Exception):
                    raise part
                yield part

        yield parts()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    """A folder with a snapshot that was made; no draft of a download stays in it."""
    made = JobFolder(tmp_path)
    made.declare("MemorySnapshot", "before", {"agentMemoryRef": {"name": "bot"}})
    made.report("MemorySnapshot", "before", **MADE)
    yield made
    assert list(tmp_path.glob(".got*")) == []


def download(folder: JobFolder, files: Files, *options: str, storage: MemoryObjects | None = None) -> Result:
    arguments = ["snapshot", "download", "before", "-o", str(folder.path / "got"), "--manifests", str(folder.path)]
    cli = command_line(open_jobs=open_jobs, downloads=files.downloads(storage))
    return CliRunner().invoke(cli, [*arguments, *options])


def test_the_file_has_the_snapshot_s_bytes(folder: JobFolder) -> None:
    files = Files(CONTENT)

    done = download(folder, files, "--qdrant", "http://127.0.0.1:6333")

    assert done.exit_code == 0, done.output
    assert (folder.path / "got").read_bytes() == b"".join(CONTENT)
    assert files.asked == [("http://127.0.0.1:6333", "agent_memory_bot__1", QDRANT["name"])]
    assert "SHA-256 as recorded" in done.output


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([b"first part, ", b"second Part"], "it has SHA-256"),
        ([b"first part, "], "it has 12 bytes, expected 23"),
        ([b"first part, ", StoreUnavailable("the connection broke")], "the connection broke"),
    ],
    ids=["other bytes", "too few", "broken off"],
)
def test_what_is_not_the_whole_snapshot_leaves_the_file_as_it_was(
    folder: JobFolder, content: list[Any], said: str
) -> None:
    (folder.path / "got").write_text("from the day before")

    done = download(folder, Files(content), "--qdrant", "http://127.0.0.1:6333")

    assert done.exit_code == 1
    assert said in done.output
    assert (folder.path / "got").read_text() == "from the day before"


def test_the_development_stack_s_qdrant_has_to_be_named(folder: JobFolder) -> None:
    done = download(folder, Files(CONTENT))

    assert done.exit_code == 1
    assert "give --qdrant URL: the one that `agentmemory dev` prints" in done.output


@pytest.mark.parametrize(("content", "exit_code"), [(CONTENT, 0), (CONTENT[:1], 1)], ids=["all", "too few"])
def test_where_no_checksum_is_on_record_the_size_decides_and_the_checksum_is_told(
    folder: JobFolder, content: list[Any], exit_code: int
) -> None:
    folder.report("MemorySnapshot", "before", **{key: value for key, value in MADE.items() if key != "sha256"})

    done = download(folder, Files(content), "--qdrant", "http://127.0.0.1:6333")

    assert done.exit_code == exit_code, done.output
    assert (folder.path / "got").exists() is (exit_code == 0)
    assert (f"SHA-256 {SHA256}; no checksum was recorded" in done.output) is (exit_code == 0)


def test_a_snapshot_without_bytes_is_said_to_have_none(folder: JobFolder) -> None:
    folder.report("MemorySnapshot", "before", conditions=[condition("Succeeded", "False")])

    done = download(folder, Files(CONTENT), "--qdrant", "http://127.0.0.1:6333")

    assert done.exit_code == 1
    assert "MemorySnapshot agents/before has no recorded bytes" in done.output


def test_a_copy_in_object_storage_is_taken_unless_a_server_is_named(folder: JobFolder) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3", "namespace": "agents"}}
    values = {"access-key-id": "id", "secret-access-key": "secret"}
    (folder.path / "secret.yaml").write_text(yaml.safe_dump(secret | {"stringData": values}))
    copy = {"type": "S3", "bucket": "backups", "key": "bot/a.snapshot", "secret": "s3"}
    folder.report("MemorySnapshot", "before", **MADE | {"locations": [QDRANT, copy]})
    storage = MemoryObjects(objects={"bot/a.snapshot": (b"".join(CONTENT), {})})
    files = Files(CONTENT)

    from_storage = download(folder, files, storage=storage)
    asked_before = list(files.asked)
    from_server = download(folder, files, "--qdrant", "http://127.0.0.1:6333", storage=storage)

    assert (from_storage.exit_code, from_server.exit_code) == (0, 0), from_storage.output
    assert asked_before == []
    assert len(files.asked) == 1
    assert (folder.path / "got").read_bytes() == b"".join(CONTENT)


@pytest.mark.parametrize(
    ("place", "namespace"),
    [
        ({}, "alpha"),
        ({"physical": "agent_memory_victim__1"}, "agents"),
        ({"name": "../agent_memory_victim__1-1.snapshot"}, "agents"),
        ({"physical": "..", "name": "..-1.snapshot"}, "agents"),
    ],
    ids=["its collection is another namespace's", "of another collection", "in another folder", "no collection"],
)
def test_a_file_that_only_a_status_calls_the_snapshot_s_is_not_written(
    folder: JobFolder, place: dict[str, str], namespace: str
) -> None:
    files = Files(CONTENT)
    files.owner["namespace"] = namespace
    folder.report("MemorySnapshot", "before", **MADE | {"locations": [QDRANT | place]})

    done = download(folder, files, "--qdrant", "http://127.0.0.1:6333")

    assert done.exit_code == 1
    assert "is not a snapshot of an agent in namespace agents" in " ".join(done.output.split())
    assert (files.asked, list(folder.path.glob("got"))) == ([], [])
