"""`agentmemory snapshot download`: download a snapshot to a file, and verify it."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Annotated

import typer
from rich.filesize import decimal

from agentmemory_operator.adapters.folder.atomic_files import open_replacement
from agentmemory_operator.collections.rules.collection import read_tenant
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.guarded_secrets import GuardedSecrets
from agentmemory_operator.connections.link import DEFAULT_TIMEOUT_S, Endpoint, read_endpoint
from agentmemory_operator.connections.rules.object_keys import S3, parse_location
from agentmemory_operator.connections.streams import CheckedStream, with_progress
from agentmemory_operator.entrypoints.cli.composition import OpenJobs, SnapshotAccess
from agentmemory_operator.entrypoints.cli.job_commands import JobsLocation, add_verb, run_on_jobs, title_of
from agentmemory_operator.entrypoints.cli.job_progress import JobProgress
from agentmemory_operator.errors import AgentMemoryError, ChecksumMismatch
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.ports.snapshots import SnapshotStore
from agentmemory_operator.runtime.object_table import MEMORY_SNAPSHOT
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.rules.steps import locations_of
from agentmemory_operator.snapshots.snapshot_creation import recorded_connection
from agentmemory_operator.spec.kinds.parse import parse_connection
from agentmemory_operator.spec.naming import is_collection_name, is_snapshot_file_of

PROGRESS_PERIOD_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDownload:
    """Download a snapshot to a file, from S3 if copied there, else from Qdrant; verify recorded size and checksum."""

    name: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Name of the MemorySnapshot.")]
    file: Annotated[Path, typer.Option("-o", "--output", dir_okay=False, help="Output file, replaced when complete.")]
    qdrant: Annotated[
        str | None,
        typer.Option(help="URL of Qdrant, if the connection's is not reachable. Qdrant is then preferred to S3."),
    ] = None


def add_download(snapshots: typer.Typer, open_jobs: OpenJobs, downloads: SnapshotAccess) -> None:
    """Add `download` to the group `snapshot`."""
    add_verb(snapshots, "download", SnapshotDownload, partial(_download, open_jobs, downloads))


def _download(
    open_jobs: OpenJobs, downloads: SnapshotAccess, options: SnapshotDownload, location: JobsLocation
) -> None:
    is_folder = location.manifests is not None

    async def work(objects: JobObjects, namespace: str) -> str:
        document = await objects.read_object(MEMORY_SNAPSHOT, namespace, options.name)
        url = options.qdrant or (downloads.qdrant_url if is_folder else None)
        source = _Source(downloads, objects, document, url, is_folder)
        with JobProgress(f"{title_of(document)} to {options.file}") as progress:
            return await save(source, options.file, progress)

    summary = run_on_jobs(open_jobs, location, work, interrupt_message=f"interrupted: {options.file} is unchanged")
    typer.echo(f"{options.file}: {summary}")


@dataclass(frozen=True, slots=True)
class _Source:
    """A snapshot to download.

    Attributes:
        url: URL of a Qdrant server that replaces the connection's; None keeps that.
        is_folder: True if the objects are manifests of `agentmemory dev`, which does not use their connections' URLs.
    """

    downloads: SnapshotAccess
    objects: JobObjects
    document: Json
    url: str | None
    is_folder: bool

    @property
    def status(self) -> Json:
        """Status of the MemorySnapshot."""
        return self.document.get("status") or {}

    def select_location(self) -> Json:
        """Select the location to download from: S3 first, or Qdrant first if a URL is given.

        Raises:
            AgentMemoryError: If no location is recorded.
        """
        by_type = {entry["type"]: entry for entry in locations_of(self.status)}
        order = ("Qdrant", S3) if self.url else (S3, "Qdrant")
        found = next((by_type[kind] for kind in order if kind in by_type), None)
        if found is None:
            raise AgentMemoryError(f"{title_of(self.document)} has no recorded bytes: see its conditions")
        return dict(found)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the content.

        Reading it raises ChecksumMismatch if it differs from its recorded checksum. If none is recorded, content from
        Qdrant is not checked here.

        Raises:
            AgentMemoryError: If no location is recorded, the file may not be read for this namespace, or its bucket or
                server cannot be used.
        """
        entry, namespace = self.select_location(), self.document["metadata"]["namespace"]
        if entry["type"] == S3:
            copies = Copies(Storages(self._secrets, self.downloads.open_objects))
            copy = parse_location(entry, sha256=self.status.get("sha256"))
            async with copies.open(copy, namespace=namespace) as (content, _):
                yield aiter(content)
            return
        endpoint = await self._endpoint()
        async with (
            self.downloads.open_snapshots(endpoint) as store,
            self._download(store, entry["physical"], entry["name"]) as received,
        ):
            sha256 = self.status.get("sha256")
            size = self.status.get("sizeBytes")
            yield aiter(CheckedStream(received, name=entry["name"], size=size, sha256=sha256)) if sha256 else received

    @asynccontextmanager
    async def _download(self, store: SnapshotStore, physical: str, name: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a snapshot file of a collection, unless the collection belongs to another namespace.

        The name comes from a status, which tenants can forge, so it may be any file.

        Raises:
            AgentMemoryError: If the file belongs to another namespace, or is not a snapshot of an agent.
        """
        namespace = self.document["metadata"]["namespace"]
        is_snapshot_file = is_collection_name(physical) and is_snapshot_file_of(physical, name)
        owner = read_tenant(await store.metadata(physical)) if is_snapshot_file else None
        if not is_snapshot_file or (owner is not None and owner.namespace != namespace):
            raise AgentMemoryError(
                f"{title_of(self.document)} names a file that is not a snapshot of an agent in namespace {namespace}: "
                f"its status was changed by another client. Delete it and create it under another name"
            )
        async with store.download(physical, name) as received:
            yield received

    async def _endpoint(self) -> Endpoint:
        if self.is_folder:
            if self.url is None:
                raise AgentMemoryError("give --qdrant URL: the one that `agentmemory dev` prints")
            return Endpoint(self.url, self.downloads.qdrant_api_key, DEFAULT_TIMEOUT_S)
        if (connection := recorded_connection(self.status)) is None:
            raise AgentMemoryError(
                f"{title_of(self.document)} names no server in status.connection: create another snapshot"
            )
        document = await self.objects.read_object(connection.kind, connection.namespace, connection.name)
        return await read_endpoint(parse_connection(document), self._secrets, url=self.url)

    @property
    def _secrets(self) -> GuardedSecrets:
        return GuardedSecrets(self.objects, self.downloads.secret_hosts)


async def save(source: _Source, path: Path, progress: JobProgress) -> str:
    """Write the content to a file that is replaced when complete and verified; return a summary for the user.

    Raises:
        ChecksumMismatch: If size or checksum of the content differs from the recorded one. The file is unchanged.
        AgentMemoryError: If the content cannot be read. The file is unchanged.
        OSError: If the file cannot be written. A previous file is unchanged.
    """
    total = source.status.get("sizeBytes")
    with open_replacement(path) as draft:
        size, sha256 = await _receive(source, draft, progress)
        if total is not None and size != total:
            raise ChecksumMismatch(f"{path}: received {size} bytes, expected {total}")
    size_note = "no size was recorded" if total is None else "the size matches"
    checked = "as recorded" if source.status.get("sha256") else f"{sha256}; no checksum was recorded, {size_note}"
    return f"{decimal(size)}, SHA-256 {checked}"


async def _receive(source: _Source, draft: IO[bytes], progress: JobProgress) -> tuple[int, str]:
    """Write the content; return its size and SHA-256."""
    total, size, digest = source.status.get("sizeBytes") or 0, 0, hashlib.sha256()

    async def show(done: int, _: int) -> None:
        progress.advance(f"{decimal(done)} of {decimal(total)}", done, total)

    async with source.open() as content:
        async for chunk in with_progress(content, total, show, every_s=PROGRESS_PERIOD_S):
            size += draft.write(chunk)
            digest.update(chunk)
    return size, digest.hexdigest()
