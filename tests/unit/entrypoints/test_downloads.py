"""`agentmemory snapshot download`: a complete and verified file, or none."""

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
COMPLETED = {
    "conditions": [condition("Succeeded", "True")],
    "sizeBytes": 23,
    "sha256": SHA256,
    "locations": [QDRANT],
    "connection": {"namespace": "agents", "name": "main"},
}


class Files:
    """Server with one snapshot.

    Args:
        content: Parts of the file; an exception is raised instead of yielded.
    """

    def __init__(self, content: list[Any]) -> None:
        self._content = content
        self.requests: list[tuple[str, str, str]] = []
        self.owner = {"clusterId": "c", "namespace": "agents"}

    def downloads(self, storage: MemoryObjects | None = None) -> SnapshotAccess:
        @asynccontextmanager
        async def open_store(endpoint: Endpoint) -> AsyncIterator[Any]:
            self._url = endpoint.url
            yield self

        def open_objects(bucket: Bucket) -> MemoryObjects:
            assert storage is not None, f"no bucket was meant, asked for {bucket}"
            assert bucket.access_key == AccessKey("id", "secret")
            return storage

        return SnapshotAccess(open_store, open_objects)

    async def metadata(self, physical: str) -> dict[str, Any]:
        return {"agentmemory": self.owner}

    @asynccontextmanager
    async def download(self, physical: str, name: str) -> AsyncIterator[AsyncIterator[bytes]]:
        self.requests.append((self._url, physical, name))

        async def parts() -> AsyncIterator[bytes]:
            for part in self._content:
                if isinstance(part, Exception):
                    raise part
                yield part

        yield parts()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    """A folder with a completed snapshot; asserts that no temporary download file remains."""
    job_folder = JobFolder(tmp_path)
    job_folder.declare("MemorySnapshot", "before", {"agentMemoryRef": {"name": "bot"}})
    job_folder.report("MemorySnapshot", "before", **COMPLETED)
    yield job_folder
    assert list(tmp_path.glob(".got*")) == []


def download(folder: JobFolder, files: Files, *options: str, storage: MemoryObjects | None = None) -> Result:
    arguments = ["snapshot", "download", "before", "-o", str(folder.path / "got"), "--manifests", str(folder.path)]
    cli = command_line(open_jobs=open_jobs, downloads=files.downloads(storage))
    return CliRunner().invoke(cli, [*arguments, *options])


def test_file_has_the_bytes_of_the_snapshot(folder: JobFolder) -> None:
    files = Files(CONTENT)

    result = download(folder, files, "--qdrant", "http://127.0.0.1:6333")

    assert result.exit_code == 0, result.output
    assert (folder.path / "got").read_bytes() == b"".join(CONTENT)
    assert files.requests == [("http://127.0.0.1:6333", "agent_memory_bot__1", QDRANT["name"])]
    assert "SHA-256 as recorded" in result.output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([b"first part, ", b"second Part"], "it has SHA-256"),
        ([b"first part, "], "it has 12 bytes, expected 23"),
        ([b"first part, ", StoreUnavailable("the connection broke")], "the connection broke"),
    ],
    ids=["other bytes", "too few", "broken off"],
)
def test_incomplete_download_keeps_the_old_file(folder: JobFolder, content: list[Any], message: str) -> None:
    (folder.path / "got").write_text("from the day before")

    result = download(folder, Files(content), "--qdrant", "http://127.0.0.1:6333")

    assert result.exit_code == 1
    assert message in result.output
    assert (folder.path / "got").read_text() == "from the day before"


def test_qdrant_of_the_development_stack_must_be_named(folder: JobFolder) -> None:
    result = download(folder, Files(CONTENT))

    assert result.exit_code == 1
    assert "give --qdrant URL: the one that `agentmemory dev` prints" in result.output


