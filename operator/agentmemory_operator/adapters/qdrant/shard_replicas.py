"""The replicas of a collection's shards, asked of every node: where they are, and waiting until they are active."""

import asyncio
from collections.abc import Mapping

from agentmemory_operator.adapters.qdrant.nodes import (
    ACTIVE,
    AGREE_S,
    INITIALIZING,
    LOOK_S,
    NodeView,
    QdrantNode,
    looks,
    settled_views,
)
from agentmemory_operator.errors import NotFound, StoreUnavailable


class ShardReplicas:
    """Asks every node of a cluster for its own.

    Args:
        deadline_s: of waiting for replicas to be active.
    """

    def __init__(self, nodes: tuple[QdrantNode, ...], *, deadline_s: float) -> None:
        self._nodes = nodes
        self._deadline_s = deadline_s

    async def sources(self, physical: str) -> dict[int, QdrantNode]:
        """Of each shard a node that has an active replica; those that are only being made are waited for.

        Raises:
            NotFound: no node knows the collection.
            StoreUnavailable: of a shard there is none.
        """
        async for _ in looks(AGREE_S):
            views = await settled_views(self._nodes, physical)
            # A shard of a new collection has only replicas that are being made.
            if not any({*states} == {INITIALIZING} for _, view in views for states in view.states.values()):
                break
        return _sources(views, physical)

    async def by_peer(self) -> dict[int | None, QdrantNode]:
        """The nodes that can be reached by their numbers."""
        told = await asyncio.gather(*(node.peer() for node in self._nodes), return_exceptions=True)
        pairs = zip(self._nodes, told, strict=True)
        return {number: node for node, number in pairs if not isinstance(number, BaseException)}

    async def holders(self, physical: str) -> dict[int, QdrantNode]:
        """Of each shard a node that can be reached and has a replica."""
        views = await settled_views(self._nodes, physical)
        return {shard: node for node, view in views for shard in view.local}

    async def await_active(self, physical: str) -> None:
        """Wait until every replica is active and every node says so."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + self._deadline_s
        while waits := await self.inactive(physical):
            if loop.time() > ends_s:
                raise StoreUnavailable(f"replicas of {physical} are not active: {waits}")
            await asyncio.sleep(LOOK_S)

    async def inactive(self, physical: str) -> str:
        """Which replicas are not active, and how many are moved; empty where all are and none is."""
        try:
            views = await settled_views(self._nodes, physical)
        except NotFound:
            return "no node has the collection yet"
        found = sorted(
            {f"shard {shard} {state}" for _, view in views for shard, states in view.states.items() for state in states}
            - {f"shard {shard} {ACTIVE}" for _, view in views for shard in view.states}
        )
        moving = max(view.transfers for _, view in views)
        return ", ".join(found + ([f"{moving} transfers"] if moving else []))


def _sources(views: list[tuple[QdrantNode, NodeView]], physical: str) -> dict[int, QdrantNode]:
    """Of each shard a node that has an active replica.

    Raises:
        StoreUnavailable: of one there is none.
    """
    found: dict[int, QdrantNode] = {}
    for shard in sorted({shard for _, view in views for shard in view.states}):
        node = next((node for node, view in views if view.local.get(shard) == ACTIVE), None)
        if node is None:
            raise StoreUnavailable(
                f"shard {shard} of {physical} has no active replica on a node that can be reached: spec.nodes of the "
                f"connection must list every node"
            )
        found[shard] = node
    return found


def one_of(places: Mapping[int | None, QdrantNode], peer: int | None) -> QdrantNode:
    """The node of a peer.

    Raises:
        StoreUnavailable: it cannot be reached, or the connection does not list it.
    """
    if node := places.get(peer):
        return node
    raise StoreUnavailable(
        f"node {peer} of the cluster is unreachable, or spec.nodes of the connection does not list it"
    )


def holder_of(holders: Mapping[int, QdrantNode], shard: int) -> QdrantNode:
    """The node that has a shard.

    Raises:
        StoreUnavailable: none that can be reached has it.
    """
    if node := holders.get(shard):
        return node
    raise StoreUnavailable(f"no reachable node has a replica of shard {shard}")
