"""Records of shard snapshot sets, stored in the metadata of a collection that serves no other purpose.

Qdrant has no sets, only single files, each on its own node. The record is written before the first file is created, and
marked as complete after the last file. After a crash the record identifies the files to remove. An incomplete set is
never used.

Nodes can have records of different age (docs/adr/0021). So a read queries every node, requires a majority, and takes
the most advanced record of each set. A write completes when all reachable nodes have the record, or after 10 s a
majority.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from agentmemory_operator.adapters.qdrant.control import QdrantControl
from agentmemory_operator.adapters.qdrant.nodes import (
    ACTIVE,
    INITIALIZING,
    MAX_AGREEMENT_S,
    MAX_POLL_PAUSE_S,
    NodeView,
    QdrantNode,
    poll_times,
    read_majority_metadata,
    wait_for_metadata,
    wait_for_views,
)
from agentmemory_operator.adapters.qdrant.response_limits import map_parse_errors
from agentmemory_operator.adapters.qdrant.shard_archives import archive_size
from agentmemory_operator.collections.rules.collection import METADATA_KEY
from agentmemory_operator.errors import NotFound, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.snapshots import ShardFile
from agentmemory_operator.spec.naming import SHARD_SETS_COLLECTION

_METADATA: Json = {METADATA_KEY: {"shardSets": True}}
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSet:
    """A set of files: one snapshot of every shard of a collection.

    Attributes:
        physical: Name of the collection.
        name: File name of the set, as callers see it.
        configuration: Body of a PUT that creates the same collection.
        indexes: Payload indexes: field -> schema for PUT.
        sources: Shard number (a string, as in JSON) -> peer id of the node that creates its file; None for a single
            server.
        known: Shard number -> names of the shard's snapshot files that its node had before the set was created. Empty
            once the set is complete.
        files: Files created so far.
        sha256: Digest of the archive, hex; None until the set is complete.
    """

    physical: str
    name: str
    configuration: Json
    indexes: Json
    sources: Mapping[str, int | None]
    known: Mapping[str, list[str]] = field(default_factory=dict)
    files: tuple[ShardFile, ...] = ()
    sha256: str | None = None

    @property
    def is_complete(self) -> bool:
        """True if the file of every shard was created, and read once for `sha256`."""
        return self.sha256 is not None

    @property
    def manifest(self) -> Json:
        """Manifest of the set's archive: format, configuration, indexes, and size and SHA-256 of each shard's file."""
        shards = [{"shard": file.shard, "size": file.size, "sha256": file.sha256} for file in self.files]
        return {"format": FORMAT, "configuration": self.configuration, "indexes": self.indexes, "shards": shards}

    @property
    def size(self) -> int:
        """Size of the archive in bytes."""
        return archive_size(self.manifest, (file.size for file in self.files))

    @property
    def created_ms(self) -> int:
        """Creation time of the newest file, by its server's clock, in Unix milliseconds; 0 without files."""
        return max((file.created_ms for file in self.files), default=0)

    def as_complete(self, sha256: str) -> "ShardSet":
        """Return the set marked as complete by the archive's digest, without `known`."""
        return replace(self, sha256=sha256, known={})

    def with_file(self, file: ShardFile) -> "ShardSet":
        """Return the set with one more file."""
        return replace(self, files=(*self.files, file))


class ShardSets:
    """Reads and writes the records of one cluster.

    Args:
        qdrant: Client for writes.
        nodes: Clients for reads, one per node.
    """

    def __init__(self, qdrant: QdrantControl, nodes: Sequence[QdrantNode]) -> None:
        self._qdrant, self._nodes = qdrant, nodes

    async def list_sets(self, physical: str) -> list[ShardSet]:
        """Return all sets of a collection, incomplete ones included, oldest first.

        Raises:
            StoreUnavailable: If no majority of the nodes is reachable: the others may have newer records.
        """
        latest: dict[str, ShardSet] = {}
        for metadata in await read_majority_metadata(self._nodes, SHARD_SETS_COLLECTION):
            with map_parse_errors():
                records = [_set_of(set_) for key, set_ in (metadata or {}).items() if key.startswith(f"{physical}/")]
            for record in records:
                latest[record.name] = max(latest.get(record.name, record), record, key=_progress)
        return sorted(latest.values(), key=lambda set_: (set_.created_ms, set_.name))

    async def find(self, physical: str, name: str) -> ShardSet | None:
        """Return a complete set by name, or None.

        Raises:
            StoreUnavailable: If no majority of the nodes is reachable.
        """
        return next((set_ for set_ in await self.list_sets(physical) if set_.name == name and set_.is_complete), None)

    async def write(self, record: ShardSet) -> None:
        """Create or replace the record of a set. Wait until all reachable nodes have it, or after 10 s a majority.

        Raises:
            StoreUnavailable: If no majority has the record in time. It may have been written.
        """
        # Convert tuples to lists, as they are when read back.
        document = orjson.loads(orjson.dumps(asdict(record)))
        await self._change({_key(record.physical, record.name): document})

    async def delete(self, physical: str, name: str) -> None:
        """Delete the record of a set. Wait until all reachable nodes have deleted it, or after 10 s a majority.

        Raises:
            StoreUnavailable: If no majority has deleted the record in time. It may have been deleted.
        """
        await self._change({_key(physical, name): None})

    async def _change(self, changes: Json) -> None:
        try:
            await self._qdrant.write_metadata(SHARD_SETS_COLLECTION, changes)
        except NotFound:
            # Create a replica on every node. A node without one would return the metadata of another node.
            await self._qdrant.create_empty(SHARD_SETS_COLLECTION, _METADATA, replicas=len(self._nodes))
            await self._qdrant.write_metadata(SHARD_SETS_COLLECTION, changes)
        await wait_for_metadata(self._nodes, SHARD_SETS_COLLECTION, changes)


