"""Copies of snapshots in object storage, sent and read in constant memory, and checked against the recorded SHA-256.

`Copies.send` can be repeated after a crash at any point: it aborts unfinished uploads first, and keeps an object that
has the right size and SHA-256. It reads each copy back completely before it returns.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.rules.object_keys import KeyOwner, copy_folder, parse_location, parse_owner
from agentmemory_operator.connections.streams import (
    CheckedStream,
    Progress,
    hash_stream,
    read_to_end,
    report_nothing,
    with_progress,
    with_resumes,
)
from agentmemory_operator.errors import ChecksumMismatch, NotFound, SpecInvalid
from agentmemory_operator.ports.objects import ObjectStore, StoredObject
from agentmemory_operator.ports.snapshots import SnapshotStore
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.spec_snapshot import S3Object, S3Storage

# Age from which an unfinished upload is aborted. No upload takes that long, so a killed process left it.
ABANDONED_MS = 24 * 3_600_000
MAX_SEND_ATTEMPTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFile:
    """Snapshot file on a Qdrant server.

    Attributes:
        physical: Name of the collection in Qdrant.
        size: Size in bytes.
        sha256: Hex digest listed by the server; None if the server lists none.
    """

    store: SnapshotStore
    physical: str
    name: str
    size: int
    sha256: str | None

    async def sha256_of_bytes(self) -> str:
        """Return the hex SHA-256 that the server lists, or else compute it from a download of the file.

        Raises:
            NotFound, StoreRejected, StoreUnavailable: If the server does not send the file.
        """
        if self.sha256:
            return self.sha256
        async with self.store.download(self.physical, self.name) as content:
            sha256, _ = await hash_stream(content)
        return sha256


@dataclass(frozen=True, slots=True)
class Copies:
    """Writes, reads and deletes copies of snapshots in object storage."""

    storages: Storages

    async def send(
        self,
        file: ServerFile,
        location: Mapping[str, Any],
        *,
        storage: S3Storage,
        slug: str,
        namespace: str,
        progress: Progress = report_nothing,
    ) -> str:
        """Copy a file from its server to object storage; return its SHA-256, hex.

        Args:
            storage: Storage of the agent. Only its encryption and prefix are used here.
            namespace: Namespace of the MemorySnapshot, and of the Secret with the storage's credentials.

        Raises:
            NotFound, StoreRejected: If the server has no such file, or does not send it.
            ChecksumMismatch: If the file, or each of two attempted copies, differs from its SHA-256. No copy is left.
            StorageRejected, SpecInvalid: If a user must fix the storage, the Secret, or the location.
            TransientError: If the storage or the server is unavailable. Another call continues.
        """
        sha256 = await file.sha256_of_bytes()
        async with self.storages.open_location(location, namespace, encryption=storage.encryption) as (objects, key):
            # Abort the unfinished uploads that killed processes may have left for this agent.
            folder, owner = copy_folder(storage, namespace=namespace, slug=slug), KeyOwner(namespace, slug)
            await objects.abort_uploads(
                folder, older_than_ms=ABANDONED_MS, matches=lambda key: parse_owner(key) == owner
            )
            for attempt in range(1, MAX_SEND_ATTEMPTS + 1):
                await _send_missing(objects, key, file, sha256=sha256, progress=progress)
                try:
                    await _read_back(objects, key, size=file.size, sha256=sha256)
                    break
                except ChecksumMismatch:
                    # Delete the bad object, because no restore may read it.
                    await objects.delete(key)
                    if attempt == MAX_SEND_ATTEMPTS:
                        raise
        return sha256

    async def recover(
        self,
        location: S3Object,
        store: SnapshotStore,
        physical: str,
        *,
        namespace: str,
        progress: Progress = report_nothing,
    ) -> None:
        """Have a server restore the collection `physical` from an object in storage.

        The content is streamed through this process: the server need neither reach the storage nor accept URLs.

        Raises:
            SpecInvalid: If the object does not exist, its SHA-256 is unknown, or the storage or its Secret cannot be
                used. Also if the connection does not list the nodes of the server's cluster.
            ChecksumMismatch: If its content differs from its SHA-256. No collection was created from it.
            StoreRejected: If the server or the storage rejects the call.
            RecoveryOutcomeUnknown: If the response was lost. The server may still create the collection.
            TransientError: If the storage or the server is unavailable.
        """
        async with self.open(location, namespace=namespace, progress=progress) as (content, stored):
            await store.upload(physical, aiter(content), sha256=stored.sha256)

    @asynccontextmanager
    async def open(
        self, location: S3Object, *, namespace: str, progress: Progress = report_nothing
    ) -> AsyncIterator[tuple[CheckedStream, StoredObject]]:
        """Return a context with the content of an object, and its metadata with the SHA-256 that is checked.

        Reading raises ChecksumMismatch before the last chunk if the content differs from the SHA-256 of `location`, or
        of the object's metadata if `location` has none.

        Raises:
            SpecInvalid: If the object does not exist, its SHA-256 is unknown, or the storage or its Secret cannot be
                used.
            StorageRejected: If the storage rejects the call.
            TransientError: If the storage or the Secret cannot be read now.
        """
        async with self.storages.open_object(location, namespace) as (objects, key):
            stored = await _head(objects, location)
            content = with_progress(with_resumes(objects, key, stored.size), stored.size, progress)
            sha256 = str(stored.sha256)
            yield CheckedStream(content, name=_name_of(location), size=stored.size, sha256=sha256), stored

    @asynccontextmanager
    async def open_copy(self, location: Mapping[str, Any], namespace: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Return a context with the content of a copy at a location from a status. Errors are those of `open`."""
        async with self.open(parse_location(location), namespace=namespace) as (content, _):
            yield aiter(content)

    async def check(self, location: S3Object, *, namespace: str, progress: Progress = report_nothing) -> StoredObject:
        """Read an object completely; return its metadata.

        Raises:
            ChecksumMismatch: If its content differs from its SHA-256. Other errors are those of `open`.
        """
        async with self.open(location, namespace=namespace, progress=progress) as (content, stored):
            await read_to_end(content)
        return stored

    async def remove(self, location: Mapping[str, Any], *, namespace: str) -> None:
        """Delete a copy and abort unfinished uploads to it. A copy that does not exist is no error.

        Args:
            location: Location from a status.
            namespace: Namespace of the MemorySnapshot, and of the Secret with the storage's credentials.

        Raises:
            StorageRejected, SpecInvalid: If a user must fix the storage, the Secret, or the location.
            TransientError: If the storage is unavailable. Another call continues.
        """
        async with self.storages.open_location(location, namespace) as (objects, key):
            await _abort_uploads(objects, key)
            await objects.delete(key)


