"""Snapshots go to object storage and come back: in constant memory, and never other bytes than were recorded.

A copy is killed anywhere and made again: what an upload left unfinished is dropped first, and an object that is there
with the right size and SHA-256 is not sent again. Each copy is read back whole before it counts.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.rules.bucket_places import KeyOwner, copy_folder, object_at, owner_of
from agentmemory_operator.connections.streams import CheckedStream, Progress, digest_of, drain, silent, steady, told
from agentmemory_operator.errors import BytesDiffer, NotFound, SpecInvalid
from agentmemory_operator.ports.objects import ObjectStore, StoredObject
from agentmemory_operator.ports.snapshots import SnapshotStore
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.spec_snapshot import S3Object, S3Storage

# No upload takes a day: what is older was left by somebody who was killed and never came back.
ABANDONED_MS = 24 * 3_600_000
SEND_ATTEMPTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFile:
    """A snapshot on a Qdrant server.

    Attributes:
        sha256: hex, as the server told; None where it tells none.
    """

    store: SnapshotStore
    physical: str
    name: str
    size: int
    sha256: str | None

    async def sha256_of_bytes(self) -> str:
        """The SHA-256 that the server told, else that of its bytes, which are read for it."""
        if self.sha256:
            return self.sha256
        async with self.store.download(self.physical, self.name) as content:
            sha256, _ = await digest_of(content)
        return sha256


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of snapshots in object storage."""

    storages: Storages

    async def send(
        self,
        file: ServerFile,
        location: Mapping[str, Any],
        *,
        storage: S3Storage,
        slug: str,
        namespace: str,
        progress: Progress = silent,
    ) -> str:
        """Copy a file off its server; return the SHA-256 of the copy.

        Args:
            location: where it goes, as the status names it already.
            storage: what the place was made of; only its encryption and prefix count here.
            namespace: of the MemorySnapshot, and of the Secret.

        Raises:
            BytesDiffer: the server's bytes are not those that it recorded, or the storage keeps others twice.
            StorageRejected, SecretMissing: a person has to mend it.
            TransientError: another call goes on.
        """
        sha256 = await file.sha256_of_bytes()
        async with self.storages.open_location(location, namespace, encryption=storage.encryption) as (objects, key):
            # What uploads of the agent have left for good.
            folder, ours = copy_folder(storage, namespace=namespace, slug=slug), KeyOwner(namespace, slug)
            await objects.abort_uploads(folder, older_than_ms=ABANDONED_MS, is_meant=lambda key: owner_of(key) == ours)
            for attempt in range(1, SEND_ATTEMPTS + 1):
                await _send_missing(objects, key, file, sha256=sha256, progress=progress)
                try:
                    await _read_back(objects, key, size=file.size, sha256=sha256)
                    break
                except BytesDiffer:
                    # Nobody may take it for a copy.
                    await objects.delete(key)
                    if attempt == SEND_ATTEMPTS:
                        raise
        return sha256

    async def recover(
        self,
        place: S3Object,
        store: SnapshotStore,
        physical: str,
        *,
        namespace: str,
        progress: Progress = silent,
    ) -> None:
        """Have a server make a collection of an object.

        The bytes pass through here: the server need not reach the storage, nor take URLs.

        Raises:
            SpecInvalid: the object is not there, or nobody knows its SHA-256.
            BytesDiffer: its bytes are others; nothing was made of them.
            StoreRejected: the server refuses them.
        """
        async with self.open(place, namespace=namespace, progress=progress) as (content, known):
            await store.upload(physical, aiter(content), sha256=known.sha256)

    @asynccontextmanager
    async def open(
        self, place: S3Object, *, namespace: str, progress: Progress = silent
    ) -> AsyncIterator[tuple[CheckedStream, StoredObject]]:
        """Open an object's bytes, checked against the SHA-256 that the place or the object tells.

        Raises:
            SpecInvalid: the object is not there, or nobody knows its SHA-256.
        """
        async with self.storages.open_object(place, namespace) as (objects, key):
            known = await _known(objects, place)
            content = told(steady(objects, key, known.size), known.size, progress)
            sha256 = str(known.sha256)
            yield CheckedStream(content, named=_name_of(place), size=known.size, sha256=sha256), known

    @asynccontextmanager
    async def open_copy(self, location: Mapping[str, Any], namespace: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the bytes at a place that a status names; raises as `open` does."""
        async with self.open(object_at(location), namespace=namespace) as (content, _):
            yield aiter(content)

    async def check(self, place: S3Object, *, namespace: str, progress: Progress = silent) -> StoredObject:
        """Read an object whole; return what is known of it.

        Raises:
            SpecInvalid: the object is not there, or nobody knows its SHA-256.
            BytesDiffer: its bytes are others.
        """
        async with self.open(place, namespace=namespace, progress=progress) as (content, known):
            await drain(content)
        return known

    async def remove(self, location: Mapping[str, Any], *, namespace: str) -> None:
        """Remove a copy, unfinished uploads of it too; one that is gone is no error.

        Args:
            location: as a status names it.
            namespace: of the MemorySnapshot, and of the Secret that opens it.
        """
        async with self.storages.open_location(location, namespace) as (objects, key):
            await _drop_unfinished(objects, key)
            await objects.delete(key)


def place_of(location: Mapping[str, Any], sha256: str | None) -> S3Object:
    """Where a copy lies that a status names, with the SHA-256 on record."""
    return object_at(location, sha256=sha256)


async def _send_missing(objects: ObjectStore, key: str, file: ServerFile, *, sha256: str, progress: Progress) -> None:
    """Store a file unless it is there with the right size and SHA-256."""
    stored = await objects.head(key)
    if stored is not None and (stored.size, stored.sha256) == (file.size, sha256):
        return
    # Whoever began one of this very key was killed: only one pass at a time makes it.
    await _drop_unfinished(objects, key)
    async with file.store.download(file.physical, file.name) as content:
        metadata = {"sha256": sha256, "size": str(file.size)}
        await objects.put(key, told(content, file.size, progress), metadata=metadata)


async def _drop_unfinished(objects: ObjectStore, key: str) -> None:
    """Drop what uploads of one key have left."""
    await objects.abort_uploads(key, older_than_ms=0, is_meant=key.__eq__)


async def _read_back(objects: ObjectStore, key: str, *, size: int, sha256: str) -> None:
    try:
        await drain(CheckedStream(steady(objects, key, size), named=f"the copy {key}", size=size, sha256=sha256))
    except NotFound as exc:
        raise BytesDiffer(f"the copy {key} disappeared right after it was written") from exc


async def _known(objects: ObjectStore, place: S3Object) -> StoredObject:
    stored = await objects.head(place.key)
    if stored is None:
        raise SpecInvalid(Reason.SOURCE_NOT_ALLOWED, f"{_name_of(place)} does not exist: correct bucket or key")
    sha256 = place.sha256 or stored.sha256
    if sha256 is None:
        raise SpecInvalid(Reason.SOURCE_NOT_ALLOWED, f"{_name_of(place)}: no SHA-256 is stored with it: set sha256")
    return StoredObject(stored.key, stored.size, sha256, stored.modified_ms)


def _name_of(place: S3Object) -> str:
    return f"s3://{place.bucket}/{place.key}"
