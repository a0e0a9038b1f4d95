"""Snapshots of a Qdrant cluster: a set of one shard snapshot per shard, which callers see as a single file.

Create:
1. Write the record of the set, with its source nodes (`ShardSets`).
2. Create a snapshot of each shard on a node with an active replica, and add its file to the record.
3. Read all files once, which yields the SHA-256 of the set's archive, and mark the set as complete.
If step 2 or 3 fails, the set is removed. The next `create` removes an incomplete set that is left, for example by a
killed process.

Recover:
1. Create the collection with the same shards and replicas, marked as unfinished. An existing collection must fit.
2. Recover each shard on one node that has a replica of it.
3. Wait until all replicas are active, then clear the mark. A collection left unfinished is deleted and created again.

Nodes never recover a snapshot of the whole collection, because that leaves one replica too many, and wrong counts for a
while.
"""

import hashlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Unpack

from agentmemory_operator.adapters.qdrant.call_hooks import NODES_FIELD, CallHooks
from agentmemory_operator.adapters.qdrant.configuration import configuration_of, indexes_of
from agentmemory_operator.adapters.qdrant.control import ControlOptions, QdrantControl, result_of, serialise_raw
from agentmemory_operator.adapters.qdrant.nodes import (
    ACTIVE,
    MAX_AGREEMENT_S,
    QdrantNode,
    is_majority,
    poll_times,
    read_majority_metadata,
    wait_for_metadata,
    wait_for_views,
)
from agentmemory_operator.adapters.qdrant.replicas import QdrantReplicas
from agentmemory_operator.adapters.qdrant.response_limits import map_parse_errors
from agentmemory_operator.adapters.qdrant.shard_archives import (
    END_OF_ARCHIVE,
    ArchiveReader,
    entry_name,
    render_manifest,
    tar_header,
    tar_padding,
)
from agentmemory_operator.adapters.qdrant.shard_sets import (
    ShardReplicas,
    ShardSet,
    ShardSets,
    require_holder,
    require_node,
)
from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots
from agentmemory_operator.collections.rules.collection import METADATA_KEY, Tenant, placeholder_metadata
from agentmemory_operator.errors import AgentMemoryError, NotFound, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.snapshots import ShardFile, SnapshotFile

# Scheme of the locations that this store resolves.
SCHEME = "shards:"
# Metadata key of a collection in which not all shards are recovered yet.
UNFINISHED_KEY = "agentmemoryRecovering"


