"""The one way in which a collection goes: its snapshots stay in reach.

A server lists and gives out snapshots only while a collection of their name exists. So a collection whose snapshots are
nowhere else is replaced by an empty placeholder, until the last of them is removed.
"""

from agentmemory_operator.collections.rules.collection import is_placeholder, tenant_in
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.snapshots import SnapshotStore


async def retire(
    collections: CollectionStore,
    snapshots: SnapshotStore,
    physical: str,
    *,
    copied: frozenset[str] = frozenset(),
) -> int:
    """Delete a collection and its aliases; return how many snapshots the placeholder in its place keeps in reach.

    Every step may have been done before. Once the collection is gone, whether it leaves snapshots shows only under a
    placeholder: one is made in any case, and goes again if it keeps none.

    Args:
        copied: files whose bytes are off the server too, which go with the collection.
    """
    metadata = await snapshots.metadata(physical)
    if metadata is not None and not is_placeholder(metadata):
        kept = 0
        for file in await snapshots.files(physical):
            if file.name in copied:
                await snapshots.delete_file(physical, file.name)
            else:
                kept += 1
        await collections.delete(physical)
        if not kept:
            return 0
    await snapshots.create_placeholder(physical, tenant_in(metadata))
    return await drop_unneeded(collections, snapshots, physical)


async def remove_file(collections: CollectionStore, snapshots: SnapshotStore, physical: str, name: str) -> None:
    """Remove a snapshot's file, and the placeholder whose last one it was; what is gone is no error.

    The file of a collection that is gone is put in reach first: deleting it there would do nothing.
    """
    metadata = await snapshots.metadata(physical)
    if metadata is None:
        await snapshots.create_placeholder(physical)
    await snapshots.delete_file(physical, name)
    if metadata is None or is_placeholder(metadata):
        await drop_unneeded(collections, snapshots, physical)


async def keep_in_reach(collections: CollectionStore, snapshots: SnapshotStore, physical: str) -> set[str]:
    """The files of a collection, which is replaced by a placeholder if it is gone and has left any."""
    if await snapshots.metadata(physical) is None:
        await snapshots.create_placeholder(physical)
        await drop_unneeded(collections, snapshots, physical)
    return {file.name for file in await snapshots.files(physical)}


async def drop_unneeded(collections: CollectionStore, snapshots: SnapshotStore, physical: str) -> int:
    """Delete a placeholder that keeps no snapshot; return how many it keeps."""
    kept = len(await snapshots.files(physical))
    # Asked again: what is no placeholder is never deleted here.
    if not kept and is_placeholder(await snapshots.metadata(physical)):
        await collections.delete(physical)
    return kept
