"""Client of one node of a Qdrant cluster, and functions that poll all nodes until they agree.

Nodes apply metadata and collection changes at different times (docs/adr/0021). `wait_for_views` and `wait_for_metadata`
poll until all reachable nodes agree. Metadata is read only if a majority of the nodes is reachable: a minority may lack
the last change.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from qdrant_client import models

from agentmemory_operator.adapters.qdrant.control import QdrantControl, result_of
from agentmemory_operator.adapters.qdrant.replicas import states_of
from agentmemory_operator.adapters.qdrant.response_limits import map_parse_errors
from agentmemory_operator.adapters.qdrant.snapshots import PRIORITY, parse_snapshot, recovery_errors, upload_file
from agentmemory_operator.errors import NotFound, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.snapshots import ShardFile, SnapshotFile

ACTIVE, INITIALIZING = "Active", "Initializing"
# Qdrant's message: "Shard 0 is not a local shard", or "... is not a local or queue proxy shard".
NO_REPLICA = "is not a local "
# Maximum and first pause between polls; time limit for nodes that have not applied a change yet (docs/adr/0021).
MAX_POLL_PAUSE_S, FIRST_POLL_PAUSE_S, MAX_AGREEMENT_S = 0.25, 0.02, 10.0


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node's view of the shards of a collection.

    Attributes:
        local: State of the node's own replicas, by shard.
        states: States of all replicas, by shard.
        transfers: Number of shard transfers in progress.
    """

    local: Mapping[int, str]
    states: Mapping[int, tuple[str, ...]]
    transfers: int


