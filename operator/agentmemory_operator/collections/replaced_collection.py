"""Find the live collection behind an alias. Mark the collection that it replaced, and remove the replaced one later.

Restores and rebuilds replace collections. Qdrant lists and serves snapshots only while a collection of their name
exists. So a deleted collection whose snapshots are not stored elsewhere is replaced by an empty placeholder, until the
last of them is removed.
"""

from collections.abc import Mapping

from agentmemory_operator.collections.rules.collection import (
    PREVIOUS_KEY,
    Observation,
    is_owner,
    is_placeholder,
    read_owner,
    read_tenant,
)
from agentmemory_operator.collections.rules.rebuild_record import RebuildStep, record_from_json
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.snapshots import SnapshotStore
from agentmemory_operator.runtime.cluster_identity import ClusterId
from agentmemory_operator.runtime.object_table import Key
from agentmemory_operator.spec.times import time_or_none


async def delete_keeping_snapshots(
    collections: CollectionStore, snapshots: SnapshotStore, physical: str, *, copied: frozenset[str] = frozenset()
) -> int:
    """Delete a collection and its aliases; return the number of snapshots that a placeholder keeps available.

    The call can be repeated after a crash at any step. If the collection no longer exists, a placeholder is created to
    find out whether it left snapshots, and deleted again if it did not.

    Args:
        copied: Names of snapshot files that are stored elsewhere too. They are deleted if the collection still exists.
    """
    metadata = await snapshots.metadata(physical)
    if metadata is not None and not is_placeholder(metadata):
        snapshot_count = 0
        for file in await snapshots.files(physical):
            if file.name in copied:
                await snapshots.delete_file(physical, file.name)
            else:
                snapshot_count += 1
        await collections.delete(physical)
        if not snapshot_count:
            return 0
    await snapshots.create_placeholder(physical, read_tenant(metadata))
    return await drop_empty_placeholder(collections, snapshots, physical)


async def remove_file(collections: CollectionStore, snapshots: SnapshotStore, physical: str, name: str) -> None:
    """Delete a snapshot file, and the placeholder if that was its last file. A missing file is no error.

    For a missing collection, a placeholder is created first, because Qdrant would otherwise ignore the deletion.
    """
    metadata = await snapshots.metadata(physical)
    if metadata is None:
        await snapshots.create_placeholder(physical)
    await snapshots.delete_file(physical, name)
    if metadata is None or is_placeholder(metadata):
        await drop_empty_placeholder(collections, snapshots, physical)


async def keep_snapshots_available(collections: CollectionStore, snapshots: SnapshotStore, physical: str) -> set[str]:
    """Return the names of a collection's snapshot files; empty if there are none.

    If only files remain of a deleted collection, create a placeholder, without which Qdrant does not list them.
    """
    if await snapshots.metadata(physical) is None:
        await snapshots.create_placeholder(physical)
        await drop_empty_placeholder(collections, snapshots, physical)
    return {file.name for file in await snapshots.files(physical)}


async def drop_empty_placeholder(collections: CollectionStore, snapshots: SnapshotStore, physical: str) -> int:
    """Return the number of a collection's snapshots. Delete the collection if it is a placeholder without any."""
    snapshot_count = len(await snapshots.files(physical))
    # Read the metadata right before the deletion, because only a placeholder may be deleted here.
    if not snapshot_count and is_placeholder(await snapshots.metadata(physical)):
        await collections.delete(physical)
    return snapshot_count


async def find_live(server: Server, alias: str, expected: str | None) -> Observation | None:
    """Observe the collection that clients reach through an alias. None if it is missing or a placeholder.

    Args:
        expected: Expected physical name. If it is right, not all aliases are listed. None if unknown.
    """
    observed = await server.collections.observe(alias, expected or alias)
    if observed is None or not (observed.is_aliased or observed.physical == alias):
        return None
    return None if is_placeholder(await server.snapshots.metadata(observed.physical)) else observed


async def has_owner(server: Server, name: str, owner: Key, cluster_id: ClusterId) -> bool:
    """Return whether a collection, or the target of an alias, has the marker of this cluster and AgentMemory."""
    metadata = await server.snapshots.metadata(name)
    return is_owner(read_owner(metadata), (await cluster_id(), owner.namespace, owner.name))


async def alias_points_to(server: Server, alias: str, physical: str) -> bool:
    """Return whether clients reach a collection by an alias, or by its own equal name. False for a placeholder."""
    live = await find_live(server, alias, physical)
    return live is not None and live.physical == physical


async def mark_previous(
    server: Server, physical: str, *, since: str, removal_time: str, reference: Mapping[str, str]
) -> None:
    """Record in a collection's metadata that it was replaced. Does nothing if the collection does not exist.

    Args:
        since, removal_time: Times of the replacement and of the end of its retention, RFC 3339.
        reference: Reference to the restore, or to the collection of the rebuild, that replaced it.
    """
    if await server.snapshots.metadata(physical) is not None:
        await server.snapshots.write_metadata(
            physical, {PREVIOUS_KEY: {"since": since, "keepUntil": removal_time, **reference}}
        )


async def remove_if_due(server: Server, physical: str, *, alias: str, now_ms: int) -> bool:
    """Remove a replaced collection whose retention has ended; return whether it no longer exists.

    A collection is kept if it is not marked as replaced, is the alias's target, or is the target of an unfinished
    rebuild or rollback. It is also kept if the alias has no target, because it may be the agent's last collection. A
    placeholder counts as removed.
    """
    metadata = await server.snapshots.metadata(physical)
    if metadata is None or is_placeholder(metadata):
        return True
    until = _time_of(metadata, "keepUntil")
    live = await find_live(server, alias, physical)
    if until is None or until > now_ms or live is None or live.physical == physical or _comes_back(metadata, physical):
        return False
    await delete_keeping_snapshots(server.collections, server.snapshots, physical)
    return True


def read_replaced_ms(metadata: Mapping[str, object]) -> int | None:
    """Return the time of a collection's replacement, Unix milliseconds. None if its metadata has none."""
    return _time_of(metadata, "since")


def _time_of(metadata: Mapping[str, object], name: str) -> int | None:
    record = metadata.get(PREVIOUS_KEY)
    return time_or_none(record.get(name)) if isinstance(record, dict) else None


def _comes_back(metadata: Mapping[str, object], physical: str) -> bool:
    """Return whether an unfinished rebuild or rollback has the collection as its target."""
    record = record_from_json(metadata)
    return record is not None and record.target == physical and record.step is not RebuildStep.DONE


INDEXED_KEY = "agentmemoryIndexed"


"""Metadata key of a rebuild's source: its index on `updatedAt` was created for the rebuild and is dropped
afterwards."""


UPDATED_AT_INDEX = ("updatedAt", "integer")


async def drop_rebuild_index(server: Server, physical: str) -> None:
    """Drop the index that a rebuild created in its source.

    Does nothing if the collection or the index does not exist.
    """
    metadata = await server.snapshots.metadata(physical)
    if metadata is None or INDEXED_KEY not in metadata:
        return
    await server.collections.drop_index(physical, UPDATED_AT_INDEX[0])
    await server.snapshots.write_metadata(physical, {INDEXED_KEY: None})
