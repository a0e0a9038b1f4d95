"""Create snapshots, and recover collections from them.

Incomplete files are in a folder that is removed at the next start; a rename publishes the complete one. So neither a
crash nor a full disk leaves a part of a snapshot or of a collection.
"""

import asyncio
import contextlib
import pathlib
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import qdrant_edge as edge

from qdrant_devserver.cluster.peers import (
    ACTIVE,
    Peer,
    check_local,
    local_shards,
    replicas_of,
    set_replicas,
    shard_count,
)
from qdrant_devserver.cluster.state import State
from qdrant_devserver.engine_faults import engine_errors
from qdrant_devserver.error_answers import engine_failure, not_found, wrong_input
from qdrant_devserver.features import minor_of
from qdrant_devserver.fields import Document
from qdrant_devserver.points.updates import write_access
from qdrant_devserver.snapshots.archives import SHARD, InvalidArchive, unpack_archive, write_archive
from qdrant_devserver.snapshots.shard_snapshots import (
    check_shard_archive,
    manifest_of,
    name_of_shard,
    restore_shards,
    write_shards,
)
from qdrant_devserver.storage.collection import Record, ServedCollection
from qdrant_devserver.storage.engine_configuration import vector_operations
from qdrant_devserver.storage.files import rename
from qdrant_devserver.storage.indexes import index_operation
from qdrant_devserver.storage.snapshot_files import hash_file, snapshot_name


async def create_snapshot(state: State, collection: ServedCollection, peer: Peer) -> Document:
    """Create a snapshot of those shards of a collection that a peer has, and describe the snapshot.

    Writers of the collection wait while its files are copied.

    Raises:
        ErrorAnswer: 404 if the collection was deleted in the meantime; 500 if the disk is full.
    """
    name = snapshot_name(datetime.now(UTC), collection.name, peer.number)
    return await _create(state, collection, peer, local_shards(collection.record, peer), (collection.name, name))


async def create_shard_snapshot(state: State, collection: ServedCollection, shard: int, peer: Peer) -> Document:
    """Create a snapshot of one shard and describe the snapshot. Writers wait while files are copied.

    Raises:
        ErrorAnswer: As `create_snapshot`; 404 or 400 if the peer does not have the shard.
    """
    check_local(collection, shard, peer)
    return await _create(
        state, collection, peer, (shard,), (shard_snapshot_folder(collection, shard), name_of_shard(collection, shard))
    )


def shard_snapshot_folder(collection: ServedCollection, shard: int) -> str:
    """Return the folder of a shard's snapshots, relative to the snapshot root."""
    return f"{collection.name}/shards/{shard}"


async def _create(
    state: State, collection: ServedCollection, peer: Peer, shards: tuple[int, ...], target: tuple[str, str]
) -> Document:
    unfinished = peer.files.unfinished()
    collection.snapshots += 1
    try:
        if len(shards) == shard_count(collection.record):
            await _write_whole(state, collection, unfinished)
        else:
            await write_shards(state, collection, shards, unfinished)
        await state.faults.apply("create")
        sha256 = await asyncio.to_thread(hash_file, unfinished)
        return peer.files.publish(unfinished, *target, sha256=sha256)
    except OSError as error:
        raise engine_failure(f"Failed to create snapshot of {collection.name}: {error}") from error
    finally:
        collection.snapshots -= 1
        unfinished.unlink(missing_ok=True)


async def _write_whole(state: State, collection: ServedCollection, target: pathlib.Path) -> None:
    async with write_access(collection):
        record, shard = collection.record, None
        if record.generation is not None:
            # The shard must be open: a reader that opened it during the copy would change its files.
            state.shards.open(collection).flush()
            shard = collection.shard_folder(record.generation)
        manifest = manifest_of(state, record, range(shard_count(record)))
        await asyncio.to_thread(write_archive, target, manifest, shard)


async def recover_collection(state: State, name: str, archive: pathlib.Path, peer: Peer, sha256: str | None) -> None:
    """Create a collection from an archive, or replace the points of an existing one.

    Args:
        name: Name of a collection or an alias. If neither exists, the collection is created.
        sha256: Expected checksum of the archive; None to skip the check.

    Raises:
        ErrorAnswer: 400 for another checksum, another version, or a shape unlike the collection's; 404 if the
            collection was deleted in the meantime; 500 for a broken archive or a full disk. An existing collection is
            unchanged.
    """
    async with _unpacked(state, archive, sha256) as (building, manifest):
        with state.track_recovery(name) as is_deleted:
            await state.faults.apply("recover")
            if is_deleted():
                raise not_found("shard 0 not found")
        record = Record(**manifest["record"])
        if state.cluster.is_enabled:
            await _recover_local(state, name, building, peer, manifest)
        elif state.catalogue.exists(name):
            await _replace(state, state.catalogue.resolve(name), building, record)
        else:
            _adopt(state, name, building, record, is_known=sha256 is not None)


async def recover_shard(
    state: State, collection: ServedCollection, shard: int, archive: pathlib.Path, peer: Peer, sha256: str | None
) -> None:
    """Replace the points of one shard by an archive's. Its replicas become active some time later.

    Raises:
        ErrorAnswer: As `recover_collection`; 404 or 400 if the peer does not have the shard.
    """
    check_local(collection, shard, peer)
    async with _unpacked(state, archive, sha256) as (building, manifest):
        await state.faults.apply("recover")
        check_shard_archive(collection.record, manifest, shard)
        await restore_shards(state, collection, building, peer, (shard,))


