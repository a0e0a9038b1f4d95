"""Make snapshots, and recover collections from them.

What is not whole yet lies in a folder that the next start sweeps, and a rename publishes it: a crash or a full disk
leaves nothing of a snapshot or of a collection.
"""

import asyncio
import pathlib
import shutil
from datetime import UTC, datetime

import qdrant_edge as edge

from agentmemory_operator.devserver.archives import SHARD, ArchiveBroken, unpack_archive, write_archive
from agentmemory_operator.devserver.collection import Collection, Record, fields_of
from agentmemory_operator.devserver.engine_configuration import settling_operations
from agentmemory_operator.devserver.engine_faults import engine_errors
from agentmemory_operator.devserver.features import minor_of
from agentmemory_operator.devserver.fields import Document
from agentmemory_operator.devserver.files import rename
from agentmemory_operator.devserver.indexes import index_operation
from agentmemory_operator.devserver.problems import engine_failure, wrong_input
from agentmemory_operator.devserver.snapshot_files import hash_file, name_at
from agentmemory_operator.devserver.state import State
from agentmemory_operator.devserver.updates import write_access

PEER_ID = 1


async def create_snapshot(state: State, collection: Collection) -> Document:
    """Make a snapshot of a collection and describe it; writers wait while the engine's files are copied.

    Raises:
        Problem: 404, the collection was deleted meanwhile; 500, the disk is full.
    """
    unfinished = state.snapshots.unfinished()
    try:
        async with write_access(collection):
            record, shard = collection.record, None
            if record.generation is not None:
                # Open, so that no reader opens it meanwhile: that changes its files.
                state.shards.open(collection).flush()
                shard = collection.shard_folder(record.generation)
            manifest = {"version": state.features.version, "record": fields_of(record)}
            await asyncio.to_thread(write_archive, unfinished, manifest, shard)
        await state.faults.meet("create")
        sha256 = await asyncio.to_thread(hash_file, unfinished)
        name = name_at(datetime.now(UTC), collection.name, PEER_ID)
        return state.snapshots.publish(unfinished, collection.name, name, sha256=sha256)
    except OSError as error:
        raise engine_failure(f"Failed to create snapshot of {collection.name}: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


async def recover_collection(state: State, name: str, archive: pathlib.Path, *, sha256: str | None) -> None:
    """Make a collection of an archive, or put the archive's points in the place of an existing one's.

    Args:
        name: a collection's or an alias; created from the archive when it is neither.
        sha256: what the archive has to have, if that is known.

    Raises:
        Problem: 400, another checksum, a snapshot of another version or another shape than the collection; 500, a
            broken archive or a full disk. Whatever was there is as before.
    """
    building = state.catalogue.new_folder()
    try:
        await _check_sum(archive, sha256)
        manifest = await asyncio.to_thread(unpack_archive, archive, building)
        _check_version(manifest["version"], state.features.version)
        record = Record(**manifest["record"])
        await state.faults.meet("recover")
        if state.catalogue.exists(name):
            await _replace(state, state.catalogue.resolve(name), building, record)
        else:
            _create(state, name, building, record, is_known=sha256 is not None)
    except ArchiveBroken as error:
        raise engine_failure(str(error)) from error
    except OSError as error:
        raise engine_failure(f"Failed to recover {name} from a snapshot: {error}") from error
    finally:
        await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)


async def _check_sum(archive: pathlib.Path, expected: str | None) -> None:
    if expected is None:
        return
    found = await asyncio.to_thread(hash_file, archive)
    if found != expected.lower():
        raise wrong_input(f"Snapshot checksum mismatch: expected {expected}, got {found}")


def _check_version(made_by: str, running: str) -> None:
    """Refuse what qdrant.tech/documentation/concepts/snapshots rules out: another minor, or a newer patch."""
    if minor_of(made_by) != minor_of(running) or _patch(made_by) > _patch(running):
        message = f"Snapshot of version {made_by} cannot be restored by {running}: same minor, and no newer patch"
        raise wrong_input(message)


def _patch(version: str) -> int:
    return int(version.split(".")[2])


def _create(state: State, name: str, building: pathlib.Path, record: Record, *, is_known: bool) -> None:
    record.name = name
    if record.generation is not None:
        record.generation = 0
        if not is_known:
            _try_out(building / SHARD)
    state.optimizations.wake(state.catalogue.adopt(building, record))


async def _replace(state: State, collection: Collection, building: pathlib.Path, record: Record) -> None:
    _check_shape(collection, record)
    async with write_access(collection):
        await state.optimizations.forget(collection)
        if record.generation is not None:
            _settle(building / SHARD, record, collection.record)
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
    state.optimizations.wake(collection)


def _check_shape(collection: Collection, record: Record) -> None:
    own, other = collection.record.configuration["params"], record.configuration["params"]
    for what in ("vectors", "shard_number"):
        if own.get(what) != other.get(what):
            raise wrong_input(
                "Snapshot is not compatible with existing collection: "
                f"Collection {what}: {own.get(what)} Snapshot {what}: {other.get(what)}"
            )


def _try_out(folder: pathlib.Path) -> None:
    with engine_errors():
        edge.EdgeShard.load(str(folder), None).close()


def _settle(folder: pathlib.Path, record: Record, own: Record) -> None:
    """Give an unpacked shard the payload indexes and sparse vectors of the collection that it goes to."""
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
            operations += settling_operations(own.configuration, name)
    with engine_errors():
        shard = edge.EdgeShard.load(str(folder), None)
        try:
            for operation in operations:
                shard.update(operation)
            shard.flush()
        finally:
            shard.close()