async def _send_missing(objects: ObjectStore, key: str, file: ServerFile, *, sha256: str, progress: Progress) -> None:
    """Upload a file unless the object exists with the right size and SHA-256."""
    stored = await objects.head(key)
    if stored is not None and (stored.size, stored.sha256) == (file.size, sha256):
        return
    # Abort unfinished uploads to the key: only one pass at a time uploads to it, so a killed process left them.
    await _abort_uploads(objects, key)
    async with file.store.download(file.physical, file.name) as content:
        metadata = {"sha256": sha256, "size": str(file.size)}
        await objects.put(key, with_progress(content, file.size, progress), metadata=metadata)


async def _abort_uploads(objects: ObjectStore, key: str) -> None:
    await objects.abort_uploads(key, older_than_ms=0, matches=key.__eq__)


async def _read_back(objects: ObjectStore, key: str, *, size: int, sha256: str) -> None:
    try:
        await read_to_end(
            CheckedStream(with_resumes(objects, key, size), name=f"the copy {key}", size=size, sha256=sha256)
        )
    except NotFound as exc:
        raise ChecksumMismatch(f"the copy {key} disappeared right after it was written") from exc


async def _head(objects: ObjectStore, s3_object: S3Object) -> StoredObject:
    stored = await objects.head(s3_object.key)
    if stored is None:
        raise SpecInvalid(Reason.SOURCE_NOT_ALLOWED, f"{_name_of(s3_object)} does not exist: correct bucket or key")
    sha256 = s3_object.sha256 or stored.sha256
    if sha256 is None:
        raise SpecInvalid(Reason.SOURCE_NOT_ALLOWED, f"{_name_of(s3_object)}: no SHA-256 is stored with it: set sha256")
    return StoredObject(stored.key, stored.size, sha256, stored.modified_ms)


def _name_of(s3_object: S3Object) -> str:
    return f"s3://{s3_object.bucket}/{s3_object.key}"
