"""Delete collections, but keep their snapshots available.

Qdrant lists and serves snapshots only while a collection of their name exists. So a deleted collection whose snapshots
are not stored elsewhere is replaced by an empty placeholder, until the last of them is removed.
"""

from agentmemory_operator.collections.rules.collection import is_placeholder, read_tenant
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.snapshots import SnapshotStore


async def delete_keeping_snapshots(
    collections: CollectionStore, snapshots: SnapshotStore, physical: str, *, copied: frozenset[str] = frozenset()
) -> int:
    """Delete a collection and its aliases; return the number of snapshots that a placeholder keeps available.

    The call can be repeated after a crash at any step. If the collection no longer exists, only a placeholder shows
    whether it left snapshots: one is created, and deleted again if it has none.

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
    """Delete a snapshot file, and the placeholder if that was its last one. A missing file is no error.

    For a missing collection, a placeholder is created first: without one, Qdrant would ignore the deletion.
    """
    metadata = await snapshots.metadata(physical)
    if metadata is None:
        await snapshots.create_placeholder(physical)
    await snapshots.delete_file(physical, name)
    if metadata is None or is_placeholder(metadata):
        await drop_empty_placeholder(collections, snapshots, physical)


async def keep_snapshots_available(collections: CollectionStore, snapshots: SnapshotStore, physical: str) -> set[str]:
    """Return the names of a collection's snapshot files. Create a placeholder if only files remain of it."""
    if await snapshots.metadata(physical) is None:
        await snapshots.create_placeholder(physical)
        await drop_empty_placeholder(collections, snapshots, physical)
    return {file.name for file in await snapshots.files(physical)}


async def drop_empty_placeholder(collections: CollectionStore, snapshots: SnapshotStore, physical: str) -> int:
    """Delete a placeholder without snapshots; return the number of its snapshots."""
    snapshot_count = len(await snapshots.files(physical))
    # Read the metadata right before: only a placeholder may be deleted here.
    if not snapshot_count and is_placeholder(await snapshots.metadata(physical)):
        await collections.delete(physical)
    return snapshot_count