@pytest.mark.parametrize("recorded", [{"sha256": SHA256}, {}])
def test_missing_size_is_not_compared(folder: JobFolder, recorded: dict[str, str]) -> None:
    places = {key: COMPLETED[key] for key in ("conditions", "locations", "connection")}
    folder.report("MemorySnapshot", "before", **places, **recorded)

    result = download(folder, Files(CONTENT), "--qdrant", "http://127.0.0.1:6333")

    checked = "as recorded" if recorded else f"{SHA256}; no checksum was recorded, no size was recorded"
    assert (result.exit_code, f"SHA-256 {checked}" in result.output) == (0, True), result.output


@pytest.mark.parametrize(("content", "exit_code"), [(CONTENT, 0), (CONTENT[:1], 1)], ids=["all", "too few"])
def test_size_decides_without_a_recorded_checksum(folder: JobFolder, content: list[Any], exit_code: int) -> None:
    """The computed checksum is printed."""
    folder.report("MemorySnapshot", "before", **{key: value for key, value in COMPLETED.items() if key != "sha256"})

    result = download(folder, Files(content), "--qdrant", "http://127.0.0.1:6333")

    assert result.exit_code == exit_code, result.output
    assert (folder.path / "got").exists() is (exit_code == 0)
    assert (f"SHA-256 {SHA256}; no checksum was recorded" in result.output) is (exit_code == 0)


def test_snapshot_without_bytes_is_reported(folder: JobFolder) -> None:
    folder.report("MemorySnapshot", "before", conditions=[condition("Succeeded", "False")])

    result = download(folder, Files(CONTENT), "--qdrant", "http://127.0.0.1:6333")

    assert result.exit_code == 1
    assert "MemorySnapshot agents/before has no recorded bytes" in result.output


def test_status_without_a_connection_is_reported(folder: JobFolder) -> None:
    folder.report("MemorySnapshot", "before", **{key: value for key, value in COMPLETED.items() if key != "connection"})
    cli = command_line(open_jobs=lambda *_: open_jobs(None, folder.path), downloads=Files(CONTENT).downloads())

    result = CliRunner().invoke(cli, ["snapshot", "download", "before", "-o", str(folder.path / "got")])

    assert (result.exit_code, "names no server in status.connection" in result.output) == (1, True), result.output


def test_storage_copy_is_preferred(folder: JobFolder) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3", "namespace": "agents"}}
    values = {"access-key-id": "id", "secret-access-key": "secret"}
    (folder.path / "secret.yaml").write_text(yaml.safe_dump(secret | {"stringData": values}))
    copy = {"type": "S3", "bucket": "backups", "key": "bot/a.snapshot", "secret": "s3"}
    folder.report("MemorySnapshot", "before", **COMPLETED | {"locations": [QDRANT, copy]})
    storage = MemoryObjects(objects={"bot/a.snapshot": (b"".join(CONTENT), {})})
    files = Files(CONTENT)

    from_storage = download(folder, files, storage=storage)
    requests_before = list(files.requests)
    from_server = download(folder, files, "--qdrant", "http://127.0.0.1:6333", storage=storage)

    assert (from_storage.exit_code, from_server.exit_code) == (0, 0), from_storage.output
    assert requests_before == []
    assert len(files.requests) == 1
    assert (folder.path / "got").read_bytes() == b"".join(CONTENT)


@pytest.mark.parametrize(
    ("location", "namespace"),
    [
        ({}, "alpha"),
        ({"physical": "agent_memory_victim__1"}, "agents"),
        ({"name": "../agent_memory_victim__1-1.snapshot"}, "agents"),
        ({"physical": "..", "name": "..-1.snapshot"}, "agents"),
    ],
    ids=["foreign namespace", "foreign collection", "other folder", "invalid collection"],
)
def test_foreign_file_named_by_a_status_is_not_written(
    folder: JobFolder, location: dict[str, str], namespace: str
) -> None:
    files = Files(CONTENT)
    files.owner["namespace"] = namespace
    folder.report("MemorySnapshot", "before", **COMPLETED | {"locations": [QDRANT | location]})

    result = download(folder, files, "--qdrant", "http://127.0.0.1:6333")

    assert result.exit_code == 1
    assert "is not a snapshot of an agent in namespace agents" in " ".join(result.output.split())
    assert (files.requests, list(folder.path.glob("got"))) == ([], [])