@contextlib.asynccontextmanager
async def _unpacked(
    state: State, archive: pathlib.Path, sha256: str | None
) -> AsyncIterator[tuple[pathlib.Path, Document]]:
    """Yield a folder with the content of an archive, and its manifest; remove the rest of the folder at the end.

    Raises:
        ErrorAnswer: As `recover_collection`.
    """
    building = state.catalogue.new_folder()
    try:
        await check_checksum(archive, sha256)
        manifest = await asyncio.to_thread(unpack_archive, archive, building)
        _check_version(manifest["version"], state.features.version)
        yield building, manifest
    except InvalidArchive as error:
        raise engine_failure(str(error)) from error
    except OSError as error:
        raise engine_failure(f"Failed to recover from a snapshot: {error}") from error
    finally:
        await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)


async def _recover_local(state: State, name: str, building: pathlib.Path, peer: Peer, manifest: Document) -> None:
    """Recover the shards of a snapshot on one peer. For a shard without a replica on the peer, add one."""
    record = Record(**manifest["record"])
    if not state.catalogue.exists(name):
        state.create(name, record.configuration)
        state.catalogue.resolve(name).record.payload_schema = record.payload_schema
    collection = state.catalogue.resolve(name)
    _check_shape(collection, record)
    for shard in manifest["shards"]:
        set_replicas(collection.record, shard, {peer.number: ACTIVE} | replicas_of(collection.record)[shard])
    await restore_shards(state, collection, building, peer, manifest["shards"])


async def check_checksum(archive: pathlib.Path, expected: str | None) -> None:
    """Raise ErrorAnswer (400) unless the file has the expected SHA-256. None accepts any file."""
    if expected is None:
        return
    found = await asyncio.to_thread(hash_file, archive)
    if found != expected.lower():
        raise wrong_input(f"Snapshot checksum mismatch: expected {expected}, got {found}")


def _check_version(created_by: str, running: str) -> None:
    """Raise for another minor version or a newer patch.

    Source: qdrant.tech/documentation/concepts/snapshots.
    """
    if minor_of(created_by) != minor_of(running) or _patch(created_by) > _patch(running):
        message = f"Snapshot of version {created_by} cannot be restored by {running}: same minor, and no newer patch"
        raise wrong_input(message)


def _patch(version: str) -> int:
    return int(version.split(".")[2])


def _adopt(state: State, name: str, building: pathlib.Path, record: Record, *, is_known: bool) -> None:
    record.name, record.replicas = name, {}
    if record.generation is not None:
        record.generation = 0
        if not is_known:
            _check_loads(building / SHARD)
    state.optimizations.schedule_check(state.catalogue.adopt(building, record))


async def _replace(state: State, collection: ServedCollection, building: pathlib.Path, record: Record) -> None:
    _check_shape(collection, record)
    async with write_access(collection):
        await state.optimizations.cancel(collection)
        if record.generation is not None:
            _match_indexes(building / SHARD, record, collection.record)
        state.shards.close(collection)
        own, before = collection.record, collection.record.generation
        own.generation = None
        if record.generation is not None:
            own.generation = 0 if before is None else before + 1
            rename(building / SHARD, collection.shard_folder(own.generation))
        own.built, own.unsettled = record.built, None
        own.indexed_base, own.left_plain = record.indexed_base, record.left_plain
        collection.save()
        collection.summary = None
        if before is not None:
            shutil.rmtree(collection.shard_folder(before))
    state.optimizations.schedule_check(collection)


def _check_shape(collection: ServedCollection, record: Record) -> None:
    own, other = collection.record.configuration["params"], record.configuration["params"]
    for what in ("vectors", "shard_number"):
        if own.get(what) != other.get(what):
            raise wrong_input(
                "Snapshot is not compatible with existing collection: "
                f"Collection {what}: {own.get(what)} Snapshot {what}: {other.get(what)}"
            )


def _check_loads(folder: pathlib.Path) -> None:
    with engine_errors():
        edge.EdgeShard.load(str(folder), None).close()


def _match_indexes(folder: pathlib.Path, record: Record, own: Record) -> None:
    """Give an unpacked shard the payload indexes and sparse vectors of its target collection."""
    operations = [
        edge.UpdateOperation.delete_field_index(field)
        for field, schema in record.payload_schema.items()
        if own.payload_schema.get(field) != schema
    ]
    operations += [
        index_operation(field, schema)
        for field, schema in own.payload_schema.items()
        if record.payload_schema.get(field) != schema
    ]
    sparse, own_sparse = (each.configuration["params"].get("sparse_vectors", {}) for each in (record, own))
    for name in sorted(sparse.keys() | own_sparse.keys()):
        if sparse.get(name) != own_sparse.get(name):
            operations += vector_operations(own.configuration, name)
    with engine_errors():
        shard = edge.EdgeShard.load(str(folder), None)
        try:
            for operation in operations:
                shard.update(operation)
            shard.flush()
        finally:
            shard.close()
