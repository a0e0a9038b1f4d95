"""The engine's shards: opened on first use; the least recently used ones are closed beyond a cap.

Every call of the engine holds Python's global lock, so a thread pool would only add cost. Calls run on the event loop.
Slow work (indexing) runs in another process, see `optimizations`.
"""

import pathlib
import shutil
from collections import OrderedDict

import qdrant_edge as edge

from qdrant_devserver.storage.collection import ServedCollection, Summary
from qdrant_devserver.storage.engine_configuration import engine_configuration, vector_operations
from qdrant_devserver.storage.files import read_json, write_json
from qdrant_devserver.storage.indexes import index_operation

# Each needs a thread, one or two file handles and some hundred memory maps, of the 65,530 that Linux allows a process.
MAX_OPEN_SHARDS = 128
SUMMARY = "summary.json"


class Shards:
    """Open shards of a server.

    Args:
        cap: Maximum number of open shards. It may be exceeded while collections are written or optimized.
    """

    def __init__(self, *, cap: int = MAX_OPEN_SHARDS) -> None:
        self._cap = cap
        self._open: OrderedDict[pathlib.Path, ServedCollection] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, collection: ServedCollection) -> edge.EdgeShard:
        """Return a collection's shard; open or create it if needed.

        Opening one closes the least recently used idle shards beyond the cap.
        """
        if collection.shard is None:
            self._close_unused()
            collection.shard = _load(collection)
            collection.summary = None
        self._open[collection.folder] = collection
        self._open.move_to_end(collection.folder)
        return collection.shard

    def summary(self, collection: ServedCollection) -> Summary:
        """Return a collection's statistics. Open the shard only if the last closing of the shard did not store them."""
        if collection.shard is None and collection.summary is None:
            collection.summary = _stored_summary(collection)
        if collection.shard is None and collection.summary is not None:
            return collection.summary
        return summarise(self.open(collection), collection)

    def close(self, collection: ServedCollection) -> None:
        """Flush and close a collection's shard, if it is open."""
        self._open.pop(collection.folder, None)
        shard, collection.shard = collection.shard, None
        if shard is None:
            return
        shard.flush()
        collection.summary = summarise(shard, collection)
        shard.close()
        if collection.record.generation is not None and not collection.deleted:
            folder = collection.shard_folder(collection.record.generation)
            write_json(folder / SUMMARY, {name: getattr(collection.summary, name) for name in Summary.__slots__})

    def replace(self, collection: ServedCollection, shard: edge.EdgeShard) -> None:
        """Replace a collection's shard. Unflushed changes of the old one are already in the new one."""
        old, collection.shard = collection.shard, shard
        if old is not None:
            old.close()
        self.open(collection)

    def close_all(self) -> None:
        """Flush and close every shard."""
        for collection in list(self._open.values()):
            self.close(collection)

    def _close_unused(self) -> None:
        idle_collections = [collection for collection in self._open.values() if _is_idle(collection)]
        for collection in idle_collections[: max(0, len(self._open) - self._cap + 1)]:
            self.close(collection)


def _is_idle(collection: ServedCollection) -> bool:
    return collection.journal is None and not collection.write_lock.locked()


def _load(collection: ServedCollection) -> edge.EdgeShard:
    if collection.record.generation is None:
        return _create(collection)
    folder = collection.shard_folder(collection.record.generation)
    # The points may change from here on. After a crash the stored summary would be wrong.
    (folder / SUMMARY).unlink(missing_ok=True)
    shard = edge.EdgeShard.load(str(folder), None)
    if collection.record.unsettled is not None:
        for operation in vector_operations(collection.record.configuration, collection.record.unsettled):
            shard.update(operation)
        collection.record.unsettled = None
        collection.save()
    return shard


def _create(collection: ServedCollection) -> edge.EdgeShard:
    folder = collection.shard_folder(0)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    shard = edge.EdgeShard.create(str(folder), engine_configuration(collection.record.configuration, is_new=True))
    for field, schema in collection.record.payload_schema.items():
        shard.update(index_operation(field, schema))
    collection.record.generation = 0
    collection.save()
    return shard


def _stored_summary(collection: ServedCollection) -> Summary | None:
    if collection.record.generation is None:
        return Summary()
    path = collection.shard_folder(collection.record.generation) / SUMMARY
    return Summary(**read_json(path)) if path.exists() else None


def summarise(shard: edge.EdgeShard, collection: ServedCollection) -> Summary:
    """Read the statistics of a collection's points from the engine."""
    info = shard.info()
    return Summary(
        points=info.points_count,
        indexed=info.indexed_vectors_count,
        sparse=sum(_estimate(shard, name) for name in collection.sparse_vectors),
        segments=info.segments_count,
        index_points={field: index.points for field, index in info.payload_schema.items()},
    )


def _estimate(shard: edge.EdgeShard, vector: str) -> int:
    # An exact count would visit every point, and this runs after every update.
    return shard.count(edge.CountRequest(exact=False, filter=edge.Filter(must=[edge.HasVectorCondition(vector)])))