def _key(physical: str, name: str) -> str:
    return f"{physical}/{name}"


def _progress(record: ShardSet) -> tuple[bool, int]:
    return record.is_complete, len(record.files)


def _set_of(document: Mapping[str, Any]) -> ShardSet:
    return ShardSet(**{**document, "files": tuple(ShardFile(**file) for file in document["files"])})


class ShardReplicas:
    """Reads the replica states from every reachable node of a cluster.

    Args:
        deadline_s: Seconds after which `wait_until_active` fails.
    """

    def __init__(self, nodes: tuple[QdrantNode, ...], *, deadline_s: float) -> None:
        self._nodes = nodes
        self._deadline_s = deadline_s

    async def find_sources(self, physical: str) -> dict[int, QdrantNode]:
        """Return a node with an active replica for each shard.

        Poll for up to 10 s while a shard has only initializing replicas, as in a new collection.

        Raises:
            NotFound: If no reachable node has the collection.
            StoreUnavailable: If a shard has no active replica on a reachable node, or the nodes do not agree in time.
        """
        async for _ in poll_times(MAX_AGREEMENT_S):
            views = await wait_for_views(self._nodes, physical)
            if not any({*states} == {INITIALIZING} for _, view in views for states in view.states.values()):
                break
        return _sources(views, physical)

    async def read_nodes_by_peer(self) -> dict[int | None, QdrantNode]:
        """Return the nodes by peer id, which is None for a single server. Nodes whose call fails are left out."""
        peers = await asyncio.gather(*(node.read_peer_id() for node in self._nodes), return_exceptions=True)
        pairs = zip(self._nodes, peers, strict=True)
        return {peer_id: node for node, peer_id in pairs if not isinstance(peer_id, BaseException)}

    async def find_holders(self, physical: str) -> dict[int, QdrantNode]:
        """Return a reachable node with a replica, in any state, for each shard.

        Raises:
            NotFound: If no reachable node has the collection.
            StoreUnavailable: If the nodes do not agree in time, or none is reachable.
        """
        views = await wait_for_views(self._nodes, physical)
        return {shard: node for node, view in views for shard in view.local}

    async def wait_until_active(self, physical: str) -> None:
        """Wait until the reachable nodes report every replica as active, and no transfers.

        Raises:
            StoreUnavailable: If that takes longer than `deadline_s`, the nodes do not agree on the collection, or none
                is reachable.
        """
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + self._deadline_s
        while inactive := await self.describe_inactive(physical):
            if loop.time() > ends_s:
                raise StoreUnavailable(f"replicas of {physical} are not active: {inactive}")
            await asyncio.sleep(MAX_POLL_PAUSE_S)

    async def describe_inactive(self, physical: str) -> str:
        """Describe inactive replicas and shard transfers, or the absence of the collection; '' if there is none.

        Raises:
            StoreUnavailable: If the nodes do not agree on the collection, or none is reachable.
        """
        try:
            views = await wait_for_views(self._nodes, physical)
        except NotFound:
            return "no node has the collection yet"
        inactive = sorted(
            {f"shard {shard} {state}" for _, view in views for shard, states in view.states.items() for state in states}
            - {f"shard {shard} {ACTIVE}" for _, view in views for shard in view.states}
        )
        transfers = max(view.transfers for _, view in views)
        return ", ".join(inactive + ([f"{transfers} transfers"] if transfers else []))


def _sources(views: list[tuple[QdrantNode, NodeView]], physical: str) -> dict[int, QdrantNode]:
    """Return a node with an active replica for each shard.

    Raises:
        StoreUnavailable: If a shard has none.
    """
    sources: dict[int, QdrantNode] = {}
    for shard in sorted({shard for _, view in views for shard in view.states}):
        node = next((node for node, view in views if view.local.get(shard) == ACTIVE), None)
        if node is None:
            raise StoreUnavailable(
                f"shard {shard} of {physical} has no active replica on a node that can be reached: spec.nodes of the "
                f"connection must list every node"
            )
        sources[shard] = node
    return sources


def require_node(places: Mapping[int | None, QdrantNode], peer: int | None) -> QdrantNode:
    """Return the node of a peer id.

    Args:
        places: Reachable nodes, from `ShardReplicas.read_nodes_by_peer`.
        peer: Peer id; None for a single server.

    Raises:
        StoreUnavailable: If the node is unreachable, or the connection does not list it.
    """
    if node := places.get(peer):
        return node
    raise StoreUnavailable(
        f"node {peer} of the cluster is unreachable, or spec.nodes of the connection does not list it"
    )


def require_holder(holders: Mapping[int, QdrantNode], shard: int) -> QdrantNode:
    """Return the node that has a replica of a shard, from the result of `ShardReplicas.find_holders`.

    Raises:
        StoreUnavailable: If no reachable node has one.
    """
    if node := holders.get(shard):
        return node
    raise StoreUnavailable(f"no reachable node has a replica of shard {shard}")