class QdrantShardSnapshots:
    """Implements ports.SnapshotStore for a cluster: each `SnapshotFile` is a set of shard snapshots.

    Connections and errors are those of `QdrantControl`. Waits for replicas end after `deadline_s`.

    Args:
        url: http(s) URL of the cluster; any node may respond.
        nodes: URLs of the individual nodes.
    """

    def __init__(self, url: str, nodes: tuple[str, ...], **options: Unpack[ControlOptions]) -> None:
        self._whole = QdrantSnapshots(url, **options)
        self._front = self._whole.qdrant
        node_options: ControlOptions = {**options, "field": NODES_FIELD}
        self._nodes = tuple(QdrantNode(QdrantControl(address, **node_options)) for address in nodes)
        self._sets = ShardSets(self._front, self._nodes)
        self._deadline_s = self._front.deadline_s
        self._replicas = ShardReplicas(self._nodes, deadline_s=self._deadline_s)

    def watch_calls(self, watch: CallHooks) -> None:
        """Run each later call to any node inside the hooks of `watch`, which replace earlier ones."""
        for qdrant in self._clients():
            qdrant.watch = watch

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        for qdrant in self._clients():
            await qdrant.close()

    async def create(self, physical: str) -> SnapshotFile:
        """Create a snapshot of every shard. If one fails, remove the others.

        Raises:
            NotFound: If no reachable node has the collection.
            StoreUnavailable: If a shard has no active replica on a reachable node, or a node is unavailable.
        """
        await self._remove_unfinished(physical)
        sources = await self._replicas.find_sources(physical)
        record = await self._begin(physical, sources)
        try:
            for shard, node in sources.items():
                file = await node.create(physical, shard)
                source = record.sources[str(shard)]
                record = record.with_file(
                    ShardFile(shard, source, file.name, file.size, file.sha256, created_ms=file.created_ms)
                )
                await self._sets.write(record)
            return _as_file(await self._finish(record))
        except AgentMemoryError:
            # Ignore errors of the removal: the next `create` removes the rest.
            with suppress(AgentMemoryError):
                await self._remove_unfinished(physical)
            raise

    async def files(self, physical: str) -> list[SnapshotFile]:
        """Return the complete sets whose files all exist, oldest first; empty if the collection is deleted.

        Each node lists its own files. If a node does not have the collection yet, the call waits, then raises. If a
        node's replica is not active and lists no files, the call raises immediately, because its files may still exist.

        Raises:
            StoreUnavailable: If no majority of the nodes is reachable, or the nodes do not agree in time. Also if a
                node with files is unreachable, or cannot list them yet.
        """
        sets = [set_ for set_ in await self._sets.list_sets(physical) if set_.is_complete]
        locations = {(file.shard, file.peer) for set_ in sets for file in set_.files}
        try:
            views = dict(await wait_for_views(self._nodes, physical)) if sets else {}
        except NotFound:
            return []
        nodes = await self._replicas.read_nodes_by_peer() if sets else {}
        existing: dict[tuple[int, int | None], set[str]] = {}
        for shard, peer in sorted(locations, key=str):
            node = require_node(nodes, peer)
            state = views[node].local.get(shard) if node in views else None
            existing[shard, peer] = await _file_names(node, physical, shard) if state else set()
            if state not in (None, ACTIVE) and not existing[shard, peer]:
                message = f"the files of shard {shard} of {physical} on node {peer} are not reachable"
                raise StoreUnavailable(f"{message}: its replica there is {state}")
        return [
            _as_file(set_) for set_ in sets if all(file.name in existing[file.shard, file.peer] for file in set_.files)
        ]

    @asynccontextmanager
    async def download(self, physical: str, name: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the content of a set as one archive.

        Raises:
            NotFound: If there is no complete set of this name.
        """
        yield self._archive(await self._find_set(physical, name))

    async def recover(self, physical: str, location: str, *, sha256: str | None) -> None:
        """Make the nodes fetch the files of a set and recover them.

        Raises:
            StoreRejected: If `location` is not from `own_location`, or the set is missing, changed or incompatible.
            StoreUnavailable: If a node with a file or a replica is unreachable, or the replicas are not active in time.
            RecoveryOutcomeUnknown: If a response was lost: the node may still complete the recovery of its shard.
        """
        if not location.startswith(SCHEME):
            raise StoreRejected(
                400, f"{location} is a snapshot of a single server: a cluster needs a snapshot of its shards"
            )
        source, _, name = location.removeprefix(SCHEME).partition("/")
        try:
            record = await self._find_set(source, name)
        except NotFound as exc:
            raise StoreRejected(404, str(exc)) from exc
        if sha256 not in (None, record.sha256):
            raise StoreRejected(400, f"checksum mismatch: expected {sha256}, {name} has {record.sha256}")
        async with self._prepare(physical, record.configuration, record.indexes):
            nodes, holders = await self._replicas.read_nodes_by_peer(), await self._replicas.find_holders(physical)
            for file in record.files:
                address = require_node(nodes, file.peer).location(source, file)
                node = require_holder(holders, file.shard)
                await node.recover(physical, file.shard, address, sha256=file.sha256)
            await self._replicas.wait_until_active(physical)

    async def upload(self, physical: str, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
        """Send the shard snapshots of an archive to the nodes, which recover them.

        The checksum of the archive is compared after the last shard. If it differs, a new collection is deleted again;
        an existing one keeps the recovered points.

        Raises:
            StoreRejected: If the content is no archive of shard snapshots, does not fit an existing collection, or has
                another checksum.
        """
        digest = hashlib.sha256()
        reader = ArchiveReader(_hashed(content, digest.update))
        configuration, indexes, shards = await reader.manifest()
        async with self._prepare(physical, configuration, indexes):
            holders = await self._replicas.find_holders(physical)
            for shard, size, shard_sha256 in shards:
                part = await reader.open(entry_name(shard), size)
                node = require_holder(holders, shard)
                await node.upload(physical, shard, part, sha256=shard_sha256)
            await reader.end()
            if sha256 not in (None, digest.hexdigest()):
                raise StoreRejected(400, f"checksum mismatch: expected {sha256}, got {digest.hexdigest()}")
            await self._replicas.wait_until_active(physical)

    async def delete_file(self, physical: str, name: str) -> None:
        """Delete the files of a complete set, then its record; an absent set is no error."""
        if record := await self._sets.find(physical, name):
            await self._remove(record)

    async def own_location(self, physical: str, name: str) -> str:
        """Return the location of a set. Only `recover` of a store for the same cluster can resolve it."""
        return f"{SCHEME}{physical}/{name}"

    async def collections(self) -> list[str]:
        """Return the names of all collections, placeholders included, sorted."""
        return await self._whole.collections()

    async def create_placeholder(self, physical: str, owner: Tenant | None = None) -> None:
        """Create an empty collection with all shards on every node, which makes all snapshot files reachable.

        An existing collection is kept. The incomplete sets of its name are removed.

        Args:
            owner: Owner of the snapshots, for the metadata. None writes no owner.

        Raises:
            StoreUnavailable: If the nodes do not have the collection, or its replicas are not active, in `deadline_s`.
        """
        shards = [len(set_.sources) for set_ in await self._sets.list_sets(physical)]
        peers = await QdrantReplicas(self._front).peers() or ()
        marks = placeholder_metadata(owner)
        replicas = max(len(self._nodes), len(peers))
        if not await self._front.create_empty(physical, marks, shards=max(shards, default=1), replicas=replicas):
            marks = {METADATA_KEY: (await self.metadata(physical) or {}).get(METADATA_KEY)}
        # Wait until all nodes have applied the creation. A node that has not may report the previous collection of this
        # name, with active replicas.
        await wait_for_metadata(self._nodes, physical, marks, timeout_s=self._deadline_s)
        await self._replicas.wait_until_active(physical)
        # Remove the incomplete sets now. Usually `create` does so, but it is not called again for a deleted collection.
        await self._remove_unfinished(physical)

    async def metadata(self, physical: str) -> Json | None:
        """Return the metadata of a collection, {} if it has none; None if the collection does not exist.

        If the node behind `url` does not have the collection, poll it and all nodes for up to 10 s. If the nodes still
        differ then, return the metadata if a majority of the nodes has the collection, else None.
        """
        copies: list[Json] = []
        async for _ in poll_times(MAX_AGREEMENT_S):
            if (main_copy := await self._whole.metadata(physical)) is not None:
                return main_copy
            copies = [copy for copy in await read_majority_metadata(self._nodes, physical) if copy is not None]
            if not copies:
                return None
        return copies[0] if is_majority(len(copies), len(self._nodes)) else None

    async def write_metadata(self, physical: str, changes: Json) -> None:
        """Merge changes into the metadata of a collection; a null value deletes its key.

        Wait until all reachable nodes have the changes, or after 10 s a majority.
        """
        await self._whole.write_metadata(physical, changes)
        await wait_for_metadata(self._nodes, physical, changes)

    def _clients(self) -> tuple[QdrantControl, ...]:
        return (self._front, *(node.qdrant for node in self._nodes))

    async def _begin(self, physical: str, sources: Mapping[int, QdrantNode]) -> ShardSet:
        """Write the record of a new set before its first file is created."""
        info = await result_of(self._front.collections.get_collection(physical))
        with map_parse_errors():
            configuration, indexes = configuration_of(info["config"]), indexes_of(info["payload_schema"])
        existing = {
            str(shard): [file.name for file in await node.files(physical, shard)] for shard, node in sources.items()
        }
        record = ShardSet(
            physical=physical,
            name=f"{physical}-shards-{datetime.now(UTC):%Y-%m-%d-%H-%M-%S}.snapshot",
            configuration=configuration,
            indexes=indexes,
            sources={str(shard): await node.read_peer_id() for shard, node in sources.items()},
            known=existing,
        )
        await self._sets.write(record)
        return record

    async def _finish(self, record: ShardSet) -> ShardSet:
        """Mark the set as complete, after reading all files once for the archive's SHA-256."""
        digest = hashlib.sha256()
        async for chunk in self._archive(record):
            digest.update(chunk)
        complete = record.as_complete(digest.hexdigest())
        await self._sets.write(complete)
        return complete

    async def _archive(self, record: ShardSet) -> AsyncIterator[bytes]:
        nodes = await self._replicas.read_nodes_by_peer()
        yield render_manifest(record.manifest)
        for file in record.files:
            yield tar_header(entry_name(file.shard), file.size)
            remaining, node = file.size, require_node(nodes, file.peer)
            async with node.download(record.physical, file) as content:
                async for chunk in content:
                    remaining -= len(chunk)
                    yield chunk
            if remaining:
                raise StoreUnavailable(f"{file.name} has {file.size - remaining} bytes instead of {file.size}")
            yield tar_padding(file.size)
        yield END_OF_ARCHIVE

    async def _remove_unfinished(self, physical: str) -> None:
        for record in await self._sets.list_sets(physical):
            if not record.is_complete:
                await self._remove(record)

    async def _remove(self, record: ShardSet) -> None:
        """Delete the files of a set, including a file that its record lacks after a crash, then the record."""
        recorded = {file.name for set_ in await self._sets.list_sets(record.physical) for file in set_.files}
        nodes = await self._replicas.read_nodes_by_peer()
        for shard, peer in record.sources.items():
            names, node = {file.name for file in record.files if file.shard == int(shard)}, require_node(nodes, peer)
            if not record.is_complete:
                existing = await _file_names(node, record.physical, int(shard))
                names |= existing - recorded - set(record.known.get(shard, ()))
            for name in sorted(names):
                await node.delete(record.physical, int(shard), name)
        await self._sets.delete(record.physical, record.name)

    async def _find_set(self, physical: str, name: str) -> ShardSet:
        if record := await self._sets.find(physical, name):
            return record
        raise NotFound(f"there is no set of shard snapshots {name} of {physical}")

    @asynccontextmanager
    async def _prepare(self, physical: str, configuration: Json, indexes: Json) -> AsyncIterator[None]:
        """Create the collection, or check that the existing collection fits.

        If the body of the context raises an AgentMemoryError, delete a collection that this call has created. An
        existing collection that is marked as unfinished is deleted first, because its replicas may never become active.
        """
        metadata = await self.metadata(physical)
        if metadata is not None and UNFINISHED_KEY not in metadata:
            await self._check_fit(physical, configuration)
            yield
            return
        if metadata is not None:
            await self._front.collections.delete_collection(physical)
        try:
            await self._make(physical, configuration, indexes)
            yield
            await self.write_metadata(physical, {UNFINISHED_KEY: None})
        except AgentMemoryError:
            with suppress(AgentMemoryError):
                await self._front.collections.delete_collection(physical)
            raise

    async def _check_fit(self, physical: str, configuration: Json) -> None:
        info = await result_of(self._front.collections.get_collection(physical))
        with map_parse_errors():
            current = configuration_of(info["config"])
        for setting in ("vectors", "shard_number"):
            if current.get(setting) != configuration.get(setting):
                message = f"{physical} has {setting} {current.get(setting)}, the snapshot {configuration.get(setting)}"
                raise StoreRejected(400, f"the snapshot is incompatible: {message}")

    async def _make(self, physical: str, configuration: Json, indexes: Json) -> None:
        # A unique value distinguishes nodes that have this collection from nodes that still have the previous one.
        marker = {UNFINISHED_KEY: uuid.uuid4().hex}
        metadata = configuration.get("metadata", {}) | marker
        body = serialise_raw(configuration | {"metadata": metadata})
        await self._front.collections.create_collection(physical, create_collection=body)
        await wait_for_metadata(self._nodes, physical, marker, timeout_s=self._deadline_s)
        await self._replicas.wait_until_active(physical)
        for field, schema in indexes.items():
            index = serialise_raw({"field_name": field, "field_schema": schema})
            await self._front.indexes.create_field_index(physical, wait=True, create_field_index=index)


async def _file_names(node: QdrantNode, physical: str, shard: int) -> set[str]:
    return {file.name for file in await node.files(physical, shard)}


def _as_file(record: ShardSet) -> SnapshotFile:
    return SnapshotFile(record.name, record.size, record.sha256, record.created_ms, shards=record.files)


async def _hashed(content: AsyncIterator[bytes], update: Callable[[bytes], None]) -> AsyncIterator[bytes]:
    async for chunk in content:
        update(chunk)
        yield chunk