class QdrantNode:
    """Client of one node of a cluster. Errors are those of `QdrantControl`, unless a method lists others.

    Args:
        qdrant: Client of this node only, not of a load balancer.
    """

    def __init__(self, qdrant: QdrantControl) -> None:
        self.qdrant = qdrant
        self.metadata = qdrant.metadata

    async def read_peer_id(self) -> int | None:
        """Return the node's peer id, or None for a single server."""
        status = await result_of(self.qdrant.cluster.cluster_status())
        with map_parse_errors():
            peer_id = status.get("peer_id")
            return None if peer_id is None else int(peer_id)

    async def read_view(self, physical: str) -> NodeView:
        """Return the node's view of the shards of a collection.

        Raises:
            NotFound: If the node has no such collection.
        """
        info = await result_of(self.qdrant.cluster.collection_cluster_info(physical))
        with map_parse_errors():
            return _view(info)

    async def create(self, physical: str, shard: int) -> SnapshotFile:
        """Create a snapshot of the node's replica of a shard, and wait until it is complete."""
        result = await result_of(self.qdrant.snapshots.create_shard_snapshot(physical, shard, wait=True))
        with map_parse_errors():
            return parse_snapshot(result)

    async def files(self, physical: str, shard: int) -> list[SnapshotFile]:
        """Return the node's snapshots of a shard; empty if the node lacks a replica of it, or the collection."""
        try:
            result = await result_of(self.qdrant.snapshots.list_shard_snapshots(physical, shard))
        except (NotFound, StoreRejected) as exc:
            if _is_absent(exc):
                return []
            raise
        with map_parse_errors():
            return [parse_snapshot(entry) for entry in result]

    async def delete(self, physical: str, shard: int, name: str) -> None:
        """Delete a snapshot. It is no error if the snapshot, the node's replica or the collection does not exist."""
        try:
            await self.qdrant.snapshots.delete_shard_snapshot(physical, shard, name, wait=True)
        except (NotFound, StoreRejected) as exc:
            if not _is_absent(exc):
                raise

    def download(self, physical: str, file: ShardFile) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open the content of a shard snapshot that this node stores. Errors are those of `QdrantControl.download`."""
        return self.qdrant.download(_file(physical, file))

    def location(self, physical: str, file: ShardFile) -> str:
        """Return the URL at which other nodes can fetch a snapshot of this node."""
        return self.qdrant.url + _file(physical, file)

    async def recover(self, physical: str, shard: int, location: str, *, sha256: str | None) -> None:
        """Make the node fetch a shard snapshot, which replaces the node's replica. Errors: see `recovery_errors`.

        Args:
            location: URL of the snapshot, for example from `location` of another node.
            sha256: Checksum that the node verifies, hex. None skips the verification.
        """
        source = models.ShardSnapshotRecover(
            location=location, priority=PRIORITY, checksum=sha256, api_key=self.qdrant.api_key
        )
        recover = self.qdrant.snapshots.recover_shard_from_snapshot
        with recovery_errors():
            await recover(physical, shard, wait=True, shard_snapshot_recover=source)

    async def upload(self, physical: str, shard: int, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
        """Send the node a shard snapshot, which replaces the node's replica. Errors: see `recovery_errors`.

        Args:
            content: Content of the snapshot file, in chunks.
            sha256: Checksum that the node verifies, hex. None skips the verification.
        """
        await upload_file(self.qdrant, _shard(physical, shard), content, sha256=sha256)


async def read_views(nodes: Iterable[QdrantNode], physical: str) -> list[tuple[QdrantNode, NodeView]]:
    """Return the view of each reachable node on a collection.

    Raises:
        NotFound: If no reachable node has the collection.
        StoreUnavailable: If only some of the reachable nodes have it, or no node is reachable.
        StoreRejected, SpecInvalid: If one of the nodes raises it.
    """
    all_nodes = list(nodes)
    results = await asyncio.gather(*(node.read_view(physical) for node in all_nodes), return_exceptions=True)
    views = [(node, view) for node, view in zip(all_nodes, results, strict=True) if isinstance(view, NodeView)]
    failures = [error for error in results if isinstance(error, BaseException)]
    for failure in failures:
        if not isinstance(failure, StoreUnavailable | NotFound):
            raise failure
    missing = [error for error in failures if isinstance(error, NotFound)]
    if missing and not views:
        raise missing[0]
    if missing:
        raise StoreUnavailable(f"{len(missing)} nodes of the cluster do not have {physical} yet")
    if not views:
        raise failures[0] if failures else StoreUnavailable("no node of the cluster is reachable")
    return views


async def wait_for_views(
    nodes: Iterable[QdrantNode], physical: str, *, timeout_s: float = MAX_AGREEMENT_S
) -> list[tuple[QdrantNode, NodeView]]:
    """Poll until all reachable nodes have a collection, or none has it; return their views.

    Args:
        timeout_s: Time limit in seconds, after which the nodes are polled once more.

    Raises:
        NotFound: If no reachable node has the collection.
        StoreUnavailable: If the nodes do not agree in time, or none is reachable.
    """
    all_nodes = list(nodes)
    async for _ in poll_times(timeout_s):
        with suppress(StoreUnavailable):
            return await read_views(all_nodes, physical)
    return await read_views(all_nodes, physical)


async def poll_times(timeout_s: float) -> AsyncIterator[None]:
    """Yield immediately, then after pauses that grow from 0.02 s to 0.25 s, until `timeout_s` seconds have passed."""
    loop, pause_s = asyncio.get_running_loop(), FIRST_POLL_PAUSE_S
    ends_s = loop.time() + timeout_s
    yield
    while loop.time() < ends_s:
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_POLL_PAUSE_S)
        yield


async def read_majority_metadata(nodes: Iterable[QdrantNode], physical: str) -> list[Json | None]:
    """Return a collection's metadata from each reachable node; None from a node that does not have the collection.

    Raises:
        StoreUnavailable: If no majority of the nodes is reachable: the others may have newer metadata.
        StoreRejected, SpecInvalid: If one of the nodes raises it.
    """
    all_nodes = list(nodes)
    results = await asyncio.gather(*(node.metadata(physical) for node in all_nodes), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, StoreUnavailable):
            raise result
    copies = [result for result in results if not isinstance(result, BaseException)]
    if not is_majority(len(copies), len(all_nodes)):
        raise StoreUnavailable(
            f"{len(copies)} of {len(all_nodes)} nodes of the cluster are reachable: a majority is required"
        )
    return copies


async def wait_for_metadata(
    nodes: Iterable[QdrantNode], physical: str, expected: Mapping[str, Any], *, timeout_s: float = MAX_AGREEMENT_S
) -> None:
    """Poll until every reachable node has the given metadata. After the time limit a majority of all nodes is enough.

    Args:
        expected: Expected value by key; None means that the key is absent.
        timeout_s: Time limit in seconds.

    Raises:
        StoreUnavailable: If no majority of the nodes is reachable, or if after the time limit no majority has the
            metadata.
    """
    all_nodes, current_count = list(nodes), 0
    async for _ in poll_times(timeout_s):
        copies = await read_majority_metadata(all_nodes, physical)
        current_count = sum(all((copy or {}).get(key) == value for key, value in expected.items()) for copy in copies)
        if current_count == len(copies):
            return
    if is_majority(current_count, len(all_nodes)):
        return
    message = f"{current_count} of {len(all_nodes)} nodes of the cluster have the write to {physical}"
    raise StoreUnavailable(f"{message}: a majority is required")


def is_majority(count: int, total: int) -> bool:
    """Return whether `count` nodes are more than half of `total`."""
    return count * 2 > total


def _is_absent(exc: NotFound | StoreRejected) -> bool:
    """Return whether an error means that the file, the collection or the node's replica of the shard does not exist.

    Status 400 alone does not mean that: after another rejection, `delete` would treat an existing file as deleted.
    """
    return isinstance(exc, NotFound) or (exc.status == 400 and NO_REPLICA in str(exc))


def _view(info: Mapping[str, Any]) -> NodeView:
    own_peer, shards = int(info["peer_id"]), states_of(info)
    local = {shard: states[own_peer] for shard, states in shards.items() if own_peer in states}
    states = {shard: tuple(states.values()) for shard, states in shards.items()}
    return NodeView(local, states, len(info.get("shard_transfers") or ()))


def _shard(physical: str, shard: int) -> str:
    return f"/collections/{quote(physical, safe='')}/shards/{shard}/snapshots"


def _file(physical: str, file: ShardFile) -> str:
    return f"{_shard(physical, file.shard)}/{quote(file.name, safe='')}"
