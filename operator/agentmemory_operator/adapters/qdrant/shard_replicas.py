"""Replicas of a collection's shards: find the nodes that have them, and wait until they are active."""

import asyncio
from collections.abc import Mapping

from agentmemory_operator.adapters.qdrant.nodes import (
    ACTIVE,
    INITIALIZING,
    MAX_AGREEMENT_S,
    MAX_POLL_PAUSE_S,
    NodeView,
    QdrantNode,
    poll_times,
    wait_for_views,
)
from agentmemory_operator.errors import NotFound, StoreUnavailable


class ShardReplicas:
    """Reads the replica states from every reachable node of a cluster.

    Args:
        deadline_s: Seconds after which `wait_until_active` fails.
    """

    def __init__(self, nodes: tuple[QdrantNode, ...], *, deadline_s: float) -> None:
        self._nodes = nodes
        self._deadline_s = deadline_s

    async def find_sources(self, physical: str) -> dict[int, QdrantNode]:
        """Return a node with an active replica for each shard; poll for 10 s while replicas are being created.

        Raises:
            NotFound: If no reachable node has the collection.
            StoreUnavailable: If a shard has no active replica on a reachable node, or the nodes do not agree in time.
        """
        async for _ in poll_times(MAX_AGREEMENT_S):
            views = await wait_for_views(self._nodes, physical)
            # A shard of a new collection has only initializing replicas.
            if not any({*states} == {INITIALIZING} for _, view in views for states in view.states.values()):
                break
        return _sources(views, physical)

    async def read_nodes_by_peer(self) -> dict[int | None, QdrantNode]:
        """Return the reachable nodes by peer id. Nodes that fail to respond are left out."""
        peers = await asyncio.gather(*(node.read_peer_id() for node in self._nodes), return_exceptions=True)
        pairs = zip(self._nodes, peers, strict=True)
        return {peer_id: node for node, peer_id in pairs if not isinstance(peer_id, BaseException)}

    async def find_holders(self, physical: str) -> dict[int, QdrantNode]:
        """Return a reachable node with a replica, in any state, for each shard. Raises as `wait_for_views`."""
        views = await wait_for_views(self._nodes, physical)
        return {shard: node for node, view in views for shard in view.local}

    async def wait_until_active(self, physical: str) -> None:
        """Wait until the reachable nodes report every replica as active, and no transfers.

        Raises:
            StoreUnavailable: If that takes longer than `deadline_s`, or the nodes do not agree on the collection.
        """
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + self._deadline_s
        while inactive := await self.describe_inactive(physical):
            if loop.time() > ends_s:
                raise StoreUnavailable(f"replicas of {physical} are not active: {inactive}")
            await asyncio.sleep(MAX_POLL_PAUSE_S)

    async def describe_inactive(self, physical: str) -> str:
        """Describe the inactive replicas and shard transfers, or the absence of the collection; '' if there is none."""
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
