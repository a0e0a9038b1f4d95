"""Snapshots of individual shards, and their recovery.

A shard is a slice of ids within one engine shard, so its points are read and written here in batches.

As on a real cluster, a recovery takes a while: the replicas pass through other states, and the points exist only when
all replicas are active. If the server stops in between, the replicas stay Dead and the recovery must be repeated.
"""

import asyncio
import pathlib
import shutil
import uuid
from collections.abc import Collection as Items
from collections.abc import Iterator
from datetime import UTC, datetime

import qdrant_edge as edge

from qdrant_devserver.cluster.peers import (
    ACTIVE,
    DEAD,
    PARTIAL,
    RECOVERING,
    Peer,
    replicas_of,
    set_replicas,
    shard_count,
    shard_filter,
)
from qdrant_devserver.cluster.state import State
from qdrant_devserver.engine_faults import engine_errors
from qdrant_devserver.error_answers import wrong_input
from qdrant_devserver.fields import Document
from qdrant_devserver.points.updates import BATCH_SIZE, apply_operation, write_access
from qdrant_devserver.snapshots.archives import SHARD, write_archive
from qdrant_devserver.storage.collection import Record, ServedCollection, fields_of
from qdrant_devserver.storage.files import copy_tree, rename


async def write_shards(state: State, collection: ServedCollection, shards: Items[int], target: pathlib.Path) -> None:
    """Write an archive with the points of some shards. Writers wait while the collection's files are copied.

    Raises:
        ErrorAnswer: 404 if the collection was deleted in the meantime.
        OSError: If the disk is full.
    """
    copy = target.with_name(f"{target.name}-part")
    try:
        async with write_access(collection):
            record, generation = collection.record, collection.record.generation
            if generation is not None:
                state.shards.open(collection).flush()
                await asyncio.to_thread(copy_tree, collection.shard_folder(generation), copy)
        if generation is not None:
            _keep_only(copy, shards, shard_count(record))
        manifest = manifest_of(state, record, shards)
        await asyncio.to_thread(write_archive, target, manifest, copy if generation is not None else None)
    finally:
        await asyncio.to_thread(shutil.rmtree, copy, ignore_errors=True)


def manifest_of(state: State, record: Record, shards: Items[int]) -> Document:
    """Build the manifest of an archive: server version, record of the collection, and numbers of the shards in it."""
    return {"version": state.features.version, "record": fields_of(record), "shards": sorted(shards)}


def name_of_shard(collection: ServedCollection, shard: int) -> str:
    """Return the name of a shard's snapshot that is created now."""
    return f"{collection.name}-shard-{shard}-{datetime.now(UTC):%Y-%m-%d-%H-%M-%S}.snapshot"


async def restore_shards(
    state: State, collection: ServedCollection, building: pathlib.Path, peer: Peer, shards: Items[int]
) -> None:
    """Replace the points of some shards by those of an unpacked archive, in the background if activation takes time.

    The replicas of `peer` become active first. The points exist when all replicas are active.

    Raises:
        ErrorAnswer: 404 if the collection was deleted in the meantime.
    """
    async with write_access(collection):
        staged = None
        if (building / SHARD).exists():
            staged = collection.folder / f"recovering-{uuid.uuid4().hex}"
            rename(building / SHARD, staged)
        for shard in shards:
            _empty(state, collection, shard)
            others = replicas_of(collection.record)[shard].keys() - {peer.number}
            set_replicas(collection.record, shard, dict.fromkeys(others, DEAD) | {peer.number: RECOVERING})
        collection.save()
    activation = _activate(state, collection, staged, peer, shards)
    if state.cluster.activation_s:
        state.start(activation)
    else:
        await activation


def check_shard_archive(record: Record, manifest: Document, shard: int) -> None:
    """Raise if an archive does not contain the shard, or has another shape than the collection.

    Raises:
        ErrorAnswer: 400.
    """
    if shard not in manifest["shards"]:
        raise wrong_input(f"Snapshot holds the shards {manifest['shards']}, not shard {shard}")
    own, other = record.configuration["params"], manifest["record"]["configuration"]["params"]
    if own["vectors"] != other["vectors"] or own["shard_number"] != other["shard_number"]:
        raise wrong_input("Snapshot is not compatible with existing collection: other vectors or shards")


async def _activate(
    state: State, collection: ServedCollection, staged: pathlib.Path | None, peer: Peer, shards: Items[int]
) -> None:
    for state_of_peer, state_of_others in ((ACTIVE, PARTIAL), (ACTIVE, ACTIVE)):
        await asyncio.sleep(state.cluster.activation_s / 2)
        if collection.deleted:
            return
        async with write_access(collection):
            if state_of_others == ACTIVE and staged is not None:
                await _copy_points(state, collection, staged, shards)
            for shard in shards:
                others = replicas_of(collection.record)[shard].keys() - {peer.number}
                states = dict.fromkeys(others, state_of_others) | {peer.number: state_of_peer}
                set_replicas(collection.record, shard, states)
            collection.save()
    state.optimizations.schedule_check(collection)


async def _copy_points(state: State, collection: ServedCollection, staged: pathlib.Path, shards: Items[int]) -> None:
    own = state.shards.open(collection)
    with engine_errors():
        source = edge.EdgeShard.load(str(staged), None)
    try:
        for shard in shards:
            for points in _points(source, shard_filter(shard, shard_count(collection.record))):
                apply_operation(own, collection, edge.UpdateOperation.upsert_points(points))
                await asyncio.sleep(0)
    finally:
        source.close()
        shutil.rmtree(staged, ignore_errors=True)


def _points(source: edge.EdgeShard, chosen: edge.Filter) -> Iterator[list[edge.Point]]:
    offset = None
    while True:
        request = edge.ScrollRequest(
            offset=offset, limit=BATCH_SIZE, filter=chosen, with_payload=True, with_vector=True
        )
        with engine_errors():
            records, offset = source.scroll(request)
        if records:
            yield [edge.Point(record.id, record.vector or {}, record.payload) for record in records]
        if offset is None:
            return


def _empty(state: State, collection: ServedCollection, shard: int) -> None:
    if collection.record.generation is None:
        return
    chosen = shard_filter(shard, shard_count(collection.record))
    operation = edge.UpdateOperation.delete_points_by_filter(chosen)
    apply_operation(state.shards.open(collection), collection, operation)


def _keep_only(folder: pathlib.Path, shards: Items[int], count: int) -> None:
    with engine_errors():
        copy = edge.EdgeShard.load(str(folder), None)
        for shard in range(count):
            if shard not in shards:
                chosen = shard_filter(shard, count)
                copy.update(edge.UpdateOperation.delete_points_by_filter(chosen))
        copy.flush()
        copy.close()
